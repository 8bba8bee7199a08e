"""`tilegrad checkpoint show`, `export` and `diff`: what a device saved, on a desk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tilegrad.build.files import check_writable, write_file
from tilegrad.commands import options
from tilegrad.commands.compiling import compile_for, target_of
from tilegrad.errors import UserError
from tilegrad.files.tensor_files import check_suffix, tensor_bytes
from tilegrad.pipeline import Observer
from tilegrad.report.checkpoint import (
    checkpoint_json,
    checkpoint_report,
    compare_checkpoints,
    diff_json,
    diff_report,
)
from tilegrad.report.output import Output
from tilegrad.training.checkpoint import Checkpoint, read_checkpoint
from tilegrad.training.restored import recipe_of, restored_bytes

_LEARNED = ("parameter", "statistic")

CheckpointFile = Annotated[
    Path,
    typer.Argument(
        metavar="F", help="What tg_save or --checkpoint wrote, or a dump of a flash that holds it.", show_default=False
    ),
]


def show(file: CheckpointFile, json_to: options.JsonTo = None) -> int:
    """Show the last complete save: model, recipe, how far it was, its tensors, and what saving costs a flash."""
    output = Output(json_to)
    found = read_checkpoint(file)
    output.write_json(checkpoint_json(found, file))
    output.show(*checkpoint_report(found, file))
    return 0


def export(
    file: CheckpointFile,
    output_file: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="F.safetensors|F.npz|F.onnx", help="Write it here.", show_default=False
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="The model it was trained from: write all of that, as `train --save` does. F.onnx needs it.",
            show_default=False,
        ),
    ] = None,
    weights: options.Weights = None,
    keep_adapters: Annotated[
        bool, typer.Option("--keep-adapters", help="With --model, leave adapters as they are.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Optimizer state, counters and gradients, too: all that was saved.")
    ] = False,
    json_to: options.JsonTo = None,
) -> int:
    """Write what was learned (parameters, and statistics that train) by initializer name, or the whole model."""
    output = Output(json_to)
    path = _checked_output(file, output_file, model, everything)
    if model is None and (weights is not None or keep_adapters):
        raise UserError(
            "only a whole model has other weights and adapters",
            stage="options",
            expected="--model MODEL",
            got="--weights" if weights is not None else "--keep-adapters",
        )
    check_writable(path)
    found = read_checkpoint(file)
    document: dict[str, Any] = {"file": str(file), "output": str(path), "model": model, "updates": found.updates}
    if model is None:
        tensors = _exported(found, everything)
        write_file(path, tensor_bytes(path, tensors))
        document["tensors"] = sorted(tensors)
        words = f"{len(tensors)} tensors of {found.model}"
    else:
        compiled = compile_for(model, recipe_of(found, file), target_of("host"), Observer(), weights=weights)
        write_file(path, restored_bytes(path, found, compiled, file, merges=not keep_adapters))
        document["tensors"] = sorted(found.with_role(*_LEARNED))
        words = f"{compiled.program.name} with {len(document['tensors'])} tensors that were learned"
    output.write_json(document)
    output.show(f"{words}, after {found.updates} updates, written to {path}")
    return 0


def _checked_output(file: Path, path: Path | None, model: str | None, everything: bool) -> Path:
    if path is None:
        raise UserError(
            "there is nowhere to write the tensors", stage="options", expected="-o F.npz", hint=f"-o {file.stem}.npz"
        )
    check_suffix(path, "-o")
    if path.suffix.lower() == ".onnx" and model is None:
        raise UserError(
            f"'{path}' needs the model: a checkpoint holds what training changes",
            stage="options",
            expected="--model MODEL, what it was trained from",
            got="none",
        )
    if everything and model is not None:
        raise UserError(
            "--all is for the tensors of a checkpoint alone", stage="options", got=f"--all --model {model}"
        )
    return path


def _exported(found: Checkpoint, everything: bool) -> dict[str, Any]:
    return dict(found.tensors) if everything else found.with_role(*_LEARNED)


def diff(
    file: CheckpointFile,
    other: Annotated[Path, typer.Argument(metavar="G", help="The one to compare it with.", show_default=False)],
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with status 1 where a bit differs.")] = False,
    json_to: options.JsonTo = None,
) -> int:
    """Compare two checkpoints tensor by tensor: which bits differ, and how far apart they are."""
    output = Output(json_to)
    first, second = read_checkpoint(file), read_checkpoint(other)
    rows = compare_checkpoints(first, second)
    output.write_json(diff_json(first, second, file, other, rows))
    output.show(*diff_report(first, second, file, other, rows))
    return int(exit_code and any(not row.is_same for row in rows))
