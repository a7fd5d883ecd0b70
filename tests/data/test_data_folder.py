import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from data_files import aedat, nmnist_bin, own_cache, png, put, wav  # noqa: F401

from bsnn import UserError
from bsnn.data import ArrayDataset, FileDataset, cache as cache_module, dataset, find, folder, folders, load


def gray(value: int, rows: int = 10, columns: int = 10) -> bytes:
    return png(np.full((rows, columns), value, np.uint8), 0)


def write_images(root: Path, classes: int = 2, count: int = 10) -> Path:
    for label in range(classes):
        for number in range(count):
            put(root / f"class{label}" / f"{number}.png", gray(100 * label + number))
    return root


def values(data: ArrayDataset | FileDataset) -> set[int]:
    return {int(data.read(index).flat[0]) for index in range(len(data))}


def test_a_seeded_split_of_pictures(tmp_path):
    write_images(tmp_path)
    train, test = folder(tmp_path), folder(tmp_path, "test")
    assert isinstance(train, ArrayDataset)
    assert (train.kind, train.classes, train.shape) == ("image", ("class0", "class1"), (1, 10, 10))
    assert (len(train), len(test)) == (16, 4)
    assert np.bincount(test.labels).tolist() == [2, 2]
    assert values(train) | values(test) == {*range(10), *range(100, 110)}
    assert not values(train) & values(test)
    assert values(folder(tmp_path, "test", seed=1)) != values(test)
    assert values(folder(tmp_path, "val")) == values(test)
    assert train.mean == test.mean
    assert 0.15 < train.mean[0] < 0.25


@pytest.mark.parametrize(
    "names",
    [
        ("train", "val"),
        ("Training", "test"),
        ("train", "validation"),
        ("train", "eval"),
        ("train", "dev"),
        ("training_set", "test_set"),
        ("TrainData", "holdout"),
    ],
)
def test_folders_of_splits(tmp_path, names):
    for place, name in enumerate(names):
        write_images(tmp_path / name, count=3 + place)
    assert (len(folder(tmp_path)), len(folder(tmp_path, "val")), len(folder(tmp_path, "test"))) == (6, 8, 8)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("val", "test"), "splits test and val, and none for training"),
        (("train", "training", "val"), "train and training are both for the train split"),
        (("fold1", "fold2"), "fold1, fold2 all hold class0, class1, so these look like splits"),
    ],
)
def test_splits_never_become_classes(tmp_path, names, message):
    for name in names:
        write_images(tmp_path / name, count=3)
    with pytest.raises(UserError, match=message):
        folder(tmp_path)


def test_one_word_of_a_split_can_be_a_class(tmp_path):
    write_images(tmp_path)
    (tmp_path / "class0").rename(tmp_path / "train")
    assert folder(tmp_path).classes == ("class1", "train")


def test_a_test_folder_without_labels_is_left_out(tmp_path):
    for name in ("train", "val"):
        write_images(tmp_path / name, count=3)
    put(tmp_path / "test" / "1.png", gray(1))
    assert find(tmp_path).splits == ("train", "val")
    put(tmp_path / "val" / "1.png", gray(1))
    shutil.rmtree(tmp_path / "val" / "class0")
    shutil.rmtree(tmp_path / "val" / "class1")
    with pytest.raises(UserError, match=r"val: 1 files and no folders of classes here.*Move each file"):
        folder(tmp_path)


def test_channels_and_size_are_found(tmp_path):
    write_images(tmp_path)
    put(tmp_path / "class0" / "color.png", png(np.full((10, 10, 3), [9, 8, 7], np.uint8), 2))
    assert folder(tmp_path).shape == (3, 10, 10)
    put(tmp_path / "class1" / "wide.png", gray(50, 20, 80))
    assert folder(tmp_path).shape == (3, 64, 64)
    assert folder(tmp_path, size=12).shape == (3, 12, 12)


def test_files_may_lie_deeper_and_others_are_ignored(tmp_path):
    write_images(tmp_path)
    put(tmp_path / "class0" / "more" / "x.PNG", gray(77))
    put(tmp_path / "class0" / "notes.txt", b"text")
    put(tmp_path / "class0" / ".hidden.png", b"junk")
    put(tmp_path / "__MACOSX" / "x.png", b"junk")
    put(tmp_path / "readme.md", b"text")
    assert len(folder(tmp_path)) + len(folder(tmp_path, "test")) == 21


