"""Which kernel files a schedule needs, with the target's own versions in place of the portable ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tilegrad.codegen.c import Comment, Item, Line, SourceFile, Verbatim, print_file
from tilegrad.errors import InternalError
from tilegrad.ir.schedule import Schedule
from tilegrad.ops import registry
from tilegrad.ops.kernels import RUNTIME_FOLDER, KernelFile, KernelSignature, parse_kernel_file
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
    chosen = target.kernel_override(portable.name) or portable
    parsed, original = parse_kernel_file(chosen), parse_kernel_file(portable)
    if chosen is not portable:
        theirs = {kernel.name: kernel.prototype for kernel in parsed.kernels}
        for kernel in original.kernels:
            if theirs.get(kernel.name) != kernel.prototype:
                raise InternalError(f"{target.name}'s {portable.name} has another signature for tg_{kernel.name}")
    return parsed


def collect_kernels(schedule: Schedule) -> KernelSet:
    files: dict[str, KernelFile] = {}
    for entry in schedule.entries.values():
        for launch in entry.launches:
            if launch.nests:
                source = _source(launch.node.op, schedule.target)
                files[source.path.name] = source
    files = dict(sorted(files.items()))
    signatures = {kernel.name: kernel for source in files.values() for kernel in source.kernels}
    headers: dict[str, Path] = {}
    pending = ["tg_kernel.h", *(header for source in files.values() for header in source.headers)]
    while pending:
        header = pending.pop()
        candidates = (schedule.target.folder / "kernels" / header, RUNTIME_FOLDER / header)
        path = next((path for path in candidates if path.exists()), None)
        if path is None:
            raise InternalError(f"no header {header}")
        if header not in headers:
            headers[header] = path
            pending += parse_kernel_file(path).headers
    return KernelSet(files, signatures, dict(sorted(headers.items())))


_FUNCTION = re.compile(r"^TG_KERNEL void tg_(\w+)\(.*?^\}\n\n?", re.MULTILINE | re.DOTALL)
_OWN_COMMENT = re.compile(r"(?:^/\*(?:(?!\*/).)*\*/\n)?\Z", re.MULTILINE | re.DOTALL)


def only_used(source: KernelFile, used: set[str]) -> str:
    """A kernel file without the kernels that the model does not call, and without the comments right above those."""
    result = ""
    position = 0
    for match in _FUNCTION.finditer(source.text):
        result += source.text[position : match.start()]
        position = match.end()
        if match[1] in used:
            result += match[0]
        else:
            result = _OWN_COMMENT.sub("", result, count=1)
    return (result + source.text[position:]).rstrip("\n") + "\n"


def kernels_header(kernels: KernelSet, used: set[str]) -> str:
    """Argument structs and prototypes of the kernels that the model calls, taken from the kernels' own files."""
    shared = sorted(
        {s.struct_header for name, s in kernels.signatures.items() if name in used and s.struct_header is not None}
    )
    items: list[Item] = [Comment("Signatures of the kernels this model calls; the kernels themselves are in kernels/.")]
    items += [Line(f'#include "kernels/{header}"') for header in shared or ["tg_kernel.h"]]
    for name, source in kernels.files.items():
        own = [kernel for kernel in source.kernels if kernel.name in used]
        items += [Line(), Comment(name)]
        structs = {kernel.arguments.name for kernel in own if kernel.struct_header is None}
        items += [Verbatim(struct.text) for struct in source.own_structs if struct.name in structs]
        items += [Verbatim(kernel.prototype) for kernel in own]
    return print_file(SourceFile(tuple(items), guard="TG_KERNELS_H"))
