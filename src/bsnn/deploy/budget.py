"""Whether a network fits into the RAM and flash of a device, and what takes the room if it does not."""

from collections.abc import Iterable
from typing import NamedTuple

from bsnn.deploy.camera import why_no_events
from bsnn.deploy.footprint import Device


class Room(NamedTuple):
    """Bytes on a device."""

    ram_bytes: int
    flash_bytes: int


class Budget(NamedTuple):
    """What a device has for a network and its front end; None for as much as it takes.

    Example:
        >>> from bsnn.deploy.codec import read
        >>> from bsnn.deploy.footprint import on_device
        >>> digits = on_device(read(bsnn.zoo.path("digits")))
        >>> Budget(8 * 1024).excess(digits)
        []
        >>> Budget(4 * 1024).excess(digits)[0][:54]
        'it takes 4,704 bytes of RAM, and the budget is 4,096: '
    """

    ram_bytes: int | None = None
    flash_bytes: int | None = None
    stream: bool = False
    """Whether the network is to run as a stream, which keeps all membranes."""

    def taken(self, device: Device) -> Room:
        """What a network takes, with its front end."""
        return Room(device.stream_ram_bytes if self.stream else device.ram_bytes, device.flash_bytes)

    def told(self, device: Device) -> str:
        """What a network takes of the budget, in words."""
        taken, front = self.taken(device), Room(_front_ram(device, self.stream), device.front_flash_bytes)
        return (
            f"on the device {_of(taken.ram_bytes, self.ram_bytes)} bytes of RAM{' as a stream' * self.stream} and "
            f"{_of(taken.flash_bytes, self.flash_bytes)} of flash"
        ) + (f", {front.ram_bytes:,} and {front.flash_bytes:,} of them for the front end" if any(front) else "")

    def not_counted(self, device: Device) -> str:
        """What a device needs besides, as it will have no front end for events; empty if nothing."""
        reason = why_no_events(device.artifact.input)
        if device.sums_events and self.stream:
            reason = "events.c fills all frames of an input, and a stream takes one at a time. Sum the events yourself."
        return f"{reason} What that takes on the device is not in these figures." if reason else ""

    def excess(self, device: Device) -> list[str]:
        """What a network takes too much, and where; nothing if it fits."""
        taken, where = self.taken(device), (_ram(device, self.stream), _flash(device))
        return [
            f"it takes {needed:,} bytes of {name}, and the budget is {allowed:,}: {parts}"
            for name, needed, allowed, parts in zip(("RAM", "flash"), taken, self[:2], where, strict=True)
            if allowed is not None and needed > allowed
        ]


def _of(taken: int, allowed: int | None) -> str:
    return f"{taken:,}" if allowed is None else f"{taken:,} of {allowed:,}"


def _ram(device: Device, stream: bool) -> str:
    """Where the RAM goes, in words."""
    layers, artifact = device.by_layer(), device.artifact
    kept, scratch = ({layer["name"]: layer[key] for layer in layers} for key in ("ram_bytes", "scratch_bytes"))
    parts = [
        f"{device.input_bytes // (device.frames if stream else 1):,} of input",
        f"{device.layout.values_bytes:,} of values between layers (the most {_most(kept)})",
        f"{device.layout.scratch_bytes:,} of scratch ({_most(scratch, 1)})",
    ]
    if stream or device.by_steps:
        membranes = {artifact.layers[i].name: 4 * artifact.values[i + 1].size for i in artifact.lifs}
        parts.insert(1, f"{device.membrane_bytes:,} of membranes (the most {_most(membranes)})")
    return _joined(parts, _front_ram(device, stream))


def _front_ram(device: Device, stream: bool) -> int:
    return device.sound_ram_bytes if stream else device.front_ram_bytes


def _flash(device: Device) -> str:
    """Where the flash goes, in words."""
    layers = {layer["name"]: layer["flash_bytes"] for layer in device.by_layer()}
    constants = device.constant_bytes - device.sound_constant_bytes
    code = device.flash_bytes - device.front_flash_bytes - constants
    return _joined(
        [f"{constants:,} of constants (the most {_most(layers)})", f"{code:,} of code"], device.front_flash_bytes
    )


def _most(sizes: dict[str, int], number: int = 2) -> str:
    """The largest parts, in words."""
    largest = sorted(sizes, key=lambda name: -sizes[name])[:number]
    return ", ".join(f"{name} {sizes[name]:,}" for name in largest)


def _joined(parts: Iterable[str], front_end: int) -> str:
    return ", ".join([*parts, *([f"{front_end:,} of the front end"] if front_end else [])])