def test_links_are_followed(tmp_path):
    write_images(tmp_path / "far")
    for name in ("class0", "class1"):
        (tmp_path / "near").mkdir(exist_ok=True)
        (tmp_path / "near" / name).symlink_to(tmp_path / "far" / name)
    (tmp_path / "far" / "class0" / "up").symlink_to(tmp_path / "far")
    assert len(folder(tmp_path / "near")) == 16
    (tmp_path / "splits").mkdir()
    for name in ("train", "val"):
        (tmp_path / "splits" / name).symlink_to(tmp_path / "near")
    assert len(folder(tmp_path / "splits", "val")) == 20
    (tmp_path / "far" / "class1" / "lost.png").symlink_to(tmp_path / "none.png")
    with pytest.raises(UserError, match=r"lost.png: a link to .*none.png, which is not there"):
        folder(tmp_path / "near")


def test_a_large_set_streams(tmp_path, monkeypatch):
    write_images(tmp_path)
    monkeypatch.setattr(cache_module, "MEMORY_LIMIT", 100)
    data = folder(tmp_path, size=8)
    assert isinstance(data, FileDataset)
    assert data.shape == (1, 8, 8)
    # Nobody asked for random crops or flips of own pictures.
    half = put(tmp_path / "class0" / "0.png", png(np.eye(10, dtype=np.uint8) * 200, 0))
    place = next(place for place, path in enumerate(data.paths) if path == half)
    assert all(np.array_equal(data.read(place, np.random.default_rng(seed)), data.read(place)) for seed in range(9))


def test_samples_are_decoded_once(tmp_path, own_cache, monkeypatch):  # noqa: F811
    write_images(tmp_path)
    first = folder(tmp_path)
    (kept,) = (own_cache / "decoded").iterdir()

    def fail(*_):
        raise AssertionError("decoded again")

    monkeypatch.setattr(cache_module, "_decode", fail)
    assert values(folder(tmp_path)) == values(first)
    monkeypatch.undo()
    monkeypatch.setenv("BSNN_CACHE", str(own_cache))
    kept.write_bytes(kept.read_bytes()[:50])
    assert values(folder(tmp_path)) == values(first)
    changed = next(path for path in sorted((tmp_path / "class0").iterdir()))
    put(changed, gray(222))
    assert 222 in values(folder(tmp_path)) | values(folder(tmp_path, "test"))


@pytest.mark.parametrize("ending", ["npz", "bin", "png"])
def test_files_are_looked_at_once(tmp_path, own_cache, monkeypatch, ending):  # noqa: F811
    root = write_images(tmp_path) if ending == "png" else write_events(tmp_path, ending)
    first = [load(root, split) for split in ("train", "test")]
    reads = []
    for name in ("read_events", "image_head"):
        monkeypatch.setattr(folders, name, lambda *_, name=name: reads.append(name))
    monkeypatch.setattr(dataset.FileDataset, "read", count_reads(dataset.FileDataset.read, reads))
    again = [load(root, split) for split in ("train", "test")]
    assert len(reads) == 2  # One of each split, for the type of its numbers.
    assert [(data.mean, data.std, data.shape) for data in again] == [
        (data.mean, data.std, data.shape) for data in first
    ]
    # Damaged notes are made again.
    monkeypatch.undo()
    monkeypatch.setenv("BSNN_CACHE", str(own_cache))
    for note in (own_cache / "found").iterdir():
        note.write_text("{")
    assert load(root).mean == first[0].mean


def count_reads(read, reads):
    def counted(*arguments):
        reads.append(arguments[1])
        return read(*arguments)

    return counted


def test_the_cache_knows_times_and_settings(tmp_path):
    write_events(tmp_path, "npz")
    frames = folder(tmp_path, size=20, time_steps=5)
    assert not np.array_equal(folder(tmp_path, size=20, time_steps=5, sensor=(60, 60)).samples, frames.samples)

    def write(value: int) -> np.ndarray:
        for name in ("a/1", "a/2", "b/1", "b/2"):
            path = put(tmp_path / "pictures" / f"{name}.pgm", b"P5 10 10 255\n" + bytes([value]) * 100)
            os.utime(path, ns=(value, value))
        return folder(tmp_path / "pictures").samples

    assert write(1).max() == 1
    assert write(2).max() == 2


