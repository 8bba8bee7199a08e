"""Boards as parameters of tests: those that are not here are skipped by name, with the reason."""

from __future__ import annotations

import pytest

from tilegrad.devices.qemu import MACHINES, QemuDevice

RISCV, VECTORS = "qemu:riscv32", "qemu:riscv32v"
CORTEX_M = ("qemu:mps2-an500", "qemu:mps3-an547")


def board(name: str, *more: object) -> object:
    reason = QemuDevice.missing(name)
    marks = [] if reason is None else [pytest.mark.skip(reason=f"{name}: {reason}")]
    return pytest.param(name, *more, id="-".join(map(str, (name, *more))), marks=marks)


every_board = pytest.mark.parametrize("name", [board(name) for name in MACHINES])
every_cortex_m = pytest.mark.parametrize("name", [board(name) for name in CORTEX_M])
every_way = pytest.mark.parametrize(
    ("name", "cores"),
    [
        *(board(RISCV, cores) for cores in (1, 3, 8)),
        *(board(VECTORS, cores) for cores in (1, 8)),
        *(board(name, 1) for name in CORTEX_M),
    ],
)
