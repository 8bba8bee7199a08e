"""The MPPA: its simulated cluster of sixteen cores, its two programs, and its driver with stand-ins for the tools."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.schedule.programs import HAND_MADE, host_state, imported, recipe_of
from tests.support.command_line import CommandLine
from tilegrad.build.toolchain import host_toolchain
from tilegrad.compiled import Compiled
from tilegrad.devices.mppa import COMPILER, RUNNERS, VARIABLE, MppaDevice, window
from tilegrad.devices.registry import open_device
from tilegrad.devices.sim import SimDevice
from tilegrad.errors import DeviceError
from tilegrad.pipeline import compile_model
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets import base as targets
from tilegrad.targets.base import L1, Target
from tilegrad.training.train import Run, train

NAMES = ("simplemlp", *HAND_MADE)
WINDOW_BYTES = 1 << 20


def mppa(l1_bytes: int | None = None) -> Target:
    target = targets.get("mppa")
    return target if l1_bytes is None else target.with_capacity(L1, l1_bytes)


def compiled_for(name: str, target: Target, options: ScheduleOptions | None = None) -> Compiled:
    return compile_model(imported(name), recipe_of(name), target, options=options)


def quick_sim() -> SimDevice:
    """Compiles in a third of the time; the bits are those of any other optimisation."""
    tools = host_toolchain()
    flags = tuple("-O1" if flag == "-O3" else flag for flag in tools.flags)
    return SimDevice("sim:mppa", toolchain=replace(tools, flags=flags))


def bits(run: Run) -> dict[str, bytes]:
    found = {"losses": repr(run.losses).encode()}
    return found | {name: array.tobytes() for name, array in (run.weights | run.statistics).items()}


# ---- The chip, and its simulated cluster.


def test_the_chip_is_as_described() -> None:
    target = mppa()
    assert (target.clusters, target.cores) == (5, 16)
    assert target.memory(L1).capacity_bytes == 4 * 1024 * 1024
    assert not target.is_calibrated and targets.get("siracusa").is_calibrated


@pytest.mark.parametrize("l1_bytes", [None, 4096], ids=["all of SMEM", "4K"])
@pytest.mark.parametrize("name", NAMES)
def test_sixteen_simulated_cores_give_the_hosts_bits(name: str, l1_bytes: int | None) -> None:
    with quick_sim() as device:
        run = train(compiled_for(name, mppa(l1_bytes)), device, steps=2, verify=False)
    assert bits(run) == host_state(name, 2)


def test_fewer_cores_take_longer() -> None:
    cycles = []
    for cores in (16, 8, 1):
        with quick_sim() as device:
            chip = replace(mppa(), cores=cores)
            run = train(compiled_for("odd_cnn", chip), device, steps=1, verify=False)
        cycles.append(run.cycles["step"] or 0)
    assert 0 < cycles[0] < cycles[1] < cycles[2]


def test_estimates_say_that_they_are_uncalibrated(tilegrad: CommandLine) -> None:
    word = "uncalibrated"
    assert word in tilegrad("train", "simplemlp", "--device", "sim:mppa", "--steps", 1, "--no-verify").out
    assert word in tilegrad("inspect", "simplemlp", "--device", "sim:mppa", "--tiles").out.replace("\n", " ")
    compared = tilegrad("compare", "simplemlp", "--device", "sim:mppa", "--steps", 1, "--no-verify", "--json", "-").json
    assert compared["cycles_are"] == f"estimated, {word}"


# ---- The driver.


def test_what_is_missing_is_named(tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, runner in RUNNERS.items():
        reason = MppaDevice.missing(name) or ""
        assert all(word in reason for word in (COMPILER, runner.tool, VARIABLE, "sim:mppa"))
        with pytest.raises(DeviceError, match=runner.tool):
            open_device(name)
    answer = tilegrad("train", "simplemlp", "--device", "mppa:hw")
    assert answer.status == 3 and "kvx-jtag-runner" in answer.err


@pytest.mark.parametrize(
    ("text", "found"),
    [("/dev/card", ("/dev/card", 0)), ("/dev/card:0x1000", ("/dev/card", 4096)), ("", None)],
)
def test_where_the_window_is(text: str, found: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert window() == found


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The vendor's compiler is this machine's, its runners start the program, and the window is a file."""
    tools = tmp_path / "tools"
    tools.mkdir()
    compiler = shutil.which("gcc") or shutil.which("cc")
    scripts = {
        COMPILER: f"os.execv({compiler!r}, ['cc', *('-O1' if a == '-O3' else a for a in sys.argv[1:])])",
        **{
            runner.tool: (
                f"open({str(tmp_path / 'asked.txt')!r}, 'a').write(' '.join(sys.argv) + chr(10))\n"
                "program = sys.argv[-1].removeprefix('--exec-file=Cluster0:')\n"
                "os.execv(program, [program])"
            )
            for runner in RUNNERS.values()
        },
    }
    for name, body in scripts.items():
        (tools / name).write_text(f"#!{sys.executable}\nimport os, sys\n{body}\n")
        (tools / name).chmod(0o755)
    memory = tmp_path / "ddr"
    memory.write_bytes(bytes(WINDOW_BYTES))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the claim on the card is: tests run side by side
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    monkeypatch.setenv(VARIABLE, str(memory))
    return tmp_path


