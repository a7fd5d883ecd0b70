"""AutoAugment's policy for CIFAR-10 (Cubuk et al., 2019, appendix) on whole batches of RGB bytes.

Each operation gives the bytes that Pillow gives for a single image. Magnitudes 0 to 9 divide the paper's
ranges evenly; where its text leaves room we follow the code that its authors released:

- ShearX/Y 0 to 0.3 about the top left corner, TranslateX/Y 0 to 150/331 of the side in whole pixels, Rotate 0
  to 30 degrees about the center; the sign is drawn. Nearest neighbor; what is uncovered gets `fill`.
- Solarize and Posterize grow stronger with the magnitude: threshold 256 down to 0, 8 bits down to 4.
- Contrast, Color, Brightness, Sharpness: factor 0.1 up to 1.9, without a sign; 1 is the identity.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bsnn.errors import UserError

# Uniform numbers that the policy consumes for a sample: sub-policy, two decisions to apply, two signs.
NUM_POLICY_DRAWS = 5

# A sub-policy is two steps in order: operation, probability, magnitude (0 where the operation has none).
POLICY = (
    (("Invert", 0.1, 0), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, 0), ("Equalize", 0.9, 0)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, 0), ("Equalize", 0.5, 0)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, 0), ("AutoContrast", 0.4, 0)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, 0)),
    (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.2, 0), ("Equalize", 0.6, 0)),
    (("Color", 0.9, 9), ("Equalize", 0.6, 0)),
    (("AutoContrast", 0.8, 0), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 0)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, 0), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, 0), ("Invert", 0.1, 0)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0)),
)

MAX_MAGNITUDE = 9
MAX_SHEAR = 0.3
MAX_SHIFT = 150 / 331
MAX_DEGREES = 30.0

# With fewer elements torch's CPU kernels stay on the calling thread. Waking the thread pool for such short
# work gains nothing, and when another process holds a core it costs a hundred times the work. Indexing with a
# tensor, clone, aminmax and floor wake it all the same, so images go without them.
_SERIAL_ELEMENTS = 32767


def _affine(images: Tensor, matrix: Tensor, fill: Tensor) -> Tensor:
    """Output pixel (x, y) shows input pixel (a x + b y + c, d x + e y + f), at pixel centers.

    Positions are 16.16 fixed-point numbers, as in Pillow: integers agree on every device.

    Args:
        images: [N, C, H, W].
        matrix: [N, 6], float64 on the CPU: a, b, c, d, e, f.
        fill: [C], shown where the position is outside the image.
    """
    height, width = images.shape[-2:]
    a, b, c, d, e, f = matrix.unbind(1)
    coefficients = torch.stack([a, b, c + (a + b) / 2, d, e, f + (d + e) / 2])
    a, b, c, d, e, f = (coefficients * 65536 + 0.5).floor().long().to(images.device)[:, :, None, None]
    y = torch.arange(height, device=images.device)[:, None]
    x = torch.arange(width, device=images.device)
    column, row = (a * x + b * y + c) >> 16, (d * x + e * y + f) >> 16
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    planes = images.flatten(2)
    moved = planes.gather(2, source.flatten(1)[:, None, :].expand_as(planes)).view_as(images)
    return torch.where(inside[:, None], moved, fill[:, None, None])


def _matrix(amount: Tensor, **entries: Tensor) -> Tensor:
    """The identity with some of a … f replaced."""
    zero, one = torch.zeros_like(amount), torch.ones_like(amount)
    identity = {"a": one, "b": zero, "c": zero, "d": zero, "e": one, "f": zero}
    return torch.stack([entries.get(name, value) for name, value in identity.items()], dim=1)


def shear_x(images: Tensor, amount: Tensor, fill: Tensor) -> Tensor:
    """Shifts row y to the left by amount · y."""
    return _affine(images, _matrix(amount, b=amount), fill)


def shear_y(images: Tensor, amount: Tensor, fill: Tensor) -> Tensor:
    """Shifts column x up by amount · x."""
    return _affine(images, _matrix(amount, d=amount), fill)


def translate_x(images: Tensor, amount: Tensor, fill: Tensor) -> Tensor:
    """Shifts to the left by a number of pixels."""
    return _affine(images, _matrix(amount, c=amount), fill)


def translate_y(images: Tensor, amount: Tensor, fill: Tensor) -> Tensor:
    """Shifts up by a number of pixels."""
    return _affine(images, _matrix(amount, f=amount), fill)


def rotate(images: Tensor, amount: Tensor, fill: Tensor) -> Tensor:
    """Turns counterclockwise about the center by a number of degrees."""
    height, width = images.shape[-2:]
    cos, sin = torch.cos(torch.deg2rad(amount)), torch.sin(torch.deg2rad(amount))
    x, y = width / 2, height / 2
    turn = _matrix(amount, a=cos, b=-sin, c=x - cos * x + sin * y, d=sin, e=cos, f=y - sin * x - cos * y)
    return _affine(images, turn, fill)


def _look_up(images: Tensor, table: Tensor) -> Tensor:
    """Replaces each byte by its entry in a table [N, C, 256] of that image and channel."""
    return table.byte().gather(2, images.flatten(2).long()).view_as(images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretches each channel to run from 0 to 255; leaves a constant one alone."""
    # On the CPU in double precision, like Pillow: not every device has it, and a table is small.
    planes = images.flatten(2)
    low, high = (bound.cpu().double() for bound in (planes.amin(2, keepdim=True), planes.amax(2, keepdim=True)))
    level = torch.arange(256, dtype=torch.float64)
    # A true division: torch computes `255 / tensor` as 255 · reciprocal, which rounds twice.
    factor = torch.full_like(low, 255).div(high - low)
    stretched = (level * factor - low * factor).clamp(0, 255)
    return _look_up(images, torch.where(high > low, stretched, level).byte().to(images.device))


