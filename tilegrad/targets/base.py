"""A target: a chip as data. One folder per chip holds its `target.py` and its C runtime; chips from outside the package
are registered, and use the C runtime of one of these."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from tilegrad.errors import UserError
from tilegrad.targets.board import Board

TARGETS_FOLDER = Path(__file__).parent
RAM, FLASH, L1, L2, L3 = "RAM", "FLASH", "L1", "L2", "L3"
ADDRESSABLE_BYTES = (1 << 31) - 1  # offsets are 32 bits, one of which says which region
C99, OPENCL_C = "C99", "OpenCL C"
# Who conducts a cluster: one of its workers, which joins the others late, or a core beside them that does nothing else.
WORKER, CONTROLLER = "worker", "controller"


ENTRY_POINTS = "tilegrad.targets"
# Whose C runtime and cost tables a chip from outside uses, where it does not say.
CLUSTER_RUNTIME, FLAT_RUNTIME = "siracusa", "mcu"
MOST_CORES = 1024
MOST_BLOCKS = 128  # of one launch: a width is a byte of a call's flags
MOST_LANES = 4
LEAST_ALIGNMENT, MOST_ALIGNMENT = 8, 1 << 16  # 8: of the widest element, which labels have
MOST = 1 << 40  # of any other number: cycles of it still add up to 64 bits

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_registered: dict[str, Target] = {}


def _expect(condition: bool, what: str, expected: str, got: object) -> None:
    if not condition:
        raise UserError(f"target: {what} cannot be", stage="target", expected=expected, got=str(got) or "''")


def _expect_whole(what: str, value: object, least: int, most: int | None = None, unit: str = "") -> None:
    """A whole number: not 2.5, not "4", not True."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    is_absurd = is_whole and value > MOST  # type: ignore[operator]
    limits = f"{least}{unit} or more" if most is None and not is_absurd else f"{least} to {most or MOST}{unit}"
    fits = is_whole and least <= value <= (most or MOST)  # type: ignore[operator]
    _expect(fits, what, limits, repr(value) if not is_whole else value)


