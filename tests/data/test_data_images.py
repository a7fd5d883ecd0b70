import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from data_files import own_cache, png, put  # noqa: F401
from PIL import Image

from bsnn import UserError
from bsnn.data import imagenet
from bsnn.data.images import decode_image, image_head

GRAY = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
COLOR = np.stack([GRAY, GRAY[::-1], np.full_like(GRAY, 7)], axis=-1)


def color(path: Path, size: int = 8) -> np.ndarray:
    return decode_image(path, size=(size, size), channels=3)


def saved(path: Path, image: Image.Image, **options: object) -> Path:
    buffer = io.BytesIO()
    image.save(buffer, **options)  # pyright: ignore[reportArgumentType]
    return put(path, buffer.getvalue())


def test_color_and_gray_keep_every_byte(tmp_path):
    path = put(tmp_path / "a.png", png(COLOR, 2))
    assert np.array_equal(color(path), COLOR.transpose(2, 0, 1))
    assert image_head(path) == ((8, 8), 3)
    path = put(tmp_path / "b.png", png(GRAY, 0))
    assert np.array_equal(decode_image(path, size=(8, 8), channels=1), GRAY[None])
    assert np.array_equal(color(path), np.stack([GRAY] * 3))
    assert image_head(path) == ((8, 8), 1)


def test_alpha_lies_on_white(tmp_path):
    alpha = np.full((8, 8, 1), 255, np.uint8)
    alpha[0, 0] = 0
    rgba = color(put(tmp_path / "a.png", png(np.concatenate([COLOR, alpha], -1), 6)))
    expected = COLOR.transpose(2, 0, 1).copy()
    expected[:, 0, 0] = 255
    assert np.array_equal(rgba, expected)
    path = put(tmp_path / "b.png", png(np.concatenate([GRAY[..., None], alpha], -1), 4))
    assert decode_image(path, size=(8, 8), channels=1)[0, 0, :2].tolist() == [255, 4]
    assert image_head(path)[1] == 1


def test_16_bits_keep_their_upper_8(tmp_path):
    deep = GRAY.astype(np.uint16) * 256 + 99
    path = put(tmp_path / "a.png", png(deep, 0, depth=16))
    assert np.array_equal(decode_image(path, size=(8, 8), channels=1), GRAY[None])
    assert image_head(path) == ((8, 8), 1)


def test_small_numbers_in_wide_pixels_are_not_black(tmp_path):
    path = saved(tmp_path / "a.tif", Image.fromarray(GRAY.astype(np.int32)), format="TIFF")
    assert np.array_equal(decode_image(path, size=(8, 8), channels=1), GRAY[None])
    deep = saved(tmp_path / "b.tif", Image.fromarray(GRAY.astype(np.int32) * 256), format="TIFF")
    assert np.array_equal(decode_image(deep, size=(8, 8), channels=1), GRAY[None])
    with pytest.raises(UserError, match=r"c.png: 16 bits with values up to 252 only"):
        color(put(tmp_path / "c.png", png(GRAY.astype(np.uint16), 0, depth=16)))
    with pytest.raises(UserError, match=r"e.png: 16 bits with values up to 4,032 only, which is nearly black"):
        color(put(tmp_path / "e.png", png(GRAY.astype(np.uint16) * 16, 0, depth=16)))
    black = put(tmp_path / "d.png", png(np.zeros((8, 8), np.uint16), 0, depth=16))
    assert not color(black).any()


def test_palettes_and_cmyk_become_colors(tmp_path):
    palette = bytes(range(256)) * 3
    path = put(tmp_path / "a.png", png(GRAY, 3, palette=palette[:768]))
    expected = np.frombuffer(palette, np.uint8).reshape(256, 3)[GRAY].transpose(2, 0, 1)
    assert np.array_equal(color(path), expected)
    assert image_head(path)[1] == 3
    cmyk = saved(tmp_path / "b.jpg", Image.new("CMYK", (8, 8), (0, 255, 255, 0)), format="JPEG")
    assert np.all(np.abs(color(cmyk)[:, 4, 4] - np.array([254, 0, 0])) < 8)


def test_a_palette_of_grays_is_gray(tmp_path):
    ramp = np.repeat(np.arange(256, dtype=np.uint8), 3).tobytes()
    assert image_head(put(tmp_path / "a.png", png(GRAY, 3, palette=ramp)))[1] == 1


