"""The host's own kernels give the bits of the portable ones: any shape, attribute, tile and core count, any float, and
with every set of instructions that this machine has."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support import kernels
from tests.support.often import first_always
from tests.support.operators import one_node_graph, with_gradient
from tilegrad.codegen.kernels import target_kernels
from tilegrad.errors import InternalError
from tilegrad.ir.graph import Attribute, Graph
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.ops.kernels import RUNTIME_FOLDER, KernelFile, parse_kernel_file
from tilegrad.targets import base as targets
from tilegrad.targets.base import Target

HOST = targets.get("host")


def kernels_of(target: Target) -> Path:
    return targets.TARGETS_FOLDER / target.name / "kernels"


FOLDER = kernels_of(HOST)
Sizes = st.SearchStrategy[int]
AWKWARD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-41, -3e-45, 1e-25, -1e-25, 3e38], np.float32)
# What the host device compiles with, then a machine with vectors of eight, then one without fma.
FLAG_SETS = (("-O3", "-march=native", "-fno-trapping-math"), ("-O3", "-mavx2", "-mfma"), ("-O1",))
NEEDED = {"-mavx2": "avx2", "-mfma": "fma"}


def _runs_here(flags: Sequence[str]) -> bool:
    cpu_info = Path("/proc/cpuinfo")
    known = set(cpu_info.read_text(encoding="utf-8").split()) if cpu_info.exists() else set()
    return all(NEEDED[flag] in known for flag in flags if flag in NEEDED)


every_machine = pytest.mark.parametrize(
    "flags",
    [
        pytest.param(
            flags,
            marks=[
                pytest.mark.skipif(not _runs_here(flags), reason=f"no {' '.join(flags)} on this machine"),
                *marks,
            ],
        )
        for flags, marks in zip(FLAG_SETS, ([], [pytest.mark.matrix], [pytest.mark.slow]), strict=True)
    ],
    ids=" ".join,
)


def compile_kernels(compiler: str, flags: Sequence[str], portable: Path, output: Path, target: Target = HOST) -> None:
    """What a target runs in place of a portable kernel file, with the target's headers."""
    common = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared")
    folders = (f"-I{kernels_of(target)}", f"-I{RUNTIME_FOLDER}")
    command = [compiler, *common, *flags, *folders, "-x", "c", "-", "-o", str(output), "-lm"]
    text = target_kernels(portable, target).text
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@cache
def library_of(target: Target, flags: tuple[str, ...], portable: Path) -> ctypes.CDLL:
    folders = (kernels_of(target), RUNTIME_FOLDER)
    headers = b"".join(path.read_bytes() for folder in folders for path in sorted(folder.glob("*.h")))
    content = target_kernels(portable, target).text + repr(flags)
    digest = hashlib.sha256(content.encode() + headers).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "tilegrad-test-kernels"
    folder.mkdir(exist_ok=True)
    library = folder / f"{target.name}-{portable.stem}-{digest}.so"
    if not library.exists():
        partial_file = folder / f"{library.name}.{os.getpid()}"
        compile_kernels("gcc", flags, portable, partial_file, target)
        partial_file.rename(library)
    return ctypes.CDLL(str(library))


def values_of(draw: np.random.Generator, shape: tuple[int, ...], awkward: bool) -> np.ndarray:
    """Ordinary numbers, or those whose products underflow, overflow or are not numbers."""
    values = draw.standard_normal(shape).astype(np.float32)
    if awkward:
        values *= np.float32(10.0) ** draw.integers(-22, 3, shape).astype(np.float32)
        chosen = draw.random(shape) < 0.03
        values[chosen] = draw.choice(AWKWARD, shape)[chosen]
    return values


