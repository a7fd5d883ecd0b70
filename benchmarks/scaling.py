"""How memory and time of training on a sequence grow with T, batch, width and depth, beside BPTT.

    python benchmarks/scaling.py [--repetitions 2] [--threads 2] [--out FILE] [--figures DIR]

One of the four is varied at a time, on a chain of equal convolutions; every point is measured in a process of its own.
Points that --out holds already are not measured again, so a run that was interrupted goes on. Memory is that above a
tiny network of the same kind. Writes results/scaling.json, with the slope of log cost over log size by least squares
over all sizes and over the three largest, and scaling-memory.svg and scaling-seconds.svg.
"""

import argparse
import json
import math
import os
import platform
import statistics
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from bsnn.atomic import write_file
from bsnn.bench.training import in_a_process
from bsnn.report.figures import line_chart, standalone

HERE = Path(__file__).parent
METHODS = {"tbso": "T-BSO", "bptt": "BPTT"}
BASE = {"time_steps": 4, "batch": 16, "width": 0.5, "depth": 8}
SIZES = {
    "time_steps": (1, 2, 4, 8, 16, 32),
    "batch": (4, 8, 16, 32, 64),
    "width": (0.125, 0.25, 0.5, 1.0),
    "depth": (2, 4, 8, 16),
}
KEYS = ("method", "repetition", *BASE)


def wanted(repetitions: int, largest: int) -> list[dict[str, Any]]:
    """All points, each once, all configurations in turns."""
    points = [
        {"method": method, "repetition": repetition, **BASE, name: size}
        for repetition in range(repetitions)
        for name, sizes in SIZES.items()
        for size in sizes[:largest]
        for method in METHODS
    ]
    return list({tuple(point.values()): point for point in points}.values())


def measure(point: dict[str, Any], threads: int) -> dict[str, Any]:
    plan = (128, "pool", *[128] * (point["depth"] - 1))
    spec = {**point, "plan": plan, "size": 32, "threads": threads, "sequences": 1, "device": "cpu"}
    found = in_a_process(spec)
    room = found["peak_bytes"] is not None
    return {
        **point,
        "memory": found["peak_bytes"] - found["program_bytes"] if room else None,
        "seconds": found["step_seconds"] * point["time_steps"] if room else None,
    }


def curve(points: list[dict[str, Any]], method: str, name: str, cost: str) -> list[tuple[float, float]]:
    """Medians over repetitions by size; sizes without room are left out."""
    around = {**BASE, "method": method}
    found = []
    for size in SIZES[name]:
        like = {**around, name: size}
        values = [p[cost] for p in points if all(p[key] == value for key, value in like.items())]
        if values and None not in values:
            found.append((size, statistics.median(values)))
    return found


def slope(line: list[tuple[float, float]]) -> float | None:
    if len(line) < 2:
        return None
    return statistics.linear_regression([math.log(x) for x, _ in line], [math.log(y) for _, y in line]).slope


def draw(points: list[dict[str, Any]], cost: str) -> tuple[str, list[dict[str, Any]]]:
    """The figure of a cost and its slopes; size and cost are relative to the smallest."""
    lines, slopes = {}, []
    for method, shown in METHODS.items():
        for name in SIZES:
            line = curve(points, method, name, cost)
            if line:
                found = {"slope": slope(line), "slope_of_the_three_largest": slope(line[-3:])}
                slopes.append({"cost": cost, "method": method, "over": name, **found})
                steepness = "" if found["slope"] is None else f", slope {found['slope']:.2f}"
                lines[f"{shown}, {name.replace('_', ' ')}{steepness}"] = [
                    (x / line[0][0], y / line[0][1]) for x, y in line
                ]
    title = f"{cost} of training on a sequence, relative to the smallest"
    return line_chart(title, lines, x_label="size relative to the smallest", log_x=True, log_y=True), slopes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--largest", type=int, default=99, help="only so many sizes of each, to try it")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scaling.json")
    parser.add_argument("--figures", type=Path, default=HERE.parent / "docs" / "figures")
    options = parser.parse_args()
    setting = {"base": BASE, "threads": options.threads, "versions": {"torch": torch.__version__}}
    points: list[dict[str, Any]] = []
    if options.out.exists():
        before = json.loads(options.out.read_text())
        if {key: before[key] for key in setting} != setting:
            raise SystemExit(
                f"{options.out} was measured otherwise (base, threads or torch); expected none. Move it away."
            )
        points = before["points"]
    known = {tuple(point[key] for key in KEYS) for point in points}
    for point in tqdm(wanted(options.repetitions, options.largest), unit="process", disable=None):
        if tuple(point[key] for key in KEYS) in known:
            continue
        points.append({**measure(point, options.threads), "load": os.getloadavg()[0]})
        figures = {cost: draw(points, cost) for cost in ("memory", "seconds")}
        result = {
            **setting,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "slopes": [line for _, slopes in figures.values() for line in slopes],
            "points": points,
        }
        write_file(options.out, (json.dumps(result, indent=1) + "\n").encode())
        for cost, (svg, _) in figures.items():
            (options.figures / f"scaling-{cost}.svg").write_text(standalone(svg))
    for line in draw(points, "memory")[1] + draw(points, "seconds")[1]:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
