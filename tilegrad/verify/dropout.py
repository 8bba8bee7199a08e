"""The masks that training-mode dropout draws, for the references: the counter-based generator, in NumPy."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, cast

import numpy as np

from tilegrad.random import Purpose, family, to_unit, words
from tilegrad.verify.reference import Array, DropoutMask

if TYPE_CHECKING:
    from tilegrad.ir.program import Program


def masks_of(program: Program) -> DropoutMask:
    """Masks by node name; a node that does not drop in this program has none."""
    nodes = {node.name: node.attributes for node in program.entries["step"].nodes if node.op == "SeededDropout"}

    def mask(name: str, shape: tuple[int, ...], minibatch: int) -> Array | None:
        if name not in nodes:
            return None
        ratio = np.float32(cast(float, nodes[name]["ratio"]))
        stream, seed = cast(int, nodes[name]["stream"]), cast(int, nodes[name]["seed"])
        drawn = to_unit(words(seed, family(Purpose.DROPOUT, stream), minibatch, prod(shape)))
        return cast(Array, (drawn >= ratio).reshape(shape))

    return mask
