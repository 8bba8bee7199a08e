"""Training graphs that others made, as our graphs: ONNX Runtime's artifacts, and the two forms of the closest peer.

files (what lies where) -> roles (what each input is) -> sweep (nodes, one by one) -> `ir.given.GivenTraining`.
The backward graph is used as it is; nothing is differentiated again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt

import numpy as np
import onnx

from tilegrad import random
from tilegrad.analysis.verify import verify_graph
from tilegrad.errors import UserError
from tilegrad.expectations import is_told
from tilegrad.frontend.given.files import GivenFiles, files_of, is_given, kind_of
from tilegrad.frontend.given.operators import LOSSES
from tilegrad.frontend.given.optimizer import read_optimizer
from tilegrad.frontend.given.protos import evaluation_proto
from tilegrad.frontend.given.roles import ACCUMULATE, Roles, roles_of
from tilegrad.frontend.given.stored import Stored, read_stored
from tilegrad.frontend.given.sweep import Translation
from tilegrad.frontend.model import ImportedModel, SourceKind
from tilegrad.frontend.onnx_values import dtype_of, element_type_name, to_array
from tilegrad.frontend.weights import Array, Arrays
from tilegrad.ir.given import GivenTraining, GivenUpdate
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import Constant, TensorType
from tilegrad.passes.parameters import ParameterInfo
from tilegrad.random import Purpose

__all__ = ["files_of", "import_given", "is_given", "kind_of"]

STAGE = "import"


def import_given(files: GivenFiles, batch: int | None, seed: int = 0) -> ImportedModel:
    """A `batch` that nobody gave is the graph's own, or that of the data that came along."""
    roles = roles_of(files)
    stored_names = {tensor.name for tensor in files.training.graph.initializer}
    inputs = [value.name for value in files.training.graph.input if value.name not in stored_names]
    positional = [name for name in inputs if name not in roles.buffers.values()]
    stored = read_stored(files, positional, roles.data, roles.parameters)
    bound = _batch_of(files.training, roles, stored, batch)
    types = _input_types(files.training, roles, bound)
    optimizer, updates = read_optimizer(files, roles)
    initial, notes = _initial(files, roles, stored, types, seed)
    _check_shapes(files, roles, types, initial)
    step, writes, more_notes = _step(files, roles, types, initial, updates)
    evaluate = replace(_evaluation(files, roles, step, types, initial, bound), name=files.name)
    training = GivenTraining(
        kind=_kind(files, roles),
        step=step,
        gradients={update.parameter: update.buffer for update in updates},
        flag=roles.flag,
        writes=writes,
        updates=updates,
        optimizer=optimizer,
        evaluate=evaluate,
        batch=bound,
        protos={"training": files.training, "evaluation": files.evaluation, "optimizer": files.optimizer},
        initial={name: initial[name] for name in (*roles.parameters, *roles.frozen)},
        batches=_checked_batches(files, stored, roles, types),
        references=stored.references,
        accumulate=stored.accumulate,
        steps=stored.steps,
        updates_done=files.checkpoint.step if files.checkpoint else 0,
    )
    said = f"'{files.place}' is {training.kind}: its backward graph is used as it is"
    return ImportedModel(
        files.name,
        SourceKind.GRAPHS,
        evaluate,
        evaluation_proto(files, evaluate, initial),
        files.training,
        _infos(training, roles, initial),
        bound,
        files.training,
        (said, *notes, *stored.notes, *more_notes),
        training=training,
        given=(files, seed),
    )


def _kind(files: GivenFiles, roles: Roles) -> str:
    if roles.inner:
        return "a training graph with its optimizer inside"
    return "a training graph" + (" with an optimizer graph" if files.optimizer is not None else "")


def _dims(value: onnx.ValueInfoProto) -> list[int | None]:
    return [
        dim.dim_value if dim.WhichOneof("value") == "dim_value" else None for dim in value.type.tensor_type.shape.dim
    ]


