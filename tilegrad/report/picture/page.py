"""One HTML file that shows a record: no network, no framework, everything inside."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilegrad.report.picture.record import record_bytes
from tilegrad.visible import visible_line

ASSETS = Path(__file__).parent / "assets"
_MARK = re.compile("@[A-Z]+@")


def page(record: Mapping[str, Any]) -> bytes:
    """The page. What comes from a model is data in it: never markup, never script."""
    parts = {
        "@STYLE@": _asset("uPlot.min.css") + _asset("page.css"),
        "@TITLE@": html.escape(visible_line(str(record["title"]))),
        "@LIBRARY@": _asset("uPlot.iife.min.js"),
        "@SCRIPT@": _asset("page.js"),
        # Inside a script element only "</" and "<!--" mean anything; JSON has another way to write "<".
        "@RECORD@": record_bytes(record).decode().replace("<", "\\u003c"),
    }
    return _MARK.sub(lambda mark: parts[mark[0]], _asset("page.html")).encode()


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
