"""DepthToSpace and SpaceToDepth: blocks of pixels become channels and back. Each is the other's gradient."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.types import TensorType
from tilegrad.ops._copy import Copy, Dim, Mover, plain_view
from tilegrad.ops.base import GradientBuilder, NodeView
from tilegrad.ops.example import Draw, Example


class _BlockMover(Mover):
    kernel = "depth_to_space"

    def example(self, draw: Draw) -> Example:
        shape = (1, 4 * draw.between(1, 8), 2 * draw.between(1, 6), 2 * draw.between(1, 6))
        return Example((TensorType(draw.dtype(), shape),), {"blocksize": 2})

    def _block(self, node: NodeView) -> int:
        block = node.required("blocksize")
        if not isinstance(block, int) or block < 1:
            raise node.error(f"{self.name}: no block size", expected="1 or more", got=repr(block))
        return block

    def _column_row_depth(self, node: NodeView) -> bool:
        """Which of the channel's three parts is outermost: the channel (CRD) or the block row (DCR)."""
        mode = node.attribute("mode", "DCR")
        if mode not in ("DCR", "CRD"):
            raise node.error(f"{self.name}: unknown mode", expected="DCR or CRD", got=mode)
        return mode == "CRD"

    def _image(self, node: NodeView) -> tuple[int, ...]:
        node.expect_inputs(1)
        shape = node.input(0).shape
        if len(shape) != 4:
            raise node.error(f"{self.name} takes images", expected="rank 4", got=str(list(shape)))
        return shape

    def _views(self, node: NodeView, image: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[Dim, ...]]:
        """Loops (n, c, h, block row, w, block column) over the large image, and the deep image's view of them."""
        n, c, height, width = image
        block = self._block(node)
        extents = (n, c, height // block, block, width // block, block)
        order = (0, 1, 3, 5, 2, 4) if self._column_row_depth(node) else (0, 3, 5, 1, 2, 4)
        return extents, tuple(Dim(extents[loop], loop) for loop in order)

    def _reverse(self, name: str, node: NodeView, dy: str | None, build: GradientBuilder) -> Sequence[str | None]:
        attributes = {"blocksize": self._block(node), "mode": "CRD" if self._column_row_depth(node) else "DCR"}
        return build.emit(name, [dy], attributes)


class DepthToSpace(_BlockMover):
    name = "DepthToSpace"

    def output_types(self, node: NodeView) -> tuple[TensorType, ...]:
        n, c, height, width = self._image(node)
        block = self._block(node)
        if c % (block * block):
            raise node.error(
                "DepthToSpace: channels do not fill blocks", expected=f"a multiple of {block * block}", got=str(c)
            )
        shape = (n, c // (block * block), height * block, width * block)
        self._column_row_depth(node)
        return (TensorType(node.input(0).dtype, shape),)

    def copies(self, node: NodeView, outputs: Sequence[TensorType]) -> Sequence[Copy]:
        extents, deep = self._views(node, outputs[0].shape)
        return (Copy(extents, deep, plain_view(extents)),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return self._reverse("SpaceToDepth", node, upstream[0], build)


class SpaceToDepth(_BlockMover):
    """ONNX's is the DCR form; the attribute `mode` is ours, for the gradient of the other."""

    name = "SpaceToDepth"

    def output_types(self, node: NodeView) -> tuple[TensorType, ...]:
        n, c, height, width = self._image(node)
        block = self._block(node)
        if height % block or width % block:
            raise node.error(
                "SpaceToDepth: the image does not fill blocks",
                expected=f"height and width divisible by {block}",
                got=f"{height} x {width}",
            )
        shape = (n, c * block * block, height // block, width // block)
        self._column_row_depth(node)
        return (TensorType(node.input(0).dtype, shape),)

    def copies(self, node: NodeView, outputs: Sequence[TensorType]) -> Sequence[Copy]:
        extents, deep = self._views(node, node.input(0).shape)
        return (Copy(extents, plain_view(extents), deep),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return self._reverse("DepthToSpace", node, upstream[0], build)
