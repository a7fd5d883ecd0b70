"""Batches from a data set: seeded order, augmentation, sharding, and workers for what is read from files.

Every random number is a function of (seed, epoch, position of the sample in the epoch's global order).
Batches are therefore the same bits with any number of workers, after a resume in the middle of an epoch, and,
taken together, for any number of processes that share a global batch.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import data as torch_data

from bsnn.data.augment import NUM_DRAWS, Augmentation, mix, normalize
from bsnn.data.dataset import ArrayDataset, Dataset, FileDataset, check_channels, check_labels
from bsnn.data.sounds import AugmentedSounds
from bsnn.errors import UserError

# SplitMix64 (Steele, Lea and Flood, 2014): output n of a seed is a hash of seed + n · γ, so any sample's
# numbers are found without drawing those before it. NumPy's own streams may change between its versions.
_GAMMA = 0x9E3779B97F4A7C15
_ORDER, _AUGMENT, _READ, _SIDE, _MIX, _BACKGROUND = range(6)


def _splitmix64(seed: int, counters: np.ndarray) -> np.ndarray:
    """Outputs number `counters` (from 0), 64 random bits each, of the SplitMix64 generator with this seed."""
    z = (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class _Key(NamedTuple):
    """Where random numbers come from."""

    seed: int
    epoch: int

    def bits(self, purpose: int, counters: np.ndarray) -> np.ndarray:
        state = 0
        for word in (self.seed, self.epoch, purpose):
            state = int(_splitmix64(state ^ word, np.zeros(1))[0])
        return _splitmix64(state, counters)

    def order(self, length: int) -> np.ndarray:
        return np.argsort(self.bits(_ORDER, np.arange(length)), kind="stable")

    def draws(self, positions: np.ndarray) -> Tensor:
        """[B, NUM_DRAWS], uniform in [0, 1)."""
        counters = positions[:, None] * NUM_DRAWS + np.arange(NUM_DRAWS)
        return torch.from_numpy((self.bits(_AUGMENT, counters) >> np.uint64(11)) * 2.0**-53)

    def sides(self, indices: np.ndarray) -> Tensor:
        """[B], uniform in [0, 1): drawn once for each sample of the data set, and half a turn further in each epoch."""
        first = (_Key(self.seed, 0).bits(_SIDE, indices) >> np.uint64(11)) * 2.0**-53
        return torch.from_numpy((first + 0.5 * (self.epoch % 2)) % 1.0)

    def background(self, positions: np.ndarray, share: float) -> np.ndarray:
        """[B], whether a sample is background alone."""
        return (self.bits(_BACKGROUND, positions) >> np.uint64(11)) * 2.0**-53 < share

    def shares(self, positions: np.ndarray, alpha: float) -> np.ndarray:
        """[B], drawn from Beta(α, α)."""
        return np.array([generator.beta(alpha, alpha) for generator in self.generators(positions, _MIX)])

    def generators(self, positions: np.ndarray, purpose: int = _READ) -> list[np.random.Generator]:
        return [np.random.default_rng(seed) for seed in self.bits(purpose, positions).tolist()]


class _Slice(NamedTuple):
    """One rank's part of a global batch."""

    indices: np.ndarray
    """Numbers of the samples in the data set."""
    positions: np.ndarray
    """Their places in the epoch's global order."""
    pairs: tuple[np.ndarray, np.ndarray] | None = None
    """Where each sample of the rank, and the one that it is mixed with, are among these; None if nothing is mixed."""
    background: np.ndarray | None = None
    """Which of them are replaced by background alone; None if the data set has no such samples."""


class _Reader(torch_data.Dataset):
    """Reads whole batches, in a worker process or in this one.

    An error that the user can mend comes back as a value: raised in a worker, it would arrive as a traceback.
    """

    def __init__(self, dataset: Dataset, key: _Key | None) -> None:
        self.dataset = dataset
        self.key = key

    def __getitem__(self, part: _Slice) -> Tensor | UserError:
        count = len(part.indices)
        generators = self.key.generators(part.positions) if self.key else [None] * count
        alone = np.zeros(count, bool) if part.background is None else part.background
        try:
            drawn = zip(part.indices.tolist(), generators, alone.tolist(), strict=True)
            samples = [self._read(index, rng, is_alone) for index, rng, is_alone in drawn]
        except UserError as error:
            return error
        return torch.from_numpy(np.stack(samples))

    def _read(self, index: int, rng: np.random.Generator | None, alone: bool) -> np.ndarray:
        dataset = self.dataset
        if alone and rng is not None and isinstance(dataset, AugmentedSounds):
            return dataset.read_background(rng)
        source = f"sample {index} of {dataset.name}"
        if isinstance(dataset, FileDataset):
            source = f"{dataset.paths[index]} ({source})"
        try:
            sample = dataset.read(index, rng)
        except OSError as error:
            raise UserError(f"{source} cannot be read: {error}; mend or remove the file") from error
        if sample.shape != tuple(dataset.shape) or sample.dtype not in (np.uint8, np.float32):
            raise UserError(
                f"{source} is {sample.dtype} of shape {sample.shape}, expected uint8 or float32 of shape "
                f"{tuple(dataset.shape)}; let `read` convert it"
            )
        return sample


