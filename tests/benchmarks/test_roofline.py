"""`benchmarks/gpu_roofline.py`: bytes and operations of launches, counted as one would by hand."""

import json
import sys
from pathlib import Path

import pytest
import torch

import bsnn

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import gpu_roofline  # pyright: ignore[reportMissingImports]
from gpu_counting import OneLaunch  # pyright: ignore[reportMissingImports]

IMAGES, FILTERS, MAPS = 4 * 2 * 5 * 6 * 6, 4 * 7 * 5 * 3 * 3, 4 * 2 * 7 * 6 * 6  # bytes
PRODUCTS = 2 * (2 * 7 * 6 * 6) * (5 * 3 * 3)


def meta(*shape: int, **settings) -> torch.Tensor:
    return torch.empty(*shape, device="meta", **settings)


def counted(work) -> list:
    with gpu_roofline.Traffic() as traffic:
        work()
    return sorted([*launch, number] for launch, number in traffic.found.items())


def test_a_convolution_and_each_of_its_gradients_is_a_launch() -> None:
    x, weight = meta(2, 5, 6, 6, requires_grad=True), meta(7, 5, 3, 3, requires_grad=True)
    made = []
    forward = counted(lambda: made.append(torch.nn.functional.conv2d(x, weight, padding=1)))
    assert forward == [["convolution", "forward", IMAGES + FILTERS + MAPS, PRODUCTS, 1]]
    backward = counted(lambda: made[0].backward(meta(2, 7, 6, 6)))
    assert [row for row in backward if row[0] == "convolution_backward"] == [
        # Gradients in, one factor in, the gradient of the other one out.
        ["convolution_backward", "backward", MAPS + FILTERS + IMAGES, PRODUCTS, 2]
    ]
    first = counted(lambda: torch.nn.functional.conv2d(meta(1, 3, 4, 4), meta(2, 3, 3, 3)))
    assert first[0][1] == "first"


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda: meta(10).add_(meta(10)), 120),  # two reads and a write of 40 bytes
        (lambda: torch.add(meta(10), meta(10), out=meta(10)), 120),
        (lambda: meta(10).copy_(meta(10)), 80),
        (lambda: meta(10) + meta(1).expand(10), 84),
        (lambda: torch._foreach_add_([meta(10), meta(5)], [meta(10), meta(5)]), 180),
        (lambda: torch._foreach_copy_([meta(10)], [meta(10)]), 80),
    ],
)
def test_bytes_are_what_is_read_and_written_once(work, expected: int) -> None:
    ((_, kind, moved, operations, number),) = counted(work)
    assert (kind, moved, operations, number) == ("other", expected, 0, 1)


def test_views_and_what_happens_on_the_cpu_are_no_launches() -> None:
    assert counted(lambda: (meta(4, 4).t().reshape(2, 2, 4), torch.ones(3).add_(1))) == []


def test_a_launch_takes_the_longest_of_its_bytes_its_operations_and_its_start() -> None:
    gpu = {"bandwidth": 1e9, "fp32": 1e9, "tf32": 1e10, "bf16": 1e11}
    step = [
        ["add", "other", 1_000_000, 0, 2],  # 1 ms each
        ["convolution", "forward", 1_000, 20_000_000, 1],  # 20 ms in fp32, 2 ms in TF32
        ["convolution_backward", "backward", 1_000, 20_000_000, 1],
        ["ne", "other", 1, 0, 3],
    ]
    start = 3 * gpu_roofline.LAUNCH
    ours, theirs = (gpu_roofline.predicted(step, gpu, "fp32", own) for own in (True, False))
    assert ours["seconds"] == pytest.approx(0.002 + 0.002 + 0.020 + start)
    assert theirs["seconds"] == pytest.approx(0.002 + 0.020 + 0.020 + start)
    assert ours["seconds_bound_by"] == pytest.approx({"bytes": 0.002, "operations": 0.022, "launches": start})
    assert ours["seconds_with_slow_host"] == pytest.approx(0.024 + 3 * gpu_roofline.SLOW_LAUNCH)


def test_the_step_that_is_predicted_is_the_one_whose_launches_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "SGD", OneLaunch)  # restored after what `counted` does to it
    with bsnn.backend("fused"), bsnn.precision("fp32"):  # which `counted` sets too
        step = gpu_roofline.counted("tbso", "fused", "fp32", 128)
    points = json.loads(gpu_roofline.RESULTS.with_name("gpu_launches.json").read_text())["points"]
    counted = {(p["network"], p["backend"], p["mode"]): p["launches"] for p in points}
    assert sum(row[-1] for row in step) == counted["vgg11", "fused", "training"]
    (predicted,) = (p for p in json.loads(gpu_roofline.RESULTS.read_text())["points"] if p["way"] == "bsnn, torch path")
    assert sum(row[2] * row[-1] for row in step) == predicted["bytes"]


def test_only_the_second_layer_has_currents_that_half_precision_holds() -> None:
    found = gpu_roofline.narrower(1)
    assert [layer.get("in_fp16") for layer in found["layers"]] == [None, True, *[False] * 6]
    assert all(layer["in_int16"] for layer in found["layers"][1:])