def _batch_of(model: onnx.ModelProto, roles: Roles, stored: Stored, wanted: int | None) -> int:
    """A backward graph is made for its batch: a fixed one cannot be replaced."""
    first = [dims[0] for value in model.graph.input if value.name in roles.data and (dims := _dims(value))]
    fixed = next((extent for extent in first if extent), None)
    if fixed is not None and all(first):
        if is_told(wanted) and wanted != fixed:
            raise UserError(
                "a training graph has the batch that it was made for",
                stage=STAGE,
                expected=f"--batch {fixed}",
                got=str(wanted),
                hint="generate it again with a free batch dimension",
            )
        return fixed
    if wanted is not None and is_told(wanted):
        return wanted
    if not stored.batches:
        return 1
    return next((len(array) for array in stored.batches[0].values() if array.ndim), 1)


def _input_types(model: onnx.ModelProto, roles: Roles, batch: int) -> dict[str, TensorType]:
    """Of every input, free first dimensions of data bound together."""
    found = {}
    held = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in held:
            continue
        kind = value.type.tensor_type.elem_type
        dtype = dtype_of(kind)
        if value.type.WhichOneof("value") != "tensor_type" or dtype is None:
            raise UserError(
                f"input '{value.name}' cannot be used",
                stage=STAGE,
                expected="a tensor of f32, an integer type or bool",
                got=element_type_name(kind),
            )
        dims = _dims(value)
        if dims and dims[0] is None and value.name in roles.data:
            dims[0] = batch
        if any(extent is None for extent in dims):
            raise UserError(
                f"input '{value.name}' has free dimensions besides the batch",
                stage=STAGE,
                expected="fixed dimensions",
                got=str(dims),
            )
        found[value.name] = TensorType(dtype, tuple(int(extent or 0) for extent in dims))
    return found


def _arrays(model: onnx.ModelProto) -> Arrays:
    return {tensor.name: to_array(tensor, f"initializer '{tensor.name}'") for tensor in model.graph.initializer}


def _initial(
    files: GivenFiles, roles: Roles, stored: Stored, types: Mapping[str, TensorType], seed: int
) -> tuple[Arrays, tuple[str, ...]]:
    """Every value that is there at the start: the graph's initializers, and weights that are fed."""
    found = _arrays(files.training)
    sources: list[Mapping[str, Array]] = [stored.weights]
    if files.checkpoint is not None:
        sources += [files.checkpoint.trained, files.checkpoint.frozen]
    sources += [_arrays(model) for model in (files.forward, files.evaluation) if model is not None]
    drawn = []
    for stream, name in enumerate((*roles.parameters, *roles.frozen)):
        if name in found:
            continue
        value = next((source[name] for source in sources if name in source), None)
        if value is None:
            value = _drawn(types[name], seed, stream)
            drawn.append(name)
        found[name] = np.asarray(value)
    notes = (f"no file has initial values of {', '.join(drawn)}: drawn from the seed",) if drawn else ()
    return found, notes


def _drawn(tensor: TensorType, seed: int, stream: int) -> Array:
    fan = int(np.prod(tensor.shape[1:], dtype=np.int64)) if tensor.rank > 1 else max(tensor.size, 1)
    words = random.words(seed, Purpose.WEIGHTS, stream, tensor.size)
    return (random.to_signed(words) * np.float32(1.0 / sqrt(fan))).astype(np.float32).reshape(tensor.shape)


def _check_shapes(files: GivenFiles, roles: Roles, types: Mapping[str, TensorType], initial: Arrays) -> None:
    """The graphs, the checkpoint and the buffers must be of one model."""
    for name in (*roles.parameters, *roles.frozen):
        wanted = types.get(name)
        held = initial[name]
        if wanted is not None and (held.shape != wanted.shape or held.dtype != wanted.dtype.numpy):
            raise UserError(
                f"'{files.place}': the graph and the stored values of '{name}' disagree",
                stage=STAGE,
                expected=str(wanted),
                got=f"{held.dtype}{list(held.shape)}",
                hint="are they of the same model?",
            )
    for parameter, buffer in roles.buffers.items():
        if buffer in types and types[buffer].shape != initial[parameter].shape:
            raise UserError(
                f"the accumulation buffer of '{parameter}' has another shape",
                stage=STAGE,
                expected=str(list(initial[parameter].shape)),
                got=f"'{buffer}' {types[buffer]}",
            )
    if files.checkpoint is not None:
        strange = sorted(set(files.checkpoint.trained) - set(roles.parameters))
        if strange or set(roles.parameters) - set(files.checkpoint.trained) - set(_arrays(files.training)):
            raise UserError(
                f"'{files.place}': the checkpoint is of another model",
                stage=STAGE,
                expected=", ".join(roles.parameters),
                got=", ".join(files.checkpoint.trained),
            )


