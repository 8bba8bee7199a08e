"""Files that nobody vouches for: FIFOs, devices and folders in the place of files, and archives that lie."""

from __future__ import annotations

import io
import os
import socket
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.command_line import CommandLine
from tests.support.small_models import linear


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's name has at most 108 characters
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


ODD = [fifo, folder, device, terminal, unix_socket]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", ODD)
def test_external_data_is_read_from_regular_files_alone(
    tilegrad: CommandLine, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(linear(), str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    assert tilegrad("inspect", path).status == 0
    (tmp_path / "w.bin").unlink()
    make(tmp_path / "w.bin")
    answer = tilegrad("inspect", path)
    assert answer.status == 2 and "Traceback" not in answer.err
    words = ("is not a regular file", "outside the model's folder", "Is a directory")
    assert any(word in answer.err for word in words)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("option", ["model", "--data"])
def test_models_and_data_are_regular_files(
    tilegrad: CommandLine, tmp_path: Path, linear_file: Path, make: Callable[[Path], None], option: str
) -> None:
    path = tmp_path / "odd.onnx"
    make(path)
    line = ("infer", path) if option == "model" else ("infer", linear_file, "--data", path)
    answer = tilegrad(*line)
    assert answer.status == 2
    words = ("is not a regular file", "is a folder", "Is a directory", "cannot be used as data")
    assert any(word in answer.err for word in words)


def npy_header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (64 - (len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return buffer.getvalue()


def lying_about_its_size() -> bytes:
    """The directory of the archive, too, says that there are terabytes."""
    honest = archive({"x.npy": npy_header((2**46,)) + bytes(64)})
    size = struct.pack("<I", len(npy_header((2**46,))) + 64)
    return honest.replace(size, struct.pack("<I", 0xFFFFFFF0))


HUGE = 2**46  # floats: 256 TiB
LIES = {
    "233 TiB": archive({"x.npy": npy_header((64_000_000_000_000,)) + bytes(32)}),
    "256 TiB, compressed": archive({"x.npy": npy_header((HUGE, 8)) + bytes(4096)}, zipfile.ZIP_DEFLATED),
    "both lie": lying_about_its_size(),
    "overflows 64 bits": archive({"x.npy": npy_header((2**40, 2**40)) + bytes(8)}),
    "negative": archive({"x.npy": npy_header((-1, 8)) + bytes(32)}),
    "nothing in it": archive({"x.npy": npy_header((10**15,), "|V0")}),
    "zero times huge": archive({"x.npy": npy_header((0, 2**62))}),
    "objects": archive({"x.npy": npy_header((2,), "|O") + bytes(16)}),
    "no number": archive({"x.npy": npy_header(("a",)) + bytes(16)}),  # type: ignore[arg-type]
    "a long header": archive({"x.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 1000}),
    "an expression": archive({"x.npy": npy_header((1,), "__import__('os')")}),
    "no header": archive({"x.npy": b"\x93NUM"}),
    "empty": archive({"x.npy": b""}),
    "unknown version": archive({"x.npy": b"\x93NUMPY\x09\x00" + bytes(100)}),
    "lzma": archive({"x.npy": npy_header((1, 8)) + bytes(32)}, zipfile.ZIP_LZMA),
    "short": archive({"x.npy": npy_header((3, 8)) + bytes(32)}),
}


@pytest.mark.parametrize("content", LIES.values(), ids=LIES)
def test_an_archive_that_lies_is_refused_before_memory_is_taken(
    tilegrad: CommandLine, tmp_path: Path, linear_file: Path, content: bytes
) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    answer = tilegrad("train", linear_file, "--device", "null", "--data", path)
    assert answer.status == 2 and answer.err.startswith("error: "), answer.err


def test_a_single_array_that_claims_terabytes(tilegrad: CommandLine, tmp_path: Path, linear_file: Path) -> None:
    path = tmp_path / "data.npy"
    path.write_bytes(npy_header((HUGE,)))
    answer = tilegrad("infer", linear_file, "--data", path)
    assert answer.status == 2 and "is a single array, not an .npz file" in answer.err


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_writes_is_read(
    tilegrad: CommandLine, tmp_path: Path, linear_file: Path, save: Callable[..., None], order: str
) -> None:
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    save(tmp_path / "data.npz", x=np.array(x, order=order), other=np.array(["a"], dtype=object))  # type: ignore[call-overload]
    save(tmp_path / "plain.npz", x=x)
    line = ("infer", linear_file, "--device", "host", "--batch", 2, "--json", "-")
    one, other = (tilegrad(*line, "--data", tmp_path / name).json for name in ("data.npz", "plain.npz"))
    assert one["values"] == other["values"] and one["verified"] is True
