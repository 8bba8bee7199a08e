"""The picture of the document is what its program draws."""

from __future__ import annotations

import runpy
from pathlib import Path

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def test_the_picture_is_as_it_is_drawn() -> None:
    drawn = runpy.run_path(str(IMAGES / "shares.py"))["picture"]()
    assert (IMAGES / "shares.svg").read_text(encoding="utf-8") == drawn
