"""The first nest of a node of float inputs."""

from __future__ import annotations

import numpy as np

from tests.support.operators import one_node_graph
from tilegrad.calibration.samples import nests_of
from tilegrad.ir.graph import Attribute
from tilegrad.ir.nest import Nest


def nest_of(op: str, shapes: list[tuple[int, ...]], **attributes: Attribute) -> Nest:
    return nests_of(one_node_graph(op, [np.zeros(shape, np.float32) for shape in shapes], attributes))[0][1]
