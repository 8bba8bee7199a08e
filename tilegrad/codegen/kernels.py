"""Which kernel files a schedule needs, with the target's own versions in place of the portable ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilegrad.codegen.c import Comment, Function, Item, print_file
from tilegrad.errors import InternalError, UserError
from tilegrad.ir.schedule import Schedule
from tilegrad.ops import registry
from tilegrad.ops.kernels import (
    RUNTIME_FOLDER,
    KernelFile,
    KernelSignature,
    find_header,
    parse_kernel_file,
    parse_kernel_text,
)
from tilegrad.targets.base import Target


@dataclass(frozen=True)
class KernelSet:
    """`files` by name in the project's `kernels/` folder; `signatures` by kernel name."""

    files: dict[str, KernelFile]
    signatures: dict[str, KernelSignature]
    headers: dict[str, Path]


def _source(op: str, target: Target) -> KernelFile:
    portable = registry.kernel_source(op)
    if portable is None:
        raise InternalError(f"operator {op} has nests but no C file")
    return target_kernels(portable, target) if portable.parent == registry.OPS_FOLDER else parse_kernel_file(portable)


@cache
def target_kernels(portable: Path, target: Target) -> KernelFile:
    """An operator's kernels as a target runs them: the portable file, with the target's own definitions in place."""
    original = parse_kernel_file(portable)
    override = target.kernel_override(portable.name)
    if override is None:
        return original
    merged = parse_kernel_text(portable, _overridden(original.text, override.read_text(encoding="utf-8")))
    ours, theirs = ({kernel.name: kernel.prototype for kernel in file.kernels} for file in (original, merged))
    for name in ours.keys() | theirs.keys():
        if ours.get(name) != theirs.get(name):
            raise InternalError(f"{target.name}'s {portable.name} has another signature for tg_{name}")
    return merged


def collect_kernels(schedule: Schedule) -> KernelSet:
    files: dict[str, KernelFile] = {}
    launches = (launch for entry in schedule.entries.values() for launch in entry.launches if launch.nests)
    for op in dict.fromkeys(part for launch in launches for part in registry.parts(launch.node.op)):
        source = _source(op, schedule.target)
        _refuse_second(f"C files called '{source.path.name}'", files.get(source.path.name, source).path, source.path)
        files[source.path.name] = source
    files = dict(sorted(files.items()))
    signatures: dict[str, KernelSignature] = {}
    owners: dict[str, Path] = {}
    for source in files.values():
        for kernel in source.kernels:
            _refuse_second(f"kernels called 'tg_{kernel.name}'", owners.get(kernel.name, source.path), source.path)
            owners[kernel.name] = source.path
            signatures[kernel.name] = kernel
    return KernelSet(files, signatures, dict(sorted(_headers(files.values(), schedule.target).items())))


def _refuse_second(what: str, first: Path, second: Path) -> None:
    """Only an operator from outside the package can bring this about."""
    if first != second:
        raise UserError(f"the model's operators have two {what}", stage="codegen", got=f"{first} and {second}")


def _headers(sources: Iterable[KernelFile], target: Target) -> dict[str, Path]:
    """Every header that a source includes, directly or not; a target's own takes the place of ours."""
    headers: dict[str, Path] = {}
    # A model of views alone calls no kernel, but its kernels.h still includes the one header that all share.
    pending = [("tg_kernel.h", RUNTIME_FOLDER / "tg_kernel.h")]
    pending += [(header, source.path) for source in sources for header in source.headers]
    while pending:
        header, includer = pending.pop()
        if header in headers:
            continue
        path = target.kernel_override(header) or find_header(header, includer.parent)
        if path is None:
            raise UserError(f"'{includer.name}' includes '{header}', which is not there", stage="codegen")
        headers[header] = path
        pending += [(inner, path) for inner in parse_kernel_file(path).headers]
    return headers


_DEFINITION = re.compile(
    r"^(?P<kind>TG_KERNEL|TG_INLINE|TG_TEMPLATE|TG_SHARED)\b[^(\n]*?\btg_(?P<function>\w+)\("
    r"|^typedef struct (?=\{[^}]*\} (?P<struct>\w+);)",
    re.MULTILINE,
)
_OWN_COMMENT = re.compile(r"(?:^/\*(?:(?!\*/).)*\*/\n)?\Z", re.MULTILINE | re.DOTALL)
_INCLUDES = re.compile(r'(?:^#include "[\w.]+"\n)+', re.MULTILINE)


