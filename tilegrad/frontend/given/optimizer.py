"""The optimizer graph: which rule, over which tensors."""

from __future__ import annotations

from dataclasses import replace

import onnx

from tilegrad.errors import UserError
from tilegrad.frontend.given.files import OPTIMIZERS, GivenFiles
from tilegrad.frontend.given.operators import attributes_of
from tilegrad.frontend.given.roles import Roles
from tilegrad.ir.given import GivenUpdate
from tilegrad.optimizers import SGD, AdamW, Optimizer
from tilegrad.optimizers.adamw_ort import AdamWOrt

_SEQUENCES = {"SGDOptimizerV2": (1, 2), "AdamWOptimizer": (2, 3)}


def read_optimizer(files: GivenFiles, roles: Roles) -> tuple[Optimizer | None, tuple[GivenUpdate, ...]]:
    """None where nothing says how parameters are updated: then the recipe does."""
    if roles.inner:
        return _inner(roles)
    if files.optimizer is None:
        return None, tuple(GivenUpdate(name, roles.buffers[name]) for name in roles.parameters)
    nodes = [node for node in files.optimizer.graph.node if node.op_type in OPTIMIZERS]
    kinds = {node.op_type for node in nodes}
    if len(kinds) != 1:
        raise UserError(
            "the optimizer graph mixes optimizers", stage="import", expected="one kind", got=", ".join(sorted(kinds))
        )
    if kinds == {"SGD"}:
        return _single_tensors(files.optimizer, nodes, roles)
    for node in nodes:
        _check_sequences(files.optimizer, node, roles)
    slots = files.checkpoint.slots if files.checkpoint else {}
    updates = [GivenUpdate(name, roles.buffers[name], None, slots.get(name, ())) for name in roles.parameters]
    return _rule(nodes[0], files), tuple(updates)


def _inner(roles: Roles) -> tuple[Optimizer, tuple[GivenUpdate, ...]]:
    buffers = {each.parameter: f"{each.parameter}_grad.accumulation.buffer" for each in roles.inner}
    updates = tuple(GivenUpdate(each.parameter, buffers[each.parameter], each.learning_rate) for each in roles.inner)
    return SGD(lr=updates[0].learning_rate or 0.0), updates


def _rule(node: onnx.NodeProto, files: GivenFiles) -> Optimizer:
    rate = files.checkpoint.learning_rate if files.checkpoint else None
    lr = {} if not rate else {"lr": rate}
    if node.op_type == "SGDOptimizerV2":
        return SGD(**lr)
    given = attributes_of(node)
    options = {
        "beta1": round(float(given.get("alpha", 0.9)), 7),
        "beta2": round(float(given.get("beta", 0.999)), 7),
        "epsilon": float(given.get("epsilon", 1e-6)),
        "weight_decay": float(given.get("weight_decay", 0.01)),
    }
    mode, corrects = int(given.get("adam_mode", 0)), float(given.get("correct_bias", 1))
    if mode == 0 and not corrects:
        raise UserError(
            "AdamWOptimizer without bias correction is known in its mode 1 only",
            stage="import",
            node=node.name or node.output[0],
            expected="adam_mode 1, or correct_bias 1",
        )
    return AdamW(**options, **lr) if mode == 0 else AdamWOrt(**options, correct_bias=corrects, **lr)


def _check_sequences(model: onnx.ModelProto, node: onnx.NodeProto, roles: Roles) -> None:
    """Sequences that are fed are all parameters, in order; one that is put together must be of them."""
    made = {each.output[0]: list(each.input) for each in model.graph.node if each.op_type == "SequenceConstruct"}
    places = zip(_SEQUENCES[node.op_type], (roles.parameters, roles.buffers.values()), strict=True)
    for position, known in places:
        strange = [name for name in made.get(node.input[position], ()) if name not in known]
        if strange:
            raise UserError(
                f"the optimizer is over tensors that do not exist: {', '.join(strange)}",
                stage="import",
                node=node.name or node.op_type,
                expected=", ".join(known),
                got=", ".join(made[node.input[position]]),
            )


def _single_tensors(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], roles: Roles
) -> tuple[Optimizer, tuple[GivenUpdate, ...]]:
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    updates = {}
    for node in nodes:
        parameter, buffer = node.input[:2]
        if parameter not in roles.buffers or roles.buffers[parameter] != buffer:
            raise UserError(
                f"the optimizer is over tensors that do not exist: '{parameter}' and '{buffer}'",
                stage="import",
                node=node.name or node.output[0],
                expected=", ".join(f"'{name}' and '{own}'" for name, own in roles.buffers.items()),
                got=f"'{parameter}' {shapes.get(parameter)} and '{buffer}' {shapes.get(buffer)}",
            )
        rate = next((attribute.f for attribute in node.attribute if attribute.name == "lr"), None)
        updates[parameter] = GivenUpdate(parameter, buffer, None if rate is None else float(rate))
    missing = [name for name in roles.parameters if name not in updates]
    if missing:
        raise UserError(
            f"the optimizer leaves parameters out: {', '.join(missing)}",
            stage="import",
            expected=", ".join(roles.parameters),
            got=", ".join(updates),
        )
    ordered = tuple(updates[name] for name in roles.parameters)
    rates = [update.learning_rate for update in ordered if update.learning_rate is not None]
    return (replace(SGD(), lr=rates[0]) if rates else SGD()), ordered
