"""The compiler of the RV32 chips, and the flags that their kernels are built and counted with."""

from __future__ import annotations

COMPILER = "riscv64-unknown-elf-gcc"
# Those of the calibration set, but nothing is vectorised: the core has no vectors, and gcc would move bytes by the word
# where addresses happen to be aligned.
FLAGS = tuple(
    (
        "-std=c99 -O2 -march=rv32imfc_zicsr -mabi=ilp32 -ffp-contract=off -ffreestanding -fno-builtin -fno-math-errno "
        "-fno-tree-loop-distribute-patterns -fno-tree-vectorize -msmall-data-limit=0 -mcmodel=medany -mno-relax"
    ).split()
)
# Counted is the same code with every instruction four bytes long: the plugin tells classes by those words.
COUNTED_FLAGS = tuple(flag.replace("rv32imfc", "rv32imf") for flag in FLAGS)
