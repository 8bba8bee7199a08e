"""iss:siracusa: cycles of an image that was run on the chip's cycle model, what it refuses, and what it tells."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tests.devices.chip_programs import BARRIER, OVER, WAIT, program
from tests.devices.siracusa import needs_compiler
from tests.place.test_panels import dense
from tests.schedule.programs import KIB, compiled_for, siracusa
from tests.support.command_line import CommandLine
from tests.support.models import model, node, value, weights
from tilegrad import frontend, zoo
from tilegrad.compiled import Compiled
from tilegrad.devices.embedded import Image, Sections
from tilegrad.devices.host import HostDevice
from tilegrad.devices.iss import IssDevice, build_simulator, most_cycles, simulator_files
from tilegrad.devices.iss_profile import parse_calls, parse_profile
from tilegrad.devices.siracusa_image import parse_console
from tilegrad.errors import DeviceError, UserError
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Recipe
from tilegrad.report.profile import profile_report
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets import base as targets
from tilegrad.targets.base import L2
from tilegrad.training.train import Run, train

NAME = "iss:siracusa"
IMAGE = Path(__file__).parent / "images" / "simplemlp.elf"
TRUTH = Path(__file__).parents[2] / "benchmarks" / "siracusa"


@pytest.fixture(scope="session")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_simulator(tmp_path_factory.mktemp("iss"))


def rows(name: str, model: str) -> list[dict[str, str]]:
    with (TRUTH / name).open(encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if row["model"] == model]


# ---- Cycles.


def test_the_image_is_the_one_that_was_measured() -> None:
    assert hashlib.sha256(IMAGE.read_bytes()).hexdigest() == rows("images.csv", "simplemlp")[0]["sha256_of_image_elf"]


def test_cycles_are_the_chips(simulator: Path, tmp_path: Path) -> None:
    """A step within 3 %, nests that take more than 1 % of it within 8 %."""
    command = [str(simulator), str(IMAGE), "--profile", str(tmp_path / "profile.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ran = parse_console(done.stdout, done.returncode)
    (measured,) = rows("models.csv", "simplemlp")
    assert ran.verdict == "same"
    assert ran.cycles["step"] == pytest.approx([int(measured["step0"]), int(measured["step1"])], rel=0.03)
    assert ran.cycles["update"][-1] == pytest.approx(int(measured["update"]), rel=0.03)
    assert ran.cycles["infer"][-1] == pytest.approx(int(measured["infer"]), rel=0.03)
    calls = [nests for entry, nests in parse_calls((tmp_path / "profile.json").read_text()) if entry == "step"]
    before, *nests = calls[1]
    assert before.cycles == pytest.approx(int(measured["before_first_nest"]), rel=0.08)
    assert [nest.cycles for nest in nests] == pytest.approx(
        [int(row["cycles"]) for row in rows("nests.csv", "simplemlp")], rel=0.08
    )


def test_every_cycle_of_a_core_is_accounted_for(simulator: Path, tmp_path: Path) -> None:
    """Instructions and stalls are the cycles of a nest, but for what is under way where one ends."""
    command = [str(simulator), str(IMAGE), "--profile", str(tmp_path / "profile.json")]
    subprocess.run(command, capture_output=True, check=True)
    profile = parse_profile((tmp_path / "profile.json").read_text())
    assert profile.cores == 8 and set(profile.entries) == {"step", "update", "infer"}
    for nest in profile.entries["step"]:
        assert nest.instructions + sum(nest.stalls.values()) == pytest.approx(8 * nest.cycles, abs=8 * 32), nest.name


def test_a_run_repeats_exactly(simulator: Path) -> None:
    said = [subprocess.run([str(simulator), str(IMAGE)], capture_output=True, text=True, check=True) for _ in range(2)]
    assert said[0].stdout == said[1].stdout and said[0].stderr == said[1].stderr


def test_a_run_ends_behind_a_line_that_is_waited_for(simulator: Path) -> None:
    whole, part, never = (
        subprocess.run([str(simulator), str(IMAGE), *until], capture_output=True, text=True, check=True).stdout
        for until in ((), ("--until", "update 0 "), ("--until", "pdate 0"))
    )
    assert whole.startswith(part) and part.splitlines()[-1].startswith("update 0 ") and part != whole
    assert never == whole


def test_what_was_in_memory_before_changes_nothing(simulator: Path) -> None:
    said = {
        subprocess.run([str(simulator), str(IMAGE), "--seed", str(seed)], capture_output=True, check=True).stdout
        for seed in (1, 7)
    }
    assert len(said) == 1


# ---- Bits.

WAYS = {
    "simplemlp": ScheduleOptions(fuses_update=True),
    "autoencoder_tiny": ScheduleOptions(buffering="double", home="L3"),
    "odd_cnn": ScheduleOptions(buffering="double"),
}


def check_run(compiled: Compiled, steps: int) -> Run:
    with IssDevice() as device:
        ran = train(compiled, device, steps=steps, verify=False, keep_gradients=False)
    flat = compile_model(compiled.model, compiled.program.recipe, targets.get("host"))
    with HostDevice() as host:
        expected = train(flat, host, steps=steps, verify=False)
    assert ran.losses == expected.losses and ran.weights_sha256 == expected.weights_sha256
    return ran


def check_bits(name: str, steps: int, l1_bytes: int, options: ScheduleOptions) -> None:
    ran = check_run(compiled_for(name, siracusa(l1_bytes), options), steps)
    assert all((ran.cycles[entry] or 0) > 0 for entry in ("step", "update", "infer"))


@needs_compiler
@pytest.mark.parametrize(
    "name", ["simplemlp", *(pytest.param(name, marks=pytest.mark.slow) for name in list(WAYS)[1:])]
)
def test_losses_and_weights_are_the_hosts(name: str) -> None:
    check_bits(name, 2, 16 * KIB, WAYS[name])


@needs_compiler
@pytest.mark.slow
def test_samples_that_are_larger_than_l2() -> None:
    """They are made in L3, piece by piece, and the entries are told that they are there."""
    nodes = [
        node("Conv", "x w b", "c", "/conv", kernel_shape=[4, 4], strides=[4, 4]),
        node("GlobalAveragePool", "c", "g", "/mean"),
        node("Flatten", "g", "f", "/flatten"),
        node("Gemm", "f v", "y", "/fc"),
    ]
    tensors = {"w": weights(4, 2, 4, 4, seed=1) * 0.2, "b": weights(4, seed=2), "v": weights(4, 3, seed=3)}
    imported = frontend.load(model(nodes, [value("x", ["batch", 2, 64, 64])], [value("y", ["batch", 3])], tensors))
    compiled = compile_model(imported, Recipe(), siracusa(16 * KIB, l2_bytes=28 * KIB))
    assert compiled.plan.input_address("step", "x").region == "l3"
    check_run(compiled, 2)


@needs_compiler
@pytest.mark.parametrize(
    ("sizes", "l2_bytes"),
    [
        pytest.param((60, 90, 90, 5), 20 * KIB, marks=pytest.mark.slow),
        pytest.param((256, 400, 400, 400, 400, 10), None, marks=pytest.mark.matrix),
        pytest.param((64, 1200, 1200, 10), None, marks=pytest.mark.matrix),
    ],
)
def test_weights_that_are_larger_than_l2(sizes: tuple[int, ...], l2_bytes: int | None) -> None:
    """They are made in L3 by the image, and come to L2 as panels."""
    target = targets.get("siracusa") if l2_bytes is None else siracusa(16 * KIB, l2_bytes=l2_bytes)
    compiled = compile_model(dense(*sizes), Recipe(), target)
    room = compiled.plan.memory[L2].capacity_bytes
    assert room is not None and room < sum(tensor.type.size_bytes for tensor in compiled.program.state)
    check_run(compiled, 1)


@needs_compiler
@pytest.mark.matrix
@pytest.mark.parametrize("name", zoo.names())
def test_losses_and_weights_of_every_zoo_model(name: str) -> None:
    check_bits(name, 2, 128 * KIB, ScheduleOptions(fuses_update=True))


# ---- The command line.


@needs_compiler
def test_train_profiles(tilegrad: CommandLine, tmp_path: Path) -> None:
    answer = tilegrad(
        "train", "simplemlp", "--device", NAME, "--steps", 2, "--no-verify", "--profile", "--json", tmp_path / "j.json"
    )
    assert answer.status == 0, answer.err
    assert f"cycles, measured on {NAME}" in answer.out and "nest of a step" in answer.out
    document = json.loads((tmp_path / "j.json").read_text())
    assert document["cycles_are"] == f"measured on {NAME}"
    nests = document["profile"]["entries"]["step"]
    assert 0 < document["cycles"]["step"] - sum(nest["cycles"] for nest in nests) < 0.1 * document["cycles"]["step"]
    assert {"fetch", "memory", "fpu", "sleep"} <= set(nests[0]["stalls"])
    told = tilegrad("train", "simplemlp", "--device", NAME, "--steps", 2, "--no-verify", "--json", "-").json
    assert told["profile"] is None and told["weights_sha256"] == document["weights_sha256"]


def test_the_profile_fits_80_columns(simulator: Path, tmp_path: Path) -> None:
    subprocess.run([str(simulator), str(IMAGE), "--profile", str(tmp_path / "p.json")], capture_output=True, check=True)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*profile_report(parse_profile((tmp_path / "p.json").read_text())))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(("forward", "backward", "…")) for line in lines) >= 6


def test_other_devices_cannot_tell(tilegrad: CommandLine) -> None:
    answer = tilegrad("train", "simplemlp", "--device", "host", "--profile")
    assert answer.status == 2 and "cannot tell where cycles go" in answer.err and NAME in answer.err


def test_it_is_listed(tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed = {row["name"]: row for row in tilegrad("devices", "--json", "-").json["devices"]}
    assert listed[NAME]["target"] == "siracusa"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert "no C compiler" in (IssDevice.missing(NAME) or "")


def test_nothing_is_sent_to_it() -> None:
    with pytest.raises(UserError, match="runs whole trainings"):
        IssDevice().load(compiled_for("simplemlp", siracusa()))


# ---- The instructions that compilers do not emit.


def exit_status(simulator: Path, image: Image, *options: str) -> int:
    command = [str(simulator), str(image.path), "--limit", "10000000", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 99, done.stderr
    return done.returncode


RESULT = "    la t1, result\n    sw a0, 0(t1)\n" + OVER
FABRIC_RESULT = """
    la   t1, is_over
