"""One page of Markdown, and its pictures, from the files of results; nothing on it is typed by hand."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bsnn.atomic import write_file
from bsnn.errors import UserError
from bsnn.report.figures import line_chart, matrix_chart, standalone

_ORDER = (
    "table1", "table2", "table3", "table4", "table5", "figure3", "figure4", "figure5",
    "gradients", "regret", "ablation",
)  # fmt: skip


def result_text(result: dict[str, Any]) -> str:
    """A result as JSON with a line for each of its parts, so that changes of it can be read."""
    text = json.dumps(result, indent=1, ensure_ascii=False)
    # Lists of plain values on one line each.
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda match: "[" + re.sub(r",\s+", ", ", match[1]) + "]", text) + "\n"


def document(results: Path, out: Path, benchmarks: Path | None = None) -> dict[str, Any]:
    """Writes the page of all results that are there.

    Args:
        results: The folder of results of `bsnn reproduce`.
        out: The page; pictures go to `figures` beside it.
        benchmarks: The folder of results of benchmarks/, for the comparisons on real data.

    Raises:
        UserError: If a file is not what it should be; nothing is written then.
    """
    found = [_result(path, results) for path in sorted(results.glob("*.json"))]
    if not found:
        raise UserError(f"{results}: holds no results; expected those of `bsnn reproduce NAME --results {results}`.")
    found.sort(key=lambda result: _ORDER.index(result["name"]))
    parts = [
        "# Results\n\nWritten by `bsnn reproduce document` from the files that each part names; no number is typed by "
        "hand. Every target runs at the paper's scale with `--scale paper` and its data; what stands here says which "
        "scale it ran. Numbers of tables and figures are the paper's. `±` is the standard deviation over seeds."
    ]
    missing = [name for name in _ORDER if name not in {result["name"] for result in found}]
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.")
    pictures: dict[str, str] = {}
    for result in found:
        path = results / f"{result['name']}.json"
        with _naming(path):
            parts.append(_section(result, _link(path, out), pictures))
    for name, section in {
        "flip_rules": _flip_rules, "cifar10_methods": _methods, "small_recipes": _small_recipes
    }.items():  # fmt: skip
        path = benchmarks / f"{name}.json" if benchmarks else None
        if path and path.exists():
            with _naming(path):
                parts.append(section(json.loads(path.read_text()), _link(path, out)))
    for name, picture in pictures.items():
        (out.parent / "figures").mkdir(parents=True, exist_ok=True)
        write_file(out.parent / "figures" / name, picture.encode())
    write_file(out, ("\n\n".join(parts) + "\n").encode())
    return {"path": str(out), "targets": [result["name"] for result in found], "missing": missing}


def _result(path: Path, results: Path) -> dict[str, Any]:
    with _naming(path):
        result = json.loads(path.read_text())
    if not isinstance(result, dict) or result.get("name") != path.stem or path.stem not in _ORDER:
        below = next((file.parent for file in sorted(results.glob("*/*.json")) if file.stem in _ORDER), None)
        advice = f" Try: bsnn reproduce document --results {below} --benchmarks {results}" if below else ""
        raise UserError(
            f"{path}: received a file that `bsnn reproduce` has not written; expected a folder of its results alone, "
            f"such as {_ORDER[0]}.json.{advice}"
        )
    return result


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Names the file that lacks something, or is not JSON."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise UserError(
            f"{path}: cannot be shown ({error!r}); expected a result as its command writes it. Make it again, or take "
            "it out of the folder."
        ) from error


def _link(path: Path, out: Path) -> str:
    """A file as a link on the page spells it."""
    return Path(os.path.relpath(path, out.parent)).as_posix()


def _section(result: dict[str, Any], link: str, pictures: dict[str, str]) -> str:
    """The part of the page of one result; its pictures go to `pictures`, by the names of their files."""
    parts = [f"## {result['title']}", f"{result['ran']}"]
    for table in result["tables"]:
        parts.append(f"**{table['caption']}**\n\n{markdown_table(table['columns'], table['rows'])}")
    images = []
    for number, figure in enumerate(result["figures"]):
        name = f"{result['name']}{f'-{number + 1}' if len(result['figures']) > 1 else ''}.svg"
        pictures[name] = standalone(_drawn(figure))
        images.append(f"![{figure['title']}](figures/{name})")
    if images:
        parts.append("\n".join(images))
    parts += result["notes"]
    parts.append(f"`{result['command']}`: {_effort(result)}; [{result['name']}.json]({link})")
    return "\n\n".join(parts)


def _effort(result: dict[str, Any]) -> str:
    """How long it took, by which machine and, where networks were trained, by which commits."""
    points = result["data"] if isinstance(result["data"], list) else [result["data"]]
    trained = [point for point in points if "minutes" in point]
    if not trained:
        return f"{result['seconds'] / 60:.1f} minutes on {result['machine']}"
    # All runs: the last call has only trained what earlier ones had not.
    minutes = sum(one or 0.0 for point in trained for one in point["minutes"])
    commits = sorted({commit[:7] for point in trained for commit in point["git_commits"] if commit})
    return f"{minutes:.0f} minutes of training in all, on {result['machine']}, commit {', '.join(commits) or 'unknown'}"


def _drawn(figure: dict[str, Any]) -> str:
    if figure["kind"] == "matrix":
        names = figure["names"]
        axes = tuple(figure["axes"])
        return matrix_chart(figure["title"], figure["rows"], row_names=names, column_names=names, axes=axes)
    more = {key: figure[key] for key in ("log_x", "log_y", "bars", "thin") if key in figure}
    lines = {name: [(x, y) for x, y in points] for name, points in figure["lines"].items()}
    return line_chart(figure["title"], lines, x_label=figure["x_label"], show="{:,.4g}".format, **more)


def _flip_rules(result: dict[str, Any], link: str) -> str:
    rules, rates, setup = result["rules"], result["rates"], result["setup"]
    rows = [[name, *map(_measured, spreads)] for name, spreads in rules.items()]
    worst = "; ".join(
        f"{name}: {_percent(min(spread['mean'] for spread in spreads))}"
        for name, spreads in rules.items()
        if "annealed" not in name
    )
    num_seeds = len(next(iter(rules.values()))[0]["accuracies"])
    parts = [
        "## Flip rules",
        f"Accuracy on {setup['validation_samples']} held-out training digits, %, by 1 − β1; {setup['train_samples']} "
        f"training samples, width {setup['width']:g}, {setup['epochs']} epochs, T = {setup['time_steps']}, {num_seeds} "
        "seeds. Where it does not say annealed, nothing but the learning rate is.",
        markdown_table(["rule", *(f"{rate:g}" for rate in rates)], rows),
        f"At the worst of the rates, without annealing: {worst}. A γ in units of the gradient fits one rate of the "
        "momentum, one in units of the momentum's noise (Sigma-BSO) fits all of them. Annealing the share of weights "
        "that flip does what annealing 1 − β1 does, and needs an end to anneal towards as well.",
        f"`{result['command']}`, {result['machine']}; [flip_rules.json]({link})",
    ]
    return "\n\n".join(parts)


def _methods(result: dict[str, Any], link: str) -> str:
    names = {"tbso": "T-BSO", "bso": "BSO", "latent": "latent weights", "real": "real weights"}
    rows = []
    for name, method in result["methods"].items():
        tried = ", ".join(f"{value:g}: {_percent(accuracy)}" for value, accuracy in method["held_out_accuracies"])
        chosen = f"{method['chosen']}, the last tried" if method["chosen_at_the_edge"] else method["chosen"]
        measured = _measured(method["test_accuracy"])
        rows.append([names[name], method["knob"], tried, chosen, measured, len(method["runs"])])
    protocol = result["protocol"]
    columns = ["method", "knob", "held-out accuracy, %", "chosen", "test accuracy, %", "seeds"]
    parts = [
        "## CIFAR-10 methods",
        f"The same network and online gradients, {protocol['epochs_of_the_comparison']} epochs, each method with the "
        f"best of a few values of one knob on {protocol['held_out_samples']:,} held-out training images (after "
        f"training on {protocol['training_samples_of_the_selection']:,}).",
        markdown_table(columns, rows),
        *_differences(result["methods"], names),
        f"The whole recipe `{protocol['recipe']}`: {_measured(result['full_recipe']['test_accuracy'])} % on the test "
        f"images, {len(result['full_recipe']['runs'])} seeds.",
    ]
    lost = result["eight_bits"]["points_lost_by_seed"]
    if lost:
        points = ", ".join(f"{points:+.2f} (seed {seed})" for seed, points in lost.items())
        parts.append(f"T-BSO with its momentum in eight bits loses, in percent points: {points}.")
    if result["missing"]:
        parts.append(f"Not finished yet: {', '.join(result['missing'])}.")
    parts.append(f"`{result['command']}`, {result['machine']}; [cifar10_methods.json]({link})")
    return "\n\n".join(parts)


def _differences(methods: dict[str, Any], names: dict[str, str]) -> list[str]:
    """By how much T-BSO is above the others, seed by seed, as far as they have been trained."""
    accuracies = {
        name: {run["run"].rsplit("-s", 1)[1]: run["accuracy"] for run in method["runs"] if run["accuracy"] is not None}
        for name, method in methods.items()
    }
    words = []
    for name, others in accuracies.items():
        points = [100 * (accuracies["tbso"][seed] - others[seed]) for seed in others if seed in accuracies["tbso"]]
        if name != "tbso" and points:
            words.append(f"minus {names[name]}: {', '.join(f'{difference:+.2f}' for difference in points)}")
    expected = "The paper has T-BSO above BSO and above latent weights."
    return [f"T-BSO in percent points, seed by seed, {'; '.join(words)}. {expected}"] if words else []


def _small_recipes(result: dict[str, Any], link: str) -> str:
    rows = [
        [
            name,
            f"{row['samples']['train']:,} / {row['samples']['test']:,}",
            row["classes"],
            _percent(row["baselines"]["nearest_centroid"]),
            _percent(row["baselines"]["logistic_regression"]),
            ", ".join(f"{_percent(run['test_accuracy'])} (seed {run['seed']})" for run in row["runs"]),
        ]
        for name, row in result["recipes"].items()
    ]
    columns = ["recipe", "samples, train / test", "classes", "nearest centroid", "logistic regression", "ours"]
    text = f"`{result['command']}`, {result['machine']}; [small_recipes.json]({link})"
    return (
        f"## Small recipes on real files\n\nTest accuracy, %. {result['note']}\n\n"
        f"{markdown_table(columns, rows)}\n\n{text}"
    )


def _percent(accuracy: float | None) -> str:
    return "none" if accuracy is None else f"{100 * accuracy:.2f}"


def _measured(spread: dict[str, Any]) -> str:
    if not spread:
        return "not measured yet"
    deviation = spread["standard_deviation"]
    return _percent(spread["mean"]) + ("" if deviation is None else f" ± {100 * deviation:.2f}")


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(markdown_table(["γ", "ours"], [[0.5, None]]))
        | γ | ours |
        | --- | --- |
        | 0.5 | – |
    """
    cells = [["–" if cell is None else str(cell).replace("|", "\\|") for cell in row] for row in (columns, *rows)]
    cells.insert(1, ["---"] * len(columns))
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
