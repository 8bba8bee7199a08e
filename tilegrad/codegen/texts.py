"""Files of the runtime as a program has them: without sections that it has no use for, and with its own numbers.

A section is between `#ifdef` and `#endif`: nobody should read past what is never compiled. `@name@` is a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tilegrad.ops.kernels import RUNTIME_FOLDER

_CONDITION = re.compile(r"\s*#\s*(?:(ifdef|ifndef)\s+(\w+)|(if)\b|(else)\b|(endif)\b)")


def runtime_text(
    path: str | Path, is_defined: Mapping[str, bool] | None = None, values: Mapping[str, object] | None = None
) -> str:
    """A file below the runtime's folder."""
    text = (RUNTIME_FOLDER / path).read_text(encoding="utf-8")
    if is_defined is not None:
        text = with_sections(text, is_defined)
    return text if values is None else re.sub(r"@(\w+)@", lambda found: str(values[found[1]]), text)


def with_sections(text: str, is_defined: Mapping[str, bool]) -> str:
    """What a C preprocessor leaves of `#ifdef`, `#ifndef`, `#else` and `#endif` of macros that are known to be defined,
    or not to be.

    All other lines stay as they are, and so do other conditions (`#if`, `#elif`)."""
    kept: list[str] = []
    conditions: list[bool | None] = []  # is its part kept; None: not one of ours
    for line in text.splitlines(keepends=True):
        found = _CONDITION.match(line)
        is_ours = False
        if found is not None:
            kind, macro, other, alternative, end = found.groups()
            if kind or other:
                is_ours = macro in is_defined
                conditions.append(is_defined[macro] == (kind == "ifdef") if is_ours else None)
            elif alternative and conditions[-1] is not None:
                conditions[-1] = not conditions[-1]
                is_ours = True
            elif end:
                is_ours = conditions.pop() is not None
        if not is_ours and False not in conditions:
            kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "".join(kept)).rstrip("\n") + "\n"