def equalize(images: Tensor) -> Tensor:
    """Flattens the histogram of each channel."""
    planes = images.flatten(2).long()
    histogram = planes.new_zeros(*planes.shape[:2], 256).scatter_add_(2, planes, torch.ones_like(planes))
    level = torch.arange(256, device=images.device)
    brightest = images.flatten(2).amax(dim=2, keepdim=True).long()
    step = (planes.shape[2] - histogram.gather(2, brightest)) // 255
    below = histogram.cumsum(2) - histogram
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return _look_up(images, torch.where(step > 0, table, level))


def invert(images: Tensor) -> Tensor:
    """The negative."""
    return 255 - images


def solarize(images: Tensor, amount: Tensor) -> Tensor:
    """Inverts the values from a threshold on."""
    return torch.where(images < amount.float().to(images.device)[:, None, None, None], images, 255 - images)


def posterize(images: Tensor, amount: Tensor) -> Tensor:
    """Keeps the upper `amount` bits of each value."""
    dropped = (1 << (8 - amount.long())) - 1
    return images & (255 - dropped).to(torch.uint8).to(images.device)[:, None, None, None]


def _blend(degenerate: Tensor, images: Tensor, amount: Tensor) -> Tensor:
    """From a degenerate image (0) by way of the image itself (1) beyond it; fractions are cut off."""
    start = degenerate.float()
    factor = amount.float().to(images.device)[:, None, None, None]
    return (start + factor * (images.float() - start)).clamp(0, 255).to(torch.uint8)


def _luma(images: Tensor) -> Tensor:
    """Gray values [N, 1, H, W] by the weights of ITU-R 601, in 16.16 fixed point."""
    red, green, blue = images.int().split(1, dim=1)
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def contrast(images: Tensor, amount: Tensor) -> Tensor:
    """Away from the image's mean gray, rounded."""
    gray = _luma(images).flatten(1)
    count = gray.shape[1]
    mean = (2 * gray.sum(dim=1) + count) // (2 * count)
    return _blend(mean[:, None, None, None], images, amount)


def color(images: Tensor, amount: Tensor) -> Tensor:
    """Away from gray."""
    return _blend(_luma(images), images, amount)


def brightness(images: Tensor, amount: Tensor) -> Tensor:
    """Away from black."""
    return _blend(torch.zeros_like(images), images, amount)


