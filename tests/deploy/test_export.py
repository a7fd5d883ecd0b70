"""From a trained network to a deployed one: what is refused, what is reported, and that it stays the same network."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bsnn
from bsnn.data.dataset import ArrayDataset
from bsnn.data.events import EVENT_SCALE
from bsnn.deploy.codec import read
from bsnn.deploy.comparison import compare
from bsnn.deploy.inspection import inspect, inspect_text
from bsnn.deploy.lowering import Lowered
from bsnn.deploy.schema import Lif, Synapse


def trained(net: nn.Module, x: torch.Tensor) -> nn.Module:
    with bsnn.estimating_statistics(net):
        bsnn.predict(net, x, 2)
    return net.eval()


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            bsnn.Sequential(nn.Linear(4, 4), nn.ReLU(), bsnn.LIF(), bsnn.BinaryLinear(4, 2)),
            r"layer 1 \(ReLU\) has no deployed form",
        ),
        (bsnn.Sequential(nn.Conv2d(1, 2, 1), bsnn.LIF(), nn.Upsample(scale_factor=2)), "Upsample"),
        (bsnn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), bsnn.LIF()), "such padding"),
        (bsnn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), bsnn.LIF()), "such padding"),
        (bsnn.Sequential(nn.Conv2d(1, 2, 1), bsnn.LIF(), nn.AvgPool2d(2, divisor_override=3)), "divisor_override"),
        (bsnn.Sequential(nn.Conv2d(1, 2, 1), bsnn.LIF(), nn.AdaptiveAvgPool2d(3)), "no equal windows"),
        (bsnn.Sequential(nn.Conv2d(1, 2, 1), bsnn.LIF(), nn.Linear(8, 2)), "Flatten before it"),
        (bsnn.Sequential(nn.Conv2d(1, 2, 1), bsnn.LIF(), bsnn.BinaryConv2d(2, 2, 1)), "one number per class"),
        (bsnn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4, track_running_stats=False)), "statistics"),
        (bsnn.Sequential(nn.Flatten(), nn.Linear(64, 4), bsnn.LIF(threshold=1e9)), "threshold"),
    ],
)
def test_what_has_no_deployed_form_is_refused_by_name(net: nn.Module, message: str, tmp_path: Path) -> None:
    shape = (4,) if isinstance(net[0], nn.Linear) else (1, 8, 8)  # pyright: ignore[reportIndexIssue]
    with pytest.raises(bsnn.UserError, match=message):
        bsnn.export(net, tmp_path / "model.bsnn", input_shape=shape)
    assert not list(tmp_path.iterdir())


def test_a_shape_is_needed_whatever_the_network_has_seen(tmp_path: Path) -> None:
    net = bsnn.models.vgg11(width=0.1).eval()
    before = set(vars(net))
    net(torch.zeros(1, 3, 32, 32), None)
    assert set(vars(net)) == before
    with pytest.raises(bsnn.UserError, match="input_shape=\\(3, 32, 32\\)"):
        bsnn.export(net, tmp_path / "model.bsnn")


def test_a_spec_stands_for_the_data(tmp_path: Path) -> None:
    data = bsnn.data.digits("test")
    net = trained(bsnn.models.vgg((4, 4), in_channels=1), torch.randn(8, 1, 8, 8))
    spec = bsnn.data.DataSpec.from_json(json.loads(json.dumps(bsnn.data.DataSpec.of(data).as_json())))
    without = bsnn.export(net, tmp_path / "without.bsnn", spec=spec, time_steps=2)
    compared = bsnn.export(net, tmp_path / "with.bsnn", data=data, time_steps=2, samples=32)
    both = bsnn.export(net, tmp_path / "both.bsnn", spec=spec, data=data, time_steps=2, samples=32)
    assert without.changes is None
    assert both.changes == compared.changes
    assert Path(both.path).read_bytes() == Path(compared.path).read_bytes()
    made = read(without.path)
    assert (made.name, made.classes, made.input) == ("digits", data.classes, read(compared.path).input)
    assert [layer.firing_rate for layer in made.layers if isinstance(layer, Lif)] == [None, None]
    engines = [bsnn.load(exported.path) for exported in (without, compared)]
    assert np.array_equal(*(engine.outputs(data.samples[:8]) for engine in engines))
    shown = inspect_text(inspect(made))
    assert shown.count("not measured") == 2
    assert "not measured" not in inspect_text(inspect(read(compared.path)))


def test_a_spec_of_events_brings_their_time_steps(tmp_path: Path) -> None:
    decode = {"sensor": [34, 34], "presence": True}
    spec = bsnn.data.DataSpec("dvs", "event", ("a", "b"), (5, 2, 8, 8), (0.5, 0.5), (1.0, 1.0), EVENT_SCALE, decode)
    net = bsnn.models.vgg((4,), in_channels=2, num_classes=2).eval()
    made = read(bsnn.export(net, tmp_path / "m.bsnn", spec=spec).path)
    assert (made.time_steps, made.input.kind) == (5, "event")
    assert made.input.decode == {"sensor": (34, 34), "presence": True}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_shape": (3, 8, 8)}, r"input_shape=\(3, 8, 8\), and samples of digits have shape \(1, 8, 8\)"),
        (
            {"spec": bsnn.data.DataSpec("own", "image", ("a",), (1, 9, 9), (0.0,), (1.0,), 1.0)},
            "samples of what the network was",
        ),
        ({"samples": 0}, "samples: received 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(settings: dict, message: str, tmp_path: Path) -> None:
    net = bsnn.models.vgg((4,), in_channels=1)
    with pytest.raises(bsnn.UserError, match=message):
        bsnn.export(net, tmp_path / "m.bsnn", data=bsnn.data.digits("test"), **settings)
    assert not list(tmp_path.iterdir())


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    net = bsnn.models.vgg((4, 4), in_channels=1)
    net.classifier.bias.data[0] = torch.nan  # pyright: ignore
    with pytest.raises(bsnn.UserError, match=r"classifier\.bias holds NaN"):
        bsnn.export(net, tmp_path / "model.bsnn", input_shape=(1, 8, 8))


def test_class_names_must_fit(tmp_path: Path) -> None:
    with pytest.raises(bsnn.UserError, match="2 class names; the network has 10"):
        bsnn.export(bsnn.models.vgg((4,)), tmp_path / "m.bsnn", input_shape=(3, 8, 8), classes=["a", "b"])


def test_an_export_says_what_it_changed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = bsnn.data.digits("test")
    net = bsnn.models.vgg((8, 16, "pool", 16), in_channels=1)
    trained(net, torch.randn(32, 1, 8, 8))
    exported = bsnn.export(net, tmp_path / "model.bsnn", data=data, time_steps=2, samples=64)
    changes = exported.changes
    assert changes is not None
    assert changes.samples == 64
    assert set(changes.spikes) == {"lif1", "lif2", "lif3"}
    assert max(changes.spikes.values()) < 0.02
    assert all(0 <= rate <= 1 for rate in changes.firing_rates.values())
    made = read(exported.path)
    assert [layer.firing_rate for layer in made.layers if isinstance(layer, Lif)] == list(changes.firing_rates.values())
    assert (made.classes, made.name) == (data.classes, "digits")
    assert exported.bytes == Path(exported.path).stat().st_size
    spread = np.argsort(data.labels, kind="stable")[np.arange(64) * len(data) // 64]
    found = bsnn.load(exported.path).predict(data.samples[spread])
    assert changes.accuracy_after == pytest.approx((found == data.labels[spread]).mean(), abs=1 / 64)


def test_samples_of_any_data_set_are_compared(tmp_path: Path) -> None:
    class Own:
        """Sorted by class, read one by one, as a user's own data set may be."""

        name, kind, classes, shape = "own", "image", ("dark", "bright"), (1, 8, 8)
        mean, std, scale = (0.5,), (0.25,), 255.0
        labels = np.arange(100) // 50

        def __init__(self) -> None:
            self.read_so_far: list[int] = []

        def __len__(self) -> int:
            return 100

        def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
            self.read_so_far.append(index)
            return np.full((1, 8, 8), 200 * self.labels[index], np.uint8)

    data = Own()
    net = bsnn.models.vgg((4,), in_channels=1, num_classes=2).eval()
    changes = bsnn.export(net, tmp_path / "m.bsnn", data=data, samples=5).changes
    assert changes is not None
    assert changes.samples == 5
    assert data.read_so_far == [0, 20, 40, 60, 80]


