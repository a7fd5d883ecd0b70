import dataclasses
import importlib.util
import itertools
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from bsnn import cli
from bsnn.paper import TARGETS, _comparison, _trained, ablation, figure5, table2, table3, table4, table5
from bsnn.paper._comparison import ROWS, config_of
from bsnn.paper._target import Settings
from bsnn.paper._trained import DIGITS
from bsnn.train import Config

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every target at the scale that only tries the code."""
    folder = tmp_path_factory.mktemp("reproduce")
    for name in TARGETS:
        options = ["--scale", "smoke", "--results", str(folder / "results"), "--runs", str(folder / "runs")]
        assert cli.main(["reproduce", name, *options]) == 0, name
    return folder / "results"


def load(results: Path, name: str) -> dict:
    return json.loads((results / f"{name}.json").read_text())


def test_every_target_has_tables_and_says_how_it_was_made(results) -> None:
    for name in TARGETS:
        result = load(results, name)
        assert result["command"] == f"bsnn reproduce {name} --scale smoke"
        assert result["scale"] == "smoke"
        assert "torch" in result["versions"]
        assert "paper" in result["ran"]
        for table in result["tables"]:
            assert all(len(row) == len(table["columns"]) for row in table["rows"])


def test_a_target_that_is_done_trains_nothing_again(results, monkeypatch) -> None:
    before = load(results, "table3")
    monkeypatch.setattr("bsnn.train.trainer.Trainer.train_epoch", None)
    options = ["--scale", "smoke", "--results", str(results), "--runs", str(results.parent / "runs")]
    assert cli.main(["reproduce", "table3", *options]) == 0
    assert load(results, "table3")["data"] == before["data"]


@pytest.fixture(scope="module")
def document():
    """The script that writes docs/results.md."""
    spec = importlib.util.spec_from_file_location("document", BENCHMARKS / "document.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_page_shows_every_result_and_its_pictures(results, document, tmp_path) -> None:
    shutil.copytree(results, tmp_path / "reproduce")
    for name in ("flip_rules", "cifar10_methods", "small_recipes"):
        shutil.copy(BENCHMARKS / "results" / f"{name}.json", tmp_path)
    page = tmp_path / "page.md"
    files = document.files_of_page(tmp_path, page)
    text = files.pop(page)
    assert "Not measured yet" not in text
    assert all(f"(reproduce/{name}.json)" in text for name in TARGETS)
    pictures = [line.partition("](")[2].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert [tmp_path / picture for picture in pictures] == list(files)
    assert len(pictures) >= 8
    assert all(picture.startswith("<svg") for picture in files.values())


def test_what_was_not_measured_is_named(results, document, tmp_path) -> None:
    shutil.copytree(results, tmp_path / "reproduce")
    (tmp_path / "reproduce" / "table2.json").unlink()
    text = document.files_of_page(tmp_path, tmp_path / "page.md")[tmp_path / "page.md"]
    assert "\n\nNot measured yet: table2, flip_rules, cifar10_methods, small_recipes.\n\n" in text


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "table2"}'])
def test_a_file_that_is_no_result_is_named(document, tmp_path, text) -> None:
    (tmp_path / "reproduce").mkdir()
    (tmp_path / "reproduce" / "table2.json").write_text(text)
    with pytest.raises(SystemExit, match=r"table2\.json: cannot be shown \(.*\); expected a result"):
        document.files_of_page(tmp_path, tmp_path / "page.md")


def test_memory_of_online_rules_does_not_grow(results) -> None:
    points = {(p["method"], p["time_steps"]): p["peak_bytes"] for p in load(results, "table1")["data"]}
    assert points["BPTT", 2] > 1.2 * points["BPTT", 1]
    for method in ("BSO", "T-BSO"):
        assert points[method, 2] < 1.1 * points[method, 1]


def test_online_gradients_are_exact_at_the_first_step(results) -> None:
    for row in load(results, "gradients")["data"]:
        if row["time_step"] == 1:
            assert row["cosine"] == pytest.approx(1, abs=1e-4)
            assert row["flips"] == pytest.approx(1, abs=0.1)


def test_sizes_at_the_papers_scale_are_the_papers(tmp_path) -> None:
    settings = Settings("paper", None, tmp_path)
    for row in ROWS:
        # The paper gives SEW-ResNet-34's size for a real-valued ResNet-18, and another network's for SLTT.
        if row.recipe and row.megabytes and row.megabytes not in (87.19, 34.32):
            size = table2.stored_bytes(config_of(settings, row)) / 1e6
            assert size == pytest.approx(row.megabytes, rel=0.02), row


def test_what_only_a_small_scale_explains_is_not_said_of_the_papers(tmp_path, monkeypatch) -> None:
    point = {"accuracies": [0.5, 0.6, 0.7], "minutes": [1.0] * 3, "runs": ["r"] * 3, "git_commits": [None] * 3}

    def trained(settings, name, config, grid=None):
        grid = grid or {}
        return [{**dict(zip(grid, v, strict=True)), **point} for v in itertools.product(*grid.values())]

    for module in (_comparison, table3, table4, table5):
        monkeypatch.setattr(module, "trained", trained)
    monkeypatch.setattr(_comparison, "check_all", lambda *_: None)
    for target in (table3, table4, table5, figure5):
        small, paper = (" ".join(target.measure(Settings(s, None, tmp_path)).notes) for s in ("small", "paper"))
        assert any(word in small for word in ("Ours is", "do not compare"))
        for word in ("Ours is", "do not compare", "We add", "we add", "stands in"):
            assert word not in paper


def imagenet_like(folder: Path, classes: int) -> Path:
    """Folders of classes as ImageNet has them, with a picture in each."""
    for split, number in itertools.product(("train", "val"), range(classes)):
        (folder / split / f"n{number:08d}").mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(folder / split / f"n{number:08d}" / "1.png")
    return folder


@pytest.mark.parametrize(("target", "scale"), [("table2", "paper"), ("figure5", "paper"), ("ablation", "small")])
def test_nothing_begins_that_cannot_be_finished(target, scale, tmp_path, monkeypatch, capsys) -> None:
    data = imagenet_like(tmp_path / "data", 3)
    begun: list[str] = []
    for module in (_comparison, ablation):
        monkeypatch.setattr(module, "trained", lambda settings, name, *_: begun.append(name))
    options = ["--scale", scale, "--data", str(data), "--results", str(tmp_path), "--runs", str(tmp_path / "runs")]
    assert cli.main(["reproduce", target, *options]) == 2
    assert str(data) in capsys.readouterr().err
    assert not begun


def test_imagenet_at_the_papers_scale_is_trained_in_both_stages(tmp_path, monkeypatch) -> None:
    point = {"accuracies": [0.5] * 3, "minutes": [1.0] * 3, "runs": ["r"] * 3, "git_commits": [None] * 3}
    checked, begun = [], []

    def trained(settings, name, config):
        begun.append((name, config))
        return [point]

    monkeypatch.setattr(_trained, "check_ready", lambda config, data: checked.append(config))
    monkeypatch.setattr(_comparison, "trained", trained)
    findings = table2.measure(Settings("paper", str(imagenet_like(tmp_path / "data", 1000)), tmp_path / "runs"))
    assert [name for name, _ in begun] == [
        "table2-imagenet-real-weights-BPTT-ResNet-18-t4",
        "table2-imagenet-T-BSO-ResNet-18-t4",
        "table2-imagenet-T-BSO-ResNet-18-t6",
    ]
    assert checked == [config for _, config in begun]
    assert [config.stages[0]["epochs"] for config in checked if config.stages] == [100, 100]
    assert not any(config.init_from for config in checked)
    assert "Test accuracy on imagenet" in findings.tables[0]["caption"]


def test_what_is_trained_needs_no_data_to_be_checked(tmp_path, monkeypatch) -> None:
    settings, config = Settings("smoke", str(tmp_path), tmp_path / "runs"), dataclasses.replace(DIGITS, epochs=2)
    checked: list[Config] = []
    monkeypatch.setattr(_trained, "check_ready", lambda config, data: checked.append(config))
    for lines in (1, 2):
        folder = tmp_path / "runs" / "smoke-some" / "seed=0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("{}\n" * lines)
        _trained.check_all(settings, {"some": config, "other": config})
    # The same config is looked at once; when "some" is finished, "other" still has to be.
    assert checked == [config, config]


def test_results_name_the_commits_that_trained_them(results) -> None:
    for point in load(results, "figure5")["data"]:
        assert point["git_commits"] == [load(results, "figure5")["git_commit"]]
        assert (results.parent / "runs" / point["runs"][0] / "metrics.jsonl").exists()


def test_ablation_names_what_is_beyond_the_seeds() -> None:
    rows = {"base": [0.9, 0.91, 0.92], "same": [0.9, 0.91, 0.93], "lower": [0.5, 0.51, 0.52]}
    data = [{"change": name, "accuracies": accuracies} for name, accuracies in rows.items()]
    (note,) = ablation.beyond_noise(data, 0.91)
    assert "is 1.00 points, so differences under 1.63" in note
    assert note.endswith("Beyond are: lower (-40.00).")


def test_ablation_changes_what_it_says() -> None:
    for fields in ablation.CHANGES.values():
        dataclasses.replace(DIGITS, **fields)


def test_an_unknown_name_is_refused(capsys) -> None:
    assert cli.main(["reproduce", "table9"]) == 2
    assert "received 'table9'; expected one of table1" in capsys.readouterr().err
