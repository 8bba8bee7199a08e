"""Which files a training graph came in: recognised by what is in them, not by what they are called."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from tilegrad.errors import UserError
from tilegrad.files.npz import read_npz
from tilegrad.frontend.given.checkpoint import Checkpoint, read_checkpoint
from tilegrad.frontend.read import read_model
from tilegrad.frontend.weights import Arrays

OPTIMIZERS = ("SGD", "SGDOptimizerV2", "AdamWOptimizer")
_ACCUMULATOR = "InPlaceAccumulatorV2"
_PREFERRED = ("training_model.onnx", "network_train.onnx", "network.onnx")
_EVALUATIONS = ("eval_model.onnx", "network_eval.onnx")
_STORED = re.compile(r"inputs|outputs|reference|params_after\d+")
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, MemoryError, KeyError, TypeError, SyntaxError)


def kind_of(model: onnx.ModelProto) -> str:
    """What a graph is for: "training", "optimizer" or "model"."""
    operators = {name for node in model.graph.node if isinstance(name := node.op_type, str)}  # bytes: no text at all
    if _ACCUMULATOR in operators or any(_is_gradient(name) for name in operators):
        return "training"
    if operators & set(OPTIMIZERS):
        return "optimizer"
    return "model"


def _is_gradient(name: str) -> bool:
    return name.endswith(("Grad", "Grad_13", "Grad_dX")) and name != "Grad"


@dataclass(frozen=True, eq=False)
class GivenFiles:
    """Everything found. `arrays` are the .npz files by name, `place` is where, for messages."""

    name: str
    place: str
    training: onnx.ModelProto
    optimizer: onnx.ModelProto | None = None
    evaluation: onnx.ModelProto | None = None
    forward: onnx.ModelProto | None = None
    checkpoint: Checkpoint | None = None
    arrays: dict[str, Arrays] = field(default_factory=dict)


def is_given(path: Path) -> bool:
    """Whether a folder holds graphs."""
    return path.is_dir() and (any(path.glob("*.onnx")) or (path / "checkpoint").exists())


def files_of(path: Path, model: onnx.ModelProto | None = None) -> GivenFiles:
    """Of a folder, or of a training graph (`model`) that lies in one beside what belongs to it."""
    folder = path if model is None else path.parent
    graphs = {file: read_model(file) for file in sorted(folder.glob("*.onnx")) if model is None or _belongs(file, path)}
    kinds = {file: kind_of(graph) for file, graph in graphs.items()}
    if model is None:
        file, model = _training_of(path, graphs, kinds)
        name = path.name if file.stem in ("training_model", "network", "network_train") else file.stem
    else:
        file, name = path, path.parent.name if path.name in _PREFERRED else path.stem
    others = {each: graph for each, graph in graphs.items() if kinds[each] == "model"}
    checkpoint = folder / "checkpoint"
    return GivenFiles(
        name=name or "model",
        place=str(path),
        training=model,
        optimizer=_optimizer_of(folder, file, graphs, kinds),
        evaluation=next((graph for each, graph in others.items() if each.name in _EVALUATIONS), None),
        forward=next((graph for each, graph in others.items() if each.name == "forward.onnx"), None),
        checkpoint=read_checkpoint(checkpoint) if checkpoint.is_file() else None,
        arrays={each.stem: _arrays(each) for each in sorted(folder.glob("*.npz")) if _STORED.fullmatch(each.stem)},
    )


def _belongs(file: Path, training: Path) -> bool:
    """Whether a graph beside a training graph that was named is part of it: other models may lie there too."""
    return file != training and ("optim" in file.name or file.name in (*_EVALUATIONS, "forward.onnx"))


def _training_of(
    folder: Path, graphs: dict[Path, onnx.ModelProto], kinds: dict[Path, str]
) -> tuple[Path, onnx.ModelProto]:
    found = {file.name: file for file, kind in kinds.items() if kind == "training"}
    preferred = next((name for name in _PREFERRED if name in found), None)
    if preferred is None and len(found) == 1:
        preferred = next(iter(found))
    if preferred is None:
        held = ", ".join(f"{file.name} ({kind})" for file, kind in kinds.items()) or "no .onnx file"
        raise UserError(
            f"'{folder}' holds no training graph" if not found else f"'{folder}' holds several training graphs",
            stage="import",
            expected="one graph with gradients, such as training_model.onnx",
            got=held,
            hint="a model that is to be differentiated here is given as its .onnx file",
        )
    return found[preferred], graphs[found[preferred]]


def _optimizer_of(
    folder: Path, training: Path, graphs: dict[Path, onnx.ModelProto], kinds: dict[Path, str]
) -> onnx.ModelProto | None:
    """Beside the training graph, in a folder of its own below it, or in the folder beside that is called like it."""
    own = [graphs[file] for file, kind in kinds.items() if kind == "optimizer"]
    if own:
        return own[0]
    beside = folder.parent / folder.name.replace("_train", "_optimizer")
    places = [*sorted(folder.glob("*/*.onnx")), *(sorted(beside.glob("*.onnx")) if beside != folder else [])]
    for file in places:
        graph = read_model(file)
        if kind_of(graph) == "optimizer":
            return graph
    return None


def _arrays(path: Path) -> Arrays:
    try:
        names = tuple(read_npz(path, (), stage="import"))
        return dict(read_npz(path, names, stage="import"))
    except _UNREADABLE as error:
        raise UserError(f"cannot read '{path}' as an .npz file", stage="import", got=str(error)) from error
