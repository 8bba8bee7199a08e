"""The MPPA: its simulated cluster of sixteen cores, its two programs, and its driver with stand-ins for the tools."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.devices.mppa_stand_ins import make_stand_ins
from tests.schedule.programs import HAND_MADE, host_state, imported, recipe_of
from tests.support.command_line import CommandLine
from tilegrad.build.toolchain import host_toolchain
from tilegrad.compiled import Compiled
from tilegrad.devices.mppa import COMPILER, RUNNERS, VARIABLE, MppaDevice, window
from tilegrad.devices.mppa_configuration import MppaConfiguration, parse
from tilegrad.devices.registry import device_kind, open_device
from tilegrad.devices.sim import SimDevice
from tilegrad.errors import DeviceError, UserError
from tilegrad.pipeline import compile_model
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets import base as targets
from tilegrad.targets.base import L1, Target
from tilegrad.training.train import Run, train

NAMES = ("simplemlp", *HAND_MADE)


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
    for platform, runner in RUNNERS.items():
        name = f"mppa:{platform}:clusters=2"
        reason = MppaDevice.missing(name) or ""
        assert all(word in reason for word in (COMPILER, runner.tool, VARIABLE, "sim:mppa", "docs/mppa.md"))
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


# ---- The configuration.


def test_a_configuration_reads_back() -> None:
    for name in ("mppa:iss", "mppa:qemu:arch=kv3-2", "mppa:hw:clusters=1,firmware=ocl_fw.elf,trace=on"):
        assert parse(name).name == name and device_kind(name) is MppaDevice
    given = MppaConfiguration("iss", arch="kv3-2", clusters=3)
    assert parse(given.name) == given and given.name == "mppa:iss:arch=kv3-2,clusters=3"


@pytest.mark.parametrize(
    ("name", "field", "value", "expected"),
    [
        ("mppa:iss:arch=kv3-3", "arch", "kv3-3", "kv3-1 or kv3-2"),
        ("mppa:iss:clusters=0", "clusters", "0", "1 to 5"),
        ("mppa:iss:clusters=6", "clusters", "6", "1 to 5"),
        ("mppa:iss:clusters=-1", "clusters", "-1", "1 to 5"),
        ("mppa:iss:clusters=two", "clusters", "two", "1 to 5"),
        ("mppa:hw:firmware=mine.elf", "firmware", "mine.elf", "ocl_fw_l1.elf"),
        ("mppa:hw:trace=yes", "trace", "yes", "on or off"),
        ("mppa:iss:trace=on", "trace", "on", "off on iss"),
        ("mppa:iss:workdir=/nowhere/at/all", "workdir", "/nowhere/at/all", "a folder"),
        ("mppa:card:clusters=3", "platform", "card", "iss or qemu or hw"),
        ("mppa:clusters=3", "platform", "clusters=3", "iss or qemu or hw"),
        ("mppa:iss:cluster=3", "cluster", "cluster=3", "clusters"),
        ("mppa:iss:clusters=3,clusters=4", "clusters", "clusters=4", "once"),
        ("mppa:iss:clusters", "clusters", "clusters", "FIELD=VALUE"),
        ("mppa:iss:", "", "", "FIELD=VALUE"),
    ],
)
def test_values_that_cannot_be_are_refused(name: str, field: str, value: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        device_kind(name)
    assert field in caught.value.message and caught.value.got == value and expected in (caught.value.expected or "")


@pytest.mark.parametrize("values", [{"clusters": True}, {"clusters": "3"}, {"trace": 1}, {"workdir": "here"}])
def test_values_of_another_type_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(values))):
        MppaConfiguration("hw", **values)  # type: ignore[arg-type]


def test_the_command_line_takes_a_configuration(tilegrad: CommandLine, tmp_path: Path) -> None:
    device = "mppa:iss:clusters=3,arch=kv3-2"
    made = tilegrad("compile", "simplemlp", "--device", device, "--blocks", 3, "-o", tmp_path / "c", "--json", "-")
    assert made.status == 0, made.err
    makefile = (tmp_path / "c" / "Makefile").read_text()
    assert "MPPA_COS_NB_CC=3" in makefile and "-march=kv3-2" in makefile
    assert re.search(r"TG_CLUSTERS\W+3\b", (tmp_path / "c" / "model.h").read_text())
    wrong = tilegrad("compile", "simplemlp", "--device", "mppa:iss:arch=kv4", "-o", tmp_path / "d")
    assert wrong.status == 2 and "'arch' of an MPPA cannot be 'kv4'" in wrong.err and not (tmp_path / "d").exists()
    several = tilegrad("train", "simplemlp", "--device", f"host,{device}")
    assert several.status == 3 and "kvx-cluster" in several.err


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The vendor's compiler is this machine's, its runners start the program, and the window is a file."""
    make_stand_ins(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the claim on the card is: tests run side by side
    monkeypatch.setenv("PATH", str(tmp_path / "tools"), prepend=":")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "ddr"))
    return tmp_path


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        ("mppa:iss", "--march=kv3-1 -- "),
        ("mppa:qemu:arch=kv3-2", "-M mppa-coolidge-v2 -kernel "),
        ("mppa:hw:trace=on", "--exec-file=Cluster0:"),
    ],
)
def test_host_and_accelerator_give_the_hosts_bits(device: str, wanted: str, stand_ins: Path) -> None:
    with open_device(device) as opened:
        run = train(compiled_for("simplemlp", mppa()), opened, steps=2, verify=False)
    assert bits(run) == host_state("simplemlp", 2)
    asked = (stand_ins / "asked.txt").read_text()
    assert asked.split()[0].endswith(RUNNERS[device.split(":")[1]].tool) and wanted in asked


