"""A target: a chip as data. One folder per chip holds its `target.py` and its C runtime."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from tilegrad.errors import UserError
from tilegrad.targets.board import Board

TARGETS_FOLDER = Path(__file__).parent
RAM, FLASH, L1, L2, L3 = "RAM", "FLASH", "L1", "L2", "L3"
ADDRESSABLE_BYTES = (1 << 31) - 1  # offsets are 32 bits, one of which says which region
C99, OPENCL_C = "C99", "OpenCL C"
# Who conducts a cluster: one of its workers, which joins the others late, or a core beside them that does nothing else.
WORKER, CONTROLLER = "worker", "controller"


def _expect(condition: bool, what: str, expected: str, got: object) -> None:
    if not condition:
        raise UserError(f"target: {what} cannot be", stage="target", expected=expected, got=str(got))


@dataclass(frozen=True)
class Memory:
    """`capacity_bytes` is what arenas may use (None: as much as the machine has).

    `core_extra_cycles` is what each load or store of a core costs beyond the instruction itself; None where cores
    cannot address the memory at all and only a DMA engine reaches it.
    """

    name: str
    capacity_bytes: int | None
    alignment_bytes: int
    core_extra_cycles: int | None = 0

    def __post_init__(self) -> None:
        capacity, alignment = self.capacity_bytes, self.alignment_bytes
        _expect(capacity is None or capacity > 0, f"the capacity of {self.name}", "1 byte or more", capacity)
        _expect(
            alignment > 0 and alignment & (alignment - 1) == 0,
            f"the alignment of {self.name}",
            "a power of two",
            alignment,
        )
        extra = self.core_extra_cycles
        _expect(extra is None or extra >= 0, f"the access cost of {self.name}", "0 or more", extra)


@dataclass(frozen=True)
class DmaTiming:
    """Cycles of one transfer: `setup + bytes * per_byte`, and for each row of a 2-D transfer beyond the first."""

    setup_cycles: float
    cycles_per_byte: float
    cycles_per_extra_row: float = 0.0

    def __post_init__(self) -> None:
        _expect(self.setup_cycles >= 0, "the set-up of a DMA engine", "0 cycles or more", self.setup_cycles)
        _expect(self.cycles_per_byte > 0, "the speed of a DMA engine", "more than 0", self.cycles_per_byte)
        extra = self.cycles_per_extra_row
        _expect(extra >= 0, "the cost of a row of a DMA engine", "0 cycles or more", extra)

    def cycles(self, size_bytes: int, rows: int = 1) -> float:
        return self.setup_cycles + size_bytes * self.cycles_per_byte + (rows - 1) * self.cycles_per_extra_row


@dataclass(frozen=True)
class DmaEngine:
    """Moves bytes between two neighbouring memories; `inward` is towards the cores.

    `enqueue_cycles` is what the core that starts a transfer spends on it; where `queue_depth` commands are under way,
    it waits for the first of them. Directions overlap if `duplex`, and set-ups of queued commands with what is moved
    before them if `overlaps_setup`.
    """

    name: str
    near: str
    far: str
    inward: DmaTiming
    outward: DmaTiming
    enqueue_cycles: int
    queue_depth: int
    longest_bytes: int
    has_2d: bool
    duplex: bool
    overlaps_setup: bool

    def __post_init__(self) -> None:
        _expect(self.queue_depth >= 1, f"the queue of {self.name}", "1 or more", self.queue_depth)
        cycles = self.enqueue_cycles
        _expect(cycles >= 0, f"the cost of starting {self.name}", "0 cycles or more", cycles)
        # Long rows are cut at multiples of eight bytes.
        _expect(self.longest_bytes >= 8, f"the longest transfer of {self.name}", "8 bytes or more", self.longest_bytes)

    @property
    def hop(self) -> str:
        return f"{self.far}-{self.near}"


@dataclass(frozen=True)
class CoreCosts:
    """How a core's counted instructions become cycles (see costs/kernel_cost.py for the formula)."""

    taken_branch_extra: float = 2.0
    jump_extra: float = 1.0
    load_use_extra: float = 1.0
    divide_sqrt_cycles: float = 14.0
    integer_divide_extra: float = 30.0
    line_miss_cycles: float = 1.7
    call_one_core_cycles: float = 35.0
    call_all_cores_cycles: float = 45.0


