"""A network, optimizers, a loss, a neuron and a gradient rule of the user's own in a whole run."""

import copy
import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_runs import TINY, Killed, assert_equal, assert_same_run, last_state, metrics, run_command, stop_after

import bsnn
from bsnn import UserError, cli
from bsnn.train import evaluate_run, load_network, train
from bsnn.train.own import name_of

SHORT = dataclasses.replace(TINY, epochs=2, train_samples=96)
OPTIONS = ["--train-samples", "96", "--batch-size", "32", "--epochs", "2"]

MODULE = '''
import copy

import bsnn
from torch import nn


class Half(bsnn.GradientRule):
    """Half of the past."""

    def trace(self, past, spikes, membrane, previous, leak):
        return 0.5 * past + spikes


class Box:
    """A surrogate."""

    def derivative(self, x):
        return (x.abs() < 0.5).to(x.dtype)


class Quick(bsnn.LIF):
    """A neuron that takes no leak."""

    def __init__(self, threshold=1.0, surrogate=None, gradient="ottt"):
        super().__init__(0.25, threshold, surrogate, gradient)


def build(num_classes, in_channels, neuron, width):
    """A network."""
    channels = int(8 * width)
    return bsnn.Sequential(
        nn.Conv2d(in_channels, channels, 3, padding=1), bsnn.BatchNorm2d(channels), copy.deepcopy(neuron),
        bsnn.BinaryConv2d(channels, 8, 3, padding=1), bsnn.BatchNorm2d(8), copy.deepcopy(neuron),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes),
    )


def loss(logits, labels):
    """A loss."""
    return nn.functional.cross_entropy(logits, labels)
'''


def plain(num_classes: int = 10, in_channels: int = 1, gradient: Any = "ottt") -> bsnn.Sequential:
    return bsnn.Sequential(
        *(nn.Conv2d(in_channels, 4, 3, padding=1), bsnn.BatchNorm2d(4), bsnn.LIF(gradient=gradient)),
        *(bsnn.BinaryConv2d(4, 4, 3, padding=1), bsnn.BatchNorm2d(4), bsnn.LIF(gradient=gradient)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes)),
    )


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with a module of the user's own, which is forgotten when the test is over."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_parts.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path / "code")
    yield tmp_path / "code"
    sys.modules.pop("my_parts", None)


def test_parts_named_on_the_command_line(own_folder: Path, tmp_path: Path, monkeypatch, capfd) -> None:
    run = tmp_path / "run"
    named = {"model": "build", "neuron": "Quick", "gradient": "Half", "surrogate": "Box", "loss": "loss"}
    given = [word for field, name in named.items() for word in (f"--{field}", f"my_parts:{name}")]
    command = ["train", "digits", *OPTIONS, *given, "--width", "2", "--out", str(run)]
    assert cli.main(command) == 0
    net = load_network(run).net
    assert [m.leak for m in net.modules() if isinstance(m, bsnn.LIF)] == [0.25, 0.25]
    assert {type(m.gradient).__name__ for m in net.modules() if isinstance(m, bsnn.LIF)} == {"Half"}
    assert net[0].out_channels == 16, "a field of the config that the function names"
    assert (run / "model.bsnn").exists()
    for words in (["evaluate"], ["report"], ["export", "--out", str(tmp_path / "again.bsnn")]):
        assert cli.main([words[0], str(run), *words[1:]]) == 0
    assert (tmp_path / "again.bsnn").read_bytes() == (run / "model.bsnn").read_bytes()
    assert cli.main([*command, "--resume"]) == 0
    assert "was finished already" in capfd.readouterr().out

    # From another folder, whose Python does not find the module.
    monkeypatch.chdir(tmp_path)
    del sys.modules["my_parts"]
    for words in (["evaluate"], ["export"]):
        status, message = run_command(capfd, *words, str(run))
        assert status == 2
        assert "model: there is no module my_parts" in message or "neuron: there is no module my_parts" in message
        assert f"In training it was {own_folder / 'my_parts.py'}: try PYTHONPATH={own_folder}." in message
    assert cli.main(["report", str(run)]) == 0, "the report needs only the files of the run"
    assert "no confusion matrix" in (run / "report.html").read_text()
    monkeypatch.syspath_prepend(str(own_folder))
    assert cli.main(["evaluate", str(run)]) == 0
    assert "warning" not in capfd.readouterr().err

    # A network of another file is not taken for that of the run without a word.
    (own_folder / "my_parts.py").write_text(MODULE + "\n# changed\n")
    del sys.modules["my_parts"]
    assert cli.main(["evaluate", str(run)]) == 0
    assert "my_parts.py is not the my_parts that the run was trained with" in capfd.readouterr().err


