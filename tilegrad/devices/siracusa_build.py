"""Links a bare-metal image. The fabric controller has no floating point, so its code is compiled by itself."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tilegrad.build.folder import write_files
from tilegrad.build.frames import deepest_bytes
from tilegrad.build.riscv import COMPILER
from tilegrad.build.riscv import FLAGS as COUNTED_FLAGS
from tilegrad.build.toolchain import Toolchain, build, list_frames
from tilegrad.build.workspace import Workspace
from tilegrad.compiled import Compiled
from tilegrad.devices.elf import ElfFile
from tilegrad.devices.embedded import Image, Sections
from tilegrad.devices.siracusa_program import CHIP_FOLDER, Expected, image_files
from tilegrad.errors import DeviceError, DoesNotFit
from tilegrad.targets.base import L1, L2
from tilegrad.targets.siracusa.target import L2_SHARED_BYTES

IMAGE = "image.elf"
PACKAGE = "gcc-riscv64-unknown-elf"
STACK_BYTES = 0x1000
CONTROLLER_CORE = 8
_FABRIC = "fabric.o"
_FABRIC_SOURCES = ("chip/fabric.c", "chip/image.c", "chip/start.S", "chip/stored.S")
_NOT_OF_THE_IMAGE = ("main.c", "ports.h", "tg_sim.c", "weights.c", "weights.bin")

_WARNINGS_AND_PATHS = ("-Wall", "-Wextra", "-Werror", "-I.", "-Ichip")
# What runs was counted with these flags, but for the innermost loops that only the chip can run (tg_inner.h), and that
# the linker shortens calls and addresses: every line of code that is in no cache costs 19 cycles.
# Every address is below 2 GB: constants beside each other share the upper half of theirs, which `medany` computes
# for each again, some twenty times for an element of `tg_erf`. Each function is a section, so that the linker leaves
# out those that another file has, too.
_CHANGED = {"-mcmodel=medany": "-mcmodel=medlow"}
CLUSTER_FLAGS = (
    *(_CHANGED.get(flag, flag) for flag in COUNTED_FLAGS if flag != "-mno-relax"),
    *_WARNINGS_AND_PATHS,
    *("-DTG_XPULP", "-ffunction-sections"),
)
CLUSTER_TOOLCHAIN = Toolchain(COMPILER, CLUSTER_FLAGS)
FABRIC_FLAGS = (*CLUSTER_FLAGS, "-mno-relax", "-Os", "-march=rv32im_zicsr")
# With the extensions named in full, Debian's gcc takes the 64-bit libgcc.
_LINK_FLAGS = (
    *("-march=rv32im", "-nostdlib", "-nostartfiles", "-Wl,--no-warn-rwx-segments", "-Wl,--gc-sections"),
    *("-T", "chip/link.ld"),
)


class CodeTooLarge(DoesNotFit):
    """Tensors leave too little of L2 to the code; `room_bytes` of it would be left for tensors."""

    room_bytes: int = 0


def missing_compiler() -> str | None:
    return None if shutil.which(COMPILER) else f"no {COMPILER} (Debian: apt-get install {PACKAGE})"


def folder_files(compiled: Compiled, steps: int, expected: Expected | None) -> dict[str, bytes]:
    """Everything that an image is made of, and the Makefile that makes it; what only a simulator needs is left out."""
    files = {name: data for name, data in compiled.project.files.items() if name not in _NOT_OF_THE_IMAGE}
    files |= image_files(compiled, steps, expected)
    files["Makefile"] = _makefile(compiled, files).encode()
    files["README.md"] = _readme(compiled, steps, expected).encode()
    return dict(sorted(files.items()))


def cluster_files(compiled: Compiled) -> dict[str, bytes]:
    """What runs on the cluster below an entry: the model, its kernels, the tile runtime, and the chip's drivers."""
    files = {name: data for name, data in compiled.project.files.items() if name not in _NOT_OF_THE_IMAGE}
    names = ("tg_chip.c", *(path.name for path in CHIP_FOLDER.glob("*.h")))
    return {**files, **{f"chip/{name}": (CHIP_FOLDER / name).read_bytes() for name in names}}


