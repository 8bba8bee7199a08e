"""Microbenchmarks on iss:siracusa beside what the chip's cycle model measured (benchmarks/siracusa/*.csv)."""

from __future__ import annotations

import csv
import statistics
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tilegrad.calibration.counting import COMPILER

FOLDER = Path(__file__).parent / "siracusa"
FLAGS = tuple(
    "-O2 -mabi=ilp32 -ffreestanding -fno-builtin -fno-tree-loop-distribute-patterns -msmall-data-limit=0 "
    "-mcmodel=medany".split()
)
ALONE, NINTH, FOUR, EIGHT = 0x01, 0x100, 0x0F, 0xFF
L1, L2_WORD, ALIAS = 0x10000000, "micro_word", 0x00204000
LOOP_CYCLES = 60 - 2  # ten times a call, a decrement and a branch; less what the measured figures have beside the code
# Runs of the instruction cache about as large as it: so many copies, since replacement is in another state at each.
STATES, NEAR_BYTES = 4, 8192

_START = """
    .section .vectors,"ax"
    .globl _start
_start:
    csrr a0, 0xF14
    andi a1, a0, 0x1f
    srli a0, a0, 5
    li   t0, 31
    beq  a0, t0, 2f
    li   sp, 0x1003fff0
    slli t1, a1, 11
    sub  sp, sp, t1
    mv   a0, a1
    la   t0, cluster_main
    jr   t0
2:  la   t0, _bss_start
    la   t1, _bss_end
3:  sw   zero, 0(t0)
    addi t0, t0, 4
    bltu t0, t1, 3b
    la   sp, _fabric_stack
    call fabric_main
    li   t0, 0x1A1040A0
    li   t1, 0x80000000
    sw   t1, 0(t0)
4:  j    4b
    .data
    .balign 64
micro_word: .word 0
"""


@dataclass(frozen=True)
class Row:
    """One measured figure: `cycles` on the chip's cycle model, and how to get it here."""

    table: str
    what: str
    cores: int
    cycles: float
    body: str
    code: str = ""
    correction: int = 0

    @property
    def key(self) -> tuple[str, str, int]:
        return self.table, self.what, self.cores

    @property
    def who(self) -> str:
        names = {ALONE: "one core", NINTH: "ninth core", FOUR: "four cores", EIGHT: "eight cores"}
        return names[self.cores]


