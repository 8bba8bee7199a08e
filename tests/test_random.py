"""The generator against Random123's known answers, and C against Python bit for bit."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tilegrad import random
from tilegrad.data import batches as data
from tilegrad.errors import UserError
from tilegrad.ir.types import DType
from tilegrad.random import Purpose

RUNTIME = Path(random.__file__).parent / "runtime"

# Everything in the header is static inline: the library gives it external names.
LIBRARY = """
#include "tg_random.h"
uint32_t lib_u32(uint32_t seed, uint32_t purpose, uint32_t stream, uint32_t index)
{ return tg_random_u32(seed, purpose, stream, index); }
void lib_philox(uint32_t *words, uint32_t key_0, uint32_t key_1) { tg_philox4x32(words, key_0, key_1); }
float lib_unit(uint32_t word) { return tg_random_unit(word); }
float lib_signed(uint32_t word) { return tg_random_signed(word); }
uint32_t lib_bounded(uint32_t word, uint32_t bound) { return tg_random_bounded(word, bound); }
uint32_t lib_family(uint32_t purpose, uint32_t ordinal) { return tg_random_family(purpose, ordinal); }
float lib_weight(uint32_t seed, uint32_t tensor, uint32_t index, float bound)
{ return tg_initial_weight(seed, tensor, index, bound); }
int64_t lib_label(uint32_t seed, uint32_t sample, uint32_t position, uint32_t classes)
{ return tg_synthetic_label(seed, sample, position, classes); }
void lib_sample(uint32_t seed, uint32_t sample, uint32_t label, float *x, uint32_t count)
{ tg_synthetic_sample(seed, sample, label, x, count); }
void lib_tokens(uint32_t seed, uint32_t sample, uint32_t vocabulary, int64_t *x, uint32_t count)
{ tg_synthetic_tokens(seed, sample, vocabulary, x, count); }
void lib_target(uint32_t seed, uint32_t sample, float *y, uint32_t count)
{ tg_synthetic_target(seed, sample, y, count); }
void lib_binary(uint32_t seed, uint32_t sample, float *y, uint32_t count)
{ tg_synthetic_binary_target(seed, sample, y, count); }
const int lib_purposes[] = {TG_RANDOM_WEIGHTS, TG_RANDOM_DATA, TG_RANDOM_LABELS, TG_RANDOM_PATTERN, TG_RANDOM_DROPOUT,
                            TG_RANDOM_TARGETS, TG_RANDOM_ORDER, TG_RANDOM_ADAPTERS};