class Loader:
    """Batches `(inputs, labels)` of a data set.

    Inputs are float32 and normalized: [B, C, H, W] for images and sounds, which the caller repeats over time,
    and [T, B, C, H, W] for events. Labels are int64 [B]. With mixup, or with sounds some of which are background alone,
    they are float32 [B, classes], the share of each class; background has an even share of all. A data set in memory is
    gathered as bytes and needs no workers; any other is read sample by sample, in worker processes if there are some.

    With several processes, each passes its rank and gets its part of every global batch of `world_size` ·
    `batch_size` samples. The parts are disjoint, and the global batches do not depend on how many share them.

    Args:
        dataset: what to read.
        batch_size: samples in a batch of this process.
        augment: what to do to training batches; None only normalizes.
        seed: of order and augmentation.
        workers: processes that read what is not in memory; 0 reads in this one.
        drop_last: leave out the last batch of a training epoch when it is not full.
        rank: number of this process.
        world_size: number of processes.
        device: where batches are augmented and delivered; the CPU if None.

    Example:
        >>> dataset = ArrayDataset(
        ...     name="pets",
        ...     kind="image",
        ...     classes=("cat", "dog"),
        ...     labels=np.arange(10) % 2,
        ...     samples=np.zeros((10, 3, 32, 32), np.uint8),
        ...     mean=(0.5, 0.5, 0.5),
        ...     std=(0.25, 0.25, 0.25),
        ...     scale=255.0,
        ... )
        >>> loader = Loader(dataset, batch_size=4, augment=Augmentation(), seed=1)
        >>> [len(labels) for inputs, labels in loader.epoch(0)]
        [4, 4, 2]
        >>> [labels.tolist() for inputs, labels in loader.ordered()]
        [[0, 1, 0, 1], [0, 1, 0, 1], [0, 1]]
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        augment: Augmentation | None = None,
        seed: int = 0,
        workers: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        if batch_size < 1 or workers < 0 or not 0 <= seed < 2**64:
            raise UserError(
                f"batch_size = {batch_size}, workers = {workers}, seed = {seed}: expected at least one "
                "sample a batch, no negative number of workers, and a seed from 0 to 2**64 − 1"
            )
        if not 0 <= rank < world_size:
            raise UserError(f"rank = {rank} of world_size = {world_size}: expected 0 ≤ rank < world_size")
        _check(dataset, augment)
        self.dataset = dataset
        self.batch_size = batch_size
        self.augment = augment
        self.seed = seed
        self.workers = workers
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.device = torch.device("cpu") if device is None else torch.device(device)
        self._last_order: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        """Batches in a training epoch, the same for every rank."""
        stride = self.batch_size * self.world_size
        return num_batches(len(self.dataset), stride, self.world_size, drop_last=self.drop_last)

    def epoch(self, number: int, start_batch: int = 0, *, mixed: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
        """Training batches: the order and the augmentation of epoch `number`, from batch `start_batch` on.

        With mixup, each sample is mixed with the next one of its global batch, and the last with the first. As the
        order is drawn anew in each epoch, that is another sample at random. Both are augmented beforehand.
        `mixed=False` switches mixup off.

        Without `drop_last` each sample comes once, except that fewer than `world_size` samples at the end of
        an epoch are left out (others in each epoch), so that all ranks take the same number of updates.
        """
        if not len(self):
            raise UserError(
                f"{self.dataset.name} has {len(self.dataset)} samples, too few for a batch of "
                f"{self.batch_size} in each of {self.world_size} processes; "
                "choose a smaller batch_size or no drop_last"
            )
        if number < 0 or not 0 <= start_batch <= len(self):
            raise UserError(
                f"epoch {number} from batch {start_batch}: expected an epoch from 0 on and a batch "
                f"from 0 to {len(self)}"
            )
        key, order = _Key(self.seed, number), self._order(number)
        mixing = mixed and self.augment is not None and self.augment.mixup > 0
        parts = (self._part(order, n, mixing) for n in range(start_batch, len(self)))
        if isinstance(self.dataset, AugmentedSounds) and (share := self.dataset.settings.background):
            parts = (part._replace(background=key.background(part.positions, share)) for part in parts)
        return self._batches(parts, key)

    def numbers(self, number: int, batch: int) -> np.ndarray:
        """Which samples of the data set are in a batch of an epoch, in its order; with mixup, before they are mixed."""
        return self._part(self._order(number), batch).indices

    def _order(self, number: int) -> np.ndarray:
        """Of an epoch; that of the last one that was asked for is kept."""
        if self._last_order is None or self._last_order[0] != number:
            self._last_order = number, _Key(self.seed, number).order(len(self.dataset))
        return self._last_order[1]

    def ordered(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Evaluation batches: every sample once over all ranks, in the data set's order, only normalized."""
        order = np.arange(len(self.dataset))
        num_batches = -(-len(order) // (self.batch_size * self.world_size))
        parts = (self._part(order, n) for n in range(num_batches))
        return self._batches((part for part in parts if len(part.indices)), None)

    def _part(self, order: np.ndarray, batch: int, mixing: bool = False) -> _Slice:
        stride = self.batch_size * self.world_size
        start, end = batch * stride, min((batch + 1) * stride, len(order))
        positions = np.arange(start + self.rank, end, self.world_size)
        if not mixing:
            return _Slice(order[positions], positions)
        partners = start + (positions - start + 1) % (end - start)
        # With several ranks, partners are other ranks' samples, which are read here as well.
        both = np.union1d(positions, partners)
        return _Slice(order[both], both, (np.searchsorted(both, positions), np.searchsorted(both, partners)))

    def _batches(self, parts: Iterator[_Slice], key: _Key | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Reads, augments if there is a key to draw with, and delivers."""
        dataset = self.dataset
        for part, raw in self._read(parts, key):
            raw = raw.to(self.device)
            labels = torch.from_numpy(dataset.labels[part.indices]).to(self.device)
            normalization = dataset.mean, dataset.std, dataset.scale, dataset.kind
            if key and self.augment:
                draws = key.draws(part.positions)
                if self.augment.alternating_flip:
                    draws[:, 2] = key.sides(part.indices)
                inputs = self.augment.apply(raw, draws, *normalization)
            else:
                inputs = normalize(raw, *normalization)
            if part.pairs is not None or part.background is not None:
                labels = functional.one_hot(labels, len(dataset.classes)).float()
            if part.background is not None:
                labels[torch.from_numpy(part.background).to(self.device)] = 1 / len(dataset.classes)
            if key and self.augment and part.pairs is not None:
                shares = key.shares(part.positions[part.pairs[0]], self.augment.mixup)
                inputs, labels = (mix(values, *part.pairs, shares) for values in (inputs, labels))
            if dataset.kind == "event":
                inputs = inputs.transpose(0, 1).contiguous()
            yield inputs, labels

    def _read(self, parts: Iterator[_Slice], key: _Key | None) -> Iterator[tuple[_Slice, Tensor]]:
        dataset = self.dataset
        # A subclass that overrides `read` means it.
        if isinstance(dataset, ArrayDataset) and type(dataset).read is ArrayDataset.read:
            for part in parts:
                yield part, torch.from_numpy(dataset.samples[part.indices])
            return
        listed = list(parts)
        batches = torch_data.DataLoader(
            _Reader(dataset, key),
            batch_size=None,
            sampler=listed,
            num_workers=self.workers,
            # Its own generator: by default it would advance the global one, and with it the training run's.
            generator=torch.Generator(),
        )
        for part, batch in zip(listed, batches, strict=True):
            if isinstance(batch, UserError):
                raise batch
            yield part, batch


def num_batches(samples: int, batch_size: int, world_size: int = 1, *, drop_last: bool = False) -> int:
    """Batches in a training epoch.

    Args:
        samples: In the data set.
        batch_size: Samples in a batch of all processes together.
        world_size: Number of processes.
        drop_last: Leave out the last batch when it is not full.

    Example:
        >>> num_batches(10, 4), num_batches(9, 4, world_size=2)
        (3, 2)
    """
    full, rest = divmod(samples, batch_size)
    # Every rank must take part in every update, so a rest that does not reach them all is left out.
    return full + (rest >= world_size and not drop_last)


def _check(dataset: Dataset, augment: Augmentation | None) -> None:
    """Refuses what would give wrong batches in silence."""
    name, labels = dataset.name, dataset.labels
    check_labels(name, labels, len(dataset), dataset.classes)
    if labels.dtype != np.int64:
        raise UserError(f"{name} has labels of {labels.dtype}; expected int64")
    axes = ("T, C, H, W" if dataset.kind == "event" else "C, H, W").split(", ")
    if len(dataset.shape) != len(axes):
        raise UserError(f"{name} has samples of shape {tuple(dataset.shape)}; expected ({', '.join(axes)})")
    check_channels(dataset)
    *_, channels, height, width = dataset.shape
    if augment and augment.cutout > min(height, width):
        raise UserError(
            f"cutout: received a square of {augment.cutout} pixels for {name}, whose samples are {height} × {width}; "
            "expected one that is not larger. 0 switches it off."
        )
    if augment and augment.flip and dataset.kind == "sound":
        raise UserError(
            f"flip: received yes for {name}, whose samples are sounds; a mirror image of a sound is the sound played "
            "backward, which is another word. Switch it off."
        )
    if augment and augment.autoaugment and (dataset.kind != "image" or channels != 3 or dataset.scale != 255):
        raise UserError(
            f"AutoAugment's policy is for RGB bytes, and {name} has {dataset.kind} samples of shape "
            f"{tuple(dataset.shape)}, scale {dataset.scale}; switch `autoaugment` off"
        )
