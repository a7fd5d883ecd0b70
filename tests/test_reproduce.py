import dataclasses
import json
from pathlib import Path

import pytest

from bso import UserError, cli
from bso.recipes import RECIPES
from bso.reproduce import TARGETS, document, experiments
from bso.reproduce.document import _ORDER


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
        assert result["command"] == f"bso reproduce {name} --scale smoke"
        assert result["scale"] == "smoke"
        assert "torch" in result["versions"]
        assert "paper" in result["ran"]
        for table in result["tables"]:
            assert all(len(row) == len(table["columns"]) for row in table["rows"])


def test_a_target_that_is_done_trains_nothing_again(results, monkeypatch) -> None:
    before = load(results, "table3")
    monkeypatch.setattr("bso.trainer.Trainer.train_epoch", None)
    options = ["--scale", "smoke", "--results", str(results), "--runs", str(results.parent / "runs")]
    assert cli.main(["reproduce", "table3", *options]) == 0
    assert load(results, "table3")["data"] == before["data"]


def test_the_page_shows_every_result_and_its_pictures(results, tmp_path) -> None:
    benchmarks = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
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


def test_ablation_changes_what_it_says() -> None:
    for fields in experiments._ABLATION.values():
        dataclasses.replace(experiments._DIGITS, **fields)


def test_an_unknown_name_is_refused(capsys) -> None:
    assert cli.main(["reproduce", "table9"]) == 2
    assert "received 'table9'; expected one of table1" in capsys.readouterr().err
