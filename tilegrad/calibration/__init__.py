"""Kernel costs from evidence: kernels compiled for the chip, counted under QEMU, fitted to their loops' trip counts."""
