"""The shipped models: each card tells the truth about its file, and each name works wherever a model is taken."""

import hashlib
import itertools
import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from data_files import nmnist_bin, own_cache, put, wav
from PIL import Image

import bsnn
from bsnn import cli
from bsnn.deploy.inspection import inspect
from bsnn.zoo.cards import Card, find

__all__ = ["own_cache"]
ROOT = Path(__file__).resolve().parents[2]
NAMES = bsnn.zoo.names()
every_model = pytest.mark.parametrize("name", NAMES)


def result_of(capsys: Any, *command: str) -> Any:
    assert cli.main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal_of(capsys: Any, *command: str) -> str:
    assert cli.main(command) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return captured.err


@every_model
def test_a_card_has_every_field_and_its_numbers_are_those_of_the_file(name: str) -> None:
    card, path = bsnn.zoo.card(name), bsnn.zoo.path(name)
    for key, kind in get_type_hints(Card).items():
        assert type(card[key]) is (list if kind in (list[str], list[float]) else kind), key
        assert card[key] not in ("", []), key
    assert card.keys() == get_type_hints(Card).keys()
    content, engine = path.read_bytes(), bsnn.load(name)
    found = inspect(engine.artifact)
    assert (card["name"], card["bytes"], card["sha256"]) == (name, len(content), hashlib.sha256(content).hexdigest())
    assert (card["classes"], card["time_steps"]) == (list(engine.classes), engine.time_steps)
    for key in ("weights", "additions", "multiplications"):
        assert card[key] == found[key], key
    low, high = card["interval"]
    assert 0 <= low < card["test_accuracy"] < high <= 1
    assert abs(card["test_accuracy"] - card["trained_accuracy"]) <= 0.002
    assert (card["test_accuracy"] * card["test_samples"]) % 1 == pytest.approx(0, abs=1e-6)
    assert re.fullmatch("[0-9a-f]{40}", card["commit"])
    assert card["train_seconds"] > 0
    assert all(line["firing_rate"] for line in found["layers"] if line["op"] == "lif"), "operations rest on them"


@every_model
def test_the_command_on_a_card_is_one(name: str) -> None:
    program, *words = bsnn.zoo.card(name)["command"].split()
    assert program == "bsnn"
    assert cli.parser(words).parse_args(words).recipe


def test_the_shipped_models_are_small() -> None:
    sizes = {name: bsnn.zoo.path(name).stat().st_size for name in NAMES}
    assert sum(sizes.values()) <= 4_000_000
    assert sizes.get("cifar10", 0) <= 1_250_000
    assert {"digits", "nmnist"} <= sizes.keys()
    files = {file.name for file in (ROOT / "src" / "bsnn" / "zoo").glob("*.bsnn")}
    assert files == {f"{name}.bsnn" for name in NAMES}, "no model without a card"


@pytest.mark.parametrize("kernel", ["auto", "numpy"])
def test_the_accuracy_of_the_digits_is_exactly_that_of_the_card(kernel: Any) -> None:
    data, card = bsnn.data.digits("test"), bsnn.zoo.card("digits")
    found = bsnn.load("digits", kernel=kernel).predict(data.samples) == data.labels
    assert (found.mean(), len(found)) == (card["test_accuracy"], card["test_samples"])


@every_model
def test_a_model_runs_the_same_in_c_and_numpy(name: str) -> None:
    engines = bsnn.load(name), bsnn.load(name, kernel="numpy")
    spec, rng = engines[0].artifact.input, np.random.default_rng(0)
    frames = (engines[0].time_steps, 2) if spec.kind == "event" else (2,)
    x = rng.random((*frames, *spec.shape)) * spec.largest
    outputs = engines[0].outputs(x)
    assert outputs.shape == (2, len(engines[0].classes))
    assert np.array_equal(outputs, engines[1].outputs(x))


