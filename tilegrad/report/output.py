"""Where a command's answer goes: tables to stdout, or JSON to stdout or a file; progress and errors to stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import Progress as RichProgress
from rich.progress import ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.segment import Segment
from rich.text import Text

from tilegrad.build.files import check_writable, write_file
from tilegrad.report import json
from tilegrad.report.loudness import is_quiet, is_verbose
from tilegrad.report.streams import takes_all_letters, writing_to_stderr, writing_to_stdout
from tilegrad.report.table import FittingTable, wrapped
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
    width = None if has_width(stream) else WIDTH_WITHOUT_TERMINAL
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
        if self.is_for_people and not is_quiet():
            with writing_to_stdout():
                console = console_on(sys.stdout)
                for part in what:
                    say(console, part)

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


def has_width(stream: IO[str]) -> bool:
    """Whether somebody reads at a width that is known: a terminal, or what COLUMNS says."""
    return stream.isatty() or bool(os.environ.get("COLUMNS"))


def say(console: Console, what: RenderableType) -> None:
    """Prose is broken between words where the width is known, and left in one line for programs."""
    lines: Iterable[RenderableType]
    if isinstance(what, FittingTable):
        lines = what.lines(console.width)
    elif isinstance(what, Text | str):
        text = Text(what) if isinstance(what, str) else what
        lines = wrapped(text, console.width) if has_width(console.file) else [text]
    else:
        lines = [what]
    for line in lines:
        console.print(line, soft_wrap=True)


def table(
    *columns: str, title: str | None = None, right: tuple[str, ...] = (), spare: tuple[str, ...] = ()
) -> FittingTable:
    """The one look of tilegrad's tables; columns in `right` hold numbers, those in `spare` may be left out."""
    return FittingTable(columns, right, spare, title)


def heading(text: str) -> Text:
    return Text(text, style="bold")


class _Clock(ProgressColumn):
    """Time since the command began. It goes on whatever has been counted to its end."""

    max_refresh = None

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self._now = now
        self._start = now()

    def render(self, task: Task) -> Text:
        del task
        minutes, seconds = divmod(int(self._now() - self._start), 60)
        return Text(f"{minutes}:{seconds:02d}", style="dim")


class Progress:
    """A line on stderr while something takes its time: what, how far, how long. Silent unless stderr is a terminal."""

    def __init__(self, console: Console | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._line = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            _Clock(now),
            console=console or console_on(sys.stderr),
            transient=True,
            disable=is_quiet() or is_verbose() or (console is None and not sys.stderr.isatty()),
        )
        self._now, self._began, self._told = now, now(), ""
        self._task = self._line.add_task("", total=None, visible=False)

    def __enter__(self) -> Progress:
        self._line.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._line.stop()

    def __call__(self, what: str, done: int = 0, of: int = 1) -> None:
        """`done` of `of`; a stage with nothing to count is 0 of 1."""
        if is_verbose() and what != self._told:
            self._told = what
            with writing_to_stderr():
                print(f"{self._now() - self._began:8.1f} s  {visible_line(what)}", file=sys.stderr)
        text = what if of == 1 else f"{what} {done} of {of}"
        self._line.update(self._task, description=escape(text), visible=True)

    def shown(self) -> str:
        """The line as it stands now."""
        with self._line.console.capture() as captured:
            self._line.console.print(self._line.get_renderable())
        return captured.get()
