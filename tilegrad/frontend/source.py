"""From what a person passes to an ONNX model: a path, a zoo name, a ModelProto or a torch module."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from tilegrad import zoo
from tilegrad.errors import UserError
from tilegrad.frontend.given.files import GivenFiles, files_of, is_given, kind_of
from tilegrad.frontend.model import SourceKind
from tilegrad.frontend.read import load_external_data, read_model
from tilegrad.frontend.torch_facts import TorchModule
from tilegrad.frontend.torch_module import export_module


@dataclass(frozen=True)
class Source:
    """`module` is what PyTorch knows of a torch module, `given` what a training graph came in; else None."""

    name: str
    kind: SourceKind
    model: onnx.ModelProto
    module: TorchModule | None = None
    given: GivenFiles | None = None
    seed: int = 0


def find_source(source: object, *, seed: int, example: Any, exporter: str | None = None) -> Source:
    """Never changes what the caller passed."""
    if isinstance(source, Path):
        return _file(source, seed)
    if isinstance(source, str):
        return _named(source, seed)
    if isinstance(source, onnx.ModelProto):
        model = onnx.ModelProto()
        model.CopyFrom(source)
        load_external_data(model, None)
        if kind_of(model) == "training":
            return _given(GivenFiles(model.graph.name or "model", "the model", model), seed)
        return Source(model.graph.name or "model", SourceKind.PROTO, model)
    if any(f"{cls.__module__}.{cls.__qualname__}" == "torch.nn.modules.module.Module" for cls in type(source).__mro__):
        model, module = export_module(source, example, exporter)
        return Source(_class_name(source), SourceKind.TORCH, model, module)
    raise UserError(
        "cannot load a model from this",
        stage="import",
        expected="a path, a zoo name, an onnx.ModelProto or a torch.nn.Module",
        got=type(source).__name__,
    )


def _file(path: Path, seed: int) -> Source:
    """A model, or a training graph, or the folder of one."""
    if is_given(path):
        return _given(files_of(path), seed)
    model = read_model(path)
    kind = kind_of(model)
    if kind == "training":
        return _given(files_of(path, model), seed)
    if kind == "optimizer":
        raise UserError(
            f"'{path}' is an optimizer graph, no model",
            stage="import",
            expected="a model, a training graph, or the folder of both",
            got=", ".join(sorted({node.op_type for node in model.graph.node})),
            hint=f"give the folder: {path.parent}",
        )
    return Source(path.stem, SourceKind.FILE, model)


def _given(files: GivenFiles, seed: int) -> Source:
    return Source(files.name, SourceKind.GRAPHS, files.training, given=files, seed=seed)


def _class_name(module: object) -> str:
    """What a module is called: its class, in characters that C and file systems take."""
    name = re.sub(r"\W", "_", type(module).__name__, flags=re.ASCII).strip("_")
    return f"model_{name}" if not name or name[0].isdigit() else name


def _named(name: str, seed: int) -> Source:
    """A zoo name wins over a file of the same name, which can still be reached as `./NAME`."""
    if name in zoo.names():
        return Source(name, SourceKind.ZOO, zoo.build(name, seed))
    path = Path(name)
    if path.suffix or os.sep in name or path.exists():
        return _file(path, seed)
    close = difflib.get_close_matches(name, zoo.names(), n=1)
    raise UserError(
        f"no model '{name}'",
        stage="import",
        expected=f"a path to an .onnx file, or one of {', '.join(zoo.names())}",
        hint=f"did you mean '{close[0]}'?" if close else None,
    )