def test_a_channel_that_never_varied_stays_as_it_is(tmp_path: Path) -> None:
    net = bsnn.Sequential(
        nn.Linear(3, 40), bsnn.LIF(), bsnn.BinaryLinear(40, 8), bsnn.BatchNorm1d(8), bsnn.LIF(), nn.Linear(8, 2)
    )
    with torch.no_grad():
        net[0].weight.zero_()  # pyright: ignore
        net[0].bias.fill_(2.0)  # pyright: ignore
        norm = net[3]
        norm.running_mean.copy_(bsnn.signs(net[2].weight).sum(1))  # pyright: ignore
        norm.running_var.zero_()  # pyright: ignore
        norm.bias.copy_(torch.tensor([0.1, 1.5] * 4))  # pyright: ignore
    net.eval()
    exported = bsnn.export(net, tmp_path / "m.bsnn", input_shape=(3,), time_steps=4)
    record: dict[str, np.ndarray] = {}
    bsnn.load(exported.path).outputs(np.zeros((1, 3), np.float32), record)
    assert record["4"][:, 0, :, 0, 0].mean(0).tolist() == [0.0, 1.0] * 4


@pytest.mark.parametrize(
    "body",
    [
        lambda: (nn.Flatten(), bsnn.LIF(), bsnn.BinaryLinear(64, 3)),
        lambda: (
            nn.Conv2d(1, 1, 1),
            bsnn.LIF(),
            nn.Flatten(),
            bsnn.Residual(nn.Identity(), nn.Identity()),
            bsnn.BinaryLinear(64, 3),
        ),
        lambda: (bsnn.Concat(nn.AvgPool2d(2), nn.MaxPool2d(2)), nn.Flatten(), nn.Linear(32, 3)),
        lambda: (
            nn.Conv2d(1, 1, 1),
            bsnn.LIF(),
            bsnn.Concat(nn.AvgPool2d(2), nn.AvgPool2d((4, 2), 2, (1, 0))),
            nn.Flatten(),
            nn.Linear(32, 3),
        ),
        lambda: (nn.Conv2d(1, 1, 1), bsnn.LIF(), nn.AvgPool2d(2, 2, 1, False, False), nn.Flatten(), nn.Linear(25, 3)),
        lambda: (nn.Conv2d(1, 2, 1), bsnn.BinaryConv2d(2, 2, 3), nn.Flatten(), nn.Linear(72, 3)),
    ],
)
def test_flattening_may_stand_anywhere_before_a_linear_layer(
    body: Callable[[], tuple[nn.Module, ...]], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net, x = bsnn.Sequential(*body()).eval(), torch.randn(4, 1, 8, 8)
    exported = bsnn.export(net, tmp_path / "m.bsnn", input_shape=(1, 8, 8), time_steps=2)
    engine = bsnn.load(exported.path)
    real = bsnn.predict(net, x, 2).detach().numpy()
    np.testing.assert_allclose(
        engine.outputs(x.numpy()) * engine.artifact.output_scale, real, atol=0.05 * abs(real).max()
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time_steps": 0}, "time_steps"),
        ({"classes": [str(i) for i in range(9)] + ["\ud800"]}, "not a text"),
        ({"input_shape": (0, 8, 8)}, "that of one sample"),
        ({"input_shape": (1, 8, 8, 1)}, "that of one sample"),
    ],
)
def test_what_a_reader_would_refuse_is_not_written(settings: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        bsnn.export(bsnn.models.vgg((4,), in_channels=1), tmp_path / "m.bsnn", **{"input_shape": (1, 8, 8), **settings})
    assert not list(tmp_path.iterdir())


def test_bytes_need_a_known_normalization(tmp_path: Path) -> None:
    exported = bsnn.export(bsnn.models.vgg((4,), in_channels=1), tmp_path / "m.bsnn", input_shape=(1, 8, 8))
    with pytest.raises(bsnn.UserError, match="how to normalize"):
        bsnn.load(exported.path).predict(np.zeros((1, 1, 8, 8), np.uint8))


def test_the_same_network_gives_the_same_file(tmp_path: Path) -> None:
    net = trained(bsnn.models.vgg((4, 4), in_channels=1), torch.randn(8, 1, 8, 8))
    files = [bsnn.export(net, tmp_path / name, input_shape=(1, 8, 8)).path for name in ("a.bsnn", "b.bsnn")]
    assert Path(files[0]).read_bytes() == Path(files[1]).read_bytes()


def test_a_network_in_training_mode_is_exported_as_in_evaluation(tmp_path: Path) -> None:
    net = trained(bsnn.models.vgg((4, 4), in_channels=1), torch.randn(8, 1, 8, 8)).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    bsnn.export(net, tmp_path / "m.bsnn", data=bsnn.data.digits("test"), time_steps=2, samples=32)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_weights_are_one_bit_in_the_file(tmp_path: Path) -> None:
    exported = bsnn.export(bsnn.models.vgg11(), tmp_path / "m.bsnn", input_shape=(3, 32, 32))
    assert exported.bytes < 1_210_000
    assert read(exported.path).weight_bytes < exported.bytes
    binary = [x for x in read(exported.path).layers if isinstance(x, Synapse) and x.weights == "bits"]
    assert sum(layer.weight.nbytes for layer in binary) == 9_216_000 // 8


def test_events_have_frames_of_their_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = rng.integers(0, 40, (8, 3, 2, 8, 8)).astype(np.uint8)
    labels = np.arange(8) % 2
    data = ArrayDataset("own", "event", ("a", "b"), labels, samples, (0.5, 0.5), (1.0, 1.0), EVENT_SCALE)
    net = bsnn.models.vgg((4, 4), in_channels=2, num_classes=2)
    exported = bsnn.export(net.eval(), tmp_path / "m.bsnn", data=data, samples=8)
    engine = bsnn.load(exported.path)
    assert engine.time_steps == 3
    assert engine.artifact.input.kind == "event"
    assert engine.predict(np.swapaxes(samples, 0, 1)).shape == (8,)


def test_currents_without_a_norm_are_not_cut(tmp_path: Path) -> None:
    net = bsnn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with torch.no_grad():
        net[0].weight.fill_(30.0)  # pyright: ignore
        net[1].weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.5]]))  # pyright: ignore
    x = torch.tensor([[1.0, 1.0, 1.0], [-2.0, -1.0, -2.0]])
    exported = bsnn.export(net.eval(), tmp_path / "m.bsnn", input_shape=(3,), time_steps=1)
    found = bsnn.load(exported.path).outputs(x.numpy()) * exported.module.artifact.output_scale
    np.testing.assert_allclose(found, bsnn.predict(net, x, 1).numpy(), rtol=1e-3)


