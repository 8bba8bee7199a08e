"""`python -m tilegrad.verify.goldens [--update] [NAME …]`: are the shipped goldens current? Make them anew."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from tilegrad import frontend, zoo
from tilegrad.data.batches import SampleSpec, synthetic
from tilegrad.errors import TilegradError
from tilegrad.passes.parameters import select
from tilegrad.verify import goldens, torch_reference
from tilegrad.verify.reference import Array, ReferenceRecipe

UPDATES = max(goldens.SNAPSHOTS)


@dataclass(frozen=True)
class Case:
    """What `tilegrad train NAME --steps 100` does when nothing else is said."""

    name: str
    model: onnx.ModelProto
    recipe: ReferenceRecipe
    trainable: tuple[str, ...]
    batches: list[tuple[Array, ...]]


def case(name: str) -> Case:
    """The default run of a zoo model: seed 0, batch 1, no accumulation, SGD at 0.01."""
    card = zoo.describe(name)
    imported = frontend.load(name)
    spec = SampleSpec(card.input_shape, card.loss, () if card.classes else card.input_shape, card.classes)
    stream = synthetic(0, spec, 1)
    return Case(
        name,
        zoo.build(name, 0),
        ReferenceRecipe(loss=card.loss),
        tuple(select(imported.graph, imported.parameters, card.train)),
        [stream.batch(index) for index in range(UPDATES)],
    )


def update(name: str, folder: Path) -> str:
    wanted = case(name)
    pair = torch_reference.run_pair(
        wanted.model, wanted.recipe, wanted.batches, wanted.trainable, snapshots=goldens.SNAPSHOTS
    )
    path = folder / f"{name}.npz"
    command = f"python -m tilegrad.verify.goldens --update {name}"
    samples = goldens.save(path, pair, wanted.model, wanted.batches, command)
    return f"{name}: {path.stat().st_size:,} bytes, {len(wanted.trainable)} tensors, {samples} samples each"


def check(name: str, folder: Path) -> str:
    """Empty if the shipped golden is current."""
    path, wanted = folder / f"{name}.npz", case(name)
    if not path.is_file():
        return f"{name}: no golden"
    return goldens.load(path, name, wanted.model, wanted.recipe, wanted.trainable, wanted.batches).reason


def made_by(path: Path) -> str:
    """The command a golden records."""
    with np.load(path, allow_pickle=False) as stored:
        return str(json.loads(str(stored["about"]))["command"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tilegrad.verify.goldens", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="zoo models; all of them if none is named")
    parser.add_argument("--update", action="store_true", help="make them anew with PyTorch")
    options = parser.parse_args(arguments)
    folder = Path(__file__).parent
    stale = 0
    for name in options.names or zoo.names():
        message = update(name, folder) if options.update else check(name, folder)
        stale += bool(message) and not options.update
        print(message or f"{name}: current")
    return 1 if stale else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TilegradError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
