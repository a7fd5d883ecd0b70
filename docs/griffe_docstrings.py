"""What the API reference takes from our sources beyond what griffe, which reads them, knows by itself."""

import ast
import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Examples as code, the fields of named tuples and configs, and no repetition in overridden methods."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Reads `Example:` as a section, and drops a docstring that only points to that of the base class."""
        if not obj.docstring:
            return
        if re.fullmatch(r"See `?[\w.]+`?\.?", obj.docstring.value):
            obj.docstring = None
        else:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Shows the fields of a named tuple in its signature."""
        if "NamedTuple" in map(str, cls.bases):
            kind = griffe.ParameterKind.positional_or_keyword
            fields = [
                griffe.Parameter(field.name, annotation=field.annotation, kind=kind, default=field.value)
                for field in cls.attributes.values()
                if "property" not in field.labels
            ]
            parameters = griffe.Parameters(griffe.Parameter("self", kind=kind), *fields)
            cls.set_member("__init__", griffe.Function("__init__", parameters=parameters))

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Shows the default and the help of each field of a config, written as `_setting(default, help)`."""
        config = pkg["train.config.Config"]
        explained = []
        for field in config.attributes.values():
            if isinstance(field.value, griffe.ExprCall) and str(field.value.function) == "_setting":
                default, text = map(str, field.value.arguments[:2])
                field.value = default
                explained.append(f"    {field.name}: {ast.literal_eval(re.sub(r'{.*?}', '…', text.removeprefix('f')))}")
        config.docstring.value += "\n\nAttributes:\n" + "\n".join(explained)
