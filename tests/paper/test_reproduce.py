import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from bsnn import UserError, cli
from bsnn.paper import TARGETS, document, experiments
from bsnn.paper.document import _ORDER
from bsnn.paper.target import Settings
from bsnn.train.recipes import RECIPES


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
    assert tuple(TARGETS) == _ORDER
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


def test_the_page_shows_every_result_and_its_pictures(results, tmp_path) -> None:
    benchmarks = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
    found = document(results, tmp_path / "results.md", benchmarks)
    assert found["missing"] == []
    text = (tmp_path / "results.md").read_text()
    for name in TARGETS:
        assert f"/{name}.json)" in text
    pictures = [line.partition("](")[2].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert len(pictures) >= 8
    for picture in pictures:
        assert (tmp_path / picture).read_text().startswith("<svg")


def test_what_has_not_run_is_named(results, tmp_path) -> None:
    (tmp_path / "table1.json").write_text((results / "table1.json").read_text())
    assert "table2" in document(tmp_path, tmp_path / "page.md")["missing"]
    with pytest.raises(UserError, match="holds no results"):
        document(tmp_path / "nowhere", tmp_path / "page.md")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be shown (JSONDecodeError("),
        ("[]", "received a file that `bsnn reproduce` has not written; expected a folder of its results alone"),
        ('{"name": "table1"}', "received a file that `bsnn reproduce` has not written"),
        ('{"name": "table2"}', "cannot be shown (KeyError('title')"),
    ],
)
def test_a_page_of_files_that_are_no_results_is_refused_and_nothing_written(results, tmp_path, capsys, text, words):
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "figure4.json").write_text((results / "figure4.json").read_text())
    (folder / "table2.json").write_text(text)
    out = tmp_path / "out" / "page.md"
    out.parent.mkdir()
    assert cli.main(["reproduce", "document", "--results", str(folder), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"bsnn: {folder / 'table2.json'}: {words}" in said
    assert said.count("\n") == 1
    assert list(out.parent.iterdir()) == []


def test_other_results_are_refused_and_those_below_are_named(results, tmp_path, capsys) -> None:
    (tmp_path / "flip_rules.json").write_text('{"rules": {}}')
    (tmp_path / "reproduce").mkdir()
    (tmp_path / "reproduce" / "table1.json").write_text((results / "table1.json").read_text())
    out = ["--out", str(tmp_path / "page.md")]
    assert cli.main(["reproduce", "document", "--results", str(tmp_path), *out]) == 2
    said = capsys.readouterr().err
    assert f"Try: bsnn reproduce document --results {tmp_path / 'reproduce'} --benchmarks {tmp_path}\n" in said
    # The file of a benchmark is named as well.
    words = [*said.partition("Try: bsnn ")[2].split(), *out]
    assert cli.main(words) == 2
    assert f"{tmp_path / 'flip_rules.json'}: cannot be shown (KeyError('rates')" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()


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


def test_rows_of_table_2_are_those_of_the_recipes() -> None:
    for row in experiments._TABLE_2:
        if row.recipe is None or row.accuracy is None:
            continue
        config = RECIPES[row.recipe]()
        assert (config.dataset, config.time_steps) == (row.dataset, row.time_steps)
        reported = (RECIPES[row.recipe].__doc__ or "").partition("the paper reports ")[2]
        assert reported.startswith(f"{row.accuracy:.2f}")


def test_sizes_at_the_papers_scale_are_the_papers(tmp_path) -> None:
    settings = Settings("paper", None, tmp_path)
    for row in experiments._TABLE_2:
        # The paper gives SEW-ResNet-34's size for a real-valued ResNet-18, and another network's for SLTT.
        if row.recipe and row.megabytes and row.megabytes not in (87.19, 34.32):
            config = experiments._config_of_row(settings, row)
            assert experiments._stored_bytes(config) / 1e6 == pytest.approx(row.megabytes, rel=0.02), row


def test_what_only_a_small_scale_explains_is_not_said_of_the_papers(tmp_path, monkeypatch) -> None:
    point = {"accuracies": [0.5, 0.6, 0.7], "minutes": [1.0] * 3, "runs": ["r"] * 3, "git_commits": [None] * 3}

    def trained(settings, name, config, grid, data=None):
        return [{**dict(zip(grid, v, strict=True)), **point} for v in itertools.product(*grid.values())]

    monkeypatch.setattr(experiments, "trained", trained)
    for target in (experiments.table3, experiments.table4, experiments.table5, experiments.figure5):
        small, paper = (" ".join(target(Settings(s, None, tmp_path)).notes) for s in ("small", "paper"))
        assert any(word in small for word in ("Ours is", "do not compare"))
        for word in ("Ours is", "do not compare", "We add", "we add", "stands in"):
            assert word not in paper


def test_results_name_the_commits_that_trained_them(results) -> None:
    for point in load(results, "figure5")["data"]:
        assert point["git_commits"] == [load(results, "figure5")["git_commit"]]
        assert (results.parent / "runs" / point["runs"][0] / "metrics.jsonl").exists()


def test_ablation_names_what_is_beyond_the_seeds() -> None:
    rows = {"base": [0.9, 0.91, 0.92], "same": [0.9, 0.91, 0.93], "lower": [0.5, 0.51, 0.52]}
    data = [{"change": name, "accuracies": accuracies} for name, accuracies in rows.items()]
    (note,) = experiments._beyond_noise(data, 0.91)
    assert "is 1.00 points, so differences under 1.63" in note
    assert note.endswith("Beyond are: lower (-40.00).")


def test_ablation_changes_what_it_says() -> None:
    for fields in experiments._ABLATION.values():
        dataclasses.replace(experiments._DIGITS, **fields)


def test_an_unknown_name_is_refused(capsys) -> None:
    assert cli.main(["reproduce", "table9"]) == 2
    assert "received 'table9'; expected one of table1" in capsys.readouterr().err