def test_a_channel_that_never_varies_is_divided_by_one(tmp_path):
    for label in range(2):
        for number in range(3):
            put(tmp_path / f"class{label}" / f"{number}.png", gray(51))
    data = folder(tmp_path)
    assert (data.mean, data.std) == (pytest.approx((0.2,)), (1.0,))


def test_a_cache_that_cannot_be_written_warns(tmp_path):
    write_images(tmp_path / "data")
    put(tmp_path / "file", b"")
    with pytest.warns(RuntimeWarning, match="were not kept"):
        data = folder(tmp_path / "data", cache=tmp_path / "file")
    assert len(data) == 16


def test_sounds(tmp_path):
    rng = np.random.default_rng(0)
    for label in range(2):
        for number in range(5):
            samples = rng.uniform(-0.5, 0.5, 3000 * (number + 1))
            put(tmp_path / f"word{label}" / f"{number}.wav", wav(samples, rate=8000))
    data = load(tmp_path)
    assert (data.kind, data.shape, len(data), data.mean) == ("sound", (1, 32, 32), 8, (0.5,))
    assert folder(tmp_path, size=20).shape == (1, 20, 20)
    with pytest.raises(UserError, match="a size of 41 for sounds; expected 16 to 40 mel bands and frames"):
        folder(tmp_path, size=41)


def write_events(root: Path, ending: str, reach: int = 30) -> Path:
    for label in range(2):
        for number in range(5):
            path = root / f"move{label}" / f"{number}.{ending}"
            events = [(time % reach, reach - 1 - label, time, time % 2) for time in range(120)]
            if ending == "npz":
                path.parent.mkdir(parents=True, exist_ok=True)
                x, y, t, p = (np.array(column) for column in zip(*events, strict=True))
                np.savez(path, x=x, y=y, t=t, p=p)
            else:
                put(path, aedat(events) if ending == "aedat" else nmnist_bin(events))
    return root


@pytest.mark.parametrize(("ending", "side"), [("npz", 30), ("bin", 34), ("aedat", 48)])
def test_events(tmp_path, ending, side):
    data = load(write_events(tmp_path, ending))
    assert (data.kind, data.shape, len(data)) == ("event", (10, 2, side, side), 8)
    assert data.labels.tolist() == [0] * 4 + [1] * 4
    assert folder(tmp_path, time_steps=4, size=20).shape == (4, 2, 20, 20)


def test_the_camera_of_bin_files_is_found(tmp_path):
    write_events(tmp_path / "large", "bin", 100)
    assert folder(tmp_path / "large", size=100).read(0)[0, :, 99].any()
    write_events(tmp_path / "one", "bin")
    put(tmp_path / "one" / "move0" / "1.bin", nmnist_bin([(99, 0, 1, 1)]))
    with pytest.raises(UserError, match=r"1.bin: 1 of 1 events lie outside of the sensor"):
        [folder(tmp_path / "one", split) for split in ("train", "test")]


def test_frames_keep_their_proportions(tmp_path):
    write_events(tmp_path, "npz")
    assert folder(tmp_path, sensor=(180, 240)).shape == (10, 2, 36, 48)
    for number in range(2):
        np.savez(tmp_path / "move0" / f"{number}.npz", x=[1], y=[1], t=[1], p=[1], height=60, width=96)
    assert folder(tmp_path).shape == (10, 2, 30, 48)


def test_a_given_camera(tmp_path):
    write_events(tmp_path, "npz")
    assert folder(tmp_path, sensor=(40, 36)).shape == (10, 2, 40, 36)
    with pytest.raises(UserError, match="outside of the sensor"):
        folder(tmp_path, sensor=(20, 20))


