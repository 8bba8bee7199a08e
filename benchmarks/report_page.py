"""How fast the report page draws 100,000 timeline events: `python -m benchmarks.report_page` writes REPORT_PAGE.md.

In headless Chromium, from disk. Each redraw is a zoom or a pan of the whole timeline, until its pixels can be read.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.training_step import machine
from tilegrad.api import compile
from tilegrad.devices.registry import open_device
from tilegrad.report.picture.page import page
from tilegrad.report.picture.record import record_bytes, record_of
from tilegrad.training import train as training

EVENTS = 100_000
REDRAWS = 60
RESULT = Path(__file__).parent / "REPORT_PAGE.md"
MEASURE = """(redraws) => {
  const pixels = () => document.getElementById("timeline").getContext("2d").getImageData(0, 0, 1, 1);
  const took = { zoom: [], pan: [] };
  for (let i = 0; i < redraws; i++) {
    const acts = { zoom: () => zoom(i % 12 < 6 ? 0.6 : 1 / 0.6), pan: () => pan(i % 2 ? 0.2 : -0.2) };
    for (const [name, act] of Object.entries(acts)) {
      const start = performance.now();
      act();
      pixels();
      took[name].push(performance.now() - start);
    }
  }
  return took;
}"""


def many_events(record: dict[str, Any]) -> dict[str, Any]:
    """The record with a step of so many events."""
    own = record["modes"][0]["timeline"]["step"]
    step = own["cycles"] / EVENTS
    own |= {"start": [i * step for i in range(EVENTS)], "end": [(i + 0.5) * step for i in range(EVENTS)]}
    columns = ("track", "kind", "name", "nest", "tile", "bytes")
    own |= {key: [own[key][i % len(own[key])] for i in range(EVENTS)] for key in columns}
    return record


def measure(content: bytes) -> tuple[float, dict[str, list[float]]]:
    """Milliseconds until the page is there, and of each redraw."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "report.html"
        path.write_bytes(content)
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        view = browser.new_page(viewport={"width": 1400, "height": 900})
        view.goto(path.as_uri())
        loaded = view.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        took = view.evaluate(MEASURE, REDRAWS)
        browser.close()
    return loaded, took


def main() -> None:
    with open_device("sim:siracusa") as device:
        run = training.train(compile("simplemlp", target="siracusa"), device, steps=2, verify=False)
    content = page(many_events(json.loads(record_bytes(record_of([(None, run)])))))
    loaded, took = measure(content)
    lines = [
        "# The report page with 100,000 timeline events",
        "",
        f"Measured on {machine()}, headless Chromium without a GPU, 1400 × 900, from disk",
        f"(`python -m benchmarks.report_page`); {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} by other work.",
        "A redraw should take 100 ms at most, opening 3 s.",
        "",
        "| what | median, ms | nine of ten within, ms | slowest, ms | times |",
        "|---|---:|---:|---:|---:|",
        f"| open ({len(content) / 1e6:.1f} MB) | {loaded:.0f} | | {loaded:.0f} | 1 |",
    ]
    for name, times in took.items():
        most = statistics.quantiles(times, n=10)[-1]
        lines.append(f"| {name} | {statistics.median(times):.1f} | {most:.1f} | {max(times):.1f} | {len(times)} |")
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(RESULT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
