"""The C of each operator: the function that runs it, and the kernel it calls.

Read from the generated files as they are, by the comments that name nodes, so that what is shown is what was built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tilegrad.compiled import Compiled
from tilegrad.report.picture.model_graph import GRADIENT, origin_of

_FUNCTION = re.compile(
    r"^(?P<comment>/\*(?:[^*]|\*(?!/))*\*/\n)static void (?P<name>\w+)\([^)]*\)(?P<body>\s*\{.*?\n?\}\n)",
    re.MULTILINE | re.DOTALL,
)
_KERNEL = re.compile(r"^TG_KERNEL void tg_(\w+)\(.*?^\}\n", re.MULTILINE | re.DOTALL)
_NUMBERED = re.compile(r"^(forward|train|backward|update)_\d+_?")


def functions(compiled: Compiled) -> dict[str, str]:
    """By what the comment says: `NODE` or `Gradient of NODE`. One node may have several functions."""
    found: dict[str, str] = {}
    text = compiled.project.files.get("model.c", b"").decode()
    for match in _FUNCTION.finditer(text):
        if not _NUMBERED.match(match["name"]):
            continue
        title = _title(match["comment"])
        found[title] = found.get(title, "") + match[0] + "\n"
    return found


def _title(comment: str) -> str:
    """The first line without what follows the node's name."""
    first = comment.removeprefix("/*").strip().split("\n")[0].removesuffix("*/").strip()
    return re.split(r": [A-Z]\w*(?: \d+/\d+)?[,:]", first)[0]


def kernels(compiled: Compiled) -> dict[str, str]:
    """Each kernel's function, by name."""
    return dict(_kernel_texts(compiled.project.files))


def _kernel_texts(files: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    for path, content in files.items():
        if path == "kernels.cl" or (path.startswith("kernels/") and path.endswith((".c", ".h"))):
            for match in _KERNEL.finditer(content.decode()):
                yield match[1], match[0]


def code_json(compiled: Compiled) -> dict[str, dict[str, str]]:
    """`nodes` by the name of a node of the step or update, `kernels` by kernel."""
    by_title = functions(compiled)
    nodes = {}
    for entry in ("step", "update"):
        for node in compiled.program.entries[entry].nodes:
            title = origin_of(node.name)
            wanted = f"Gradient of {title}" if GRADIENT in node.name else title
            text = by_title.get(wanted) or by_title.get("Updates of parameters.", "")
            nodes[node.name] = text
    return {"nodes": nodes, "kernels": kernels(compiled)}
