"""Small bare-metal programs for Siracusa, in assembly: what a model of the chip must notice."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.devices.siracusa import tool
from tilegrad.devices.embedded import Image, Sections

_LINK = """
ENTRY(_start)
MEMORY { PRIVATE1 : ORIGIN = 0x1c008000, LENGTH = 0x8000
         SHARED   : ORIGIN = 0x1c010000, LENGTH = 0x1f0000 }
SECTIONS { .vectors : { *(.vectors) } > PRIVATE1
           .text : { *(.text) } > SHARED
           .data : { *(.data) } > SHARED }
"""

_START = """
    .section .vectors,"ax"
    .globl _start, fabric_waits
_start:
    csrr a0, 0xF14
    andi a1, a0, 31
    srli a0, a0, 5
    li   t0, 31
    beq  a0, t0, 1f
    li   sp, 0x1003ff00
    slli t0, a1, 8
    sub  sp, sp, t0
    la   t0, cluster
    jr   t0
1:  li   t1, 0x10200020
    li   t0, 1
    sw   t0, 0(t1)
    li   t1, 0x10201400
    li   t0, -1
    sw   t0, 0(t1)
    li   t1, 0x10200040
    la   t0, _start
    .rept 9
    sw   t0, 0(t1)
    addi t1, t1, 4
    .endr
    li   t1, 0x10200008
    li   t0, {cores}
    sw   t0, 0(t1)
{fabric}
fabric_waits:
    la   t1, is_over
    lw   t0, 0(t1)
    beqz t0, fabric_waits
    li   t1, 0x1a1040a0
    li   t0, 0x80000000
    or   t0, t0, s0
    sw   t0, 0(t1)
2:  j    2b

    .data
    .globl is_over
is_over: .word 0

    .text
    .globl cluster
    .option norvc
cluster:
"""

BARRIER = """
    li   s1, 0x00204000
    li   t0, 0x50000
    sw   t0, 0(s1)
    li   t0, {cores}
    sw   t0, 0x200(s1)
    sw   t0, 0x20c(s1)
"""
WAIT = "    .insn i 0x03, 6, a0, s1, 0x21c\n"
OVER = "    la t1, is_over\n    li t0, 1\n    sw t0, 0(t1)\n1:  j 1b\n"


def program(
    folder: Path, cluster: str, *, cores: int = 1, fabric: str = "    li s0, 0", march: str = "rv32imfc"
) -> Image:
    """An image whose fabric controller starts `cores` (a mask) at `cluster` and exits with s0 when `is_over` is set."""
    source, script, image = (folder / name for name in ("program.S", "program.ld", "program.elf"))
    source.write_text(_START.replace("{cores}", str(cores)).replace("{fabric}", fabric) + cluster)
    script.write_text(_LINK)
    flags = [f"-march={march}_zicsr", "-mabi=ilp32", "-nostdlib", "-nostartfiles", "-Wl,--no-warn-rwx-segments"]
    command = [tool("riscv64-unknown-elf-gcc"), *flags, "-T", str(script), str(source), "-o", str(image)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Image(image, Sections(0, 0, 0, 0))
