"""The stable text form of a graph, for `--dump-after STAGE` and for tests that compare programs."""

from __future__ import annotations

from tilegrad.ir.graph import Attribute, Graph, Node
from tilegrad.ir.types import Constant

SHOWN_ELEMENTS = 8


def format_graph(graph: Graph) -> str:
    """One line per value, in execution order; large constants by type only. Ends with a newline."""
    lines = [f"graph {graph.name}"]
    lines += [f"  input %{name}: {graph.types[name]}" for name in graph.inputs]
    lines += [f"  state %{name}: {graph.types[name]}" for name in graph.state]
    lines += [f"  constant %{name}: {constant.type}{_content(constant)}" for name, constant in graph.constants.items()]
    lines += [f"  {format_node(node, graph)}" for node in graph.nodes]
    lines += [f"  write %{value} -> %{state}" for value, state in graph.writes]
    lines.append("  return " + ", ".join(f"%{name}" for name in graph.outputs))
    return "\n".join(lines) + "\n"


def format_node(node: Node, graph: Graph) -> str:
    """`%y: f32[1,8] = Gemm(%x, %w, %b) {transB=1}  # node '/fc/Gemm'`; an absent operand is `_`."""
    outputs = ", ".join(f"%{name}: {graph.types[name]}" if name else "_" for name in node.outputs)
    inputs = ", ".join(f"%{name}" if name else "_" for name in node.inputs)
    attributes = ", ".join(f"{key}={_attribute(node.attributes[key])}" for key in sorted(node.attributes))
    return f"{outputs} = {node.op}({inputs})" + (f" {{{attributes}}}" if attributes else "") + f"  # node '{node.name}'"


def _content(constant: Constant) -> str:
    if constant.array.size > SHOWN_ELEMENTS:
        return ""
    return f" = {_number_list(constant)}"


def _number_list(constant: Constant) -> str:
    return repr(constant.array.tolist()).replace(" ", "")


def _attribute(value: Attribute) -> str:
    if isinstance(value, Constant):
        return f"{value.type}" + (_content(value) if value.array.size <= SHOWN_ELEMENTS else "")
    if isinstance(value, tuple):
        return f"[{','.join(map(_attribute, value))}]"
    return repr(value)