def sharpness(images: Tensor, amount: Tensor) -> Tensor:
    """Away from a smoothed image: each inner pixel five times, its eight neighbors once, over 13."""
    smooth = images.int()
    height, width = images.shape[-2:]
    if height > 2 and width > 2:
        rows = smooth[..., :-2, :] + smooth[..., 1:-1, :] + smooth[..., 2:, :]
        total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * smooth[..., 1:-1, 1:-1]
        smooth = smooth.clone()
        smooth[..., 1:-1, 1:-1] = (2 * total + 13) // 26
    return _blend(smooth, images, amount)


GEOMETRIC: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
    "Rotate": rotate,
}
GRADED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Solarize": solarize,
    "Posterize": posterize,
    "Contrast": contrast,
    "Color": color,
    "Brightness": brightness,
    "Sharpness": sharpness,
}
UNGRADED: dict[str, Callable[[Tensor], Tensor]] = {
    "AutoContrast": autocontrast,
    "Equalize": equalize,
    "Invert": invert,
}


def amount_of(operation: str, magnitude: Tensor, sign: Tensor, height: int, width: int) -> Tensor:
    """What a magnitude from 0 to 9 means to an operation.

    Example:
        >>> amount_of("Rotate", torch.tensor([3]), torch.tensor([-1.0]), height=32, width=32).tolist()
        [-10.0]
    """
    strength = magnitude.double() / MAX_MAGNITUDE
    match operation:
        case "ShearX" | "ShearY":
            return sign * MAX_SHEAR * strength
        case "TranslateX":
            return sign * (MAX_SHIFT * width * strength).floor()
        case "TranslateY":
            return sign * (MAX_SHIFT * height * strength).floor()
        case "Rotate":
            return sign * MAX_DEGREES * strength
        case "Solarize":
            return 256 - 256 * strength
        case "Posterize":
            return 8 - (4 * strength).round()
        case _:
            return 0.1 + 1.8 * strength


def autoaugment(images: Tensor, draws: Tensor, fill: Sequence[int]) -> Tensor:
    """Applies a random one of the 25 sub-policies to each image.

    Args:
        images: [B, 3, H, W], uint8; left as they are.
        draws: [B, `NUM_POLICY_DRAWS`], float64 in [0, 1), on the CPU.
        fill: the color of what a shear, shift or rotation uncovers.

    Returns:
        A new batch of the same shape.

    Example:
        >>> images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
        >>> draws = torch.rand(4, NUM_POLICY_DRAWS, dtype=torch.float64)
        >>> autoaugment(images, draws, fill=(125, 123, 114)).shape
        torch.Size([4, 3, 32, 32])
    """
    if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
        raise UserError(
            f"AutoAugment received {images.dtype} of shape {list(images.shape)}, "
            "expected RGB bytes [B, 3, H, W]; switch `autoaugment` off for other data"
        )
    height, width = images.shape[-2:]
    uncovered = torch.tensor(fill, dtype=torch.uint8, device=images.device)
    group_size = _SERIAL_ELEMENTS // images[0].numel() if images.is_cpu else len(images)
    chosen = (draws[:, 0] * len(POLICY)).long().tolist()
    images = torch.from_numpy(images.numpy().copy()) if images.is_cpu else images.clone()
    for stage in (0, 1):
        steps = [POLICY[policy][stage] for policy in chosen]
        members: dict[str, list[int]] = {}
        for index, (draw, step) in enumerate(zip(draws[:, 1 + stage].tolist(), steps, strict=True)):
            if draw < step[1]:
                members.setdefault(step[0], []).append(index)
        signs = torch.where(draws[:, 3 + stage] < 0.5, -1.0, 1.0).double()
        magnitudes = torch.tensor([step[2] for step in steps])
        for operation, indices in members.items():
            for which in torch.tensor(indices).split(max(group_size, 1)):
                amount = amount_of(operation, magnitudes[which], signs[which], height, width)
                there = which.to(images.device)
                images.index_copy_(0, there, _apply(operation, images.index_select(0, there), amount, uncovered))
    return images


def _apply(operation: str, images: Tensor, amount: Tensor, fill: Tensor) -> Tensor:
    if operation in GEOMETRIC:
        return GEOMETRIC[operation](images, amount, fill)
    if operation in GRADED:
        return GRADED[operation](images, amount)
    return UNGRADED[operation](images)