@every_model
def test_a_name_works_wherever_a_model_is_taken(name: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    card = bsnn.zoo.card(name)
    assert result_of(capsys, "inspect", name)["model_bytes"] == card["bytes"]
    assert result_of(capsys, "models", name) == card
    assert result_of(capsys, "export", name) == {"path": f"{name}.bsnn", "bytes": card["bytes"]}
    assert Path(f"{name}.bsnn").read_bytes() == bsnn.zoo.path(name).read_bytes()
    assert f"{name}.bsnn is there already" in refusal_of(capsys, "export", name)
    assert result_of(capsys, "export", name, "--out", f"{name}.bsnn")["bytes"] == card["bytes"]
    assert cli.main(["models", name]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(" ".join(text.split()) in shown for text in bsnn.zoo.describe(card).values())
    for word in ("--compare", "--data=."):
        assert "expected a run" in refusal_of(capsys, "export", name, word)
    for command in ("export", "evaluate"):
        assert "a model file; expected a run" in refusal_of(capsys, command, name, "--checkpoint", "best")


def test_c99_of_a_shipped_model(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert result_of(capsys, "export", "digits", "--format", "c")["path"] == "digits-c"
    assert (tmp_path / "digits-c" / "model.c").exists()
    assert result_of(capsys, "evaluate", "digits")["test_accuracy"] == bsnn.zoo.card("digits")["test_accuracy"]


def test_the_list(capsys) -> None:
    assert result_of(capsys, "models") == {"models": [bsnn.zoo.card(name) for name in NAMES]}
    assert cli.main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(NAMES)]] == list(NAMES)
    assert all(f" {bsnn.zoo.card(name)['bytes']:,} bytes " in line for name, line in zip(NAMES, lines, strict=False))


@pytest.mark.parametrize(
    "command",
    [["predict", "x.png"], ["inspect"], ["evaluate"], ["export"], ["export", "--format", "c"], ["models"]],
    ids=" ".join,
)
def test_an_unknown_name_lists_what_there_is(command: list[str], tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ", ".join(NAMES) in refusal_of(capsys, command[0], "cifar11", *command[1:])
    assert not list(tmp_path.iterdir())
    with pytest.raises(bsnn.UserError, match=f"shipped are {', '.join(NAMES)}"):
        bsnn.load("cifar11")
    with pytest.raises(bsnn.UserError, match=r"cifar11 cannot be read"):
        bsnn.load(Path("cifar11"))


@pytest.mark.parametrize("file", ["digits", "digits/model.bsnn", "digits/config.json", "digits/checkpoints/best.ckpt"])
def test_a_name_with_two_meanings_is_refused(file: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / file, bsnn.zoo.path("nmnist").read_bytes())
    for command in (
        ["predict", "digits", "x.png"],
        ["inspect", "digits"],
        ["evaluate", "digits"],
        ["export", "digits"],
    ):
        message = refusal_of(capsys, *command)
        assert "Write ./digits for the " in message
        assert str(bsnn.zoo.path("digits")) in message, "both ways out are there"
    with pytest.raises(bsnn.UserError, match="expected one meaning"):
        bsnn.load("digits")
    assert bsnn.load(str(bsnn.zoo.path("digits"))).artifact.name == "digits"
    if file in ("digits", "digits/model.bsnn"):
        assert bsnn.load("./digits").artifact.name == bsnn.load(Path("digits")).artifact.name == "nmnist"


def test_a_folder_that_is_no_run_is_in_nobodys_way(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "digits" / "train" / "0" / "x.png", b"")
    assert result_of(capsys, "inspect", "digits")["name"] == "digits"
    assert find("digits") == bsnn.zoo.path("digits")
    assert "is a folder, but not a run" in refusal_of(capsys, "inspect", "./digits")


def test_a_photo_of_any_size_and_shape_is_brought_to_the_input(tmp_path: Path, capsys) -> None:
    data = bsnn.data.digits("test")
    gray = (data.samples[:40, 0] * (255 / 16)).round().astype(np.uint8)
    for number, image in enumerate(gray):
        large = Image.fromarray(image).resize((400, 400), Image.Resampling.NEAREST)
        wide = Image.new("RGB", (700, 400))
        wide.paste(large, (150, 0))
        wide.save(tmp_path / f"{number:02}.jpg")
    found = result_of(capsys, "predict", "digits", str(tmp_path))["predictions"]
    labels = [bsnn.load("digits").classes[c] for c in bsnn.load("digits").predict(data.samples[:40])]
    # The filter that scales an image down also blurs it a little.
    assert sum(line["label"] == label for line, label in zip(found, labels, strict=True)) >= 36


@every_model
def test_files_of_its_kind_get_the_name_of_a_class(name: str, tmp_path: Path, capsys) -> None:
    Image.new("RGB", (311, 97), "orange").save(tmp_path / "image.jpg")
    put(tmp_path / "sound.wav", wav(0.3 * np.sin(np.arange(22_050) / 9), rate=44_100))
    put(tmp_path / "event.bin", nmnist_bin([(x, 2 * x % 34, 10 * x, x % 2) for x in range(34)]))
    (file,) = tmp_path.glob(f"{bsnn.load(name).artifact.input.kind}.*")
    (line,) = result_of(capsys, "predict", name, str(file))["predictions"]
    rejected = ["none of these"] if bsnn.load(name).artifact.reject_below is not None else []
    assert line["label"] in [*bsnn.zoo.card(name)["classes"], *rejected]


@pytest.mark.usefixtures("own_cache")
def test_a_model_is_evaluated_on_the_data_that_one_has(tmp_path: Path, capsys) -> None:
    for number, (split, digit) in enumerate(itertools.product(("Train", "Test"), "037")):
        events = [(x, (number + x) % 34, 10 * x, x % 2) for x in range(34)]
        put(tmp_path / split / digit / "1.bin", nmnist_bin(events))
    assert result_of(capsys, "evaluate", "nmnist", "--data", str(tmp_path))["samples"] == 3
    assert "Give the folder of its data: N-MNIST" in refusal_of(capsys, "evaluate", "nmnist")


def test_training_cannot_start_from_a_deployed_model(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = refusal_of(capsys, "train", "digits", "--init-from", "digits", "--out", "run")
    assert "BatchNorm is folded" in message
    assert f"Give the run that `{bsnn.zoo.card('digits')['command']}` makes" in message
    message = refusal_of(capsys, "train", "digits", "--init-from", str(bsnn.zoo.path("digits")), "--out", "run")
    assert "Give the run that it was exported from" in message