"""


@pytest.fixture(scope="module", params=["gcc", "clang"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which(request.param)
    if compiler is None:
        pytest.skip(f"{request.param} is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    source = folder / "random.c"
    source.write_text(LIBRARY)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, f"-I{RUNTIME}", str(source), "-o", str(folder / "random.so")], check=True)
    loaded = ctypes.CDLL(str(folder / "random.so"))
    word, real, label = ctypes.c_uint32, ctypes.c_float, ctypes.c_int64
    for name, result, arguments in [
        ("u32", word, [word] * 4),
        ("unit", real, [word]),
        ("signed", real, [word]),
        ("bounded", word, [word] * 2),
        ("family", word, [word] * 2),
        ("weight", real, [word] * 3 + [real]),
        ("label", label, [word] * 4),
        ("philox", None, [ctypes.c_void_p, word, word]),
        ("sample", None, [word, word, word, ctypes.c_void_p, word]),
        ("tokens", None, [word, word, word, ctypes.c_void_p, word]),
        ("target", None, [word, word, ctypes.c_void_p, word]),
        ("binary", None, [word, word, ctypes.c_void_p, word]),
    ]:
        function = getattr(loaded, f"lib_{name}")
        function.restype, function.argtypes = result, arguments
    return loaded


# Random123's kat_vectors: counter, key, words of philox4x32 with 10 rounds.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def hex_words(text: str) -> list[int]:
    return [int(part, 16) for part in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_known_answers(counter: str, key: str, expected: str) -> None:
    assert random.philox4x32(hex_words(counter), hex_words(key)).tolist() == hex_words(expected)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_c_philox_known_answers(library: ctypes.CDLL, counter: str, key: str, expected: str) -> None:
    state = np.array(hex_words(counter), np.uint32)
    library.lib_philox(state.ctypes.data, *hex_words(key))
    assert state.tolist() == hex_words(expected)


def test_c_words_equal_python(library: ctypes.CDLL) -> None:
    for seed, purpose, stream in [(0, 1, 0), (7, 2, 3), (0xFFFFFFFF, 5, 0xFFFFFFFF), (1, random.family(5, 9), 12)]:
        expected = [library.lib_u32(seed, purpose, stream, index) for index in range(37)]
        assert random.words(seed, purpose, stream, 37).tolist() == expected
        assert [random.word(seed, purpose, stream, index) for index in range(37)] == expected
    assert random.word(3, 1, 2, 0xFFFFFFFF) == library.lib_u32(3, 1, 2, 0xFFFFFFFF)


def test_c_conversions_equal_python(library: ctypes.CDLL) -> None:
    drawn = np.concatenate([random.words(1, 2, 3, 200), np.array([0, 0xFF, 0x100, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)])
    as_c = drawn.tolist()
    assert random.to_unit(drawn).tolist() == [library.lib_unit(value) for value in as_c]
    assert random.to_signed(drawn).tolist() == [library.lib_signed(value) for value in as_c]
    for bound in (1, 2, 10, 1000, 0xFFFFFFFF):
        expected = [library.lib_bounded(value, bound) for value in as_c]
        assert random.to_bounded(drawn, bound).tolist() == expected


def test_purposes_have_the_same_numbers_in_c(library: ctypes.CDLL) -> None:
    numbers = (ctypes.c_int * len(Purpose)).in_dll(library, "lib_purposes")
    assert list(numbers) == [int(purpose) for purpose in Purpose]
    assert library.lib_family(5, 9) == random.family(Purpose.DROPOUT, 9)


def test_c_weights_equal_the_zoos_formula(library: ctypes.CDLL) -> None:
    bound = np.float32(1 / np.sqrt(27))
    expected = random.to_signed(random.words(4, Purpose.WEIGHTS, 6, 50)) * bound
    assert [library.lib_weight(4, 6, index, bound) for index in range(50)] == expected.tolist()


@pytest.mark.parametrize("seed", [0, 5, 0xFFFFFFFF])
def test_c_synthetic_data_equals_python(library: ctypes.CDLL, seed: int) -> None:
    spec = data.SampleSpec((3, 5, 7), "cross_entropy", classes=10)
    batches = data.synthetic(seed, spec, batch_size=4)
    for index in (0, 3):
        x, y = batches.batch(index)
        for row in range(4):
            sample = 4 * index + row
            label = library.lib_label(seed, sample, 0, 10)
            assert label == y[row]
            made = np.empty(3 * 5 * 7, np.float32)
            library.lib_sample(seed, sample, int(label), made.ctypes.data, made.size)
            np.testing.assert_array_equal(made.view(np.uint32), x[row].ravel().view(np.uint32))


def test_c_synthetic_targets_equal_python(library: ctypes.CDLL) -> None:
    tokens = data.synthetic(2, data.SampleSpec((9,), "mse", (5,), input_dtype=DType.I64, vocabulary=77)).batch(6)
    made_tokens = np.empty(9, np.int64)
    library.lib_tokens(2, 6, 77, made_tokens.ctypes.data, 9)
    assert tokens[0][0].tolist() == made_tokens.tolist()
    made = np.empty(5, np.float32)
    library.lib_target(2, 6, made.ctypes.data, 5)
    assert tokens[1][0].tolist() == made.tolist()
    binary = data.synthetic(2, data.SampleSpec((9,), "bce_with_logits", (5,))).batch(6)
    library.lib_binary(2, 6, made.ctypes.data, 5)
    assert binary[1][0].tolist() == made.tolist()
    labels = data.synthetic(2, data.SampleSpec((9,), "cross_entropy", (3, 4), classes=6)).batch(8)[1][0]
    assert labels.ravel().tolist() == [library.lib_label(2, 8, position, 6) for position in range(12)]


def test_header_compiles_as_opencl() -> None:
    """OpenCL C has no libc and its own types: clang checks the common subset without an OpenCL runtime."""
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("clang is not installed")
    kernel = '#include "tg_random.h"\n__kernel void k(__global float *x) { tg_synthetic_sample(1, 2, 3, x, 4); }\n'
    command = [clang, "-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header", "-fsyntax-only", "-Wall"]
    target = ["-target", "spir64-unknown-unknown", "-D__OPENCL_VERSION__=120", f"-I{RUNTIME}", "-"]
    done = subprocess.run([*command, *target], input=kernel, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_streams_are_independent_of_how_they_are_asked_for() -> None:
    together = random.words(1, 2, np.arange(6).reshape(2, 3), 10)
    assert together.shape == (2, 3, 10)
    assert together[1, 2].tolist() == random.words(1, 2, 5, 10).tolist()
    assert random.words(1, 2, 5, 7).tolist() == random.words(1, 2, 5, 10).tolist()[:7]
    assert random.words(1, 2, 5, 0).shape == (0,)


def test_uniforms_cover_their_range() -> None:
    drawn = random.words(0, Purpose.DATA, 0, 100_000)
    unit, signed = random.to_unit(drawn), random.to_signed(drawn)
    assert unit.dtype == signed.dtype == np.float32
    assert 0 <= unit.min() < 1e-3 and 1 - 1e-3 < unit.max() < 1
    assert abs(float(unit.mean()) - 0.5) < 5e-3 and abs(float(signed.mean())) < 1e-2
    assert abs(float(signed.var()) - 1 / 3) < 5e-3
    assert np.bincount(random.to_bounded(drawn, 10), minlength=10).min() > 9_500


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(UserError) as caught:
        random.words(seed, 1, 0, 1)
    assert str(caught.value) == (
        f"the seed is out of range\n  expected: an integer from 0 to 4294967295\n  got: {seed}"
    )