def test_currents_beyond_16_bits_are_reported(tmp_path: Path) -> None:
    data = bsnn.data.digits("test")
    net = bsnn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))
    trained(net, torch.randn(64, 1, 8, 8))
    shares = []
    for factor in (1.0, 1e-4):
        net[2].running_var.mul_(factor)  # pyright: ignore
        changes = bsnn.export(net, tmp_path / "m.bsnn", data=data, time_steps=1, samples=32).changes
        assert changes is not None
        shares.append(changes.currents_cut["3"])
    assert shares[0] == 0 < shares[1]


def test_neurons_that_are_used_twice_are_compared_in_both_places(tmp_path: Path) -> None:
    torch.manual_seed(0)
    lif = bsnn.LIF()
    net = bsnn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), lif, bsnn.BinaryLinear(12, 12), lif, nn.Linear(12, 10)
    ).eval()
    data = bsnn.data.digits("test")
    changes = bsnn.export(net, tmp_path / "m.bsnn", data=data, time_steps=2, samples=64).changes
    assert changes is not None
    assert set(changes.spikes) == {"2", "4"}
    assert max(changes.spikes.values()) < 0.02
    made = read(tmp_path / "m.bsnn")
    other = [replace(layer, threshold=1) if isinstance(layer, Lif) else layer for layer in made.layers]
    wrong = Lowered(replace(made, layers=tuple(other)), {"2": lif, "4": lif})
    assert min(compare(net, wrong, data, 64).spikes.values()) > 0.1


