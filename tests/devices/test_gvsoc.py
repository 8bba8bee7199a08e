"""The driver of Siracusa's cycle model, with a stand-in behind its command line: what it runs, reads and refuses."""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from tests.devices.siracusa import fake_gvsoc, model_program, needs_compiler
from tests.schedule.programs import compiled_for, siracusa
from tests.support.command_line import CommandLine
from tilegrad.devices.base import Device
from tilegrad.devices.elf import ElfFile
from tilegrad.devices.embedded import CoreStack
from tilegrad.devices.gvsoc import VARIABLE, GvsocDevice
from tilegrad.devices.registry import device_kind, open_device
from tilegrad.devices.siracusa_image import parse_console
from tilegrad.devices.siracusa_program import Expected
from tilegrad.errors import DeviceError, UserError
from tilegrad.report.training import stacks_line

NAME = "gvsoc:siracusa"
CONSOLE = """a simulator's own words
tilegrad image 1
model tiny
step 0 loss 0x3f800000 cycles 120
step 1 loss 0x40000000 expected 0x3f000000 cycles 121
update 0 cycles 12
infer 0 cycles 30
weights 0x12345678
stack 0 used 300 of 1344 guard intact
stack 1 used 310 of 1344 guard intact
stack 8 used 4040 of 4032 guard overwritten
stack 31 used 92 of 4032 guard intact
verdict differs
"""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_program(tmp_path_factory.mktemp("siracusa"))


# ---- The console.


def test_the_console_is_read_between_other_words() -> None:
    ran = parse_console(CONSOLE, 1)
    assert ran.losses == (1.0, 2.0) and ran.loss_bits == (0x3F800000, 0x40000000)
    assert ran.cycles == {"step": (120, 121), "update": (12,), "infer": (30,)}
    assert (ran.weights_hash, ran.verdict, ran.exit_status) == (0x12345678, "differs", 1)
    assert ran.stacks == (
        CoreStack(0, 300, 1344, is_intact=True),
        CoreStack(1, 310, 1344, is_intact=True),
        CoreStack(8, 4040, 4032, is_intact=False),
        CoreStack(31, 92, 4032, is_intact=True),
    )


def test_the_deepest_stacks_are_told_and_the_fabric_controllers() -> None:
    """Which is as large as the conductor's, and is told beside it."""
    assert stacks_line(parse_console(CONSOLE, 1).stacks).plain == (
        "stacks as measured on 4 cores, the deepest: the fabric controller 92 of 4,032, core 1 310 of 1,344, "
        "core 8 4,040 of 4,032; a guard zone was overwritten"
    )


@pytest.mark.parametrize(("core", "whose"), [(8, "core 8"), (31, "the fabric controller")])
def test_whose_stack_reached_into_its_guard_zone(core: int, whose: str) -> None:
    text = CONSOLE.replace("4032 guard overwritten", "4032 guard intact")
    text = re.sub(rf"(stack {core} used .*) guard intact", r"\1 guard overwritten", text)
    ran = parse_console(text.replace("verdict differs", "verdict failed"), 2)
    with pytest.raises(DeviceError, match=f"the stack of {whose} reached into its guard zone"):
        GvsocDevice()._check(ran, Expected(ran.loss_bits, ran.weights_hash))


@pytest.mark.parametrize(
    ("cut", "what"),
    [
        ("verdict differs\n", "it printed 0 lines with 'verdict'"),
        ("weights 0x12345678\n", "it printed 0 lines with 'weights'"),
        ("step 0 loss 0x3f800000 cycles 120\n", r"its steps are numbered \[1\]"),
    ],
)
def test_an_incomplete_run_is_a_device_error(cut: str, what: str) -> None:
    with pytest.raises(DeviceError, match=f"did not run to its end: {what}") as caught:
        parse_console(CONSOLE.replace(cut, ""), 0)
    assert "tilegrad image 1" in (caught.value.got or "")


# ---- What is here and what is not.


