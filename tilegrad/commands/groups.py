"""Options that belong together are declared once, as a dataclass, and a command takes the whole group.

    @grouped
    def train(model: options.Model, recipe: RecipeOptions, chip: ChipOptions) -> int: ...

The command line sees every field of the groups as an option of its own, in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, signature
from typing import Any, get_type_hints


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """The command with each parameter that is annotated with a dataclass replaced by that dataclass's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    flat: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        hint = hints[name]
        if isinstance(hint, type) and is_dataclass(hint):
            groups[name] = hint
            flat += _options(hint)
        else:
            flat.append(parameter.replace(annotation=hint, kind=Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**values: Any) -> int:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **made)

    # The framework must see the new signature, not look behind it.
    vars(run).pop("__wrapped__")
    vars(run)["__signature__"] = signature(command).replace(parameters=flat)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat} | {"return": int}
    return run


def _options(group: type[Any]) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
