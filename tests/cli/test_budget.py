"""What a network takes on a device is told before it is trained, and a budget that it exceeds is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import nmnist_bin, png, put, write_tones
from training_runs import TINY_OPTIONS

import bsnn
from bsnn import cli
from bsnn.cli._parser import size
from bsnn.cli._untrained import fitted
from bsnn.data.dataset import Kind
from bsnn.data.spec import DataSpec
from bsnn.deploy.budget import Budget
from bsnn.deploy.codec import read
from bsnn.deploy.footprint import Device, on_device
from bsnn.paper.recipes import recipe
from bsnn.train.devices import NETWORKS
from bsnn.train.fields import written

KB = 1024
FIGURES = ("ram_bytes", "flash_bytes", "stream_ram_bytes", "constant_bytes", "scratch_bytes", "value_bytes")


def result_of(capsys, *arguments: str) -> dict[str, Any]:
    assert cli.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal_of(capsys, *arguments: str) -> str:
    assert cli.main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.count("\n") == 1
    return captured.err


def advised(message: str) -> list[list[str]]:
    """The options that a refusal says would help."""
    return [way.split() for way in message.partition("It would fit with ")[2].strip(".\n").split(" or ")]


def test_an_untrained_network_takes_what_the_trained_one_takes(capsys) -> None:
    trained, untrained = result_of(capsys, "inspect", "digits"), result_of(capsys, "inspect", "digits", "--recipe")
    assert trained["source"] == "shipped model digits (for the recipe of that name: --recipe)"
    assert untrained["source"].startswith("recipe digits, untrained; on the device 4,704 bytes of RAM and 32,248 of")
    assert [untrained[key] for key in FIGURES] == [trained[key] for key in FIGURES]
    for ours, theirs in zip(untrained["layers"], trained["layers"], strict=True):
        assert [ours[key] for key in ("name", "ram_bytes", "flash_bytes")] == [
            theirs[key] for key in ("name", "ram_bytes", "flash_bytes")
        ]
    assert cli.main(["inspect", "digits", "--recipe"]) == 0
    assert "operations and energy are given as if all did" in capsys.readouterr().out


def test_options_shape_the_network_of_a_recipe(capsys) -> None:
    found = result_of(capsys, "inspect", "digits", "--plan", "4,pool,8", "--time-steps", "2")
    assert found["time_steps"] == 2
    assert {layer["name"]: layer["shape"] for layer in found["layers"]}["lif2"] == [8, 4, 4]


def test_a_word_means_one_thing(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--data: received none; the network of folder depends on" in refusal_of(capsys, "inspect", "folder")
    for name, content in (("model.bsnn", bsnn.zoo.path("digits").read_bytes()), ("config.json", b"{}")):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(content)
    assert "Write ./folder for the run or file, or add --recipe" in refusal_of(capsys, "inspect", "folder")
    assert result_of(capsys, "inspect", "./folder")["source"] == "run ./folder"
    assert result_of(capsys, "inspect", "folder/model.bsnn")["source"] == "model file folder/model.bsnn"
    assert "--data: received none" in refusal_of(capsys, "inspect", "folder", "--recipe")
    for given in (["--recipe"], ["--data", "x"], ["--width", "2"]):
        assert f"{given[0]}: received with ./folder, which is no recipe" in refusal_of(
            capsys, "inspect", "./folder", *given
        )
    assert "--image-size: it has an effect only with" in refusal_of(capsys, "inspect", "digits", "--image-size", "8")


def test_a_finished_model_is_checked_against_a_budget(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.bsnn").write_bytes(bsnn.zoo.path("digits").read_bytes())
    for word, source in (("own.bsnn", "model file own.bsnn"), ("digits", "shipped model digits (for the recipe of")):
        found = result_of(capsys, "inspect", word, "--ram", "4704", "--flash", "32248")
        assert found["source"].startswith(source)
        assert found["source"].endswith(
            "; it fits: on the device 4,704 of 4,704 bytes of RAM and 32,248 of 32,248 of flash"
        )
        message = refusal_of(capsys, "inspect", word, "--ram", "4703")
        assert f"{word}: it does not fit: it takes 4,704 bytes of RAM, and the budget is 4,703: 64 of input" in message
        message = refusal_of(capsys, "inspect", word, "--ram", "4k", "--flash", "32247")
        assert "of RAM, and the budget is 4,096" in message
        assert "it takes 32,248 bytes of flash, and the budget is 32,247" in message
        stream = ["--ram", "30k", "--stream"]
        assert "it takes 30,816 bytes of RAM, and the budget is 30,720" in refusal_of(capsys, "inspect", word, *stream)
        assert "--stream: received without --ram" in refusal_of(capsys, "inspect", word, "--stream")
    # What makes a recipe of the word still does.
    assert result_of(capsys, "inspect", "digits", "--recipe", "--ram", "8k")["source"].startswith("recipe digits")


def test_a_model_says_what_its_figures_leave_out(capsys) -> None:
    source = result_of(capsys, "inspect", "nmnist", "--ram", "512k", "--stream")["source"]
    assert source.endswith("Sum the events yourself. What that takes on the device is not in these figures.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("65536", 65536),
        ("64k", 65536),
        ("64K", 65536),
        ("256KB", 262144),
        ("256kib", 262144),
        ("1m", 2**20),
        ("4096m", 2**32),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            ["", "-1", "64 k", "k", "1e5", "٦٤", "+64", "1,5k"],
            "expected a whole number of bytes, such as 65536, 64k or 64KB",
        ),
        (["1g"], "there is no unit 'g'; expected k or KB (1,024 bytes), m or MB (1,024 of these)"),
        (["64kk", "1.5kk"], "there is no unit 'kk'"),
        (["64b"], "there is no unit 'b'"),
        (["1.5k", "64.0", "64."], "expected a whole number, without a fraction, such as"),
        (["0", "0k", "000"], "expected more than 0 bytes, such as"),
        (["4294967297", "4097m", "99999999999999999999", "9" * 5000], "expected at most 4,294,967,296 bytes (4096m)"),
    ],
)
def test_other_sizes_are_refused(texts: list[str], expected: str, capsys) -> None:
    for text in texts:
        with pytest.raises(SystemExit):
            cli.main(["train", "digits", f"--ram={text}"])
        assert f"received {text!r}; {expected}" in capsys.readouterr().err


def test_a_network_that_does_not_fit_is_refused_before_it_is_trained(tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    command = ["train", "digits", "--out", str(out)]
    message = refusal_of(capsys, *command, "--ram", "4k")
    assert "digits: it takes 4,704 bytes of RAM, and the budget is 4,096: 64 of input, 2,112 of values" in message
    assert "(the most pool2 1,152, pool3 576), 2,528 of scratch (conv3 2,528). It would fit with --time" in message
    # What is advised is true.
    ways = advised(message)
    assert [way[0] for way in ways] == ["--time-steps", "--width"]
    for way in ways:
        assert result_of(capsys, "inspect", "digits", *way, "--ram", "4k")["ram_bytes"] <= 4096
    message = refusal_of(capsys, *command, "--flash", "30k")
    assert "it takes 32,248 bytes of flash, and the budget is 30,720: 25,188 of constants (the most conv4" in message
    message = refusal_of(capsys, *command, "--ram", "24k", "--stream")
    assert "24,576: 64 of input, 26,112 of membranes (the most lif2 12,288, lif1 6,144)" in message
    message = refusal_of(capsys, *command, "--ram", "10", "--flash", "10")
    assert "of RAM, and the budget is 10" in message
    assert "of flash, and the budget is 10" in message
    assert message.endswith("Change --plan, --width and --time-steps together.\n")
    # Time steps are advised only if they are what counts.
    for small in (["--flash", "10"], ["--ram", "1k", "--stream"]):
        assert refusal_of(capsys, *command, *small).endswith(". Change --plan and --width together.\n")
    assert "--stream: received without --ram" in refusal_of(capsys, *command, "--stream", "--flash", "9k")
    assert "leave one of them out" in refusal_of(capsys, *command, "--ram", "9k", "--sweep", "seed=0,1")
    assert "has no deployed form" in refusal_of(capsys, *command, "--ram", "9k", "--neuron", "alif")
    assert not out.exists()


def test_a_network_that_fits_is_trained_and_takes_what_was_said(tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    budget = ["--ram", "4k", "--flash", "64k"]
    assert cli.main(["train", "digits", *TINY_OPTIONS, *budget, "--out", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)["device"]
    device = on_device(read(out / "model.bsnn"))
    assert told == device.figures()
    assert f"on the device {device.ram_bytes:,} of 4,096 bytes of RAM and {device.flash_bytes:,} of" in captured.err
    assert result_of(capsys, "train", "digits", *TINY_OPTIONS, *budget, "--out", str(out), "--resume")[
        "finished_before"
    ]


KINDS = {
    "sound": ("speech-commands-device", (1, 32, 32), 1.0),
    "image": ("cifar10-device", (3, 32, 32), 255.0),
    "event": ("nmnist-device", (5, 2, 34, 34), 8.0),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    """A kind of data whose spec stands for the data itself."""
    _, shape, scale = KINDS[request.param]
    channels = (0.5,) * shape[-3]
    spec = DataSpec(request.param, request.param, tuple("abcdefghij"), shape, channels, channels, scale)
    monkeypatch.setattr("bsnn.cli._untrained.load_spec", lambda config, data: spec)
    return request.param


def test_a_recipe_for_devices_picks_the_first_network_that_fits(kind: Kind, capsys) -> None:
    name = KINDS[kind][0]
    sizes = []
    for budget in (Budget(2**40), Budget(256 * KB, 1024 * KB), Budget(64 * KB, 256 * KB), Budget(16 * KB, 64 * KB)):
        found = fitted(name, recipe(name), (), budget, "data")
        matches = [all(getattr(found.config, k) == value for k, value in n.items()) for n in NETWORKS[kind]]
        place = matches.index(True)
        assert not budget.excess(found.device)
        for larger in NETWORKS[kind][:place]:
            tight = replace(recipe(name), **larger)
            assert budget.excess(fitted("folder", tight, (), Budget(), "data").device), "it would have fitted"
        assert (
            f"picked plan={written(found.config.plan)}, time_steps={found.config.time_steps}" in capsys.readouterr().err
        )
        sizes.append(place)
    assert sizes[0] == 0
    assert sizes == sorted(sizes)
    stream = fitted(name, recipe(name), (), Budget(128 * KB, None, stream=True), "data")
    assert stream.device.stream_ram_bytes < 128 * KB


def test_what_is_given_holds_for_all_networks(kind: Kind) -> None:
    config = replace(recipe(KINDS[kind][0]), time_steps=1)
    assert fitted(KINDS[kind][0], config, ("time_steps",), Budget(64 * KB), "data").config.time_steps == 1


def test_a_recipe_for_devices_must_know_the_device(kind: Kind, tmp_path: Path, capsys) -> None:
    name, out = KINDS[kind][0], tmp_path / "run"
    for command in (["train", name, "--out", str(out)], ["inspect", name]):
        assert f"--ram: received none; {name} picks its network" in refusal_of(capsys, *command, "--data", "data")
    assert "the smallest network does not fit: it takes" in refusal_of(
        capsys, "train", name, "--data", "data", "--out", str(out), "--ram", "1k"
    )
    assert "leave one of them out" in refusal_of(capsys, "train", name, "--data", "data", "--sweep", "seed=0,1")
    for model in ("vgg11", "residual"):
        for command in (["train", name, "--out", str(out)], ["inspect", name]):
            message = refusal_of(capsys, *command, "--data", "data", "--ram", "64k", "--model", model)
            assert f"--model: received {model}; {name} picks the model itself" in message
    assert not out.exists()


def test_frames_are_as_large_as_the_camera_if_they_fit(tmp_path: Path, capsys) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        for number in range(5):
            events = [(*rng.integers(0, 34, 2).tolist(), 10 * i, i % 2) for i in range(40)]
            put(tmp_path / name / f"{number}.bin", nmnist_bin(events))
    for ram, side in (("16k", 34), ("8k", 16)):
        assert cli.main(["inspect", "folder-device", "--data", str(tmp_path), "--ram", ram, "--json"]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out)["input_shape"] == [2, side, side]
        own, resized = "image_size=0 (the data's own, 34 × 34)", "frames of 16 × 16 are resized from a camera of 34"
        assert (own in captured.err, resized in captured.err) == (side == 34, side == 16)
        assert ("What that takes on the device is not in these figures." in captured.err) == (side == 16)
        assert ("16 and 980 of them for the front end" in json.loads(captured.out)["source"]) == (side == 34)
    assert cli.main(["inspect", "folder-device", "--data", str(tmp_path), "--ram", "64k", "--stream"]) == 0
    assert "a stream takes one at a time. Sum the events yourself. What that takes" in capsys.readouterr().err


@pytest.fixture
def sound_device(tmp_path: Path) -> Device:
    net = bsnn.models.vgg((4, "pool", 4), num_classes=2, in_channels=1)
    spec = DataSpec("sounds", "sound", ("a", "b"), (1, 32, 32), (0.5,), (0.5,), 1.0)
    bsnn.export(net, tmp_path / "model.bsnn", spec=spec, time_steps=2)
    return on_device(read(tmp_path / "model.bsnn"))


def test_the_front_end_of_sounds_counts(sound_device: Device) -> None:
    assert sound_device.sound_ram_bytes > 6000
    ram, flash = sound_device.ram_bytes, sound_device.flash_bytes
    assert Budget(ram, flash).taken(sound_device) == (ram, flash)
    assert not Budget(ram, flash).excess(sound_device)
    (excess,) = Budget(ram - 1, flash).excess(sound_device)
    assert f"{sound_device.sound_ram_bytes:,} of the front end" in excess
    # The parts that it names are all of it.
    parts = re.sub(r"\(.*?\)", "", excess.partition(": ")[2])
    assert sum(int(part.replace(",", "")) for part in re.findall(r"([\d,]+) of", parts)) == ram


def test_a_recipe_for_devices_advises_what_would_fit(tmp_path: Path, capsys) -> None:
    command = ["inspect", "folder-device", "--data", str(write_tones(tmp_path, 5)), "--ram", "12k"]
    message = refusal_of(capsys, *command)
    assert "the smallest network does not fit: it takes 13," in message
    assert advised(message) == [["--time-steps", "1"], ["--width", "0.5"], ["--image-size", "24"]]
    for way in advised(message):
        assert result_of(capsys, *command, *way)["ram_bytes"] <= 12 * KB
    # Images of 16 × 16 are too small for five poolings, and are not advised.
    message = refusal_of(capsys, *command, "--plan", "8,pool,8,pool,8,pool,8,pool,8,pool,8", "--ram", "1k")
    assert message.endswith("Change --plan, --width and --time-steps together.\n")


@pytest.mark.parametrize("reject", ["0", "0.1"])
def test_the_threshold_of_sounds_counts_before_it_is_chosen(tmp_path: Path, capsys, reject: str) -> None:
    tones, out = write_tones(tmp_path / "tones", 5), tmp_path / "run"
    shape = ["--data", str(tones), "--plan", "down,4,pool,4", "--image-size", "16", "--reject", reject]
    untrained = result_of(capsys, "inspect", "folder", *shape)
    flash, ram = untrained["flash_bytes"], untrained["ram_bytes"]
    command = ["train", "folder", *shape, "--epochs", "1", "--out", str(out), "--ram", str(ram)]
    assert f"it takes {flash:,} bytes of flash" in refusal_of(capsys, *command, "--flash", str(flash - 1))
    assert result_of(capsys, *command, "--flash", str(flash))["device"]["flash_bytes"] == flash
    trained = result_of(capsys, "inspect", str(out))
    assert (trained["reject_below"] is not None) == (float(reject) > 0)
    assert [trained[key] for key in FIGURES] == [untrained[key] for key in FIGURES]


def test_options_of_sounds_are_refused_for_images(tmp_path: Path, capsys) -> None:
    for name in ("a", "b"):
        put(tmp_path / name / "0.png", png(np.zeros((8, 8), np.uint8), 0))
    message = refusal_of(capsys, "inspect", "folder", "--data", str(tmp_path), "--reject", "0.1")
    assert "--reject: it has an effect only on sounds" in message


def test_a_run_for_a_device_goes_on_with_its_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tones, out = write_tones(tmp_path / "tones", 5), tmp_path / "run"
    command = ["train", "folder-device", "--data", str(tones), "--out", str(out)]
    assert cli.main([*command, "--ram", "16k", "--epochs", "1"]) == 0
    capsys.readouterr()
    for budget in ([], ["--ram", "16k"], ["--ram", "64k", "--flash", "256k"]):
        assert cli.main([*command, "--resume", *budget]) == 0
        captured = capsys.readouterr()
        assert "was finished already" in captured.out
        assert "picked" not in captured.err
    for options, message in (
        (["--ram", "16k", "--epochs", "2"], "the run there was started with --epochs 1 (now 2)"),
        (["--ram", "8k"], "the network of the run there does not fit: it takes"),
    ):
        assert cli.main([*command, "--resume", *options]) == 2
        assert f"{out}: {message}" in capsys.readouterr().err
