"""What a compiled program is fed: the shape of a sample, and mini-batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilegrad.compiled import Compiled
from tilegrad.data.batches import (
    Array,
    Batch,
    Batches,
    Drawn,
    GivenBatches,
    PortSpec,
    SampleSpec,
    synthetic,
    target_kind,
)
from tilegrad.data.stored import load_npz
from tilegrad.errors import UserError
from tilegrad.ir.types import TensorType
from tilegrad.losses import parse
from tilegrad.passes.index_bounds import index_bounds


def sample_spec(compiled: Compiled) -> SampleSpec:
    """What one sample looks like, from the step entry's inputs."""
    program = compiled.program
    infer = program.entries["infer"]
    separate = [target for target in program.targets if target.name not in infer.inputs]
    is_plain = len(infer.inputs) == 1 and len(separate) == 1 and len(program.targets) == 1
    if is_plain and compiled.model.training is None:
        y = program.entries["step"].types[separate[0].name]
        spec = input_spec(compiled, program.loss, y.shape[1:], program.label_classes)
        return _also_by_name(spec, infer.inputs[0], separate[0].name)
    return _given_spec(compiled)


def input_spec(compiled: Compiled, loss: str, target_shape: tuple[int, ...], classes: int | None) -> SampleSpec:
    """A sample whose inputs are the infer entry's, with the given target."""
    program = compiled.program
    infer = program.entries["infer"]
    if len(infer.inputs) != 1:
        return SampleSpec((), loss, given=tuple(_input_port(compiled, name, i) for i, name in enumerate(infer.inputs)))
    x = infer.types[infer.inputs[0]]
    if x.rank == 0 or x.shape[0] != program.recipe.batch:
        raise UserError(
            "the model's input has no batch dimension",
            stage="data",
            expected=f"the first dimension to be the batch, {program.recipe.batch}",
            got=str(x),
        )
    bound = index_bounds(infer).get(infer.inputs[0])
    return SampleSpec(x.shape[1:], loss, target_shape, classes, x.dtype, bound)


def _also_by_name(spec: SampleSpec, x: str, y: str) -> SampleSpec:
    """Arrays x and y may go by the names of the program's inputs as well."""
    first, second = spec.ports
    names = (tuple(dict.fromkeys(("x", x, "X"))), tuple(dict.fromkeys(("y", y, "Y"))))
    if set(names[0]) & set(names[1]):
        return spec
    ports = tuple(
        PortSpec(own, port.shape, port.dtype, port.drawn, port.bound, port.ignored)
        for own, port in zip(names, (first, second), strict=True)
    )
    return SampleSpec(
        spec.input_shape, spec.loss, spec.target_shape, spec.classes, spec.input_dtype, spec.vocabulary, named=ports
    )


def _is_batched(compiled: Compiled, tensor: TensorType) -> bool:
    return tensor.rank > 0 and tensor.shape[0] == compiled.program.recipe.batch


def _input_port(compiled: Compiled, name: str, ordinal: int) -> PortSpec:
    program = compiled.program
    graph = program.entries["infer"] if name in program.entries["infer"].types else program.entries["step"]
    tensor = graph.types[name]
    batched = _is_batched(compiled, tensor)
    labels = program.labels(name)
    shape = tensor.shape[1:] if batched else tensor.shape
    if labels is not None:
        first = program.targets.index(labels)
        return PortSpec((name,), shape, tensor.dtype, Drawn.LABELS, labels.classes, labels.ignored, batched, first)
    bound = index_bounds(graph).get(name)
    return PortSpec((name,), shape, tensor.dtype, Drawn.NOISE, bound, None, batched, ordinal)


def _given_spec(compiled: Compiled) -> SampleSpec:
    """Of any inputs and targets, in the order of the step's inputs."""
    program = compiled.program
    step, infer = program.entries["step"], program.entries["infer"]
    own = [name for name in step.inputs if name in infer.inputs or program.labels(name) is None]
    separate = [target for target in program.targets if target.name not in infer.inputs]
    compared = () if compiled.model.training else parse(program.loss).targets
    terms = dict(zip((target.name for target in separate), compared, strict=False))
    ports = []
    for name in step.inputs:
        if name not in terms:
            ports.append(_input_port(compiled, name, own.index(name) if name in own else 0))
            continue
        tensor, position = step.types[name], list(terms).index(name)
        labels = program.labels(name)
        like = SampleSpec((), program.loss, tensor.shape[1:], None if labels is None else labels.classes)
        names = (name, "y") if position == 0 else (name,)
        batched = _is_batched(compiled, tensor)
        shape = tensor.shape[1:] if batched else tensor.shape
        dtype, drawn, bound, ignored = target_kind(terms[name], like)
        drawn = Drawn.SIGNED if drawn is Drawn.INPUT else drawn
        ports.append(PortSpec(names, shape, dtype, drawn, bound, ignored, batched, position))
    if ports and not any(port.is_batched for port in ports):
        raise UserError(
            "none of the model's inputs has a batch dimension",
            stage="data",
            expected=f"a first dimension of {program.recipe.batch}",
            got=", ".join(f"'{name}' {step.types[name]}" for name in step.inputs),
        )
    return SampleSpec((), program.loss, given=_with_usual_names(ports))


def _with_usual_names(ports: Sequence[PortSpec]) -> tuple[PortSpec, ...]:
    """x is the one input and y the one target, where there is one."""
    made = list(ports)
    for usual, is_target in ((("x", "X"), False), (("y", "Y"), True)):
        found = [i for i, port in enumerate(made) if port.is_target is is_target]
        if len(found) == 1:
            port = made[found[0]]
            made[found[0]] = replace(port, names=tuple(dict.fromkeys((*port.names, *usual))))
    return tuple(made)


def make_batches(compiled: Compiled, data: str | Path | None) -> Batches | GivenBatches:
    recipe = compiled.program.recipe
    training = compiled.model.training
    if data is None and training is not None and training.batches:
        names = compiled.program.entries["step"].inputs
        return GivenBatches(tuple(tuple(made[name] for name in names) for made in training.batches))
    spec = sample_spec(compiled)
    return synthetic(recipe.seed, spec, recipe.batch) if data is None else load_npz(data, spec, recipe.batch)


def infer_inputs(compiled: Compiled, batch: Batch) -> Sequence[Array]:
    """Those arrays of a mini-batch that the infer entry takes, in its order."""
    step, infer = (compiled.program.entries[name] for name in ("step", "infer"))
    by_name = dict(zip(step.inputs, batch, strict=True))
    return [by_name[name] for name in infer.inputs]
