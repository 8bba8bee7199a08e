"""What a compiled program is fed: the shape of a sample, and mini-batches of them."""

from __future__ import annotations

from pathlib import Path

from tilegrad.compiled import Compiled
from tilegrad.data import Batches, SampleSpec, load_npz, synthetic
from tilegrad.errors import UserError
from tilegrad.passes.index_bounds import index_bounds


def sample_spec(compiled: Compiled) -> SampleSpec:
    """What one sample looks like, from the step entry's inputs."""
    program = compiled.program
    y = program.entries["step"].types[program.target_input]
    return input_spec(compiled, program.loss, y.shape[1:], program.label_classes)


def input_spec(compiled: Compiled, loss: str, target_shape: tuple[int, ...], classes: int | None) -> SampleSpec:
    """A sample whose input is the infer entry's, with the given target."""
    program = compiled.program
    data_inputs = program.entries["infer"].inputs
    if len(data_inputs) != 1:
        raise UserError(
            "data can be fed to models with one input only",
            stage="data",
            expected="1 input",
            got=f"{len(data_inputs)}: {', '.join(data_inputs)}",
            hint="use the Python API: session.run('step', [...])",
        )
    x = program.entries["infer"].types[data_inputs[0]]
    if x.rank == 0 or x.shape[0] != program.recipe.batch:
        raise UserError(
            "the model's input has no batch dimension",
            stage="data",
            expected=f"the first dimension to be the batch, {program.recipe.batch}",
            got=str(x),
        )
    return SampleSpec(
        x.shape[1:],
        loss,
        target_shape,
        classes,
        x.dtype,
        index_bounds(program.entries["infer"]).get(data_inputs[0]),
    )


def make_batches(compiled: Compiled, data: str | Path | None) -> Batches:
    recipe = compiled.program.recipe
    spec = sample_spec(compiled)
    return synthetic(recipe.seed, spec, recipe.batch) if data is None else load_npz(data, spec, recipe.batch)
