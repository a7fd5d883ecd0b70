import dataclasses
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import bsnn
from bsnn import cli
from bsnn.cli import _demo
from bsnn.extras import EXTRAS


def test_demo_prints_one_line_of_json_and_learns(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(_demo, "CONFIG", dataclasses.replace(_demo.CONFIG, epochs=3))
    assert cli.main(["demo", "--seed", "1", "--out", str(tmp_path), "--json"]) == 0
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    result = json.loads(output)
    assert result["test_accuracy"] > 0.95
    assert result["train_seconds"] > 0
    assert result["model_bytes"] * 20 < result["real_model_bytes"]
    assert result["training_bytes"] * 2 < result["latent_bptt_training_bytes"]
    assert result["model_bytes"] == (tmp_path / "model.bsnn").stat().st_size
    assert result["exported_outputs_wrong"] == 0
    assert abs(result["exported_accuracy"] - result["test_accuracy"]) <= 0.006
    text = cli.demo.text(result)
    assert "test accuracy" in text
    assert "firing rates" in text
    assert "confusion matrix" in (tmp_path / "report.html").read_text()


def test_demo_is_reproducible_from_its_seed(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(_demo, "CONFIG", dataclasses.replace(_demo.CONFIG, epochs=1))
    first, second, other = (_demo.run_demo(seed, tmp_path) for seed in (3, 3, 4))
    for result in (first, second, other):
        del result["train_seconds"], result["seed"]
    assert first == second != other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["dmeo"], "invalid choice: 'dmeo'"),
        (["demo", "--seed", "x"], "received 'x'; expected a whole number"),
        (["demo", "--seed", "-1"], "received '-1'; expected a whole number"),
        (["demo", "--sed", "1"], "bsnn demo: unrecognized arguments: --sed 1 (try bsnn demo --help)"),
        (["train", "digits", "--gama", "1"], "bsnn train: unrecognized arguments: --gama 1 (try bsnn train --help)"),
        (["bench", "memory", "--bach", "1"], "bsnn bench memory: unrecognized arguments: --bach 1"),
        (["reproduce", "table1", "--out", "x"], "bsnn reproduce: unrecognized arguments: --out x"),
        (["predict"], "bsnn predict: the following arguments are required: MODEL, INPUT (try bsnn predict --help)"),
    ],
)
def test_mistakes_exit_with_2_and_one_line(arguments: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    captured = capsys.readouterr()
    assert stopped.value.code == 2
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_errors_of_a_command_become_one_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def fail(error: BaseException):
        def run(seed: int, out: Path) -> None:
            raise error

        return run

    for error, status in (
        (bsnn.UserError("what to do"), 2),
        (FileNotFoundError(2, "gone"), 2),
        (KeyboardInterrupt(), 130),
    ):
        monkeypatch.setattr(_demo, "run_demo", fail(error))
        assert cli.main(["demo"]) == status
        assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(_demo, "run_demo", fail(RuntimeError("a bug")))
    with pytest.raises(RuntimeError):
        cli.main(["demo"])


def test_a_missing_extra_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import bsnn.cli; sys.exit(bsnn.cli.main(['demo']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "bsnn: the package torch is missing; install it with: pip install 'bsnn[train]'\n"


def test_the_engine_of_the_readme_needs_numpy_alone(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (snippet,) = re.findall(r"```python\n(import bsnn\n\nengine = bsnn\.load.*?)```", readme, re.DOTALL)
    missing = [package for packages in EXTRAS.values() for package in packages]
    code = f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n{snippet}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[3 7 3 9]\n"


def test_importing_bsnn_does_not_import_torch() -> None:
    code = "import bsnn, bsnn.cli, sys; assert 'torch' not in sys.modules; bsnn.LIF; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "command", ["--help", "train --help", "recipes", "data .", "predict digits x.npy", "inspect digits"]
)
def test_what_needs_no_torch_does_not_import_it(command: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 8, 8), np.uint8))
    for label, number in itertools.product("ab", range(5)):
        (tmp_path / label).mkdir(exist_ok=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / label / f"{number}.png")
    code = (
        "import atexit, sys, bsnn.cli; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr)); "
        "sys.exit(bsnn.cli.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "False\n")


def test_every_public_name_resolves_and_unknown_ones_do_not() -> None:
    for name in bsnn.__all__:
        assert getattr(bsnn, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bsnn.nothing


def test_python_m_bsnn_is_bsnn() -> None:
    done = subprocess.run([sys.executable, "-m", "bsnn", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"bsnn {bsnn.__version__}\n"


TINY = ["--epochs", "1", "--train-samples", "256", "--plan", "8,pool,16"]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("deploy") / "run"
    assert cli.main(["train", "digits", *TINY, "--out", str(run)]) == 0
    return run


def test_a_run_holds_its_model_and_exports_the_same_bytes(finished_run: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "again.bsnn"
    assert cli.main(["export", str(finished_run), "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["path"] == str(out)
    assert result["bytes"] == out.stat().st_size
    assert out.read_bytes() == (finished_run / "model.bsnn").read_bytes()
    assert "samples" not in result
    assert cli.main(["export", str(finished_run), "--out", str(out), "--compare"]) == 0
    assert "of 256 test samples" in capsys.readouterr().out
    assert out.read_bytes() == (finished_run / "model.bsnn").read_bytes(), "comparing changes no byte"
    assert cli.main(["export", str(finished_run), "--out", str(out), "--compare"]) == 0
    assert "got another class" in capsys.readouterr().out


def test_a_damaged_checkpoint_is_passed_over(finished_run: Path, tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    newest = max((run / "checkpoints").glob("batch-*"))
    shutil.copy(newest, newest.with_name("batch-000000001.ckpt"))
    newest.write_bytes(b"cut short")
    assert cli.main(["export", str(run)]) == 0
    assert "bsnn: warning: " in capsys.readouterr().err
    for path in (run / "checkpoints").iterdir():
        path.write_bytes(b"cut short")
    assert cli.main(["export", str(run)]) == 2
    assert "and all are damaged" in capsys.readouterr().err


def test_a_model_file_older_than_the_run_is_made_again(finished_run: Path, tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    old = bsnn.zoo.path("digits").read_bytes()
    (run / "model.bsnn").write_bytes(old)
    os.utime(run / "model.bsnn", ns=(0, 0))
    assert cli.main(["train", "digits", *TINY, "--out", str(run), "--resume"]) == 0
    assert (run / "model.bsnn").read_bytes() == (finished_run / "model.bsnn").read_bytes() != old


def test_run_and_model_are_evaluated_alike(finished_run: Path, capsys) -> None:
    accuracies = []
    for path in (finished_run, finished_run / "model.bsnn"):
        assert cli.main(["evaluate", str(path), "--json"]) == 0
        accuracies.append(json.loads(capsys.readouterr().out)["test_accuracy"])
    assert abs(accuracies[0] - accuracies[1]) < 0.01


def test_a_model_file_finds_the_data_of_its_run(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("BSNN_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for split, label in itertools.product(("train", "test"), ("bright", "dark")):
        (tmp_path / "data" / split / label).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 100, (8, 8, 3)) + (150 if label == "bright" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "data" / split / label / f"{number}.png")
    run, options = tmp_path / "run", ["--epochs", "1", "--plan", "8,8", "--image-size", "8", "--batch-size", "4"]
    assert cli.main(["train", "folder", "--data", str(tmp_path / "data"), *options, "--out", str(run)]) == 0
    capsys.readouterr()
    for path in (run, run / "model.bsnn"):
        assert cli.main(["evaluate", str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["samples"] == 8


@pytest.mark.parametrize(
    "command",
    [
        ["export", "RUN", "--out", "OUT/model.bsnn"],
        ["export", "digits", "--format", "c", "--out", "FILE/c"],
        ["report", "RUN", "--out", "OUT/report.html"],
        ["data", "RUN", "--plot", "OUT/sheet.png"],
        ["reproduce", "regret", "--results", "FILE/results"],
        ["demo", "--out", "FILE"],
        ["export", "RUN", "--out", "RUN"],
    ],
)
def test_a_place_where_one_cannot_write_is_refused_before_the_work(
    command, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("bsnn.extras.import_module", lambda name: pytest.fail(f"{name} was imported"))
    (tmp_path / "RUN").mkdir()
    (tmp_path / "FILE").touch()
    monkeypatch.chdir(tmp_path)
    assert cli.main(command) == 2
    assert "hoose another place" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["FILE", "RUN"]


def test_the_share_of_a_class_is_of_the_frames_that_were_given(tmp_path: Path, capsys) -> None:
    frames = np.repeat(bsnn.data.digits("test").samples[None, :1], 8, axis=0)
    np.save(tmp_path / "frames.npy", frames)
    assert cli.main(["predict", "digits", str(tmp_path / "frames.npy"), "--json"]) == 0
    engine = bsnn.load("digits")
    logits = engine.outputs(frames)[0] * engine.artifact.output_scale / 8
    share = json.loads(capsys.readouterr().out)["predictions"][0]["share"]
    assert share == pytest.approx(np.exp(logits.max()) / np.exp(logits).sum())


def test_predict_reads_pictures_arrays_and_folders(tmp_path: Path, capsys) -> None:
    data = bsnn.data.digits("test")
    for number in range(3):
        Image.fromarray((data.samples[number, 0] * 255.0 / 16).round().astype(np.uint8)).save(
            tmp_path / f"{number}.png"
        )
    array = tmp_path / "array.npy"
    np.save(array, data.samples[:3])
    assert cli.main(["predict", "digits", str(tmp_path), "--json"]) == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    assert [p["input"] for p in predictions[-3:]] == [f"{array}[{n}]" for n in range(3)]
    labels = [str(label) for label in data.labels[:3]]
    assert [p["label"] for p in predictions] == labels * 2
    assert cli.main(["predict", "digits", str(tmp_path / "0.png")]) == 0
    assert f"0.png  {labels[0]}  " in capsys.readouterr().out


def test_predict_enters_folders_and_goes_on_after_a_bad_file(tmp_path: Path, capsys) -> None:
    data = bsnn.data.digits("test")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", data.samples[0])
    (tmp_path / "a" / "notes.txt").write_text("no picture")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "x.npy").write_text("hidden")
    assert cli.main(["predict", "digits", str(tmp_path), str(tmp_path / "none.png"), "--json"]) == 2
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.err.startswith(f"bsnn: 2 of 4 files were not read, such as {tmp_path / 'a' / 'notes.txt'}: not a ")
    assert [Path(p["input"]).parent.name for p in result["predictions"]] == ["a", "b"]
    assert [Path(u["input"]).name for u in result["unreadable"]] == ["notes.txt", "none.png"]
    assert result["unreadable"][1]["reason"] == "there is no such file."
    assert cli.main(["predict", "digits", str(tmp_path)]) == 2
    assert "notes.txt  not read: not a picture in one of JPEG, PNG" in capsys.readouterr().out


def test_inspect_names_layers_bytes_and_operations(finished_run: Path, capsys) -> None:
    assert cli.main(["inspect", str(finished_run), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["model_bytes"] == (finished_run / "model.bsnn").stat().st_size
    layers = {layer["name"]: layer for layer in result["layers"]}
    assert layers["conv2"]["weights"] == 9 * 8 * 16
    # Two bytes a row of 16 outputs, 72 rows; eight bytes a channel.
    assert layers["conv2"]["bytes"] == 2 * 72 + 8 * 16
    rate = layers["lif1"]["firing_rate"]
    assert layers["conv2"]["additions"] == round(9 * 8 * 16 * 16 * 4 * 4 * rate)
    assert result["int8_energy_joules"] > 0
    assert cli.main(["inspect", "digits"]) == 0
    assert "ISSCC 2014" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "digits", "nowhere.png"], "nowhere.png: there is no such file"),
        (["predict", "nowhere.bsnn", "x.png"], "nowhere.bsnn cannot be read"),
        (["export", "digits", "--data", "."], "Its accuracy: bsnn models digits."),
        (["predict", __file__, __file__], "not a model file"),
        (["predict", "digits", __file__], "not a picture in one of JPEG, PNG"),
        (["report", "digits"], "digits is a shipped model, which has no record of its training; expected run dir"),
        (["predict", "digits", __file__, "--normalized"], "--normalized: received no .npy array"),
        (["export", "digits", "--format", "c", "--compare"], "--compare: received it with --format c"),
        (["inspect", "src"], "is a folder, but not a run"),
        (["export", "src"], "no checkpoint"),
        (["export", __file__], "expected a run directory"),
        (["evaluate", "nowhere"], "there is no such run or file"),
        (["inspect", "./nowhere"], "./nowhere: there is no such run or file"),
        (["predict", "speech", "x.wav", "--window", "nan"], "--window: received nan s"),
        (["predict", "speech", "x.wav", "--window", "2"], "--window: received 2 s; the network hears 1 s"),
    ],
)
def test_a_wrong_model_or_input_is_one_line(arguments: list[str], message: str, capsys) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


def test_predict_refuses_arrays_that_it_cannot_mean(tmp_path: Path, capsys) -> None:
    for content, message in (
        (np.full((1, 1, 8, 8), 300), "received int64 from 300 to 300; expected raw numbers from 0 to 16"),
        (np.array(["a"]), "array of numbers"),
        (np.zeros((1, 9, 9), np.uint8), "expected [B, 1, 8, 8]"),
    ):
        np.save(tmp_path / "x.npy", content)
        assert cli.main(["predict", "digits", str(tmp_path / "x.npy")]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY")
    assert cli.main(["predict", "digits", str(tmp_path / "x.npy")]) == 2


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_torch_is_asked_for_huge_pages(before: str | None, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "")  # so that it is as before when the test has ended
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE")
    if before is not None:
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", before)
    assert cli.main(["recipes"]) == 0
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == after


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "digits", ""],
        ["predict", ""],
        ["export", "digits", "--out", ""],
        ["evaluate", "digits", "--data", ""],
    ],
)
def test_an_empty_name_is_not_the_working_directory(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments if len(arguments) > 2 else [*arguments, "x.png"])
    assert stop.value.code == 2
    assert "received an empty name, perhaps from a shell variable that is not set" in capsys.readouterr().err


def test_what_the_system_refuses_is_said_without_its_number(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "secret.png")

    monkeypatch.setattr(bsnn.zoo, "names", refuse)
    assert cli.main(["models"]) == 2
    assert capsys.readouterr().err == "bsnn: secret.png: Permission denied\n"
