"""The MPPA's own matrix product gives the bits of the portable one: any shape, tile and core count, any float. What the
chip's compiler would take of it is compiled too, with a function in the place of the one instruction it asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.schedule.programs import compiled_for
from tests.targets.test_host_kernels import SEEDS, assert_same_bits, compile_kernels, gemms, graph_of
from tilegrad.ir.graph import Graph
from tilegrad.ops import registry
from tilegrad.targets import base as targets

MPPA = targets.get("mppa")
STAND_IN = Path(__file__).with_name("kvx_stand_in.h")
CHIP = ("-O2", "-march=native", "-D__kvx__=3", f"-include{STAND_IN}")
either = pytest.mark.parametrize("flags", [("-O2", "-march=native"), CHIP], ids=["fours of floats", "vectors"])
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a failure is small enough as it is
SIZES = st.one_of(st.integers(0, 13), st.sampled_from([16, 31, 32, 33, 65, 130]))


@either
@settings(deadline=None, max_examples=16, phases=PHASES)
@given(
    graph=gemms(SIZES, SIZES, st.one_of(st.integers(0, 9), st.sampled_from([31, 129]))),
    seed=SEEDS,
    awkward=st.booleans(),
)
def test_gemm(flags: tuple[str, ...], graph: Graph, seed: int, awkward: bool) -> None:
    assert_same_bits(flags, graph, seed, awkward, target=MPPA)


@either
@settings(deadline=None, max_examples=6, phases=PHASES)
@given(batch=st.sampled_from([(), (3,)]), m=SIZES, n=SIZES, k=SIZES, seed=SEEDS, awkward=st.booleans())
def test_matmul_and_its_gradients(
    flags: tuple[str, ...], batch: tuple[int, ...], m: int, n: int, k: int, seed: int, awkward: bool
) -> None:
    graph = graph_of("MatMul", [(*batch, max(m, 1), max(k, 1)), (max(k, 1), max(n, 1))], {})
    assert_same_bits(flags, graph, seed, awkward, target=MPPA)


@either
@settings(deadline=None, max_examples=6, phases=PHASES)
@given(
    channels=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    image=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    batch=st.integers(1, 2),
    has_bias=st.booleans(),
    seed=SEEDS,
    awkward=st.booleans(),
)
def test_pointwise_convolutions_and_their_gradients(
    flags: tuple[str, ...],
    channels: tuple[int, int],
    image: tuple[int, int],
    batch: int,
    has_bias: bool,
    seed: int,
    awkward: bool,
) -> None:
    shapes = [(batch, channels[0], *image), (channels[1], channels[0], 1, 1), (channels[1],) if has_bias else None]
    assert_same_bits(flags, graph_of("Conv", shapes, {"kernel_shape": (1, 1)}), seed, awkward, target=MPPA)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("op", ["Gemm", "MatMul", "Conv"])
def test_they_compile_without_warnings(compiler: str, op: str, tmp_path: Path) -> None:
    source = registry.kernel_source(op)
    assert source is not None
    compile_kernels(compiler, ("-O1",), source, tmp_path / "library.so", MPPA)


def test_programs_for_the_chip_have_it_and_no_others_do() -> None:
    for name, has_it in (("mppa", True), ("siracusa", False), ("npu", False), ("host", False)):
        header = compiled_for("simplemlp", targets.get(name)).project.files["kernels/tg_gemm.h"]
        assert (b"__builtin_kvx_ffmawq" in header) is has_it, name
