"""A down projection and its residual over the blocks of an accelerator: `y = x W + r`.

The matrix engine of a block makes boxes of the product, and a vector lane adds the residual as soon as each is there:
the two are joined by a pipe. The bits are those of the host, and of one operator behind the other.

    python examples/down_projection_residual/run.py [--rows 2048] [--inner 96] [--width 128]
"""

from __future__ import annotations

import argparse

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilegrad as tg
from tilegrad.sequence.timing import time_listing


def projection(rows: int, inner: int, width: int) -> onnx.ModelProto:
    weights = np.random.default_rng(0).standard_normal((inner, width)).astype(np.float32) / np.float32(inner)
    shapes = {"x": [rows, inner], "r": [rows, width], "y": [rows, width]}
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "down"),
        helper.make_node("Add", ["p", "r"], ["y"], "residual"),
    ]
    inputs, outputs, constants = [values["x"], values["r"]], [values["y"]], [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(nodes, "down_projection_residual", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("rows", 2048), ("inner", 96), ("width", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    model, recipe = projection(given.rows, given.inner, given.width), tg.Recipe(loss="mse", batch=given.rows)
    generator = np.random.default_rng(1)
    x = generator.standard_normal((given.rows, given.inner)).astype(np.float32)
    r = generator.standard_normal((given.rows, given.width)).astype(np.float32)
    with tg.open_device("host") as host:
        expected = np.asarray(host.load(tg.compile(model, recipe)).infer(x, r))

    ways = {
        "one behind the other": tg.compile(model, recipe, target="npu", pipes="off"),
        "a pipe": tg.compile(model, recipe, target="npu", pipes=[("down", "residual")]),
        "a pipe, width n": tg.compile(
            model, recipe, target="npu", pipes=[("down", "residual")], blocks="n", most_blocks=8
        ),
    }
    with tg.open_device("sim:npu") as npu:
        for way, program in ways.items():
            session = npu.load(program)
            widths = (8, 3) if way.endswith("n") else (None,)
            for width in widths:
                if width is not None:
                    session.set_blocks(width)
                same = np.asarray(session.infer(x, r)).tobytes() == expected.tobytes()
                over = "" if width is None else f" = {width}"
                print(f"{way}{over}: {'the bits of the host' if same else 'OTHER BITS'}")
                assert same
            cycles = round(time_listing(program.listing)["infer"].cycles)
            print(f"    {cycles:,} cycles, estimated, uncalibrated" + (", where n is 8" if widths[0] else ""))


if __name__ == "__main__":
    main()
