"""Reverse-mode differentiation of a graph, at compile time.

Only what trainable values need is built: a node gets a backward node only if one of its inputs leads to a trainable
value, so a frozen layer costs no gradient and saves no activation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilegrad.errors import InternalError, UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView, Operator
from tilegrad.passes.builder import GraphBuilder

OnGradient = Callable[[str, str], None]


def values_on_trainable_paths(graph: Graph, trainable: Iterable[str]) -> set[str]:
    """Every float value that depends on a trainable one through differentiable inputs."""
    reached = set(trainable)
    for node in graph.nodes:
        blocked = registry.get(node.op).nondifferentiable_inputs
        if any(name in reached for i, name in enumerate(node.inputs) if i not in blocked):
            reached.update(name for name in node.outputs if name and graph.types[name].dtype is DType.F32)
    return reached


def _refuse_lost(node: Node, operator: Operator, wanted: Sequence[bool], gradients: Sequence[str | None]) -> None:
    """A gradient that was asked for and did not come would silently be zero."""
    found = (*gradients, *(None,) * len(wanted))
    for position, (is_wanted, gradient) in enumerate(zip(wanted, found, strict=False)):
        if is_wanted and not gradient and not operator.has_zero_gradient:
            raise UserError(
                f"{node.op} passes no gradient to its input {position} ('{node.inputs[position]}')",
                stage="autodiff",
                node=node.name,
                expected="an input that no trained parameter leads to",
                got=f"'{node.inputs[position]}', which depends on one",
                hint="freeze the parameters before it (--train last:K or names:GLOB), or make it a constant",
            )


def append_backward(
    builder: GraphBuilder, forward: Graph, loss: str, seed_gradient: str, trainable: Iterable[str], done: OnGradient
) -> None:
    """Appends the backward operators of `forward` to `builder`, which already holds its nodes.

    `seed_gradient` is the gradient of `loss`. `done(value, gradient)` is called for each trainable value as soon as
    its gradient is complete, so that what consumes it can follow at once and its memory is free early.
    """
    trainable = set(trainable)
    needed = values_on_trainable_paths(forward, trainable)
    contributions: dict[str, list[str]] = {loss: [seed_gradient]}
    # Uses of a value still to come in the backward sweep; at zero its gradient is complete.
    pending: dict[str, int] = {}
    for node in forward.nodes:
        for name in node.inputs:
            if name in needed:
                pending[name] = pending.get(name, 0) + 1

    def complete(value: str) -> str | None:
        """Sums what has come together for a value, first consumer first."""
        parts = contributions.pop(value, None)
        if parts is None:
            return None
        total, *rest = reversed(parts)
        for part in rest:
            (total,) = builder.emit("Add", [total, part], hint=f"{value}_grad")
        return total

    for node in reversed(forward.nodes):
        builder.node_name = f"{node.name}_Grad"
        upstream = [complete(name) if name else None for name in node.outputs]
        operator = registry.get(node.op)
        wanted = [name in needed and i not in operator.nondifferentiable_inputs for i, name in enumerate(node.inputs)]
        gradients: tuple[str | None, ...] = (None,) * len(node.inputs)
        if any(wanted) and any(gradient is not None for gradient in upstream):
            view = NodeView(node, builder.types, builder.constants)
            gradients = tuple(operator.gradient(view, upstream, wanted, builder))
            _refuse_lost(node, operator, wanted, gradients)
        finished: list[str] = []
        # From the last input to the first, so that reversing a value's list gives consumer order.
        for name, is_wanted, gradient in reversed(
            list(zip(node.inputs, wanted, (*gradients, *(None,) * len(node.inputs)), strict=False))
        ):
            if is_wanted and gradient is not None:
                if builder.types[gradient] != builder.types[name]:
                    raise InternalError(
                        f"gradient of '{name}' at node '{node.name}' ({node.op}) is {builder.types[gradient]}, "
                        f"not {builder.types[name]}"
                    )
                contributions.setdefault(name, []).append(gradient)
            if name in needed:
                pending[name] -= 1
                if pending[name] == 0 and name in trainable:
                    finished.append(name)
        for name in reversed(finished):  # weights, which take most memory, come before biases
            total = complete(name)
            if total is not None:
                done(name, total)
