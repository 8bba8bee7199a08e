"""Objects that a notebook shows as more than a line of text. Who draws them comes later, and registers here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Drawer = TypeVar("Drawer", bound=Callable[..., str])

_DRAWERS: dict[type, Callable[[Any], str]] = {}


class Pictured:
    """What IPython asks for; where nobody draws it, the text is shown."""

    def _repr_html_(self) -> str | None:
        draw = _DRAWERS.get(type(self))
        return None if draw is None else draw(self)


def draws(kind: type) -> Callable[[Drawer], Drawer]:
    """Registers a function that makes HTML of an object of this kind."""

    def registered(draw: Drawer) -> Drawer:
        _DRAWERS[kind] = draw
        return draw

    return registered