def test_a_surrogate_and_rules_are_not_needed_to_measure_and_export(own_folder, tmp_path, monkeypatch, capfd) -> None:
    run = tmp_path / "run"
    given = ["--gradient", "my_parts:Half", "--surrogate", "my_parts:Box", "--plan", "4,4"]
    assert cli.main(["train", "digits", *OPTIONS, *given, "--out", str(run)]) == 0
    before = (run / "model.bsnn").read_bytes()
    (own_folder / "my_parts.py").unlink()
    del sys.modules["my_parts"]
    capfd.readouterr()
    assert cli.main(["evaluate", str(run), "--json"]) == 0
    assert f'"test_accuracy": {metrics(run)[-1]["test_accuracy"]}' in capfd.readouterr().out
    assert cli.main(["report", str(run)]) == 0
    assert "no confusion matrix" not in (run / "report.html").read_text()
    assert cli.main(["export", str(run)]) == 0
    assert (run / "model.bsnn").read_bytes() == before
    with pytest.raises(UserError, match="there is no module my_parts"):
        load_network(run)


def test_objects_passed_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    build = functools.partial(plain, in_channels=1)

    def optimizers(net: nn.Module) -> list[Any]:
        binary, real = bsnn.split_parameters(net)
        return [torch.optim.Adam(real, lr=1e-2), bsnn.optim.BSO(binary[:1], gamma=1e-6)]

    own: dict[str, Any] = {"model": build, "optimizer": optimizers, "loss": F.cross_entropy}
    run = str(tmp_path / "run")  # a string will do
    done = train(SHORT, run, **own)
    config = last_state(tmp_path / "run")["config"]
    assert (config["model"], config["loss"]) == ("<partial>", "torch.nn.functional:cross_entropy")
    assert "optimizers>" in config["optimizer"]
    assert len(last_state(tmp_path / "run")["optimizers"]) == 2
    assert metrics(tmp_path / "run")[0]["learning_rate"] == pytest.approx(1e-2 * 0.5, rel=1e-3), "its schedule"

    status, message = run_command(capfd, "evaluate", run)
    assert status == 2
    assert "model: the run was trained in Python with <partial>, an object that no name leads to" in message
    assert cli.main(["report", run]) == 0
    assert "trained in Python with model &lt;partial&gt;, optimizer &lt;" in Path(run, "report.html").read_text()
    assert evaluate_run(run, model=build)["test_accuracy"] == done["test_accuracy"]
    assert load_network(run, model=plain()).metrics["epoch"] == 2
    with pytest.raises(UserError, match="the run holds another network than <partial> builds now"):
        load_network(run, model=plain(num_classes=9))

    stop_after(monkeypatch, 4)
    with pytest.raises(Killed):
        train(SHORT, tmp_path / "killed", checkpoint_minutes=0, **own)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"started with --model <partial> \(now vgg\)"):
        train(SHORT, tmp_path / "killed", resume=True)
    train(SHORT, tmp_path / "killed", resume=True, **own)
    assert_same_run(tmp_path / "run", tmp_path / "killed")


def test_an_object_and_its_name_give_the_same_run(tmp_path: Path) -> None:
    train(SHORT, tmp_path / "named")
    vgg = bsnn.models.vgg
    train(SHORT, tmp_path / "object", model=vgg, optimizer=bsnn.optim.TBSO)
    first, second = (last_state(tmp_path / name) for name in ("named", "object"))
    assert second["config"]["model"] == "bsnn.models.vgg:vgg"
    assert second["config"]["optimizer"] == "bsnn.optim.rules.tbso:TBSO"
    for key in ("net", "optimizers", "schedules", "random"):
        assert_equal(first[key], second[key])
    assert name_of(plain).endswith(":plain")