def build_image(compiled: Compiled, folder: Path, files: Mapping[str, bytes], *, use_cache: bool = True) -> Image:
    """Writes `folder_files` below an existing folder and links them there."""
    reason = missing_compiler()
    if reason is not None:
        raise DeviceError(f"an image for Siracusa cannot be built: {reason}", stage="build")
    write_files(folder, files)
    fabric = {name: data for name, data in files.items() if name in _FABRIC_SOURCES or name.endswith(".h")}
    cluster = {name: data for name, data in files.items() if name not in _FABRIC_SOURCES}
    build(Toolchain(COMPILER, FABRIC_FLAGS, ("-r", "-nostdlib")), folder, fabric, _FABRIC, use_cache=use_cache)
    try:
        path = build(
            replace(CLUSTER_TOOLCHAIN, link_flags=(_FABRIC, *_link_flags(compiled))),
            folder,
            cluster,
            IMAGE,
            use_cache=use_cache,
        )
    except DeviceError as error:
        raise _explained(error, compiled) from error
    _check_stacks(compiled, path, cluster, use_cache=use_cache)
    return Image(path, _sections(path))


def _check_stacks(compiled: Compiled, image: Path, cluster: Mapping[str, bytes], *, use_cache: bool) -> None:
    """A large frame may reach beyond a guard zone and leave it as it was, so what the compiler tells of the deepest way
    is held to the stacks, too. What it knows no bound of is left to the guard zones."""
    symbols = ElfFile(image).symbols()
    graphs = compiled.program.entries.values()
    rank = max((tensor.rank for graph in graphs for tensor in graph.types.values()), default=1)
    with closing(Workspace()) as workspace:
        listings = list_frames(CLUSTER_TOOLCHAIN, workspace.path, cluster, use_cache=use_cache)
    entered = max(listing.frames.get("cluster_main") or 0 for listing in listings)
    for who, root in (("conductor", "run_program"), ("worker", "tg_work")):
        try:
            deepest = deepest_bytes(listings, [root], rank)[root] + entered
        except DeviceError:
            continue
        room = symbols[f"_{who}_stack_bytes"].address - symbols["_guard_bytes"].address
        if deepest > room:
            raise DoesNotFit(
                f"the stack of the {who} does not fit into L1's part for stacks",
                stage="build",
                expected=f"at most {room} bytes",
                got=f"{deepest} bytes, by {COMPILER}",
                hint="a kernel with large arrays of its own needs them in its operands",
            )


def _link_flags(compiled: Compiled) -> tuple[str, ...]:
    plan = compiled.plan
    sizes = {
        "_arena_bytes": max(plan.arena_bytes, 1),
        "_state_bytes": max(plan.state_bytes, 1),
        "_scratch_bytes": plan.memory[L1].used_bytes,
        "_conductor": CONTROLLER_CORE if compiled.target.has_controller else 0,
    }
    return (*_LINK_FLAGS, *(f"-Wl,--defsym={name}={size}" for name, size in sizes.items()), "-lgcc")


def _explained(error: DeviceError, compiled: Compiled) -> Exception:
    """A region that overflows is no failure of the linker's but a budget that is too small."""
    found = re.search(r"region `SHARED' overflowed by (\d+) bytes", error.got or "")
    if found is None:
        return error
    room = compiled.plan.memory[L2].used_bytes - int(found[1]) - 64
    refusal = CodeTooLarge(
        "code, tables and tensors do not fit into the shared part of L2 together",
        stage="build",
        expected=f"at most {L2_SHARED_BYTES} bytes",
        got=f"{L2_SHARED_BYTES + int(found[1])} bytes",
        hint=f"--l2 {room // 1024}K leaves room for the code",
    )
    refusal.room_bytes = room // 1024 * 1024
    return refusal


