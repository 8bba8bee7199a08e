"""Sizes as people write and read them."""

from __future__ import annotations

import re

from tilegrad.errors import UserError

_SIZE = re.compile(r"(\d+)\s*([KkMmGg]?)(?:i?[Bb])?")
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def parse_size(what: str, text: str, stage: str = "recipe") -> int:
    """Bytes, or with K, M or G for 1024, 1024² and 1024³ of them."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{what} is not a size", stage=stage, expected="64K, 2M or bytes", got=text)
    return int(match[1]) * _UNITS[match[2].lower()]


def bytes_text(size_bytes: int) -> str:
    """Exact below 1 KiB, three significant digits above, so that columns compare at a glance."""
    size = float(size_bytes)
    for unit in _BYTE_UNITS:
        if size < 1024 or unit == _BYTE_UNITS[-1]:
            break
        size /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size:.{_decimals(size)}f} {unit}"


def _decimals(value: float) -> int:
    return 2 if value < 10 else 1 if value < 100 else 0