@pytest.mark.parametrize("device", RUNNERS)
def test_host_and_accelerator_give_the_hosts_bits(device: str, stand_ins: Path) -> None:
    with open_device(device) as opened:
        run = train(compiled_for("simplemlp", mppa()), opened, steps=2, verify=False)
    assert bits(run) == host_state("simplemlp", 2)
    asked = (stand_ins / "asked.txt").read_text().split()
    wanted = {"mppa:iss": "--", "mppa:qemu": "-kernel", "mppa:hw": "--exec-file=Cluster0:"}[device]
    assert asked[0].endswith(RUNNERS[device].tool) and any(word.startswith(wanted) for word in asked)


@pytest.mark.parametrize("name", HAND_MADE)
def test_sixteen_threads_give_the_hosts_bits(name: str, stand_ins: Path) -> None:
    """Small tiles, many transfers, tensors that would be in L3, real concurrency."""
    assert stand_ins.exists()
    options = ScheduleOptions(buffering="double", home="L3")
    with open_device("mppa:iss") as opened:
        run = train(compiled_for(name, mppa(4096), options), opened, steps=2, verify=False)
    assert bits(run) == host_state(name, 2)


@pytest.mark.parametrize(
    ("blocks", "sanitizer"),
    [("auto", ""), pytest.param("5", "-fsanitize=thread", marks=pytest.mark.slow), ("7", "")],
)
def test_five_clusters_of_threads_give_the_hosts_bits(
    blocks: str, sanitizer: str, stand_ins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eighty threads: what blocks of a launch do to shared memory is seen by a tool that is not ours."""
    if sanitizer:
        compiler = stand_ins / "tools" / COMPILER
        compiler.write_text(compiler.read_text().replace("['cc', ", f"['cc', {sanitizer!r}, "))
        monkeypatch.setenv("TSAN_OPTIONS", "halt_on_error=1 exitcode=66")
    options = ScheduleOptions(blocks=blocks, buffering="double")
    with open_device("mppa:iss", use_cache=not sanitizer) as opened:
        run = train(compiled_for("odd_cnn", mppa(4096), options), opened, steps=2, verify=False)
    assert bits(run) == host_state("odd_cnn", 2)


def test_one_program_at_a_time(stand_ins: Path) -> None:
    assert stand_ins.exists()
    compiled = compiled_for("simplemlp", mppa())
    with open_device("mppa:iss") as opened:
        with opened.load(compiled):
            with pytest.raises(DeviceError, match="runs a program already"):
                opened.load(compiled)
            with pytest.raises(DeviceError, match="busy"):
                open_device("mppa:iss")
        opened.load(compiled).close()


def test_an_accelerator_that_dies(stand_ins: Path) -> None:
    tool = stand_ins / "tools" / "kvx-cluster"
    tool.write_text(f"#!{sys.executable}\nimport sys\nprint('no card', file=sys.stderr)\nsys.exit(9)\n")
    with open_device("mppa:iss") as opened, pytest.raises(DeviceError) as caught:
        train(compiled_for("simplemlp", mppa()), opened, steps=1, verify=False)
    assert "status 9" in caught.value.message and "no card" in (caught.value.got or "")


def test_a_compiler_that_fails_is_quoted(stand_ins: Path) -> None:
    tool = stand_ins / "tools" / COMPILER
    tool.write_text(f"#!{sys.executable}\nimport sys\nprint('unknown core', file=sys.stderr)\nsys.exit(1)\n")
    with open_device("mppa:iss", use_cache=False) as opened, pytest.raises(DeviceError) as caught:
        opened.load(compiled_for("simplemlp", mppa()))
    assert "unknown core" in (caught.value.got or "")


# ---- The folder.


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compile_gives_both_programs_without_the_tools(
    compiler: str, tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    monkeypatch.delenv(VARIABLE, raising=False)
    folder = tmp_path / "project"
    answer = tilegrad("compile", "simplemlp", "--device", "mppa:iss", "-o", folder, "--json", "-")
    assert answer.status == 0 and answer.json["image"] is None, answer.err
    assert {"mppa/host.c", "mppa/tg_mppa.c", "mppa/tg_window.h", "main.c"} <= set(answer.json["files"])
    assert "tg_sim.c" not in answer.json["files"]
    command = ["make", "-C", str(folder), f"KVXCC={compiler}", f"CC={compiler}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "host").exists() and (folder / "accelerator").exists()
