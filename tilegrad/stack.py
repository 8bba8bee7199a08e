"""The stack that a call of an entry takes on its target, from what the target's compiler tells of the generated C."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from tilegrad.build.frames import StackUse, deepest_bytes
from tilegrad.build.toolchain import Toolchain, host_toolchain, list_frames
from tilegrad.build.workspace import Workspace
from tilegrad.codegen.board import BARE_FOLDER, compile_flags
from tilegrad.compiled import Compiled
from tilegrad.devices import mppa
from tilegrad.devices.siracusa_build import CLUSTER_TOOLCHAIN, cluster_files
from tilegrad.errors import DeviceError
from tilegrad.ir.program import ENTRIES
from tilegrad.targets import base as targets
from tilegrad.targets.base import OPENCL_C, Target

Sources = tuple[Toolchain, Mapping[str, bytes]]
WORKER_ROOT = "tg_work"
NOT_OF_A_STEP = ("main.c", "weights.c", "weights.bin", "flash.c")


def stack_use(compiled: Compiled, *, use_cache: bool = True) -> StackUse:
    try:
        toolchain, files = _sources(compiled)
        if shutil.which(toolchain.compiler) is None:
            raise DeviceError(f"no {toolchain.compiler} here", stage="build")
        with closing(Workspace()) as workspace:
            listings = list_frames(toolchain, workspace.path, files, use_cache=use_cache)
        roots = [f"tg_{entry}" for entry in ENTRIES]
        worker = [WORKER_ROOT] if compiled.target.has_controller else []
        depths = deepest_bytes(listings, [*roots, *worker], _largest_rank(compiled))
    except DeviceError as error:
        return StackUse(reason=error.message)
    beside = red_zone_bytes() if toolchain == host_toolchain() else 0
    entries = {entry: depths[f"tg_{entry}"] + beside for entry in ENTRIES}
    return StackUse(entries, depths.get(WORKER_ROOT), Path(toolchain.compiler).name)


def red_zone_bytes() -> int:
    """What a function may use below its frame on this machine, by its binary interface."""
    return 128 if platform.machine() in ("x86_64", "AMD64") else 0


def _largest_rank(compiled: Compiled) -> int:
    """What calls itself does so for each dimension of a tensor."""
    graphs = compiled.program.entries.values()
    return max((tensor.rank for graph in graphs for tensor in graph.types.values()), default=1)


def _sources(compiled: Compiled) -> Sources:
    """What runs below an entry, and how it is compiled for the chip."""
    target = compiled.target
    if target.language == OPENCL_C:
        raise DeviceError("compilers of OpenCL C tell no stack", stage="build")
    if target.name in _CHIPS:
        return _CHIPS[target.name](compiled)
    if not target.is_flat:
        raise DeviceError(f"tilegrad does not know the compiler of '{target.name}'", stage="build")
    board = _like(target).board
    toolchain = host_toolchain() if board is None else Toolchain(board.compiler, compile_flags(board))
    files = _without(compiled.project.files, NOT_OF_A_STEP)
    if board is not None and target.board is None:  # its compiler may come without a C library
        files["bare/string.h"] = (BARE_FOLDER / "string.h").read_bytes()
    return toolchain, files


def _like(target: Target) -> Target:
    """A microcontroller without a name is compiled for as the board that it is most like."""
    return targets.get("cortex_m7") if target.folder.name == "mcu" and target.board is None else target


def _on_pulp(compiled: Compiled) -> Sources:
    return CLUSTER_TOOLCHAIN, cluster_files(compiled)


def _on_mppa(compiled: Compiled) -> Sources:
    files = _without(mppa.MppaDevice.files_for("mppa:iss", compiled), (*NOT_OF_A_STEP, "mppa/host.c"))
    return Toolchain(mppa.COMPILER, mppa.accelerator_flags()), files


_CHIPS: Mapping[str, Callable[[Compiled], Sources]] = {
    "siracusa": _on_pulp,
    "pulp_small": _on_pulp,
    "gap9": _on_pulp,
    "mppa": _on_mppa,
}


def _without(files: Mapping[str, bytes], names: tuple[str, ...]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name not in names}
