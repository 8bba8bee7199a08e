"""`tilegrad checkpoint show`, `export` and `diff`: what a device saved, on a desk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tilegrad.build.files import check_writable, write_file
from tilegrad.checkpoint import Checkpoint, read_checkpoint
from tilegrad.commands import options
from tilegrad.errors import UserError
from tilegrad.report.arrays import npz_bytes
from tilegrad.report.checkpoint import (
    checkpoint_json,
    checkpoint_report,
    compare_checkpoints,
    diff_json,
    diff_report,
)
from tilegrad.report.output import Output

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
        typer.Option("-o", "--output", metavar="F.npz", help="Write the tensors here.", show_default=False),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Optimizer state, counters and gradients, too: all that was saved.")
    ] = False,
    json_to: options.JsonTo = None,
) -> int:
    """Write what was learned (parameters, and statistics that train) by initializer name."""
    output = Output(json_to)
    if output_file is None:
        raise UserError(
            "there is nowhere to write the tensors", stage="options", expected="-o F.npz", hint=f"-o {file.stem}.npz"
        )
    if output_file.suffix != ".npz":
        raise UserError(
            f"'{output_file}' cannot be written",
            stage="options",
            expected="a file that ends in .npz",
            got=output_file.suffix or "no ending",
        )
    check_writable(output_file)
    found = read_checkpoint(file)
    tensors = _exported(found, everything)
    write_file(output_file, npz_bytes(tensors))
    document: dict[str, Any] = {"file": str(file), "output": str(output_file), "tensors": sorted(tensors)}
    output.write_json(document)
    output.show(f"{len(tensors)} tensors of {found.model}, after {found.updates} updates, written to {output_file}")
    return 0


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
