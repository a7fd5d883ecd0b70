"""Plants single faults in the library, one at a time, and runs the tests that cover them: which do the tests notice?

    pip install coverage
    python benchmarks/faults.py [--number 320] [--seed 0] [--jobs 2] [--only src/bsnn/nn] [--rerun-survivors]

A fault is an operator, a constant, a bound, a name such as min for max, two swapped arguments, or a dropped statement,
return value or decorator (planting/mutator.py). They are chosen at random, from each file in proportion to its lines; a
dozen and more were thought up by hand (planting/by_hand.py). The suite runs once under coverage.py, which says which
tests run which line. Each fault then meets the fastest of its tests, and if it survives those, all others.

Faults are planted in copies of the tree, in `--work`. An interrupted run goes on where it was. Every survivor needs a
reason in planting/reasons.json, and shams, which change nothing, must all survive. Writes results/faults.json.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
import traceback
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from planting.by_hand import by_hand
from planting.cover import Cover, measure
from planting.mutator import Fault, faults
from planting.tree import ROOT, Tree, digest, end_with_parent, preload, run_tests

RESULTS = Path(__file__).parent / "results" / "faults.json"
REASONS = Path(__file__).parent / "planting" / "reasons.json"
FOLDERS = [f"src/bsnn/{name}" for name in ("nn", "optim", "online", "train", "deploy")]
# Of the first attempt, which catches most.
FIRST_TESTS, FIRST_SECONDS = 25, 40.0


def sources(root: Path, only: list[str]) -> dict[str, str]:
    """The modules that faults are planted in."""
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    names = {str(path.relative_to(root)): path.read_text() for path in paths}
    return {name: text for name, text in names.items() if not only or any(name.startswith(part) for part in only)}


def choose(modules: dict[str, str], number: int, seed: int) -> list[Fault]:
    """So many faults, by files in proportion to their lines; in a file, one per line before any line gets a second."""
    lines = {path: len(text.splitlines()) for path, text in modules.items()}
    shares = {path: number * count / sum(lines.values()) for path, count in lines.items()}
    quotas = {path: int(share) for path, share in shares.items()}
    rest = sorted(shares, key=lambda path: quotas[path] - shares[path])[: number - sum(quotas.values())]
    chosen = []
    for path, text in modules.items():
        turn = random.Random(f"{seed} {path}")
        by_line: dict[int, dict[str, list[Fault]]] = defaultdict(lambda: defaultdict(list))
        for fault in faults(path, text):
            by_line[fault.line][fault.kind].append(fault)
        order = []
        for line in turn.sample(sorted(by_line), len(by_line)):
            kinds = [turn.sample(of_kind, len(of_kind)) for _, of_kind in sorted(by_line[line].items())]
            turn.shuffle(kinds)
            order += [(number, fault) for number, fault in enumerate(fault for kind in kinds for fault in kind)]
        order.sort(key=lambda entry: entry[0])
        chosen += [fault for _, fault in order[: quotas[path] + (path in rest)]]
    random.Random(seed).shuffle(chosen)
    return chosen


def identity(fault: Fault) -> str:
    """The same for the same change of the same text."""
    return digest(f"{fault.path}\0{fault.source}".encode())


def tests_for(fault: Fault, cover: Cover) -> tuple[list[str], bool]:
    """The tests that may notice a fault, the likeliest and fastest first, and whether they run its very lines.

    Their neighbors in the same file come last: what a shared fixture runs counts for the first test that asks for it.
    """
    folder = f"tests/{Path(fault.path).parts[2]}/"
    near = (folder, fault.path)
    by_place = [cover.tests_of(fault.path, first, last) for first, last in fault.covering]
    in_folder = {name for name in cover.seconds if name.startswith(folder)}
    tests = next(filter(None, by_place), in_folder)
    files = {name.partition("::")[0] for name in tests}
    beside = {name for name in cover.seconds if name.partition("::")[0] in files}

    def place(name: str) -> tuple[bool, bool, float, str]:
        return name not in tests, not name.startswith(near), cover.seconds[name], name

    return sorted(beside, key=place), tests is by_place[0]


def portions(tests: list[str], cover: Cover, most_seconds: float) -> tuple[list[list[str]], bool]:
    """The tests in the two attempts, and whether the time is enough for all."""
    attempts: list[list[str]] = [[], []]
    spent = [0.0, 0.0]
    for name in tests:
        seconds = cover.seconds[name]
        first = len(attempts[0]) < FIRST_TESTS and spent[0] + seconds <= FIRST_SECONDS
        if first or spent[1] + seconds <= most_seconds:
            attempts[not first].append(name)
            spent[not first] += seconds
    return [attempt for attempt in attempts if attempt], sum(map(len, attempts)) == len(tests)


def attempt(tree: Tree, fault: Fault, tests: list[str], cover: Cover) -> dict[str, Any] | None:
    """What noticed a fault, and how; None if nothing did."""
    files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
    limit = 90 + 10 * sum(cover.seconds[name] for name in tests)
    with tree.planted(fault.path, fault.source):
        ended = run_tests(tree, files, tests=tests, limit=limit)
    failed = {name: why for name, why in ended.report["failed"].items() if why != "skipped"}
    last = (ended.report["ran"] or files)[-1]
    if ended.status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    if ended.status is None:
        return {"how": "does not end, or takes all memory", "by": last}
    if ended.status < 0:
        return {"how": f"signal {-ended.status}", "by": last}
    if failed:
        name, why = next(iter(failed.items()))
        return {"how": "test failed" if "::" in name else "import failed", "by": name, "why": why}
    if ended.status > pytest.ExitCode.USAGE_ERROR:
        raise RuntimeError(f"the tests of {fault.path} could not be run:\n{ended.output[-2000:]}")
    return {"how": "import failed", "by": last, "why": ended.output.strip()[-300:]}


def judge(tree: Tree, fault: Fault, cover: Cover, most_seconds: float) -> dict[str, Any]:
    """Runs the tests on one fault."""
    started = time.monotonic()
    tests, runs = tests_for(fault, cover)
    attempts, complete = portions(tests, cover, most_seconds)
    found = next(filter(None, (attempt(tree, fault, part, cover) for part in attempts)), None)
    return {
        "id": identity(fault),
        "path": fault.path,
        "line": fault.line,
        "kind": fault.kind,
        "diff": fault.diff((tree.path / fault.path).read_text()),
        "caught": found is not None,
        **(found or {"tests": len(tests), "complete": complete, "runs_the_line": runs}),
        "seconds": round(time.monotonic() - started, 1),
    }


def run_all(planned: list[Fault], cover: Cover, options: argparse.Namespace) -> None:
    """Judges every fault that has no result yet, in as many processes as asked for."""
    children = []
    for number in range(options.jobs):
        child = os.fork()
        if not child:
            status = 1
            try:
                end_with_parent()
                work(planned[number :: options.jobs], Tree(options.work / f"tree-{number}"), cover, options)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    if any([os.waitpid(child, 0)[1] for child in children]):
        sys.exit("a worker has failed; its results so far are kept")


def work(planned: list[Fault], tree: Tree, cover: Cover, options: argparse.Namespace) -> None:
    for number, fault in enumerate(planned, 1):
        result = judge(tree, fault, cover, options.most_seconds)
        with open(options.work / "verdicts.jsonl", "a") as file:
            file.write(json.dumps(result) + "\n")
        verdict = f"caught by {result['by']}" if result["caught"] else f"SURVIVED\n{result['diff']}"
        place = f"{fault.path}:{fault.line} {fault.kind}"
        print(f"[{number}/{len(planned)}] {place}, {result['seconds']} s: {verdict}", flush=True)


def known_results(work: Path) -> dict[str, dict[str, Any]]:
    path = work / "verdicts.jsonl"
    found = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        with suppress(ValueError):  # the last one of a run that was killed
            result = json.loads(line)
            found[result["id"]] = result
    return found


def shams(modules: dict[str, str], number: int, seed: int) -> list[Fault]:
    """Faults that change nothing but a comment."""
    real = choose(modules, number, seed + 1)
    return [Fault(f.path, "sham", f.line, f.covering, f"{modules[f.path]}\n# {f.line}\n") for f in real]


def reason_of(result: dict[str, Any]) -> str:
    """Why nothing can notice a fault; empty if nobody has said so."""
    reasons = {(entry["path"], entry["diff"]): entry["reason"] for entry in json.loads(REASONS.read_text())}
    return reasons.get((result["path"], result["diff"]), "")


def summary(results: list[dict[str, Any]], cover: Cover, options: argparse.Namespace) -> dict[str, Any]:
    """The results file."""
    for result in results:
        if not result["caught"]:
            result["reason"] = reason_of(result)
    planted = [result for result in results if result["kind"] not in ("sham", "by hand")]
    hand = [result for result in results if result["kind"] == "by hand"]
    nothing = [result for result in results if result["kind"] == "sham"]

    def counts(key: Any) -> dict[str, list[int]]:
        total, caught = Counter(map(key, planted)), Counter(key(r) for r in planted if r["caught"])
        return {name: [caught[name], total[name]] for name in sorted(total)}

    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        "planted": len(planted),
        "caught": sum(result["caught"] for result in planted),
        "by_hand": [sum(result["caught"] for result in hand), len(hand)],
        "shams": [sum(result["caught"] for result in nothing), len(nothing)],
        "caught_of_planted_by_kind": counts(lambda result: result["kind"]),
        "caught_of_planted_by_folder": counts(lambda result: result["path"].split("/")[2]),
        "how": dict(Counter(result["how"].split(":")[0] for result in planted if result["caught"])),
        "tests": len(cover.seconds),
        "tests_skipped": sum(why == "skipped" for why in cover.failed.values()),
        "tests_not_used": {name: why for name, why in cover.failed.items() if why != "skipped"},
        "seed": options.seed,
        "minutes": round(sum(result["seconds"] for result in results) / 60, 1),
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "survivors": [result for result in results if not result["caught"] and result["kind"] != "sham"],
        "faults": [result for result in results if result["caught"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=320, help="faults, without shams and those by hand")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--shams", type=int, default=10)
    parser.add_argument("--only", action="append", default=[], metavar="PATH", help="a file or folder; no results file")
    parser.add_argument("--tests", action="append", metavar="PATH", help="use these test files only; no results file")
    parser.add_argument(
        "--rerun-survivors", action="store_true", help="judge those again that survived without a reason"
    )
    parser.add_argument("--most-seconds", type=float, default=300, help="of tests per fault, in the second attempt")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "faults")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    options.work = options.work.resolve()
    preload()
    tree = Tree(options.work / "tree")
    modules = sources(tree.path, options.only)
    planned = [*by_hand(modules), *choose(modules, options.number, options.seed)]
    planned += shams(modules, options.shams, options.seed)  # last: nothing takes as long as what nothing notices
    cover = measure(tree, options.work, FOLDERS, only=options.tests)
    known = known_results(options.work)
    again = options.rerun_survivors
    done = {name for name, result in known.items() if result["caught"] or not again or reason_of(result)}
    run_all([fault for fault in planned if identity(fault) not in done], cover, options)
    known = known_results(options.work)
    result = summary([known[identity(fault)] for fault in planned if identity(fault) in known], cover, options)
    if not options.only and not options.tests:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "faults"}, indent=1))


if __name__ == "__main__":
    main()
