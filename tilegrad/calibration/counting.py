"""Instruction counts of kernels: compiled for RV32, run under QEMU's user mode with the counting plugin."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilegrad.build.riscv import COMPILER, COUNTED_FLAGS
from tilegrad.calibration.content import contents
from tilegrad.errors import DeviceError
from tilegrad.ir.nest import Nest, Tile, kernel_argument, operand_box, row_major_strides
from tilegrad.ops.kernels import RUNTIME_FOLDER, KernelFile, KernelSignature, parse_kernel_file

FOLDER = Path(__file__).parent
# With the extensions named in full, Debian's gcc takes the 64-bit libgcc.
LINK_FLAGS = ("-march=rv32im", "-mabi=ilp32", "-nostdlib", "-static", "-mno-relax")
EMULATOR = "qemu-riscv32"
HOST_COMPILER = "gcc"
ALIGNMENT_BYTES = 64
TIMEOUT_SECONDS = 900
JOBS = 2

# The plugin's columns, and the total that is their sum.
COUNTERS = (
    "i_fma i_fp_other i_fdiv_sqrt i_fmv i_load i_store i_branch i_branch_taken i_jump i_mul i_div i_other "
    "load_use data_loads data_stores l0_misses"
).split()
_INSTRUCTIONS = [name for name in COUNTERS if name.startswith("i_") and name != "i_branch_taken"]


def missing_tools() -> tuple[str, ...]:
    """What counting needs and this machine does not have."""
    return tuple(tool for tool in (COMPILER, EMULATOR, HOST_COMPILER) if shutil.which(tool) is None)


@dataclass(frozen=True)
class Sample:
    """One kernel call: a tile of a nest of an operator, on a number of cores."""

    op: str
    nest: Nest
    tile: Tile
    cores: int
    seed: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        return {name: tile_range.size for name, tile_range in self.tile.items()}

    @property
    def starts(self) -> dict[str, int]:
        return {name: tile_range.start for name, tile_range in self.tile.items()}


# Of the core with most instructions, by class; `all_fdiv_sqrt` is the sum over the cores.
Counts = Mapping[str, int]


def _build_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"tilegrad-calibration-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def run_tool(command: Sequence[str], stream: bytes | None = None) -> bytes:
    """What a tool prints, given what it reads."""
    done = subprocess.run(command, input=stream, capture_output=True, check=False, timeout=TIMEOUT_SECONDS)
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip()[:2000]
        name = Path(command[0]).name
        raise DeviceError(f"{name} failed with status {done.returncode}", stage="calibration", got=words)
    return done.stdout


@cache
def version_of(tool: str) -> str:
    """The first line of what `--version` says."""
    return run_tool([tool, "--version"]).decode(errors="replace").splitlines()[0]


def source_hash(path: Path) -> str:
    """Of a C file and every runtime header it includes: what its counts depend on, comments included."""
    digest = hashlib.sha256()
    pending, seen = [path], set()
    while pending:
        current = pending.pop(0)
        if current.name in seen or not current.exists():
            continue
        seen.add(current.name)
        digest.update(current.read_bytes())
        pending += [RUNTIME_FOLDER / header for header in parse_kernel_file(current).headers]
    return digest.hexdigest()[:16]


def _built(stem: str, key: bytes, make: Sequence[Sequence[str]], table: str = "") -> Path:
    """What commands make of `table.c`, kept by all that it was made of. FOLDER stands for where they work."""
    path = _build_folder() / f"{stem}-{hashlib.sha256(key + repr((make, table)).encode()).hexdigest()[:16]}"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=_build_folder()) as folder:
            (Path(folder) / "table.c").write_text(table, encoding="utf-8")
            for command in make:
                run_tool([word.replace("FOLDER", folder) for word in command])
            os.replace(Path(folder) / "made", path)
    return path


@cache
def plugin() -> Path:
    source = FOLDER / "count_plugin.c"
    interface = RUNTIME_FOLDER / "qemu"
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{interface}")
    key = source.read_bytes() + (interface / "qemu_plugin.h").read_bytes()
    return _built("count", key, [[HOST_COMPILER, *flags, str(source), "-o", "FOLDER/made"]])


def _table(kernels: Sequence[KernelSignature]) -> str:
    """The functions that call kernels from an array of addresses, as generated models have them."""
    lines = ["typedef void kernel_call(void *const *at, const void *args, int core_id, int core_count);"]
    for kernel in kernels:
        parameters = "".join("void *, " for _ in kernel.pointers)
        operands = "".join(f"at[{i}], " for i in range(len(kernel.pointers)))
        lines += [
            f"void tg_{kernel.name}({parameters}const void *, int, int);",
            f"static void call_{kernel.name}(void *const *at, const void *args, int core_id, int core_count)",
            f"{{ tg_{kernel.name}({operands}args, core_id, core_count); }}",
        ]
    entries = ", ".join(f"call_{kernel.name}" for kernel in kernels)
    return "\n".join([*lines, f"kernel_call *const kernel_table[] = {{{entries}}};", ""])


@cache
def program(source: Path) -> Path:
    """The RV32 program that runs the kernels of one file."""
    main, compile_one = FOLDER / "count_main.c", [COMPILER, *COUNTED_FLAGS, f"-I{RUNTIME_FOLDER}", "-c"]
    objects = {f"FOLDER/{i}.o": part for i, part in enumerate((str(source), str(main), "FOLDER/table.c"))}
    make = [[*compile_one, part, "-o", name] for name, part in objects.items()]
    make.append([COMPILER, *LINK_FLAGS, *objects, "-o", "FOLDER/made", "-lgcc"])
    key = source_hash(source).encode() + main.read_bytes() + version_of(COMPILER).encode()
    return _built(source.stem, key, make, _table(parse_kernel_file(source).kernels))


@cache
def _arena_address(elf: Path) -> int:
    words = run_tool([COMPILER.replace("-gcc", "-nm"), str(elf)]).decode().split("\n")
    return next(int(line.split()[0], 16) for line in words if line.endswith(" operand_arena"))


def _encoded(case: Sample, source: KernelFile) -> bytes:
    """A call as count_main.c reads it: operands are boxes, dense, each at its own offset, as in scratchpad."""
    position, signature = next((i, k) for i, k in enumerate(source.kernels) if k.name == case.nest.kernel)
    held = contents(case.nest, [c_type for c_type, _ in signature.pointers], case.tile, case.seed)
    strides: dict[str, tuple[int, ...]] = {}
    offsets: list[int] = []
    arena = bytearray()
    for operand in case.nest.operands:
        if operand.value is None:
            offsets.append(-1)
            continue
        box = tuple(r.size for r in operand_box(operand, case.tile))
        strides[operand.name] = row_major_strides(box)
        arena += bytes(-len(arena) % ALIGNMENT_BYTES)
        offsets.append(len(arena))
        arena += held[operand.name].tobytes()
    words = b""
    for c_type, field_name in signature.arguments.fields:
        value = kernel_argument(field_name, case.nest, case.tile, strides)
        if value is None:
            raise DeviceError(f"nothing gives the field '{field_name}' of tg_{case.nest.kernel}", stage="calibration")
        words += struct.pack("<f", float(value)) if c_type == "float" else struct.pack("<i", int(value))
    head = struct.pack("<5i", position, len(offsets), len(words) // 4, case.cores, len(arena))
    return head + struct.pack(f"<{len(offsets)}i", *offsets) + words + bytes(arena)


def _busiest(rows: Sequence[Sequence[int]]) -> Counts:
    cores = []
    for row in rows:
        counts = dict(zip(COUNTERS, row, strict=True))
        cores.append({"i_total": sum(counts[name] for name in _INSTRUCTIONS), **counts})
    busiest = max(cores, key=lambda counts: counts["i_total"])
    return {**busiest, "all_fdiv_sqrt": sum(counts["i_fdiv_sqrt"] for counts in cores)}


def _count_file(source: KernelFile, cases: Sequence[Sample]) -> list[Counts]:
    elf = program(source.path)
    arena = _arena_address(elf)
    stream = b"".join(_encoded(case, source) for case in cases)
    with tempfile.NamedTemporaryFile("r", encoding="ascii", dir=_build_folder()) as out:
        counting = f"{plugin()},lo={arena},hi={arena + (1 << 22)},out={out.name}"
        run_tool([EMULATOR, "-plugin", counting, str(elf)], stream)
        rows = iter([[int(word) for word in line.split()] for line in out])
    return [_busiest([next(rows) for _ in range(case.cores)]) for case in cases]


def count(cases: Sequence[Sample], source: KernelFile) -> list[Counts]:
    """Of calls whose kernels are all in one file."""
    program(source.path)
    plugin()
    share = -(-len(cases) // JOBS)
    pieces = [cases[at : at + share] for at in range(0, len(cases), share)]
    with ThreadPoolExecutor(max_workers=JOBS) as pool:
        return [counts for part in pool.map(lambda piece: _count_file(source, piece), pieces) for counts in part]
