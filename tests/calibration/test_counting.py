"""Counts under QEMU: what the plugin counts, and that the table predicts it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.calibration.nests import nest_of
from tilegrad.calibration import check
from tilegrad.calibration.counting import Counts, Sample, count, missing_tools
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.ir.nest import Nest, whole
from tilegrad.ops import registry
from tilegrad.ops.kernels import parse_kernel_file
from tilegrad.targets.base import get

MISSING = missing_tools()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"counting instructions needs {', '.join(MISSING)}")

# Kernels that a training step spends its time in, one of each kind of loop.
HOT = tuple(
    "gemm_nt gemm_tn matmul_nn conv conv_dx conv_dw conv_single conv_pointwise frozen_norm frozen_norm_grad sgd".split()
)


def counted(op: str, shapes: list[tuple[int, ...]], cores: int) -> tuple[Nest, Counts]:
    nest = nest_of(op, shapes)
    source = registry.kernel_source(op)
    assert source is not None
    return nest, count([Sample(op, nest, whole(nest), cores)], parse_kernel_file(source))[0]


def test_the_counts_of_an_update_are_what_its_c_says() -> None:
    """w - lr g over n weights, eight a turn: n multiply-adds, two loads each and the rate, n stores, n / 8 branches."""
    _, counts = counted("SGD", [(1000,), (1000,), ()], 1)
    assert counts["i_fma"] == 1000
    assert counts["data_loads"] == 2001
    assert counts["data_stores"] == 1000
    assert 124 <= counts["i_branch_taken"] <= 129
    assert counts["i_fdiv_sqrt"] == counts["all_fdiv_sqrt"] == 0


def test_the_busiest_core_has_the_largest_share() -> None:
    _, alone = counted("SGD", [(1001,), (1001,), ()], 1)
    _, shared = counted("SGD", [(1001,), (1001,), ()], 8)
    assert alone["i_fma"] == 1001
    assert shared["i_fma"] == 126


def test_divisions_are_summed_over_the_cores() -> None:
    _, counts = counted("Reciprocal", [(80,)], 8)
    assert counts["i_fdiv_sqrt"] == 10
    assert counts["all_fdiv_sqrt"] == 80


def test_a_matrix_product_does_one_multiply_add_per_mac() -> None:
    nest, counts = counted("Gemm", [(24, 40), (40, 32)], 1)
    assert counts["i_fma"] == nest.macs == 24 * 32 * 40


def test_hot_kernels_are_predicted() -> None:
    found = check.predictions(KernelCosts(get("siracusa")), 4242, 10, lambda kernel: kernel in HOT)
    assert {p.kernel for p in found} == set(HOT)
    assert check.complaints(found) == []


@pytest.mark.slow
def test_every_kernel_is_predicted() -> None:
    """50 random tiles each, however small: within the documented bounds of QEMU's count."""
    found = check.predictions(KernelCosts(get("siracusa")), 2026, check.TILES_PER_KERNEL)
    assert len({p.kernel for p in found}) > 200
    assert check.complaints(found) == []


def test_a_wrong_prediction_is_noticed() -> None:
    """The bounds have teeth."""
    exact = check.Prediction("gemm_nn", "m 0:4", 100, 100.0, 100.0)
    derived = replace(exact, kernel="relu")
    assert check.complaints([exact, derived]) == []
    large = replace(exact, counted=2000, predicted=2000.0)
    assert check.complaints([large] * 39 + [replace(large, predicted=2720.0)]) == ["gemm_nn m 0:4: 36.0 % off"]
    assert check.complaints([exact] * 39 + [replace(exact, predicted=136.0)]) == []
    assert "gemm_nn m 0:4: 101.0 % off" in check.complaints([exact] * 39 + [replace(exact, predicted=201.0)])
    assert check.complaints([exact] * 9 + [replace(exact, predicted=106.0)]) == [
        "only 90.0 % of the tiles of mirrored kernels are within 5 %"
    ]
    assert check.complaints([replace(derived, predicted=110.0)]) == ["derived kernels are 10.0 % off on average"]
    assert check.complaints([derived] * 4 + [replace(derived, predicted=120.0)]) == [
        "only 80.0 % of the tiles of derived kernels are within 15 %"
    ]
