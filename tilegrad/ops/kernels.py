"""Kernel signatures, read from the kernels' own C: the C file is the one place where a signature is written.

A kernel is `TG_KERNEL void tg_NAME(pointers..., TG_ARG const STRUCT *p, int core_id, int core_count)`. Its argument
struct is a typedef in the same file or in a shared header of `tilegrad/runtime`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilegrad.errors import InternalError

RUNTIME_FOLDER = Path(__file__).parent.parent / "runtime"

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_STRUCT = re.compile(r"typedef\s+struct\s*\w*\s*\{(?P<body>[^}]*)\}\s*(?P<name>\w+)\s*;")
_KERNEL = re.compile(r"TG_KERNEL\s+void\s+tg_(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"(?P<name>[\w.]+)"', re.MULTILINE)
_FIELD = re.compile(r"(?P<type>int32_t|float|uint32_t)\s+(?P<names>[\w\s,]+)")


@dataclass(frozen=True)
class ArgumentStruct:
    """`fields` are (C type, name) in declaration order."""

    name: str
    fields: tuple[tuple[str, str], ...]
    text: str


@dataclass(frozen=True)
class KernelSignature:
    name: str
    pointers: tuple[tuple[str, str], ...]  # (C type such as "const float *", name)
    arguments: ArgumentStruct
    prototype: str
    struct_header: str | None  # the shared header that declares the struct, None where the kernel file does


@dataclass(frozen=True)
class KernelFile:
    path: Path
    text: str
    headers: tuple[str, ...]
    kernels: tuple[KernelSignature, ...]
    own_structs: tuple[ArgumentStruct, ...]


def _structs(text: str) -> tuple[ArgumentStruct, ...]:
    """The structs that could be kernel arguments: those of plain 32-bit fields. A kernel's private ones are skipped."""
    plain = _COMMENT.sub("", text)
    result = []
    for match in _STRUCT.finditer(plain):
        declarations = filter(None, (part.strip() for part in match["body"].split(";")))
        parsed = [_FIELD.fullmatch(declaration) for declaration in declarations]
        fields = [(field["type"], name.strip()) for field in parsed if field for name in field["names"].split(",")]
        if all(parsed):
            original = next(m.group(0) for m in _STRUCT.finditer(text) if m["name"] == match["name"])
            result.append(ArgumentStruct(match["name"], tuple(fields), original))
    return tuple(result)


def _pointer(parameter: str) -> tuple[str, str]:
    declaration = " ".join(parameter.replace("TG_MEM", "").replace("restrict", "").replace("*", " * ").split())
    c_type, _, name = declaration.rpartition(" ")
    return c_type, name


def find_header(name: str, *folders: Path) -> Path | None:
    """A header that every kernel may include, or one of these folders' own."""
    return next((found for folder in (RUNTIME_FOLDER, *folders) if (found := folder / name).exists()), None)


@cache
def parse_kernel_file(path: Path) -> KernelFile:
    return parse_kernel_text(path, path.read_text(encoding="utf-8"))


def parse_kernel_text(path: Path, text: str) -> KernelFile:
    """The kernels of a text that stands for the file at `path`."""
    headers = tuple(_INCLUDE.findall(text))
    own = _structs(text)
    known: dict[str, tuple[ArgumentStruct, str | None]] = {struct.name: (struct, None) for struct in own}
    for header in headers:
        header_path = find_header(header, path.parent)
        if header_path is not None:
            for struct in _structs(header_path.read_text(encoding="utf-8")):
                known[struct.name] = (struct, header)
    kernels = []
    for match in _KERNEL.finditer(_COMMENT.sub("", text)):
        *pointers, arguments, core_id, core_count = (part.strip() for part in match["parameters"].split(","))
        if core_id != "int core_id" or core_count != "int core_count" or "TG_ARG" not in arguments:
            raise InternalError(f"{path.name}: tg_{match['name']} does not end with TG_ARG struct, core_id, core_count")
        struct_name = re.sub(r"\b(TG_ARG|const|p)\b|\*", "", arguments).strip()
        if struct_name not in known:
            raise InternalError(f"{path.name}: tg_{match['name']} takes the unknown struct '{struct_name}'")
        struct, header_name = known[struct_name]
        prototype = " ".join(match.group(0).split()) + ";"
        kernels.append(KernelSignature(match["name"], tuple(map(_pointer, pointers)), struct, prototype, header_name))
    return KernelFile(path, text, headers, tuple(kernels), own)
