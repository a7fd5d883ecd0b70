"""The faults that `benchmarks/faults.py` plants: each kind on a line of its own, and what is never touched."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from planting.cover import Cover
from planting.mutator import faults


def changes(source: str) -> set[str]:
    """The lines that the faults in a function's body put in place of its own, stripped."""
    whole = "def f(self, x, y, n):\n" + "".join(f"    {line}\n" for line in source.splitlines())
    found = faults("f.py", whole)
    for fault in found:
        compile(fault.source, "f.py", "exec")
        assert fault.source != whole
    added = [line for fault in found for line in fault.diff(whole).splitlines() if line.startswith("+")]
    return {line.removeprefix("+").strip() for line in added}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("z = x + y", {"z = x - y"}),
        ("z = x - y * n", {"z = x + y * n", "z = x - (y / n)"}),
        ("z = (x + y) * n", {"z = (x + y) / n", "z = (x - y) * n"}),
        ("z = x < y", {"z = x <= y", "z = x > y"}),
        ("z = x == y != n", {"z = x != y != n", "z = x == y == n"}),
        ("z = x is None", {"z = x is not None"}),
        ("z = x in y", {"z = x not in y"}),
        ("z = x and not y", {"z = x or not y", "z = x and y"}),
        ("z = -x", {"z = x"}),
        ("z = min(x, y)", {"z = max(x, y)"}),
        ("z = x.floor()", {"z = x.ceil()"}),
        ("z = 0", {"z = 1"}),
        ("z = 1", {"z = 0", "z = 2"}),
        ("z = -1", {"z = 1"}),
        ("z = 0.5", {"z = 1.0"}),
        ("z = True", {"z = False"}),
        ("z = x[n:]", {"z = x[n + 1:]"}),
        ("z = x[:n]", {"z = x[:n - 1]"}),
        ("z = range(n)", {"z = range(n + 1)", "z = range(n - 1)"}),
        ("z = x.call(y, n)", {"z = x.call(n, y)"}),
        ("x += n", {"pass", "x -= n"}),
        ("x = y", {"pass"}),
        ("self.z = y", {"pass"}),
        ("self.call(n)", {"pass"}),
        ("raise ValueError(n + 1)", {"pass"}),
        ("return x", {"return None"}),
        # The line goes on: what encloses it is not changed, only moved.
        ("if x > n:\n    return", {"if x >= n:", "if x < n:"}),
        ("λ = 'Ω' if x else y + n", {"λ = 'Ω' if x else (y - n)"}),
    ],
)
def test_each_kind_of_fault(line: str, expected: set[str]) -> None:
    assert changes(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        '"""Text 1 + 1."""',
        "import math",
        "assert x == y",
        "z = 'x' + y",
        "z = f'{x + y}'",
        "z: 'int | None' = x",
        "z = isinstance(x, int | float)",
        "z = zip(*x, strict=True)",
        "z = x",
        "raise NotImplementedError",
        "if TYPE_CHECKING:\n    z = x + y",
    ],
)
def test_what_is_never_touched(line: str) -> None:
    assert changes(line) == set()


def test_decorators_defaults_and_texts_for_people() -> None:
    source = (
        "class A:\n    @property\n    @no_grad(1)\n    def f(self, x=None, *, y: int = 2):\n        return x\n\n"
        "    def extra_repr(self):\n        return 1 + 1\n"
    )
    found = {(fault.kind, fault.line): fault for fault in faults("f.py", source)}
    assert found.keys() == {("decorator", 3), ("constant", 4), ("return", 5)}
    assert found["decorator", 3].source == source.replace("@no_grad(1)", "")
    # A default is set when the module is imported, so any test that runs the function counts.
    assert found["constant", 4].covering[0] == (5, 5)
    assert found["return", 5].source == source.replace("return x", "return None")


def test_the_tests_of_a_line_are_those_that_pass_and_run_it() -> None:
    cover = Cover()
    cover.add(
        {
            "tests": ["a", "b", "c"],
            "seconds": {"a": 1.0, "b": 2.0, "c": 3.0},
            "failed": {"b": "skipped"},
            "lines": {"m.py": {"3": [0, 1], "4": [2]}},
        }
    )
    assert cover.tests_of("m.py", 3, 3) == {"a"}
    assert cover.tests_of("m.py", 1, float("inf")) == {"a", "c"}
    assert cover.seconds == {"a": 1.0, "c": 3.0}
