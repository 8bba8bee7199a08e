"""Which family of loops a kernel has."""

from __future__ import annotations

from collections.abc import Callable

from tilegrad.costs.loops import (
    branching,
    convolution,
    elementwise,
    frozen,
    indexed,
    matrix,
    pooling,
    reduction,
    simple,
)
from tilegrad.costs.loops.base import Call, Counter, Family, call_of
from tilegrad.ir.nest import Nest

__all__ = ["Call", "Counter", "Family", "call_of", "described_in", "family_of", "is_described"]

# By kernel; where one kernel has two sets of loops, the nest decides.
_FAMILIES: dict[str, Family | Callable[[Nest], Family]] = {}


def _register(family: Family | Callable[[Nest], Family], names: str) -> None:
    for name in names.split():
        _FAMILIES[name] = family


_register(
    elementwise.MAP,
    "div sum sum_of_one momentum adam accumulator_flag gelu gelu_grad mse_loss_grad bce_with_logits_loss_grad "
    "abs_map clip_integer erf_map erf_grad exp_map hard_sigmoid hard_swish hard_swish_grad leaky_relu "
    "leaky_relu_grad log_map neg not pow_scalar reciprocal reciprocal_grad floor ceil round sign sigmoid_map "
    "sigmoid_grad softplus_map sqrt sqrt_grad tanh_grad dropout_copy dropout_mask",
)
_register(elementwise.STREAM, "add sub mul copy_b1 copy_b2 copy_b4 copy_b8 accumulate relu relu_grad sgd")
_register(branching.BRANCHING_MAP, " ".join(branching.KERNELS))
_register(
    elementwise.BROADCAST,
    "add_broadcast mul_broadcast sub_broadcast div_broadcast maximum_broadcast minimum_broadcast sum_broadcast "
    "add_integer mul_integer sub_integer div_integer maximum_integer minimum_integer maximum_grad minimum_grad p_relu "
    "p_relu_grad pow_broadcast pow_grad pow_exponent_grad equal less less_or_equal equal_integer "
    "less_integer less_or_equal_integer and or xor where_b1 where_b2 where_b4 where_b8",
)
_register(elementwise.MIXED_POWER, "pow_mixed")
for _size in "1248":
    _register(
        elementwise.COPY,
        " ".join(f"{stem}_b{_size}" for stem in "concat depth_to_space expand slice split tile transpose".split()),
    )
_register(matrix.GEMM, "gemm_nn gemm_nt gemm_tn gemm_tt")
_register(matrix.MATMUL, "matmul_nn matmul_nt matmul_tn matmul_tt")
_register(matrix.POINTWISE, "conv_pointwise")
_register(matrix.POINTWISE_DX, "conv_pointwise_dx")
_register(matrix.POINTWISE_DW, "conv_pointwise_dw")
_register(convolution.CONV, "conv")
_register(convolution.CONV_DX, "conv_dx")
_register(convolution.CONV_DW, "conv_dw")
_register(convolution.conv_single, "conv_single")
_register(convolution.conv_single_dx, "conv_single_dx")
_register(convolution.conv_single_dw, "conv_single_dw")
_register(simple.CONV_DB, "conv_db")
_register(elementwise.OUTER, "outer_sgd outer_accumulate")
_register(elementwise.DENSE_GRAD, "dense_grad_sgd")
_register(elementwise.PLAIN_MAP, "sgd_group batch_norm_inverse")
_register(simple.GLOBAL_POOL, "global_average_pool global_average_pool_grad")
_register(simple.NORMALIZE, "batch_norm batch_norm_grad group_norm group_norm_grad")
_register(simple.ROW_STATISTICS, "batch_norm_partial group_norm_partial")
_register(simple.DOTS, "batch_norm_dots group_norm_dots")
_register(simple.FLAT_DOTS, "batch_norm_flat_dots")
_register(simple.NORMALIZE_PARAMETERS, "batch_norm_parameters group_norm_parameters frozen_norm_parameters")
_register(simple.MOMENTS, "batch_norm_moments group_norm_moments")
_register(simple.STATISTIC, "batch_norm_statistic")
_register(frozen.NORM, "frozen_norm")
_register(frozen.FLAT, "frozen_norm_flat")
_register(frozen.GRAD, "frozen_norm_grad")
_register(frozen.FLAT_GRAD, "frozen_norm_flat_grad")
_register(simple.LAYER_NORM, "layer_norm layer_norm_statistics")
_register(simple.LAYER_NORM_PARAMETERS, "layer_norm_parameters")
_register(simple.LAYER_NORM_GRAD, "layer_norm_grad")
_register(simple.SOFTMAX, "softmax log_softmax softmax_grad log_softmax_grad")
_register(simple.ROWS_OF_CLASSES, "nll_i32 nll_i64 nll_grad_i32 nll_grad_i64")
_register(simple.ONE_CORE, "nll_total mean_loss_total label_weights_i32 label_weights_i64")
_register(simple.MEAN_LOSS, "mse_loss l1_loss bce_with_logits_loss")
_register(reduction.REDUCE, "reduce_sum reduce_mean reduce_root reduce_l1 reduce_l2 reduce_sum_square reduce_prod")
_register(
    reduction.REDUCE,
    "reduce_max reduce_min reduce_sum_i32 reduce_sum_i64 reduce_max_i32 reduce_min_i32 reduce_max_bool reduce_min_bool",
)
_register(reduction.EXTREMUM_GRAD, "reduce_extremum_grad")
_register(simple.GLOBAL_POOL, "global_max_pool global_max_pool_grad")
for _index in ("i32", "i64"):
    _register(indexed.GATHER, " ".join(f"gather_b{size}_{_index}" for size in "1248"))
    _register(indexed.GATHER_ELEMENTS, " ".join(f"gather_elements_b{size}_{_index}" for size in "1248"))
    _register(indexed.GATHER_GRAD, f"gather_grad_{_index}")
    _register(indexed.GATHER_ELEMENTS_GRAD, f"gather_elements_grad_{_index}")
_register(indexed.PAD, "pad_constant_b1 pad_constant_b2 pad_constant_b4 pad_constant_b8 slice_grad")
_register(indexed.PAD_MAPPED, "pad_mapped_b1 pad_mapped_b2 pad_mapped_b4 pad_mapped_b8")
_register(indexed.PAD_GRAD, "pad_grad")
_register(indexed.SEEDED_DROPOUT, "seeded_dropout")
_register(pooling.POOL, "max_pool max_pool_u8 max_pool_i8 average_pool")
_register(pooling.AVERAGE_POOL_GRAD, "average_pool_grad")
_register(pooling.MAX_POOL_GRAD, "max_pool_grad")


def is_described(kernel: str) -> bool:
    """Whether a kernel's loops are known here."""
    return kernel in _FAMILIES


def described_in(kernel: str) -> str:
    """The module of this package that describes a kernel's loops: loops.NAME."""
    found = _FAMILIES[kernel]
    module = found.bind.__module__ if isinstance(found, Family) else found.__module__
    return "loops." + module.rsplit(".", 1)[-1]


def family_of(nest: Nest) -> Family | None:
    """None where a kernel's loops are not described."""
    found = _FAMILIES.get(nest.kernel)
    return found if found is None or isinstance(found, Family) else found(nest)
