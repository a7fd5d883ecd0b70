"""What computed a run: versions, processor, threads, backend, and the user's own modules.

The last bits of a result depend on all of these (docs/training.md), so a checkpoint records them, and a run that is
resumed under others says so.
"""

import dataclasses
import hashlib
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import bsnn
from bsnn.errors import UserError
from bsnn.extras import MissingModule
from bsnn.kernels import backend
from bsnn.train.config import Config
from bsnn.train.distributed import World

Origin = dict[str, Any]

_WORDS = {
    "bsnn": "bsnn {}",
    "torch": "torch {}",
    "processor": "{}",
    "instructions": "{}",
    "device": "device {}",
    "threads": "{} thread(s)",
    "processes": "{} process(es)",
    "backend": "backend {}",
}
"""What results depend on, in words."""


def origin(config: Config, world: World) -> Origin:
    """What computes here and now."""
    cuda = world.device.type == "cuda"
    return {
        "bsnn": bsnn.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(world.device) if cuda else world.device.type,
        "threads": torch.get_num_threads(),
        "processes": world.size,
        "backend": backend(),
        "modules": modules_of(config),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def modules_of(config: Config) -> dict[str, dict[str, str]]:
    """The modules of the user's own that a config names: their files and digests of these, as far as they have one."""
    values = [str(getattr(config, field.name)) for field in dataclasses.fields(config)]
    # Fields such as a path may hold a colon too; what was imported is known to Python.
    names = {value.partition(":")[0] for value in values if ":" in value}
    found = {name: getattr(sys.modules.get(name), "__file__", None) for name in sorted(names)}
    return {name: {"file": file, "sha256": _digest(Path(file))} for name, file in found.items() if file}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def changes(before: Origin, now: Origin) -> list[str]:
    """What a person should know if a run goes on under `now`, or is looked at: one line of each kind."""
    notes = []
    keys = [key for key in _WORDS if before[key] != now[key]]
    if keys:
        was, is_now = (", ".join(_WORDS[key].format(side[key]) for key in keys) for side in (before, now))
        notes.append(
            f"the run was computed with {was} and goes on with {is_now}; results may differ in the last bits, and then "
            "in flips, from those of a run without the change"
        )
    return notes + changed_modules(before, now["modules"])


def changed_modules(before: Origin, now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A note for each module of the user's own that is not what it was in training."""
    return [
        f"{now[name]['file']} is not the {name} that the run was trained with ({module['file']}): it has changed since"
        for name, module in before["modules"].items()
        if name in now and now[name]["sha256"] != module["sha256"]
    ]


def explained(error: MissingModule, before: Origin) -> UserError:
    """The error with the place where the module was found in training."""
    module = before["modules"].get(error.module)
    if module is None:
        return error
    folder = Path(module["file"]).parents[error.module.count(".")]
    return UserError(f"{error} In training it was {module['file']}: try PYTHONPATH={folder}.")
