"""A program that only infers: no loss, no gradients, no optimizer, and none of their memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilegrad.ir.graph import Graph
from tilegrad.ir.program import ENTRIES, Program, Role, StateTensor
from tilegrad.ir.types import DType, TensorType
from tilegrad.ir.verify import verify_graph
from tilegrad.recipe import Recipe

NO_LOSS = "none"
_ROLES = {"parameter": Role.FROZEN, "statistic": Role.STATISTIC}


def inference_program(graph: Graph, recipe: Recipe, roles: Mapping[str, str]) -> Program:
    """The entries `step` and `update` exist and do nothing."""
    state = tuple(
        StateTensor(name, constant.type, _ROLES.get(roles.get(name, ""), Role.CONSTANT), constant)
        for name, constant in graph.constants.items()
    )
    if not state:  # C has no empty arrays
        state = (StateTensor("tg.nothing", TensorType(DType.BOOL, (1,)), Role.HYPER),)
    empty = {name: Graph(name, (), (), (), {}) for name in ENTRIES}
    infer = verify_graph(replace(graph, name="infer", constants={}, state=tuple(graph.constants)))
    return Program(graph.name, recipe, NO_LOSS, state, {**empty, "infer": infer}, "", None)
