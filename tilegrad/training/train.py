"""Runs a training on a device and judges it: what `tilegrad train` and the tests are made of."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad import __version__
from tilegrad.build.files import write_file
from tilegrad.build.frames import StackUse
from tilegrad.compiled import Compiled
from tilegrad.costs.kernel_cost import uncounted_kernels
from tilegrad.data.batches import Batch, GivenBatches, ToldBatches
from tilegrad.data.epochs import Feed, Plan, make_feed
from tilegrad.data.samples import infer_inputs
from tilegrad.devices.base import Device, FloatArrays, Session
from tilegrad.devices.embedded import AutonomousDevice, CoreStack
from tilegrad.devices.iss_profile import Profile
from tilegrad.errors import DeviceError, InternalError, UserError
from tilegrad.ir.plan import MemoryUse
from tilegrad.ir.program import ENTRIES, Role
from tilegrad.learned import learned, module_state
from tilegrad.parallel.dask_group import DaskGroup
from tilegrad.parallel.interrupted import kept_file
from tilegrad.parallel.session import ParallelSession
from tilegrad.pictured import Pictured
from tilegrad.pipeline import unfused
from tilegrad.recipe import Recipe, expect_count, expect_tolerance
from tilegrad.sequence.timing import EntryTiming
from tilegrad.training.beside import Beside
from tilegrad.training.checkpoint import Checkpoint
from tilegrad.training.course import Course, Learning, Progress
from tilegrad.training.keeping import NOTHING_KEPT, Keeper, Keeping, go_on, start_of
from tilegrad.training.kept import kept_arrays, kept_bytes
from tilegrad.training.running import no_progress
from tilegrad.verify.compare import DEFAULT_TOLERANCE, Measured, Verdict
from tilegrad.verify.first_update import FirstUpdate
from tilegrad.verify.judge import judge

Array = npt.NDArray[Any]
VERIFIED_UPDATES = 200
"""Of a run over epochs."""


@dataclass(frozen=True, repr=False)
class Run(Pictured):
    """What came back from a device. `cycles` are None where a device has none; a device that runs nothing gives none
    of losses, gradients and weights."""

    compiled: Compiled
    device: str
    steps: int
    losses: tuple[float, ...]
    first_gradients: FloatArrays
    weights: FloatArrays
    statistics: FloatArrays
    initial_weights: FloatArrays
    verdict: Verdict | None
    timings_seconds: dict[str, float] = field(default_factory=dict)
    estimates: dict[str, EntryTiming] = field(default_factory=dict)
    counted_cycles: Mapping[str, int] = field(default_factory=dict)
    instructions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of one call, by core
    stack: StackUse = field(default_factory=StackUse)
    counted_how: str = ""  # what is said of counted cycles
    profile: Profile | None = None
    unverified: str = "--no-verify"  # why there is no verdict, where there is none
    undone: tuple[tuple[int, str], ...] = ()  # by a guard: in which mini-batch, and for what
    learning: Learning | None = None  # where measures were asked for
    notes: tuple[str, ...] = ()
    beside: Beside | None = None  # what adapters save
    resumed_at: int = 0  # mini-batches that were trained before
    checkpoint: Mapping[str, Any] | None = None  # what was saved, and what that costs a flash
    stacks: tuple[CoreStack, ...] = ()  # as the image measured them
    shares: Mapping[str, Any] | None = None  # where several devices computed them: how many each, and bytes moved

    def __repr__(self) -> str:
        losses = f"loss {self.losses[0]:.7g} to {self.losses[-1]:.7g}" if self.losses else "nothing run"
        verdict = "not verified" if self.verdict is None else "verified" if self.verdict.verified else "DISAGREES"
        step = self.cycles["step"]
        word = "counted" if self.counted_cycles else self.compiled.cycles_are
        cycles = "" if step is None else f", {step:,} cycles a step ({word})"
        name = self.compiled.program.name
        return f"<Run of '{name}' on {self.device}: {self.steps:,} updates, {losses}, {verdict}{cycles}>"

    @property
    def cycles(self) -> dict[str, int | None]:
        """Of one call of each entry: counted by the chip itself where it can, else estimated."""
        if self.counted_cycles:
            return {entry: self.counted_cycles.get(entry) for entry in ("step", "update", "infer")}
        return {
            entry: round(self.estimates[entry].cycles) if entry in self.estimates else None
            for entry in ("step", "update", "infer")
        }

    @property
    def cycles_are(self) -> str | None:
        if self.counted_cycles:
            return self.counted_how
        return self.compiled.target.cycles_are if self.estimates else None

    @property
    def weights_sha256(self) -> str | None:
        """Over the trained parameters' bytes, little endian, in initializer order. None where nothing was run."""
        if not self.weights:
            return None
        digest = hashlib.sha256()
        for array in self.weights.values():
            digest.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()

    @property
    def learned(self) -> FloatArrays:
        """All that training changed, running statistics too, under names that mean what they say."""
        return learned(self.compiled, self.weights, lambda: self.statistics)

    def state_dict(self) -> FloatArrays:
        """What `load_state_dict` of the torch module takes, whole; adapters are merged into their weights."""
        if self.compiled.model.module is not None and self.compiled.model.adapted is not None:
            return kept_arrays(self.compiled, self.learned, self.resumed_at + len(self.losses), merges=True)
        return module_state(self.compiled, self.learned, self.resumed_at + len(self.losses))

    def kept_bytes(self, path: str | Path, *, merges: bool = True) -> bytes:
        """What `save` writes."""
        return kept_bytes(path, self.compiled, self.learned, self.resumed_at + len(self.losses), merges=merges)

    def save(self, path: str | Path, *, merges: bool = True) -> None:
        """The trained model as .safetensors, .npz or .onnx; adapters merged into their weights, or beside them."""
        write_file(Path(path), self.kept_bytes(path, merges=merges))

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The kernels whose part of the estimated cycles rests on no counts of their own."""
        return uncounted_kernels(self.compiled.plan.schedule)

    @property
    def macs_per_step(self) -> int:
        return self.compiled.plan.schedule.macs("step")

    @property
    def macs_per_cycle(self) -> float | None:
        """Of a whole update: `accumulate` mini-batches and the optimizer step."""
        step, update = self.cycles["step"], self.cycles["update"]
        if step is None or update is None:
            return None
        accumulate = self.compiled.program.recipe.accumulate
        return accumulate * self.macs_per_step / (accumulate * step + update)

    def as_json(self) -> dict[str, Any]:
        """The contract of PRODUCT.md."""
        program = self.compiled.program
        judged: dict[str, Any] = {
            "reference": None,
            "reference_losses": None,
            "max_loss_error": None,
            "max_gradient_error": None,
            "max_weight_error": None,
            "worst_tensor": None,
            "verified": None,
            "verdict": None,
        }
        if self.verdict is not None:
            judged |= self.verdict.as_json()
        return {
            "tilegrad": __version__,
            "model": program.name,
            "device": self.device,
            "target": self.compiled.target.name,
            "steps": self.steps,
            "accum": program.recipe.accumulate,
            "batch": program.recipe.batch,
            "loss": program.loss,
            "optimizer": program.recipe.optimizer.name,
            "lr": program.recipe.optimizer.lr,
            "rate": program.recipe.rate.as_json(),
            "clip": program.recipe.clip,
            "decay": program.recipe.decay,
            "seed": program.recipe.seed,
            "losses": list(self.losses),
            "adapters": None if self.beside is None else self.beside.as_json(),
            "learning": None if self.learning is None else self.learning.as_json(),
            "resumed_at": self.resumed_at,
            "undone": [{"minibatch": number, "by": why} for number, why in self.undone],
            "checkpoint": None if self.checkpoint is None else dict(self.checkpoint),
            **judged,
            "weights_sha256": self.weights_sha256,
            "shares": None if self.shares is None else dict(self.shares),
            "cycles": dict(self.cycles),
            "uncounted": list(self.uncounted),
            "cycles_are": self.cycles_are,
            "profile": None if self.profile is None else self.profile.as_json(),
            "instructions": {entry: self.instructions.get(entry) for entry in ENTRIES},
            "memory": {name: memory_json(use) for name, use in self.compiled.plan.memory.items()},
            "arena": {
                "used": self.compiled.plan.arena_bytes,
                "lower_bound": max(entry.lower_bound_bytes for entry in self.compiled.plan.entries.values()),
            },
            "stack": self.stack.as_json(),
            "stacks": [stack.as_json() for stack in self.stacks],
            "params": parameter_count(self.compiled),
            "trainable_params": sum(tensor.type.size for tensor in program.trainable),
            "macs_per_step": self.macs_per_step,
            "macs_per_cycle": self.macs_per_cycle,
            "timings": self.timings_seconds,
            "c_lines": self.compiled.project.line_count,
            "files": sorted(self.compiled.project.files),
        }


def check_patience(patience: int | None, epochs: int | None) -> None:
    if patience is None:
        return
    expect_count("the number of epochs to wait for a better measure", patience)
    if epochs is None:
        raise UserError("early stopping is for runs over epochs", stage="options", hint="give --epochs N")


def check_shares(shares: int, recipe: Recipe, feed: Feed) -> None:
    """Every sample is in one share of one update in each pass over the data, or that is said."""
    if shares != recipe.accumulate:
        raise UserError(
            "an update has as many shares as mini-batches",
            stage="options",
            expected=f"{recipe.accumulate} shares, as the recipe accumulates",
            got=str(shares),
        )
    count = feed.sample_count
    per_update = shares * recipe.batch
    if count is not None and count % per_update:
        fitting = [n for n in range(1, count // recipe.batch + 1) if count % (n * recipe.batch) == 0]
        near = min(fitting, key=lambda n: (abs(n - shares), n), default=None)
        raise UserError(
            "the shares do not divide the data",
            stage="data",
            expected=f"a multiple of {per_update:,} samples: {shares} shares of batch {recipe.batch}",
            got=f"{count:,} samples",
            hint=f"--shares {near}" if near is not None else "a batch that divides them",
        )


def memory_json(use: MemoryUse) -> dict[str, int | None]:
    return {"used": use.used_bytes, "capacity": use.capacity_bytes, "lower_bound": use.lower_bound_bytes}


def parameter_count(compiled: Compiled) -> int:
    """Of the program; a torch module has those as well that its output does not depend on."""
    count = sum(tensor.type.size for tensor in compiled.program.with_role(Role.PARAMETER, Role.FROZEN))
    unused = () if compiled.model.module is None else compiled.model.module.unused
    return count + sum(compiled.model.parameters[name].type.size for name in unused)


def train(
    compiled: Compiled,
    device: Device,
    *,
    steps: int | None = None,
    data: str | Path | None = None,
    verify: bool = True,
    tolerance: float = DEFAULT_TOLERANCE,
    keep_gradients: bool = True,
    keeping: Keeping = NOTHING_KEPT,
    progress: Progress = no_progress,
    epochs: int | None = None,
    validation: float | str | Path | None = None,
    shuffle: bool | None = None,
    patience: int | None = None,
    top_k: Sequence[int] = (),
    shares: int | None = None,
) -> Run:
    """`steps` updates (4 unless told) of `accumulate` mini-batches each, or `epochs` over the data; then the verdict.

    `validation` is a share of the samples to hold out, or a file of them; loss and accuracy on them are measured
    before, after each epoch and at the end. `shuffle` orders each epoch by the seed, by default where there are epochs.
    `patience` stops after so many epochs without a better measure, and keeps the best epoch's parameters.

    Of epochs the first `VERIFIED_UPDATES` updates are judged: float32 itself strays further than any tolerance later.
    Where the optimizer is fused into the backward pass, gradients take a second program to read: without a verdict and
    without `keep_gradients` there are none. A run that is resumed makes the updates that are left of `steps`, and is
    verified from there on.

    `shares` says that an update is made of so many shares: the recipe's mini-batches, into which stored samples must
    divide. A device that is several computes the mini-batches of an update at the same time, told or not.
    """
    expect_tolerance(tolerance)
    check_patience(patience, epochs)
    feed = make_feed(compiled, data, Plan(steps, epochs, shuffle, validation))
    steps = feed.updates
    accumulate = compiled.program.recipe.accumulate
    if shares is not None:
        check_shares(shares, compiled.program.recipe, feed)
    kept = None
    if isinstance(device, DaskGroup):
        kept = kept_file(compiled.program, data, (steps, epochs, shuffle, validation))
        if keeping.resume is None and kept is not None and kept.exists():
            keeping = replace(keeping, resume=kept)
            feed = replace(feed, notes=(*feed.notes, "goes on where the same command lost its scheduler"))
    found = keeping.found(compiled.program, steps)
    before = 0 if found is None else found.minibatches
    judged = steps if epochs is None else min(steps, before // accumulate + VERIFIED_UPDATES)
    timings: dict[str, float] = {}
    if keeping.is_wanted and not (device.capabilities.runs and device.capabilities.is_interactive):
        raise UserError(
            f"device '{device.name}' neither takes a checkpoint nor gives one",
            stage="options",
            expected="a device that answers while it runs",
            hint="such as host, sim:siracusa or qemu:riscv32",
        )
    if not device.capabilities.runs:
        with device.load(compiled):
            return Run(compiled, device.name, steps, (), {}, {}, {}, {}, None)
    if isinstance(device, AutonomousDevice):
        if data is not None:
            raise UserError(f"device '{device.name}' makes its data from the seed", stage="data", got=f"--data {data}")
        with device.rehearsal() as simulator:
            rehearsed = train(
                compiled,
                simulator,
                steps=steps,
                verify=verify,
                tolerance=tolerance,
                keep_gradients=keep_gradients,
                progress=progress,
            )
        return _performed(rehearsed, device)
    progress("build", 0, 1)
    start = time.perf_counter()
    with device.load(compiled) as session:
        timings["build"] = time.perf_counter() - start
        if found is not None:
            go_on(session, found)
        keeper = Keeper.of(session, compiled, keeping, found)
        initial = session.weights()
        start = time.perf_counter()
        fed = feed.first(accumulate * steps)[before:]
        course = Course(feed, progress, top_k, patience, snapshot_at=judged if verify and epochs is not None else None)
        with _kept_when_lost(session, keeper, kept):
            losses, beginning = _run_steps(session, fed, accumulate, course, keeper)
        if device.capabilities.estimates_cycles:
            session.infer(*infer_inputs(compiled, fed[0]))
        evaluation = _evaluation(session, fed[0]) if compiled.model.training is not None else None
        timings["run"] = time.perf_counter() - start
        run = Run(
            compiled,
            device.name,
            (before + len(losses)) // accumulate,
            tuple(losses),
            dict(beginning.first_gradients),
            session.weights(),
            session.statistics(),
            initial,
            None,
            timings,
            session.timings(),
            instructions=session.instructions(),
            learning=course.learning,
            notes=feed.notes,
            resumed_at=before,
            checkpoint=keeper.facts(),
            undone=tuple((before + number, why) for number, why in session.undone),
            shares=session.shares_json() if isinstance(session, ParallelSession) else None,
        )
    if compiled.program.is_fused and (verify or keep_gradients):
        progress("gradients, of the unfused program", 0, 1)
        beginning = _beginning_with_gradients(compiled, device, fed[:accumulate], beginning, found)
        run = replace(run, first_gradients=dict(beginning.first_gradients))
    if not verify:
        return run
    if run.undone:
        return replace(run, unverified="the guard has undone what no reference would")
    start = time.perf_counter()
    progress("verify", 0, 1)
    measured = Measured(run.losses, run.first_gradients, run.weights, run.statistics, evaluation)
    judged = min(judged, run.steps)
    if course.snapshot is not None:
        count = accumulate * judged - before
        measured = Measured(run.losses[:count], run.first_gradients, *course.snapshot)
        fed = fed[:count]
    told = ToldBatches(fed, lambda done, of: progress("verify: mini-batch through the reference", done, of))
    start_at = None if found is None else start_of(found, compiled.program)
    verdict = judge(compiled, measured, beginning, told, tolerance, start_at)
    if verdict is not None and judged < run.steps:
        verdict = replace(verdict, coverage=f"the first {judged:,} of {run.steps:,} updates: {verdict.coverage}")
    timings["verify"] = time.perf_counter() - start
    return replace(run, verdict=verdict, unverified="a run that is resumed needs PyTorch for it")


@contextlib.contextmanager
def _kept_when_lost(session: Session, keeper: Keeper, kept: Path | None) -> Iterator[None]:
    """Devices that fail in the middle of an update take that one with them, and none before it."""
    try:
        yield
    except DeviceError as error:
        if isinstance(session, ParallelSession):
            with contextlib.suppress(DeviceError):  # the device that has the parameters may be the one that failed
                path = keeper.save_complete(session, kept)
                if path is not None:
                    again = " goes on from it, and so does the same command" if path == kept else " goes on from it"
                    error.hint = f"update {keeper.updates:,}, the last complete one, is saved: --resume '{path}'{again}"
        raise
    if kept is not None:
        kept.unlink(missing_ok=True)


def _evaluation(session: Session, batch: Batch) -> float | None:
    """The loss of a training graph's own evaluation on the first mini-batch."""
    value = np.asarray(session.infer(*infer_inputs(session.compiled, batch)))
    return float(value.reshape(-1)[0]) if value.size == 1 else None