def _name(definition: re.Match[str]) -> str:
    return definition["struct"] or f"tg_{definition['function']}"


def _overridden(portable: str, override: str) -> str:
    """The portable text with a target's includes in place of its own, and its definitions in place of any of the name.

    So a target's file holds what it does in another way, and nothing else.
    """
    own_names = {_name(match) for match in _DEFINITION.finditer(override)}
    own_includes = _INCLUDES.search(override)
    if own_includes is None or _INCLUDES.search(portable) is None:
        raise InternalError("a kernel file includes nothing")
    rest = _without(portable, lambda match: _name(match) in own_names)
    rest = _INCLUDES.sub(lambda _: own_includes[0], rest, count=1)
    return _without_orphans(rest.rstrip("\n") + "\n\n" + _INCLUDES.sub("", override, count=1))


def only_used(source: KernelFile, used: set[str]) -> str:
    """A kernel file without the kernels that the model does not call, and without what only those needed."""
    text = _without(source.text, lambda match: match["kind"] == "TG_KERNEL" and match["function"] not in used)
    return _without_orphans(text)


def _without_orphans(text: str) -> str:
    """The text without the helpers and structs whose name occurs nowhere but in their definition."""
    return _without_orphans_of({"": text})[""]


def kernel_texts(kernels: KernelSet, used: set[str]) -> dict[str, str]:
    """The files of `kernels/`, without what the model has no use for."""
    texts = {name: only_used(source, used) for name, source in kernels.files.items()}
    texts |= {name: path.read_text(encoding="utf-8") for name, path in kernels.headers.items()}
    return _without_orphans_of(texts)


def _without_orphans_of(texts: Mapping[str, str]) -> dict[str, str]:
    """The texts without the helpers and structs whose name occurs nowhere but in their definition."""
    words: Counter[str] = Counter()
    for text in texts.values():
        words.update(re.findall(r"\w+", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)))

    def is_orphan(match: re.Match[str]) -> bool:
        return match["kind"] != "TG_KERNEL" and words[_name(match)] == 1

    shorter = {name: _without(text, is_orphan).rstrip("\n") + "\n" for name, text in texts.items()}
    return _without_orphans_of(shorter) if shorter != texts else shorter


def _without(text: str, is_unused: Callable[[re.Match[str]], bool]) -> str:
    """The text without some of its definitions, nor the comments right above those."""
    result = ""
    position = 0
    for match in _DEFINITION.finditer(text):
        if is_unused(match):
            result = _OWN_COMMENT.sub("", result + text[position : match.start()], count=1)
            position = _end_of_definition(text, match.end())
    return result + text[position:]


def _end_of_definition(text: str, start: int) -> int:
    """Behind the line of the closing brace, and behind an empty line after it."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return re.compile(r"[^\n]*\n\n?").match(text, brace.end()).end()  # type: ignore[union-attr]
    raise InternalError("a definition in a kernel file does not end")


def _prototype(kernel: KernelSignature) -> Function:
    start, _, parameters = kernel.prototype.removesuffix(");").partition("(")
    result, _, name = start.rpartition(" ")
    return Function(result, name, tuple(parameters.split(", ")))


def kernels_header(kernels: KernelSet, used: set[str]) -> str:
    """Argument structs and prototypes of the kernels that the model calls, taken from the kernels' own files."""
    shared = sorted(
        {s.struct_header for name, s in kernels.signatures.items() if name in used and s.struct_header is not None}
    )
    items: list[Item] = [Comment("Signatures of the kernels this model calls; the kernels themselves are in kernels/.")]
    items += [f'#include "kernels/{header}"' for header in shared or ["tg_kernel.h"]]
    for name, source in kernels.files.items():
        own = [kernel for kernel in source.kernels if kernel.name in used]
        items += ["", Comment(name)]
        structs = {kernel.arguments.name for kernel in own if kernel.struct_header is None}
        items += [struct.text for struct in source.own_structs if struct.name in structs]
        items += [_prototype(kernel) for kernel in own]
    return print_file(items, guard="TG_KERNELS_H")
