"""The elementary functions of runtime/tg_math.h: error in ulp against float64, and C99's special cases."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.kernels import FLAGS
from tilegrad.ops.kernels import RUNTIME_FOLDER

F32 = np.float32
F64 = np.float64

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2, 3, -2, -3, 0.5, -0.5, 1e-45, -1e-45, 1e-39, -1e-39,
     1.1754942e-38, 3.4e38, -3.4e38, 8388609, -8388609, 16777216, 1.5, -1.5, 88.8, -87.5, -103.9, -104.1], F32
)  # fmt: skip

def _cos_pi(x: torch.Tensor) -> torch.Tensor:
    """cos(pi x): reduced exactly first, and by the sine near its zeros, so that float64 does not lose it."""
    turns = torch.remainder(x.abs(), 2.0)
    near = torch.where(turns > 1.0, 2.0 - turns, turns)
    return torch.where((near - 0.5).abs() < 0.25, torch.sin(torch.pi * (0.5 - near)), torch.cos(torch.pi * near))


# Name, float64 reference, largest error in ulp (as documented in the header).
FUNCTIONS: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], float]] = [
    ("exp", torch.exp, 1.02),
    ("expm1", torch.expm1, 1.45),
    ("log", torch.log, 0.95),
    ("log1p", torch.log1p, 1.45),
    ("tanh", torch.tanh, 1.45),
    ("erf", torch.erf, 1.25),
    ("sigmoid", torch.sigmoid, 2.45),
    ("cos_pi", lambda x: _cos_pi(x), 1.0),
    ("softplus", lambda x: x.clamp(min=0) + torch.log1p(torch.exp(-x.abs())), 2.0),
]


SOURCE = '#include "tg_math.h"\n' + "".join(
    f"void all_{name}(const float *x, float *y, int n) {{ for (int i = 0; i < n; i++) y[i] = tg_{name}(x[i]); }}\n"
    for name, _, _ in FUNCTIONS
)
SOURCE += """
void all_pow(const float *x, const float *e, float *y, int n) { for (int i = 0; i < n; i++) y[i] = tg_pow(x[i], e[i]); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Every function over arrays, with this machine's instructions."""
    return compiled(FLAGS, tmp_path_factory.mktemp("math"))


def compiled(flags: tuple[str, ...], folder: Path) -> ctypes.CDLL:
    (folder / "math.c").write_text(SOURCE)
    command = ["gcc", *flags, "-shared", f"-I{RUNTIME_FOLDER}", str(folder / "math.c"), "-o", str(folder / "math.so")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "math.so"))


def call(library: ctypes.CDLL, name: str, *inputs: np.ndarray) -> np.ndarray:
    result = np.empty_like(inputs[0])
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*inputs, result)]
    getattr(library, f"all_{name}")(*pointers, ctypes.c_int(result.size))
    return result


@cache
def dense() -> np.ndarray:
    """Every 1021st float of both signs, and a finer grid where the functions bend."""
    bits = np.arange(0, 2**32, 1021, dtype=np.uint64).astype(np.uint32).view(F32)
    return np.concatenate([SPECIAL, bits[np.isfinite(bits)], np.linspace(-20, 20, 1_000_001, dtype=F32)])


def error_ulp(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """0 where both are NaN or the same infinity; overflow past the largest float counts as exact."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(F32)
        same = (np.isnan(got) & np.isnan(wanted)) | (np.isinf(rounded) & (got == rounded))
        exponent = np.frexp(np.where(np.isfinite(wanted), wanted, 1.0))[1]
        ulp = np.ldexp(1.0, np.maximum(exponent, -125) - 24)
        error = np.abs(got.astype(F64) - wanted) / ulp
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


@pytest.mark.parametrize(("name", "reference", "limit"), FUNCTIONS, ids=[name for name, _, _ in FUNCTIONS])
def test_error(
    library: ctypes.CDLL, name: str, reference: Callable[[torch.Tensor], torch.Tensor], limit: float
) -> None:
    x = dense()
    got, wanted = call(library, name, x), reference(torch.tensor(x.astype(F64))).numpy()
    error = error_ulp(got, wanted)
    worst = int(np.argmax(error))
    assert error[worst] <= limit, (
        f"{name}({x[worst]!r}) = {got[worst]!r}, not {wanted[worst]!r}: {error[worst]:.3f} ulp"
    )
    numbers = ~np.isnan(wanted)
    assert np.array_equal(np.signbit(got)[numbers], np.signbit(wanted)[numbers])


def test_pow_error(library: ctypes.CDLL) -> None:
    draw = np.random.default_rng(0)
    count = 300_000
    anything = draw.integers(0, 2**32, (2, count), dtype=np.uint32).view(F32)
    anything = np.where(np.isfinite(anything), anything, F32(1.0))
    positive = np.exp2(draw.uniform(-8, 8, count))
    x = np.concatenate([np.abs(anything[0]), positive, -positive, positive]).astype(F32)
    e = np.concatenate([anything[1], draw.uniform(-16, 16, count), draw.integers(-20, 21, count), 1 / positive])
    special = np.array(np.meshgrid(SPECIAL, SPECIAL)).reshape(2, -1)
    x, e = np.concatenate([x, special[0]]), np.concatenate([e.astype(F32), special[1]])
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(F64), e.astype(F64))
    got = call(library, "pow", x, e)
    error = error_ulp(got, wanted)
    worst = int(np.argmax(error))
    assert error[worst] <= 1.25, f"pow({x[worst]!r}, {e[worst]!r}) = {got[worst]!r}, not {wanted[worst]!r}"
    numbers = ~np.isnan(wanted)
    assert np.array_equal(np.signbit(got)[numbers], np.signbit(wanted)[numbers])


def test_without_the_fma_instruction_the_bits_are_the_same(library: ctypes.CDLL, tmp_path: Path) -> None:
    """x86-64's base instructions have none, so there TG_FMA is emulated; elsewhere a build is compared to itself."""
    plain = compiled(tuple(flag for flag in FLAGS if flag != "-march=native"), tmp_path)
    x = dense()[::7].copy()
    for name, _, _ in FUNCTIONS:
        ours, theirs = call(library, name, x), call(plain, name, x)
        numbers = ~np.isnan(ours)
        assert np.array_equal(ours.view(np.uint32)[numbers], theirs.view(np.uint32)[numbers]), name


def test_references_agree_with_libm() -> None:
    """PyTorch's float64 functions are the yardstick: sample them against the C library's."""
    for x in (-3.25, -0.1, 1e-6, 0.7, 2.5):
        assert math.isclose(torch.erf(torch.tensor(x, dtype=torch.float64)).item(), math.erf(x), rel_tol=1e-14)
        assert math.isclose(torch.tanh(torch.tensor(x, dtype=torch.float64)).item(), math.tanh(x), rel_tol=1e-14)