def assert_same_bits(
    flags: tuple[str, ...], graph: Graph, seed: int, awkward: bool, *, coarse: bool = False, target: Target = HOST
) -> None:
    draw = np.random.default_rng(seed)
    feeds = {name: values_of(draw, graph.types[name].shape, awkward) for name in graph.inputs}
    if coarse:  # many equal values
        feeds = {name: np.round(array) for name, array in feeds.items()}
    expected = kernels.run_graph(graph, feeds)
    axes = {
        (axis.name, axis.extent)
        for node in graph.nodes
        if not registry.get(node.op).is_view
        for nest in registry.get(node.op).nests(NodeView(node, graph.types))
        for axis in nest.axes
    }
    with mock.patch.object(kernels, "kernel_file_library", partial(library_of, target, flags)):
        runs: list[tuple[Mapping[str, int] | None, int]] = [(None, 1), (None, 3)]
        runs.append(({name: int(draw.integers(1, max(extent, 1) + 1)) for name, extent in sorted(axes)}, 2))
        for sizes, cores in runs:
            got = kernels.run_graph(graph, feeds, sizes, cores)
            for name, wanted in expected.items():
                same = (got[name].view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(got[name]) & np.isnan(wanted))
                assert np.all(same), f"'{name}': {np.argwhere(~same)[:4].tolist()} differ, tiles {sizes}, {cores} cores"


def graph_of(
    op: str,
    shapes: Sequence[tuple[int, ...] | None],
    attributes: Mapping[str, Attribute],
    *,
    differentiate: int = 3,
    outputs: int = 1,
) -> Graph:
    """An operator and its gradient with respect to the first inputs."""
    inputs = [None if s is None else np.zeros(s, np.float32) for s in shapes]
    graph = one_node_graph(op, inputs, attributes, outputs=(True,) * outputs)
    chosen = [f"x{i}" for i, s in enumerate(shapes) if s is not None and i < differentiate]
    return with_gradient(graph, chosen)[0] if chosen else graph


def _target_with(text: str, folder: Path) -> KernelFile:
    """Relu's kernels for a target whose own file is this text."""
    own = folder / "relu.c"
    own.write_text(text, encoding="utf-8")
    target = replace(HOST, name=folder.name)  # another target, as far as caches go
    with mock.patch.object(targets.Target, "kernel_override", lambda *_: own):
        return target_kernels(RELU, target)


RELU = registry.OPS_FOLDER / "relu.c"
RELU_GRAD = parse_kernel_file(RELU).text.partition("TG_KERNEL void tg_relu_grad(")[2].partition("\n{")[0]


def test_a_target_replaces_single_kernels(tmp_path: Path) -> None:
    own = f'#include "tg_elementwise.h"\n\nTG_KERNEL void tg_relu_grad({RELU_GRAD}\n{{\n    /* ours */\n}}\n'
    merged = _target_with(own, tmp_path)
    portable = parse_kernel_file(RELU)
    assert [k.prototype for k in merged.kernels] == [k.prototype for k in portable.kernels]
    kept = portable.text.partition("TG_KERNEL void tg_relu(")[2].partition("\n}\n")[0]
    assert kept in merged.text and merged.text.count("tg_relu_grad(") == 1 and "/* ours */" in merged.text


@pytest.mark.parametrize("change", [("float *dx", "float *dz"), ("tg_relu_grad", "tg_relu_slope")])
def test_a_target_keeps_the_signatures(change: tuple[str, str], tmp_path: Path) -> None:
    own = f'#include "tg_elementwise.h"\n\nTG_KERNEL void tg_relu_grad({RELU_GRAD}\n{{\n}}\n'.replace(*change)
    with pytest.raises(InternalError, match="has another signature for tg_relu"):
        _target_with(own, tmp_path)


SEEDS = st.integers(0, 2**32 - 1)
SOURCES = sorted({p for p in (registry.kernel_source(op) for op in registry.names()) if p is not None})


