"""What a network has to know of its data, without the data: enough to build it, to export it and to feed it."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from bsnn.data.dataset import Dataset, Kind

# Settings of a decoder that a deployed network needs to read files as its training set did.
_DECODING = ("margin", "sensor", "presence", "turned", "window", "hop")


@dataclass(frozen=True)
class DataSpec:
    """Name, classes, shape and normalization of a data set, and how its files are decoded.

    The attributes are those of `bsnn.data.Dataset`; `decode` holds the settings of its decoder.

    Example:
        >>> spec = DataSpec.of(bsnn.data.digits())
        >>> spec.shape, len(spec.classes), DataSpec.from_json(spec.as_json()) == spec
        ((1, 8, 8), 10, True)
    """

    name: str
    kind: Kind
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float
    decode: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Dataset) -> "DataSpec":
        """The spec of a data set."""
        settings = getattr(getattr(data, "decode", None), "keywords", {})
        decode = {key: _fixed(settings[key]) for key in _DECODING if settings.get(key) is not None}
        plain = {f.name: getattr(data, f.name) for f in dataclasses.fields(cls) if f.name != "decode"}
        return cls(**plain, decode=decode)

    def as_json(self) -> dict[str, Any]:
        """A dictionary of lists, text and numbers."""
        fields = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "DataSpec":
        """The spec from what `as_json` returned."""
        fields: dict[str, Any] = {name: _fixed(value) for name, value in content.items()}
        fields["decode"] = {key: _fixed(value) for key, value in content.get("decode", {}).items()}
        return cls(**fields)


def _fixed(value: Any) -> Any:
    """A list, as JSON gives back a tuple, as a tuple, so that both are equal; anything else as it is."""
    return tuple(value) if isinstance(value, list) else value
