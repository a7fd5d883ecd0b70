"""Schedules: their factors, and how they anneal settings and resume."""

import copy
import operator
import pickle

import pytest
import torch
from flip_cases import parameter
from torch import nn
from torch.optim import lr_scheduler, swa_utils

import bsnn
from bsnn.optim import BSO, TBSO, Schedule, constant, cosine, inverse_sqrt, step_decay, warmup
from bsnn.optim.settings import Settings


def test_factors() -> None:
    assert [constant()(k) for k in (0, 9)] == [1.0, 1.0]
    assert [step_decay(50)(k) for k in (0, 49, 50, 100)] == pytest.approx([1, 1, 0.1, 0.01])
    assert [cosine(10)(k) for k in (0, 5, 10, 11)] == pytest.approx([1, 0.5, 0, 0])
    assert [inverse_sqrt()(k) for k in (0, 3, 99)] == pytest.approx([1, 0.5, 0.1])


def test_warm_up_rises_in_equal_steps_to_the_schedule() -> None:
    factor = warmup(3, cosine(8))
    assert [factor(k) / cosine(8)(k) for k in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    assert warmup(1, constant())(0) == 0.5, "a single count is below the factor, too"


def test_schedule_anneals_both_and_resumes() -> None:
    weight = parameter(1, -1)
    flip = BSO([{"params": [weight], "gamma": 0.2}], beta=0.9)
    schedule = Schedule(flip, gamma=step_decay(2), one_minus_beta1=cosine(4))
    for _ in range(2):
        schedule.step()
    assert flip.param_groups[0]["gamma"] == pytest.approx(0.02)
    assert flip.param_groups[0]["one_minus_beta1"] == pytest.approx(0.05)
    fresh = BSO([{"params": [weight], "gamma": 0.2}], beta=0.9)
    resumed = Schedule(fresh, gamma=step_decay(2), one_minus_beta1=cosine(4))
    resumed.load_state_dict(pickle.loads(pickle.dumps(schedule.state_dict())))
    schedule.step()
    resumed.step()
    assert fresh.param_groups[0]["one_minus_beta1"] == flip.param_groups[0]["one_minus_beta1"]
    sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    decay = Schedule(sgd, lr=cosine(2))
    decay.step()
    assert sgd.param_groups[0]["lr"] == pytest.approx(0.05)
    with pytest.raises(bsnn.UserError, match="received 'lr'; expected a setting of BSO, such as gamma"):
        Schedule(flip, lr=cosine(2))
    two_groups = BSO([{"params": [parameter(1)]}, {"params": [parameter(1)]}])
    with pytest.raises(
        bsnn.UserError, match=r"received a schedule of \[\['gamma', 'one_minus_beta1'\]\] by parameter group"
    ):
        Schedule(two_groups).load_state_dict(schedule.state_dict())


SCHEDULERS = {
    "StepLR": lambda flip: lr_scheduler.StepLR(flip, 3),
    "LambdaLR": lambda flip: lr_scheduler.LambdaLR(flip, lambda k: 0.5),
    "CosineAnnealingLR": lambda flip: lr_scheduler.CosineAnnealingLR(flip, 10),
    "resumed": lambda flip: lr_scheduler.CosineAnnealingLR(flip, 10, last_epoch=3),
    "OneCycleLR": lambda flip: lr_scheduler.OneCycleLR(flip, 0.1, total_steps=10, cycle_momentum=False),
    "CyclicLR": lambda flip: lr_scheduler.CyclicLR(flip, 0.1, 0.2, cycle_momentum=False),
    "ReduceLROnPlateau": lambda flip: lr_scheduler.ReduceLROnPlateau(flip),
    "SWALR": lambda flip: swa_utils.SWALR(flip, 0.1),
    "by hand": lambda flip: flip.param_groups[0].__setitem__("lr", 0.1),
}


def _loaded(flip: BSO) -> BSO:
    flip.load_state_dict(flip.state_dict())
    return flip


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize(
    "after", [lambda f: f, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f)), _loaded],
    ids=["new", "deepcopy", "pickle", "load_state_dict"],
)  # fmt: skip
def test_a_scheduler_of_torch_points_to_ours(scheduler, after) -> None:
    flip = after(BSO([parameter(1, -1)]))
    before = flip.state_dict()
    with pytest.raises(bsnn.UserError, match=r"BSO: there is no setting '\w*lr'.*schedule = bsnn\.optim\.Schedule"):
        scheduler(flip)
    assert flip.state_dict() == before
    flip.add_param_group({"params": [parameter(1)]})
    with pytest.raises(bsnn.UserError, match="there is no setting 'lr'"):
        flip.param_groups[1]["lr"]


