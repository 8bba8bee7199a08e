"""The nests of convolutions. A convolution relates an image (channels `i`) to a map (channels `o`) through a weight:

    map[n,g,o,oh,ow] ~ image[n,g,i, oh*stride + kh*dilation - pad, …] * weight[g,o,i,kh,kw]

Each of the three can be computed from the other two. Conv computes the map, ConvTranspose the image; the gradients of
either are the remaining two, so both operators share these nests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilegrad.ir.nest import Access, Axis, AxisKind, Index, Nest, Operand, along
from tilegrad.ops._window import Pair, Window

# With so few output channels per group, computing one at a time beats blocks of four.
SINGLE_CHANNELS = 2


@dataclass(frozen=True)
class Convolution:
    """`image_channels` and `map_channels` are per group; `image` and `map` are spatial extents."""

    batch: int
    groups: int
    image_channels: int
    map_channels: int
    image: Pair
    map: Pair
    window: Window

    @property
    def macs(self) -> int:
        """Nominal, taps on padding counted; the same for all three directions."""
        return prod((self.batch, self.groups, self.image_channels, self.map_channels, *self.map, *self.window.kernel))

    def axes(self, spatial: str, reduced: str) -> tuple[Axis, ...]:
        """`spatial` is "o" or "i": whose positions are walked; `reduced` are the reduction axes' names."""
        extents = {"n": self.batch, "g": self.groups, "o": self.map_channels, "i": self.image_channels}
        positions = self.map if spatial == "o" else self.image
        extents |= {f"{spatial}{axis}": positions[d] for d, axis in enumerate("hw")}
        taps = (Axis(f"k{axis}", self.window.kernel[d], AxisKind.INNER) for d, axis in enumerate("hw"))
        return (*_ordered_axes(extents, reduced), *taps)

    def weight(self, name: str, value: str, access: Access) -> Operand:
        shape = (self.groups, self.map_channels, self.image_channels, *self.window.kernel)
        return Operand(name, value, access, shape, tuple(map(along, ("g", "o", "i", "kh", "kw"))))

    def map_operand(self, name: str, value: str, access: Access, rows: Index, columns: Index) -> Operand:
        shape = (self.batch, self.groups, self.map_channels, *self.map)
        return Operand(name, value, access, shape, (along("n"), along("g"), along("o"), rows, columns))

    def image_operand(self, name: str, value: str, access: Access, rows: Index, columns: Index) -> Operand:
        shape = (self.batch, self.groups, self.image_channels, *self.image)
        return Operand(name, value, access, shape, (along("n"), along("g"), along("i"), rows, columns))

    def bias(self, value: str | None, channel: str) -> Operand:
        if value is None:
            return Operand("b", None, Access.READ)
        channels = self.map_channels if channel == "o" else self.image_channels
        return Operand("b", value, Access.READ, (self.groups, channels), (along("g"), along(channel)))

    @property
    def is_pointwise(self) -> bool:
        """A 1x1 window that neither strides nor pads: a matrix product over channels."""
        return self.window.kernel == (1, 1) == self.window.stride and self.image == self.map

    def _nest(self, suffix: str, channels: int, spatial: str, reduced: str, operands: tuple[Operand, ...]) -> Nest:
        """The variant for this pattern; `channels` are the output's per group."""
        variant = "conv_single" if channels <= SINGLE_CHANNELS else "conv"
        return Nest(
            variant + suffix,
            self.axes(spatial, reduced),
            operands,
            self.window.constants(),
            counts_macs=True,
            macs_override=self.macs,
        )

    def map_nest(self, x: str, w: str, b: str | None, y: str) -> Nest:
        """The map from the image: Conv, and the input gradient of ConvTranspose."""
        if self.is_pointwise:
            return self._pointwise_nest(
                "", "i", (self._plane("x", x, "i"), self._matrix("w", w), self.bias(b, "o"), self._plane("y", y, "o"))
            )
        window = self.window
        operands = (
            self.image_operand("x", x, Access.READ, window.image_index(0), window.image_index(1)),
            self.weight("w", w, Access.READ),
            self.bias(b, "o"),
            self.map_operand("y", y, Access.WRITE, along("oh"), along("ow")),
        )
        return self._nest("", self.map_channels, "o", "i", operands)

    def image_nest(self, dy: str, w: str, b: str | None, dx: str) -> Nest:
        """The image from the map, each image element gathering its own sum: Conv's input gradient, ConvTranspose."""
        if self.is_pointwise:
            read, written = self._plane("dy", dy, "o"), self._plane("dx", dx, "i")
            return self._pointwise_nest("_dx", "o", (read, self._matrix("w", w), self.bias(b, "i"), written))
        window = self.window
        operands = (
            self.map_operand("dy", dy, Access.READ, window.gather_index(0), window.gather_index(1)),
            self.weight("w", w, Access.READ),
            self.bias(b, "i"),
            self.image_operand("dx", dx, Access.WRITE, along("ih"), along("iw")),
        )
        return self._nest("_dx", self.image_channels, "i", "o", operands)

    def weight_nest(self, x: str, dy: str, dw: str) -> Nest:
        """The weight's gradient from image and map."""
        if self.is_pointwise:
            reads = self._plane("x", x, "i"), self._plane("dy", dy, "o")
            return self._pointwise_nest("_dw", "n p", (*reads, self._matrix("dw", dw)))
        window = self.window
        operands = (
            self.image_operand("x", x, Access.READ, window.image_index(0), window.image_index(1)),
            self.map_operand("dy", dy, Access.READ, along("oh"), along("ow")),
            self.weight("dw", dw, Access.WRITE),
        )
        return self._nest("_dw", self.map_channels, "o", "n oh ow", operands)

    def _plane(self, name: str, value: str, channel: str) -> Operand:
        """Image or map of a pointwise convolution, its positions one axis `p`; what is computed is y, dx or dw."""
        channels = self.map_channels if channel == "o" else self.image_channels
        shape = (self.batch, self.groups, channels, prod(self.map))
        access = Access.WRITE if name in ("y", "dx") else Access.READ
        return Operand(name, value, access, shape, (along("n"), along("g"), along(channel), along("p")))

    def _matrix(self, name: str, value: str) -> Operand:
        shape = (self.groups, self.map_channels, self.image_channels)
        access = Access.WRITE if name == "dw" else Access.READ
        return Operand(name, value, access, shape, (along("g"), along("o"), along("i")))

    def _pointwise_nest(self, suffix: str, reduced: str, operands: tuple[Operand, ...]) -> Nest:
        extents = {
            "n": self.batch,
            "g": self.groups,
            "o": self.map_channels,
            "i": self.image_channels,
            "p": prod(self.map),
        }
        return Nest("conv_pointwise" + suffix, _ordered_axes(extents, reduced), operands, counts_macs=True)


def _ordered_axes(extents: Mapping[str, int], reduced: str) -> tuple[Axis, ...]:
    """Parallel axes in the order given, then the reduction axes in the order of their sum."""
    names = reduced.split()
    parallel = (Axis(name, extent) for name, extent in extents.items() if name not in names)
    return (*parallel, *(Axis(name, extents[name], AxisKind.REDUCTION) for name in names))


def bias_nest(dy: str, db: str, shape: tuple[int, ...]) -> Nest:
    """The bias' gradient: the sum of dY (`shape`: N, C, spatial…) over all but channels."""
    batch, channels, size = shape[0], shape[1], prod(shape[2:])
    axes = (Axis("c", channels), Axis("n", batch, AxisKind.REDUCTION), Axis("p", size, AxisKind.REDUCTION))
    return Nest(
        "conv_db",
        axes,
        (
            Operand("dy", dy, Access.READ, (batch, channels, size), (along("n"), along("c"), along("p"))),
            Operand("db", db, Access.WRITE, (channels,), (along("c"),)),
        ),
    )
