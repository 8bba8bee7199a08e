"""The folder of an exploration: a file for each point that is done, so that nothing is lost and nothing done twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilegrad.build.files import cannot_write, write_file
from tilegrad.errors import UserError

RESULT_FILE = "exploration.json"
POINTS_FOLDER = "points"
KIND = "tilegrad exploration"
Row = dict[str, Any]
OK, FAILED, CRASHED = "ok", "failed", "crashed"


def without_figures(status: str, reason: str) -> Row:
    return {"status": status, "reason": reason, "figures": {}, "uncounted": []}


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            is_new = not folder.exists() or not any(folder.iterdir())
            if not is_new and not (folder / RESULT_FILE).is_file():
                raise UserError(
                    f"'{folder}' is there, and is not an exploration",
                    stage="explore",
                    expected="a new folder, or one that `tilegrad explore -o` made",
                )
            (folder / POINTS_FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        if is_new:
            write_file(folder / RESULT_FILE, json.dumps({"kind": KIND, "rows": []}).encode())

    def _path(self, key: str) -> Path:
        return self.folder / POINTS_FOLDER / f"{key}.json"

    def read(self, key: str) -> Row | None:
        """What was found before. A point that crashed is tried again: that may have been the machine's fault."""
        try:
            row: Row = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return row if isinstance(row, dict) and row.get("status") in (OK, FAILED) else None

    def keep(self, key: str, row: Mapping[str, Any]) -> None:
        write_file(self._path(key), json.dumps(row).encode())


def is_exploration(folder: Path) -> bool:
    return (folder / RESULT_FILE).is_file()


def read_exploration(folder: Path) -> dict[str, Any]:
    try:
        document = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"'{folder / RESULT_FILE}' cannot be read", stage="report", got=str(error)) from error
    if not isinstance(document, dict) or document.get("kind") != KIND or not document.get("rows"):
        raise UserError(
            f"'{folder}' has no finished exploration", stage="report", hint="the same `tilegrad explore` again goes on"
        )
    return document
