"""Runtime files without the sections that a program has no use for: nobody should read past what is never compiled."""

from __future__ import annotations

import re
from collections.abc import Collection

_CONDITION = re.compile(r"\s*#\s*(?:(ifdef|ifndef)\s+(\w+)|(if)\b|(else)\b|(endif)\b)")


def without_sections(text: str, undefined: Collection[str]) -> str:
    """What a C preprocessor leaves of `#ifdef`, `#ifndef`, `#else` and `#endif` where these macros are not defined.

    All other lines stay as they are, and so do other conditions (`#if`, `#elif`)."""
    kept: list[str] = []
    conditions: list[bool | None] = []  # is its part kept; None: not one of ours
    for line in text.splitlines(keepends=True):
        found = _CONDITION.match(line)
        is_ours = False
        if found is not None:
            kind, macro, other, alternative, end = found.groups()
            if kind or other:
                is_ours = macro in undefined
                conditions.append(kind == "ifndef" if is_ours else None)
            elif alternative and conditions[-1] is not None:
                conditions[-1] = not conditions[-1]
                is_ours = True
            elif end:
                is_ours = conditions.pop() is not None
        if not is_ours and False not in conditions:
            kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "".join(kept)).rstrip("\n") + "\n"