def test_a_machine_without_the_simulator(
    tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no gvsoc on PATH" in (GvsocDevice.missing(NAME) or "")
    listed = {row["name"]: row for row in tilegrad("devices", "--json", "-").json["devices"]}
    assert listed[NAME]["usable"] is False and VARIABLE in listed[NAME]["reason"]
    answer = tilegrad("train", "simplemlp", "--device", NAME)
    assert answer.status == 3 and "no gvsoc on PATH" in answer.err


def test_a_variable_that_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/no/such/gvsoc")
    with pytest.raises(DeviceError, match="names '/no/such/gvsoc', which is no program"):
        open_device(NAME)


def test_a_machine_without_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gvsoc").write_text("#!/bin/sh\n")
    (tmp_path / "gvsoc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "gcc-riscv64-unknown-elf" in (GvsocDevice.missing(NAME) or "")
    device = GvsocDevice()
    device.expected = Expected((0,) * device.steps, 0)
    with pytest.raises(DeviceError, match="apt-get install gcc-riscv64-unknown-elf"):
        device.build(compiled_for("simplemlp", siracusa()), tmp_path)


def test_nothing_is_sent_to_an_image() -> None:
    assert device_kind(NAME).capabilities.is_interactive is False
    device: Device = GvsocDevice()
    with pytest.raises(UserError, match="runs whole trainings"):
        device.load(compiled_for("simplemlp", siracusa()))


# ---- Whole runs.


@needs_compiler
def test_compile_gives_a_folder_whose_image_needs_nothing_else(
    tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch, program: Path, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        answer = tilegrad("compile", "simplemlp", "--device", NAME, "--steps", 3, "-o", folder, "--json", "-")
        assert answer.status == 0, answer.err
    document = answer.json
    assert document["image"]["path"] == "image.elf" and "image.elf" in document["files"]
    assert {"chip/link.ld", "chip/tg_chip.c", "Makefile", "manifest.json"} <= set(document["files"])
    assert not {"main.c", "tg_sim.c", "weights.bin"} & set(document["files"])
    names = sorted(str(path.relative_to(folders[0])) for path in folders[0].rglob("*") if path.is_file())
    assert names == document["files"]
    assert all((folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in names)
    assert "_start" in ElfFile(folders[0] / "image.elf").symbols()
    monkeypatch.setenv(VARIABLE, str(fake_gvsoc(tmp_path, program)))
    compiled = compiled_for("simplemlp", siracusa())
    device = GvsocDevice()
    ran = device.run(device.build(compiled, tmp_path))
    assert ran.verdict == "same" and len(ran.losses) == 4


def test_a_compiler_that_fails_names_the_folder(
    tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bin" / "riscv64-unknown-elf-gcc"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 4\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent), prepend=os.pathsep)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = tilegrad("compile", "simplemlp", "--device", NAME, "-o", tmp_path / "out", "--no-cache")
    found = re.search(r"hint: the folder is '(.*)'", answer.err)
    assert answer.status == 3 and "status 4" in answer.err and "it is broken" in answer.err and found is not None
    assert (Path(found[1]) / "model.c").exists() and "it is broken" in (Path(found[1]) / "failure.txt").read_text()
    assert not (tmp_path / "out").exists()


@needs_compiler
def test_train_counts_the_chips_cycles(
    tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch, program: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(fake_gvsoc(tmp_path, program)))
    options = ("--steps", 2, "--no-verify", "--json", "-")
    chip = tilegrad("train", "simplemlp", "--device", NAME, *options)
    assert chip.status == 0, chip.err
    simulated = tilegrad("train", "simplemlp", "--device", "sim:siracusa", *options).json
    assert chip.json["device"] == NAME
    assert chip.json["losses"] == simulated["losses"]
    assert chip.json["weights_sha256"] == simulated["weights_sha256"]
    assert all(chip.json["cycles"][entry] > 0 for entry in ("step", "update", "infer"))
    assert "cycles, counted by the chip" in tilegrad("train", "simplemlp", "--device", NAME, *options[:3]).out


@needs_compiler
def test_data_of_ones_own_is_refused(
    tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch, program: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(fake_gvsoc(tmp_path, program)))
    data = tmp_path / "d.npz"
    np.savez(data, x=np.zeros((2, 64), np.float32), y=np.zeros(2, np.int64))
    answer = tilegrad("train", "simplemlp", "--device", NAME, "--data", data)
    assert answer.status == 2 and "makes its data from the seed" in answer.err


@needs_compiler
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        # A chip that computes something else: one bit of one loss.
        (
            "import subprocess\n"
            "said = subprocess.run(['{program}', given['--binary']], capture_output=True, text=True).stdout\n"
            "print(said.replace('step 1 loss 0x4', 'step 1 loss 0x5').replace('verdict same', 'verdict differs'))\n"
            "sys.exit(1)",
            1,
            "not the simulator's from mini-batch 1 on",
        ),
        ("print('the model lost its way'); sys.exit(7)", 3, "the simulator ended with status 7"),
        ("os.kill(os.getpid(), 11)", 3, "the simulator was ended by SIGSEGV"),
        ("print('step 0 loss 0x00000000 cycles 1'); sys.exit(0)", 3, "did not run to its end"),
    ],
    ids=["other bits", "failure", "crash", "silence"],
)
def test_runs_that_go_wrong(
    body: str,
    status: int,
    words: str,
    tilegrad: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    program: Path,
    tmp_path: Path,
) -> None:
    script = fake_gvsoc(tmp_path, program, body.replace("{program}", str(program)))
    monkeypatch.setenv(VARIABLE, str(script))
    answer = tilegrad("train", "simplemlp", "--device", NAME, "--steps", 2, "--no-verify")
    assert answer.status == status and words in answer.err, answer.err


@needs_compiler
def test_a_simulator_that_hangs(monkeypatch: pytest.MonkeyPatch, program: Path, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(fake_gvsoc(tmp_path, program, "time.sleep(600)")))
    device = GvsocDevice()
    image = device.build(compiled_for("simplemlp", siracusa()), tmp_path)
    start = time.monotonic()
    with pytest.raises(DeviceError, match="did not end in 1 s") as caught:
        device.run(image, timeout_seconds=1.0)
    assert time.monotonic() - start < 60
    assert str(tmp_path) in (caught.value.hint or "") and "--binary " in (caught.value.got or "")
