"""What a model's functions become when they are inlined, counted before they are: a few lines can mean 2^40 nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx

from tilegrad.bounds import MAX_INLINED_BYTES, MAX_INLINED_NODES
from tilegrad.errors import UserError

FunctionKey = tuple[str, str, str]


@dataclass(frozen=True)
class Growth:
    """Nodes, and their bytes as ONNX writes them."""

    nodes: int = 0
    size_bytes: int = 0

    def __add__(self, other: Growth) -> Growth:
        return Growth(self.nodes + other.nodes, self.size_bytes + other.size_bytes)

    def expect_within_bounds(self, what: str, node: str, cause: str) -> None:
        """`what` grows, at `node` beyond the bounds, because of `cause`."""
        for unit, count, bound in (
            ("nodes", self.nodes, MAX_INLINED_NODES),
            ("bytes of nodes", self.size_bytes, MAX_INLINED_BYTES),
        ):
            if count > bound:
                raise UserError(
                    f"{what} grow beyond bounds",
                    stage="import",
                    node=node,
                    expected=f"at most {bound:,} {unit} when inlined, each call counted with all that it becomes",
                    got=f"{count:,} {unit}, with those of {cause}" if count < 10**15 else f"over 10^15 {unit}",
                    hint="export the model without functions, or simplify it first",
                )


def nodes_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of their subgraphs."""
    pending = [*nodes]
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                pending += attribute.g.node
            for graph in attribute.graphs:
                pending += graph.node


def expect_bounded_functions(model: onnx.ModelProto) -> None:
    """Refuses a model whose functions would become too much."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    known: dict[FunctionKey, Growth] = {}
    total = Growth()
    for position, node in enumerate(model.graph.node):
        for inner in nodes_within([node]):
            if _callee(inner) not in functions:
                continue
            total += _grown(_callee(inner), functions, known)
            label = node.name or f"{node.op_type}_{position}"
            total.expect_within_bounds("the model's functions", label, f"function '{inner.op_type}'")


def _callee(node: onnx.NodeProto) -> FunctionKey:
    return (node.domain, node.op_type, node.overload)


def _grown(
    wanted: FunctionKey, functions: Mapping[FunctionKey, onnx.FunctionProto], known: dict[FunctionKey, Growth]
) -> Growth:
    """What a call becomes. Calls may be nested deeper than Python's stack, so that functions wait on a list."""
    waiting = [wanted]
    under_way: set[FunctionKey] = set()
    while waiting:
        key = waiting[-1]
        if key in known:
            waiting.pop()
            continue
        body = list(nodes_within(functions[key].node))
        missing = [callee for node in body if (callee := _callee(node)) in functions and callee not in known]
        if not missing:
            own = Growth(0, sum(node.ByteSize() for node in functions[key].node))
            plain = sum(_callee(node) not in functions for node in body)
            known[key] = sum((known[_callee(node)] for node in body if _callee(node) in functions), own + Growth(plain))
            waiting.pop()
            continue
        under_way.add(key)
        if recursive := [callee for callee in missing if callee in under_way]:
            raise UserError(
                "the model's functions call themselves",
                stage="import",
                got=f"function '{key[1]}' calls '{recursive[0][1]}', which leads back to it",
            )
        waiting += missing
    return known[wanted]
