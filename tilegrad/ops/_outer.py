"""What the operators that use an outer product without making its matrix have in common."""

from __future__ import annotations

from tilegrad.ir.nest import FIXED, Access, Axis, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops.base import NodeView


def infer_outer(node: NodeView, op: str, matrix: str) -> tuple[TensorType, ...]:
    """u and v hold as many elements as the matrix has rows and columns, in any shape."""
    for position in range(3):
        node.expect_dtype(position, DType.F32)
    sizes = (node.input(0).size, node.input(1).size)
    if node.input(2).shape != sizes:
        raise node.error(
            f"{op}: the {matrix} is not the shape of the outer product",
            expected=str(list(sizes)),
            got=str(list(node.input(2).shape)),
        )
    return (node.input(2),)


def outer_nest(node: NodeView, kernel: str, scalar: str) -> Nest:
    """`scalar` is the one-element operand after u, v and the old matrix."""
    m, n = node.input(2).shape
    matrix = ((m, n), (along("m"), along("n")))
    return Nest(
        kernel,
        (Axis("m", m), Axis("n", n)),
        (
            Operand("u", node.inputs[0], Access.READ, (m,), (along("m"),)),
            Operand("v", node.inputs[1], Access.READ, (n,), (along("n"),)),
            Operand("w", node.inputs[2], Access.READ, *matrix),
            Operand(scalar, node.input_name(3), Access.READ, (1,), (FIXED,)),
            Operand("y", node.outputs[0], Access.WRITE, *matrix),
        ),
        counts_macs=True,
    )
