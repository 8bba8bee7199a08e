"""Shares become an update by the operations that one device would have done."""

from __future__ import annotations

import ctypes
import ctypes.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parallel.runs import compiled
from tilegrad.devices.packed import Field, Layout, Packed
from tilegrad.ir.program import RESET_FLAG
from tilegrad.parallel.combine import Held, add_share, fused_multiply_add
from tilegrad.parallel.form import fingerprint, form_of

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


LIBRARY = ctypes.CDLL(ctypes.util.find_library("m"))
LIBRARY.fmaf.restype = ctypes.c_float
LIBRARY.fmaf.argtypes = [ctypes.c_float] * 3


def c_fmaf(a: float, b: float, c: float) -> np.float32:
    """The C library's."""
    return np.float32(LIBRARY.fmaf(a, b, c))


@settings(max_examples=300, deadline=None)
@given(floats, floats, floats)
def test_fused_multiply_add_rounds_once(a: float, b: float, c: float) -> None:
    made = fused_multiply_add(np.float32(a), np.array([b], np.float32), np.array([c], np.float32))
    assert made.tobytes() == np.array([c_fmaf(a, b, c)], np.float32).tobytes()


def test_fused_multiply_add_where_two_roundings_differ() -> None:
    """Near ties: many sums whose float64 lies halfway between two float32."""
    made = np.random.default_rng(0)
    b = made.standard_normal(4_000).astype(np.float32)
    c = (-(b.astype(np.float64) * np.float32(0.9))).astype(np.float32) + np.float32(2**-40)
    expected = np.array([c_fmaf(np.float32(0.9), x, y) for x, y in zip(b, c, strict=True)], np.float32)
    assert fused_multiply_add(np.float32(0.9), b, c).tobytes() == expected.tobytes()


@pytest.mark.parametrize("part", [0.0, -0.0, 1.5, -3e-41, np.inf])
def test_minus_zero_leaves_the_batchs_part(part: float) -> None:
    """What a share's statistics begin with, so that the step leaves behind what it adds."""
    found = fused_multiply_add(np.float32(0.9), np.array([-0.0], np.float32), np.array([part], np.float32))
    assert found.tobytes() == np.array([part], np.float32).tobytes()


def test_a_share_is_what_the_program_says() -> None:
    form = form_of(compiled("dscnn", 4, batchnorm="train").program)
    assert len(form.statistics) == 18 and not form.chained
    assert form.flag == RESET_FLAG and form.counter is None
    assert set(form.resident) == {name.removesuffix("_grad.accumulation.buffer") for name in form.gradients}


def test_gradients_are_added_in_order() -> None:
    form = form_of(compiled("autoencoder_tiny", 4).program)
    held = Held.of(
        form, {name: np.array([True]) if name == RESET_FLAG else np.zeros(2, np.float32) for name in form.held}
    )
    parts = [np.array([x, 1.0], np.float32) for x in (1e8, 1.0, -1e8)]
    for part in parts:
        add_share(form, held, dict.fromkeys(form.made, part))
    assert held[form.gradients[0]].tolist() == [(np.float32(1e8) + np.float32(1.0)) - np.float32(1e8), 3.0]
    assert not held[RESET_FLAG].any()


def test_blocks_are_added_as_tensors_are() -> None:
    """With the same bits, NaNs included; and what others have of a sum stays as it is."""
    form = form_of(compiled("dscnn", 4, batchnorm="train").program)
    rng = np.random.default_rng(0)
    fields = tuple(Field(name, np.dtype(np.float32), (3, i % 4)) for i, name in enumerate(form.made))
    layout = Layout(fields)
    size = sum(field.size_bytes for field in fields) // 4
    initial = {name: np.zeros(layout.places[name][2].shape, np.float32) for name in form.made}
    initial[RESET_FLAG] = np.array([True])
    blocks, tensors = Held.of(form, initial), Held.of(form, initial)
    for k in range(4):
        values = rng.normal(0, 10.0 ** rng.integers(-30, 38, size)).astype(np.float32)
        values[k] = np.inf * (-1) ** k
        made = Packed(layout, values.view(np.uint8))
        before = blocks.copy() if k == 2 else None
        kept = {name: before[name].copy() for name in before} if before is not None else {}
        add_share(form, blocks, made)
        add_share(form, tensors, {name: made[name].copy() for name in made})
        assert isinstance(blocks.sums, Packed) and isinstance(tensors.sums, dict)
        assert all(blocks[name].tobytes() == tensors[name].tobytes() for name in form.held)
        assert before is None or all(before[name].tobytes() == kept[name].tobytes() for name in kept)


def test_a_fingerprint_is_of_what_is_computed() -> None:
    program = compiled("autoencoder_tiny", 4).program
    assert fingerprint(program) == fingerprint(compiled("autoencoder_tiny", 4, target="riscv32").program)
    assert fingerprint(program) != fingerprint(compiled("autoencoder_tiny", 2).program)
    assert fingerprint(program) != fingerprint(compiled("autoencoder_tiny", 4, optimizer="adam").program)
