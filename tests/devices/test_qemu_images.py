"""Images of boards: what is in them, where it lies, how much they take, and what happens where they cannot be made."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.devices.boards import CORTEX_M, RISCV, VECTORS, board, every_board, every_cortex_m
from tests.devices.conformance import CRASH, Subject, faulty
from tests.support.command_line import CommandLine
from tests.support.projects import batch
from tilegrad.codegen.board import IMAGE
from tilegrad.devices.elf import ElfFile, Section
from tilegrad.devices.qemu import MACHINES, QemuDevice
from tilegrad.errors import DeviceError, DoesNotFit
from tilegrad.ops.kernels import RUNTIME_FOLDER
from tilegrad.targets import base as targets
from tilegrad.targets.board import Bank, Board, Placement

KIB = 1024
FLASH_LIMIT_BYTES = 24 * KIB
FMA = {RISCV: "fmadd.s", VECTORS: "vfmacc.vf", CORTEX_M[0]: "vfma.f32", CORTEX_M[1]: "vfma.f32"}


def board_of(name: str) -> Board:
    found = targets.get(QemuDevice.target_of(name)).board
    assert found is not None
    return found


def disassembly(name: str, image: Path) -> str:
    prefix = (board_of(name).linker or (board_of(name).compiler,))[0].removesuffix("gcc")
    # Debian's binutils name vector instructions only when told that there are any.
    vectors = ("-M", "numeric") if name == VECTORS else ()
    done = subprocess.run([f"{prefix}objdump", "-d", *vectors, image], capture_output=True, text=True, check=True)
    return done.stdout


def built(name: str, model: str, folder: Path) -> ElfFile:
    QemuDevice(name).build(Subject(name).program(model), folder)
    return ElfFile(folder / IMAGE)


# ---- what is in an image


@every_board
def test_an_image_lies_in_the_boards_memory(name: str, tmp_path: Path) -> None:
    elf = built(name, "odd_cnn", tmp_path)
    board, compiled = board_of(name), Subject(name).program("odd_cnn")

    def bank(section: Section) -> Bank:
        end = section.address + section.size_bytes
        return next(
            b for b in (board.code, *board.banks) if b.start <= section.address and end <= b.start + b.size_bytes
        )

    held = {part: elf.sections[part] for part in (".text", ".data", ".bss", ".stacks", ".state", ".arena")}
    assert bank(held[".text"]) == board.code
    filled = [section for part, section in held.items() if part != ".text" and section.size_bytes]
    assert len(filled) >= 4 and all(bank(section) in board.banks for section in filled)
    assert held[".state"].size_bytes == compiled.plan.state_bytes
    assert held[".arena"].size_bytes == compiled.plan.arena_bytes
    assert held[".state"].address % compiled.plan.alignment_bytes == 0
    spans = sorted((section.address, section.address + section.size_bytes) for section in held.values())
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))


@every_board
def test_an_image_computes_with_fma_and_without_doubles(name: str, tmp_path: Path) -> None:
    elf = built(name, "attention", tmp_path)
    symbols = elf.symbols()
    assert "tg_softmax" in symbols and not {"fmaf", "fma", "sqrtf", "expf", "malloc", "printf"} & set(symbols)
    # Of libgcc: arithmetic on double.
    assert not [s for s in symbols if s.startswith(("__adddf", "__muldf", "__aeabi_d", "__extendsf", "__truncdf"))]
    text = disassembly(name, tmp_path / IMAGE)
    assert FMA[name] in text
    assert "fmadd.d" not in text and ".f64" not in text
    # Vectors of floats on a Cortex-M55 flush subnormals.
    assert re.search(r"v\w+\.f32\s+q", text) is None


@every_cortex_m
@pytest.mark.parametrize("model", ["simplemlp", "autoencoder_tiny", "odd_cnn"])
def test_ram_is_what_was_predicted(name: str, model: str, tmp_path: Path) -> None:
    compiled = Subject(name).program(model)
    image = QemuDevice(name).build(compiled, tmp_path)
    predicted = compiled.plan.memory["RAM"].used_bytes
    assert image.sections.ram_bytes == predicted


@every_cortex_m
def test_code_is_small(name: str, tmp_path: Path) -> None:
    """Of autoencoder_tiny, at -O2, kernels and harness included, weights apart."""
    assert "-O2" in board_of(name).flags
    image = QemuDevice(name).build(Subject(name).program("autoencoder_tiny"), tmp_path)
    assert image.sections.text_bytes <= FLASH_LIMIT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", [board("qemu:mps2-an500")])
def test_the_stack_is_large_enough(name: str, tmp_path: Path) -> None:
    """No kernel takes more than a quarter, as the compiler tells; above it are a handful of small frames."""
    found = board_of(name)
    for source in sorted((RUNTIME_FOLDER.parent / "ops").glob("*.c")):
        include = (f"-I{RUNTIME_FOLDER}", f"-I{RUNTIME_FOLDER / 'bare'}")
        command = [found.compiler, "-ffreestanding", *found.flags, *include, "-fstack-usage", "-c", str(source)]
        subprocess.run([*command, "-o", f"{source.stem}.o"], cwd=tmp_path, check=True, timeout=120)
    used = [line.split("\t") for path in tmp_path.glob("*.su") for line in path.read_text().splitlines()]
    assert len(used) > 100 and all(kind.startswith("static") for _, _, kind in used)
    assert max(int(frame) for _, frame, _ in used) <= found.stack_bytes // 4


# ---- the folder


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@every_board
def test_the_folder_makes_the_same_image(name: str, tmp_path: Path, tilegrad: CommandLine) -> None:
    told = tilegrad("compile", "simplemlp", "--device", name, "-o", tmp_path / "out", "--json", "-").json
    image = tmp_path / "out" / IMAGE
    assert IMAGE in told["files"] and told["image"]["text_bytes"] == ElfFile(image).sections[".text"].size_bytes
    given = {name: section.size_bytes for name, section in ElfFile(image).sections.items() if section.address}
    image.unlink()
    done = subprocess.run(["make", "-s", "-C", tmp_path / "out"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {n: s.size_bytes for n, s in ElfFile(image).sections.items() if s.address} == given


# ---- what does not fit


sizes = st.integers(1, 64)


@given(banks=st.lists(sizes, min_size=1, max_size=3), data=sizes, state=sizes, arena=sizes)
def test_placement_fills_no_bank_twice(banks: list[int], data: int, state: int, arena: int) -> None:
    """Against all ways there are: a placement is found if and only if one exists."""
    parts = tuple(Bank(f"B{i}", i << 20, size) for i, size in enumerate(banks))
    tried = Board(parts[0], parts, 0, "", (), (), ())

    def fits(placement: Placement) -> bool:
        held = dict.fromkeys(parts, 0)
        for bank, size in ((placement.data, data), (placement.state, state), (placement.arena, arena)):
            held[bank] += size
        return all(size <= bank.size_bytes for bank, size in held.items())

    possible = any(fits(Placement(parts[0], s, a)) for s in parts for a in parts)
    if possible:
        assert fits(tried.place(data, state, arena))
    else:
        with pytest.raises(DoesNotFit, match="banks of RAM"):
            tried.place(data, state, arena)


def test_what_does_not_fit_is_refused_with_the_budget(tilegrad: CommandLine) -> None:
    for command in (("inspect", "resnet8"), ("train", "resnet8")):
        result = tilegrad(*command, "--batch", "64", "--device", "qemu:mps3-an547")
        assert result.status == 2
        assert "does not fit into RAM of cortex_m55" in result.err and "at most 6815744 bytes" in result.err
    # Enough RAM in all, but no bank that holds the state.
    result = tilegrad("inspect", "autoencoder", "--optimizer", "adam", "--accum", "2", "--device", "qemu:mps3-an547")
    assert result.status == 2
    assert "banks of RAM" in result.err and "2097152 bytes of SRAM, 4194304 bytes of ISRAM" in result.err


def test_more_cores_than_there_are(tilegrad: CommandLine) -> None:
    result = tilegrad("train", "simplemlp", "--device", RISCV, "--cores", "9")
    assert result.status == 2 and "expected: 1 to 8" in result.err


# ---- tools


@pytest.mark.parametrize("name", MACHINES)
def test_missing_tools_are_named_with_their_packages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    reason = QemuDevice.missing(name)
    machine = MACHINES[name]
    assert reason is not None and reason.startswith(f"no {board_of(name).compiler} and no ")
    wanted = [package for _, package in board_of(name).tools] + [machine.package]
    assert reason.endswith(f"(Debian: apt-get install {' '.join(wanted)})")


@pytest.mark.parametrize("name", [board("qemu:mps3-an547")])
def test_code_that_does_not_fit_is_refused_with_the_budget(name: str, tmp_path: Path) -> None:
    compiled = faulty(
        Subject(name).program("simplemlp"),
        "    static const char large[600000] = {1};\n    (void)*(volatile const char *)large;\n",
    )
    with pytest.raises(DoesNotFit, match="does not fit into ITCM") as caught:
        QemuDevice(name).build(compiled, tmp_path)
    assert caught.value.expected == f"at most {512 * KIB} bytes"


@pytest.mark.parametrize("name", MACHINES)
def test_an_image_needs_its_compiler(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    package = board_of(name).tools[0][1]
    with pytest.raises(DeviceError, match=f"no {board_of(name).compiler} .*apt-get install {package}"):
        QemuDevice(name).build(Subject(name).program("simplemlp"), tmp_path)


@every_board
def test_a_compiler_that_fails_is_quoted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin" / board_of(name).compiler
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho out of cheese >&2\nexit 7\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    with pytest.raises(DeviceError, match="failed with status 7") as caught:
        QemuDevice(name, use_cache=False).build(Subject(name).program("simplemlp"), tmp_path)
    assert "out of cheese" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [board(RISCV, "trap: mcause 0x00000003"), *(board(name, "fault: pc 0x0000") for name in CORTEX_M)],
)
def test_a_crash_says_where(name: str, words: str) -> None:
    compiled = faulty(Subject(name).program("simplemlp"), CRASH)
    with Subject(name).open() as device:
        session = device.load(compiled)
        session.step(*batch(compiled))
        with pytest.raises(DeviceError, match=r"ended before it answered \(status 3\)") as caught:
            session.update()
    assert words in str(caught.value)