def _performed(rehearsed: Run, device: AutonomousDevice) -> Run:
    """The run on the chip: bits that are not the rehearsal's are an error, so all but the cycles is the same."""
    start = time.perf_counter()
    device.steps = rehearsed.steps
    cycles = device.train(rehearsed.compiled, rehearsed.losses, rehearsed.weights)
    seconds = {**rehearsed.timings_seconds, "image": time.perf_counter() - start}
    return replace(
        rehearsed,
        device=device.name,
        timings_seconds=seconds,
        estimates={},
        counted_cycles=cycles,
        counted_how=device.cycles_are,
        profile=device.profile,
        stacks=device.stacks,
        notes=(*rehearsed.notes, *device.notes),
    )


def _beginning_with_gradients(
    compiled: Compiled,
    device: Device,
    batches: Sequence[Batch],
    beginning: FirstUpdate,
    found: Checkpoint | None,
) -> FirstUpdate:
    """A fused program keeps no gradients: they are read from the unfused one, whose bits are the same."""
    with device.load(unfused(compiled)) as session:
        if found is not None:
            go_on(session, found)
        losses, again = _run_steps(session, batches, len(batches), Course(Feed(GivenBatches(()), 1), no_progress))
    same = np.array_equal(losses, beginning.losses, equal_nan=True) and all(
        np.array_equal(again.weights_after[name], value, equal_nan=True)
        for name, value in beginning.weights_after.items()
    )
    if not same:
        raise InternalError("the fused and the unfused program differ after one update", stage="run")
    return again


