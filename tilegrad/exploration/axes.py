"""What an exploration varies: axes with their values, and the points of their grid."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product

from tilegrad.errors import UserError
from tilegrad.sizes import parse_size

Value = str | int | float | bool
Point = dict[str, Value]
MOST_POINTS = 100_000
SIZE = "size"
"""The kind of an axis whose values are bytes; the others are Python's types."""
_FORMS = {
    SIZE: "sizes, as 16K,64K or 16K:256K, which doubles",
    int: "whole numbers, as 1,2,4 or 1:5, which has every one",
    float: "numbers, as 0.01,0.1",
    bool: "true,false",
    str: "words, as single,double; 1:5 is 1,2,3,4,5",
}


@dataclass(frozen=True)
class Axis:
    name: str
    values: tuple[Value, ...]


def parse_axes(texts: Sequence[str], kinds: Mapping[str, object]) -> tuple[Axis, ...]:
    axes = [_parse(text, kinds) for text in texts]
    if not axes:
        raise UserError(
            "there is nothing to vary",
            stage="explore",
            expected="--vary AXIS=VALUES",
            hint="--vary l1=16K:256K buffering=single,double",
        )
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"the axis '{name}' is there twice", stage="explore", hint="one list has all of its values")
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_POINTS:
        most = f"at most {MOST_POINTS} points"
        raise UserError("the grid is too large", stage="explore", expected=most, got=str(count))
    return tuple(axes)


def grid(axes: Sequence[Axis]) -> Iterator[Point]:
    """Every point, the last axis fastest."""
    for values in product(*(axis.values for axis in axes)):
        yield dict(zip((axis.name for axis in axes), values, strict=True))


def _parse(text: str, kinds: Mapping[str, object]) -> Axis:
    name, _, listed = (part.strip() for part in text.partition("="))
    if name not in kinds:
        near = get_close_matches(name, kinds, n=1)
        raise UserError(
            f"there is no axis '{name}'",
            stage="explore",
            expected=" or ".join(kinds),
            got=text,
            hint=f"did you mean '{near[0]}'?" if near else None,
        )
    kind = kinds[name]
    values: list[Value] = []
    # Some values have commas of their own.
    for item in listed.split(";" if ";" in listed else ","):
        values += _values(name, item.strip(), kind)
    found = tuple(dict.fromkeys(values))
    if not found:
        raise _wrong(name, kind, listed or "no value")
    return Axis(name, found)


def _wrong(name: str, kind: object, got: str) -> UserError:
    return UserError(f"the axis '{name}' cannot have this", stage="explore", expected=_FORMS[kind], got=got)  # type: ignore[index]


def _values(name: str, item: str, kind: object) -> list[Value]:
    if not item:
        raise _wrong(name, kind, "no value")
    try:
        if kind == SIZE:
            return [size_text(size) for size in _sizes(name, item)]
        if kind is int:
            first, _, last = item.partition(":")
            return list(range(int(first), int(last or first) + 1))
        if kind is float:
            value = float(item)
            if not math.isfinite(value):
                raise ValueError(item)
            return [value]
        if kind is bool:
            return [{"true": True, "false": False}[item]]
        if re.fullmatch(r"\d+:\d+", item):  # words that may be numbers, such as blocks=1:5
            first, _, last = item.partition(":")
            return [str(number) for number in range(int(first), int(last) + 1)]
    except (ValueError, KeyError):
        raise _wrong(name, kind, item) from None
    return [item]


def _sizes(name: str, item: str) -> list[int]:
    """Both ends belong to a range, and what doubles from the first up to the last."""
    first, colon, last = item.partition(":")
    size = parse_size(f"the axis '{name}'", first, "explore")
    if not colon:
        return [size]
    stop = parse_size(f"the axis '{name}'", last, "explore")
    found = []
    while 0 < size < stop:
        found.append(size)
        size *= 2
    return [*found, stop] if found or size == stop else []


def size_text(size_bytes: int) -> str:
    """As options take it, exactly."""
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size_bytes and size_bytes % size == 0:
            return f"{size_bytes // size}{unit}"
    return str(size_bytes)