def _translated(model: onnx.ModelProto, types: Mapping[str, TensorType], initial: Arrays, roles: Roles) -> Translation:
    arrays = dict(initial)
    known = {**{name: t for name, t in types.items() if name not in arrays}}
    known |= {name: Constant(array).type for name, array in arrays.items()}
    return Translation(model, known, arrays, {*roles.parameters, *roles.frozen}).run()


def _step(
    files: GivenFiles, roles: Roles, types: Mapping[str, TensorType], initial: Arrays, updates: tuple[GivenUpdate, ...]
) -> tuple[Graph, tuple[tuple[str, str], ...], list[str]]:
    done = _translated(files.training, types, initial, roles)
    nodes = [*done.nodes, *(_inner_accumulators(roles, updates)), *done.accumulators]
    loss = _loss_of(files.training, done)
    known = done.types
    for update in updates:
        known.setdefault(update.buffer, known[update.parameter])
    extra = tuple(
        value.name
        for value in files.training.graph.output
        if value.name in known and value.name != loss and not _is_bookkeeping(files.training, value.name)
    )
    graph = Graph("step", roles.data, (loss, *extra), tuple(nodes), dict(known), {}, (), ())
    return _with_constants(graph, done.constants), _statistics(nodes, roles), done.notes


def _inner_accumulators(roles: Roles, updates: tuple[GivenUpdate, ...]) -> list[Node]:
    """An optimizer inside the graph reads gradients directly: they are put into buffers first, as everywhere."""
    buffers = {update.parameter: update.buffer for update in updates}
    return [
        Node(f"{each.parameter}/{ACCUMULATE}", ACCUMULATE, (buffers[each.parameter], each.gradient), ("",))
        for each in roles.inner
    ]


def _is_bookkeeping(model: onnx.ModelProto, value: str) -> bool:
    made = next((node for node in model.graph.node if value in node.output), None)
    return made is not None and made.op_type in (ACCUMULATE, "SGD", "SGDOptimizerV2", "AdamWOptimizer")


def _loss_of(model: onnx.ModelProto, done: Translation) -> str:
    """The first output that is one float, or what the loss operator computes."""
    for value in model.graph.output:
        found = done.types.get(value.name)
        if found is not None and found.dtype.is_float and found.size == 1 and not _is_bookkeeping(model, value.name):
            return str(value.name)
    for node in done.nodes:
        if node.op in LOSSES:
            return node.outputs[0]
    raise UserError(
        "the training graph has no loss",
        stage=STAGE,
        expected="an output of one number, or a loss operator",
        got=", ".join(f"'{value.name}'" for value in model.graph.output),
    )


def _statistics(nodes: list[Node], roles: Roles) -> tuple[tuple[str, str], ...]:
    """ONNX Runtime updates running statistics that are fed, in place, and leaves those alone that are initializers."""
    writes: dict[str, str] = {}
    for node in nodes:
        if node.op == "BatchNormInternal":
            for value, state in zip(node.outputs[1:3], node.inputs[3:5], strict=False):
                if state in roles.frozen:
                    writes[state] = value
    return tuple((value, state) for state, value in writes.items())


def _with_constants(graph: Graph, arrays: Mapping[str, Array]) -> Graph:
    """The graph with the constants that it reads."""
    made = {name for node in graph.nodes for name in node.outputs if name}
    read = {name for node in graph.nodes for name in node.inputs if name} | set(graph.outputs)
    constants = {n: Constant(arrays[n]) for n in arrays if n in read and n not in made and n not in graph.inputs}
    sources = {*graph.inputs, *made, *constants}
    types = {n: t for n, t in graph.types.items() if n in sources or n in read}
    types |= {n: constant.type for n, constant in constants.items()}
    return replace(graph, constants=constants, types=types)


