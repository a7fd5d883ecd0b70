"""Batch augmentation against plain references: one image at a time in NumPy, and Pillow for AutoAugment."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from bsnn.data import augment, autoaugment
from bsnn.data.augment import NUM_DRAWS, Augmentation
from bsnn.data.dataset import Kind
from bsnn.data.spec import DataSpec
from bsnn.deploy.quantize import input_spec
from bsnn.errors import UserError

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
FILL = (125, 123, 114)


def random_bytes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape, dtype=np.uint8)


class Elsewhere(torch.Tensor):
    """A tensor that takes the path of other devices, for machines that have none."""

    is_cpu = property(lambda self: False)  # pyright: ignore[reportAssignmentType]


def elsewhere(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).as_subclass(Elsewhere)


# Plain references: one sample [..., H, W] at a time.


def reflected(place: int, side: int) -> int:
    """Where a place beyond the border lies when the sample is reflected there."""
    return -place if place < 0 else 2 * (side - 1) - place if place >= side else place


def reference_crop_and_flip(
    sample: np.ndarray, top: int, left: int, flipped: bool, padding: int, mode: str = "zeros"
) -> np.ndarray:
    height, width = sample.shape[-2:]
    result = np.zeros_like(sample)
    for y in range(height):
        for x in range(width):
            row, column = y + top - padding, (width - 1 - x if flipped else x) + left - padding
            if mode == "reflect":
                row, column = reflected(row, height), reflected(column, width)
            if 0 <= row < height and 0 <= column < width:
                result[..., y, x] = sample[..., row, column]
    return result


def reference_cutout(sample: np.ndarray, row: int, column: int, size: int) -> np.ndarray:
    result = sample.copy()
    for y in range(sample.shape[-2]):
        for x in range(sample.shape[-1]):
            if 0 <= y - (row - size // 2) < size and 0 <= x - (column - size // 2) < size:
                result[..., y, x] = 0
    return result


def reference_normalize(sample: np.ndarray) -> np.ndarray:
    """By the rule of docs/model-file.md for raw bytes, in Python's integers."""
    largest = max(max(mean, 1 - mean) / std for mean, std in zip(MEAN, STD, strict=True))
    bits = math.floor(math.log2(32767 / largest))
    steepest = max(max(1 / 255, mean) / std for mean, std in zip(MEAN, STD, strict=True)) * 2**bits
    shift = 30 - math.ceil(math.log2(steepest))
    result = np.empty(sample.shape, np.float32)
    for channel, (mean, std) in enumerate(zip(MEAN, STD, strict=True)):
        factor, offset = round(2 ** (bits + shift) / (255 * std)), round(-mean / std * 2 ** (bits + shift))
        whole = [(byte * factor + offset + 2 ** (shift - 1)) // 2**shift for byte in range(256)]
        result[..., channel, :, :] = np.array(whole)[sample[..., channel, :, :]] / 2**bits
    return result


@pytest.mark.parametrize("shape", [(3, 8, 6), (2, 3, 5, 7), (1, 1, 1)])
@pytest.mark.parametrize("padding", [0, 1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_crop_and_flip_equals_the_reference_at_every_offset(
    shape: tuple[int, ...], padding: int, dtype: type, mode: augment.CropMode
) -> None:
    if mode == "reflect" and padding >= min(shape[-2:]):
        return  # refused; see below
    span = 2 * padding + 1
    top, left, flipped = (axis.ravel() for axis in np.indices((span, span, 2)))
    batch = random_bytes(np.random.default_rng(0), len(top), *shape).astype(dtype)
    expected = np.stack(
        [
            reference_crop_and_flip(*arguments, padding, mode)
            for arguments in zip(batch, top, left, flipped == 1, strict=True)
        ]
    )
    tops, lefts, flips = torch.from_numpy(top), torch.from_numpy(left), torch.from_numpy(flipped == 1)
    result = augment.crop_and_flip(torch.from_numpy(batch), tops, lefts, flips, padding, mode)
    assert result.dtype == torch.from_numpy(batch).dtype
    np.testing.assert_array_equal(result.numpy(), expected)
    gathered = augment.crop_and_flip(elsewhere(batch), tops, lefts, flips, padding, mode)
    np.testing.assert_array_equal(gathered.numpy(), expected)


@pytest.mark.parametrize("size", [1, 4, 5, 30])
@pytest.mark.parametrize("shape", [(3, 8, 6), (2, 3, 5, 7)])
def test_cutout_equals_the_reference_at_every_center(shape: tuple[int, ...], size: int) -> None:
    row, column = (axis.ravel() for axis in np.indices(shape[-2:]))
    batch = np.random.default_rng(0).standard_normal((len(row), *shape)).astype(np.float32)
    expected = np.stack([reference_cutout(*arguments, size) for arguments in zip(batch, row, column, strict=True)])
    result = torch.from_numpy(batch.copy())
    assert augment.cutout_(result, torch.from_numpy(row), torch.from_numpy(column), size) is result
    np.testing.assert_array_equal(result.numpy(), expected)
    masked = elsewhere(batch.copy())
    augment.cutout_(masked, torch.from_numpy(row), torch.from_numpy(column), size)
    np.testing.assert_array_equal(masked.numpy(), expected)


def test_cutout_covers_a_quarter_to_all_of_its_square() -> None:
    batch = torch.ones(2, 1, 32, 32)
    augment.cutout_(batch, torch.tensor([16, 0]), torch.tensor([16, 0]), 16)
    assert (batch == 0).sum(dim=(1, 2, 3)).tolist() == [256, 64]


def test_normalize_is_exact_for_every_byte_and_close_to_the_definition() -> None:
    batch = np.tile(np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16), (2, 3, 1, 1))
    result = augment.normalize(torch.from_numpy(batch), MEAN, STD, 255.0).numpy()
    np.testing.assert_array_equal(result, reference_normalize(batch))
    np.testing.assert_array_equal(augment.normalize(elsewhere(batch), MEAN, STD, 255.0).numpy(), result)
    definition = (batch / 255.0 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    np.testing.assert_allclose(result, definition, rtol=0, atol=0.51 * 2**-13)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_raw_values_beyond_the_scale_are_not_cut(dtype: torch.dtype) -> None:
    """Bytes that nobody divides or normalizes: a device refuses them, training takes them as they are."""
    raw = torch.arange(256).view(1, 1, 16, 16)
    assert torch.equal(augment.normalize(raw.to(dtype), [0.0], [1.0], 1.0), raw.float())


@pytest.mark.parametrize("kind", ["image", "sound", "event"])
def test_what_is_trained_on_is_what_a_device_takes(kind: Kind) -> None:
    shape = (2, 3, 16, 16) if kind == "event" else (3, 16, 16)
    raw = random_bytes(np.random.default_rng(0), 4, *shape)
    spec = input_spec(DataSpec("any", kind, (), shape, MEAN, STD, 255.0), bounded=True)
    for given in (raw, raw.astype(np.float32)):
        for there in (torch.from_numpy(given), elsewhere(given)):
            result = augment.normalize(there, MEAN, STD, 255.0, kind).numpy()
            np.testing.assert_array_equal(spec.from_reals(result) / 2.0**spec.fraction_bits, result)
            if given.dtype == np.uint8:
                np.testing.assert_array_equal(spec.from_bytes(given), spec.from_reals(result))


@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(),
        Augmentation(flip=False, cutout=0),
        Augmentation(crop_padding=0),
        Augmentation(crop_padding=0, flip=False),
        Augmentation(cutout=7, crop_mode="reflect"),
        Augmentation(crop_padding=0, flip=False, cutout=0),
    ],
)
@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 3, 12, 10)])
def test_the_whole_equals_the_reference_bit_by_bit(augmentation: Augmentation, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    batch, draws = random_bytes(rng, 12, *shape), rng.random((12, NUM_DRAWS))
    draws[0], draws[1] = 0, 1 - 2.0**-53  # the least and the greatest number drawn
    before = batch.copy()
    result = augmentation.apply(torch.from_numpy(batch), torch.from_numpy(draws), MEAN, STD, 255.0).numpy()
    there = augmentation.apply(elsewhere(batch), torch.from_numpy(draws), MEAN, STD, 255.0).numpy()
    np.testing.assert_array_equal(there, result)
    np.testing.assert_array_equal(batch, before)
    span = 2 * augmentation.crop_padding + 1
    for sample, draw, actual in zip(batch, draws, result, strict=True):
        top, left = int(draw[0] * span), int(draw[1] * span)
        flipped = augmentation.flip and draw[2] < 0.5
        expected = reference_crop_and_flip(
            sample, top, left, flipped, augmentation.crop_padding, augmentation.crop_mode
        )
        expected = reference_normalize(expected)
        center = int(draw[3] * shape[-2]), int(draw[4] * shape[-1])
        expected = reference_cutout(expected, *center, augmentation.cutout)
        np.testing.assert_array_equal(actual, expected)


def test_all_frames_of_a_sample_share_crop_flip_and_cutout() -> None:
    frame = random_bytes(np.random.default_rng(0), 6, 1, 3, 16, 16)
    batch = torch.from_numpy(np.repeat(frame, 4, axis=1))
    draws = torch.rand(6, NUM_DRAWS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = Augmentation(cutout=8).apply(batch, draws, MEAN, STD, 255.0)
    assert all(torch.equal(result[:, t], result[:, 0]) for t in range(4))


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(UserError, match=r"crop_padding = -1.*0 switches it off"):
        Augmentation(crop_padding=-1)
    with pytest.raises(UserError, match=r"cutout = -1.*0 switches it off"):
        Augmentation(cutout=-1)
    with pytest.raises(UserError, match=r"mixup = -1.*0 switches it off"):
        Augmentation(mixup=-1)


def test_what_cannot_be_augmented_so_is_refused() -> None:
    with pytest.raises(UserError, match="alternating_flip: received it without flip"):
        Augmentation(flip=False, alternating_flip=True)
    batch, draws = torch.zeros(1, 3, 8, 4), torch.zeros(1, NUM_DRAWS, dtype=torch.float64)
    with pytest.raises(UserError, match=r"received 4 pixels of reflection for images of 8 × 4; expected fewer"):
        Augmentation(crop_padding=4, crop_mode="reflect").apply(batch, draws, MEAN, STD, 1.0)


@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 3, 4, 4), ()])
def test_mixtures_are_those_of_the_formula(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((5, *shape)).astype(np.float32)
    first, second, share = np.array([0, 2, 4]), np.array([1, 0, 4]), np.array([0.25, 1.0, 0.7])
    expected = np.stack([s * values[a] + (1 - s) * values[b] for a, b, s in zip(first, second, share, strict=True)])
    for batch in (torch.from_numpy(values), elsewhere(values)):
        result = augment.mix(batch, first, second, share)
        assert result.dtype == torch.float32
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_on_another_device_nothing_stays_behind() -> None:
    # Tensors of the device "meta" have no values, but torch refuses to mix them with those of the CPU.
    batch = torch.empty(6, 3, 16, 16, dtype=torch.uint8, device="meta")
    draws = torch.rand(6, NUM_DRAWS, dtype=torch.float64)
    result = Augmentation(crop_mode="reflect").apply(batch, draws, MEAN, STD, 255.0)
    result = augment.mix(result, np.arange(6), np.arange(6)[::-1].copy(), np.full(6, 0.5))
    assert (result.device.type, result.dtype, result.shape) == ("meta", torch.float32, batch.shape)
    fill, amount = torch.empty(3, dtype=torch.uint8, device="meta"), torch.ones(6, dtype=torch.float64)
    changed = [operation(batch, amount, fill) for operation in autoaugment.GEOMETRIC.values()]
    changed += [operation(batch, amount) for operation in autoaugment.GRADED.values()]
    # AutoContrast reads the extremes back, which have no values here.
    changed += [autoaugment.equalize(batch), autoaugment.invert(batch)]
    assert all((c.device.type, c.dtype, c.shape) == ("meta", torch.uint8, batch.shape) for c in changed)


# AutoAugment. Pillow is the oracle, and every operation must give its bytes exactly.


def _affine(*matrix: float) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=FILL)