def test_orientation_of_cameras_is_undone(tmp_path):
    image = Image.fromarray(np.repeat(np.repeat(GRAY, 8, 0), 16, 1))
    exif = image.getexif()
    exif[0x0112] = 6
    path = saved(tmp_path / "a.jpg", image, format="JPEG", exif=exif, quality=95)
    assert image_head(path)[0] == (128, 64)
    turned = decode_image(path, size=(128, 64), channels=1)[0].astype(int)
    assert np.abs(turned - np.rot90(np.asarray(image), -1)).mean() < 3


@pytest.mark.parametrize(
    ("orientation", "lying"), [(1, False), (4, False), (5, True), (8, True), (9, False), (99, False)]
)
def test_sizes_follow_the_orientation(tmp_path, orientation, lying):
    image = Image.new("L", (20, 10))
    exif = image.getexif()
    exif[0x0112] = orientation
    path = saved(tmp_path / "a.jpg", image, format="JPEG", exif=exif)
    assert image_head(path)[0] == ((20, 10) if lying else (10, 20))


def test_the_name_does_not_decide_on_the_format(tmp_path):
    assert np.array_equal(color(put(tmp_path / "a.JPEG", png(COLOR, 2))), COLOR.transpose(2, 0, 1))


def test_evaluation_takes_the_center(tmp_path):
    wide = np.zeros((8, 16), np.uint8)
    wide[:, 4:12] = GRAY
    path = put(tmp_path / "a.png", png(wide, 0))
    assert np.array_equal(decode_image(path, size=(8, 8), channels=1), GRAY[None])
    small = decode_image(path, size=(4, 4), channels=1, margin=2.0)
    assert np.array_equal(small, GRAY[None, 2:6, 2:6])


def test_training_crops_depend_on_the_generator_alone(tmp_path):
    path = put(tmp_path / "a.png", png(COLOR, 2))

    def crop(seed: int) -> np.ndarray:
        return decode_image(path, np.random.default_rng(seed), size=(6, 6), channels=3, random_crop=True)

    assert np.array_equal(crop(1), crop(1))
    assert len({crop(seed).tobytes() for seed in range(20)}) > 15
    # The columns of red rise to the right, unless mirrored.
    mirrored = [crop(seed)[0, 3, 0] > crop(seed)[0, 3, -1] for seed in range(60)]
    assert 15 < sum(mirrored) < 45


def test_crops_keep_to_their_proportions(tmp_path):
    # Columns of one value each, and rows of one: the span of values is the width and the height of the crop.
    ramp = np.broadcast_to(np.arange(240, dtype=np.uint8), (240, 240))
    path = put(tmp_path / "a.png", png(np.stack([ramp, ramp.T, ramp], -1), 2))
    ratios, areas = [], []
    for seed in range(300):
        crop = decode_image(path, np.random.default_rng(seed), size=(60, 60), channels=3, random_crop=True).astype(int)
        width, height = (np.ptp(plane) * 60 / 59 for plane in crop[:2])
        ratios.append(width / height)
        areas.append(width * height / 240**2)
    assert 0.72 < min(ratios) < 0.78
    assert 1.28 < max(ratios) < 1.39
    assert 0.07 < min(areas) < 0.15
    assert 0.85 < max(areas) < 1.03


def test_a_thin_picture_can_be_cropped(tmp_path):
    path = put(tmp_path / "a.png", png(np.full((1, 90), 50, np.uint8), 0))
    picture = decode_image(path, np.random.default_rng(0), size=(5, 5), channels=1, random_crop=True)
    assert picture.tolist() == [[[50] * 5] * 5]


