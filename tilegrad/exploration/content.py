"""What a point is, as a digest: the model, the data, the chip, every option, and the compiler itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import tilegrad
from tilegrad import zoo
from tilegrad.targets import files as target_files

_PACKAGE = Path(tilegrad.__file__).parent
_SOURCES = (".py", ".c", ".h", ".json", ".S", ".ld")


def _digest(paths: Iterable[tuple[str, Path]]) -> str:
    found = hashlib.sha256()
    for name, path in paths:
        content = path.read_bytes()
        found.update(f"{name}\0{len(content)}\0".encode())
        found.update(content)
    return found.hexdigest()


@cache
def compiler_digest() -> str:
    """Another compiler gives other figures."""
    sources = sorted(path for path in _PACKAGE.rglob("*") if path.suffix in _SOURCES)
    return _digest((str(path.relative_to(_PACKAGE)), path) for path in sources)


def path_digest(path: Path) -> str:
    """Of a file with those that belong to it (an ONNX model may have data beside it), or of all files of a folder."""
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if one.is_file())
        return _digest((str(one.relative_to(path)), one) for one in inside)
    beside = sorted(one for one in path.parent.glob(f"{path.name}*") if one.is_file())
    return _digest((one.name, one) for one in beside)


def model_digest(model: str) -> str:
    return f"zoo {model}" if model in zoo.names() else path_digest(Path(model))


def point_key(task: Mapping[str, object], beside: Mapping[str, str]) -> str:
    """`task` says what is asked for, `beside` what the names in it stand for."""
    target = repr(target_files.find(str(task["target"])))
    whole = {"task": {**task, "target": target}, "beside": beside, "compiler": compiler_digest()}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:32]