def test_settings_are_checked_whenever_they_change() -> None:
    (group,) = BSO([parameter(1, -1)]).param_groups
    for change in (
        lambda: group.__setitem__("gama", 1.0),
        lambda: group.setdefault("gama", 1.0),
        lambda: group.update(gama=1.0),
        lambda: operator.ior(group, {"gama": 1.0}),
        lambda: group.update({"gamma": 0.5, "gama": 1.0}),
    ):
        with pytest.raises(
            bsnn.UserError, match="BSO: there is no setting 'gama'; expected one of gamma, one_minus_beta1"
        ):
            change()
    for change in (
        lambda: group.__setitem__("one_minus_beta1", 1.5),
        lambda: group.update(gamma=0.5, one_minus_beta1=1.5),
        lambda: operator.ior(group, {"one_minus_beta1": 1.5}),
    ):
        with pytest.raises(bsnn.UserError, match=r"one_minus_beta1: received 1\.5"):
            change()
    with pytest.raises(bsnn.UserError, match="gamma: received 'x'"):
        group["gamma"] = "x"
    for removal in (lambda: group.pop("gamma"), lambda: group.__delitem__("gamma"), group.popitem, group.clear):
        with pytest.raises(bsnn.UserError, match="BSO: received the request to remove"):
            removal()
    assert group["gamma"] == 5e-7
    group |= {"gamma": 0.25}
    assert (type(group), group["gamma"]) == (Settings, 0.25)
    group.update({"gamma": 0.5})
    assert group.setdefault("gamma", 0.1) == group["gamma"] == 0.5


def test_the_number_of_time_steps_cannot_change() -> None:
    (group,) = TBSO([parameter(1, -1)], time_steps=2).param_groups
    with pytest.raises(bsnn.UserError, match="TBSO: received time_steps=9 for a group; expected 2"):
        group["time_steps"] = 9
    group["time_steps"] = 2
    assert group["time_steps"] == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cosine(0), "cosine: total: received 0"),
        (lambda: cosine(None), "cosine: total: received None"),  # pyright: ignore[reportArgumentType]
        (lambda: step_decay(0), "step_decay: every: received 0"),
        (lambda: step_decay(2, factor=float("nan")), "step_decay: factor: received nan"),
        (lambda: step_decay(2, factor="half"), "step_decay: factor: received 'half'"),  # pyright: ignore[reportArgumentType]
        (lambda: warmup(-1, constant()), "warmup: counts: received -1"),
        (lambda: warmup(3, 0.5), "warmup: after: received 0.5; expected a function"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_factors_of_nonsense_are_refused(make, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        make()


def test_what_cannot_be_annealed_is_refused_by_name_and_changes_nothing() -> None:
    flip = BSO([parameter(1, -1)], gamma=0.2)
    with pytest.raises(bsnn.UserError, match=r"Schedule: gamma: received 0\.5; expected a function of the count"):
        Schedule(flip, gamma=0.5)  # pyright: ignore[reportArgumentType]
    adam = torch.optim.Adam([nn.Parameter(torch.ones(1))])
    with pytest.raises(
        bsnn.UserError, match=r"'betas', which is \(0\.9, 0\.999\); expected a setting that is one number"
    ):
        Schedule(adam, betas=cosine(2))
    for value in (None, float("nan")):
        with pytest.raises(bsnn.UserError, match=f"the function of gamma returned {value} for count 0"):
            Schedule(flip, gamma=lambda k, value=value: value)
    schedule = Schedule(flip, gamma=cosine(4))
    with pytest.raises(bsnn.UserError, match="received nothing; expected count and initial"):
        schedule.load_state_dict({})
    flip.add_param_group({"params": [parameter(1)]})
    with pytest.raises(bsnn.UserError, match="received BSO with 2 parameter groups; expected the 1 that it had"):
        schedule.step()
    assert (schedule.count, flip.param_groups[0]["gamma"]) == (0, 0.2)