1:  lw   t0, 0(t1)
    beqz t0, 1b
    la   t1, result
    lw   s0, 0(t1)
"""
PROGRAMS = {
    # ten rounds of (1 + 7), of which the loop's end is the last instruction
    "a hardware loop": (80, "li t0, 10\n li a0, 0\n .insn i 0x7b, 4, x0, t0, 4\n addi a0, a0, 1\n addi a0, a0, 7\n"),
    "a loop counted in the instruction": (
        15,
        "li a0, 0\n .insn i 0x7b, 5, x0, x4, 5\n addi a0, a0, 1\n addi a0, a0, 2\n",
    ),
    "a load that increments": (
        37,
        "li a1, 0x10000100\n li t0, 11\n sw t0, 0(a1)\n li t0, 22\n sw t0, 4(a1)\n mv a2, a1\n"
        " .insn i 0x0b, 2, a3, a2, 4\n .insn i 0x0b, 2, a4, a2, 0\n add a0, a3, a4\n sub a2, a2, a1\n add a0, a0, a2\n",
    ),
    # (1, 2) * (2, 2) + (0, 0) in halves is (2, 4): 0x44004000
    "vfmac.h": (
        0x44,
        "li t0, 0x40003c00\n fmv.w.x f0, t0\n li t0, 0x40004000\n fmv.w.x f1, t0\n fmv.w.x f2, x0\n"
        " .insn r 0x33, 2, 0x48, f2, f0, f1\n fmv.x.w a0, f2\n srli a0, a0, 24\n",
    ),
    # 1 * 2 + 2 * 2 + 0.5 is 6.5: 0x40d00000
    "vfdotpex.s.h": (
        0x0D,
        "li t0, 0x40003c00\n fmv.w.x f0, t0\n li t0, 0x40004000\n fmv.w.x f1, t0\n li t0, 0x3f000000\n fmv.w.x f2, t0\n"
        " .insn r 0x33, 0, 0x4b, f2, f0, f1\n fmv.x.w a0, f2\n srli a0, a0, 20\n andi a0, a0, 15\n",
    ),
    "compressed instructions": (
        42,
        ".option rvc\n li a0, 5\n c.li a1, 16\n c.addi a1, 5\n c.slli a1, 1\n c.mv a0, a1\n c.j 1f\n"
        " c.li a0, 1\n1:\n .align 2\n",
    ),
}


@needs_compiler
@pytest.mark.parametrize("name", PROGRAMS)
def test_instructions(name: str, simulator: Path, tmp_path: Path) -> None:
    expected, body = PROGRAMS[name]
    image = program(tmp_path, body + RESULT + "\n    .data\nresult: .word 0\n", fabric=FABRIC_RESULT)
    assert exit_status(simulator, image) == expected


@needs_compiler
def test_the_controller_dispatches_and_workers_wake_it(simulator: Path, tmp_path: Path) -> None:
    """Core 8 pushes 5 to eight workers; each adds it to a counter of its own; a barrier of the workers wakes core 8."""
    body = f"""
{BARRIER.replace("{cores}", "0x1ff")}
    li   t0, 8
    bne  a1, t0, worker
    li   t0, 0xff
    sw   t0, 0x220(s1)
    li   t0, 0x100
    sw   t0, 0x22c(s1)
    li   t0, 0xff
    sw   t0, 0x84(s1)
{WAIT}
    li   t0, 5
    sw   t0, 0x80(s1)
    .insn i 0x03, 6, a0, s1, 0x3c
    li   a2, 0x10000000
    li   a0, 0
    li   t2, 8
