"""Tables and lines that fit a terminal of any width without breaking a number.

A table gives way in this order: headers and prose wrap between words; columns that its maker can spare are left out,
the least important first, and a line below says which; long names are shortened. A column of numbers is whole or is not
there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tilegrad.visible import visible_line

GAP = "  "
SHORTEST_NAME = 24
"""Names and long words keep this many characters before columns are left out."""

_NUMBER_AT_END = re.compile(r"[\d,.]+$")
_NUMBER_AT_START = re.compile(r"^[\d,.]+")


class FittingTable:
    """Rows under headers. Columns in `right` hold numbers; those in `spare` may be left out, in this order."""

    def __init__(
        self, columns: Sequence[str], right: Sequence[str] = (), spare: Sequence[str] = (), title: str | None = None
    ) -> None:
        self.headers = list(columns)
        self.title = title
        self._right = frozenset(right)
        self._spare = [columns.index(name) for name in spare]
        self.rows: list[list[Text]] = []

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        row = [cell.copy() if isinstance(cell, Text) else Text(visible_line(cell)) for cell in cells]
        row += [Text()] * (len(self.headers) - len(row))
        for cell in row:
            cell.stylize_before(style)
        self.rows.append(row)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        for line in self.lines(options.max_width):
            line.no_wrap, line.overflow = True, "ignore"
            yield line

    def lines(self, width: int) -> Iterator[Text]:
        kept, left_out = self._kept(width)
        widths = self._widths(kept, width)
        if self.title is not None:
            yield Text(self.title, style="bold")
        headers = [Text(self.headers[i], style="dim") for i in kept]
        yield from self._row(headers, kept, widths, is_header=True)
        for row in self.rows:
            yield from self._row([row[i] for i in kept], kept, widths)
        if left_out:
            names = ", ".join(self.headers[i] for i in sorted(left_out))
            whole = self._sum(self._natural(i) for i in range(len(self.headers)))
            yield from wrapped(
                Text(f"left out here: {names} (shown by a terminal of {whole} columns, and in --json)", style="dim"),
                width,
            )

    # ---- widths

    def _cells(self, column: int) -> Iterator[Text]:
        return (row[column] for row in self.rows)

    def _natural(self, column: int) -> int:
        return max(cell_len(self.headers[column]), *(cell.cell_len for cell in self._cells(column)), 0)

    def _least(self, column: int) -> int:
        """Numbers are whole, headers and prose wrap between words, and only a long word may be shortened."""
        header = max(map(cell_len, self.headers[column].split()), default=0)
        if self.headers[column] in self._right:
            return max(header, *(cell.cell_len for cell in self._cells(column)), 0)
        words = (cell_len(word) for cell in self._cells(column) for word in cell.plain.split())
        return max(header, min(max(words, default=0), SHORTEST_NAME))

    @staticmethod
    def _sum(widths: Iterator[int]) -> int:
        all_widths = list(widths)
        return sum(all_widths) + len(GAP) * (len(all_widths) - 1)

    def _kept(self, width: int) -> tuple[list[int], list[int]]:
        kept = list(range(len(self.headers)))
        left_out: list[int] = []
        for column in self._spare:
            if self._sum(self._least(i) for i in kept) <= width:
                break
            kept.remove(column)
            left_out.append(column)
        return kept, left_out

    def _widths(self, kept: Sequence[int], width: int) -> list[int]:
        """Each has its least; what is left goes to those that want more, a column at a time, evenly."""
        widths = [self._least(i) for i in kept]
        wanted = [self._natural(i) for i in kept]
        free = width - self._sum(iter(widths))
        while free > 0 and widths != wanted:
            hungry = [k for k in range(len(kept)) if widths[k] < wanted[k]]
            for k in hungry[:free]:
                widths[k] += 1
            free -= len(hungry[:free])
        return widths

    # ---- lines

    def _row(
        self, cells: Sequence[Text], columns: Sequence[int], widths: Sequence[int], is_header: bool = False
    ) -> Iterator[Text]:
        parts = [list(_within(cell, width)) for cell, width in zip(cells, widths, strict=True)]
        height = max((len(part) for part in parts), default=0)
        for y in range(height):
            line = Text()
            for k, part in enumerate(parts):
                at = y - (height - len(part)) if is_header else y
                cell = part[at].copy() if 0 <= at < len(part) else Text()
                space = Text(" " * (widths[k] - cell.cell_len))
                is_right = self.headers[columns[k]] in self._right
                line += (space + cell if is_right else cell + space) + Text(GAP if k + 1 < len(parts) else "")
            line.rstrip()
            yield line


def shortened(word: str, width: int) -> str:
    """Both ends of a word that is too long, around a sign of it; a number in it is there whole or not at all."""
    if cell_len(word) <= width:
        return word
    start, end = word[: max(width - 1, 0) // 3], word[len(word) - (width - 1 - max(width - 1, 0) // 3) :]
    if word[len(start)].isdigit():
        start = _NUMBER_AT_END.sub("", start)
    if word[len(word) - len(end) - 1].isdigit():
        end = _NUMBER_AT_START.sub("", end)
    return f"{start}…{end}"


def _words(text: Text) -> Iterator[tuple[Text, int]]:
    """The words of a text, each with the number of spaces before it."""
    for match in re.finditer(r"( *)([^ ]+)", text.plain):
        yield text[match.start(2) : match.end(2)], len(match[1])


def _filled(text: Text, width: int, indent: int, may_shorten: bool) -> Iterator[Text]:
    """Lines of at most `width`, broken between words. A word that is longer is shortened, or has a line of its own."""
    line, is_first, is_empty = Text(), True, True
    for word, spaces in _words(text):
        if may_shorten and word.cell_len > width:
            word = Text(shortened(word.plain, width), style=word.style, spans=word.spans)
        gap = spaces if is_first or not is_empty else 0
        if not is_empty and line.cell_len + gap + word.cell_len > width:
            yield line
            line, is_empty, gap = Text(" " * indent), True, 0
        line = line + Text(" " * gap) + word
        is_first, is_empty = False, False
    yield line


def _within(cell: Text, width: int) -> Iterator[Text]:
    if cell.cell_len <= width:
        yield cell
        return
    indent = len(cell.plain) - len(cell.plain.lstrip())
    yield from _filled(cell, width, indent, may_shorten=True)


def wrapped(text: Text, width: int) -> Iterator[Text]:
    """Lines of prose, broken between words, what follows indented; words are whole, paths among them."""
    for line in text.split("\n", allow_blank=True):
        if line.cell_len <= width:
            yield line
            continue
        indent = len(line.plain) - len(line.plain.lstrip()) + 2
        yield from _filled(line, width, indent, may_shorten=False)
