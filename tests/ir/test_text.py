"""The text form is stable: tools and people compare dumps."""

from __future__ import annotations

import numpy as np

from tests.support.models import ints, mlp, model, node, value
from tilegrad.frontend import load
from tilegrad.ir.text import format_graph

MLP = """\
graph test
  input %x: f32[2,8]
  constant %w1: f32[16,8]
  constant %b1: f32[16]
  constant %w2: f32[4,16]
  constant %b2: f32[4] = [0.0,0.5,-1.0,3.0]
  %h: f32[2,16] = Gemm(%x, %w1, %b1) {transB=1}  # node '/fc1/Gemm'
  %r: f32[2,16] = Relu(%h)  # node '/relu/Relu'
  %y: f32[2,4] = Gemm(%r, %w2, %b2) {transB=1}  # node '/fc2/Gemm'
  return %y
"""

SPLIT = """\
graph test
  input %x: f32[1,6]
  %a: f32[1,2], %y: f32[1,4] = Split(%x) {axis=1, split=[2,4]}  # node 'cut'
  %z: f32[1,2] = Clip(%a) {max=6.0}  # node 'Clip_1'
  return %y, %z
"""


def test_gemms() -> None:
    proto = mlp()
    proto.graph.initializer[3].raw_data = np.array([0, 0.5, -1, 3], np.float32).tobytes()
    assert format_graph(load(proto, batch=2).graph) == MLP


def test_several_outputs_and_attributes() -> None:
    proto = model(
        [node("Split", "x s", "a y", "cut", axis=1), node("Clip", "a _ high", "z")],
        [value("x", [1, 6])],
        [value("y", None), value("z", None)],
        {"s": ints(2, 4), "high": 6.0},
    )
    assert format_graph(load(proto).graph) == SPLIT