1:  lw   t0, 0(a2)
    add  a0, a0, t0
    addi a2, a2, 4
    addi t2, t2, -1
    bnez t2, 1b
{RESULT}
worker:
{WAIT}
    .insn i 0x03, 6, a0, s1, 0x80
    li   a2, 0x10000000
    slli t0, a1, 2
    add  a2, a2, t0
    sw   a0, 0(a2)
    .insn i 0x03, 6, a0, s1, 0x23c
1:  .insn i 0x03, 6, a0, s1, 0x3c
    j    1b
    .data
result: .word 0
"""
    assert exit_status(simulator, program(tmp_path, body, cores=0x1FF, fabric=FABRIC_RESULT)) == 40


# ---- Bad input: a DeviceError with the core, the program counter, the symbol and what came before.


def failure(image: Image, limit: int = 30_000_000) -> DeviceError:
    device = IssDevice()
    device.limit_cycles = limit
    with pytest.raises(DeviceError) as caught:
        device.run(image, timeout_seconds=100)
    return caught.value


FAULTS: dict[str, tuple[str, str, str]] = {
    "illegal": (
        "bad:\n    .word 0xffffffff\n",
        r"core 0 at 0x1c01\w+ \(bad\+0x0\)",
        "the illegal instruction 0xffffffff",
    ),
    "unmapped read": ("bad:\n    li t0, 0x50000000\n    lw t1, 0(t0)\n", r"\(bad\+0x4\)", "a read of 0x50000000"),
    "unmapped write": ("bad:\n    sw x0, 16(x0)\n", r"\(bad\+0x0\)", "a write to 0x00000010"),
    "end of L2": ("bad:\n    li t0, 0x1c200000\n    sw x0, 0(t0)\n", r"\(bad\+0x4\)", "a write to 0x1c200000"),
    "unaligned": ("bad:\n    li t0, 0x10000002\n    lw t1, 0(t0)\n", r"\(bad\+", "an unaligned access of 4 bytes"),
    "another's memory": (
        "bad:\n    li t0, 0x1c000000\n    lw t1, 0(t0)\n",
        r"\(bad\+",
        "the fabric controller's memory",
    ),
    "wild jump": ("bad:\n    li t0, 0x1c0f0000\n    jr t0\n", "at 0x1c0f0000", "where no code is"),
    "wild transfer": (
        "bad:\n    li s1, 0x00204400\n    lw t0, 0(s1)\n    li t0, 0x160040\n    sw t0, 0(s1)\n    li t0, 0x10000000\n"
        "    sw t0, 0(s1)\n    li t0, 0x20000000\n    sw t0, 0(s1)\n",
        r"\(bad\+",
        "64 bytes at 0x20000000 are not in the shared part of L2",
    ),
    "control register": ("bad:\n    csrr t0, 0x7c0\n", r"\(bad\+0x0\)", "control register 0x7c0"),
    "endless": ("bad:\n    j bad\n", r"core 0 at 0x1c01\w+ \(bad\+0x0\)", "no end after 300000 cycles"),
}


@needs_compiler
@pytest.mark.parametrize("name", FAULTS)
def test_programs_that_go_wrong(name: str, tmp_path: Path) -> None:
    body, where, what = FAULTS[name]
    error = failure(program(tmp_path, "    nop\n" + body + OVER), 300_000)
    assert what in error.message and error.stage == "run" and str(tmp_path) in (error.hint or "")
    assert "starts cores 0x1" in (error.got or "")
    assert re.search(where, error.message), error.message


@needs_compiler
def test_a_deadlock_of_the_event_unit(tmp_path: Path) -> None:
    """A barrier of two cores, to which one comes."""
    image = program(tmp_path, BARRIER.replace("{cores}", "3") + "stuck:\n" + WAIT + OVER, cores=1)
    error = failure(image, 200_000_000)
    assert "a deadlock: every core of the cluster waits for an event" in error.message
    assert "core 0 at 0x1c01" in error.message and "(stuck+" in error.message
    assert "waiting: core 0" in (error.got or "") and "core 0 comes to barrier 0 of cores 0x3" in (error.got or "")


@needs_compiler
def test_floating_point_on_the_fabric_controller(tmp_path: Path) -> None:
    error = failure(program(tmp_path, OVER, fabric="    fmv.w.x f0, x0"))
    assert "fabric controller at 0x1c008" in error.message and "which has none" in error.message


def of_another_machine(folder: Path) -> Path:
    (folder / "main.c").write_text("int main(void) { return 0; }\n")
    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    subprocess.run([compiler, str(folder / "main.c"), "-o", str(folder / "program")], check=True)
    return folder / "program"


def of_another_chip(folder: Path) -> Path:
    """The same instructions, where Siracusa has no memory."""
    content = bytearray(IMAGE.read_bytes())
    headers, count = int.from_bytes(content[28:32], "little"), int.from_bytes(content[44:46], "little")
    for at in range(headers, headers + 32 * count, 32):
        content[at + 8 : at + 16] = 2 * (0x40000000).to_bytes(4, "little")  # where it runs, and where it is stored
    (folder / "program").write_bytes(content)
    return folder / "program"


def of_no_bytes(folder: Path) -> Path:
    (folder / "program").write_bytes(b"")
    return folder / "program"


def that_is_cut_off(folder: Path) -> Path:
    (folder / "program").write_bytes(IMAGE.read_bytes()[:3000])
    return folder / "program"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (of_another_machine, "is no program for a 32-bit RISC-V"),
        (of_another_chip, "at 0x40000000 are in no memory that Siracusa loads"),
        (of_no_bytes, "is no program for a 32-bit RISC-V"),
        (that_is_cut_off, "an image"),
    ],
)
def test_images_of_something_else(make: Callable[[Path], Path], what: str, tmp_path: Path) -> None:
    error = failure(Image(make(tmp_path), Sections(0, 0, 0, 0)))
    assert "the image failed: fabric controller at" in error.message and what in error.message


@needs_compiler
def test_a_training_has_a_budget_of_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compiled_for("simplemlp", siracusa())
    assert 10_000_000 < most_cycles(compiled, 4) < 10_000_000_000
    monkeypatch.setattr("tilegrad.devices.iss.most_cycles", lambda compiled, steps: 20_000)
    with pytest.raises(DeviceError, match="no end after 20000 cycles"):
        train(compiled, IssDevice(), steps=1, verify=False)


# ---- The C.


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_c_has_no_warnings(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    for name, content in simulator_files().items():
        (tmp_path / name).write_bytes(content)
    flags = "-std=c99 -O1 -Wall -Wextra -Werror -Wconversion -Wshadow -Wstrict-prototypes -fsyntax-only".split()
    sources = [name for name in simulator_files() if name.endswith(".c")]
    done = subprocess.run([compiler, *flags, *sources], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
