import numpy as np
import pytest
import torch

import bsnn
from bsnn import cli
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