def _table(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


# ---- The programs. Registers: a0 the core, a1 the call, s-registers are not touched, t5 and t6 the counter.


def _timed(setup: str, sequence: str) -> str:
    return f"{setup}\n csrr t5, 0xB00\n{sequence}\n csrr t6, 0xB00\n sub a0, t6, t5\n ret\n"


def _times(count: int, text: str) -> str:
    return f" .rept {count}\n {text}\n .endr\n"


_NEAR = f" slli t0, a0, 6\n li a2, {L1:#x}\n add a2, a2, t0\n"  # all in one bank
_FAR = f" la a2, {L2_WORD}\n"
_UNITS = {
    "event unit (core alias)": ALIAS,
    "DMA status (core alias)": ALIAS + 0x404,
    "DMA status (peripheral bus)": 0x10201804,
    "uDMA register": 0x1A102000,
}


def _access(what: str) -> str | None:
    """The program of a row of access_costs.csv."""
    if what.startswith("nothing"):
        return _timed("", "")
    setup = _NEAR if "L1" in what else _FAR
    for unit, address in _UNITS.items():
        if unit in what:
            setup = f" li a2, {address:#x}\n"
    operation = "lw t0, 0(a2)"
    if "flw" in what:
        operation = "flw f0, 0(a2)"
    elif "lbu" in what:
        operation = "lbu t0, 0(a2)"
    elif "sw " in what:
        operation = "sw zero, 0(a2)"
    elif "addi" in what:
        operation = "lw t0, 0(a2)\n addi t0, t0, 1"
    return _timed(setup, _times(32, operation))


_FLOATS = "".join(f" fmv.w.x f{i}, zero\n" for i in range(12))
_INSTRUCTIONS: dict[str, tuple[str, str]] = {
    "128 fmadd.s, 4 independent": (
        _FLOATS,
        _times(32, "\n ".join(f"fmadd.s f{i}, f8, f9, f{i}" for i in range(4))),
    ),
    "128 vfmac.h (2 MAC each)": (
        _FLOATS,
        _times(32, "\n ".join(f".insn r 0x33, 2, 0x48, f{i}, f8, f9" for i in range(4))),
    ),
    "128 vfdotpex.s.h (2 MAC each)": (
        _FLOATS,
        _times(32, "\n ".join(f".insn r 0x33, 0, 0x4b, f{i}, f8, f9" for i in range(4))),
    ),
    "32 fmadd.s, one chain": (_FLOATS, _times(32, "fmadd.s f0, f8, f9, f0")),
    "32 flw L1 into one register": (
        " li a2, 0x10000000\n slli t0, a0, 2\n add a2, a2, t0\n",
        _times(32, "flw f0, 0(a2)"),
    ),
    "32 flw L1 into 4 registers": (
        " li a2, 0x10000000\n slli t0, a0, 2\n add a2, a2, t0\n",
        _times(8, "\n ".join(f"flw f{i}, 0(a2)" for i in range(4))),
    ),
    "8 x (4 flw, 2 fmadd)": (
        _FLOATS + " li a2, 0x10000000\n slli t0, a0, 2\n add a2, a2, t0\n",
        _times(
            8, "\n ".join(f"flw f{i}, 0(a2)" for i in range(4)) + "\n fmadd.s f8, f0, f1, f8\n fmadd.s f9, f0, f1, f9"
        ),
    ),
    "32 (flw, fadd of it)": (
        _FLOATS + " li a2, 0x10000000\n slli t0, a0, 2\n add a2, a2, t0\n",
        _times(32, "flw f0, 0(a2)\n fadd.s f1, f1, f0"),
    ),
    "32 p.lw post-increment": (
        " li a3, 0x10000000\n slli t0, a0, 2\n add a3, a3, t0\n",
        " mv a2, a3\n" + _times(32, ".insn i 0x0b, 2, t0, a2, 4"),
    ),
    "32 fmv.w.x": ("", _times(32, "fmv.w.x f0, zero")),
    "loop of 64: addi, bnez": ("", " li t0, 64\n1: addi t0, t0, -1\n bnez t0, 1b\n"),
    "hardware loop of 64: 2 addi": (
        " li t0, 64\n",
        " .insn i 0x7b, 4, x0, t0, 4\n addi t1, t1, 1\n addi t1, t1, 1\n",
    ),
}


def _region(label: str, instructions: int, compressed: bool) -> str:
    """Straight-line code that returns through t4."""
    mode, nop = ("rvc", "c.nop") if compressed else ("norvc", "nop")
    end = "c.jr t4" if compressed else "jr t4"
    return (
        f" .option {mode}\n .balign 64\n{label}:\n .rept {instructions - 1}\n {nop}\n .endr\n {end}\n .option norvc\n"
    )


def _access_rows() -> Iterator[Row]:
    for row in _table("access_costs.csv"):
        cores = ALONE if row["who"].startswith("core 0") else NINTH if row["who"].startswith("ninth") else EIGHT
        body = _access(row["what"])
        if body is not None:
            yield Row("access_costs", row["what"], cores, float(row["cycles"]), body)


def _instruction_rows() -> Iterator[Row]:
    for row in _table("instructions.csv"):
        if row["what"] in _INSTRUCTIONS:
            cores = {"1": ALONE, "4": FOUR, "8": EIGHT}[row["who"][0]]
            yield Row("instructions", row["what"], cores, float(row["cycles"]), _timed(*_INSTRUCTIONS[row["what"]]))


def _cold_rows() -> Iterator[Row]:
    for i, row in enumerate(_table("cold_calls.csv")):
        cores = ALONE if row["who"] == "core 0" else NINTH
        count = int(row["callee_instructions"])
        code = "".join(_region(f"cold{i}_{call}", count, False) for call in range(4)) + _region(
            f"warm{i}", count, False
        )
        fresh = "".join(f" la t0, cold{i}_{call}\n li t1, {call}\n beq a1, t1, 1f\n" for call in range(4)) + "1:\n"
        what = f"call of {row['callee_bytes']} bytes"
        call = " jalr t4, 0(t0)\n"
        # Measured: with the loads of the pointer before it.
        yield Row(
            "cold_calls",
            f"{what}, never run",
            cores,
            float(row["first_call_ever_cycles"]),
            _timed(fresh, call),
            code,
            3,
        )
        yield Row(
            "cold_calls",
            f"{what}, warm",
            cores,
            float(row["warm_call_cycles"]),
            _timed(f" la t0, warm{i}\n", call),
            "",
            3,
        )


def _cache_rows() -> Iterator[Row]:
    for i, row in enumerate(_table("icache_runs.csv")):
        cores = {("1", "workers"): ALONE, ("1", "ninth"): NINTH, ("8", "workers"): EIGHT}.get(
            (row["cores"], row["core"])
        )
        if cores is None or int(row["bytes"]) < 1024:
            continue
        # As measured: once after a flush, once more, then ten times in a loop.
        rounds = " li t0, 10\n li t1, 3\n beq a1, t1, 2f\n li t0, 1\n bnez a1, 2f\n li a0, 0\n ret\n2:\n"
        what = f"{row['bytes']} bytes{' compressed' if row['compressed'] == '1' else ''}, ten rounds"
        for copy in range(STATES if int(row["bytes"]) <= NEAR_BYTES else 1):
            name = f"region{i}_{copy}"
            code = _region(name, int(row["instructions"]) // 10, row["compressed"] == "1")
            timed = _timed(rounds, f"1: jal t4, {name}\n addi t0, t0, -1\n bnez t0, 1b\n")
            yield Row("icache_runs", what, cores, float(row["cycles_mean"]), timed, code, -LOOP_CYCLES)


def _transfer(inward: bool, size: int) -> str:
    """Starts a transfer; t0 to t3 are used."""
    command = size | 1 << 18 | (1 << 17 if inward else 0)
    return (
        f" li a2, {ALIAS + 0x400:#x}\n li t1, {command:#x}\n li t2, 0x10010000\n la t3, transfer_area\n lw a3, 0(a2)\n"
        " sw t1, 0(a2)\n sw t2, 0(a2)\n sw t3, 0(a2)\n"
    )


_SETTLE = " li t0, 1\n sll t0, t0, a3\n2: lw t1, 4(a2)\n and t1, t1, t0\n bnez t1, 2b\n sw t0, 4(a2)\n"


def _behind_rows() -> Iterator[Row]:
    for row in _table("l2_behind_dma.csv"):
        inward, size = row["transfer"] == "L2 to L1", int(row["bytes"])
        what = f"L2 load behind {size} bytes {row['transfer']}"
        start = f" la t4, {L2_WORD}\n" + _transfer(inward, size)
        delay = " .rept 20\n nop\n .endr\n"  # as far behind the start as it was measured
        body = f"{start}{delay} csrr t5, 0xB00\n lw t0, 0(t4)\n csrr t6, 0xB00\n{_SETTLE} sub a0, t6, t5\n ret\n"
        yield Row("l2_behind_dma", what, ALONE, float(row["load_0_cycles_after_push"]), body)


def all_rows() -> list[Row]:
    makers: tuple[Callable[[], Iterator[Row]], ...] = (
        _access_rows,
        _instruction_rows,
        _cold_rows,
        _cache_rows,
        _behind_rows,
    )
    return [row for make in makers for row in make()]


# ---- Building and running.


def _source(rows: list[Row]) -> str:
    bodies = "".join(f" .balign 16\ncase{i}:\n{row.body}{row.code}" for i, row in enumerate(rows))
    entries = "".join(f" .word case{i}, {row.cores}\n" for i, row in enumerate(rows))
    table = (
        f" .section .rodata\n .balign 4\n .globl cases, case_count\ncases:\n{entries}case_count: .word {len(rows)}\n"
    )
    area = " .bss\n .balign 64\ntransfer_area: .space 131072\n"
    return f"{_START}\n .text\n .option norvc\n{bodies}{table}{area}"


def build(rows: list[Row], folder: Path) -> Path:
    (folder / "cases.S").write_text(_source(rows), encoding="utf-8")

    def run(*arguments: str) -> None:
        done = subprocess.run([COMPILER, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"the microbenchmarks cannot be built:\n{done.stderr}")

    run(*FLAGS, "-march=rv32im_zicsr", "-c", str(FOLDER / "micro_fabric.c"), "-o", "micro_fabric.o")
    run(*FLAGS, "-march=rv32imf_zicsr", "-c", str(FOLDER / "micro.c"), "-o", "micro.o")
    run(*FLAGS, "-march=rv32imfc_zicsr", "-c", "cases.S", "-o", "cases.o")
    link = ("-march=rv32im", "-mabi=ilp32", "-nostdlib", "-nostartfiles", "-Wl,--no-warn-rwx-segments")
    run(*link, "-T", str(FOLDER / "micro.ld"), "micro.o", "cases.o", "micro_fabric.o", "-lgcc", "-o", "micro.elf")
    return folder / "micro.elf"


@dataclass(frozen=True)
class Found:
    """What a row takes here: the median of its calls, the least and the most.

    Between them lie the states in which the replacement of the caches was.
    """

    cycles: float
    least: float
    most: float

    def error(self, row: Row) -> float:
        return self.cycles / row.cycles - 1.0

    def beyond(self, row: Row) -> float:
        """How far the measured figure is outside of all calls, as a share of it."""
        return min(max(row.cycles, self.least), self.most) / row.cycles - 1.0


def measure(simulator: Path, folder: Path) -> list[tuple[Row, Found]]:
    """Each row, and what it takes here: on the slowest core, or the mean of all, as the figures are."""
    rows = all_rows()
    command = [str(simulator), str(build(rows, folder)), "--limit", "2000000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the microbenchmarks failed:\n{done.stderr}")
    lines = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    count = len(lines) // len(rows)
    taken: dict[tuple[str, str, int], list[float]] = {}
    for i, row in enumerate(rows):
        # Of code that was never run, or was run twice, only the first call that counts is such a one.
        calls = lines[i * count : i * count + (1 if row.table in ("cold_calls", "icache_runs") else count)]
        taken.setdefault(row.key, []).extend(_statistic(row, call) + row.correction for call in calls)
    own = {row.key: row for row in rows}
    return [(own[key], Found(statistics.median(each), min(each), max(each))) for key, each in taken.items()]


def _statistic(row: Row, call: list[int]) -> float:
    own = [cycles for core, cycles in enumerate(call) if row.cores >> core & 1]
    return sum(own) / len(own) if row.table == "icache_runs" else max(own)
