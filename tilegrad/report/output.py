"""Where a command's answer goes: tables to stdout, or JSON to stdout or a file; progress and errors to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from tilegrad.report import json
from tilegrad.report.files import check_writable, write_file

WIDTH_WITHOUT_TERMINAL = 120


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """rich would end the process with status 1 here; who calls us decides instead."""
        raise BrokenPipeError


def console_on(stream: TextIO) -> Console:
    """Plain text as given: names from a model may look like markup or emoji codes, and numbers need no colours."""
    width = None if stream.isatty() or os.environ.get("COLUMNS") else WIDTH_WITHOUT_TERMINAL
    return _Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


class Output:
    """`json_to` None: tables. `-`: one JSON document on stdout and nothing else there. A path: both."""

    def __init__(self, json_to: str | None = None) -> None:
        self.json_to = json_to
        if json_to is not None and json_to != "-":
            check_writable(Path(json_to))

    @property
    def is_for_people(self) -> bool:
        return self.json_to != "-"

    def show(self, *what: RenderableType) -> None:
        """Prints for people, unless stdout belongs to JSON."""
        if self.is_for_people:
            with survives_closed_pipe():
                console = console_on(sys.stdout)
                for part in what:
                    console.print(part, soft_wrap=isinstance(part, Text | str))

    def dump(self, text: str) -> None:
        """Long text that nobody may re-wrap. Goes to stderr where stdout belongs to JSON."""
        with survives_closed_pipe():
            stream = sys.stdout if self.is_for_people else sys.stderr
            stream.write(text if text.endswith("\n") else text + "\n")

    def write_json(self, document: Mapping[str, Any]) -> None:
        if self.json_to == "-":
            with survives_closed_pipe():
                sys.stdout.write(json.dumps(document))
                sys.stdout.flush()
        elif self.json_to is not None:
            write_file(Path(self.json_to), json.dumps(document).encode())


@contextmanager
def survives_closed_pipe() -> Iterator[None]:
    """`tilegrad … | head` must neither print a traceback nor lose the exit status."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(*columns: str, title: str | None = None, right: tuple[str, ...] = ()) -> Table:
    """The one look of tilegrad's tables; columns in `right` hold numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", header_style="dim", overflow="fold")
    return made


def heading(text: str) -> Text:
    return Text(text, style="bold")


class Progress:
    """A bar on stderr while something takes its time; silent unless stderr is a terminal."""

    def __init__(self) -> None:
        self._bar = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console_on(sys.stderr),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("", total=None, visible=False)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, what: str, done: int = 0, of: int = 1) -> None:
        """A stage with nothing to count shows a moving bar."""
        total = None if (done, of) == (0, 1) else of
        self._bar.update(self._task, description=what, completed=done, total=total, visible=True)
