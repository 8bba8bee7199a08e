"""From a model in any of its forms to our graph, in small pure steps.

read -> check -> inline -> bind the batch -> convert the opset -> classify parameters -> fold, type and translate.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tilegrad.analysis.verify import verify_graph
from tilegrad.errors import UserError
from tilegrad.expectations import as_count
from tilegrad.files.tensor_files import read_tensors
from tilegrad.frontend.batch import Bound, bind_batch
from tilegrad.frontend.branches import resolve_branches
from tilegrad.frontend.check import check_attributes, check_model, check_opset, check_text
from tilegrad.frontend.copies import split_copies, tied_notes
from tilegrad.frontend.fold import lenient_types
from tilegrad.frontend.folded import folding_note, name_folded
from tilegrad.frontend.given import import_given
from tilegrad.frontend.gradient_policy import with_padding
from tilegrad.frontend.inline import expand_defined_operators, inline_local_functions
from tilegrad.frontend.model import ImportedModel, SourceKind
from tilegrad.frontend.onnx_values import tensor_type
from tilegrad.frontend.rewrite import rewrite_operators
from tilegrad.frontend.simplify import simplify
from tilegrad.frontend.source import Source, find_source
from tilegrad.frontend.sweep import Swept, build_proto, live_nodes, sweep
from tilegrad.frontend.unsupported import node_label, operator_name
from tilegrad.frontend.version import to_canonical_opset
from tilegrad.frontend.weights import Arrays, narrow_floats, refuse_bad_numbers, take_initializers, with_initializers
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import Constant, DType
from tilegrad.passes.canonicalize import canonicalize
from tilegrad.passes.module_parameters import as_module_says
from tilegrad.passes.parameters import ParameterInfo, classify
from tilegrad.recipe import expect_seed, expect_whole

__all__ = ["ImportedModel", "SourceKind", "import_source", "load"]


def load(
    source: object,
    *,
    batch: int | None = None,
    seed: int = 0,
    example: Any = None,
    exporter: str | None = None,
    weights: str | Path | Mapping[str, Any] | None = None,
) -> ImportedModel:
    """Imports a model: a path, a zoo name, an onnx.ModelProto or a torch.nn.Module (with `example` inputs).

    `batch` binds a free batch dimension (1 by default) or replaces a fixed one if the shapes still infer.
    `seed` draws a zoo model's initial weights. `exporter` is the one of PyTorch's that a module goes through:
    "torchscript", "dynamo", or by default the first of them that can. `weights` are put in the place of the model's
    own: a .safetensors, .npz or .onnx file, or arrays by initializer name.
    """
    if batch is not None:
        expect_whole("the batch size", batch, "1 or more")
        batch = as_count(batch)
    expect_seed(seed)
    model = import_source(find_source(source, seed=seed, example=example, exporter=exporter), batch)
    if weights is None:
        return model
    from tilegrad.frontend.start import with_weights

    if isinstance(weights, Mapping):
        return with_weights(model, {name: np.asarray(array) for name, array in weights.items()}, "what was given")
    return with_weights(model, read_tensors(Path(weights)), f"'{weights}'")


def import_source(found: Source, batch: int | None) -> ImportedModel:
    """A model that has been read, as our graph. What PyTorch knows of a torch module is not asked of the rule."""
    check_text(found.model)
    if found.given is not None:
        return import_given(found.given, batch, found.seed)
    check_opset(found.model)
    model, arrays = take_initializers(found.model)
    check_model(model)
    model = inline_local_functions(model)
    check_attributes(model)
    model, arrays, folded = name_folded(model, arrays)
    model, arrays, copies = split_copies(model, arrays)
    bound = bind_batch(model, arrays, batch)
    original = with_initializers(bound.model, arrays)
    model = to_canonical_opset(bound.model, arrays)
    model, arrays = resolve_branches(model, arrays)
    model, notes = simplify(model, arrays)
    model = rewrite_operators(model, arrays)
    model = expand_defined_operators(model)
    arrays, more_notes = narrow_floats(model.graph.node, arrays)
    infos = _classify(model, arrays, found)
    parameters = {name for name, info in infos.items() if info.role == "parameter"}
    refuse_bad_numbers(arrays, parameters)
    try:
        swept = sweep(model, arrays, parameters, found.name)
        graph = with_padding(canonicalize(verify_graph(swept.graph)), found.module)
        _check_outputs(swept, bound, original)
    except UserError as error:
        raise _explained(error, bound) from error
    proto = build_proto(model, swept, arrays)
    notes = (*folding_note(folded), *copies, *notes, *more_notes, *_left_out(arrays))
    notes += found.module.notes() if found.module else tied_notes(swept.graph, parameters, found.model.producer_name)
    if bound.rebatched_from is not None:
        notes += (f"the model's fixed batch of {bound.rebatched_from} was replaced by {bound.batch}",)
    return ImportedModel(
        found.name, found.kind, graph, proto, original, infos, bound.batch, found.model, notes, found.module, folded
    )


def _classify(model: onnx.ModelProto, arrays: Arrays, found: Source) -> dict[str, ParameterInfo]:
    """The written rule, applied to the model before anything is folded: it decides what may fold."""
    types = {value: tensor for value, proto in lenient_types(model, arrays).items() if (tensor := tensor_type(proto))}
    constants = {}
    for value, array in arrays.items():
        if DType.from_numpy(array.dtype) is not None:
            constants[value] = Constant(array)
            types[value] = constants[value].type
    nodes = tuple(
        Node(node_label(node, position), operator_name(node), tuple(node.input), tuple(node.output))
        for position, node in enumerate(live_nodes(model))
    )
    graph = Graph(found.name, (), (), nodes, types, constants)
    infos = classify(graph, from_pytorch=found.model.producer_name == "pytorch")
    if found.module is None:
        return infos
    module = found.module
    return as_module_says(infos, module.trains, module.buffers, module.unused, module.without_gradient)


def _left_out(arrays: Arrays) -> tuple[str, ...]:
    """Floats of another precision that the model does not cast have no type here, so the rule does not list them."""
    return tuple(
        f"initializer '{name}' is {array.dtype}: only float32 trains"
        for name, array in arrays.items()
        if array.dtype.kind == "f" and DType.from_numpy(array.dtype) is None
    )


def _check_outputs(swept: Swept, bound: Bound, original: onnx.ModelProto) -> None:
    """A fixed batch baked into the model may let shapes infer while samples run into each other."""
    if bound.rebatched_from is None:
        return
    producers = swept.graph.producers()
    inputs = {swept.graph.types[name].shape[:1] for name in swept.graph.inputs}
    for name in swept.graph.outputs:
        shape = swept.graph.types[name].shape
        if shape and (bound.batch,) in inputs and shape[0] != bound.batch and np.prod(shape) % bound.batch == 0:
            raise UserError(
                f"output '{name}' does not follow the batch",
                stage="import",
                node=producers[name].name if name in producers else None,
                expected=f"a first dimension of {bound.batch}",
                got=str(list(shape)),
            )


def _explained(error: UserError, bound: Bound) -> UserError:
    """An error after re-batching most likely comes of it."""
    if bound.rebatched_from is None:
        return error
    return UserError(
        f"the model cannot be re-batched from {bound.rebatched_from} to {bound.batch}: {error.message}",
        stage=error.stage,
        node=error.node,
        expected=error.expected,
        got=error.got,
        hint="export the model with a free batch dimension (dynamic_axes in torch.onnx.export)",
    )