ORACLE: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "ShearX": lambda image, amount: _affine(1, amount, 0, 0, 1, 0)(image),
    "ShearY": lambda image, amount: _affine(1, 0, 0, amount, 1, 0)(image),
    "TranslateX": lambda image, amount: _affine(1, 0, amount, 0, 1, 0)(image),
    "TranslateY": lambda image, amount: _affine(1, 0, 0, 0, 1, amount)(image),
    "Rotate": lambda image, amount: image.rotate(amount, fillcolor=FILL),
    # Values are whole: below the threshold means below the next whole number.
    "Solarize": lambda image, amount: ImageOps.solarize(image, math.ceil(amount)),
    "Posterize": lambda image, amount: ImageOps.posterize(image, int(amount)),
    "Contrast": lambda image, amount: ImageEnhance.Contrast(image).enhance(amount),
    "Color": lambda image, amount: ImageEnhance.Color(image).enhance(amount),
    "Brightness": lambda image, amount: ImageEnhance.Brightness(image).enhance(amount),
    "Sharpness": lambda image, amount: ImageEnhance.Sharpness(image).enhance(amount),
    "AutoContrast": lambda image, amount: ImageOps.autocontrast(image),
    "Equalize": lambda image, amount: ImageOps.equalize(image),
    "Invert": lambda image, amount: ImageOps.invert(image),
}