@dataclass(frozen=True)
class Target:
    """`home` is where tensors live; `compute` is where kernels of tiled programs find their operands.

    With one flat memory both are the same and nothing is ever moved. `cores` are those that compute; `conductor` is who
    walks the listing, drives the DMA engines and calls kernels on them.
    """

    name: str
    summary: str
    memories: tuple[Memory, ...]
    home: str
    compute: str
    engines: tuple[DmaEngine, ...] = ()
    cores: int = 1
    clusters: int = 1
    fpus: int = 1
    conductor: str = WORKER
    clock_hz: int = 0
    costs: CoreCosts | None = None
    is_calibrated: bool = True  # its costs were counted and measured for it, not taken from another chip
    runtime: str | None = None  # the folder whose kernels and C runtime it uses, where not its own
    board: Board | None = None  # what images are made for, where the target is a board
    fuses_update: bool = True  # an update where its gradient comes into being saves memory, and time on small cores
    language: str = C99  # of the generated program: C, or OpenCL C, whose kernels a host program launches

    def __post_init__(self) -> None:
        names = [memory.name for memory in self.memories]
        _expect(len(set(names)) == len(names), "the memories", "one of each name", ", ".join(names))
        for what, name in (("home", self.home), ("compute", self.compute)):
            _expect(name in names, f"the {what} memory", " or ".join(names), name)
        for engine in self.engines:
            _expect({engine.near, engine.far} <= set(names), f"engine {engine.name}", "two of its memories", engine.hop)
        _expect(self.cores >= 1, "the number of cores", "1 or more", self.cores)
        _expect(self.fpus >= 1, "the number of FPUs", "1 or more", self.fpus)
        _expect(self.conductor in (WORKER, CONTROLLER), "the conductor", f"{WORKER} or {CONTROLLER}", self.conductor)
        has_cluster = not self.is_flat or self.conductor == WORKER
        _expect(has_cluster, "the conductor", f"{WORKER}: one flat memory needs no other", self.conductor)
        _expect(self.clusters >= 1, "the number of clusters", "1 or more", self.clusters)
        _expect(self.clock_hz >= 0, "the clock", "0 Hz or more", self.clock_hz)
        extra = self.memory(self.compute).core_extra_cycles
        _expect(extra is not None, f"{self.compute}, where kernels compute,", "a memory that cores address", "none")
        if not self.is_flat:
            self._expect_hierarchy()

    def _expect_hierarchy(self) -> None:
        for name in (L1, L2, L3):
            known = self.has_memory(name) and self.memory(name).capacity_bytes is not None
            _expect(known, f"a hierarchy without {name}", "L1, L2 and L3, each with a size", "no such size")
        for far, near in ((self.home, self.compute), (L3, L2)):
            known = any((engine.far, engine.near) == (far, near) for engine in self.engines)
            _expect(known, f"a hierarchy without a way from {far} to {near}", "a DMA engine", "none")

    @property
    def cycles_are(self) -> str:
        """What its cycles are called in JSON: never just cycles."""
        return "estimated" if self.is_calibrated else "estimated, uncalibrated"

    @property
    def has_controller(self) -> bool:
        """Whether a core of its own conducts, so that all `cores` begin a kernel together."""
        return self.conductor == CONTROLLER

    @property
    def is_flat(self) -> bool:
        return self.home == self.compute

    def memory(self, name: str) -> Memory:
        return next(memory for memory in self.memories if memory.name == name)

    def has_memory(self, name: str) -> bool:
        return any(memory.name == name for memory in self.memories)

    def engine(self, far: str, near: str) -> DmaEngine:
        return next(engine for engine in self.engines if (engine.far, engine.near) == (far, near))

    @property
    def folder(self) -> Path:
        return TARGETS_FOLDER / (self.runtime or self.name)

    def kernel_override(self, operator_file: str) -> Path | None:
        """What this chip does in another way than an operator's portable file, with the same bits, if anything."""
        places = (TARGETS_FOLDER / self.name, self.folder)
        paths = (place / "kernels" / operator_file for place in places)
        return next((path for path in paths if path.exists()), None)

    def with_capacity(self, memory: str, capacity_bytes: int) -> Target:
        """The same chip with another arena budget. More than it has is a chip that might be, for a simulator."""
        if not self.has_memory(memory):
            raise UserError(
                f"target '{self.name}' has no {memory}",
                stage="target",
                expected=" or ".join(m.name for m in self.memories),
                got=memory,
            )
        if not 1 <= capacity_bytes <= ADDRESSABLE_BYTES:
            raise UserError(
                f"{memory} of target '{self.name}' cannot have {capacity_bytes} bytes",
                stage="target",
                expected=f"1 to {ADDRESSABLE_BYTES} bytes",
                got=f"{capacity_bytes} bytes",
            )
        memories = tuple(replace(m, capacity_bytes=capacity_bytes) if m.name == memory else m for m in self.memories)
        return replace(self, memories=memories)

    def without_limits(self) -> Target:
        """The same chip with as much memory as it takes, so that a program that does not fit can be described.

        A chip with a scratchpad stays as it is: its schedule depends on how much memory there is.
        """
        if not self.is_flat:
            return self
        return replace(self, memories=tuple(replace(memory, capacity_bytes=None) for memory in self.memories))

    def larger_than(self, chip: Target) -> tuple[Memory, ...]:
        """The memories of which this has more than `chip`."""
        known = {memory.name: memory.capacity_bytes for memory in chip.memories}
        return tuple(
            memory
            for memory in self.memories
            if (limit := known.get(memory.name)) is not None and (memory.capacity_bytes or 0) > limit
        )

    def with_cores(self, cores: int) -> Target:
        if not 1 <= cores <= self.cores:
            raise UserError(
                f"target '{self.name}' cannot run on {cores} cores",
                stage="target",
                expected=f"1 to {self.cores}",
                got=str(cores),
            )
        return replace(self, cores=cores)


def names() -> tuple[str, ...]:
    return tuple(sorted(info.name for info in pkgutil.iter_modules([str(TARGETS_FOLDER)]) if info.ispkg))


def get(name: str) -> Target:
    if name not in names():
        near = get_close_matches(name, names(), n=1)
        raise UserError(
            f"there is no target '{name}'",
            stage="target",
            expected=" or ".join(names()),
            got=name,
            hint=f"did you mean '{near[0]}'?" if near else None,
        )
    target: Target = importlib.import_module(f"tilegrad.targets.{name}.target").TARGET
    return target