def test_the_integers_of_a_small_network_by_hand(tmp_path: Path) -> None:
    net = bsnn.Sequential(
        nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), bsnn.LIF(leak=0.7, threshold=0.6), nn.AvgPool2d((1, 2)),
        bsnn.BinaryConv2d(2, 3, (2, 1)), bsnn.BatchNorm2d(3), bsnn.LIF(), nn.Flatten(), nn.Linear(6, 2),
    )  # fmt: skip
    with torch.no_grad():
        for norm, mean, var, gamma, beta in ((net[1], 0.5, 4.0, 3.0, 0.1), (net[5], -1.0, 2.25, 0.6, -0.3)):
            norm.eps = 0.0  # pyright: ignore
            for name, value in (("running_mean", mean), ("running_var", var), ("weight", gamma), ("bias", beta)):
                getattr(norm, name).fill_(value)
        net[0].weight.copy_(torch.tensor([0.5, -0.25]).view(2, 1, 1, 1))  # pyright: ignore
        net[0].bias.copy_(torch.tensor([0.2, -0.4]))  # pyright: ignore
    made = read(bsnn.export(net, tmp_path / "m.bsnn", input_shape=(1, 2, 4)).path)
    one = 2**20
    assert made.fraction_bits == 20
    lifs = [layer for layer in made.layers if isinstance(layer, Lif)]
    assert [(x.leak, x.threshold) for x in lifs] == [(round(0.7 * 2**16), round(0.6 * one)), (2**15, one)]
    first, second, _ = (layer for layer in made.layers if isinstance(layer, Synapse))
    # Slope 3 / √4 = 1.5, shift 0.1 − 0.5 · 1.5 = −0.65.
    assert first.offset.tolist() == [round((0.2 * 1.5 - 0.65) * one), round((-0.4 * 1.5 - 0.65) * one)]
    slopes = first.weight[0] * (first.multiplier / 2.0**first.shift) * 2.0**made.input.fraction_bits / one
    np.testing.assert_allclose(slopes, [0.5 * 1.5, -0.25 * 1.5], rtol=2**-14)
    # Slope 0.6 / √2.25 = 0.4, half of it for a sum over two; shift −0.3 + 0.4.
    assert (second.multiplier.tolist(), second.offset.tolist()) == ([round(0.2 * one)] * 3, [round(0.1 * one)] * 3)
    signs = bsnn.signs(net[4].weight).view(3, 2, 2).permute(2, 1, 0).reshape(4, 3)  # pyright: ignore
    assert second.signs().tolist() == signs.int().tolist()
