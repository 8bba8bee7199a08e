"""Kernels whose loops are mirrored: matrix products, convolutions and rank-one updates, where evidence needs it."""

from __future__ import annotations

from collections.abc import Callable

from tilegrad.costs.loops import convolution, matrix, outer
from tilegrad.costs.loops.base import Family
from tilegrad.ir.nest import Nest

# By kernel; where one kernel has two sets of loops, the nest decides.
_FAMILIES: dict[str, Family | Callable[[Nest], Family]] = {
    **dict.fromkeys(("gemm_nn", "gemm_nt", "gemm_tn", "gemm_tt"), matrix.GEMM),
    **dict.fromkeys(("matmul_nn", "matmul_nt", "matmul_tn", "matmul_tt"), matrix.MATMUL),
    "conv_pointwise": matrix.POINTWISE,
    "conv_pointwise_dx": matrix.POINTWISE_DX,
    "conv_pointwise_dw": matrix.POINTWISE_DW,
    "conv": convolution.CONV,
    "conv_dx": convolution.CONV_DX,
    "conv_dw": convolution.CONV_DW,
    "conv_grad_sgd": convolution.CONV_DW,
    "conv_single": convolution.conv_single,
    "conv_single_dx": convolution.conv_single_dx,
    "conv_single_dw": convolution.conv_single_dw,
    "outer_sgd": outer.OUTER,
    "outer_accumulate": outer.OUTER,
    "dense_grad_sgd": outer.DENSE_GRAD,
}


def is_mirrored(kernel: str) -> bool:
    return kernel in _FAMILIES


def mirrored_family(nest: Nest) -> Family | None:
    """None where a kernel's trips are derived from its nest."""
    found = _FAMILIES.get(nest.kernel)
    return found if found is None or isinstance(found, Family) else found(nest)