def by_pillow(operation: str, image: np.ndarray, amount: float) -> np.ndarray:
    picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    return np.asarray(ORACLE[operation](picture, amount)).transpose(2, 0, 1)


def by_batch(operation: str, images: np.ndarray, amount: torch.Tensor) -> np.ndarray:
    batch = torch.from_numpy(images)
    if operation in autoaugment.GEOMETRIC:
        fill = torch.tensor(FILL, dtype=torch.uint8)
        return autoaugment.GEOMETRIC[operation](batch, amount, fill).numpy()
    if operation in autoaugment.GRADED:
        return autoaugment.GRADED[operation](batch, amount).numpy()
    return autoaugment.UNGRADED[operation](batch).numpy()


def varied_images(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    noise = random_bytes(rng, 3, height, width)
    walk = rng.integers(-4, 5, (3, height, width)).cumsum(axis=2) + 120
    flat = np.broadcast_to(random_bytes(rng, 3, 1, 1), noise.shape)
    two_levels = np.where(noise < 30, 7, 201)
    return np.stack([noise, noise // 8 + 60, walk.clip(0, 255), flat, two_levels]).astype(np.uint8)


@pytest.mark.parametrize("operation", ORACLE)
@pytest.mark.parametrize("size", [(32, 32), (21, 34), (2, 5)])
def test_each_operation_gives_the_bytes_of_pillow(operation: str, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for magnitude in range(10):
        for sign in (-1.0, 1.0):
            images = varied_images(rng, *size)
            amount = autoaugment.amount_of(
                operation,
                torch.full((len(images),), magnitude),
                torch.full((len(images),), sign, dtype=torch.float64),
                *size,
            )
            expected = [by_pillow(operation, image, a) for image, a in zip(images, amount.tolist(), strict=True)]
            np.testing.assert_array_equal(by_batch(operation, images, amount), np.stack(expected))


def test_one_call_serves_a_different_amount_for_each_image() -> None:
    images = np.concatenate([varied_images(np.random.default_rng(0), 32, 32)] * 2)
    magnitude, sign = torch.arange(10), torch.tensor([1.0, -1.0] * 5).double()
    for operation in ORACLE:
        amount = autoaugment.amount_of(operation, magnitude, sign, 32, 32)
        expected = [by_pillow(operation, image, a) for image, a in zip(images, amount.tolist(), strict=True)]
        np.testing.assert_array_equal(by_batch(operation, images, amount), np.stack(expected))


def test_autocontrast_gives_the_bytes_of_pillow_for_every_range_of_values() -> None:
    ramp = np.arange(256).reshape(1, 16, 16)
    for low in range(0, 256, 5):
        images = np.stack([ramp.clip(low, high).repeat(3, axis=0) for high in range(low, 256)]).astype(np.uint8)
        expected = np.stack([by_pillow("AutoContrast", image, 0) for image in images])
        np.testing.assert_array_equal(autoaugment.autocontrast(torch.from_numpy(images)).numpy(), expected)


def test_the_ends_of_each_range() -> None:
    ends = {
        "ShearX": (0.0, 0.3),
        "TranslateY": (0.0, 14.0),
        "Rotate": (0.0, 30.0),
        "Solarize": (256.0, 0.0),
        "Posterize": (8.0, 4.0),
        "Contrast": (0.1, 1.9),
    }
    for operation, expected in ends.items():
        amount = autoaugment.amount_of(operation, torch.tensor([0, 9]), torch.ones(2, dtype=torch.float64), 32, 32)
        assert amount.tolist() == pytest.approx(expected)


def test_the_policy_applied_to_a_batch_equals_pillow_image_by_image() -> None:
    rng = np.random.default_rng(0)
    images = np.concatenate([varied_images(rng, 32, 32) for _ in range(80)])
    draws = rng.random((len(images), autoaugment.NUM_POLICY_DRAWS))
    result = autoaugment.autoaugment(torch.from_numpy(images), torch.from_numpy(draws), FILL).numpy()
    used = set()
    for image, draw, actual in zip(images, draws, result, strict=True):
        expected = image
        for stage, step in enumerate(autoaugment.POLICY[int(25 * draw[0])]):
            operation, probability, magnitude = step
            if draw[1 + stage] < probability:
                sign = torch.tensor([-1.0 if draw[3 + stage] < 0.5 else 1.0]).double()
                amount = autoaugment.amount_of(operation, torch.tensor([magnitude]), sign, 32, 32).item()
                expected = by_pillow(operation, expected, amount)
                used.add(operation)
        np.testing.assert_array_equal(actual, expected)
    # The published policy for CIFAR-10 never shears along x.
    assert used == set(ORACLE) - {"ShearX"}


def test_the_policy_leaves_its_input_and_unchosen_images_alone() -> None:
    images = torch.from_numpy(random_bytes(np.random.default_rng(0), 25, 3, 8, 8))
    before = images.clone()
    draws = torch.full((25, autoaugment.NUM_POLICY_DRAWS), 0.99, dtype=torch.float64)
    draws[:, 0] = (torch.arange(25) + 0.5) / 25
    assert torch.equal(autoaugment.autoaugment(images, draws, FILL), before)
    autoaugment.autoaugment(images, draws * 0.01, FILL)
    assert torch.equal(images, before)


def test_augmentation_applies_the_policy_between_flip_and_normalization() -> None:
    rng = np.random.default_rng(0)
    batch, draws = (
        torch.from_numpy(random_bytes(rng, 16, 3, 32, 32)),
        torch.from_numpy(rng.random((16, NUM_DRAWS))),
    )
    result = Augmentation(autoaugment=True, cutout=0).apply(batch, draws, MEAN, STD, 255.0)
    top, left = (draws[:, :2] * 9).long().unbind(1)
    cropped = augment.crop_and_flip(batch, top, left, draws[:, 2] < 0.5, 4)
    policy = autoaugment.autoaugment(cropped, draws[:, 5:], (125, 123, 114))
    assert torch.equal(result, augment.normalize(policy, MEAN, STD, 255.0))


@pytest.mark.parametrize(
    "batch",
    [torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(2, 3, 8, 8), torch.zeros(2, 2, 3, 8, 8).byte()],
)
def test_the_policy_refuses_what_is_not_rgb_bytes(batch: torch.Tensor) -> None:
    with pytest.raises(UserError, match=r"expected RGB bytes \[B, 3, H, W\]; switch `autoaugment` off"):
        autoaugment.autoaugment(batch, torch.rand(2, 5).double(), FILL)