JPEG = io.BytesIO()
Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(JPEG, "JPEG")
WHOLE = png(COLOR, 2)
BROKEN = {
    "empty.png": b"",
    "text.jpg": b"this is no picture",
    "cut.png": WHOLE[:-40],
    "cut.jpg": JPEG.getvalue()[:1500],
    "checksum.png": WHOLE[:-20] + bytes([WHOLE[-20] ^ 0xFF]) + WHOLE[-19:],
    "head.bmp": b"BM" + bytes(20),
    "huge.png": png(np.zeros((1, 1), np.uint8), 0).replace(
        b"\0\0\0\1\0\0\0\1\x08\0", b"\0\0\xff\xff\0\0\xff\xff\x08\0"
    ),
    "script.ps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_pictures_are_refused_by_name(tmp_path, name):
    with pytest.raises(UserError) as caught:
        color(put(tmp_path / name, BROKEN[name]))
    assert name in str(caught.value)


def test_a_large_picture_is_refused_before_it_is_decoded(tmp_path):
    content = png(np.zeros((1, 1), np.uint8), 0)
    head = b"\0\0\0\1\0\0\0\1\x08\0\0\0\0"
    large = b"\0\0\x24\0\0\0\x24\0\x08\0\0\0\0"
    import zlib

    content = content.replace(head, large).replace(
        zlib.crc32(b"IHDR" + head).to_bytes(4, "big"), zlib.crc32(b"IHDR" + large).to_bytes(4, "big")
    )
    with pytest.raises(UserError, match="9216 × 9216 pixels"):
        color(put(tmp_path / "large.png", content))


def test_float_pictures_are_refused(tmp_path):
    path = saved(tmp_path / "a.tif", Image.fromarray(np.ones((4, 4), np.float32)), format="TIFF")
    with pytest.raises(UserError, match="floating-point pixels"):
        color(path)


def write_imagenet(root: Path) -> Path:
    for split in ("train", "val"):
        for value, name in enumerate(("n01", "n02", "n03")):
            for number in range(2):
                content = png(np.full((20, 30, 3), 10 * value + number, np.uint8), 2)
                put(root / split / name / f"{name}_{number}.JPEG", content)
    return root


def test_imagenet_streams(tmp_path):
    train = imagenet(write_imagenet(tmp_path), "train", size=16)
    val = imagenet(tmp_path, "val", size=16)
    assert (train.shape, train.classes, len(train)) == ((3, 16, 16), ("n01", "n02", "n03"), 6)
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert val.read(3).tolist() == np.full((3, 16, 16), 11).tolist()
    assert train.read(5, np.random.default_rng(0)).shape == (3, 16, 16)
    assert len(imagenet(tmp_path, "test", size=16)) == 6


def test_imagenet_layout_mistakes(tmp_path):
    write_imagenet(tmp_path)
    (tmp_path / "val" / "n02").rename(tmp_path / "val" / "n09")
    with pytest.raises(
        UserError, match="class 'n09' is in the val split and not among the training classes n01, n02, n03"
    ):
        imagenet(tmp_path, "val")
    (tmp_path / "train" / "n04").mkdir()
    with pytest.raises(UserError, match=r"n04: the class is empty"):
        imagenet(tmp_path)
    with pytest.raises(UserError, match=r"train: found n01, n02, n03, n04; expected folders train and val"):
        imagenet(tmp_path / "train")
    shutil.rmtree(tmp_path / "val")
    with pytest.raises(UserError, match=r"found train; expected folders train and val"):
        imagenet(tmp_path)


def test_imagenet_as_it_is_distributed_says_what_to_do(tmp_path):
    put(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG", WHOLE)
    put(tmp_path / "train" / "n01" / "1.JPEG", WHOLE)
    with pytest.raises(UserError, match=r"val: 1 files and no folders of classes.*as its script valprep.sh does"):
        imagenet(tmp_path, "val")
    shutil.rmtree(tmp_path / "train" / "n01")
    put(tmp_path / "train" / "n01440764.tar", b"")
    with pytest.raises(UserError, match=r"train: holds archives \(n01440764.tar\).*unpack each"):
        imagenet(tmp_path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("side", [9_500, 14_000], ids=["Pillow warns", "Pillow refuses"])
def test_too_many_pixels_are_refused_in_our_own_words(tmp_path, side):
    huge = tmp_path / "huge.png"
    Image.new("1", (side, side)).save(huge)
    with pytest.raises(UserError, match=r"huge\.png: .*80,000,000 .*Resize it first"):
        image_head(huge)


def test_what_is_no_picture_is_not_called_damaged(tmp_path):
    with pytest.raises(UserError, match=r"a\.png: not a picture in one of JPEG, .*; convert or remove it"):
        color(put(tmp_path / "a.png", b"no picture"))
