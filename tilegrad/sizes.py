"""Sizes as people write them."""

from __future__ import annotations

import re

from tilegrad.errors import UserError

_SIZE = re.compile(r"(\d+)\s*([KkMmGg]?)(?:i?[Bb])?")
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def parse_size(what: str, text: str, stage: str = "recipe") -> int:
    """Bytes, or with K, M or G for 1024, 1024² and 1024³ of them."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{what} is not a size", stage=stage, expected="64K, 2M or bytes", got=text)
    return int(match[1]) * _UNITS[match[2].lower()]
