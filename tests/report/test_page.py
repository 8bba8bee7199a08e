"""The page in a browser: it opens from disk, asks nothing of a network, and does what people do with it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilegrad as tg
from tests.report.test_picture import record, run_of
from tests.schedule.programs import compiled_for, siracusa
from tilegrad.devices.registry import open_device
from tilegrad.report.picture.page import page
from tilegrad.report.picture.record import record_bytes, record_of
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.training import train as training

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    yield from _open(browser, tmp_path, record("dscnn"))


def _open(browser: Any, folder: Path, shown: Any, width: int = 1400) -> Iterator[Any]:
    path = folder / "report.html"
    path.write_bytes(page(shown))
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="light")
    view = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    view.on("request", lambda request: asked.append(request.url))
    view.on("console", lambda message: said.append(message.text))
    view.on("pageerror", lambda error: said.append(str(error)))
    view.goto(path.as_uri())
    yield view
    assert asked == [path.as_uri()] and said == []
    context.close()


def test_figures_are_those_of_the_json(opened: Any) -> None:
    run = run_of("dscnn").as_json()
    text = opened.inner_text("#figures")
    assert f"{run['cycles']['step']:,}" in text and f"{run['macs_per_step']:,} MACs" in text
    assert f"{run['macs_per_cycle']:.2f}" in text and f"{run['trainable_params']:,}" in text
    assert opened.inner_text("h1") == "dscnn on sim:siracusa"
    rows = opened.eval_on_selector_all("#operators tbody tr", "rows => rows.map(r => r.cells[8].innerText)")
    shown = [f"{row['cycles']:,}" for row in record("dscnn")["modes"][0]["operators"]]
    assert rows == shown


UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def shown_bytes(text: str, before: str) -> int:
    """The size that a page shows behind some words, from its three digits."""
    found = re.search(rf"{re.escape(before)}\s*([\d.]+) ([KMG]?i?B)\b", text)
    assert found is not None, (before, text)
    return round(float(found[1]) * UNITS[found[2]])


def test_bytes_are_those_of_the_json(opened: Any) -> None:
    """Of every memory what is used, what there is and the bound; and what is moved on every hop."""
    run, mode = run_of("dscnn").as_json(), record("dscnn")["modes"][0]
    text = opened.inner_text("#figures")
    for level, use in run["memory"].items():
        part = text[re.search(rf"^{level}$", text, re.MULTILINE).start() :]  # type: ignore[union-attr]
        for before, key in (("\n", "used"), ("of", "capacity"), ("bound", "lower_bound")):
            assert shown_bytes(part, before) == pytest.approx(use[key], rel=0.006, abs=0.5), (level, key)
    assert mode["hops"] and all(hop["bytes"] is not None for hop in mode["hops"].values())
    for hop, moved in mode["hops"].items():
        found = shown_bytes(text, f"{hop} traffic of a step\n")
        assert found == pytest.approx(moved["bytes"], rel=0.006, abs=0.5), hop


def test_estimates_say_what_they_are(browser: Any, tmp_path: Path) -> None:
    """Whatever was measured of the run: what is drawn is estimated, of some chips with another one's costs."""
    shown = record("simplemlp")
    mode = {**shown["modes"][0], "estimates_are": "estimated, uncalibrated"}
    for view in _open(browser, tmp_path, {**shown, "modes": [mode]}):
        texts = [view.inner_text(f"#{part}") for part in ("figures", "timeline-text", "operators", "roofline-text")]
        assert all("estimated, uncalibrated" in text for text in texts), texts


def test_sort_and_filter(opened: Any) -> None:
    opened.fill("#filter", "depthwise conv_single_dw")
    names = opened.eval_on_selector_all("#operators tbody tr", "rows => rows.map(r => r.cells[0].innerText)")
    assert 0 < len(names) < len(record("dscnn")["modes"][0]["operators"]) and all("depthwise" in name for name in names)
    opened.fill("#filter", "")
    opened.click("#operators th:nth-child(9) button")
    cycles = opened.eval_on_selector_all("#operators tbody tr", "rows => rows.map(r => r.cells[8].innerText)")
    numbers = [int(text.replace(",", "")) for text in cycles]
    assert numbers == sorted(numbers, reverse=True)
    assert opened.get_attribute("#operators th:nth-child(9)", "aria-sort") == "descending"


def test_code_of_an_operator(opened: Any) -> None:
    opened.click("#operators tbody tr:nth-child(1) button")
    assert opened.is_visible("#code") and "static void forward_0_" in opened.inner_text("#code-text")
    assert "TG_KERNEL void tg_conv(" in opened.inner_text("#code-text")
    opened.keyboard.press("Escape")
    assert not opened.is_visible("#code")


