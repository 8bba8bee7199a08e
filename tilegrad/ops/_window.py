"""Sliding windows: the attributes that convolutions and poolings share, checked and lifted to two dimensions.

A one-dimensional window is a two-dimensional one of height 1, so nests and kernels know two dimensions only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tilegrad.ir.nest import Index
from tilegrad.ops.base import NodeView

Pair: TypeAlias = tuple[int, int]
AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class Window:
    """(height, width) of everything; pads may differ between the beginning and the end."""

    kernel: Pair
    stride: Pair
    dilation: Pair
    pad_begin: Pair
    pad_end: Pair

    def reach(self, d: int) -> int:
        """Distance from a window's first element to its last."""
        return (self.kernel[d] - 1) * self.dilation[d]

    def constants(self) -> dict[str, int | float]:
        """The window's own kernel arguments."""
        names = {"stride": self.stride, "dilation": self.dilation}
        return {f"{name}_{axis}": pair[d] for name, pair in names.items() for d, axis in enumerate("hw")}

    def image_index(self, d: int) -> Index:
        """Image position of window position (oh, ow) and tap (kh, kw)."""
        axis = "hw"[d]
        return Index(((f"o{axis}", self.stride[d]), (f"k{axis}", self.dilation[d])), -self.pad_begin[d])

    def gather_index(self, d: int) -> Index:
        """Window position that holds image position (ih, iw) at tap (kh, kw); only exact quotients exist."""
        axis = "hw"[d]
        return Index(((f"i{axis}", 1), (f"k{axis}", -self.dilation[d])), self.pad_begin[d], self.stride[d])


def lift(extents: tuple[int, ...], fill: int) -> Pair:
    """Spatial extents as (height, width)."""
    return (extents[0], extents[1]) if len(extents) == 2 else (fill, extents[0])


def lower(extents: Pair, rank: int) -> tuple[int, ...]:
    """The inverse of `lift`: what an output's shape gets."""
    return extents if rank == 2 else extents[1:]


def integers(node: NodeView, name: str, count: int, default: int, minimum: int) -> tuple[int, ...]:
    """A tuple attribute with one entry per spatial dimension (or side)."""
    values: tuple[int, ...] = tuple(node.attribute(name, ())) or (default,) * count
    if len(values) != count or any(value < minimum for value in values):
        raise node.error(
            f"{node.node.op}: the attribute '{name}' is wrong",
            expected=f"{count} integer{'s' if count > 1 else ''} of at least {minimum}",
            got=str(list(values)),
        )
    return values


def check_image(node: NodeView, position: int, what: str = "input") -> tuple[int, ...]:
    """Refuses an image that is not (N, C, W) or (N, C, H, W); returns its spatial extents."""
    image = node.input(position)
    if image.rank not in (3, 4):
        raise node.error(
            f"{node.node.op}: the {what} ('{node.inputs[position]}') has a wrong rank",
            expected="[N, C, W] or [N, C, H, W]",
            got=str(list(image.shape)),
            hint="3-D convolutions and poolings are not supported" if image.rank == 5 else None,
        )
    return image.shape[2:]


def explicit_pads(node: NodeView, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(begin, end) pads as written, or None where auto_pad is to choose them."""
    pads = integers(node, "pads", 2 * rank, 0, 0)
    auto_pad = node.attribute("auto_pad", "NOTSET") or "NOTSET"
    if auto_pad not in AUTO_PADS:
        raise node.error(f"{node.node.op}: unknown auto_pad", expected=" or ".join(AUTO_PADS), got=auto_pad)
    if auto_pad == "NOTSET":
        return pads[:rank], pads[rank:]
    if any(pads):
        raise node.error(
            f"{node.node.op}: pads and auto_pad exclude each other",
            expected="one of them",
            got=f"pads {list(pads)} and auto_pad {auto_pad}",
        )
    return ((0,) * rank, (0,) * rank) if auto_pad == "VALID" else None


def split_same(total: int, node: NodeView) -> Pair:
    """An odd pad has its larger half at the end for SAME_UPPER, at the beginning for SAME_LOWER."""
    smaller = total // 2
    upper = node.attribute("auto_pad", "NOTSET") == "SAME_UPPER"
    return (smaller, total - smaller) if upper else (total - smaller, smaller)


def read_window(node: NodeView, image: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[Window, Pair]:
    """The window that slides over an image of spatial extents `image`, and how many positions it takes."""
    rank = len(image)
    strides = integers(node, "strides", rank, 1, 1)
    dilations = integers(node, "dilations", rank, 1, 1)
    pads = explicit_pads(node, rank)
    ceil_mode = bool(node.attribute("ceil_mode", 0))
    begins, ends, counts = [], [], []
    for d in range(rank):
        reach = (kernel[d] - 1) * dilations[d] + 1
        if pads is None:
            count = -(-image[d] // strides[d])
            begin, end = split_same(max((count - 1) * strides[d] + reach - image[d], 0), node)
        else:
            begin, end = pads[0][d], pads[1][d]
            room = image[d] + begin + end - reach
            if room < 0:
                raise node.error(
                    f"{node.node.op}: the window is larger than the padded input ('{node.inputs[0]}')",
                    expected=f"at most {image[d] + begin + end} along spatial dimension {d}",
                    got=f"{reach} (kernel {kernel[d]}, dilation {dilations[d]})",
                )
            count = (-(-room // strides[d]) if ceil_mode else room // strides[d]) + 1
            if ceil_mode and (count - 1) * strides[d] >= image[d] + begin:
                count -= 1  # a window must not start in the padding at the end
        begins.append(begin)
        ends.append(end)
        counts.append(count)
    window = Window(lift(kernel, 1), lift(strides, 1), lift(dilations, 1), lift(tuple(begins), 0), lift(tuple(ends), 0))
    return window, lift(tuple(counts), 1)
