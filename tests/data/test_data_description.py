import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import test_data_audio
import test_data_cifar
import test_data_events
import test_data_folder
import test_data_idx
from data_files import nmnist_bin, own_cache, put, write_tones  # noqa: F401

from bsnn import UserError
from bsnn.cli import main
from bsnn.data import ArrayDataset, FileDataset, contact_sheet, describe, digits, find, load, measure, nmnist

EVENTS = [(1, 2, 0, 0), (30, 33, 9000, 1)]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_damaged_file_in_any_split_is_found_before_training(split: str, tmp_path: Path) -> None:
    for name in ("train", "test"):
        test_data_folder.write_images(tmp_path / name, count=3)
    assert describe(tmp_path)["counts"] == {"train": 6, "test": 6}
    whole = (tmp_path / split / "class1" / "2.png").read_bytes()
    put(tmp_path / split / "class1" / "2.png", whole[:-20])
    with pytest.raises(UserError, match=r"class1/2.png: not a complete picture"):
        describe(tmp_path)


@pytest.mark.usefixtures("own_cache")
def test_all_damaged_files_are_named_at_once(tmp_path: Path, capsys) -> None:
    root = test_data_folder.write_images(tmp_path / "data", count=14)
    files = sorted(root.rglob("*.png"))
    for damaged in (files[2], files[9], files[20]):
        put(damaged, damaged.read_bytes()[:-20])
    put(files[20], b"no picture")
    assert main(["data", str(root)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    names = ", ".join(str(files[number].relative_to(root)) for number in (2, 9, 20))
    assert f"{root}: 3 of 28 files cannot be read: {names}. Replace or remove them. The first is {files[2]}:" in message
    for damaged in files[:13]:
        put(damaged, b"")
    with pytest.raises(UserError, match=rf"14 of 28 files .*{files[9].relative_to(root)} and 4 more\. Replace"):
        describe(root)


@pytest.mark.usefixtures("own_cache")
def test_damaged_recordings_and_sounds_are_named_too(tmp_path: Path) -> None:
    for number in range(10):
        for split in ("Train", "Test"):
            put(tmp_path / "events" / split / str(number) / "1.bin", nmnist_bin(EVENTS))
    for split in ("Train", "Test"):
        put(tmp_path / "events" / split / "3" / "1.bin", nmnist_bin(EVENTS)[:-1])
    with pytest.raises(UserError, match=r"2 of 20 files cannot be read: Test/3/1\.bin, Train/3/1\.bin\. Replace"):
        describe(tmp_path / "events")
    tones = write_tones(tmp_path / "sounds", 5)
    sounds = sorted(tones.rglob("*.wav"))
    for path in sounds[-2:]:
        put(path, path.read_bytes()[:30])
    with pytest.raises(UserError, match=rf"2 of {len(sounds)} files cannot be read: .*{sounds[-1].name}\. Replace"):
        describe(tones)


@pytest.mark.usefixtures("own_cache")
def test_other_mistakes_are_told_as_they_are_beside_damaged_files(tmp_path: Path) -> None:
    put(tmp_path / "readme.txt", b"")
    for number in range(3):
        put(tmp_path / "only" / f"{number}.png", b"no picture")
    with pytest.raises(UserError, match="one class only"):
        describe(tmp_path)


LAYOUTS = {
    "cifar10": (test_data_cifar.write_python, "image", [3, 32, 32], {"train": 15, "test": 3}),
    "mnist": (
        lambda root: test_data_idx.write(root, pixels=test_data_idx.IMAGES // 4),
        "image",
        [1, 28, 28],
        {"train": 2, "test": 2},
    ),
    "fashion_mnist": (
        lambda root: test_data_idx.write(root / "FashionMNIST" / "raw").parents[1],
        "image",
        [1, 28, 28],
        {"train": 2, "test": 2},
    ),
    "nmnist": (test_data_events.write_nmnist, "event", [10, 2, 34, 34], {"train": 10, "test": 10}),
    "dvs_cifar10": (
        lambda root: test_data_events.write_dvs_cifar10(root, 3),
        "event",
        [10, 2, 48, 48],
        {"train": 20, "test": 10},
    ),
    "speech_commands": (
        test_data_audio.write_speech,
        "sound",
        [1, 32, 32],
        {"train": 13, "val": 2, "test": 1},
    ),
    "folder": (test_data_folder.write_images, "image", [1, 10, 10], {"train": 16, "test": 4}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_command_recognizes_every_layout(tmp_path, capsys, name):
    write, kind, shape, counts = LAYOUTS[name]
    root = write(tmp_path / "root")
    sheet = tmp_path / "sheet.png"
    assert main(["data", str(root), "--json", "--plot", str(sheet)]) == 0
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    result = json.loads(output)
    assert (result["name"], result["kind"], result["shape"]) == (name, kind, shape)
    assert result["counts"] == counts
    assert sum(result["class_counts"]["train"].values()) == counts["train"]
    assert len(result["mean"]) == len(result["std"]) == shape[-3]
    assert sheet.read_bytes()[:4] == b"\x89PNG"


def test_the_command_in_words(tmp_path, capsys):
    root = test_data_folder.write_images(tmp_path)
    assert main(["data", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "sizes      10 × 10 to 10 × 10 pixels"
    assert lines[:4] == [
        "data       folder, image",
        "classes    2: class0, class1",
        "train      16 samples, 8 a class",
        "test       4 samples, 2 a class",
    ]


def test_what_is_passed_over_is_counted(tmp_path):
    root = test_data_folder.write_images(tmp_path)
    for number in range(3):
        put(root / "class0" / f"{number}.HEIC", b"")
    put(root / "class1" / "LICENSE", b"")
    put(root / "class1" / ".hidden", b"")
    assert describe(root)["ignored"] == {".heic": 3, "no ending": 1}


def test_sizes_span_all_files(tmp_path):
    for split in ("train", "val"):
        test_data_folder.write_images(tmp_path / split, count=2)
    put(tmp_path / "train" / "class0" / "wide.png", test_data_folder.gray(1, 8, 40))
    put(tmp_path / "train" / "class1" / "small.png", test_data_folder.gray(1, 3, 9))
    assert describe(tmp_path)["sizes"] == {"unit": "pixels", "smallest": [3, 9], "largest": [8, 40]}


def test_mistakes_are_one_line_and_status_2(tmp_path, capsys):
    test_data_folder.write_images(tmp_path / "data")
    wrong_plot = [str(tmp_path / "data"), "--plot", str(tmp_path / "sheet.doc")]
    for arguments in ([str(tmp_path / "none")], wrong_plot):
        assert main(["data", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("bsnn: ")
        assert captured.err.count("\n") == 1
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(UserError, match="give the folder"):
        find(file)


def test_a_sheet_of_any_class_names(tmp_path):
    root = test_data_folder.write_images(tmp_path / "data")
    long = "a_very_long_name_of_a_class_" * 4
    (root / "class0").rename(root / "$5 \\frac{ 汉字")
    (root / "class1").rename(root / long)
    describe(root, tmp_path / "sheet.svg")
    short = tmp_path / "short.svg"
    contact_sheet(digits(), short)
    # The sheet grows with the names, up to 40 letters.
    widths = [float(re.search(r'width="([\d.]+)pt"', path.read_text())[1]) for path in (tmp_path / "sheet.svg", short)]
    assert widths[0] == pytest.approx((8 * 0.9 + 40 * 0.07 + 0.5) * 72)
    assert widths[0] > widths[1]
    assert f"{long[:37]}... " in (tmp_path / "sheet.svg").read_text()


def test_file_names_that_are_no_text(tmp_path):
    root = test_data_folder.write_images(tmp_path / "data")
    strange = os.fsdecode(b"caf\xe9")
    (root / "class0").rename(root / strange)
    assert load(root).classes == (strange, "class1")
    code = "import sys, bsnn.cli; sys.exit(bsnn.cli.main(sys.argv[1:]))"
    arguments = [sys.executable, "-c", code, "data", str(root), "--plot", str(tmp_path / "sheet.png")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "caf\\udce9, class1" in done.stdout


def test_a_wrong_plot_is_refused_before_the_work(tmp_path):
    with pytest.raises(UserError, match=r"sheet.jpg: a contact sheet is drawn as"):
        describe(tmp_path / "none", tmp_path / "sheet.jpg")


def test_an_archive_is_recognized(tmp_path):
    folder = test_data_cifar.write_python(tmp_path / "cifar-10-batches-py")
    archive = test_data_cifar.tar_of(folder, tmp_path / "cifar-10-python.tar.gz")
    assert find(archive).name == "cifar10"
    assert len(find(archive).open("train")) == 15


@pytest.mark.parametrize("names", [["airplane.zip", "cat.zip"], ["Train.zip"], ["train/n01.tar", "val/n01.tar"]])
def test_archives_are_to_be_unpacked(tmp_path, names):
    for name in names:
        put(tmp_path / name, b"")
    with pytest.raises(UserError, match=rf"holds archives \({Path(names[0]).name}.*unpack each of them"):
        describe(tmp_path)
    with pytest.raises(UserError, match="holds archives"):
        nmnist(tmp_path)


def test_an_archive_of_a_second_download_is_found(tmp_path):
    folder = test_data_cifar.write_python(tmp_path / "py" / "cifar-10-batches-py")
    test_data_cifar.tar_of(folder, put(tmp_path / "cifar-10-python (1).tar.gz", b""))
    shutil.rmtree(tmp_path / "py")
    assert find(tmp_path).name == "cifar10"


def test_a_stray_file_is_no_cifar(tmp_path):
    put(test_data_folder.write_images(tmp_path) / "train", b"class0/0.png 0\n")
    assert find(tmp_path).name == "folder"


def test_several_sets_in_one_folder_are_listed(tmp_path):
    test_data_cifar.write_python(tmp_path / "cifar-10-batches-py")
    assert find(tmp_path).name == "cifar10"
    test_data_events.write_nmnist(tmp_path / "events")
    with pytest.raises(UserError, match=r"holds cifar10 in .*, nmnist in .*events; give the folder of one"):
        find(tmp_path)
    shutil.rmtree(tmp_path / "cifar-10-batches-py")
    put(tmp_path / "readme.txt", b"")
    with pytest.raises(UserError, match=r"holds nmnist in .*events; give"):
        find(tmp_path)


def test_measures_by_hand():
    samples = np.arange(24, dtype=np.float32).reshape(2, 2, 2, 3)
    data = ArrayDataset("own", "image", ("a", "b"), np.array([0, 1]), samples, (0, 0), (1, 1), 2.0)
    mean, deviation = measure(data)
    for channel in range(2):
        assert mean[channel] == pytest.approx(samples[:, channel].mean() / 2)
        assert deviation[channel] == pytest.approx(samples[:, channel].std() / 2)


def test_sets_check_what_they_are_given():
    samples, labels = np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 1])
    rest = ((0.5,), (0.5,), 255.0)
    with pytest.raises(UserError, match="sample 1 has label 1, and there are 1 classes"):
        ArrayDataset("own", "image", ("a",), labels, samples, *rest)
    with pytest.raises(UserError, match="one whole number for each of the 2 samples"):
        ArrayDataset("own", "image", ("a", "b"), labels[:1], samples, *rest)
    with pytest.raises(UserError, match="samples are int64"):
        ArrayDataset("own", "image", ("a", "b"), labels, samples.astype(int), *rest)
    with pytest.raises(UserError, match="deviations above 0"):
        ArrayDataset("own", "image", ("a", "b"), labels, samples, (0.5,), (0.0,), 255.0)
    wrong = FileDataset(
        "own", "image", ("a",), labels[:1], (1, 4, 4), *rest, [Path("x.png")], lambda path, rng: samples
    )
    with pytest.raises(UserError, match=r"x.png: decoded to shape \(2, 1, 4, 4\)"):
        wrong.read(0)


@pytest.mark.parametrize("package", ["PIL", "soundfile", "matplotlib", "tqdm"])
def test_a_missing_package_says_what_to_install(tmp_path, package):
    test_data_audio.write_speech(tmp_path)
    code = f"import sys; sys.modules[{package!r}] = None; import bsnn.cli; sys.exit(bsnn.cli.main(sys.argv[1:]))"
    arguments = ["data", str(tmp_path), "--plot", str(tmp_path / "sheet.png")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"bsnn: the package {package} is missing; install it with: pip install 'bsnn[data]'\n"


def test_the_readers_do_without_torch():
    code = "import sys, bsnn.data; bsnn.data.load; bsnn.data.imagenet; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
