"""Batches: the same bits from the same seed, each sample where it belongs, errors that tell."""

from pathlib import Path

import numpy as np
import pytest
import torch
from loader_cases import CLASSES, EVERYTHING, SHAPE, in_memory

from bsnn.data import loader as loader_module
from bsnn.data.augment import Augmentation
from bsnn.data.dataset import ArrayDataset, FileDataset, Kind
from bsnn.data.loader import Loader
from bsnn.errors import UserError

# More workers than cores is a fine thing to test with; torch warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def decode(path: Path, rng: np.random.Generator | None) -> np.ndarray:
    """Raw bytes; in training rolled by a random number of columns, as a random crop would."""
    content = path.read_bytes()
    if len(content) != 72:
        raise UserError(f"{path} has {len(content)} bytes, expected 72; copy it again")
    sample = np.frombuffer(content, np.uint8).reshape(SHAPE)
    return sample if rng is None else np.roll(sample, rng.integers(6), axis=-1)


def in_files(folder: Path, count: int = 23) -> FileDataset:
    memory = in_memory(count)
    paths = [folder / f"{i}.raw" for i in range(count)]
    for path, sample in zip(paths, memory.samples, strict=True):
        path.write_bytes(sample.tobytes())
    return FileDataset(
        name="files",
        kind="image",
        classes=CLASSES,
        labels=memory.labels,
        shape=SHAPE,
        mean=memory.mean,
        std=memory.std,
        scale=255.0,
        paths=paths,
        decode=decode,
    )


def numbers(inputs: torch.Tensor) -> list[int]:
    """The samples' numbers, from their corners, when nothing has been moved."""
    corner = inputs[..., 0, 0, 0] * 0.2 + 0.4
    return (corner * 255).round().int().tolist()


Batches = list[tuple[torch.Tensor, torch.Tensor]]


def same(one: Batches, other: Batches) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for batch, twin in zip(one, other, strict=True) for a, b in zip(batch, twin, strict=True)
    )


AUGMENT = Augmentation(crop_padding=1, cutout=2)
both = pytest.mark.parametrize("augment", [AUGMENT, EVERYTHING], ids=["plain", "everything"])


# Random numbers


def test_splitmix64_gives_the_published_numbers() -> None:
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert loader_module._splitmix64(1234567, np.arange(4)).tolist() == expected
    assert loader_module._splitmix64(1234567, np.array([3, 1])).tolist() == [expected[3], expected[1]]


def test_the_order_of_an_epoch_is_pinned() -> None:
    # A change here changes every training run: it must be wanted.
    loader = Loader(in_memory(10), 10, seed=7)
    assert [numbers(inputs) for inputs, _ in loader.epoch(0)] == [[4, 0, 1, 8, 5, 3, 7, 6, 9, 2]]


def test_draws_are_uniform_and_not_repeated() -> None:
    key = loader_module._Key(seed=0, epoch=0)
    draws = key.draws(np.arange(20_000)).numpy()
    assert draws.min() >= 0
    assert draws.max() < 1
    np.testing.assert_allclose(draws.mean(axis=0), 0.5, atol=0.01)
    np.testing.assert_allclose(np.cov(draws.T), np.eye(draws.shape[1]) / 12, atol=0.002)
    assert len(np.unique(draws)) == draws.size
    others = [loader_module._Key(0, 1), loader_module._Key(1, 0), loader_module._Key(1, 1)]
    assert not any(np.isin(other.draws(np.arange(1000)).numpy(), draws).any() for other in others)


# The same bits


@both
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_do_not_change_a_bit(tmp_path: Path, workers: int, augment: Augmentation) -> None:
    dataset = in_files(tmp_path)
    alone = Loader(dataset, 4, augment=augment, seed=3)
    helped = Loader(dataset, 4, augment=augment, seed=3, workers=workers)
    assert same(list(helped.epoch(2)), list(alone.epoch(2)))
    assert same(list(helped.ordered()), list(alone.ordered()))


