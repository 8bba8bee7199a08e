"""What a command has written so far, so that it can say so truthfully when it ends early."""

from __future__ import annotations

from pathlib import Path

_written: list[Path] = []


def begin() -> None:
    """A new command has written nothing."""
    _written.clear()


def add(path: Path) -> None:
    if path not in _written:
        _written.append(path)


def paths() -> tuple[Path, ...]:
    return tuple(_written)
