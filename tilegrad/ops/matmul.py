"""MatMul as NumPy's matmul, and FusedMatMul (ONNX Runtime's), which its gradients are.

FusedMatMul reads an operand transposed in place, so no gradient needs a Transpose. Its attribute `sum_batch` is ours:
the products of all batches are added up in one reduction (batch outermost), which is the gradient of a matrix that
every batch shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilegrad.ir.graph import Attribute
from tilegrad.ir.nest import Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._elementwise import broadcast_shapes
from tilegrad.ops._pointwise import float_attribute
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats

MAX_BATCH_GROUPS = 3


@dataclass(frozen=True)
class _Group:
    """Neighbouring batch dimensions that the operands walk alike."""

    extent: int
    in_a: bool
    in_b: bool


@dataclass(frozen=True)
class _Product:
    """What a node computes, one-dimensional operands seen as matrices."""

    batch: tuple[int, ...]
    a_batch: tuple[int, ...]
    b_batch: tuple[int, ...]
    m: int
    n: int
    k: int
    trans_a: bool
    trans_b: bool
    sum_batch: bool
    alpha: float

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.m, self.n) if self.sum_batch else (*self.batch, self.m, self.n)

    def groups(self) -> list[_Group]:
        result: list[_Group] = []
        rank = len(self.batch)
        a = (1,) * (rank - len(self.a_batch)) + self.a_batch
        b = (1,) * (rank - len(self.b_batch)) + self.b_batch
        for extent, of_a, of_b in zip(self.batch, a, b, strict=True):
            if extent == 1:
                continue
            group = _Group(extent, of_a != 1, of_b != 1)
            if result and (result[-1].in_a, result[-1].in_b) == (group.in_a, group.in_b):
                group = _Group(result.pop().extent * extent, group.in_a, group.in_b)
            result.append(group)
        return result


def _product(node: NodeView) -> _Product:
    a, b = node.input(0).shape, node.input(1).shape
    if not a or not b:
        raise node.error(
            f"{node.node.op} takes no scalars",
            expected="rank 1 or more",
            got=f"{list(a)} and {list(b)}",
            hint="use Mul",
        )
    trans_a = bool(node.attribute("transA", 0)) and len(a) > 1
    trans_b = bool(node.attribute("transB", 0)) and len(b) > 1
    rows, columns = a if len(a) > 1 else (1, *a), b if len(b) > 1 else (*b, 1)
    m, k = rows[-2:][::-1] if trans_a else rows[-2:]
    k_of_b, n = columns[-2:][::-1] if trans_b else columns[-2:]
    if k != k_of_b:
        raise node.error(
            f"{node.node.op}: inner dimensions differ",
            expected=f"B ('{node.inputs[1]}') with {k} rows",
            got=f"{k_of_b}, from A {list(a)} and B {list(b)}",
        )
    a_batch, b_batch = rows[:-2], columns[:-2]
    batch = broadcast_shapes(node, a_batch, b_batch)
    sum_batch, alpha = bool(node.attribute("sum_batch", 0)), float_attribute(node, "alpha", 1.0)
    return _Product(batch, a_batch, b_batch, m, n, k, trans_a, trans_b, sum_batch, alpha)


class _MatrixProduct(Operator):
    parameter_inputs = (0, 1)
    goes_on_with = (0,)

    def example(self, draw: Draw) -> Example:
        batch = () if draw.is_so() else (draw.one_of(2, 3, 4, 8, 16),)
        largest = (24, 32, 24) if batch else (80, 120, 80)
        m, k, n = (1 if draw.is_so(0.15) else draw.between(1, high) for high in largest)
        if self.name == "MatMul":
            return Example(floats((*batch, m, k), (*batch, k, n)))
        trans_a, trans_b = draw.one_of(0, 1), draw.one_of(0, 1)
        a, b = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
        attributes: dict[str, Attribute] = {"transA": trans_a, "transB": trans_b, "alpha": draw.one_of(1.0, 1.0, 0.5)}
        if batch and draw.is_so(0.4):
            attributes["sum_batch"] = 1
        return Example(floats((*batch, *a), (*batch, *b)), attributes)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        node.expect_dtype(0, DType.F32)
        node.expect_dtype(1, DType.F32)
        for name in ("transBatchA", "transBatchB"):
            if node.attribute(name, 0):
                raise node.error(f"{self.name} does not transpose batches", expected=f"{name} 0", got="1")
        product = _product(node)
        if len(product.groups()) > MAX_BATCH_GROUPS:
            raise node.error(
                f"{self.name}: the batch broadcast alternates too often",
                expected=f"at most {MAX_BATCH_GROUPS} runs of dimensions broadcast alike",
                got=f"{list(product.a_batch)} and {list(product.b_batch)}",
                hint="Expand one operand first",
            )
        shape = product.shape
        if node.input(1).rank == 1:
            shape = shape[:-1]
        if node.input(0).rank == 1:
            shape = (*shape[:-2], shape[-1]) if node.input(1).rank > 1 else shape[:-1]
        return (TensorType(DType.F32, shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        product = _product(node)
        groups, m = product.groups(), product.m
        if not product.trans_a and not product.sum_batch:
            while groups and not groups[-1].in_b:  # rows of A that all meet the same B are rows of one matrix
                m *= groups.pop().extent
        named = [(f"g{i}", group) for i, group in enumerate(groups, MAX_BATCH_GROUPS - len(groups))]
        kind = AxisKind.REDUCTION if product.sum_batch else AxisKind.PARALLEL
        unit = [Axis(f"g{i}", 1, kind) for i in range(MAX_BATCH_GROUPS - len(groups))]
        batch_axes = [*unit, *(Axis(name, group.extent, kind) for name, group in named)]

        def matrix(
            name: str, value: str, batch: list[tuple[str, int]], rows: tuple[str, int], columns: tuple[str, int]
        ) -> Operand:
            dims = [*batch, rows, columns]
            access = Access.WRITE if name == "y" else Access.READ
            return Operand(name, value, access, tuple(d[1] for d in dims), tuple(along(d[0]) for d in dims))

        size = {"m": ("m", m), "n": ("n", product.n), "k": ("k", product.k)}
        a_order = (size["k"], size["m"]) if product.trans_a else (size["m"], size["k"])
        b_order = (size["n"], size["k"]) if product.trans_b else (size["k"], size["n"])
        y_batch = [] if product.sum_batch else [(name, group.extent) for name, group in named]
        variant = f"matmul_{'t' if product.trans_a else 'n'}{'t' if product.trans_b else 'n'}"
        return (
            Nest(
                variant,
                (
                    Axis("m", m),
                    Axis("n", product.n),
                    *batch_axes,
                    Axis("k", product.k, AxisKind.REDUCTION),
                ),
                (
                    matrix("a", node.inputs[0], [(x, g.extent) for x, g in named if g.in_a], *a_order),
                    matrix("b", node.inputs[1], [(x, g.extent) for x, g in named if g.in_b], *b_order),
                    matrix("y", node.outputs[0], y_batch, size["m"], size["n"]),
                ),
                {"alpha": product.alpha, "is_sum": int(product.sum_batch)},
                counts_macs=True,
            ),
        )

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        product = _product(node)
        if product.sum_batch:
            return super().gradient(node, upstream, wanted, build)
        trans_a, trans_b = int(product.trans_a), int(product.trans_b)

        def shaped(value: str, shape: tuple[int, ...]) -> str:
            if build.type_of(value).shape == shape:
                return value
            return build.emit("Reshape", [value], {"shape": shape, "allowzero": 1})[0]

        def multiply(left: str, right: str, flags: tuple[int, int], target: tuple[int, ...], hint: str) -> str:
            """left right, summed over the batches that `target` does not have."""
            attributes = {"transA": flags[0], "transB": flags[1], "alpha": product.alpha}
            if len(target) == 2 and product.batch:
                attributes["sum_batch"] = 1
            (value,) = build.emit("FusedMatMul", [left, right], attributes, hint=hint)
            return build.sum_to(value, target)

        def matrix_shape(batch: tuple[int, ...], rows: int, columns: int, transposed: int) -> tuple[int, ...]:
            return (*batch, columns, rows) if transposed else (*batch, rows, columns)

        a_shape = matrix_shape(product.a_batch, product.m, product.k, trans_a)
        b_shape = matrix_shape(product.b_batch, product.k, product.n, trans_b)
        assert upstream[0] is not None
        a, b = shaped(node.inputs[0], a_shape), shaped(node.inputs[1], b_shape)
        dy = shaped(upstream[0], product.shape)
        da = db = None
        if wanted[0]:
            left, right, flags = (b, dy, (trans_b, 1)) if trans_a else (dy, b, (0, 1 - trans_b))
            da = shaped(multiply(left, right, flags, a_shape, f"{node.inputs[0]}_grad"), node.input(0).shape)
        if wanted[1]:
            if product.a_batch == product.batch and not product.b_batch and not trans_a:
                # Every row of every batch meets the same B: one sum over all of them.
                rows = product.m
                for extent in product.batch:
                    rows *= extent
                a, dy = shaped(a, (rows, product.k)), shaped(dy, (rows, product.n))
                attributes = {"transA": 1, "transB": 0, "alpha": product.alpha}
                pair = (dy, a) if trans_b else (a, dy)
                (db,) = build.emit("FusedMatMul", pair, attributes, hint=f"{node.inputs[1]}_grad")
            else:
                left, right, flags = (dy, a, (1, trans_a)) if trans_b else (a, dy, (1 - trans_a, 0))
                db = multiply(left, right, flags, b_shape, f"{node.inputs[1]}_grad")
            db = shaped(db, node.input(1).shape)
        return (da, db)


class MatMul(_MatrixProduct):
    name = "MatMul"


class FusedMatMul(_MatrixProduct):
    """(A, B) -> alpha * A' B', with the attributes transA, transB, alpha and sum_batch."""

    name = "FusedMatMul"
