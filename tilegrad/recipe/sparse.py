"""What `--train sparse:FILE` and `sparse:BUDGET` ask for: tensors, whole or some of their channels, or a size.

A file is TOML or JSON: a table of initializer names (or one called `tensors`), each with `"all"`, or a list of
channels, which are numbers or ranges as "16-31". Channels are a layer's outputs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegrad.errors import UserError
from tilegrad.sizes import parse_size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORM = "sparse:FILE (.toml or .json), or sparse:BUDGET, as 256K or 0.25 of what training everything takes"
_RANGE = re.compile(r"\s*(\d+)\s*-\s*(\d+)\s*")
_SHARE = re.compile(r"0?\.\d+|\d+(\.\d+)?%")
_SIZE = re.compile(r"\d+\s*[KkMmGg]?([iI]?[Bb])?")
MOST_CHANNELS = 1 << 20


@dataclass(frozen=True)
class Selected:
    """By initializer, which channels train; None is all of them."""

    tensors: Mapping[str, tuple[int, ...] | None]

    def as_json(self) -> dict[str, Any]:
        """As a file has it."""
        return {name: "all" if channels is None else list(channels) for name, channels in self.tensors.items()}


@dataclass(frozen=True)
class Budget:
    """Bytes of state and arena, or a share of those that training everything takes."""

    size_bytes: int | None = None
    share: float | None = None


def sparse_of(train: str | None) -> str | None:
    """The part of a selection that names a file or a budget; its other parts are none of ours."""
    parts = [part for part in (train or "").split("+") if part.split(":")[0] == "sparse"]
    if not parts:
        return None
    if len(parts) > 1 or any(part.split(":")[0] == "lora" for part in (train or "").split("+")):
        raise UserError("channels are chosen once, and without adapters", stage="recipe", expected=FORM, got=str(train))
    return parts[0].partition(":")[2]


def parse_sparse(text: str) -> Selected | Budget:
    """What the text behind `sparse:` says; a file is read."""
    if _SHARE.fullmatch(text):
        share = float(text.rstrip("%")) / (100.0 if text.endswith("%") else 1.0)
        if not 0.0 < share <= 1.0:
            raise _refused("this is no share of the memory", text)
        return Budget(share=share)
    if _SIZE.fullmatch(text):
        return Budget(size_bytes=parse_size("the memory to train in", text))
    if not text:
        raise _refused("nothing says what trains", "sparse:")
    return _read(Path(text))


def _read(path: Path) -> Selected:
    if path.suffix.lower() not in (".toml", ".json"):
        raise _refused("this is neither a file nor a budget", str(path))
    try:
        content = path.read_text(encoding="utf-8")
        told = tomllib.loads(content) if path.suffix.lower() == ".toml" else json.loads(content)
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror or error}", stage="recipe", expected=FORM) from error
    except ValueError as error:
        raise UserError(f"'{path}' cannot be understood: {error}", stage="recipe", expected=FORM) from error
    tensors = told.get("tensors", told) if isinstance(told, dict) else None
    if not isinstance(tensors, dict) or not tensors:
        raise UserError(
            f"'{path}' names no tensors",
            stage="recipe",
            expected='initializers, each with "all" or a list of channels',
            got=str(told)[:80],
        )
    return Selected({str(name): _channels(path, str(name), value) for name, value in tensors.items()})


def _channels(path: Path, name: str, value: object) -> tuple[int, ...] | None:
    if value == "all" or value is True:
        return None
    found: set[int] = set()
    for each in value if isinstance(value, list) else [value]:
        match = _RANGE.fullmatch(each) if isinstance(each, str) else None
        if match is not None and 0 <= int(match[2]) - int(match[1]) < MOST_CHANNELS:
            found.update(range(int(match[1]), int(match[2]) + 1))
        elif isinstance(each, int) and not isinstance(each, bool) and each >= 0:
            found.add(each)
        else:
            raise UserError(
                f"'{path}' does not say which channels of '{name}' train",
                stage="recipe",
                expected='"all", or numbers and ranges, as [0, 3, "16-31"]',
                got=json.dumps(value, default=str),
            )
    if not found:
        raise UserError(f"'{path}' chooses no channel of '{name}'", stage="recipe", hint="leave the tensor out")
    return tuple(sorted(found))


def _refused(problem: str, got: str) -> UserError:
    return UserError(problem, stage="recipe", expected=FORM, got=got)
