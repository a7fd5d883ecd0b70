"""The network of a recipe before it is trained: what it will take on a device, and which one fits a budget."""

import dataclasses
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bsnn.cli._runs import lowered
from bsnn.data.spec import DataSpec
from bsnn.deploy.budget import Budget
from bsnn.deploy.footprint import Device, on_device
from bsnn.errors import UserError
from bsnn.train.build import load_spec, network_for
from bsnn.train.config import Config, why_unused
from bsnn.train.devices import DEVICES, NETWORKS
from bsnn.train.display import report
from bsnn.train.fields import written
from bsnn.train.selection import has_threshold


class Fitted(NamedTuple):
    """A config and its network on the device, which fits a budget if `fitted` returned it.

    Training changes no shape and no byte of code, so a trained network takes the same bytes.
    """

    config: Config
    device: Device


def fitted(
    name: str, config: Config, given: Collection[str], budget: Budget, data: str | None, run: Path | None = None
) -> Fitted:
    """The network of a recipe, if it fits a budget; of a recipe for devices, the first of its networks that fits.

    Args:
        name: The recipe.
        config: Its config, with the fields that were given.
        given: Their names; they hold for all networks.
        budget: What the device has.
        data: Folder of the data, whose classes and shape the network needs.
        run: The run that the config is of, if it goes on: it has its network already, and nothing is picked.

    Raises:
        UserError: If no network fits, or has a deployed form.
    """
    spec = load_spec(config, data)
    if name in DEVICES and run is None:
        if spec.kind == "event" and "image_size" not in given:
            spec = load_spec(dataclasses.replace(config, image_size=0), data)  # what networks without a size take
        return _told(_picked(name, config, given, budget, spec), budget)
    found = Fitted(config, _device(config, spec))
    excess = budget.excess(found.device)
    if excess and run:
        raise UserError(
            f"{run}: the network of the run there does not fit: {'; '.join(excess)}. Leave --ram and --flash out to go "
            "on with it, or start another run."
        )
    if excess:
        raise UserError(f"{name}: {'; '.join(excess)}. {_advice(found, spec, budget)}")
    return _told(found, budget)


def _told(found: Fitted, budget: Budget) -> Fitted:
    """Says if the device will have no front end for events, so that its bytes are not in the figures."""
    if note := budget.not_counted(found.device):
        report(note)
    return found


def _picked(name: str, config: Config, given: Collection[str], budget: Budget, spec: DataSpec) -> Fitted:
    if budget.ram_bytes is None and budget.flash_bytes is None:
        raise UserError(
            f"--ram: received none; {name} picks its network by what the device has. Give --ram and --flash, such as "
            "--ram 64k --flash 256k."
        )
    found = None
    for network in NETWORKS[spec.kind]:
        if "plan" in given and "model" in network:
            continue  # a plan that is given is one of vgg
        fields = {field: value for field, value in network.items() if field not in given}
        tried = dataclasses.replace(config, **fields)
        found = Fitted(tried, _device(tried, _spec_of(spec, tried)))
        if not budget.excess(found.device):
            own = f" (the data's own, {' × '.join(map(str, spec.shape[-2:]))})"
            words = ", ".join(
                f"{field}={written(value)}" + own * (field == "image_size" and value == 0)
                for field, value in fields.items()
            )
            report(f"picked {words or 'nothing, as all was given'}")
            return found
    assert found is not None, "there are networks for each kind of data"
    excess, advice = budget.excess(found.device), _advice(found, _spec_of(spec, found.config), budget)
    raise UserError(f"{name}: the smallest network does not fit: {'; '.join(excess)}. {advice}")


def _device(config: Config, spec: DataSpec) -> Device:
    """What a config's network takes, with weights that have learned nothing and any threshold."""
    with torch.random.fork_rng(devices=[]):
        artifact = lowered(network_for(config, spec), spec, config.time_steps).artifact
    return on_device(artifact.rejecting(0.0) if has_threshold(config, spec.kind) else artifact)


def _advice(found: Fitted, spec: DataSpec, budget: Budget) -> str:
    """What to do about a network that does not fit."""
    if ways := " or ".join(_smaller(found.config, spec, budget)):
        return f"It would fit with {ways}."
    # Flash does not depend on the time steps, and of a stream's RAM hardly anything does.
    by_time = not budget.stream and budget._replace(flash_bytes=None).excess(found.device)
    return f"Change {'--plan, --width and --time-steps' if by_time else '--plan and --width'} together."


def _smaller(config: Config, spec: DataSpec, budget: Budget) -> Iterator[str]:
    """Options that make a network fit, each by itself."""
    tried: dict[str, list[Any]] = {
        "time_steps": [steps for steps in (8, 6, 4, 3, 2, 1) if steps < config.time_steps],
        "width": [round(share * config.width, 4) for share in (0.75, 0.5, 0.375, 0.25, 0.125)],
        "image_size": [side for side in (32, 24, 16) if side < min(spec.shape[-2:])],
    }
    for field, values in tried.items():
        for changed in (dataclasses.replace(config, **{field: value}) for value in values):
            if not why_unused(changed, field) and _fits(changed, _spec_of(spec, changed), budget):
                yield f"--{field.replace('_', '-')} {written(getattr(changed, field))}"
                break


def _fits(config: Config, spec: DataSpec, budget: Budget) -> bool:
    try:
        return not budget.excess(_device(config, spec))
    except UserError:
        return False  # there is no such network, as of images that are smaller than what a pooling takes


def _spec_of(spec: DataSpec, config: Config) -> DataSpec:
    """The spec of the same data with the time steps and the size of another config."""
    *frames, channels, height, width = spec.shape
    height, width = (config.image_size or side for side in (height, width))
    return dataclasses.replace(spec, shape=(*(config.time_steps for _ in frames), channels, height, width))
