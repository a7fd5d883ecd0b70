"""A first convolution that is computed from the training samples: what it makes of them, and that it stays."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training_runs import TINY, Killed, assert_same_run, last_state, stop_after

import bsnn
from bsnn import cli
from bsnn.nn.binarized import ScaledSignConv2d
from bsnn.train import loop as train, whitening
from bsnn.train.build import load_data
from bsnn.train.load import load_network
from bsnn.train.trainer import Trainer
from bsnn.train.whitening import whiten

WHITENED = replace(TINY, first_layer="whitened", sgd_momentum=0.9, weight_decay=0.01)


def smooth_images(number: int = 64) -> Tensor:
    """Images whose neighboring pixels and channels are alike."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(number, 3, 18, 18, generator=generator)
    return nn.functional.avg_pool2d(noise, 3, 1) + 0.5 * noise[:, :1, 1:-1, 1:-1] + 3


def currents(net: nn.Module, images: Tensor) -> Tensor:
    """What leaves the first convolution, one row per pixel that sees no border."""
    convolution = next(module for module in net.modules() if isinstance(module, nn.Conv2d))
    made = nn.functional.conv2d(images.double(), convolution.weight.double(), stride=convolution.stride)
    return made.transpose(0, 1).flatten(1).T.detach()


@pytest.mark.parametrize("plan", [(54, "down", 108), ("down", 54, 54)])
def test_outputs_are_uncorrelated_and_have_equal_variance(plan: tuple) -> None:
    net, images = bsnn.models.residual(plan), smooth_images()
    whiten(net, images.split(10))
    covariance = currents(net, images).T.cov()
    half = covariance[:27, :27]
    assert torch.allclose(half, half.diagonal().diag(), atol=1e-3)
    regularized = (
        net.stem.weight[:27].flatten(1).double().norm(dim=1).detach() ** -2
    )  # variances plus 0.0005 of their mean
    variances = regularized - 5e-4 / (1 + 5e-4) * regularized.mean()
    torch.testing.assert_close(half.diagonal(), variances / regularized, rtol=1e-3, atol=0)
    torch.testing.assert_close(covariance[27:, :27], -half)  # the other half are the negatives


def test_fewer_filters_are_those_of_the_largest_variances_and_more_are_sums() -> None:
    images, filters = smooth_images(), {}
    for number in (10, 54, 60):
        net = bsnn.models.residual((number, number))
        whiten(net, [images])
        filters[number] = net.stem.weight.detach()
    assert filters[10][:5].equal(filters[54][:5])
    assert filters[60][:27].equal(filters[54][:27])
    for index in range(3):
        total = (filters[54][index] + filters[54][index + 1]) / 2**0.5
        torch.testing.assert_close(filters[60][27 + index], total)
    gray = bsnn.models.residual((162, 162), in_channels=1)
    whiten(gray, [images[:, :1]])
    assert len({tuple(one) for one in gray.stem.weight.flatten(1).tolist()}) == 162
    variances = (filters[54][:27].flatten(1).norm(dim=1) ** -2).tolist()
    assert variances == sorted(variances, reverse=True)


def test_recordings_of_events_count_frame_by_frame() -> None:
    frames = (torch.rand(5, 4, 2, 12, 12) < 0.2).float()
    one, other = (bsnn.models.residual((8, 8), in_channels=2) for _ in range(2))
    whiten(one, [frames])
    whiten(other, [frames.flatten(0, 1)])
    assert one.stem.weight.equal(other.stem.weight)


def test_nothing_of_the_first_layer_changes_in_training() -> None:
    trainer = Trainer(WHITENED, *load_data(WHITENED, None))
    before = {name: p.detach().clone() for name, p in trainer.net.named_parameters() if not p.requires_grad}
    assert [name.rpartition(".")[2] for name in before] == ["weight", "weight", "bias"]
    trainer.train_epoch()
    after = dict(trainer.net.named_parameters())
    assert all(after[name].equal(value) and after[name].grad is None for name, value in before.items())
    assert any(p.grad is not None or p.requires_grad for p in trainer.net.parameters())


def test_a_run_resumes_and_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train.train(WHITENED, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, 10)
        with pytest.raises(Killed):
            train.train(WHITENED, tmp_path / "stopped")
    train.train(WHITENED, tmp_path / "stopped", resume=True)
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
    net = load_network(tmp_path / "whole").net
    saved = last_state(tmp_path / "whole")["net"]
    assert not next(net.parameters()).requires_grad
    assert all(saved[name].equal(value) for name, value in net.state_dict().items() if "conv1" in name)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (bsnn.models.residual((15, 15)), "Conv2d of 15 filters, 27 weights each; expected an even number"),
        (bsnn.models.residual((1460, 1460)), "at most 1458"),
        (bsnn.Sequential(bsnn.LIF(), bsnn.BinaryConv2d(3, 8, 3)), "begins with LIF and BinaryConv2d; expected torch's"),
        (bsnn.Sequential(nn.Conv2d(3, 8, 3)), "begins with Conv2d and NoneType"),
        (bsnn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.BatchNorm2d(6)), "begins with Conv2d of 3 groups"),
        (bsnn.Sequential(ScaledSignConv2d(3, 6, 3), nn.BatchNorm2d(6)), "begins with ScaledSignConv2d"),
    ],
)
def test_what_cannot_be_whitened_is_refused(net: nn.Module, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        whiten(net, [smooth_images()])


@pytest.mark.parametrize("samples", [[torch.full((4, 3, 8, 8), value)] for value in (0.0, 1 / 3, torch.nan)] + [[]])
def test_samples_that_tell_nothing_are_refused(samples: list[Tensor]) -> None:
    with pytest.raises(bsnn.UserError, match="without any difference between pixels"):
        whiten(bsnn.models.residual((8, 8)), samples)


def test_samples_smaller_than_a_filter_are_refused() -> None:
    with pytest.raises(bsnn.UserError, match="samples of 2 × 9 pixels; expected at least the 3 × 3 of a filter"):
        whiten(bsnn.models.residual((8, 8)), [torch.randn(4, 3, 2, 9)])


def test_a_few_images_at_a_time_give_the_same_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = bsnn.models.residual((8, 8)), bsnn.models.residual((8, 8))
    whiten(one, [smooth_images()])
    monkeypatch.setattr(whitening, "_CHUNK", 1)
    whiten(other, [smooth_images()])
    torch.testing.assert_close(one.stem.weight, other.stem.weight)


def test_the_filters_of_another_run_are_taken_over_and_fixed(finished: Path) -> None:
    config = replace(WHITENED, init_from=str(finished))
    source = last_state(finished)
    trainer = Trainer(config, *load_data(config, None), source=source)
    name, weight = next(iter(trainer.net.named_parameters()))
    assert weight.equal(source["net"][name])
    assert not weight.requires_grad


def test_a_network_that_cannot_be_whitened_is_refused_before_training(tmp_path: Path, capsys) -> None:
    options = ["--plan", "5,5", "--first-layer", "whitened", "--out", str(tmp_path / "run")]
    assert cli.main(["train", "digits", *options]) == 2
    assert "Conv2d of 5 filters, 9 weights each" in capsys.readouterr().err
