"""Formatting, JSON, and result files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tilegrad.build.files import check_writable, write_file
from tilegrad.errors import UserError
from tilegrad.report.arrays import npz_bytes
from tilegrad.report.format import bytes_text, seconds_text, shape_text
from tilegrad.report.json import dumps


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (65_536, "64.0 KiB"),
        (1_351_360, "1.29 MiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_bytes(size: int, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5e-7, "0.25 µs"), (3e-5, "30 µs"), (0.0042, "4.2 ms"), (0.21, "210 ms"), (3.456, "3.5 s")]
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_shapes() -> None:
    assert (shape_text(()), shape_text((3, 32, 32))) == ("scalar", "3×32×32")


def test_json_is_valid_whatever_comes() -> None:
    values = [float("nan"), float("inf"), float("-inf"), np.float32(0.1), np.int64(3), np.arange(2), (1, None), True]
    text = dumps({"values": values, 3: "ü"})
    read = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert read == {
        "values": ["NaN", "Infinity", "-Infinity", float(np.float32(0.1)), 3, [0, 1], [1, None], True],
        "3": "ü",
    }


def test_floats_read_back_exactly() -> None:
    values = [*np.random.default_rng(0).standard_normal(1000).tolist(), 5e-324, 1.7976931348623157e308, -0.0]
    assert json.loads(dumps(values)) == values


def test_npz_holds_any_tensor_name(tmp_path: Path) -> None:
    arrays = {"file": np.arange(3), "/fc/Gemm.weight": np.ones((2, 2), np.float32), "scalar": np.float32(1)}
    (tmp_path / "a.npz").write_bytes(npz_bytes(arrays))
    with np.load(tmp_path / "a.npz") as read:
        assert {name: read[name].tolist() for name in read.files} == {
            k: np.asarray(v).tolist() for k, v in arrays.items()
        }
    assert npz_bytes(arrays) == npz_bytes(arrays)


def test_a_file_is_replaced_whole_and_follows_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_file(link, b"new")
    assert link.is_symlink() and real.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_file(Path(os.devnull), b"gone")
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize(
    ("path", "reason"), [(".", "Is a directory"), ("none/x", "No such file or directory"), ("f/x", "Not a directory")]
)
def test_an_unusable_path_is_refused_before_any_work(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(UserError, match=f"cannot write '.*': {reason}"):
        check_writable(tmp_path / path)
