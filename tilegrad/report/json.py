"""JSON for scripts: floats that read back exactly, and always valid JSON.

JSON has no NaN and no infinity. A loss can be either, and null already means "this device has no such figure", so they
are written as the strings "NaN", "Infinity" and "-Infinity", which Python's `float()` and JavaScript's `Number()` read.

Knows NumPy's values without importing NumPy: an interrupt while NumPy loads is reported from here, and NumPy cannot be
loaded twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tilegrad.visible import json_escaped


def dumps(value: object, *, in_ascii: bool = False, indent: int | None = 1) -> str:
    """One JSON document, ending in a newline. Python writes the shortest digits that read back to the same float.

    Characters that a terminal would obey are escaped, beyond what JSON asks for.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(_plain(value), indent=indent, separators=separators, allow_nan=False, ensure_ascii=in_ascii)
    return json_escaped(text) + "\n"


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # NumPy's arrays and scalars
        return _plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