def test_workers_are_ignored_for_what_is_in_memory() -> None:
    one, other = (Loader(in_memory(), 4, augment=AUGMENT, workers=n) for n in (0, 3))
    assert same(list(one.epoch(0)), list(other.epoch(0)))


@both
@pytest.mark.parametrize("start", [0, 1, 4, 6])
def test_a_resumed_epoch_is_the_tail_of_an_uninterrupted_one(tmp_path: Path, start: int, augment: Augmentation) -> None:
    for dataset in (in_memory(), in_files(tmp_path)):
        loader = Loader(dataset, 4, augment=augment, seed=5)
        whole = list(loader.epoch(1))
        assert len(whole) == 6
        assert same(list(Loader(dataset, 4, augment=augment, seed=5).epoch(1, start)), whole[start:])


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    first, twin, other = (list(Loader(in_memory(), 4, augment=AUGMENT, seed=s).epoch(0)) for s in (1, 1, 2))
    assert same(first, twin)
    assert not same(first, other)


def test_epochs_differ_in_order_and_in_augmentation() -> None:
    dataset = in_memory()
    dataset.samples[:] = dataset.samples[0]
    loader = Loader(dataset, 4, augment=AUGMENT)
    zero, one = list(loader.epoch(0)), list(loader.epoch(1))
    assert not any(torch.equal(a, b) for (a, _), (b, _) in zip(zero, one, strict=True))
    plain = Loader(in_memory(), 23)
    orders = [numbers(inputs) for epoch in range(5) for inputs, _ in plain.epoch(epoch)]
    assert len({tuple(order) for order in orders}) == 5
    assert all(sorted(order) == list(range(23)) for order in orders)


def test_the_read_of_a_file_draws_anew_for_each_sample_and_epoch(tmp_path: Path) -> None:
    dataset = in_files(tmp_path)
    for path in dataset.paths:
        path.write_bytes(dataset.paths[0].read_bytes())
    # The same file everywhere, rolled by 0 to 5 columns: whatever differs was drawn.
    epochs = [[sample.numpy().tobytes() for sample in next(Loader(dataset, 23).epoch(e))[0]] for e in (0, 1)]
    assert [len(set(samples)) for samples in epochs] == [6, 6]
    assert epochs[0] != epochs[1]


def test_the_global_random_state_is_left_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state(), repr(np.random.get_state())
    for workers in (0, 1):
        list(Loader(in_files(tmp_path), 8, augment=AUGMENT, workers=workers).epoch(0))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert repr(np.random.get_state()) == before[1]


# Each sample where it belongs


@pytest.mark.parametrize("count", [23, 24, 25])
@pytest.mark.parametrize("world_size", [2, 3])
def test_shards_are_disjoint_and_cover(count: int, world_size: int) -> None:
    loaders = [Loader(in_memory(count), 4, rank=r, world_size=world_size) for r in range(world_size)]
    shards = [[n for inputs, _ in loader.epoch(3) for n in numbers(inputs)] for loader in loaders]
    together = sorted(n for shard in shards for n in shard)
    assert len(set(together)) == len(together)
    left_out = count % (4 * world_size) if count % (4 * world_size) < world_size else 0
    assert len(together) == count - left_out
    assert len({len(loader) for loader in loaders}) == 1
    assert all(len(list(loader.epoch(3))) == len(loader) for loader in loaders)
    evaluated = [n for loader in loaders for inputs, _ in loader.ordered() for n in numbers(inputs)]
    assert sorted(evaluated) == list(range(count))


