"""How much a command says: -q prints no tables and no progress, -v tells each stage as it begins."""

from __future__ import annotations

from enum import Enum


class Loudness(Enum):
    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


_current = Loudness.NORMAL


def set_loudness(loudness: Loudness) -> None:
    """For the command that runs; the next one sets its own."""
    global _current
    _current = loudness


def is_quiet() -> bool:
    return _current is Loudness.QUIET


def is_verbose() -> bool:
    return _current is Loudness.VERBOSE
