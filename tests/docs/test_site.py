"""The reference is what the code says, and the site has every document and needs no network."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.documents import ROOT


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_of_this_code() -> None:
    pages = tool("reference").pages()
    folder = ROOT / "docs" / "reference"
    assert {path.name for path in folder.glob("*.md")} == set(pages)
    old = [name for name, text in pages.items() if (folder / name).read_text(encoding="utf-8") != text]
    assert old == [], "run `python tools/reference.py`"


def test_every_document_has_its_place() -> None:
    listed = set(re.findall(r": ([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {str(path) for path in tool("site").documents()}


def test_links_to_other_files_are_text() -> None:
    on_site = tool("site").on_site
    text = "[a](report.md#b) ![p](images/report.png) [c](../tools/apt.sh) [d](#e) [f](https://x.y)"
    assert on_site(text, Path("docs/json.md")) == text.replace("[c](../tools/apt.sh)", "c")


@pytest.mark.slow
def test_the_site_is_built_and_asks_nothing_of_a_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    command = [sys.executable, ROOT / "tools" / "site.py", tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("index.html", "docs/tutorial.html", "docs/reference/operators.html", "docs/images/report.png"):
        assert (tmp_path / "site" / name).exists(), name
    for page in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(r"<(?:script|img|link)\b[^>]*\b(?:src|href)=\"?(https?:[^\s\">]*)", page.read_text())
        assert fetched == [], page.name
