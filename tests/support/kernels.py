"""Runs single nests on NumPy arrays, through the portable kernels compiled as one shared library.

This executes tiles exactly as a scratchpad machine would: each operand's box is copied out into a dense buffer of its
own, the kernel sees nothing else, and results are copied back. It shares nothing with code generation.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.nest import (
    Access,
    AxisKind,
    Nest,
    Range,
    Tile,
    kernel_argument,
    operand_box,
    ordered_sizes,
    row_major_strides,
    whole,
)
from tilegrad.ir.types import TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.ops.kernels import RUNTIME_FOLDER, KernelSignature, parse_kernel_file

FLAGS = tuple("-std=c99 -O2 -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno -fPIC -march=native".split())


@cache
def kernel_file_library(path: Path) -> ctypes.CDLL:
    """One operator's C file, compiled alone."""
    text = path.read_bytes() + b"".join(p.read_bytes() for p in sorted(RUNTIME_FOLDER.glob("*.h")))
    digest = hashlib.sha256(text + repr(FLAGS).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "tilegrad-test-kernels"
    folder.mkdir(exist_ok=True)
    library = folder / f"{path.stem}-{digest}.so"
    if not library.exists():
        unfinished = folder / f"{library.name}.{os.getpid()}"
        command = ["gcc", *FLAGS, "-shared", f"-I{RUNTIME_FOLDER}", str(path), "-o", str(unfinished), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        unfinished.rename(library)
    return ctypes.CDLL(str(library))


@cache
def _signature(op: str, kernel: str) -> tuple[KernelSignature, Path]:
    path = registry.kernel_source(op)
    assert path is not None, f"{op} has no C file"
    for signature in parse_kernel_file(path).kernels:
        if signature.name == kernel:
            return signature, path
    raise AssertionError(f"{path.name} has no kernel tg_{kernel}")


@cache
def _argument_struct(signature: KernelSignature) -> type[ctypes.Structure]:
    c_types = {"int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "float": ctypes.c_float}
    fields = [(name, c_types[c_type]) for c_type, name in signature.arguments.fields]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


def kernel_call(
    op: str, nest: Nest, tile: Tile, arrays: Mapping[str, np.ndarray | None]
) -> Callable[[int, int], None]:
    """A tile's call, ready for (core_id, core_count). `arrays` are the operands' dense boxes by pointer name."""
    signature, path = _signature(op, nest.kernel)
    assert [o.name for o in nest.operands] == [name for _, name in signature.pointers], (
        f"tg_{nest.kernel} takes {[n for _, n in signature.pointers]}, its nest gives {[o.name for o in nest.operands]}"
    )
    strides = {
        name: row_major_strides(array.shape) for name, array in arrays.items() if array is not None
    }
    arguments = _argument_struct(signature)()
    for _, name in signature.arguments.fields:
        value = kernel_argument(name, nest, tile, strides)
        assert value is not None, f"tg_{nest.kernel}: nothing gives the field '{name}'"
        setattr(arguments, name, value)
    pointers = [
        None if arrays[operand.name] is None else arrays[operand.name].ctypes.data_as(ctypes.c_void_p)
        for operand in nest.operands
    ]
    function = getattr(kernel_file_library(path), f"tg_{nest.kernel}")
    function.restype = None
    return partial(function, *pointers, ctypes.byref(arguments))


def call_kernel(
    op: str, nest: Nest, tile: Tile, arrays: Mapping[str, np.ndarray | None], core_id: int, cores: int
) -> None:
    """One call; `arrays` are the dense boxes of the operands by pointer name."""
    kernel_call(op, nest, tile, arrays)(core_id, cores)


def tiles(nest: Nest, sizes: Mapping[str, int]) -> list[dict[str, Range]]:
    """Parallel loops outside, reduction loops inside and ascending; the last tile of an axis may be ragged."""
    order = sorted(nest.axes, key=lambda axis: axis.kind is AxisKind.REDUCTION)
    legal = ordered_sizes(nest, sizes)
    ranges = []
    for axis in order:
        size = legal[axis.name]
        starts = range(0, max(axis.extent, 1), size)  # an empty axis has one empty tile: outputs are still written
        ranges.append([(axis.name, Range(s, min(s + size, axis.extent))) for s in starts])
    return [dict(choice) for choice in itertools.product(*ranges)]


def run_nest(
    op: str, nest: Nest, values: Mapping[str, np.ndarray], sizes: Mapping[str, int] | None = None, cores: int = 1
) -> None:
    """Runs a nest in place on `values`, untiled, or cut into tiles of `sizes`."""
    for tile in [whole(nest)] if sizes is None else tiles(nest, sizes):
        is_first = all(tile[a.name].start == 0 for a in nest.axes if a.kind is AxisKind.REDUCTION)
        boxes: dict[str, np.ndarray | None] = {}
        views = {}
        for operand in nest.operands:
            if operand.value is None:
                boxes[operand.name] = None
                continue
            view = values[operand.value].reshape(operand.shape)
            region = tuple(slice(r.start, r.stop) for r in operand_box(operand, tile))
            views[operand.name] = (view, region)
            if operand.access is Access.WRITE and is_first:
                # Poison: what the kernel does not write must show.
                box = np.frombuffer(b"\xa5" * view[region].nbytes, dtype=view.dtype).reshape(view[region].shape).copy()
            else:
                box = np.array(view[region], order="C", copy=True)
            boxes[operand.name] = box
        call = kernel_call(op, nest, tile, boxes)
        for core in reversed(range(cores)):  # any order must do: cores are independent between barriers
            call(core, cores)
        for operand in nest.operands:
            if operand.value is not None and operand.access is not Access.READ:
                view, region = views[operand.name]
                view[region] = boxes[operand.name]


def run_node(
    node: Node,
    types: Mapping[str, TensorType],
    values: dict[str, np.ndarray],
    sizes: Mapping[str, int] | None = None,
    cores: int = 1,
) -> None:
    """Runs an operator: adds its outputs to `values`."""
    operator = registry.get(node.op)
    view = NodeView(node, types)
    if operator.is_view:
        values[node.outputs[0]] = values[node.inputs[0]].reshape(types[node.outputs[0]].shape)
        return
    for i, temporary in enumerate(operator.temporaries(view)):
        values[view.temporary(i)] = np.full(temporary.shape, 0, temporary.dtype.numpy)
    for name in node.outputs:
        if name:
            out = types[name]
            values[name] = np.frombuffer(b"\xa5" * out.size_bytes, dtype=out.dtype.numpy).reshape(out.shape).copy()
    for nest in operator.nests(view):
        run_nest(node.op, nest, values, sizes, cores)


def run_graph(
    graph: Graph, feeds: Mapping[str, np.ndarray], sizes: Mapping[str, int] | None = None, cores: int = 1
) -> dict[str, np.ndarray]:
    """Every value of a graph, by running its nodes in order."""
    values = {name: np.array(c.array) for name, c in graph.constants.items()}
    for name, array in feeds.items():
        wanted = graph.types[name]
        values[name] = np.ascontiguousarray(array, dtype=wanted.dtype.numpy).reshape(wanted.shape)
    for node in graph.nodes:
        run_node(node, graph.types, values, sizes, cores)
    return values


def random_sizes(nest_axes: Sequence[tuple[str, int]], draw: np.random.Generator) -> dict[str, int]:
    """A random tile size for each axis."""
    return {name: int(draw.integers(1, max(extent, 1) + 1)) for name, extent in nest_axes}