def test_zoom_hover_and_keys(opened: Any) -> None:
    before = opened.evaluate("[view.from, view.to]")
    opened.click("#zoom-in")
    opened.focus("#timeline")
    opened.keyboard.press("+")
    opened.keyboard.press("ArrowRight")
    after = opened.evaluate("[view.from, view.to]")
    assert after[1] - after[0] == pytest.approx((before[1] - before[0]) / 4) and after[0] > before[0]
    opened.click("#zoom-all")
    assert opened.evaluate("[view.from, view.to]") == before
    box = opened.locator("#timeline").bounding_box()
    opened.locator("#timeline").hover(position={"x": box["width"] / 2, "y": 15})
    assert opened.inner_text("#timeline-text").startswith("compute: ")
    opened.locator("#memory").hover(position={"x": box["width"] / 2, "y": 300})
    assert " at L2+" in opened.inner_text("#memory-text")


def test_theme_mode_and_level(opened: Any) -> None:
    light = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    opened.click("#theme")
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") != light
    assert opened.inner_text("#theme") == "Light theme"
    opened.select_option("#level", "L1")
    assert opened.inner_text("#memory-text").startswith("L1: ")
    opened.select_option("#entry", "infer")
    assert "events of infer" in opened.inner_text("#timeline-text")


def test_accuracy_is_that_of_the_json(browser: Any, tmp_path: Path) -> None:
    """Before, after each epoch and at the end, where there is data; the same figures as the run's."""
    data = tmp_path / "d.npz"
    x = np.random.default_rng(0).normal(size=(24, 64)).astype(np.float32)
    np.savez(data, x=x, y=(x[:, 0] > 0).astype(np.int64))
    with open_device("sim:siracusa") as device:
        compiled = compiled_for("simplemlp", siracusa(64 * 1024), ScheduleOptions())
        run = training.train(compiled, device, data=data, epochs=2, validation=0.25, verify=False, keep_gradients=False)
    learning = run.as_json()["learning"]
    for view in _open(browser, tmp_path, json.loads(record_bytes(record_of([(None, run)])))):
        cells = "rows => rows.map(r => [...r.cells].map(c => c.innerText))"
        rows = view.eval_on_selector_all("#learning tbody tr", cells)
        told = [learning["before"], *learning["epochs"], learning["after"]]
        assert [row[0] for row in rows] == ["before", "epoch 1", "epoch 2", "after"]
        assert [row[2] for row in rows] == [f"{100 * one['accuracy']:.2f} %" for one in told]
        assert f"{100 * learning['after']['accuracy']:.2f} %" in view.inner_text("#figures")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessibility(opened: Any, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    if theme == "dark":
        opened.click("#theme")
    rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
    found = axe.Axe().run(opened, options=rules)
    assert found.violations_count == 0, found.generate_report()


def test_a_narrow_screen(browser: Any, tmp_path: Path) -> None:
    for view in _open(browser, tmp_path, record("dscnn"), width=400):
        assert view.evaluate("document.documentElement.scrollWidth") <= 400


def test_modes_side_by_side(browser: Any, tmp_path: Path) -> None:
    run = run_of("simplemlp")
    both = json.loads(record_bytes(record_of([("single", run), ("double", run)])))
    both["left_out"] = [{"mode": "untiled", "reason": "the step entry does not fit into L2"}]
    for view in _open(browser, tmp_path, both):
        assert view.is_visible("#mode") and "does not fit" in view.inner_text("#modes")
        view.select_option("#mode", "single")
        assert "verified" in view.inner_text("#verdict")


def test_five_clusters(browser: Any, tmp_path: Path) -> None:
    """Every cluster has tracks of its own, in order; the page is as usable as with one."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    program = tg.compile("mlp", target="mppa", blocks="5")
    with open_device("sim:mppa") as device:
        run = training.train(program, device, steps=1, verify=False)
    shown = json.loads(record_bytes(record_of([(None, run)])))
    tracks = shown["modes"][0]["timeline"]["step"]["tracks"]
    assert [name for name in tracks if name.endswith("cores")] == ["cores", *(f"block {i} cores" for i in range(1, 5))]
    for view in _open(browser, tmp_path, shown):
        assert f"{run.as_json()['cycles']['step']:,}" in view.inner_text("#figures")
        count = len(shown["modes"][0]["timeline"]["step"]["start"])
        assert 0.8 * count < view.evaluate("timelineStats.drawn") <= count  # not what is behind another's pixel
        view.click("#zoom-in")
        found = axe.Axe().run(view, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
        assert found.violations_count == 0, found.generate_report()


def test_many_events_are_drawn(browser: Any, tmp_path: Path) -> None:
    """How fast is in benchmarks/report_page.py; here, that all of them are there and few are drawn."""
    shown = json.loads(record_bytes(record("simplemlp")))
    own = shown["modes"][0]["timeline"]["step"]
    many = 100_000
    step = own["cycles"] / many
    own |= {"start": [i * step for i in range(many)], "end": [(i + 0.5) * step for i in range(many)]}
    columns = ("track", "kind", "name", "nest", "tile", "bytes")
    own |= {key: [own[key][i % len(own[key])] for i in range(many)] for key in columns}
    for view in _open(browser, tmp_path, shown):
        assert "100,000 events" in view.inner_text("#timeline-text")
        assert 0 < view.evaluate("timelineStats.drawn") < 20_000
