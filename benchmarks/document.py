"""docs/results.md and its pictures, from the files in benchmarks/results; no number on the page is typed by hand.

python benchmarks/document.py           write the page
python benchmarks/document.py --check   exit with 1 if the page or a picture is not what the files give
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bsnn.atomic import write_file
from bsnn.optim.rules import label
from bsnn.paper import TARGETS
from bsnn.paper.markdown import markdown_table
from bsnn.report.figures import line_chart, matrix_chart, standalone

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"

_INTRODUCTION = (
    "# Results\n\nWritten by `python benchmarks/document.py` from the files that each part names; no number is typed "
    "by hand. Every target can be measured at the paper's scale with `--scale paper` and its data; each part says at "
    "which scale it was measured. Tables and figures are numbered as in the paper. `±` is the standard deviation over "
    "seeds."
)


def files_of_page(results: Path, page: Path) -> dict[Path, str]:
    """The page and its pictures, as text by path.

    Args:
        results: The folder of results; those of `bsnn reproduce` are in its folder `reproduce`.
        page: Where the page will be; pictures go to `figures` beside it.

    Raises:
        SystemExit: If a file is not what its command writes.
    """
    sections: dict[str, Callable[[Any, str], str]] = {
        **{f"reproduce/{name}": _target for name in TARGETS},
        "flip_rules": _flip_rules,
        "cifar10_methods": _methods,
        "cifar10_recipes": _cifar10_recipes,
        "small_recipes": _small_recipes,
    }
    parts, missing, pictures = [], [], {}
    for name, section in sections.items():
        path = results / f"{name}.json"
        if not path.exists():
            missing.append(path.stem)
            continue
        try:
            result = json.loads(path.read_text())
            parts.append(section(result, Path(os.path.relpath(path, page.parent)).as_posix()))
            pictures |= _pictures(result)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, StopIteration) as error:
            raise SystemExit(
                f"{path}: cannot be shown ({error!r}); expected a result as its command writes it. Measure it again."
            ) from error
    if missing:
        parts.insert(0, f"Not measured yet: {', '.join(missing)}.")
    text = "\n\n".join([_INTRODUCTION, *parts]) + "\n"
    return {page: text} | {page.parent / "figures" / name: drawn for name, drawn in pictures.items()}


def _target(result: dict[str, Any], link: str) -> str:
    parts = [f"## {result['title']}", result["ran"]]
    for table in result["tables"]:
        parts.append(f"**{table['caption']}**\n\n{markdown_table(table['columns'], table['rows'])}")
    if result["figures"]:
        images = zip(result["figures"], _pictures(result), strict=True)
        parts.append("\n".join(f"![{figure['title']}](figures/{name})" for figure, name in images))
    parts += result["notes"]
    parts.append(f"`{result['command']}`: {_effort(result)}; [{result['name']}.json]({link})")
    return "\n\n".join(parts)


def _pictures(result: dict[str, Any]) -> dict[str, str]:
    """The figures of a result, as SVG by the name of their file."""
    figures = result.get("figures", [])
    numbers = [f"-{number + 1}" for number in range(len(figures))] if len(figures) > 1 else [""]
    return {
        f"{result['name']}{number}.svg": standalone(_drawn(figure))
        for number, figure in zip(numbers, figures, strict=False)
    }


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
        options = {"row_names": names, "column_names": names, "axes": axes, "show": "{:.2f}".format}
        return matrix_chart(figure["title"], figure["rows"], **options)
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
    names = {name: label(name) for name in ("tbso", "bso")}
    names |= {"latent": "latent weights", "real": "real weights", "qsnn": "Q-SNN"}
    rows = []
    for name, method in result["methods"].items():
        tried = ", ".join(f"{value:g}: {_percent(accuracy)}" for value, accuracy in method["held_out_accuracies"])
        chosen = f"{method['chosen']}, the last tried" if method["chosen_at_the_edge"] else method["chosen"]
        measured = _measured(method["test_accuracy"]) if method["test_accuracy"] else None
        rows.append([names[name], method["knob"], tried, chosen, measured, len(method["test_accuracies"])])
    protocol = result["protocol"]
    columns = ["method", "knob", "held-out accuracy, %", "chosen", "test accuracy, %", "seeds"]
    parts = [
        f"## CIFAR-10 methods: {protocol['recipe']}",
        f"The same network, {protocol['epochs_of_the_comparison']} epochs, each method with the best of a few values "
        f"of one knob on {protocol['held_out_samples']:,} held-out training images (after training on "
        f"{protocol['training_samples_of_the_selection']:,}).",
        markdown_table(columns, rows),
        *_differences(result["methods"], names),
    ]
    if "full_recipe" in result:
        parts.append(
            f"The whole recipe `{protocol['recipe']}`: {_measured(result['full_recipe']['test_accuracy'])} % on the "
            f"test images, {len(result['full_recipe']['runs'])} seeds."
        )
    lost = result["eight_bits"]["points_lost_by_seed"]
    if lost:
        points = ", ".join(f"{points:+.2f} (seed {seed})" for seed, points in lost.items())
        parts.append(f"T-BSO with its momentum in eight bits loses, in percent points: {points}.")
    if result["missing"]:
        parts.append(f"Not finished yet: {', '.join(result['missing'])}.")
    parts.append(f"`{result['command']}`, {result['machine']}; [{link.rpartition('/')[2]}]({link})")
    return "\n\n".join(parts)


def _differences(methods: dict[str, Any], names: dict[str, str]) -> list[str]:
    """By how much T-BSO is above the others, seed by seed, as far as they have been trained."""
    ours, words = methods["tbso"]["test_accuracies"], []
    for name, method in methods.items():
        others = method["test_accuracies"]
        points = [100 * (ours[seed] - others[seed]) for seed in others if None not in (ours.get(seed), others[seed])]
        if name != "tbso" and points:
            words.append(f"minus {names[name]}: {', '.join(f'{difference:+.2f}' for difference in points)}")
    expected = "The paper has T-BSO above BSO and above latent weights."
    return [f"T-BSO in percent points, seed by seed, {'; '.join(words)}. {expected}"] if words else []


def _cifar10_recipes(result: dict[str, Any], link: str) -> str:
    columns = ["recipe", "T", "epochs", "seed", "trained", "deployed", "with mirror image", "processor minutes"]
    rows = [
        [
            name,
            row["time_steps"],
            row["epochs"],
            run["seed"],
            *(_percent(run[key]) for key in ("test_accuracy", "deployed_accuracy", "flip_averaged")),
            run["processor_minutes"],
        ]
        for name, row in result["recipes"].items()
        for run in row["runs"]
    ]
    text = f"`{result['command']}`, {result['machine']}; [cifar10_recipes.json]({link})"
    return (
        f"## CIFAR-10 on a small machine\n\nAccuracy on all 10,000 test images, %. {result['choice']}\n\n"
        f"{markdown_table(columns, rows)}\n\n{text}"
    )


def _small_recipes(result: dict[str, Any], link: str) -> str:
    rows = [
        [
            name,
            f"{row['samples']['train']:,} / {row['samples']['test']:,}",
            row["classes"],
            _percent(row["baselines"]["nearest_centroid"]),
            _percent(row["baselines"]["logistic_regression"]),
            *(
                ", ".join(f"{_percent(run['test_accuracy'])} (seed {run['seed']})" for run in runs) or "–"
                for runs in (row["runs"], row.get("with_settings_of_cifar10_small", []))
            ),
        ]
        for name, row in result["recipes"].items()
    ]
    baselines = ["nearest centroid", "logistic regression"]
    carried = "with the settings of `cifar10-small`"
    columns = ["recipe", "samples, train / test", "classes", *baselines, "ours", carried]
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/results.md and its pictures from benchmarks/results.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file would change")
    check = parser.parse_args().check
    files = files_of_page(RESULTS, PAGE)
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)}{' is not what the results give' if check else ''}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, files[path].encode())
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
