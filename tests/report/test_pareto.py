"""The page of an exploration in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_page import CHROMIUM, browser, playwright
from tilegrad.report.picture.pareto import pareto_page

__all__ = ["browser", "playwright"]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]

ROWS = [
    {"key": "a", "point": {"l1": "4K"}, "status": "ok", "reason": None, "pareto": True,
     "figures": {"memory": 4096, "cycles": 900, "traffic": 100}},
    {"key": "b", "point": {"l1": "64K"}, "status": "ok", "reason": None, "pareto": True,
     "figures": {"memory": 65536, "cycles": 200, "traffic": 90}},
    {"key": "c", "point": {"l1": "1M"}, "status": "ok", "reason": None, "pareto": False,
     "figures": {"memory": 1048576, "cycles": 250, "traffic": 90}},
    {"key": "d", "point": {"l1": "<script>alert(1)</script>"}, "status": "failed", "pareto": False, "figures": {},
     "reason": "<b>no</b> room @SCRIPT@"},
]  # fmt: skip
DOCUMENT = {
    "model": "<i>m</i>",
    "axes": {"l1": ["4K", "64K", "1M"]},
    "objectives": ["memory", "cycles"],
    "cycles_are": "estimated, uncalibrated",
    "rows": ROWS,
}


@pytest.fixture
def view(browser: Any, tmp_path: Path) -> Iterator[Any]:
    path = tmp_path / "pareto.html"
    path.write_bytes(pareto_page(DOCUMENT))
    context = browser.new_context(viewport={"width": 400, "height": 900}, color_scheme="light")
    opened = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto(path.as_uri())
    yield opened
    assert asked == [path.as_uri()] and said == []
    context.close()


def column(view: Any, number: int) -> list[str]:
    cells = f"rows => rows.filter(r => !r.hidden).map(r => r.cells[{number}].innerText)"
    return view.eval_on_selector_all("#points tbody tr", cells)  # type: ignore[no-any-return]


def test_what_people_do_with_it(view: Any) -> None:
    assert view.inner_text("h1") == "<i>m</i>: exploration" and "2 on the front" in view.inner_text("header")
    assert column(view, 2)[:3] == ["4.00 KiB", "64.0 KiB", "1.00 MiB"] and "@SCRIPT@" in column(view, 5)[3]
    view.click("#points th:nth-child(4) button")
    assert column(view, 3) == ["200", "250", "900", "-"]
    view.fill("#filter", "64k")
    assert column(view, 1) == ["64K"] and view.inner_text("#count") == "1 of 4 points"
    view.fill("#filter", "")
    view.check("#only")
    assert sorted(column(view, 1)) == ["4K", "64K"]
    assert view.locator("circle.front").count() == 4 and view.locator("circle.behind").count() == 2
    assert "l1 4K: memory 4.00 KiB, cycles 900" in view.locator("circle.front title").all_text_contents()
    assert view.evaluate("document.documentElement.scrollWidth") <= 400
    assert "Cycles are estimated, uncalibrated." in view.inner_text("main")
    assert "cycles of a sample, estimated, uncalibrated over memory" in view.locator("figcaption").first.inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessibility(view: Any, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    if theme == "dark":
        view.click("#theme")
    found = axe.Axe().run(view, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
    assert found.violations_count == 0, found.generate_report()
