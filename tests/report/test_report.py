import dataclasses
import json
import re
import shlex
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bsnn import UserError, cli
from bsnn.paper.recipes import recipe
from bsnn.report import figures, page, read_run, write_report
from bsnn.report.record import train_command
from bsnn.train.loop import train

CHROMIUM = shutil.which("chromium")
TINY = dataclasses.replace(recipe("digits"), plan=(4, 4, "pool", 4), train_samples=200, batch_size=32, epochs=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run of one-bit weights, and one of real weights, which has no flips."""
    folder = tmp_path_factory.mktemp("runs")
    train(TINY, folder / "binary")
    train(dataclasses.replace(TINY, weights="real", epochs=1), folder / "<real> & more")
    return [folder / "binary", folder / "<real> & more"]


class Outline(HTMLParser):
    """Checks that tags close in order, and collects what a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in ("meta", "link"):
            self.open.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href") and not value.startswith("data:")]
        assert tag != "script"

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag


def svgs(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)]


def test_the_page_of_several_runs_holds_everything_and_needs_nothing(runs, tmp_path, capsys) -> None:
    out = tmp_path / "page.html"
    assert cli.main(["report", *map(str, runs), "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["path"] == str(out)
    assert result["bytes"] == out.stat().st_size
    assert result["notes"] == []
    text = out.read_text()
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert outline.fetched == []
    assert "&lt;real&gt; &amp; more" in text
    titles = [svg.get("aria-label") for svg in svgs(text)]
    assert titles.count("confusion matrix of the test samples") == 2
    assert titles.count("flips per weight and update, by layer") == 1
    assert titles.count("firing rate, by layer") == 2
    for expected in (
        "prefers-color-scheme: dark",
        "@media print",
        "peak of the process",
        "bsnn train digits",
        "bsnn evaluate",
    ):
        assert expected in text


def test_confusions_add_up_to_the_recorded_accuracy(runs) -> None:
    record = read_run(runs[0])
    assert record.confusion is not None
    counts = record.confusion.counts
    assert sum(map(sum, counts)) == 359
    assert sum(counts[n][n] for n in range(10)) / 359 == record.history[-1]["test_accuracy"]


def test_runs_of_one_name_are_told_apart_by_their_folders(runs, tmp_path) -> None:
    for folder in ("slow", "fast"):
        shutil.copytree(runs[0], tmp_path / folder / "seed=0")
    write_report([tmp_path / "slow" / "seed=0", tmp_path / "fast" / "seed=0"], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<h2>slow/seed=0</h2>" in text
    assert "<h2>fast/seed=0</h2>" in text


def test_one_run_has_its_page_in_its_directory(runs, capsys) -> None:
    assert cli.main(["report", str(runs[0])]) == 0
    assert (runs[0] / "report.html").exists()
    assert str(runs[0] / "report.html") in capsys.readouterr().out


def test_a_run_whose_data_is_gone_is_reported_without_confusions(runs, tmp_path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    shutil.rmtree(copy / "checkpoints")
    record = read_run(copy)
    assert record.confusion is None
    assert "no checkpoint" in record.notes[0]


def test_what_is_no_run_is_refused(runs, tmp_path) -> None:
    with pytest.raises(UserError, match=r"is not a run: .*config\.json is missing"):
        read_run(tmp_path)
    shutil.copy(runs[0] / "config.json", tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="has not finished an epoch"):
        read_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        read_run(tmp_path)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command that must fail says."""
    assert cli.main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_file_is_refused_and_its_run_is_named(runs, capsys) -> None:
    file = runs[0] / "metrics.jsonl"
    assert refusal(capsys, "report", file) == (
        f"bsnn: {file}: received a file; expected the folder of a run. Report on its run with: bsnn report {runs[0]}\n"
    )
    assert "there is no such folder" in refusal(capsys, "report", runs[0] / "nothing")


def test_for_a_folder_of_runs_the_command_is_given(runs, tmp_path, capsys) -> None:
    for number, source in enumerate(runs):
        shutil.copytree(source, tmp_path / "sweep" / f"gamma={number} a")
    unborn = tmp_path / "sweep" / "gamma=2"
    unborn.mkdir()
    (unborn / "metrics.jsonl").write_text("")  # diverged in its first epoch
    said = refusal(capsys, "report", tmp_path / "sweep")
    assert "received a folder of runs; expected runs" in said
    words = shlex.split(said.partition("with: bsnn ")[2])
    assert words[1:3] == [str(tmp_path / "sweep" / f"gamma={number} a") for number in (0, 1)]
    assert not (tmp_path / "sweep" / "report.html").exists()
    assert cli.main(words) == 0
    assert (tmp_path / "sweep" / "report.html").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({}, "without a proper epoch, train_loss, "),
        ({"test_accuracy": None}, "without a proper test_accuracy;"),
        ({"firing_rates": {"lif1": "much"}}, "without a proper firing_rates;"),
        ({"flip_ratios": 3, "warnings": "none"}, "without a proper warnings, flip_ratios;"),
        ([1], "received [1]; expected an epoch"),
    ],
)
def test_a_line_of_metrics_that_lacks_something_is_named(runs, tmp_path, capsys, line, words) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs[0], run, ignore=shutil.ignore_patterns("report.html"))
    whole = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    changed = line if not line or isinstance(line, list) else {**whole, **line}
    (run / "metrics.jsonl").write_text(f"{json.dumps(whole)}\n{json.dumps(changed)}\n")
    said = refusal(capsys, "report", run)
    assert f"{run / 'metrics.jsonl'}, line 2: " in said
    assert words in said
    assert not (run / "report.html").exists()


def test_a_config_that_lacks_something_is_refused(runs, tmp_path, capsys) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs[0], run)
    config = json.loads((run / "config.json").read_text())
    del config["computed_by"]
    (run / "config.json").write_text(json.dumps(config))
    assert "cannot be read (KeyError('computed_by'))" in refusal(capsys, "report", run)


def test_a_run_from_before_memory_was_counted_is_shown_without(runs, tmp_path) -> None:
    old = tmp_path / "old"
    shutil.copytree(runs[0], old)
    lines = [json.loads(line) for line in (old / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["training_bytes"]
    (old / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    new, before = read_run(runs[0]), read_run(old)
    assert "memory of training" in page([new])
    assert "memory of training" not in page([before]).lower()
    both = page([new, before])
    assert both.count('data-head="memory of training, counted"></td>') == 1
    assert f"{new.history[-1]['training_bytes'] / 1e6:.3g} MB" in both


def test_a_run_that_stopped_early_says_so(runs) -> None:
    whole = read_run(runs[0])
    assert "epochs: it is being trained" not in page([whole])
    stopped = whole._replace(history=whole.history[:1])
    assert "binary has 1 of 2 epochs: it is being trained, was interrupted, or diverged" in page([stopped])


def test_the_command_of_a_config_gives_the_config_again() -> None:
    for name in ("digits", "imagenet-small", "cifar100-bso-t6"):
        config = dataclasses.replace(recipe(name), seed=3, autoaugment=True, init_from="a b")
        words = train_command(config, "data dir", Path("out")).split("--seed 3")
        assert words[0].startswith(f"bsnn train {name} --data 'data dir' --out out")
        assert "--init-from 'a b'" in "".join(words)


def test_charts_of_odd_values() -> None:
    empty = figures.line_chart("t", {"a": []}, x_label="x")
    zeros = figures.line_chart("t", {"a": [(0, 0.0), (1, 0.0)]}, x_label="x", log_x=True, log_y=True)
    flat = figures.line_chart("t", {"a": [(1, 0.0), (2, 0.0)]}, x_label="x")
    gap = figures.line_chart("t", {f"line {n}": [(1, 1.0), (2, float("nan"))] for n in range(20)}, x_label="x")
    for svg in (empty, zeros, flat, gap, figures.standalone(flat)):
        root = ElementTree.fromstring(svg)
        assert root.tag.endswith("svg")
        assert "nan" not in svg
    many = [[1.0] * 100] * 100
    names = [f"class number {n}" for n in range(100)]
    ElementTree.fromstring(figures.matrix_chart("t", many, row_names=names, column_names=names, axes=("a", "b")))


def test_a_line_over_most_of_another_one_is_dashed() -> None:
    points = [(1, 1.0), (2, 2.0), (3, 3.0)]
    nearly, partly = [(1, 1.5), (2, 2.001), (3, 3.0)], [(1, 1.0), (2, 2.5), (3, 2.5)]
    lines = {"a": points, "partly": partly, "again": list(points), "nearly": nearly}
    drawn = ElementTree.fromstring(figures.line_chart("t", lines, x_label="x")).findall("polyline")
    assert [line.get("stroke-dasharray") for line in drawn] == [None, None, "6 6", "6 6"]


def test_a_value_a_hair_above_a_tick_needs_no_other_tick() -> None:
    assert ticks(figures.line_chart("t", {"a": [(1, 0.9), (2, 1.0000001)]}, x_label="x"))[-1] == "1"


def test_a_line_to_compare_with_is_thin_and_has_no_dots() -> None:
    lines = {"a": [(1, 1.0), (2, 2.0)], "b": [(1, 2.0), (2, 2.0)]}
    svg = ElementTree.fromstring(figures.line_chart("t", lines, x_label="x", thin=["b"]))
    assert [line.get("style") for line in svg.findall("polyline")] == [None, "stroke-width: 1"]
    assert [dot.findtext("title") for dot in svg.findall("circle")] == ["a, 1: 1", "a, 2: 2"]


def test_a_line_has_the_same_color_where_another_has_no_points() -> None:
    svg = figures.line_chart("t", {"a": [], "b": [(1, 2.0)], "c": [(1, 3.0)]}, x_label="x")
    drawn = ElementTree.fromstring(svg).findall("polyline")
    assert [line.get("stroke") for line in drawn] == ["var(--c1)", "var(--c2)"]
    assert all(line.get("stroke-dasharray") is None for line in drawn)
    assert ">a</text>" not in svg


@pytest.mark.parametrize(("last", "written"), [(1, "1"), (3, "1 2 3"), (12, "2 4 6 8 10 12"), (300, "50 100 150 200")])
def test_epochs_are_whole(last, written) -> None:
    points = [(epoch, 0.5) for epoch in range(1, last + 1)]
    texts = ElementTree.fromstring(figures.line_chart("t", {"a": points}, x_label="epoch")).findall("text")
    epochs = " ".join(text.text or "" for text in texts if text.get("text-anchor") == "middle")
    assert epochs.startswith(written)


def test_exponents_are_short() -> None:
    def written(*values: float) -> list[str]:
        return ticks(figures.line_chart("t", {"a": list(enumerate(values))}, x_label="x"))

    assert written(1e31, 2e31)[:2] == ["1e31", "1.2e31"]
    assert written(1e-5, 2e-5)[:2] == ["1e-5", "1.2e-5"]
    assert written(1e-20, 2e-20)[:2] == ["1e-20", "1.2e-20"]
    assert written(10, 20)[:2] == ["10", "12"]


def test_few_are_seen_beside_many() -> None:
    svg = figures.matrix_chart("t", [[400, 4]], row_names="a", column_names="ab", axes=("a", "b"), by_root=True)
    many, few = (
        float(rect.get("style").rstrip(")").split(",")[-1]) for rect in ElementTree.fromstring(svg).iter("rect")
    )
    assert few > 0.1 * many


def test_points_lie_where_they_should() -> None:
    svg = ElementTree.fromstring(
        figures.line_chart("t", {"a": [(1, 1.0), (10, 10.0), (100, 100.0)]}, x_label="x", log_y=True)
    )
    places = [tuple(map(float, p.split(","))) for p in svg.find("polyline").get("points").split()]
    (_, y0), (_, y1), (_, y2) = places
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y0 > y1 > y2


def ticks(svg: str) -> list[str]:
    """What is written at the y axis, from below."""
    texts = ElementTree.fromstring(svg).findall("text")
    return [text.text or "" for text in texts if text.get("text-anchor") == "end"]


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ((0.0029, 0.04), "0.002 0.005 0.01 0.02 0.05"),
        ((0.004, 0.3), "0.005 0.01 0.02 0.05 0.1 0.2 0.5"),  # 0.002 would leave a sixth of the axis empty
        ((1.0, 100.0), "1 2 5 10 20 50 100"),
        ((3.0, 5000.0), "1 10 100 1000 10000"),
        ((0.2, 0.5), "0.2 0.3 0.4 0.5"),
        ((1e-200, 1e200), None),
    ],
)
def test_a_logarithmic_axis_has_several_ticks_and_wastes_little_room(values, written) -> None:
    svg = figures.line_chart("t", {"a": list(enumerate(values))}, x_label="x", log_y=True)
    assert written is None or ticks(svg) == written.split()
    assert 4 <= len(ticks(svg)) <= 8
    points = ElementTree.fromstring(svg).find("polyline").get("points").split()
    low, high = (float(point.split(",")[1]) for point in points)
    assert low - high > 0.75 * 230


def test_a_bar_reaches_over_its_point() -> None:
    lines = {"a": [(1, 5.0), (2, 6.0)], "b": [(1, 1.0)]}
    svg = ElementTree.fromstring(figures.line_chart("t", lines, x_label="x", bars={"a": [(1, 4.0, 9.0)]}))
    x, y = map(float, svg.find("polyline").get("points").split()[0].split(","))
    start, high = svg.find("path").get("d").removeprefix("M").split("V")
    at, low = map(float, start.split(","))
    assert at == x
    assert low - y == pytest.approx((y - float(high)) / 4, abs=0.2)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_the_page_without_complaint_and_without_sideways_scrolling(runs, tmp_path, width) -> None:
    out = tmp_path / "page.html"
    assert cli.main(["report", *map(str, runs), "--out", str(out)]) == 0
    # Chromium's window has a least width, a frame within has none.
    cell = """document.querySelector('td[data-head="test accuracy"]').getBoundingClientRect().right"""
    shown = "${document.documentElement.scrollWidth} of ${innerWidth}, accuracy ${cell < innerWidth}"
    tell = f'const cell = {cell}; parent.postMessage(`{shown}`, "*")'
    out.write_text(out.read_text().replace("</body>", f"<script>{tell}</script></body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(
        "<!doctype html><title>none</title><script>onmessage = event => { document.title = event.data }</script>"
        f'<iframe src="{out.name}" style="width: {width}px; height: 1200px; border: 0"></iframe>'
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000", "--dump-dom", frame.as_uri()]
    done = subprocess.run([str(CHROMIUM), *options], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert f"<title>{width} of {width}, accuracy true</title>" in done.stdout
