"""Misuse of the C API is refused with a status and changes nothing: on this machine, a cluster and boards."""

from __future__ import annotations

import re
import struct
import subprocess
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import tilegrad as tg
from tests.devices.boards import board
from tests.support.projects import CONTRACT_FLAGS, SANITIZER_FLAGS, opened, toolchain, zoo_model
from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import build
from tilegrad.codegen.image import HEADER, MAGIC, VERSION, model_hash
from tilegrad.compiled import Compiled
from tilegrad.devices.qemu import MACHINES, QemuDevice
from tilegrad.devices.registry import open_device
from tilegrad.errors import DeviceError
from tilegrad.targets import base as targets

FAULTS = (Path(__file__).parent / "faults.c").read_bytes()
BOARDS = [board(name) for name in ("qemu:mps2-an500", "qemu:riscv32")]
SECONDS = 120.0


@cache
def compiled_for(name: str, target: str) -> Compiled:
    chip = targets.get(target)
    return tg.compile(tg.load(name), tg.Recipe(), chip if chip.board is None else chip.with_cores(1), weights_as_c=True)


def faulty(target: str) -> Compiled:
    """The faults in the place of the harness, with the images of two models."""
    compiled = compiled_for("simplemlp", target)
    other = re.sub(rb"\btg_(weights\w*)", rb"other_\1", compiled_for("mlp", target).project.files["weights.c"])
    files = {**compiled.project.files, "main.c": FAULTS, "other.c": other, "image.c": b""}
    files["image.c"] = files.pop("weights.c")  # which a build would leave out
    return replace(compiled, project=replace(compiled.project, files=files))


@pytest.mark.parametrize("flags", [CONTRACT_FLAGS, SANITIZER_FLAGS], ids=["plain", "sanitizers"])
@pytest.mark.parametrize("target", ["host", "siracusa"])
def test_misuse_is_refused_here(tmp_path: Path, target: str, flags: tuple[str, ...]) -> None:
    files = faulty(target).project.files
    write_files(tmp_path, files)
    program = build(toolchain("gcc", flags), tmp_path, files, "faults")
    done = subprocess.run([str(program)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, f"check {done.returncode} of faults.c failed: {done.stderr}"


@pytest.mark.parametrize("name", BOARDS)
def test_misuse_is_refused_on_a_board(tmp_path: Path, name: str) -> None:
    with QemuDevice(name) as device:
        transport = device.start(device.build(faulty(MACHINES[name].target), tmp_path))
        try:
            assert transport.wait(SECONDS) == 0
        finally:
            transport.close()


def test_a_library_that_checks_nothing_would_be_found_out(tmp_path: Path) -> None:
    files = dict(faulty("host").project.files)
    files["tg_image.h"] = files["tg_image.h"].replace(b"return TG_OTHER_MODEL;", b"break;")
    write_files(tmp_path, files)
    program = build(toolchain("gcc", CONTRACT_FLAGS), tmp_path, files, "faults")
    assert subprocess.run([str(program)], cwd=tmp_path, check=False, timeout=SECONDS).returncode != 0


def with_image(compiled: Compiled, image: bytes) -> Compiled:
    files = {**compiled.project.files, "weights.bin": image}
    return replace(compiled, project=replace(compiled.project, files=files))


REFUSED = [
    (lambda image, other: other, "the initial state is of another model"),
    (lambda image, other: image[:-4], "the initial state is too short or too long"),
    (lambda image, other: image[:20], "the initial state is too short or too long"),
    (lambda image, other: image + b"\0", "the initial state is too short or too long"),
    (lambda image, other: image[:100] + b"\1" + image[101:], "its bytes have changed"),
    (lambda image, other: image[:4] + b"\x09" + image[5:], "in another version of the format"),
]
DEVICES = ["host", "sim:siracusa", *BOARDS]


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_refuses_a_wrong_file(name: str) -> None:
    target = {"host": "host", "sim:siracusa": "siracusa"}.get(name) or MACHINES[name].target
    compiled, other = compiled_for("simplemlp", target), compiled_for("mlp", target)
    for spoil, message in REFUSED:
        image = spoil(compiled.project.files["weights.bin"], other.project.files["weights.bin"])
        with open_device(name) as device, pytest.raises(DeviceError) as caught:
            device.load(with_image(compiled, image)).update()
        assert message in str(caught.value)


def test_the_header_is_what_is_documented() -> None:
    compiled = zoo_model("simplemlp")
    image = compiled.project.files["weights.bin"]
    magic, version, model, size, crc = struct.unpack("<II16sII", image[: HEADER.size])
    assert (magic, version, model) == (MAGIC, VERSION, model_hash(compiled.plan))
    assert size == len(image) - HEADER.size == compiled.plan.image_bytes
    assert crc == zlib.crc32(image[HEADER.size :])


def test_the_hash_is_of_the_model_and_its_layout() -> None:
    """Not of values, seeds or rates: a state goes from one run to the next. Other layouts and models differ."""

    def hashed(name: str, target: str = "host", **options: object) -> bytes:
        return model_hash(tg.compile(tg.load(name), tg.Recipe(**options), target=target).plan)  # type: ignore[arg-type]

    same = hashed("simplemlp")
    assert same == hashed("simplemlp", seed=7, optimizer=tg.SGD(lr=0.5))
    others = [
        hashed("mlp"),
        hashed("simplemlp", "siracusa"),
        hashed("simplemlp", optimizer=tg.Momentum(lr=0.1)),
        hashed("simplemlp", train="last:1"),
    ]
    assert len({same, *others}) == 5


def test_trained_state_survives_a_read_and_a_write() -> None:
    """What the checks let through still works, by way of the harness."""
    with opened(zoo_model("simplemlp")) as session:
        name = session.compiled.program.state[0].name
        before = session.read(name)
        session.write(name, before + 1.0)
        assert (session.read(name) == before + 1.0).all()