def _expect_cycles(what: str, value: object, expected: str = "0 cycles or more") -> None:
    """A finite number of cycles, fractions allowed; where it divides, not 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    least = 0.0 if expected.startswith("0") else 5e-324
    is_absurd = is_number and value > MOST  # type: ignore[operator]
    fits = is_number and least <= value <= MOST  # type: ignore[operator]
    _expect(fits, what, f"{MOST} at most" if is_absurd else expected, value)


def _expect_text(what: str, value: object) -> None:
    _expect(isinstance(value, str) and bool(value), what, "a name", repr(value))


@dataclass(frozen=True)
class Memory:
    """`capacity_bytes` is what arenas may use (None: as much as the machine has).

    `core_extra_cycles` is what each load or store of a core costs beyond the instruction itself; None where cores
    cannot address the memory at all and only a DMA engine reaches it. `bytes_per_cycle` is what it gives and takes for
    all clusters together, None where one engine each is all that limits them.
    """

    name: str
    capacity_bytes: int | None
    alignment_bytes: int
    core_extra_cycles: int | None = 0
    bytes_per_cycle: float | None = None

    def __post_init__(self) -> None:
        _expect_text("the name of a memory (name)", self.name)
        if self.capacity_bytes is not None:
            what = f"the capacity of {self.name} (capacity_bytes)"
            _expect_whole(what, self.capacity_bytes, 1, ADDRESSABLE_BYTES, " bytes")
        alignment, what = self.alignment_bytes, f"the alignment of {self.name} (alignment_bytes)"
        is_power = isinstance(alignment, int) and alignment >= LEAST_ALIGNMENT and alignment & (alignment - 1) == 0
        _expect(is_power, what, f"a power of two, {LEAST_ALIGNMENT} or more", alignment)
        _expect(alignment <= MOST_ALIGNMENT, what, f"{MOST_ALIGNMENT} at most", alignment)
        if self.core_extra_cycles is not None:
            _expect_whole(f"the access cost of {self.name} (core_extra_cycles)", self.core_extra_cycles, 0)
        if self.bytes_per_cycle is not None:
            what = f"the bandwidth of {self.name} (bytes_per_cycle)"
            _expect_cycles(what, self.bytes_per_cycle, "more than 0 bytes")


@dataclass(frozen=True)
class DmaTiming:
    """Cycles of one transfer: `setup + bytes * per_byte`, and for each row of a 2-D transfer beyond the first."""

    setup_cycles: float
    cycles_per_byte: float
    cycles_per_extra_row: float = 0.0

    def __post_init__(self) -> None:
        _expect_cycles("the set-up of a DMA engine (setup_cycles)", self.setup_cycles)
        _expect_cycles("the speed of a DMA engine (cycles_per_byte)", self.cycles_per_byte, "more than 0")
        _expect_cycles("the cost of a row of a DMA engine (cycles_per_extra_row)", self.cycles_per_extra_row)

    def cycles(self, size_bytes: int, rows: int = 1) -> float:
        return self.setup_cycles + size_bytes * self.cycles_per_byte + (rows - 1) * self.cycles_per_extra_row


@dataclass(frozen=True)
class DmaEngine:
    """Moves bytes between two neighbouring memories; `inward` is towards the cores.

    `enqueue_cycles` is what the core that starts a transfer spends on it; where `queue_depth` commands are under way,
    it waits for the first of them, and no listing has more moves between L3 and L2 under way than that. Directions
    overlap if `duplex`, and set-ups of queued commands with what is moved before them if `overlaps_setup`. Without
    `has_2d`, each row of a box is a command of its own. One that `shares` another is the same engine on another hop:
    one queue, and one transfer at a time.
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
    shares: str | None = None

    def __post_init__(self) -> None:
        _expect_text("the name of a DMA engine (name)", self.name)
        _expect_whole(f"the queue of {self.name} (queue_depth)", self.queue_depth, 1)
        _expect_whole(f"the cost of starting {self.name} (enqueue_cycles)", self.enqueue_cycles, 0, unit=" cycles")
        # Long rows are cut at multiples of eight bytes.
        for name, flag in (("has_2d", self.has_2d), ("duplex", self.duplex), ("overlaps_setup", self.overlaps_setup)):
            _expect(isinstance(flag, bool), f"what {self.name} can ({name})", "True or False", repr(flag))
        what = f"the longest transfer of {self.name} (longest_bytes)"
        _expect_whole(what, self.longest_bytes, 8, ADDRESSABLE_BYTES, " bytes")

    @property
    def hop(self) -> str:
        return f"{self.far}-{self.near}"


@dataclass(frozen=True)
class ComputeEngine:
    """What computes in a block, where that is not its cores: an engine with a scratchpad and a conductor of its own, or
    `lanes` of them that are alike.

    One with `macs_per_cycle` takes the nests that multiply and accumulate; one with `elements_per_cycle`, points of a
    nest's axes, takes all others, and those too where there is no engine for them. A kernel call takes what its rate
    says, and `call_cycles` more.
    """

    name: str
    scratch_bytes: int
    macs_per_cycle: float | None = None
    elements_per_cycle: float | None = None
    lanes: int = 1
    call_cycles: float = 20.0

    def __post_init__(self) -> None:
        _expect_text("the name of an engine (name)", self.name)
        what = f"the scratchpad of {self.name} (scratch_bytes)"
        _expect_whole(what, self.scratch_bytes, 1, ADDRESSABLE_BYTES, " bytes")
        rates = [rate for rate in (self.macs_per_cycle, self.elements_per_cycle) if rate is not None]
        what = f"the rate of {self.name} (macs_per_cycle, elements_per_cycle)"
        _expect(len(rates) == 1, what, "one of the two", "both" if rates else "none")
        _expect_cycles(what, rates[0], "more than 0")
        _expect_whole(f"the lanes of {self.name} (lanes)", self.lanes, 1, MOST_LANES)
        _expect_cycles(f"the cost of a call on {self.name} (call_cycles)", self.call_cycles)


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

    def __post_init__(self) -> None:
        for one in fields(self):
            _expect_cycles(f"a cost of the cores ({one.name})", getattr(self, one.name))


