"""A small C syntax tree and its printer: what generated files are made of."""

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
class Line:
    """A preprocessor line or a blank one."""

    text: str = ""


@dataclass(frozen=True)
class Call:
    """As a statement."""

    function: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declare:
    """`type name = value;`, or a braced initializer of `.field = value` pairs or plain items."""

    c_type: str
    name: str
    value: str | None = None
    fields: tuple[tuple[str, str], ...] | None = None
    items: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Assign:
    target: str
    value: str


@dataclass(frozen=True)
class Return:
    value: str | None = None


@dataclass(frozen=True)
class If:
    condition: str
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class For:
    """Counts an int from 0."""

    variable: str
    limit: str
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Function:
    result: str
    name: str
    parameters: tuple[str, ...]
    body: tuple[Statement, ...] | None = None  # None: a prototype
    comment: str | None = None


@dataclass(frozen=True)
class Struct:
    name: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Enumeration:
    name: str
    members: tuple[tuple[str, int, str], ...]  # name, value, comment


@dataclass(frozen=True)
class Verbatim:
    """Text that is C already: a struct taken from a kernel's own file."""

    text: str


Statement: TypeAlias = Comment | Line | Call | Declare | Assign | Return | If | For
Item: TypeAlias = Statement | Function | Struct | Enumeration | Verbatim


@dataclass(frozen=True)
class SourceFile:
    items: tuple[Item, ...]
    guard: str | None = None


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


def _wrapped(prefix: str, pieces: Sequence[str], suffix: str, indent: str, hanging: str) -> list[str]:
    """Fills `prefix piece, piece, … suffix` into lines."""
    lines = []
    current = indent + prefix
    for position, piece in enumerate(pieces):
        text = piece + (suffix if position == len(pieces) - 1 else ",")
        glue = "" if position == 0 else " "
        if len(current) + len(glue) + len(text) > LINE_WIDTH and current.strip() and position > 0:
            lines.append(current)
            current = indent + hanging + text
        else:
            current += glue + text
    if not pieces:
        current += suffix
    lines.append(current)
    return lines


def _comment_lines(text: str, indent: str) -> list[str]:
    parts = text.split("\n")
    if len(parts) == 1:
        return [f"{indent}/* {parts[0]} */"]
    return [f"{indent}/* {parts[0]}", *(f"{indent} * {part}" for part in parts[1:-1]), f"{indent} * {parts[-1]} */"]


def _print_body(statements: Iterable[Statement], depth: int) -> list[str]:
    return [line for statement in statements for line in _print_item(statement, depth)]


def _print_block(head: list[str], body: Sequence[Statement], depth: int) -> list[str]:
    """Braces where there is more than one line below the head."""
    inner = _print_body(body, depth + 1)
    if len(inner) == 1:
        return [*head, *inner]
    return [*head[:-1], f"{head[-1]} {{", *inner, f"{INDENT * depth}}}"]


def _wrapped_condition(start: str, condition: str) -> list[str]:
    """Broken behind `&&` and `||` where it is too long for a line."""
    pieces = re.split(r"(?<=&&) |(?<=\|\|) ", condition)
    lines = [start]
    for position, piece in enumerate(pieces):
        text = piece + (")" if position == len(pieces) - 1 else "")
        glue = "" if position == 0 else " "
        if len(lines[-1]) + len(glue) + len(text) > LINE_WIDTH and position > 0:
            lines.append(" " * len(start) + text)
        else:
            lines[-1] += glue + text
    return lines


