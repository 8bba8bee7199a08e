"""A target: a chip as data. One folder per chip holds its `target.py` and its C runtime."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from tilegrad.errors import UserError

TARGETS_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Memory:
    """`capacity_bytes` None: as much as the machine has."""

    name: str
    capacity_bytes: int | None
    alignment_bytes: int
    levels_from_core: int = 0


@dataclass(frozen=True)
class Target:
    """`home` names the memory where tensors live; with one flat memory it is also where kernels compute."""

    name: str
    summary: str
    memories: tuple[Memory, ...]
    home: str
    cores: int = 1
    clusters: int = 1

    def memory(self, name: str) -> Memory:
        return next(memory for memory in self.memories if memory.name == name)

    @property
    def folder(self) -> Path:
        return TARGETS_FOLDER / self.name

    def kernel_override(self, operator_file: str) -> Path | None:
        """This chip's own version of an operator's kernels (same functions, same bits), if it has one."""
        path = self.folder / "kernels" / operator_file
        return path if path.exists() else None


def names() -> tuple[str, ...]:
    return tuple(sorted(info.name for info in pkgutil.iter_modules([str(TARGETS_FOLDER)]) if info.ispkg))


def get(name: str) -> Target:
    if name not in names():
        near = get_close_matches(name, names(), n=1)
        raise UserError(
            f"there is no target '{name}'",
            stage="target",
            expected=" or ".join(names()),
            got=name,
            hint=f"did you mean '{near[0]}'?" if near else None,
        )
    target: Target = importlib.import_module(f"tilegrad.targets.{name}.target").TARGET
    return target
