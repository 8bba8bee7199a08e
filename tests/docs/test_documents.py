"""What the documents say can be done is done here; what they link to exists; what they show is what comes out."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.docs.documents import ROOT, blocks, documents, needs_torch, refreshed, runs_something
from tilegrad import zoo
from tilegrad.devices.siracusa_build import missing_compiler

NAMES = [str(path.relative_to(ROOT)) for path in documents()]
RUNNABLE = [name for name in NAMES if runs_something((ROOT / name).read_text(encoding="utf-8"))]
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def anchors(text: str) -> set[str]:
    """The names that headings get on the web: lower case, words joined by hyphens."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNABLE)
def test_document_runs(name: str, tmp_path: Path) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    if needs_torch(text) and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    reason = missing_compiler()
    if reason is not None and "(riscv64-unknown-elf-gcc)" in text:
        pytest.skip(f"{name} quotes stacks: {reason}")
    assert refreshed(text, tmp_path, keep_outputs=True) == text, "python -m tests.docs --update brings it up to date"


@pytest.mark.parametrize("name", NAMES)
def test_links_resolve(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for match in _LINK.finditer(_CODE.sub("", text)):
        target, _, anchor = match["target"].partition("#")
        if target.startswith(("http:", "https:")):
            continue
        path = ((ROOT / name).parent / target).resolve() if target else ROOT / name
        assert path.exists(), f"{name} links to {target}"
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{name} links to {match['target']}"


@pytest.mark.parametrize("name", NAMES)
def test_no_machine_of_ours(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(?:work|root|home|tmp|usr|opt)/", text)
    assert not re.search(r"pypi|pythonhosted|--index-url|--extra-index|registry\.(?!py)|artifactory|localhost", text)


@pytest.mark.parametrize("name", NAMES)
def test_style(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert all(ord(c) < 0x1F000 for c in text), "no emojis"
    for number, line in enumerate(re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines(), 1):
        # A table's row or a quoted command cannot be broken.
        is_whole = line.startswith("|") or re.search(r"`[^`]{60,}`", line) is not None
        assert len(line) <= 120 or is_whole, f"{name}, line {number} of the text is too long"


@pytest.mark.parametrize("name", NAMES)
def test_paths_in_code_exist(name: str) -> None:
    """A path of the package that a document names is there."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tilegrad|tests|examples|benchmarks|tools|docs)/[\w./]+)`", text):
        assert "NAME" in path or (ROOT / path).exists(), f"{name} names {path}"


def test_every_document_of_the_project_is_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        others = readme + (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
        assert f"docs/{path.name}" in others, path.name


def test_readme_has_the_benchmarks() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme[readme.index("benchmarks:begin") : readme.index("benchmarks:end")]
    for name in zoo.names():
        assert f"| `{name}` |" in table


def test_blocks_have_a_language() -> None:
    for name in NAMES:
        for block in blocks((ROOT / name).read_text(encoding="utf-8")):
            assert block.language, f"{name}: a block without a language"