@dataclass(frozen=True)
class Target:
    """`home` is where tensors live; `compute` is where kernels of tiled programs find their operands.

    With one flat memory both are the same and nothing is ever moved. `cores` are those that compute; `conductor` is who
    walks the listing, drives the DMA engines and calls kernels on them. There are `clusters` of these, each with a
    scratchpad and engines of its own, over which blocks of a launch are spread; `signal_cycles` pass until one of them
    knows what another tells it. Where a cluster has `compute_engines`, these compute instead of cores, and every nest
    is launched on one of them; L1 is then the largest of their scratchpads. Where they share one L1 (`shares_l1`), that
    is all of these side by side, each engine reaches every part of it, and pipes have their rings there.
    """

    name: str
    summary: str
    memories: tuple[Memory, ...]
    home: str
    compute: str
    engines: tuple[DmaEngine, ...] = ()
    cores: int = 1
    clusters: int = 1
    signal_cycles: int = 0
    compute_engines: tuple[ComputeEngine, ...] = ()
    shares_l1: bool = False
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
        is_name = isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None
        _expect(is_name, "the name (name)", "a letter, then letters, digits, _, - and .", repr(self.name))
        names = [memory.name for memory in self.memories]
        _expect(bool(names), "the memories (memories)", "at least one", "none")
        _expect(len(set(names)) == len(names), "the memories (memories)", "one of each name", ", ".join(names))
        for what, name in (("home", self.home), ("compute", self.compute)):
            _expect(name in names, f"the {what} memory ({what})", " or ".join(names), name)
        for engine in self.engines:
            what = f"engine {engine.name} (near, far)"
            _expect({engine.near, engine.far} <= set(names), what, "two of its memories", engine.hop)
        _expect_whole("the number of cores (cores)", self.cores, 1, MOST_CORES)
        _expect_whole("the number of FPUs (fpus)", self.fpus, 1, MOST_CORES)
        what = "the conductor (conductor)"
        _expect(self.conductor in (WORKER, CONTROLLER), what, f"{WORKER} or {CONTROLLER}", self.conductor)
        has_cluster = not self.is_flat or self.conductor == WORKER
        _expect(has_cluster, what, f"{WORKER}: one flat memory needs no other", self.conductor)
        _expect_whole("the number of clusters (clusters)", self.clusters, 1, MOST_BLOCKS)
        _expect_whole("the way between clusters (signal_cycles)", self.signal_cycles, 0, unit=" cycles")
        _expect_whole("the clock (clock_hz)", self.clock_hz, 0, unit=" Hz")
        extra = self.memory(self.compute).core_extra_cycles
        what = f"{self.compute}, where kernels compute (core_extra_cycles),"
        _expect(extra is not None, what, "a memory that cores address", "none")
        if self.is_flat:
            what = f"a chip that computes in {self.compute}, where tensors live (memories),"
            has_one = [name for name in names if name != FLASH] == [self.home]
            _expect(has_one, what, f"one memory (and {FLASH}), or tensors in L2 and kernels in L1", ", ".join(names))
            moving = ", ".join(engine.name for engine in self.engines)
            _expect(not moving, "the engines (engines)", "none: in one flat memory nothing moves", moving)
        else:
            self._expect_hierarchy()
        self._expect_compute_engines()

    def _expect_compute_engines(self) -> None:
        own = self.compute_engines
        _expect(isinstance(self.shares_l1, bool), "one L1 for all engines (shares_l1)", "True or False", self.shares_l1)
        _expect(bool(own) or not self.shares_l1, "one L1 for all engines (shares_l1)", "compute engines", "none")
        if not own:
            return
        if self.shares_l1:
            parts = sum(engine.lanes * engine.scratch_bytes for engine in own)
            shared, capacity = "one L1 for all engines (shares_l1)", self.memory(self.compute).capacity_bytes
            _expect(parts <= (capacity or 0), shared, f"{parts} bytes, the parts of its engines", f"{capacity} bytes")
        what = "the compute engines (compute_engines)"
        _expect(not self.is_flat, what, "a chip that computes in a scratchpad", "one flat memory")
        names = [engine.name for engine in own]
        _expect(len(set(names)) == len(names), what, "one of each name", ", ".join(names))
        takes_all = any(engine.elements_per_cycle is not None for engine in own)
        _expect(takes_all, what, "one with elements_per_cycle, for what others leave", ", ".join(names))

    def _expect_hierarchy(self) -> None:
        """L1, where kernels compute, L2, where tensors live, and if there is one, L3, where they may have to go."""
        names = [memory.name for memory in self.memories]
        is_known = set(names) in ({L1, L2}, {L1, L2, L3})
        _expect(is_known, "the memories (memories)", "L1 and L2, or L1, L2 and L3", ", ".join(names))
        for what, name, wanted in (("home", self.home, L2), ("compute", self.compute, L1)):
            _expect(name == wanted, f"the {what} memory ({what})", wanted, name)
        for memory in self.memories:
            what = f"the capacity of {memory.name} (capacity_bytes)"
            _expect(memory.capacity_bytes is not None, what, "a number of bytes", memory.capacity_bytes)
        extra = self.memory(L2).core_extra_cycles
        what = "the access cost of L2 (core_extra_cycles)"
        _expect(extra is not None, what, "a number: the conductor reads its tables there", extra)
        outside = self.memory(L3).core_extra_cycles if self.has_l3 else None
        _expect(not outside, "the access cost of L3 (core_extra_cycles)", "none: only an engine reaches it", outside)
        hops = [engine.hop for engine in self.engines]
        for far, near in ((L2, L1), (L3, L2)):
            what = f"a hierarchy without a way from {far} to {near} (engines)"
            wanted = f"an engine near {near}, far {far}"
            has_way = (far, near) in [(engine.far, engine.near) for engine in self.engines]
            _expect(has_way or not self.has_memory(far), what, wanted, ", ".join(hops) or "no engine")
        ways = f"{L2}-{L1}" + (f" and {L3}-{L2}" if self.has_l3 else "")
        for engine in self.engines:
            is_other = engine.shares in [other.name for other in self.engines if other is not engine]
            what = f"the engine that {engine.name} shares (shares)"
            _expect(engine.shares is None or (engine.far == L3 and is_other), what, f"the {L2}-{L1} one", engine.shares)
        _expect(len(hops) == len(names) - 1, "the engines (engines)", f"one for each of {ways}", ", ".join(hops))

    @property
    def has_l3(self) -> bool:
        """Whether what does not fit into L2 can go anywhere."""
        return self.has_memory(L3)

    @property
    def far_engine(self) -> DmaEngine | None:
        """Between L3 and L2."""
        return self.engine(L3, L2) if self.has_l3 else None

    @property
    def cycles_are(self) -> str:
        """What its cycles are called in JSON: never just cycles."""
        return "estimated" if self.is_calibrated else "estimated, uncalibrated"

    @property
    def cycles_word(self) -> str:
        """What they are called where people read them: whose costs they come from is said if not its own."""
        costs = "rates of a design" if self.compute_engines else "another chip's costs"
        return "estimated cycles" if self.is_calibrated else f"estimated cycles (uncalibrated: {costs})"

    def compute_engine(self, multiplies: bool) -> ComputeEngine | None:
        """What takes a nest that does or does not multiply and accumulate; None where cores do."""
        fitting = [one for one in self.compute_engines if (one.macs_per_cycle is not None) is multiplies]
        others = [one for one in self.compute_engines if one.elements_per_cycle is not None]
        return next(iter([*fitting, *others]), None)

    @property
    def scratchpads(self) -> int:
        """Of all clusters: one each, or one of each lane of its engines."""
        return self.clusters * (sum(engine.lanes for engine in self.compute_engines) or 1)

    def places_of(self, engines: Sequence[tuple[ComputeEngine, int]]) -> list[tuple[str, int]]:
        """Where nests run that run at once, each on an engine and so many lanes of it: engine and lane of every one in
        turn. Those with the same place take turns, and share its scratchpad."""
        taken: dict[str, int] = {}
        found = []
        for engine, lanes in engines:
            for _ in range(lanes):
                taken[engine.name] = taken.get(engine.name, -1) + 1
                found.append((engine.name, taken[engine.name] % engine.lanes))
        return found

    def scratch_bytes(self, engine: ComputeEngine | None) -> int:
        """What a nest on it has for its tiles."""
        capacity = self.memory(self.compute).capacity_bytes or 0
        return capacity if engine is None else min(capacity, engine.scratch_bytes)

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

        A chip with a scratchpad stays as it is: its schedule depends on how much memory there is. So does flash: what
        it cannot hold is in RAM.
        """
        if not self.is_flat:
            return self
        unlimited = replace(self.memory(self.home), capacity_bytes=None)
        return replace(self, memories=tuple(unlimited if m.name == self.home else m for m in self.memories))

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

    def with_clusters(self, clusters: int) -> Target:
        """The same chip, of which so many clusters are used."""
        if not 1 <= clusters <= self.clusters:
            raise UserError(
                f"target '{self.name}' cannot run on {clusters} clusters",
                stage="target",
                expected=f"1 to {self.clusters}",
                got=str(clusters),
            )
        return replace(self, clusters=clusters)


@cache
def _own_names() -> tuple[str, ...]:
    return tuple(sorted(info.name for info in pkgutil.iter_modules([str(TARGETS_FOLDER)]) if info.ispkg))


@cache
def _installed() -> dict[str, Target]:
    """Of packages that are installed beside this one."""
    found: dict[str, Target] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        target = _adopted(_loaded(entry))
        found[target.name] = target
    return found


def _loaded(entry: EntryPoint) -> Target:
    try:
        target = entry.load()
        if not isinstance(target, Target):
            raise TypeError(f"{type(target).__name__}, which is no Target")
    except UserError:
        raise
    except Exception as error:  # whatever the package's code raises is told as what it is
        raise UserError(
            f"the target package '{entry.value}' cannot be used",
            stage="target",
            expected="a tg.Target",
            got=str(error),
            hint=f"its entry point '{entry.name}' is in group {ENTRY_POINTS}",
        ) from error
    return target


def _adopted(target: Target) -> Target:
    """A chip from outside with what it leaves to ours: a runtime, and costs, which nobody measured for it."""
    if target.name in _own_names():
        raise UserError(
            f"there is a target '{target.name}' already",
            stage="target",
            expected="a name of its own",
            got=target.name,
            hint=f"the package has {', '.join(_own_names())}",
        )
    fitting = [name for name in _own_names() if (TARGETS_FOLDER / name / "tg_rt.h").exists()]
    wanted = [name for name in fitting if get(name).is_flat == target.is_flat and get(name).language == target.language]
    runtime = target.runtime or (FLAT_RUNTIME if target.is_flat else CLUSTER_RUNTIME)
    _expect(runtime in wanted, "the runtime (runtime)", " or ".join(wanted), runtime)
    costs = target.costs or (None if target.is_flat else CoreCosts())
    memories = target.memories if target.is_flat else tuple(sorted(target.memories, key=lambda memory: memory.name))
    memories = tuple(replace(one, core_extra_cycles=None) if one.name == L3 else one for one in memories)
    for one in memories:
        what, most = f"the alignment of {one.name} (alignment_bytes)", one.capacity_bytes or MOST_ALIGNMENT
        _expect(one.alignment_bytes <= most, what, f"{most} at most, its capacity", one.alignment_bytes)
    engines = tuple(sorted(target.engines, key=lambda engine: engine.near))
    return replace(target, memories=memories, engines=engines, runtime=runtime, costs=costs, is_calibrated=False)


def register(target: Target) -> Target:
    """Adds a chip from outside the package, so that its name works wherever a target's does, and `sim:NAME` if it has a
    scratchpad. The later one of a name counts.

    Installed packages do the same without a call, through the entry point group `tilegrad.targets`.
    """
    if not isinstance(target, Target):
        raise UserError("the target cannot be used", stage="target", expected="a tg.Target", got=type(target).__name__)
    adopted = _adopted(target)
    _registered[adopted.name] = adopted
    return adopted


def known(target: Target) -> Target:
    """A chip that is given as an object; one from outside is registered, if it was not."""
    if target.name in _own_names():
        return target
    return _adopted(target) if target.name in names() else register(target)


def unregister(name: str) -> None:
    _registered.pop(name, None)


def names() -> tuple[str, ...]:
    return tuple(sorted({*_own_names(), *_installed(), *_registered}))


def get(name: str) -> Target:
    """By name; `files.find` knows files, too."""
    if name in _own_names():
        target: Target = importlib.import_module(f"tilegrad.targets.{name}.target").TARGET
        return target
    outside = {**_installed(), **_registered}
    if name not in outside:
        near = get_close_matches(name, names(), n=1)
        raise UserError(
            f"there is no target '{name}'",
            stage="target",
            expected=" or ".join(names()),
            got=name,
            hint=f"did you mean '{near[0]}'?" if near else "a chip of your own is a file: docs/targets.md",
        )
    return outside[name]
