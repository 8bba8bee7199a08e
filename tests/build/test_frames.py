"""The stack as the compiler tells it: sums over calls whose frames are known, and the limits of every zoo model."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.devices.siracusa import needs_compiler
from tests.schedule.programs import compiled_for
from tests.support.command_line import CommandLine
from tilegrad import zoo
from tilegrad.build.folder import write_files
from tilegrad.build.frames import deepest_bytes
from tilegrad.build.toolchain import PORTABLE_FLAGS, Toolchain, build, host_toolchain, list_frames
from tilegrad.errors import DeviceError
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.stack import red_zone_bytes, stack_use
from tilegrad.targets import base as targets

LIMIT_BYTES = 2048
# Beside an array: saved registers, the return address, alignment.
MOST_BESIDE = 96

# What lies below the stack pointer is in no frame: `stack_use` adds it on the host.
NO_RED_ZONE = ("-mno-red-zone",) if red_zone_bytes() else ()

COMPILERS = [
    pytest.param(Toolchain(name, (*PORTABLE_FLAGS, *flags)), id=name, marks=needed)
    for name, flags in (
        ("gcc", NO_RED_ZONE),
        ("clang", NO_RED_ZONE),
        ("riscv64-unknown-elf-gcc", ("-march=rv32imafc", "-mabi=ilp32f", "-ffreestanding")),
        ("arm-none-eabi-gcc", ("-mcpu=cortex-m7", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-d16", "-ffreestanding")),
    )
    for needed in [pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name}")]
]

HEADER = b"#define APART __attribute__((noinline))\nextern volatile int sink;\nint deep(int n);\n"


def frame(name: str, size_bytes: int, then: str = "", is_static: bool = True) -> str:
    """A function with an array of a known size, which does something before it uses the array once more."""
    return (
        f"{'static ' if is_static else ''}APART int {name}(int n)\n{{\n"
        f"    volatile char a[{size_bytes}];\n    a[n] = 1;\n    {then}\n    return a[n + 1];\n}}\n"
    )


def depth(toolchain: Toolchain, folder: Path, *sources: str, recursion: int = 1) -> int:
    files = {f"f{i}.c": f'#include "all.h"\n{text}'.encode() for i, text in enumerate(sources)}
    listings = list_frames(toolchain, folder, {"all.h": HEADER, **files}, use_cache=False)
    return deepest_bytes(listings, ["tg_step"], recursion)["tg_step"]


def is_about(found: int, arrays: int, frames: int) -> bool:
    return arrays <= found <= arrays + frames * MOST_BESIDE


@pytest.mark.parametrize("toolchain", COMPILERS)
class TestSums:
    def test_the_deepest_of_several_calls_counts(self, toolchain: Toolchain, tmp_path: Path) -> None:
        text = frame("small", 200) + frame("large", 900)
        root = frame("tg_step", 300, "sink = small(n) + large(n);", is_static=False)
        assert is_about(depth(toolchain, tmp_path, text + root), 1200, 2)

    def test_calls_reach_other_files_and_their_own_statics_first(self, toolchain: Toolchain, tmp_path: Path) -> None:
        here = frame("inner", 100) + frame("tg_step", 100, "sink = inner(n) + deep(n);", is_static=False)
        there = frame("inner", 700) + frame("deep", 500, "sink = inner(n);", is_static=False)
        assert is_about(depth(toolchain, tmp_path, here, there), 1300, 3)

    def test_a_call_through_a_table_may_reach_all_of_it(self, toolchain: Toolchain, tmp_path: Path) -> None:
        text = (
            frame("first", 100)
            + frame("second", 800)
            + "static int (*const volatile table[])(int) = {first, second};\n"
        )
        root = frame("tg_step", 100, "sink = table[n](n);", is_static=False)
        assert is_about(depth(toolchain, tmp_path, text + root), 900, 2)

    def test_recursion_counts_as_often_as_told(self, toolchain: Toolchain, tmp_path: Path) -> None:
        text = frame("again", 400, "if (n > 1) sink = again(n - 1) + 1;")
        root = frame("tg_step", 100, "sink = again(n);", is_static=False)
        assert is_about(depth(toolchain, tmp_path, text + root, recursion=3), 1300, 4)

    def test_recursion_through_others_has_no_bound(self, toolchain: Toolchain, tmp_path: Path) -> None:
        text = "int tg_step(int n);\n" + frame("between", 100, "sink = tg_step(n);", is_static=True)
        root = frame("tg_step", 100, "if (n > 1) sink = between(n - 1);", is_static=False)
        with pytest.raises(DeviceError, match=r"no bound: '(tg_step|between)' calls itself"):
            depth(toolchain, tmp_path, text + root)

    def test_a_frame_that_grows_has_no_bound(self, toolchain: Toolchain, tmp_path: Path) -> None:
        root = "int tg_step(int n)\n{\n    volatile char a[n];\n    a[n / 2] = 1;\n    return a[n / 3];\n}\n"
        with pytest.raises(DeviceError, match="the frame of 'tg_step' grows"):
            depth(toolchain, tmp_path, "int tg_step(int n);\n" + root)


@pytest.mark.parametrize("name", ["simplemlp", pytest.param("odd_cnn", marks=pytest.mark.slow)])
def test_a_painted_stack_of_the_host_is_as_deep_as_told(name: str, tmp_path: Path) -> None:
    """Vector kernels keep panels on it, clones of functions and all."""
    compiled = compiled_for(name, targets.get("host"))
    files = {**compiled.project.files, "main.c": (Path(__file__).parent / "painted.c").read_bytes()}
    write_files(tmp_path, files)
    program = build(host_toolchain(), tmp_path, files, "painted")
    done = subprocess.run([str(program), "weights.bin"], cwd=tmp_path, capture_output=True, text=True, check=True)
    told = stack_use(compiled).entries
    for entry, line in zip(("infer", "step", "update"), done.stdout.split(), strict=True):
        # On top are two frames of the test; at the bottom, what the deepest function did not need.
        assert 0.8 * told[entry] - red_zone_bytes() <= int(line) <= told[entry] + MOST_BESIDE, entry


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", zoo.names())
def test_a_step_on_siracusa_takes_less_than_2_kb(name: str, is_fused: bool) -> None:
    compiled = compiled_for(name, targets.get("siracusa"), ScheduleOptions(fuses_update=is_fused))
    told = stack_use(compiled)
    assert told.compiler == "riscv64-unknown-elf-gcc" and set(told.entries) == {"infer", "step", "update"}
    assert 0 < max(told.entries.values()) < LIMIT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cortex_m7", "riscv32", "riscv32v"])
def test_a_step_on_a_board_takes_less_than_half_its_stack(target: str) -> None:
    chip = targets.get(target)
    assert chip.board is not None
    if shutil.which(chip.board.compiler) is None:
        pytest.skip(f"no {chip.board.compiler}")
    told = stack_use(compiled_for("dscnn", chip))
    assert 0 < max(told.entries.values()) <= chip.board.stack_bytes // 2


def test_what_is_not_known_has_a_reason() -> None:
    for target, reason in (("opencl", "OpenCL"), ("mppa", "kvx-cos-gcc")):
        told = stack_use(compiled_for("simplemlp", targets.get(target)))
        assert reason in (told.reason or "") and not told.entries
        assert told.as_json()["step"] is None and reason in str(told)


def test_commands_report_it(tilegrad: CommandLine, tmp_path: Path) -> None:
    options = ("simplemlp", "--device", "host")
    inspected = tilegrad("inspect", *options, "--json", "-").json["stack"]
    compiled = tilegrad("compile", *options, "-o", str(tmp_path / "c"), "--json", "-").json["stack"]
    trained = tilegrad("train", *options, "--steps", "1", "--no-verify", "--json", "-").json["stack"]
    assert inspected == compiled == trained and trained["step"] > 0 and trained["reason"] is None
    line = f"infer {trained['infer']:,}, step {trained['step']:,}, update {trained['update']:,} ({trained['compiler']})"
    assert line in (tmp_path / "c" / "README.md").read_text(encoding="utf-8")
    assert line in tilegrad("inspect", *options).out
