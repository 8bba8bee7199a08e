"""How compile time and memory grow with a model: `python -m benchmarks.growth [--targets host siracusa] [--write]`.

Three kinds of models from 1,000 to 8,000 nodes: a chain of Relus behind one product, a plain MLP, and residual blocks
that are added up. Each is compiled as the command does (import, planning, C; nothing is built) in a process of its own.
Seconds are processor time without start-up, which a small model takes first; memory is the largest resident size.
Growth is time over the smallest model's, beside how much larger the model is: near-linear planning keeps the two near.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilegrad.commands.hardware import ChipOptions
from tilegrad.frontend import load
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Recipe
from tilegrad.targets import base as targets

SIZES = (1000, 2000, 4000, 8000)
WIDTH = 8
DOCUMENT = Path(__file__).with_name("GROWTH.md")


def _model(nodes: Sequence[onnx.NodeProto], initializers: Sequence[onnx.TensorProto]) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in ("x", nodes[-1].output[0])]
    graph = helper.make_graph(list(nodes), "growth", ends[:1], ends[1:], list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _weight(name: str, *shape: int) -> onnx.TensorProto:
    content = np.random.default_rng(len(name)).standard_normal(shape) / WIDTH
    return numpy_helper.from_array(content.astype(np.float32), name)


def relus(count: int) -> onnx.ModelProto:
    """A product and so many Relus."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["r0"], name="product")]
    nodes += [helper.make_node("Relu", [f"r{i}"], [f"r{i + 1}"], name=f"relu{i}") for i in range(count - 1)]
    return _model(nodes, [_weight("w", WIDTH, WIDTH)])


def mlp(count: int) -> onnx.ModelProto:
    """Gemm and Relu by turns."""
    nodes, initializers = [], []
    for i in range(count // 2):
        initializers += [_weight(f"w{i}", WIDTH, WIDTH), _weight(f"b{i}", WIDTH)]
        before = f"r{i - 1}" if i else "x"
        nodes.append(helper.make_node("Gemm", [before, f"w{i}", f"b{i}"], [f"g{i}"], name=f"fc{i}", transB=1))
        nodes.append(helper.make_node("Relu", [f"g{i}"], [f"r{i}"], name=f"relu{i}"))
    return _model(nodes, initializers)


def residual(count: int) -> onnx.ModelProto:
    """Blocks of a product and a Tanh, each added to what it reads."""
    nodes, initializers = [], []
    for i in range(count // 3):
        initializers.append(_weight(f"w{i}", WIDTH, WIDTH))
        before = f"a{i - 1}" if i else "x"
        nodes.append(helper.make_node("MatMul", [before, f"w{i}"], [f"m{i}"], name=f"product{i}"))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"t{i}"], name=f"tanh{i}"))
        nodes.append(helper.make_node("Add", [f"t{i}", before], [f"a{i}"], name=f"add{i}"))
    return _model(nodes, initializers)


KINDS: dict[str, Callable[[int], onnx.ModelProto]] = {"relus": relus, "mlp": mlp, "residual": residual}


def compile_for(model: onnx.ModelProto, target_name: str) -> None:
    """As `tilegrad compile --target NAME` does, without the folder."""
    target = targets.get(target_name)
    compile_model(load(model), Recipe(), target, options=ChipOptions().schedule(target))


def measure(kind: str, count: int, target: str) -> dict[str, float]:
    """In this process, which does nothing else."""
    compile_for(mlp(4), target)
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # as the command does
    model = KINDS[kind](count)
    start = time.process_time()
    compile_for(model, target)
    seconds = time.process_time() - start
    return {"seconds": seconds, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def rows(names: Sequence[str], sizes: Sequence[int]) -> list[str]:
    found = []
    for target in names:
        for kind in KINDS:
            first: float | None = None
            for count in sizes:
                command = [sys.executable, "-m", "benchmarks.growth", "--one", kind, str(count), target]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
                result = json.loads(done.stdout)
                first = first or result["seconds"]
                found.append(
                    f"| {target} | {kind} | {count:,} | {result['seconds']:.2f} | {result['seconds'] / first:.1f} | "
                    f"{count / sizes[0]:.0f} | {result['megabytes']:.0f} |"
                )
                print(found[-1], flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.split("\n")[0])
    parser.add_argument("--targets", nargs="+", default=["host", "siracusa"])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--write", action="store_true", help=f"write the table to {DOCUMENT.name}")
    parser.add_argument("--one", nargs=3, metavar=("KIND", "NODES", "TARGET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, count, target = options.one
        print(json.dumps(measure(kind, int(count), target)))
        return 0
    table = rows(options.targets, options.sizes)
    if options.write:
        text = (__doc__ or "").partition("\n\n")[2]
        head = "| target | model | nodes | CPU s | growth of time | growth of nodes | peak MB |\n" + "|---" * 7 + "|"
        DOCUMENT.write_text(f"# Growth of compile time\n\n{text}\n{head}\n" + "\n".join(table) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
