"""Whether the C99 export can make a network's frames from the events of a camera, as `events.c` does."""

from bsnn.deploy.schema import InputSpec


def why_no_events(spec: InputSpec) -> str | None:
    """Why the export of a network for events cannot sum them itself; None if it can, or if it takes no events."""
    if spec.kind != "event":
        return None
    channels, height, width = spec.shape
    sensor = spec.decode.get("sensor")
    if not sensor or channels != 2:
        return (
            "there is no events.c: the model file does not say of what camera the frames are. Sum the events yourself."
        )
    rows, columns = reversed(sensor) if spec.decode.get("turned") else sensor
    if (height, width) != (rows, columns):
        return (
            f"there is no events.c: frames of {height} × {width} are resized from a camera of {rows} × {columns}, "
            "which takes whole frames. Make them as bsnn.data.events.resize_frames does, or train at the camera's size."
        )
    return None
