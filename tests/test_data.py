"""Data streams: what they hold, and the exact words when a file cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilegrad import random
from tilegrad.data import batches as data
from tilegrad.data.batches import SampleSpec
from tilegrad.data.stored import load_npz
from tilegrad.errors import UserError
from tilegrad.ir.types import DType
from tilegrad.random import Purpose

CLASSIFIER = SampleSpec((2, 3), "cross_entropy", classes=4)
X = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
Y = np.array([0, 1, 2, 3, 0])


def save(folder: Path, **arrays: Any) -> Path:
    path = folder / "d.npz"
    np.savez(path, **arrays)
    return path


def refusal(path: Path, spec: SampleSpec) -> str:
    with pytest.raises(UserError) as caught:
        load_npz(path, spec)
    assert caught.value.exit_status == 2
    return str(caught.value).replace(str(path), "d.npz")


# --- synthetic ---


def test_a_sample_is_half_noise_and_half_its_labels_pattern() -> None:
    x, y = data.synthetic(3, SampleSpec((4, 5), "cross_entropy", classes=7), batch_size=6).batch(2)
    assert x.shape == (6, 4, 5) and x.dtype == np.float32
    assert y.shape == (6,) and y.dtype == np.int64
    for row in range(6):
        sample = 12 + row
        assert y[row] == random.word(3, Purpose.LABELS, sample, 0) * 7 >> 32
        for index in (0, 7, 19):
            noise = random.word(3, Purpose.DATA, sample, index) >> 8
            pattern = random.word(3, Purpose.PATTERN, int(y[row]), index) >> 8
            # Exact in float64: both halves are multiples of 2^-24.
            exact = 0.5 * (2 * noise / 2**24 - 1) + 0.5 * (2 * pattern / 2**24 - 1)
            assert x[row].ravel()[index] == np.float32(exact)


def test_the_batch_size_does_not_change_the_stream() -> None:
    spec = SampleSpec((3,), "cross_entropy", classes=5)
    one, four = data.synthetic(1, spec, 1), data.synthetic(1, spec, 4)
    x, y = four.batch(1)
    for row in range(4):
        np.testing.assert_array_equal(one.batch(4 + row)[0][0], x[row])
        assert one.batch(4 + row)[1][0] == y[row]


def test_fresh_samples_are_learnable() -> None:
    """A nearest-mean classifier fitted on some samples tells others apart."""
    spec = SampleSpec((64,), "cross_entropy", classes=10)
    x, y = data.synthetic(0, spec, 400).batch(0)
    means = np.stack([x[y == label].mean(0) for label in range(10)])
    fresh_x, fresh_y = data.synthetic(0, spec, 400).batch(1)
    guesses = np.argmin(((fresh_x[:, np.newaxis] - means) ** 2).sum(-1), axis=1)
    assert (guesses == fresh_y).mean() > 0.95


@pytest.mark.parametrize("loss", ["mse", "l1"])
def test_a_reconstructions_target_is_its_input(loss: str) -> None:
    x, y = data.synthetic(0, SampleSpec((8,), loss, (8,)), 3).batch(0)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("loss", ["mse", "l1"])
def test_other_regression_targets_are_signed_uniforms(loss: str) -> None:
    _, y = data.synthetic(0, SampleSpec((8,), loss, (1000,)), 3).batch(0)
    assert y.shape == (3, 1000) and y.dtype == np.float32
    assert -1 <= y.min() < -0.9 and 0.9 < y.max() < 1


def test_binary_targets_are_zero_or_one() -> None:
    _, y = data.synthetic(0, SampleSpec((8,), "bce_with_logits", (100,)), 2).batch(0)
    assert y.dtype == np.float32 and set(np.unique(y)) == {0.0, 1.0}


def test_a_binary_target_shaped_as_the_input_is_still_binary() -> None:
    _, y = data.synthetic(0, SampleSpec((50,), "bce_with_logits", (50,))).batch(0)
    assert set(np.unique(y)) == {0.0, 1.0}


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64])
def test_token_ids_stay_within_the_vocabulary(dtype: DType) -> None:
    spec = SampleSpec((200,), "cross_entropy", classes=2, input_dtype=dtype, vocabulary=9)
    x, _ = data.synthetic(0, spec, 3).batch(0)
    assert x.dtype == dtype.numpy and set(np.unique(x)) == set(range(9))


def test_boolean_and_empty_inputs_work() -> None:
    x, _ = data.synthetic(0, SampleSpec((40,), "cross_entropy", classes=2, input_dtype=DType.BOOL)).batch(0)
    assert x.dtype == np.bool_ and set(np.unique(x)) == {False, True}
    x, y = data.synthetic(0, SampleSpec((0, 3), "cross_entropy", classes=2), 2).batch(0)
    assert x.shape == (2, 0, 3) and y.shape == (2,)


def test_labels_may_be_many_per_sample() -> None:
    _, y = data.synthetic(0, SampleSpec((3, 6, 6), "cross_entropy", (6, 6), classes=5), 2).batch(0)
    assert y.shape == (2, 6, 6) and set(np.unique(y)) == set(range(5))


# --- files ---


def test_mini_batches_are_made_when_they_are_asked_for() -> None:
    batches = data.synthetic(3, SampleSpec((4,), "cross_entropy", classes=5), 2)
    many = batches.first(10**15)
    assert len(many) == 10**15 and len(many[: 10**9]) == 10**9
    for number, (x, y) in zip(range(3), many, strict=False):
        expected_x, expected_y = batches.batch(number)
        assert x.tobytes() == expected_x.tobytes() and y.tobytes() == expected_y.tobytes()
    assert many[5:][2][0].tobytes() == many[7][0].tobytes() == batches.batch(7)[0].tobytes()
    assert many[-1][0].tobytes() == batches.batch(10**15 - 1)[0].tobytes()


def test_samples_come_in_order_and_wrap_round(tmp_path: Path) -> None:
    batches = load_npz(save(tmp_path, x=X, y=Y), CLASSIFIER, batch_size=2)
    x, y = batches.batch(2)
    np.testing.assert_array_equal(x, X[[4, 0]])
    assert y.tolist() == [0, 0] and y.dtype == np.int64
    np.testing.assert_array_equal(batches.batch(3)[0], X[[1, 2]])


def test_a_batch_larger_than_the_file_wraps_round(tmp_path: Path) -> None:
    x, _ = load_npz(save(tmp_path, x=X, y=Y), CLASSIFIER, batch_size=12).batch(0)
    np.testing.assert_array_equal(x, X[[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]])


def test_arrays_are_converted_to_what_the_model_takes(tmp_path: Path) -> None:
    path = save(tmp_path, x=X.astype(np.uint8), y=Y.astype(np.int16))
    x, y = load_npz(path, CLASSIFIER, 5).batch(0)
    assert x.dtype == np.float32 and y.dtype == np.int64
    np.testing.assert_array_equal(x, X)
    tokens = SampleSpec((2, 3), "cross_entropy", classes=4, input_dtype=DType.I32, vocabulary=30)
    assert load_npz(path, tokens).batch(0)[0].dtype == np.int32


def test_a_reconstruction_needs_no_targets(tmp_path: Path) -> None:
    x, y = load_npz(save(tmp_path, x=X), SampleSpec((2, 3), "mse", (2, 3)), 5).batch(0)
    np.testing.assert_array_equal(x, y)


def test_a_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "d.npz", CLASSIFIER) == (
        "no data file 'd.npz'\n  hint: --data takes an .npz file with arrays x and y"
    )


def test_a_folder_a_corrupt_file_and_a_single_array(tmp_path: Path) -> None:
    hint = "\n  hint: write it with numpy.savez(file, x=..., y=...)"
    path = tmp_path / "d.npz"
    path.write_bytes(b"PK\x03\x04 nonsense")
    message = refusal(path, CLASSIFIER)
    assert message.startswith("cannot read 'd.npz' as an .npz file\n  got: ") and message.endswith(hint)
    path.write_bytes(b"")
    assert refusal(path, CLASSIFIER).startswith("cannot read 'd.npz' as an .npz file\n  got: ")
    with path.open("wb") as file:
        np.save(file, X)
    assert refusal(path, CLASSIFIER) == "'d.npz' is a single array, not an .npz file" + hint
    assert refusal(tmp_path, CLASSIFIER).endswith("is a single array, not an .npz file" + hint)
    assert refusal(save(tmp_path, x=np.array([{}]), y=Y), CLASSIFIER) == (
        "array 'x' of 'd.npz' has the wrong element type\n  expected: numbers\n  got: Python objects\n"
        "  hint: rows of different lengths make such an array"
    )


@pytest.mark.parametrize(("suffix", "kind"), [(".csv", "a CSV file"), (".pkl", "a pickle"), (".bin", "another format")])
def test_another_format_is_named_and_nothing_is_said_of_pickles(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"data{suffix}"
    path.write_bytes(b"1.0,2.0,3\n" if suffix != ".pkl" else b"\x80\x04K\x01.")
    message = refusal(path, CLASSIFIER)
    assert message.startswith(f"cannot read '{path}'" if str(path) in message else "cannot read 'd.npz'")
    assert kind in message and ".npz" in message and "numpy.savez" in message
    assert "allow_pickle" not in message and "ickled" not in message


def test_a_missing_x_lists_the_arrays_that_are_there(tmp_path: Path) -> None:
    images = refusal(save(tmp_path, images=X, labels=Y), CLASSIFIER)
    assert "has no array 'x'" in images and "'images', 'labels'" in images
    many = refusal(save(tmp_path, **{f"a{i}": Y for i in range(20)}), CLASSIFIER)
    assert "'a0'" in many and "and 12 more" in many
    assert "no arrays at all" in refusal(save(tmp_path), CLASSIFIER)


@pytest.mark.parametrize("writer", [np.savez, np.savez_compressed])
def test_a_damaged_file_is_never_a_traceback(tmp_path: Path, writer: Callable[..., None]) -> None:
    path = tmp_path / "d.npz"
    writer(path, x=X, y=Y)
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(600):
        damaged = bytearray(whole)
        damaged[generator.integers(len(whole))] = generator.integers(256)
        path.write_bytes(damaged[: generator.integers(1, len(whole))] if generator.random() < 0.2 else damaged)
        try:
            load_npz(path, CLASSIFIER)
        except UserError:
            refused += 1
    assert refused > 100


def test_a_missing_array(tmp_path: Path) -> None:
    assert refusal(save(tmp_path, y=Y), CLASSIFIER) == (
        "'d.npz' has no array 'x'\n  expected: x [samples,2,3] and y [samples]\n  got: 'y'\n"
        "  hint: x holds the samples along its first axis"
    )
    assert refusal(save(tmp_path, x=X), CLASSIFIER) == (
        "'d.npz' has no array 'y'\n"
        "  expected: targets for the loss cross_entropy, [5]\n"
        "  hint: y may be left out only where the target is the input itself"
    )


def test_wrong_shapes(tmp_path: Path) -> None:
    assert refusal(save(tmp_path, x=X.reshape(5, 6), y=Y), CLASSIFIER) == (
        "array 'x' of 'd.npz' has the wrong shape\n  expected: [samples,2,3]\n  got: [5,6]"
    )
    assert refusal(save(tmp_path, x=X, y=np.eye(4)[Y]), CLASSIFIER) == (
        "array 'y' of 'd.npz' has the wrong shape\n  expected: [samples]\n  got: [5,4]"
    )
    assert refusal(save(tmp_path, x=np.float32(1), y=Y), CLASSIFIER) == (
        "array 'x' of 'd.npz' has the wrong shape\n  expected: [samples,2,3]\n  got: []"
    )
    assert refusal(save(tmp_path, x=X, y=Y[:4]), CLASSIFIER) == (
        "'d.npz' has a different number of samples in x and y\n  expected: 5 in y, as in x\n  got: 4"
    )
    assert refusal(save(tmp_path, x=X[:0], y=Y[:0]), CLASSIFIER) == (
        "'d.npz' holds no samples\n  expected: at least one\n  got: x [0,2,3]"
    )


@pytest.mark.parametrize("label", [4, -1])
def test_a_label_out_of_range(tmp_path: Path, label: int) -> None:
    assert refusal(save(tmp_path, x=X, y=np.array([0, 1, 2, label, label])), CLASSIFIER) == (
        f"label out of range in array 'y' of 'd.npz'\n  expected: 0 to 3\n  got: {label} at y[3]"
    )


def test_a_token_out_of_range(tmp_path: Path) -> None:
    spec = SampleSpec((2, 3), "cross_entropy", classes=4, input_dtype=DType.I64, vocabulary=29)
    assert refusal(save(tmp_path, x=X.astype(int), y=Y), spec) == (
        "token out of range in array 'x' of 'd.npz'\n  expected: 0 to 28\n  got: 29 at x[4,1,2]"
    )


@pytest.mark.parametrize(("value", "text"), [(np.nan, "nan"), (np.inf, "inf"), (1e300, "1e+300")])
def test_a_value_that_is_not_finite(tmp_path: Path, value: float, text: str) -> None:
    x = X.astype(np.float64)
    x[1, 0, 2] = value
    assert refusal(save(tmp_path, x=x, y=Y), CLASSIFIER) == (
        "array 'x' of 'd.npz' has a value that is not finite\n"
        "  expected: finite float32 numbers\n"
        f"  got: {text} at x[1,0,2]"
    )
    assert refusal(save(tmp_path, x=X, y=x), SampleSpec((2, 3), "mse", (2, 3))).startswith(
        "array 'y' of 'd.npz' has a value that is not finite"
    )


def test_wrong_element_types(tmp_path: Path) -> None:
    assert refusal(save(tmp_path, x=X, y=Y.astype(np.float32)), CLASSIFIER) == (
        "array 'y' of 'd.npz' has the wrong element type\n"
        "  expected: integers, the class of each sample\n"
        "  got: float32"
    )
    assert refusal(save(tmp_path, x=X.astype(np.complex64), y=Y), CLASSIFIER) == (
        "array 'x' of 'd.npz' has the wrong element type\n  expected: real numbers\n  got: complex64"
    )
    tokens = SampleSpec((2, 3), "cross_entropy", classes=4, input_dtype=DType.I64)
    assert refusal(save(tmp_path, x=X, y=Y), tokens) == (
        "array 'x' of 'd.npz' has the wrong element type\n  expected: integers, as the model's input is\n  got: float32"
    )
