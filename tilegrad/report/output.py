"""Where a command's answer goes: tables to stdout, or JSON to stdout or a file; progress and errors to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tilegrad.report import json
from tilegrad.report.files import check_writable, write_file
from tilegrad.report.streams import takes_all_letters, writing_to_stderr, writing_to_stdout
from tilegrad.visible import visible, visible_line

WIDTH_WITHOUT_TERMINAL = 120


class _Console(Console):
    """Whatever comes into a table or a message, nothing of it but letters reaches the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else visible(segment.text)
            yield segment if shown == segment.text else Segment(shown, segment.style)

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
            with writing_to_stdout():
                console = console_on(sys.stdout)
                for part in what:
                    console.print(part, soft_wrap=isinstance(part, Text | str))

    def dump(self, text: str) -> None:
        """Long text that nobody may re-wrap. Goes to stderr where stdout belongs to JSON."""
        shown = visible(text if text.endswith("\n") else text + "\n")
        if self.is_for_people:
            with writing_to_stdout():
                sys.stdout.write(shown)
        else:
            with writing_to_stderr():
                sys.stderr.write(shown)

    def write_json(self, document: Mapping[str, Any]) -> None:
        if self.json_to == "-":
            write_json_to_stdout(document)
        elif self.json_to is not None:
            write_file(Path(self.json_to), json.dumps(document).encode())


def write_json_to_stdout(document: Mapping[str, Any]) -> None:
    with writing_to_stdout():
        sys.stdout.write(json.dumps(document, in_ascii=not takes_all_letters(sys.stdout)))


class _Table(Table):
    """A cell is one line, and as wide as what is shown of it."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        shown = (visible_line(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*shown, **options)


def table(*columns: str, title: str | None = None, right: tuple[str, ...] = ()) -> Table:
    """The one look of tilegrad's tables; columns in `right` hold numbers."""
    made = _Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
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
