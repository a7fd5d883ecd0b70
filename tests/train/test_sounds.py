"""Training on sounds: each option of theirs has an effect, a run resumes, and what makes no sense is refused."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import own_cache, put, wav, write_tones  # noqa: F401
from PIL import Image
from training_runs import Killed, assert_same_run, kill_in, metrics, run_command, stop_after, uncounted

import bsnn
from bsnn import UserError
from bsnn.cli._runs import export_run
from bsnn.data.sounds import AugmentedSounds
from bsnn.deploy.files import batches, evaluate_model, held_out_set
from bsnn.deploy.sound import read_samples, sound_of
from bsnn.paper.recipes import recipe
from bsnn.train import Config, Trainer, World, evaluate_run, load_network, loop, train, trainer
from bsnn.train.build import load_data
from bsnn.train.config import why_unused
from bsnn.train.load import build_trainer
from bsnn.train.recipes import ROOM, without_room
from bsnn.train.rejection import threshold_for

TINY = dataclasses.replace(
    recipe("folder"), plan=(4, "pool", 4, "pool", 4), threshold=0.2, time_steps=2, epochs=2, batch_size=8, gamma=1e-3
)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(trainer, "peak_bytes", uncounted)


def test_a_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tones = write_tones(tmp_path / "tones")
    train(TINY, tmp_path / "whole", data=tones)
    original = Trainer._train_batch
    stop_after(monkeypatch, 3)
    with pytest.raises(Killed):
        train(TINY, tmp_path / "killed", data=tones, checkpoint_minutes=0)
    monkeypatch.setattr(Trainer, "_train_batch", original)
    train(TINY, tmp_path / "killed", data=tones, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


def test_every_option_changes_what_is_trained_on(tmp_path: Path) -> None:
    tones = str(write_tones(tmp_path / "tones", 5))
    put(tmp_path / "noise" / "hum.wav", wav(np.sin(np.arange(16_000) / 50)))

    def inputs(**settings: object) -> bytes:
        data, _ = load_data(dataclasses.replace(without_room(TINY), **settings), tones)
        rng = np.random.default_rng(0)
        return b"".join(data.read(index, rng).tobytes() for index in range(len(data)))

    noise = {"noise": 0.5, "noise_folder": str(tmp_path / "noise")}
    each = [{name: value} for name, value in ROOM.items() if name != "reject"]
    assert len({inputs(**settings) for settings in ({}, *each, noise)}) == len(each) + 2
    data, _ = load_data(TINY, tones)
    assert isinstance(data, AugmentedSounds)
    assert data.settings.background > 0


def test_images_and_events_are_left_as_they_are(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 10 * number, np.uint8)).save(path)
    config = dataclasses.replace(TINY, image_size=8)
    with_room, without = (load_data(one, str(tmp_path / "images"))[0] for one in (config, without_room(config)))
    assert type(with_room) is type(without)
    assert not isinstance(with_room, AugmentedSounds)


@pytest.mark.parametrize(
    ("name", "other"),
    [*((name, {name: value}) for name, value in ROOM.items()), ("noise_folder", {"noise": 1.0, "noise_folder": "x"})],
)
def test_other_data_sets_refuse_the_options(name: str, other: dict) -> None:
    assert why_unused(Config(dataset="digits", **other), name).startswith(
        "it has an effect only with --dataset speech_"
    )
    assert not why_unused(Config(dataset="speech_commands", **other), name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--flip", "yes"], "flip: received yes for folder, whose samples are sounds; a mirror image of a sound is"),
        (["--autoaugment", "yes"], "AutoAugment's policy is for RGB bytes, and folder has sound samples"),
        (
            ["--noise-folder", "x", "--noise", "0", "--reject", "0"],
            "--noise-folder: it has an effect only with --noise",
        ),
        (["--noise-folder", "nowhere"], "noise_folder: nowhere is no folder; expected one with recordings of noise"),
        (["--noise", "-1"], "noise: received -1.0; expected a number, at least 0"),
    ],
)
def test_mistakes_with_sounds(options: list[str], message: str, tmp_path: Path, capfd) -> None:
    tones = write_tones(tmp_path / "tones", 5)
    common = ["train", "folder", "--data", str(tones), "--image-size", "32", "--out", str(tmp_path / "run")]
    status, error = run_command(capfd, *common, *options)
    assert status == 2
    assert message in error
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_options_of_sounds_are_refused_for_a_folder_of_images(tmp_path: Path, capfd) -> None:
    for name in "ab":
        for number in range(5):
            path = tmp_path / "images" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), 10 * number, np.uint8)).save(path)
    common = ["train", "folder", "--data", str(tmp_path / "images"), "--out", str(tmp_path / "run")]
    status, error = run_command(capfd, *common, "--time-shift", "0.1")
    assert status == 2
    assert "--time-shift: it has an effect only on sounds, and" in error
    assert "holds image files" in error


def test_a_range_of_the_library_is_that_of_the_config() -> None:
    with pytest.raises(UserError, match=r"speed_change: received 0\.7; expected a number, 0 to 0\.5"):
        Config(dataset="speech_commands", speed_change=0.7)


def test_the_threshold_rejects_so_many_held_out_sounds(tmp_path: Path) -> None:
    tones = write_tones(tmp_path / "tones", 20)
    config = dataclasses.replace(TINY, epochs=1, reject=0.25)
    done = train(config, tmp_path / "run", data=tones)
    line = metrics(tmp_path / "run")[-1]
    assert evaluate_run(done["run"])["reject_below"] == line["reject_below"]
    exported = export_run(tmp_path / "run", tmp_path / "model.bsnn")
    engine = bsnn.load(exported["path"])
    assert engine.artifact.prominence == pytest.approx(line["reject_below"], abs=1e-3)
    outputs = np.concatenate([engine.outputs(x) for x, _ in batches(engine, held_out_set(engine, str(tones)))])
    logits = outputs * engine.artifact.output_scale / engine.time_steps
    # Of 8 held-out sounds, 2 may lie below it.
    assert np.sort(logits.max(1) - logits.mean(1))[2] == pytest.approx(line["reject_below"], abs=0.02)
    # A deployed network is measured on what a device hears.
    paths, sound = held_out_set(engine, str(tones)).paths, sound_of(engine.artifact.input)  # type: ignore[attr-defined]
    heard = np.stack([read_samples(path, sound.front_end.samples) for path in paths])
    on_device = engine.outputs(sound.integers(heard), normalized=True)
    measured = evaluate_model(engine, str(tones))
    assert measured["front_end"] == "integers"
    assert measured["rejected"] == engine.rejects(on_device).mean()
    assert measured["test_accuracy"] == np.mean(on_device.argmax(1) == held_out_set(engine, str(tones)).labels)
    assert train(config, tmp_path / "run", data=tones, resume=True)["finished_before"]
    held_out = json.loads((tmp_path / "run" / "held_out.json").read_text())
    assert held_out.keys() == {"test"}
    assert sorted(tones / name for name in held_out["test"]) == sorted(bsnn.data.folder(tones, "test").paths or [])


def test_a_random_split_that_mixes_speakers_is_told(tmp_path: Path) -> None:
    for name in ("ann", "bo", "cy"):
        write_tones(tmp_path, 6, names=f"{name}_{{number}}")
    _, notes = build_trainer(TINY, str(tmp_path), World(), 0, None)
    assert [note for note in notes if note.endswith("keep each on one side with --group 1")]
    _, notes = build_trainer(dataclasses.replace(TINY, group="1"), str(tmp_path), World(), 0, None)
    assert not [note for note in notes if "--group" in note]


def test_it_is_chosen_on_the_validation_samples_by_the_selected_epoch(tmp_path: Path, monkeypatch) -> None:
    tones = write_tones(tmp_path / "tones", 20)
    config = dataclasses.replace(TINY, reject=0.25, validation_samples=8, select="validation")
    kill_in(monkeypatch, loop, "threshold_for", 1)
    with pytest.raises(Killed):
        train(config, tmp_path / "run", data=tones)
    monkeypatch.undo()
    assert not train(config, tmp_path / "run", data=tones, resume=True)["finished_before"]
    with_threshold = [line["epoch"] for line in metrics(tmp_path / "run") if "reject_below" in line]
    trained = load_network(tmp_path / "run")
    assert with_threshold == [trained.metrics["epoch"]]
    held_out = json.loads((tmp_path / "run" / "held_out.json").read_text())
    assert {split: len(names) for split, names in held_out.items()} == {"validation": 8, "test": 8}
    validation = load_data(config, str(tones))[1]
    expected = threshold_for(trained.net, validation, 0.25, config.time_steps, World(), 8)
    assert trained.metrics.get("reject_below") == pytest.approx(expected)
