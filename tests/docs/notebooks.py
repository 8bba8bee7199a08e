"""Executes the notebooks of the documentation: `python -m tests.docs.notebooks` brings what they show up to date."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.docs.documents import ROOT

NOTEBOOKS = tuple(sorted((ROOT / "docs").glob("*.ipynb")))
CELL_SECONDS = 240


def executed(path: Path) -> Any:
    """The notebook as it is when every cell was run, in order, in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # when it was run
        if cell.cell_type == "code":
            cell.outputs = _merged(cell.outputs)
    notebook.metadata = {"language_info": {"name": "python"}}
    return notebook


def _merged(outputs: list[Any]) -> list[Any]:
    """A stream comes in parts, which are others each time."""
    made: list[Any] = []
    for output in outputs:
        if made and output.output_type == made[-1].output_type == "stream" and output.name == made[-1].name:
            made[-1].text += output.text
        else:
            made.append(output)
    return made


def shown(notebook: Any) -> list[list[str]]:
    """What each cell showed, without figures: text, or pictures and the heads of tables."""
    rows = []
    for cell in notebook.cells:
        row = []
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "text/html" in data:
                row += re.findall(r'<img alt="[^"]*"|<th[^>]*>[^<]*', data["text/html"])
            else:
                row.append(re.sub(r"[\d,.]+", "#", str(output.get("text", data.get("text/plain", "")))))
        rows.append(row)
    return rows


if __name__ == "__main__":
    for each in map(Path, sys.argv[1:]) if sys.argv[1:] else NOTEBOOKS:
        nbformat.write(executed(each), each)