def test_a_configuration_is_what_tools_are_told(stand_ins: Path) -> None:
    """Architecture and clusters to the compiler, the rest by variables; programs stay in the working folder."""
    folder = stand_ins / "kept"
    name = f"mppa:hw:clusters=2,arch=kv3-2,firmware=ocl_fw_l1.elf,trace=on,workdir={folder}"
    with open_device(name) as opened:
        assert isinstance(opened, MppaDevice)
        chip = opened.chip_of(name)
        run = train(compiled_for("simplemlp", chip), opened, steps=2, verify=False)
        with pytest.raises(UserError, match="fewer clusters") as caught:
            opened.load(compiled_for("simplemlp", mppa()))
        assert (caught.value.expected, caught.value.got) == ("at most 2", "5")
    assert bits(run) == host_state("simplemlp", 2) and chip.clusters == 2
    assert all((folder / "tilegrad-hw" / made).exists() for made in ("host", "accelerator", "model.c"))
    built = (stand_ins / "built.txt").read_text()
    assert "-march=kv3-2" in built and "--defsym=MPPA_COS_NB_CC=2" in built
    told = opened.configuration.environment
    assert told["OMP_MPPA_FIRMWARE_NAME"] == "ocl_fw_l1.elf" and "MPPA_TRACE_ENABLE_META=1" in told["MPPA_ENVP"]


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
    command = ["make", "-C", str(folder), f"KVXCC={compiler}", f"CC={compiler}", "KVXARCH=", "KVXLINK="]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "host").exists() and (folder / "accelerator").exists()


# ---- What someone with the tools does.


@pytest.mark.slow
def test_a_report_to_send_back(stand_ins: Path) -> None:
    """The tool of docs/mppa.md: trainings on the device and simulated, with the same bits."""
    folder = stand_ins / "report"
    name = "mppa:iss:clusters=2,arch=kv3-2"
    command = [sys.executable, "tools/mppa_conformance.py", name, "-o", str(folder), "--models", "simplemlp"]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    options = ["--steps", "2", "--no-suite"]
    done = subprocess.run([*command, *options], cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["simplemlp"]["same_bits"] is True and set(summary["simplemlp"]) >= {name, "sim:mppa"}
    assert COMPILER in (folder / "versions.txt").read_text()
    wrong = [sys.executable, "tools/mppa_conformance.py", "mppa:iss:arch=kv9", "-o", str(folder / "no")]
    refused = subprocess.run(wrong, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "kv9" in refused.stderr and not (folder / "no").exists()
