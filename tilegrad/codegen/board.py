"""What a board adds to the C project: a start, a linker script, and what the Makefile needs to give an image."""

from __future__ import annotations

from pathlib import Path

from tilegrad.build.toolchain import PORTABLE_FLAGS
from tilegrad.codegen.texts import runtime_text
from tilegrad.ir.plan import Plan
from tilegrad.ops.kernels import RUNTIME_FOLDER
from tilegrad.place.board import place
from tilegrad.targets.board import Board

IMAGE = "image.elf"
SCRIPT = "link.ld"
BARE_FOLDER = RUNTIME_FOLDER / "bare"

_SHARED = ("string.h", "tg_bare.h", "tg_memory.c", "tg_port.h", "tg_semihost.c")
_CPPFLAGS = ("-I.", "-Ibare", "-DTG_BARE")
_FREESTANDING = ("-ffreestanding", "-ffunction-sections", "-fdata-sections")


def compile_flags(board: Board) -> tuple[str, ...]:
    return (*PORTABLE_FLAGS, *_FREESTANDING, *board.flags, *_CPPFLAGS)


def link_flags(board: Board) -> tuple[str, ...]:
    """Behind the objects."""
    return ("-nostdlib", "-Wl,--gc-sections", "-T", SCRIPT, *board.link_flags)


def board_files(plan: Plan, board: Board) -> dict[str, str]:
    """By path."""
    names = (*_SHARED, board.start)
    return {**{f"bare/{name}": runtime_text(f"bare/{name}") for name in names}, SCRIPT: _linker_script(plan, board)}


def makefile_values(board: Board) -> dict[str, str]:
    return {
        "compiler": board.compiler,
        "cflags": " ".join((*PORTABLE_FLAGS, *_FREESTANDING, *board.flags)),
        "cppflags": " ".join(_CPPFLAGS),
        "linker": " ".join(board.linker) or "$(CC) $(CFLAGS)",
        "link_flags": " ".join(link_flags(board)),
        "bare": " ".join(f"bare/{name[:-2]}.o" for name in (*_SHARED, board.start) if name.endswith(".c")),
    }


def _linker_script(plan: Plan, board: Board) -> str:
    """Code and constants in one bank, each part of the RAM in the one it was given.

    Code that calls kernels lies together, so that a counter of instructions can tell it from kernels.
    """
    target = plan.schedule.target
    placement = place(plan.schedule, board, plan.state_bytes, plan.arena_bytes)
    memories = [
        f"    {bank.name} : ORIGIN = {bank.start:#010x}, LENGTH = {bank.size_bytes}"
        for bank in (board.code, *board.banks)
    ]
    callers = ("main", "model", Path(board.start).stem, "tg_semihost")
    values = {
        "target": target.name,
        "memories": "\n".join(memories),
        "stack_bytes": board.stack_bytes,
        "cores": target.cores,
        "callers": " ".join(f"*{name}.o(.text .text.*)" for name in callers),
        "alignment": plan.alignment_bytes,
        "code": board.code.name,
        "data": placement.data.name,
        "state": placement.state.name,
        "arena": placement.arena.name,
    }
    return runtime_text("bare/link.ld", values=values)