def _sections(path: Path) -> Sections:
    """By where bytes are: all of the image is RAM, loaded through the debug port."""
    sizes = {name: section.size_bytes for name, section in ElfFile(path).sections.items()}

    def total(*names: str) -> int:
        return sum(sizes.get(name, 0) for name in names)

    return Sections(
        text_bytes=total(".vectors", ".text_fabric", ".text", ".rodata"),
        data_bytes=total(".data", ".stored_arena", ".stored_l3", ".stored_state"),
        bss_bytes=total(".arena", ".state", ".bss"),
        stack_bytes=STACK_BYTES,
    )


def _makefile(compiled: Compiled, files: Mapping[str, bytes]) -> str:
    def of(suffixes: str | tuple[str, ...], is_fabric: bool) -> str:
        chosen = (name for name in sorted(files) if name.endswith(suffixes) and (name in _FABRIC_SOURCES) is is_fabric)
        return " ".join(f"{name[:-2]}.o" for name in chosen)

    link = " ".join(_link_flags(compiled))
    return (
        f"# Builds {IMAGE} for Siracusa. The fabric controller has no floating point: its code is compiled by itself.\n"
        "# -ffp-contract=off is part of the result: without it, bits differ between compilers.\n"
        f"CC = {COMPILER}\n"
        f"CLUSTER = {' '.join(CLUSTER_FLAGS)}\n"
        f"FABRIC = {' '.join(FABRIC_FLAGS)}\n"
        f"CLUSTER_OBJECTS = {of('.c', False)}\n"
        f"FABRIC_OBJECTS = {of(('.c', '.S'), True)}\n\n"
        f"{IMAGE}: $(CLUSTER_OBJECTS) {_FABRIC} chip/link.ld\n"
        f"\t$(CC) $(CLUSTER) $(CLUSTER_OBJECTS) -o $@ {_FABRIC} {link}\n\n"
        f"{_FABRIC}: $(FABRIC_OBJECTS)\n\t$(CC) $(FABRIC) $(FABRIC_OBJECTS) -o $@ -r -nostdlib\n\n"
        f"{of('.c', True)}: %.o: %.c\n\t$(CC) $(FABRIC) -c $< -o $@\n\n"
        f"{of('.S', True)}: %.o: %.S\n\t$(CC) $(FABRIC) -c $< -o $@\n\n"
        "$(CLUSTER_OBJECTS): %.o: %.c\n\t$(CC) $(CLUSTER) -c $< -o $@\n\n"
        f"clean:\n\trm -f {IMAGE} {_FABRIC} $(CLUSTER_OBJECTS) $(FABRIC_OBJECTS)\n\n.PHONY: clean\n"
    )


def _readme(compiled: Compiled, steps: int, expected: Expected | None) -> str:
    program = compiled.program
    name = " ".join(program.name.split())
    checked = (
        "It compares each loss and the trained weights with the bits that `sim:siracusa` gave"
        if expected is not None
        else "It was given nothing to compare losses with"
    )
    return f"""# {name}: an image for Siracusa that trains, generated by tilegrad

`{IMAGE}` needs nothing else: {steps} updates of {program.recipe.accumulate} mini-batches of {program.recipe.batch},
with weights, samples and labels made on the chip from seed {program.recipe.seed}. {checked}.

```text
gvsoc --target=siracusa --work /absolute/folder --binary /absolute/{IMAGE} run
```

The console has a line for each step (the loss as bits, and cycles), each update, inference and stack. Exit status: 0
the same bits, or nothing to compare with; 1 other bits; 2 the run failed.

| file | what |
|---|---|
| `model.h`, `model.c`, `kernels/` | the model: entries, tables, kernels |
| `tg_tile.c`, `tg_cluster.h` | the tile runtime, and what it asks of a chip |
| `chip/` | Siracusa: start-up, linker script, drivers, the program, its tables |
| `Makefile` | builds the image again with `{COMPILER}` |
| `manifest.json` | tensors, offsets, entries and memory, for scripts |
"""