@both
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_global_batch_does_not_depend_on_how_many_share_it(
    tmp_path: Path, world_size: int, augment: Augmentation
) -> None:
    # 28 samples: the last batch has four.
    for dataset in (in_memory(28), in_files(tmp_path, 28)):
        whole = list(Loader(dataset, 8, augment=augment).epoch(1))
        for rank in range(world_size):
            part = Loader(dataset, 8 // world_size, augment=augment, rank=rank, world_size=world_size)
            expected = [(inputs[rank::world_size], labels[rank::world_size]) for inputs, labels in whole]
            assert same(list(part.epoch(1)), expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_covers_each_sample_once_in_order_without_augmentation(tmp_path: Path, workers: int) -> None:
    for dataset in (in_memory(), in_files(tmp_path)):
        loader = Loader(dataset, 5, augment=AUGMENT, workers=workers, drop_last=True)
        batches = list(loader.ordered())
        assert [len(labels) for _, labels in batches] == [5, 5, 5, 5, 3]
        inputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        expected = (in_memory().samples / 255 - np.reshape([0.4, 0.5], (2, 1, 1))) / np.reshape([0.2, 0.3], (2, 1, 1))
        np.testing.assert_array_equal(inputs.numpy(), np.rint(expected * 2**13) / 2**13)  # rounded as on a device
        assert inputs.dtype == torch.float32
        assert labels.tolist() == [i % 3 for i in range(23)]


def test_labels_travel_with_their_samples() -> None:
    for inputs, labels in Loader(in_memory(), 4).epoch(0):
        assert labels.dtype == torch.int64
        assert labels.tolist() == [n % 3 for n in numbers(inputs)]


def test_drop_last_leaves_out_what_is_not_full() -> None:
    kept, dropped = Loader(in_memory(), 5), Loader(in_memory(), 5, drop_last=True)
    assert [len(labels) for _, labels in kept.epoch(0)] == [5, 5, 5, 5, 3]
    assert [len(labels) for _, labels in dropped.epoch(0)] == [5, 5, 5, 5]
    assert (len(kept), len(dropped)) == (5, 4)


def test_events_come_time_first() -> None:
    dataset = in_memory(6, (3, 2, 6, 6))
    inputs, _ = next(Loader(dataset, 4).ordered())
    assert inputs.shape == (3, 4, 2, 6, 6)
    assert inputs.is_contiguous()
    assert [numbers(frame) for frame in inputs] == [[0, 1, 2, 3]] * 3
    augmented, _ = next(Loader(dataset, 4, augment=AUGMENT).epoch(0))
    assert augmented.shape == (3, 4, 2, 6, 6)


def test_the_data_set_is_left_as_it_was() -> None:
    dataset = in_memory()
    before = dataset.samples.copy()
    list(Loader(dataset, 4, augment=AUGMENT).epoch(0))
    list(Loader(dataset, 4).ordered())
    np.testing.assert_array_equal(dataset.samples, before)


# A user's own data set


class Ramps:
    """The least that a data set can be."""

    name: str = "ramps"
    kind: Kind = "sound"
    classes: tuple[str, ...] = ("quiet", "loud")
    labels: np.ndarray = np.array([0, 1, 1])
    shape: tuple[int, ...] = (1, 2, 2)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1.0

    def __len__(self) -> int:
        return 3

    def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
        return np.full(self.shape, index, np.float32)


def test_an_own_data_set_needs_only_the_attributes_and_read() -> None:
    own = Ramps()
    inputs, labels = next(Loader(own, 3).ordered())
    assert inputs[:, 0, 0, 0].tolist() == [0.0, 1.0, 2.0]
    assert labels.tolist() == [0, 1, 1]
    assert sorted(next(Loader(own, 3).epoch(0))[0][:, 0, 0, 0].tolist()) == [0.0, 1.0, 2.0]


class Inverted(ArrayDataset):
    def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
        return 255 - self.samples[index]


def test_an_overridden_read_is_used() -> None:
    plain = in_memory(3)
    own = Inverted(
        name="inverted",
        kind="image",
        classes=CLASSES,
        labels=plain.labels,
        samples=255 - plain.samples,
        mean=plain.mean,
        std=plain.std,
        scale=255.0,
    )
    assert same(list(Loader(own, 2).ordered()), list(Loader(plain, 2).ordered()))


# Errors


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("training", [False, True])
def test_a_corrupt_file_is_named(tmp_path: Path, workers: int, training: bool) -> None:
    dataset = in_files(tmp_path)
    dataset.paths[17].write_bytes(b"short")
    loader = Loader(dataset, 4, workers=workers)
    with pytest.raises(UserError, match=r"17\.raw has 5 bytes, expected 72; copy it again$"):
        list(loader.epoch(0) if training else loader.ordered())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_missing_file_is_named(tmp_path: Path, workers: int) -> None:
    dataset = in_files(tmp_path)
    dataset.paths[3].unlink()
    with pytest.raises(UserError, match=r"3\.raw \(sample 3 of files\) cannot be read: .*mend or remove the file"):
        list(Loader(dataset, 4, workers=workers).ordered())


@pytest.mark.parametrize(
    "sample",
    [np.zeros((1, 2, 3), np.float32), np.zeros((1, 2, 2), np.float64), np.zeros((1, 2, 2), np.int16)],
)
def test_a_sample_of_another_shape_or_type_is_refused(sample: np.ndarray) -> None:
    own = Ramps()
    own.read = lambda index, rng=None: sample
    with pytest.raises(UserError, match=r"sample 0 of ramps is .*expected uint8 or float32 of shape \(1, 2, 2\)"):
        next(Loader(own, 3).ordered())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0.*at least one sample"),
        ({"workers": -1}, "workers = -1.*no negative number"),
        ({"seed": -1}, r"seed = -1.*from 0 to 2\*\*64"),
        ({"rank": 2, "world_size": 2}, "rank = 2 of world_size = 2"),
        ({"rank": -1}, "rank = -1"),
        ({"augment": Augmentation(autoaugment=True, cutout=0)}, "AutoAugment's policy is for RGB bytes, and memory"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Loader(in_memory(), **{"batch_size": 4, **options})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.array([0, 1])}, "one whole number for each of the 3 samples"),
        ({"labels": np.array([0, 1, 2])}, "sample 2 has label 2, and there are 2 classes"),
        ({"labels": np.array([0, -1, 1])}, "sample 1 has label -1, and there are 2 classes"),
        ({"labels": np.array([0.0, 1.0, 1.0])}, "labels are float64"),
        ({"labels": np.array([0, 1, 1], np.int32)}, "labels of int32; expected int64"),
        ({"shape": (2, 2)}, r"samples of shape \(2, 2\); expected \(C, H, W\)"),
        ({"kind": "event"}, r"samples of shape \(1, 2, 2\); expected \(T, C, H, W\)"),
        ({"mean": (0.0, 0.0)}, "do not fit samples of shape"),
        ({"std": (0.0,)}, "deviations above 0"),
    ],
)
def test_a_data_set_that_contradicts_itself_is_refused(changes: dict, message: str) -> None:
    own = Ramps()
    for name, value in changes.items():
        setattr(own, name, value)
    with pytest.raises(UserError, match=message):
        Loader(own, 2)


def test_an_epoch_without_batches_is_refused() -> None:
    with pytest.raises(UserError, match="memory has 3 samples, too few for a batch of 4 in each of 1 processes"):
        Loader(in_memory(3), 4, drop_last=True).epoch(0)


@pytest.mark.parametrize(("number", "start"), [(-1, 0), (0, -1), (0, 7)])
def test_an_epoch_or_a_start_out_of_range_is_refused(number: int, start: int) -> None:
    with pytest.raises(UserError, match=f"epoch {number} from batch {start}: expected"):
        Loader(in_memory(), 4).epoch(number, start)


def test_an_iteration_can_be_abandoned(tmp_path: Path) -> None:
    batches = Loader(in_files(tmp_path), 2, workers=2).epoch(0)
    next(batches)
    del batches
    assert len(list(Loader(in_files(tmp_path), 2, workers=2).epoch(0))) == 12
