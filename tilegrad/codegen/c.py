"""What generated files are made of: text, and the functions, calls and conditions whose lines are filled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

LINE_WIDTH = 120
INDENT = "    "


@dataclass(frozen=True)
class Comment:
    text: str


@dataclass(frozen=True)
class Call:
    """As a statement; `return f` for the function of one whose result is returned."""

    function: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """An `if (…)` or `for (…)`, with what is below it."""

    head: str
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Function:
    result: str
    name: str
    parameters: tuple[str, ...]
    body: tuple[Statement, ...] | None = None  # None: a prototype
    comment: str | None = None


Statement: TypeAlias = str | Comment | Call | Block
"""A string is C already: a statement, a preprocessor line, nothing, or a text of several lines."""
Item: TypeAlias = Statement | Function

# Of C99, of later C and C++ (a header may be included there), and what GNU modes define as macros.
KEYWORDS = frozenset(
    """
    auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    alignas alignof and and_eq asm bitand bitor bool catch char8_t char16_t char32_t class compl concept const_cast
    consteval constexpr constinit co_await co_return co_yield decltype delete dynamic_cast explicit export false friend
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public reinterpret_cast
    requires static_assert static_cast template this thread_local throw true try typeid typename typeof typeof_unqual
    using virtual wchar_t xor xor_eq linux unix i386
    """.split()
)


def comment_text(text: str) -> str:
    """Makes any string (node names come from untrusted files) safe inside a C comment, on one line."""
    printable = text
    if not (text.isascii() and text.isprintable()):
        printable = "".join(c if 32 <= ord(c) < 127 else f"\\u{ord(c):04x}" for c in text)
    printable = printable.replace("*/", "*\\/").replace("/*", "/\\*").replace("??/", "?\\?/")
    return printable if len(printable) <= 160 else printable[:157] + "..."


def identifier(text: str, limit: int = 40) -> str:
    """The readable part of a name as a C identifier piece."""
    cleaned = re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_")
    return cleaned[-limit:].strip("_") or "value"


def float_literal(value: float) -> str:
    """Reads back to exactly the same float32."""
    if value != value:
        return "(0.0f / 0.0f)"
    if value in (float("inf"), float("-inf")):
        return "(1.0f / 0.0f)" if value > 0 else "(-1.0f / 0.0f)"
    text = f"{value:.9g}"
    if not any(mark in text for mark in ".e"):
        text += ".0"
    return text + "f"


def fill(pieces: Iterable[str], width: int = LINE_WIDTH, first: str = "", hanging: str = "") -> list[str]:
    """Pieces as lines of at most `width`: one stands right behind `first`, and further lines begin with `hanging`."""
    lines = [first]
    for number, piece in enumerate(pieces):
        if number and len(lines[-1]) + 1 + len(piece) > width:
            lines.append(hanging + piece)
        else:
            lines[-1] += f" {piece}" if number else piece
    return lines


def with_commas(pieces: Sequence[str], end: str = ",") -> list[str]:
    return [*(f"{piece}," for piece in pieces[:-1]), f"{pieces[-1]}{end}"] if pieces else [end]


def filled(pieces: Sequence[str], width: int = 108) -> str:
    """Comma-separated pieces as lines of about `width`."""
    return "\n".join(fill(with_commas(pieces), width + 1)).removesuffix(",")


def _comment_lines(text: str, indent: str) -> list[str]:
    return f"{indent}/* {text} */".replace("\n", f"\n{indent} * ").split("\n")


def _print_body(statements: Iterable[Statement], depth: int) -> list[str]:
    return [line for statement in statements for line in _print_item(statement, depth)]


def _print_item(item: Item, depth: int) -> list[str]:
    indent = INDENT * depth
    match item:
        case str():
            return [indent + line if line else "" for line in item.split("\n")]
        case Comment(text):
            return _comment_lines(text, indent)
        case Call(function, arguments):
            start = f"{indent}{function}("
            return fill(with_commas(arguments, ");"), first=start, hanging=" " * len(start))
        case Block(head, body):
            pieces = re.split(r"(?<=&&) |(?<=\|\|) ", head)
            lines = fill(pieces, first=indent, hanging=" " * (len(indent) + head.index("(") + 1))
            inner = _print_body(body, depth + 1)
            if len(inner) == 1:
                return [*lines, *inner]
            return [*lines[:-1], f"{lines[-1]} {{", *inner, f"{indent}}}"]
        case Function():
            return _print_function(item)


def _print_function(function: Function) -> list[str]:
    """Of one simple statement: on one line, where that fits."""
    start = f"{function.result}{'' if function.result.endswith('*') else ' '}{function.name}("
    parameters, body = function.parameters or ("void",), function.body
    lines = [] if function.comment is None else _comment_lines(function.comment, "")
    if body is not None and len(body) == 1 and isinstance(body[0], Call | str):
        short = f"{start}{', '.join(parameters)}) {{ {_print_item(body[0], 0)[0]} }}"
        if short.endswith("; }") and len(short) <= LINE_WIDTH:
            return [*lines, short]
    lines += fill(with_commas(parameters, ");" if body is None else ")"), first=start, hanging=" " * len(start))
    return lines if body is None else [*lines, "{", *_print_body(body, 1), "}"]


def aligned_comments(text: str) -> str:
    """Comments behind lines that follow each other begin in one column."""
    result: list[str] = []
    block: list[tuple[str, str]] = []
    for line in (*text.split("\n"), ""):
        found = re.fullmatch(r"(\s*[^\s/].*?) +(/\*.*\*/)", line)
        if found:
            block.append((found[1], found[2]))
            continue
        width = max((len(code) for code, _ in block), default=0)
        result += [f"{code:{width}} {comment}" for code, comment in block]
        block = []
        result.append(line)
    return "\n".join(result[:-1])


def constant(declared: str, pieces: Sequence[str]) -> str:
    """With a braced initializer of `.field = value` pairs or plain items."""
    one_line = f"static const {declared} = {{{', '.join(pieces)}}};"
    if len(one_line) <= LINE_WIDTH:
        return one_line
    return "\n".join([f"static const {declared} = {{", *(f"{INDENT}{piece}," for piece in pieces), "};"])


def array(declared: str, pieces: Sequence[str], width: int = 108) -> str:
    """With its elements as lines of about `width`."""
    rows = filled(pieces, width).replace("\n", f"\n{INDENT}")
    return f"{declared} = {{\n{INDENT}{rows},\n}};"


def print_file(items: Iterable[Item], guard: str | None = None) -> str:
    lines = [] if guard is None else [f"#ifndef {guard}", f"#define {guard}", ""]
    lines += [line for item in items for line in _print_item(item, 0)]
    lines += [] if guard is None else ["", "#endif"]
    return "\n".join(lines) + "\n"
