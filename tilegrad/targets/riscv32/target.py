"""RV32IMAFC harts on QEMU's `virt` board: one memory, shared, no caches to look after."""

from tilegrad.targets.base import RAM, Memory, Target
from tilegrad.targets.board import MIB, Bank, Board

BOARD = Board(
    code=Bank("CODE", 0x8000_0000, 2 * MIB),
    banks=(Bank("RAM", 0x8020_0000, 62 * MIB),),
    stack_bytes=8192,
    start="start_riscv.c",
    tools=(("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf"),),
    # Not with _zicsr: Debian's gcc then takes the 64-bit libraries.
    flags=("-march=rv32imafc", "-mabi=ilp32f", "-mcmodel=medany"),
    link_flags=("-lgcc",),
)

TARGET = Target(
    name="riscv32",
    summary="RV32IMAFC: 1 to 8 harts, 62 MB of flat RAM, portable kernels",
    memories=(Memory(RAM, capacity_bytes=BOARD.ram_bytes, alignment_bytes=16),),
    home=RAM,
    compute=RAM,
    cores=8,
    fpus=8,
    board=BOARD,
)