def _run_steps(
    session: Session, batches: Sequence[Batch], accumulate: int, course: Course, keeper: Keeper | None = None
) -> tuple[list[float], FirstUpdate]:
    """A fused program has no gradients to read: a second session of the unfused one is for that."""
    before = 0 if keeper is None else keeper.minibatches
    first = accumulate - before % accumulate  # mini-batches up to the first update
    losses: list[float] = []
    course.begin(session)
    beginning = FirstUpdate((), {}, {})
    keeps_gradients = not session.compiled.program.is_fused
    stops = False
    while len(losses) < len(batches) and not stops:
        start = len(losses)
        end = start + accumulate - (before + start) % accumulate  # of this update
        for loss in session.steps(batches[start:end]):
            losses.append(loss)
            count = len(losses)
            if count == 1 and keeps_gradients:
                beginning = replace(beginning, first_gradients=session.gradients())
            if count == first:
                buffers = session.gradients() if keeps_gradients else {}
                beginning = replace(beginning, losses=tuple(losses), buffers=buffers)
            if count < end:
                if keeper is not None:
                    keeper.stepped(False, count == len(batches))
                course.tell(count, len(batches), losses, (before + count) // accumulate)
        if len(losses) < end:
            break
        updates = (before + end) // accumulate
        session.update()
        stops = course.after_update(session, updates, losses)
        if end == first:
            beginning = replace(beginning, weights_after=session.weights())
        if keeper is not None:
            keeper.stepped(True, stops or end == len(batches))
        course.tell(end, len(batches), losses, updates)
    course.end(session, (before + len(losses)) // accumulate)
    return losses, beginning
