"""The board of `riscv32` with vectors of 256 bits: products of its own, and what clang makes of the other loops.

Vectors run over independent outputs, and nothing allows a compiler to reassociate a sum: the bits are those of the
other boards.
"""

from dataclasses import replace

from tilegrad.targets.riscv32.target import BOARD as SCALAR_BOARD
from tilegrad.targets.riscv32.target import TARGET as SCALAR

VECTOR_BITS = 256

BOARD = replace(
    SCALAR_BOARD,
    tools=(("clang", "clang"), *SCALAR_BOARD.tools),
    flags=(
        "--target=riscv32-unknown-elf",
        "-march=rv32imafcv",
        "-mabi=ilp32f",
        "-mcmodel=medany",
        "-mllvm",
        f"-riscv-v-vector-bits-min={VECTOR_BITS}",
    ),
    linker=(SCALAR_BOARD.compiler, *SCALAR_BOARD.flags),
)

TARGET = replace(
    SCALAR,
    name="riscv32v",
    summary=f"RV32IMAFCV: 1 to 8 harts with vectors of {VECTOR_BITS} bits, 62 MB of flat RAM",
    runtime="riscv32",
    board=BOARD,
)
