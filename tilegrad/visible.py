"""Names come from files that nobody vouches for: what a terminal would obey, or hide, is shown as an escape instead."""

from __future__ import annotations

import re

# Control characters, C1 included; what changes the direction of text, or is not seen; surrogates and tags.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)
_IN_TEXT = re.compile(f"[{_HIDDEN}]")
_IN_LINE = re.compile(f"[{_HIDDEN}\t\n]")


def visible(text: str) -> str:
    """Text of several lines; tabs and ends of lines stay."""
    return _IN_TEXT.sub(_escape, text)


def visible_line(text: str) -> str:
    return _IN_LINE.sub(_escape, text)


def json_escaped(text: str) -> str:
    """The same for a JSON document, which reads back as it was."""
    return _IN_TEXT.sub(_json_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