def test_tiny_imagenet_as_it_is_distributed(tmp_path):
    for label in range(2):
        for number in range(3):
            put(tmp_path / "train" / f"n{label}" / "images" / f"n{label}_{number}.JPEG", gray(label))
    put(tmp_path / "train" / "n0" / "n0_boxes.txt", b"n0_0.JPEG\t0\t0\t9\t9\n")
    put(tmp_path / "val" / "images" / "val_0.JPEG", gray(1))
    put(tmp_path / "val" / "images" / "val_1.JPEG", gray(0))
    put(tmp_path / "val" / "val_annotations.txt", b"val_0.JPEG\tn1\t0\t0\t9\t9\nval_1.JPEG\tn0\t0\t0\t9\t9\n")
    put(tmp_path / "test" / "images" / "test_0.JPEG", gray(0))
    val = load(tmp_path, "val")
    assert [int(val.read(index).flat[0]) for index in range(2)] == val.labels.tolist() == [0, 1]
    put(tmp_path / "val" / "val_annotations.txt", b"val_0.JPEG\tn1\n")
    with pytest.raises(UserError, match=r"does not name val_1.JPEG"):
        load(tmp_path, "val")
    put(tmp_path / "val" / "val_annotations.txt", b"val_9.JPEG\tn1\n")
    with pytest.raises(UserError, match=r"val_annotations.txt: line 1"):
        load(tmp_path, "val")


def test_broken_folders_say_what_to_do(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        folder(tmp_path / "none")
    with pytest.raises(UserError, match="no data here"):
        folder(tmp_path)
    write_images(tmp_path)
    with pytest.raises(UserError, match="no split 'dev'"):
        folder(tmp_path, "dev")
    with pytest.raises(UserError, match="a size of 0"):
        folder(tmp_path, size=0)
    with pytest.raises(UserError, match="0 time steps"):
        folder(tmp_path, time_steps=0)
    (tmp_path / "class2").mkdir()
    with pytest.raises(UserError, match=r"class2: the class is empty"):
        folder(tmp_path)
    put(tmp_path / "class2" / "only.png", gray(1))
    with pytest.raises(UserError, match=r"class2: the class has one file"):
        folder(tmp_path)
    put(tmp_path / "class2" / "sound.wav", wav([0.0] * 10))
    with pytest.raises(UserError, match="21 image files and 1 sound files together"):
        folder(tmp_path)


def test_files_without_a_class_are_refused(tmp_path):
    put(tmp_path / "1.png", gray(1))
    with pytest.raises(UserError, match="files lie directly in this folder"):
        load(tmp_path)


def test_worker_processes_can_hold_a_set(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "MEMORY_LIMIT", 0)
    data = folder(write_images(tmp_path))
    assert np.array_equal(pickle.loads(pickle.dumps(data)).read(3), data.read(3))


def test_one_class_is_a_wrong_folder(tmp_path):
    write_images(tmp_path / "all")
    put(tmp_path / "readme.txt", b"text")
    for read in (folder, load):
        with pytest.raises(UserError, match=r"one class only, 'all'.*give .*all"):
            read(tmp_path)


@pytest.mark.parametrize("wrapper", ["archive", "train"])
def test_one_folder_and_nothing_else_is_stepped_into(tmp_path, wrapper):
    write_images(tmp_path / wrapper)
    put(tmp_path / ".DS_Store", b"")
    put(tmp_path / "__MACOSX" / "archive" / "._x.png", b"junk")
    for read in (folder, load):
        assert (read(tmp_path).classes, len(read(tmp_path, "test"))) == (("class0", "class1"), 4)


def test_splits_must_share_classes(tmp_path):
    write_images(tmp_path / "train", 2)
    write_images(tmp_path / "val", 3)
    with pytest.raises(UserError, match="class 'class2' is in the val split and not among the training"):
        folder(tmp_path)


def test_a_corrupt_picture_in_the_middle_is_named(tmp_path):
    write_images(tmp_path)
    whole = gray(5)
    put(tmp_path / "class1" / "5.png", whole[:-30])
    with pytest.raises(UserError, match=r"class1/5.png: not a complete picture"):
        [folder(tmp_path, split) for split in ("train", "test")]


def test_mixed_cameras_are_refused(tmp_path):
    write_events(tmp_path, "npz")
    put(tmp_path / "move0" / "x.aedat", aedat([(1, 1, 1, 1)]))
    with pytest.raises(UserError, match=r".aedat and .npz files together"):
        folder(tmp_path)
    write_events(tmp_path / "b", "npz")
    np.savez(tmp_path / "b" / "move0" / "x.npz", x=[90_000], y=[0], t=[0], p=[0])
    with pytest.raises(UserError, match=r"x.npz: events reach row 0 and column 90,000"):
        folder(tmp_path / "b")
