from typing import Any

import numpy as np
import pytest
import torch

import bsnn
from bsnn import cli
from bsnn.bench import training
from bsnn.bench.child import launches_in
from bsnn.bench.inference import EagerTorch, bench_inference, inference_text
from bsnn.deploy.codec import read
from bsnn.deploy.engine import Engine
from bsnn.errors import UserError
from bsnn.zoo import path


def test_the_rival_computes_the_same_network():
    artifact = read(path("digits"))
    images = bsnn.data.digits("test").samples[:20]
    integers = torch.from_numpy(artifact.input.from_bytes(images)).float()
    outputs, _ = EagerTorch(artifact).run(integers)
    ours = Engine(artifact, threads=1).outputs(images)
    scale = np.abs(ours).max()
    np.testing.assert_allclose(outputs.numpy() / scale, ours / scale, atol=0.05)


def test_every_point_names_what_was_measured():
    result = bench_inference(read(path("digits")), repetitions=2, firing_rates=(), batches=(1, 2), threads=(1,))
    assert [(p["batch"], p["threads"]) for p in result["points"]] == [(1, 1), (2, 1)]
    for point in result["points"]:
        assert {"kernel", "firing_rate", "ours_seconds", "torch_seconds", "ratio"} <= point.keys()
        assert point["same_spikes"] > 0.99
    assert "trained" in inference_text(result)


def test_a_trained_network_is_shown_images() -> None:
    dark, model = np.zeros((1, 1, 8, 8), np.uint8), read(path("digits"))
    settings = dict(repetitions=2, firing_rates=(), batches=(3,), threads=(1,))
    rates = [bench_inference(model, x, **settings)["points"][0]["firing_rate"] for x in (None, dark)]  # pyright: ignore
    assert rates[0] != rates[1]
    with pytest.raises(UserError, match="expected still ones"):
        bench_inference(model, np.zeros((3, 2, 1, 8, 8), np.uint8), **settings)  # pyright: ignore


def test_images_that_do_not_fit_are_refused_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bsnn.bench.inference.random_vgg11", lambda rate: pytest.fail("a network was made first"))
    with pytest.raises(UserError, match=r"received shape \(1, 3, 32, 32\)"):
        bench_inference(read(path("digits")), np.zeros((1, 3, 32, 32), np.uint8))


def test_each_bench_says_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    for what, words in (("memory", "the peak memory of training"), ("training", "the time of training per time step")):
        with pytest.raises(SystemExit):
            cli.main(["bench", what, "--help"])
        assert f"Measure {words}" in " ".join(capsys.readouterr().out.split())


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("bsnn.bench.training.in_a_process", lambda *_: pytest.fail("something was measured"))
    for device, words in (("cuda", "torch finds 0 CUDA devices here"), ("tpu", "expected cpu or cuda")):
        assert cli.main(["bench", "training", "--device", device]) == 2
        assert words in capsys.readouterr().err


def test_a_result_from_a_gpu_says_what_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the processes return there, made up."""
    seconds = {"tbso": 0.002, "spikingjelly-ottt": 0.008}

    def in_a_process(spec: dict[str, Any], peers: str | None) -> dict[str, Any]:
        assert spec["device"] == "cuda"
        found = {"peak_bytes": 10**9, "program_bytes": 0, "step_seconds": seconds[spec["method"]]}
        return {**found, "step_launches": 116.0, "gpu": "a GPU", "torch": "2.13.0"}

    monkeypatch.setattr(training, "in_a_process", in_a_process)
    monkeypatch.setattr(training, "device_named", lambda name: None)
    result = training.bench(list(seconds), [128], [4], device="cuda", peers="python", width=0.02, repetitions=2)
    assert result["device"] == "cuda"
    assert [(p["gpu"], p["step_launches"]) for p in result["points"]] == [("a GPU", 116.0)] * 2
    assert "predicted" not in result["points"][0]
    ratio = next(r for r in result["ratios"] if r["of"] == "step_seconds" and r["method"] == "tbso")
    assert ratio["ratio"] == 0.25
    assert "2.00           116" in training.describe(result)


def test_launches_are_those_of_runtime_and_driver() -> None:
    events = [("cudaLaunchKernel", 3), ("cuLaunchKernelEx", 4), ("cudaMemcpyAsync", 5), ("aten::add", 6)]
    assert launches_in(events) == 7
