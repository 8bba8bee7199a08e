"""A program that only infers: no loss, no gradients, no optimizer, and none of their memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph
from tilegrad.ir.program import ENTRIES, Program, Role, StateTensor
from tilegrad.ir.types import Constant
from tilegrad.recipe import Recipe

NO_LOSS = "none"
_ROLES = {"parameter": Role.FROZEN, "statistic": Role.STATISTIC}


def _role(roles: Mapping[str, str], name: str) -> Role:
    return _ROLES.get(roles.get(name, ""), Role.CONSTANT)


def inference_program(graph: Graph, variances: Mapping[str, str], recipe: Recipe, roles: Mapping[str, str]) -> Program:
    """The entries `step` and `update` exist and do nothing. `variances` and `roles` as for `derive_program`."""
    state = tuple(
        StateTensor(name, constant.type, _role(roles, variances.get(name, name)), constant, variances.get(name))
        for name, constant in graph.constants.items()
    )
    if not any(tensor.type.size for tensor in state):  # C has no empty arrays
        nothing = Constant(np.zeros(1, np.bool_))
        state += (StateTensor("tg.nothing", nothing.type, Role.HYPER, nothing),)
    empty = {name: Graph(name, (), (), (), {}) for name in ENTRIES}
    infer = verify_graph(replace(graph, name="infer", constants={}, state=tuple(graph.constants)))
    return Program(graph.name, recipe, NO_LOSS, state, {**empty, "infer": infer})