def _uses_host_headers(source: Path) -> bool:
    own = {path.name for path in FOLDER.glob("*.h")}
    return (FOLDER / source.name).exists() or bool(own & set(parse_kernel_file(source).headers))


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("flags", first_always(FLAG_SETS, 1), ids=" ".join)
def test_they_compile_without_warnings(compiler: str, flags: Sequence[str], tmp_path: Path) -> None:
    for source in filter(_uses_host_headers, SOURCES):
        compile_kernels(compiler, flags, source, tmp_path / "library.so")


def gemms(m: Sizes, n: Sizes, k: Sizes) -> st.SearchStrategy[Graph]:
    """Products of these sizes, of operands as they are or transposed, with every kind of bias and with scales."""

    def product(
        sizes: tuple[int, int, int],
        transposed: tuple[int, int],
        bias: str | tuple[int, ...] | None,
        scales: tuple[float, float],
    ) -> Graph:
        m, n, k = sizes
        named = {"n": (n,), "m1": (m, 1), "mn": (m, n)}
        c = named[bias] if isinstance(bias, str) else bias
        shapes = [(k, m) if transposed[0] else (m, k), (n, k) if transposed[1] else (k, n), c]
        attributes = {"transA": transposed[0], "transB": transposed[1], "alpha": scales[0], "beta": scales[1]}
        return graph_of("Gemm", shapes, attributes, differentiate=0)

    ways = st.tuples(st.integers(0, 1), st.integers(0, 1))
    biases = st.sampled_from([None, (1,), (1, 1), "n", "m1", "mn"])
    return st.builds(product, st.tuples(m, n, k), ways, biases, st.sampled_from([(1.0, 1.0), (0.5, 2.0)]))


@every_machine
@settings(deadline=None, max_examples=26)
@given(
    graph=gemms(
        st.sampled_from([0, 1, 2, 3, 5, 8, 9, 17]),
        st.sampled_from([0, 1, 7, 16, 17, 31, 32, 33, 70, 130, 150]),
        st.sampled_from([0, 1, 2, 15, 16, 17, 40, 128, 129, 260]),
    ),
    seed=SEEDS,
    awkward=st.booleans(),
)
def test_gemm(flags: tuple[str, ...], graph: Graph, seed: int, awkward: bool) -> None:
    assert_same_bits(flags, graph, seed, awkward)


@every_machine
@settings(deadline=None, max_examples=16)
@given(
    batch=st.sampled_from([(), (1,), (3,), (2, 2)]),
    m=st.integers(1, 20),
    n=st.sampled_from([1, 5, 16, 40, 70]),
    k=st.sampled_from([1, 3, 16, 30, 140]),
    seed=SEEDS,
    awkward=st.booleans(),
)
def test_matmul(
    flags: tuple[str, ...], batch: tuple[int, ...], m: int, n: int, k: int, seed: int, awkward: bool
) -> None:
    assert_same_bits(flags, graph_of("MatMul", [(*batch, m, k), (*batch, k, n)], {}), seed, awkward)
    assert_same_bits(flags, graph_of("MatMul", [(*batch, m, k), (k, n)], {}), seed, awkward)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[list[tuple[int, ...] | None], dict[str, Attribute]]:
    """Image, weight and bias shapes and the attributes; ordinary windows more often than odd ones."""
    kind = draw(st.sampled_from(["dense", "dense", "depthwise", "pointwise", "grouped"]))
    channels = draw(st.sampled_from([1, 2, 3, 4, 8, 15, 16, 17, 34]))
    groups = {"depthwise": channels, "grouped": 2}.get(kind, 1)
    inputs, outputs = (1, 1) if kind == "depthwise" else (channels, draw(st.sampled_from([1, 2, 3, 7, 8, 16, 33])))
    window = (1, 1) if kind == "pointwise" else draw(st.sampled_from([(3, 3), (3, 3), (1, 1), (2, 3), (5, 4), (1, 7)]))
    strides = draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (2, 1), (3, 2)])) if kind != "pointwise" else (1, 1)
    dilations = draw(st.sampled_from([(1, 1), (1, 1), (1, 1), (2, 1), (1, 2)]))
    pads = (0,) * 4 if kind == "pointwise" else tuple(draw(st.integers(0, w - 1)) for w in (*window, *window))
    image = tuple(
        draw(st.integers(max(1, d * (w - 1) + 1 - a - b), 38))
        for w, d, a, b in zip(window, dilations, pads[:2], pads[2:], strict=True)
    )
    batch = draw(st.sampled_from([1, 1, 2]))
    bias = (groups * outputs,) if draw(st.booleans()) else None
    shapes = [(batch, groups * inputs, *image), (groups * outputs, inputs, *window), bias]
    attributes: dict[str, Attribute] = {
        "group": groups,
        "kernel_shape": window,
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
    }
    return shapes, attributes