def test_a_loss_of_ones_own_is_the_mean_over_time(tmp_path: Path) -> None:
    """Cross-entropy as one's own loss is the library's loss without its squared distance."""
    train(dataclasses.replace(SHORT, epochs=1, mse_share=0.0), tmp_path / "library")
    train(dataclasses.replace(SHORT, epochs=1, mse_share=0.0), tmp_path / "own", loss=F.cross_entropy)
    first, second = (metrics(tmp_path / name)[0] for name in ("library", "own"))
    assert first["train_loss"] == pytest.approx(second["train_loss"], rel=1e-5)


class Wide(nn.Module):
    """Forgets to return a state."""

    def forward(self, x: Tensor, state: Any) -> Tensor:
        return x


class Stateless(bsnn.Stateful):
    def __init__(self) -> None:
        super().__init__()
        self.inner = plain()

    def forward(self, x: Tensor, state: Any) -> Any:
        return self.inner(x, None)[0], None


class Alone(Stateless):
    def forward(self, x: Tensor, state: Any) -> Any:
        return self.inner(x, None)[0]


def without_bits() -> nn.Module:
    net = plain()
    net._modules["3"] = nn.Conv2d(4, 4, 3, padding=1)
    return net


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Wide, "is Wide; expected a module that is called as `logits, state = net"),
        (lambda: None, "is NoneType; expected a module"),
        (without_bits, "has no one-bit weights, and the config says weights=binary"),
        (Stateless, "returned no state; expected the state of its neurons"),
        (Alone, "returned Tensor; expected a pair, logits and the new state"),
        (lambda: plain(num_classes=7), r"returned logits of shape \(1, 7\) for one sample; expected \(1, 10\)"),
        (lambda: plain(in_channels=3), r"fails on a frame of the data, of shape \(1, 1, 8, 8\)"),
        (lambda: bsnn.Sequential(nn.Flatten(), bsnn.BinaryLinear(64, 10)), "has no neurons"),
        (lambda: plain(gradient="sltt"), r"gradient rule SLTT \(2\), and the config says gradient=ottt"),
        (lambda: plain(gradient="bptt"), r"gradient rule BPTT \(2\), and the config says gradient=ottt"),
        (lambda depth: plain(), "requires 'depth', which a training run does not have; give it a default"),
        ("vgg", "received 'vgg'; expected a function or a class"),
    ],
)
def test_a_network_that_cannot_be_trained_is_refused(model: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^model: .*{message}"):
        train(SHORT, tmp_path / "run", model=model)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_one_bit_weights_are_refused_where_the_config_has_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has some one-bit weights, and the config says weights=real"):
        train(dataclasses.replace(SHORT, weights="real"), tmp_path / "run", model=plain)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda net: [], r"the function returned \[\]; expected a list of optimizers"),
        (lambda net: [torch.optim.SGD(bsnn.split_parameters(net)[1], lr=1.0)], "0 of the optimizers hold 3.weight"),
        (
            lambda net: [bsnn.optim.BSO(bsnn.split_parameters(net)[0]) for _ in range(2)],
            "0 of the optimizers hold 0.weight; expected one",
        ),
        (dict, "expected a subclass of bsnn.optim.FlipOptimizer"),
    ],
)
def test_optimizers_that_leave_a_parameter_out_are_refused(optimizer: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^optimizer: .*{message}"):
        train(SHORT, tmp_path / "run", model=plain, optimizer=optimizer)


@pytest.mark.parametrize("loss", [lambda x, y: 1.0, lambda x, y: x.sum(1), lambda x, y: x.detach().sum()])
def test_a_loss_that_is_no_number_with_a_gradient_is_refused(loss: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^loss: <.*lambda>> returned .*expected one number with a gradient"):
        train(SHORT, tmp_path / "run", loss=loss)


def test_two_flip_optimizers_count_their_flips_by_parameter(tmp_path: Path) -> None:
    def build() -> nn.Module:
        layer = [bsnn.BinaryConv2d(4, 4, 3, padding=1), bsnn.BatchNorm2d(4), bsnn.LIF()]
        net = list(plain())
        return bsnn.Sequential(*net[:6], *copy.deepcopy(layer), *net[6:])

    def optimizers(net: nn.Module) -> list[Any]:
        (first, second), real = bsnn.split_parameters(net)
        still = bsnn.optim.BSO([second], gamma=1e9)
        return [still, torch.optim.SGD(real, lr=0.1), bsnn.optim.BSO([first], gamma=0.0)]

    train(dataclasses.replace(SHORT, epochs=1), tmp_path / "run", model=build, optimizer=optimizers)
    ratios = metrics(tmp_path / "run")[0]["flip_ratios"]
    assert ratios["6.weight"] == 0
    assert 0 < ratios["3.weight"] < 1


PARTS = '''
import bsnn

nothing = None


class Fixed(bsnn.LIF):
    """A neuron with constants of its own."""

    def __init__(self):
        super().__init__(leak=0.9)


class Handed(bsnn.LIF):
    """A neuron that hands its settings on."""

    def __init__(self, **settings):
        super().__init__(**settings)


def build(num_classes):
    """A network that takes next to nothing."""
    return bsnn.models.vgg((4, 4), num_classes=num_classes, in_channels=1)


def general(**settings):
    """A network that takes what every network of the library does."""
    return bsnn.models.vgg((4, 4), **settings)


def three(logits, labels, weights):
    """No loss."""
'''


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "little:nothing"], "model: little:nothing is None; expected a function or a class"),
        (["--loss", "little:nothing"], "loss: little:nothing is None; expected a function or a class"),
        (["--loss", "little:three"], "loss: little:three fails on the logits and labels of two samples"),
        (["--neuron", "little:Fixed", "--leak", "0.3"], "--leak: little:Fixed takes no argument leak, so it would do"),
        (["--neuron", "little:Fixed", "--surrogate", "triangle"], "--surrogate: little:Fixed takes no argument surrog"),
        (["--neuron", "little:Fixed", "--gradient", "sltt"], "Let your neuron's constructor take `gradient`"),
        (["--model", "little:build", "--width", "0.5"], "--width: little:build takes no argument config or width"),
        (["--model", "little:build", "--plan", "4,8"], "--plan: little:build takes no argument config or plan"),
        (["--model", "little:build", "--leak", "0.3"], "--leak: little:build takes no argument config or leak or neur"),
        (["--model", "little:build", "--neuron", "if"], "--neuron: little:build takes no argument config or neuron"),
    ],
)
def test_what_a_part_of_the_users_own_does_not_take_is_refused(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    (tmp_path / "little.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "little", raising=False)
    status, said = run_command(capfd, "train", "digits", *OPTIONS, *options, "--out", "run")
    assert (status, message in said) == (2, True), said


def test_keyword_arguments_are_given_what_the_library_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    (tmp_path / "little.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "little", raising=False)
    own = ["--model", "little:general", "--neuron", "little:Handed", "--leak", "0.25", "--width", "2"]
    status, said = run_command(capfd, "train", "digits", *OPTIONS, *own, "--epochs", "1", "--out", "run")
    assert status == 0, said
    net = load_network(tmp_path / "run").net
    assert {module.leak for module in net.modules() if isinstance(module, bsnn.LIF)} == {0.25}
    assert net.get_parameter("conv2.weight").shape[:2] == (8, 8)


def test_a_network_may_end_in_neurons(tmp_path: Path) -> None:
    def build() -> bsnn.Sequential:
        return bsnn.Sequential(nn.Flatten(), bsnn.BinaryLinear(64, 10), bsnn.BatchNorm1d(10), bsnn.LIF())

    done = train(dataclasses.replace(SHORT, epochs=1), tmp_path / "run", model=build)
    assert 0 <= done["test_accuracy"] <= 1
    assert evaluate_run(tmp_path / "run", model=build)["test_accuracy"] == done["test_accuracy"]
