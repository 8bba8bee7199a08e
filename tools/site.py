"""The documentation as a site: `python tools/site.py [FOLDER]`, by MkDocs Material, for reading from disk.

The documents are those of the repository, where they are; links between them hold on the site, too. Links to other
files are left out of the site: there they are text.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, SITE = ROOT / "build" / "site-source", ROOT / "build" / "site"
DOCUMENTS = ("*.md", "docs/*.md", "docs/reference/*.md", "benchmarks/*.md", "examples/**/README.md")
NOTEBOOKS = ("docs/*.ipynb",)
PICTURES = ("docs/images/*",)
ASSETS, WORKER = ROOT / "tools" / "site_assets", "iframe-worker"
FETCHED_WORKER = f"https://unpkg.com/{WORKER}/shim"
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s:]+)\)")


def documents() -> list[Path]:
    """Notebooks by the names of their pages."""
    found = [path for pattern in DOCUMENTS for path in ROOT.glob(pattern)]
    found += [path.with_suffix(".md") for pattern in NOTEBOOKS for path in ROOT.glob(pattern)]
    return sorted(path.relative_to(ROOT) for path in found)


def page_of(notebook: Path) -> str:
    """A notebook as it was executed: text, code, and what it showed."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            shown = output.get("data", {})
            if "text/html" in shown:
                parts.append("".join(shown["text/html"]).replace("\n", ""))
            else:
                text = "".join(output.get("text", shown.get("text/plain", ""))).rstrip()
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def text_of(document: Path) -> str:
    path = ROOT / document
    return path.read_text(encoding="utf-8") if path.exists() else page_of(path.with_suffix(".ipynb"))


def on_site(text: str, document: Path) -> str:
    """A link to what is no document becomes text."""
    known = set(documents())

    def replaced(link: re.Match[str]) -> str:
        path = link[2].partition("#")[0]
        if not path:
            return link[0]
        found = (ROOT / document.parent / path).resolve()
        is_known = found.is_relative_to(ROOT) and found.relative_to(ROOT) in known
        return link[0] if is_known else link[1]

    return _LINK.sub(replaced, text)


def stage() -> None:
    shutil.rmtree(SOURCE, ignore_errors=True)
    for document in documents():
        made = SOURCE / document
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(on_site(text_of(document), document), encoding="utf-8")
    for pattern in PICTURES:
        for picture in ROOT.glob(pattern):
            made = SOURCE / picture.relative_to(ROOT)
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, made)


def make_offline(folder: Path) -> None:
    """The theme would fetch the library that lets a page search without a server; it is beside the pages instead."""
    shutil.copytree(ASSETS, folder / "assets" / "offline", dirs_exist_ok=True)
    for page in folder.rglob("*.html"):
        local = "../" * (len(page.relative_to(folder).parts) - 1) + f"assets/offline/{WORKER}.js"
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(FETCHED_WORKER, local), encoding="utf-8")


def main(folder: Path = SITE) -> None:
    stage()
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", str(ROOT / "mkdocs.yml")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([*command, "-d", str(folder.absolute())], check=True, cwd=ROOT, env=environment)
    make_offline(folder.absolute())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
