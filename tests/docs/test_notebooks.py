"""Programs, plans, listings and runs in notebooks, and the notebook of the documentation."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tilegrad as tg
from tests.docs.documents import ROOT
from tilegrad.compiled import Compiled
from tilegrad.report.picture import notebook as drawing
from tilegrad.report.picture.operators import operators_json


class _Closed(HTMLParser):
    """Fails where an element is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.open += [tag] if tag != "img" else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str | None) -> str:
    assert text is not None
    parser = _Closed()
    parser.feed(text)
    assert parser.open == []
    return text


@pytest.fixture(scope="module")
def program() -> Compiled:
    return tg.compile("simplemlp", target="siracusa")


def test_a_program_shows_memory_time_and_operators(program: Compiled) -> None:
    text = checked(program._repr_html_())
    assert re.findall(r'<img alt="(\w+) of', text) == ["memory", "timeline"]
    for use in program.plan.memory.values():
        assert f">{use.used_bytes:,}</td>" in text
    slowest = max(row["cycles"] for row in operators_json(program, program.timing))
    assert f">{slowest:,}</td>" in text


def test_its_parts_show_themselves(program: Compiled) -> None:
    listing = checked(program.listing._repr_html_())
    assert re.findall(r'<img alt="(\w+) of', listing) == ["memory", "timeline"]
    assert re.findall(r'<img alt="(\w+) of', checked(program.plan._repr_html_())) == ["memory"]
    parts = checked(program.program._repr_html_())
    assert "<td" in parts and ">infer<" in parts and ">step<" in parts


def test_a_run_shows_its_losses() -> None:
    program = tg.compile("simplemlp")
    with tg.open_device("host") as device:
        run = tg.train(program, device, steps=2, verify=False)
    text = checked(run._repr_html_())
    assert re.findall(r'<img alt="(\w+) of', text) == ["loss", "memory"]
    with tg.open_device("null") as device:
        nothing = tg.train(program, device, steps=2, verify=False)
    assert "loss" not in re.findall(r'<img alt="(\w+) of', checked(nothing._repr_html_()))


def test_names_are_text() -> None:
    assert drawing._table(("<b>",), [("<script>",)]).count("<script>") == 0


def test_without_matplotlib_there_are_tables(program: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    text = checked(program._repr_html_())
    assert "<img" not in text and "plots need the package" in text and "<table>" in text


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_run_and_show_what_they_showed(path: Path) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    import nbformat

    from tests.docs.notebooks import executed, shown

    kept = nbformat.read(path, as_version=4)
    numbers = [cell.execution_count for cell in kept.cells if cell.cell_type == "code"]
    assert numbers == list(range(1, len(numbers) + 1)), "executed, in order"
    assert shown(kept) == shown(executed(path)), "python -m tests.docs.notebooks"