def _evaluation(
    files: GivenFiles,
    roles: Roles,
    step: Graph,
    types: Mapping[str, TensorType],
    initial: Arrays,
    batch: int,
) -> Graph:
    """The evaluation graph that came along, or the forward part of the step up to its scores."""
    if files.evaluation is None:
        return _forward(step)
    model = files.evaluation
    own = _arrays(model)
    fed = {value.name: value for value in model.graph.input if value.name not in own}
    found = _input_types(model, roles, batch)
    for name, value in found.items():
        known = types.get(name)
        if name not in initial and name not in roles.data:
            raise _disagree(files, f"the evaluation graph reads '{name}', which the training graph does not have", fed)
        if known is not None and known != value:
            raise _disagree(files, f"the training and the evaluation graph disagree about '{name}'", fed, known, value)
    clashes = {n for n in own if n in initial and not np.array_equal(own[n], initial[n]) and n not in fed}
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    for node in renamed.graph.node:
        for position, name in enumerate(node.input):
            if name in clashes:
                node.input[position] = f"{name}.evaluation"
    arrays = {(f"{n}.evaluation" if n in clashes else n): a for n, a in own.items()}
    arrays |= {name: initial[name] for name in fed if name in initial}
    done = _translated(renamed, {n: t for n, t in found.items() if n not in arrays}, arrays, roles)
    inputs = tuple(name for name in fed if name in roles.data)
    outputs = tuple(value.name for value in model.graph.output)
    graph = Graph(files.name, inputs, outputs, tuple(done.nodes), dict(done.types), {}, (), ())
    return verify_graph(_with_constants(graph, done.constants))


def _disagree(
    files: GivenFiles,
    message: str,
    fed: Mapping[str, object],
    expected: TensorType | None = None,
    got: TensorType | None = None,
) -> UserError:
    return UserError(
        f"'{files.place}': {message}",
        stage=STAGE,
        expected=None if expected is None else str(expected),
        got=", ".join(fed) if got is None else str(got),
        hint="are the graphs of one model?",
    )


def _forward(step: Graph) -> Graph:
    scores = next((node.inputs[0] for node in step.nodes if node.op in LOSSES), step.outputs[0])
    live, kept = {scores}, []
    for node in reversed(step.nodes):
        if any(name in live for name in node.outputs):
            kept.append(node)
            live.update(filter(None, node.inputs))
    inputs = tuple(name for name in step.inputs if name in live)
    constants = {name: constant for name, constant in step.constants.items() if name in live}
    made = {name for node in kept for name in node.outputs if name}
    types = {n: t for n, t in step.types.items() if n in made or n in inputs or n in constants}
    return verify_graph(Graph("forward", inputs, (scores,), tuple(reversed(kept)), types, constants, (), ()))


def _checked_batches(
    files: GivenFiles, stored: Stored, roles: Roles, types: Mapping[str, TensorType]
) -> tuple[dict[str, Array], ...]:
    made = []
    for number, batch in enumerate(stored.batches):
        one = {}
        for name in roles.data:
            wanted, array = types[name], batch[name]
            if array.shape != wanted.shape:
                raise UserError(
                    f"'{files.place}': mini-batch {number} has a wrong shape for the input '{name}'",
                    stage=STAGE,
                    expected=str(wanted),
                    got=f"{array.dtype}{list(array.shape)}",
                )
            one[name] = array.astype(wanted.dtype.numpy)
        made.append(one)
    return tuple(made)


def _infos(training: GivenTraining, roles: Roles, initial: Arrays) -> dict[str, ParameterInfo]:
    found = {}
    written = {state for _, state in training.writes}
    for name in (*roles.parameters, *roles.frozen):
        role = "statistic" if name in written else "parameter"
        reason = "the graph accumulates its gradient" if name in roles.parameters else "it is fed and does not train"
        kind = Constant(initial[name]).type
        owner = next((node.name for node in training.step.nodes if name in node.inputs), "")
        found[name] = ParameterInfo(name, kind, role, reason, owner, kind.rank == 1, name not in roles.parameters)
    for name, constant in training.step.constants.items():
        if name not in found:
            found[name] = ParameterInfo(name, constant.type, "constant", "an initializer of the training graph")
    return found