@every_machine
@settings(deadline=None, max_examples=40)
@given(case=convolutions(), seed=SEEDS, awkward=st.booleans())
def test_convolution(
    flags: tuple[str, ...],
    case: tuple[list[tuple[int, ...] | None], dict[str, Attribute]],
    seed: int,
    awkward: bool,
) -> None:
    assert_same_bits(flags, graph_of("Conv", *case), seed, awkward)


@st.composite
def transposed_convolutions(draw: st.DrawFn) -> tuple[list[tuple[int, ...] | None], dict[str, Attribute]]:
    """The same for ConvTranspose, whose output is larger than its input."""
    groups = draw(st.sampled_from([1, 1, 2, 5]))
    inputs, outputs = draw(st.sampled_from([1, 3, 16])), draw(st.sampled_from([1, 2, 8, 17]))
    window = draw(st.sampled_from([(3, 3), (2, 2), (4, 4), (1, 5)]))
    strides = draw(st.sampled_from([(2, 2), (1, 1), (3, 2)]))
    pads = tuple(draw(st.integers(0, (w - 1) // 2)) for w in window) * 2
    image = (draw(st.integers(2, 9)), draw(st.integers(2, 21)))
    bias: tuple[int, ...] | None = (groups * outputs,) if draw(st.booleans()) else None
    batch = draw(st.sampled_from([1, 2]))
    shapes: list[tuple[int, ...] | None] = [(batch, groups * inputs, *image)]
    shapes += [(groups * inputs, outputs, *window), bias]
    return shapes, {"group": groups, "kernel_shape": window, "strides": strides, "pads": pads}


@every_machine
@settings(deadline=None, max_examples=25)
@given(case=transposed_convolutions(), seed=SEEDS, awkward=st.booleans())
def test_transposed_convolution(
    flags: tuple[str, ...],
    case: tuple[list[tuple[int, ...] | None], dict[str, Attribute]],
    seed: int,
    awkward: bool,
) -> None:
    assert_same_bits(flags, graph_of("ConvTranspose", *case), seed, awkward)


@every_machine
@settings(deadline=None, max_examples=26)
@given(
    channels=st.integers(1, 4),
    image=st.one_of(
        st.tuples(st.integers(5, 20), st.sampled_from([5, 16, 40, 140])),
        st.sampled_from([(30, 600), (5, 4200)]),  # more than the gradient keeps at once, more than it keeps at all
    ),
    window=st.sampled_from([(3, 3), (2, 2), (1, 4), (3, 2), (2, 19)]),
    strides=st.sampled_from([(2, 2), (1, 1), (1, 3), (3, 2)]),
    dilations=st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]),
    is_padded=st.booleans(),
    seed=SEEDS,
    awkward=st.booleans(),
    coarse=st.booleans(),
)
def test_max_pool(
    flags: tuple[str, ...],
    channels: int,
    image: tuple[int, int],
    window: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    is_padded: bool,
    seed: int,
    awkward: bool,
    coarse: bool,
) -> None:
    assume(dilations[1] * (window[1] - 1) < image[1])
    pads = tuple((w - 1) // 2 if is_padded else 0 for w in window * 2)
    attributes: dict[str, Attribute] = {
        "kernel_shape": window,
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
    }
    assert_same_bits(flags, graph_of("MaxPool", [(1, channels, *image)], attributes), seed, awkward, coarse=coarse)


@every_machine
@settings(deadline=None, max_examples=20)
@given(
    op=st.sampled_from(["Softmax", "LogSoftmax"]),
    shape=st.sampled_from([(1, 64), (3, 1), (17, 5), (33, 130), (4, 9, 300), (2, 16, 16)]),
    axis=st.sampled_from([-1, -1, 1, 0]),
    seed=SEEDS,
    awkward=st.booleans(),
)
def test_softmax(flags: tuple[str, ...], op: str, shape: tuple[int, ...], axis: int, seed: int, awkward: bool) -> None:
    assert_same_bits(flags, graph_of(op, [shape], {"axis": axis}), seed, awkward)


@every_machine
@settings(deadline=None, max_examples=20)
@given(
    rows=st.sampled_from([(1,), (15,), (16,), (3, 11)]),
    n=st.sampled_from([1, 7, 16, 128, 129, 300]),
    has_bias=st.booleans(),
    seed=SEEDS,
    awkward=st.booleans(),
)
def test_layer_normalization(
    flags: tuple[str, ...], rows: tuple[int, ...], n: int, has_bias: bool, seed: int, awkward: bool
) -> None:
    shapes = [(*rows, n), (n,), (n,) if has_bias else None]
    assert_same_bits(flags, graph_of("LayerNormalization", shapes, {"axis": -1}), seed, awkward)


@every_machine
@settings(deadline=None, max_examples=20)
@given(
    batch=st.sampled_from([1, 3]),
    channels=st.sampled_from([1, 5, 16, 19]),
    image=st.sampled_from([(), (1,), (7,), (5, 9), (16, 20)]),
    is_training=st.booleans(),
    seed=SEEDS,
    awkward=st.booleans(),
)
def test_batch_normalization(
    flags: tuple[str, ...],
    batch: int,
    channels: int,
    image: tuple[int, ...],
    is_training: bool,
    seed: int,
    awkward: bool,
) -> None:
    assume(batch * math.prod(image) > 1 or not is_training)
    op, outputs = ("BatchNormInternal", 5) if is_training else ("BatchNormalization", 1)
    shapes = [(batch, channels, *image), *[(channels,)] * 4]
    assert_same_bits(flags, graph_of(op, shapes, {"epsilon": 0.5}, outputs=outputs), seed, awkward)


@every_machine
@settings(deadline=None, max_examples=20)
@given(
    batch=st.sampled_from([1, 3]),
    channels=st.sampled_from([1, 5, 16, 19, 40]),
    image=st.sampled_from([(), (1,), (7,), (5, 9), (16, 20)]),
    has_relu=st.booleans(),
    seed=SEEDS,
    awkward=st.booleans(),
)
def test_frozen_batch_normalization(
    flags: tuple[str, ...],
    batch: int,
    channels: int,
    image: tuple[int, ...],
    has_relu: bool,
    seed: int,
    awkward: bool,
) -> None:
    shapes = [(batch, channels, *image), *[(channels,)] * 4]
    graph = graph_of("FrozenBatchNormalization", shapes, {"relu": int(has_relu)})
    assert_same_bits(flags, graph, seed, awkward)


@every_machine
@settings(deadline=None, max_examples=20)
@given(
    case=st.sampled_from(
        [
            ((9, 30), (1, 0)),
            ((3, 64, 40), (0, 2, 1)),
            ((2, 17, 3, 8), (0, 2, 3, 1)),
            ((5, 16, 16), (2, 0, 1)),
            ((4, 7, 12), (1, 0, 2)),
        ]
    ),
    seed=SEEDS,
)
def test_transpose(flags: tuple[str, ...], case: tuple[tuple[int, ...], tuple[int, ...]], seed: int) -> None:
    shape, permutation = case
    assert_same_bits(flags, graph_of("Transpose", [shape], {"perm": permutation}), seed, awkward=True)