def _print_item(item: Item, depth: int) -> list[str]:
    indent = INDENT * depth
    match item:
        case Comment(text):
            return _comment_lines(text, indent)
        case Line(text):
            return [text]
        case Verbatim(text):
            return text.split("\n")
        case Call(function, arguments):
            return _wrapped(f"{function}(", arguments, ");", indent, " " * (len(function) + 1))
        case Declare(c_type, name, value, fields, items):
            return _print_declaration(c_type, name, value, fields, items, indent)
        case Assign(target, value):
            return [f"{indent}{target} = {value};"]
        case Return(value):
            return _print_return(value, indent)
        case If(condition, body, otherwise):
            head = _wrapped_condition(f"{indent}if (", condition)
            lines = _print_block(head, body, depth)
            return lines + (_print_block([f"{indent}else"], otherwise, depth) if otherwise else [])
        case For(variable, limit, body):
            head = [f"{indent}for (int {variable} = 0; {variable} < {limit}; {variable}++)"]
            return _print_block(head, body, depth)
        case Function(result, name, parameters, body, comment):
            lines = [] if comment is None else _comment_lines(comment, indent)
            start = f"{result}{'' if result.endswith('*') else ' '}{name}("
            short = _one_line(f"{start}{', '.join(parameters or ('void',))})", body)
            if short is not None:
                return [*lines, short]
            ending = ");" if body is None else ")"
            lines += _wrapped(start, parameters or ("void",), ending, indent, " " * len(start))
            if body is not None:
                lines += ["{", *_print_body(body, 1), "}"]
            return lines
        case Struct() | Enumeration():
            return _print_type(item)


def _one_line(head: str, body: Sequence[Statement] | None) -> str | None:
    """A function of one simple statement, where it fits."""
    if body is None or len(body) != 1 or not isinstance(body[0], Call | Assign | Return):
        return None
    (statement,) = _print_item(body[0], 0)[:1]
    text = f"{head} {{ {statement} }}"
    return text if statement.endswith(";") and len(text) <= LINE_WIDTH else None


def _print_return(value: str | None, indent: str) -> list[str]:
    if value is None:
        return [f"{indent}return;"]
    start, bracket, arguments = value.partition("(")
    if len(f"{indent}return {value};") <= LINE_WIDTH or not bracket:
        return [f"{indent}return {value};"]
    start = f"return {start}("
    return _wrapped(start, arguments.removesuffix(")").split(", "), ");", indent, " " * len(start))


def aligned_comments(lines: Sequence[str]) -> list[str]:
    """Comments behind lines that follow each other begin in one column."""
    result: list[str] = []
    block: list[tuple[str, str]] = []
    for line in (*lines, ""):
        found = re.fullmatch(r"(\s*[^\s/].*?) +(/\*.*\*/)", line)
        if found:
            block.append((found[1], found[2]))
            continue
        width = max((len(code) for code, _ in block), default=0)
        result += [f"{code:{width}} {comment}" for code, comment in block]
        block = []
        result.append(line)
    return result[:-1]


def _print_type(item: Struct | Enumeration) -> list[str]:
    if isinstance(item, Struct):
        return ["typedef struct {", *(f"{INDENT}{text};" for text in item.fields), f"}} {item.name};"]
    rows = [f"{INDENT}{member} = {value}, /* {comment} */" for member, value, comment in item.members]
    return ["typedef enum {", *aligned_comments(rows), f"}} {item.name};"]


def _print_declaration(
    c_type: str,
    name: str,
    value: str | None,
    fields: tuple[tuple[str, str], ...] | None,
    items: tuple[str, ...] | None,
    indent: str,
) -> list[str]:
    start = f"{c_type}{'' if c_type.endswith('*') else ' '}{name}"
    if fields is None and items is None:
        return [f"{indent}{start};" if value is None else f"{indent}{start} = {value};"]
    pieces = [f".{key} = {text}" for key, text in fields] if fields is not None else list(items or ())
    one_line = f"{indent}{start} = {{{', '.join(pieces)}}};"
    if len(one_line) <= LINE_WIDTH and not any(piece.startswith("{") for piece in pieces):
        return [one_line]
    return [f"{indent}{start} = {{", *(f"{indent}{INDENT}{piece}," for piece in pieces), f"{indent}}};"]


def print_file(source: SourceFile) -> str:
    lines: list[str] = []
    if source.guard is not None:
        lines += [f"#ifndef {source.guard}", f"#define {source.guard}", ""]
    for item in source.items:
        lines += _print_item(item, 0)
    if source.guard is not None:
        lines += ["", "#endif"]
    return "\n".join(lines) + "\n"
