"""A training that outlives its process: going on from a checkpoint, and writing them on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilegrad.codegen.saved import saved
from tilegrad.compiled import Compiled
from tilegrad.devices.base import Session
from tilegrad.errors import UserError
from tilegrad.expectations import expect_count
from tilegrad.ir.program import LEARNING_RATE, RESET_FLAG, Program, Role
from tilegrad.parallel.session import ParallelSession
from tilegrad.training.checkpoint import STAGE, Checkpoint, CheckpointFile, expect_same_training, read_checkpoint
from tilegrad.verify.reference import Start


@dataclass(frozen=True)
class Keeping:
    """What of a run is kept: where it goes on, and where and how often it is saved. Without `every`, at the end."""

    resume: Path | None = None
    checkpoint: Path | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is None:
            return
        expect_count("the number of updates between checkpoints", self.every)
        if self.checkpoint is None:
            raise UserError(
                "there is nowhere to write checkpoints", stage="options", expected="--checkpoint F", got="none"
            )

    @property
    def is_wanted(self) -> bool:
        return self.resume is not None or self.checkpoint is not None

    def found(self, program: Program, steps: int) -> Checkpoint | None:
        """The checkpoint to go on from; one that is not of this training, or past its end, is refused."""
        if self.resume is None:
            return None
        found = read_checkpoint(self.resume)
        expect_same_training(found, program, self.resume)
        if found.minibatches >= steps * program.recipe.accumulate:
            raise UserError(
                f"checkpoint '{self.resume}' is at the end of the training already",
                stage=STAGE,
                expected=f"fewer than {steps} updates, which are all that was asked for",
                got=f"{found.updates}",
                hint="updates are counted from the beginning: ask for more of them",
            )
        return found


NOTHING_KEPT = Keeping()


def go_on(session: Session, found: Checkpoint) -> None:
    """Gives a session the state of a checkpoint."""
    for name, value in found.state_for(session.compiled.program).items():
        session.write(name, value)


def start_of(found: Checkpoint, program: Program) -> Start:
    """What references know of a checkpoint."""
    owners = {tensor.name: tensor for tensor in program.state}
    slots: dict[str, dict[str, Any]] = {}
    gradients: dict[str, Any] = {}
    for name, value in found.tensors.items():
        tensor = owners[name]
        if tensor.role is Role.OPTIMIZER and tensor.owner is not None:
            slots.setdefault(tensor.owner, {})[slot_name(program, name, tensor.owner)] = value
        elif tensor.role is Role.GRADIENT and tensor.owner is not None:
            gradients[tensor.owner] = value
    return Start(
        weights=found.with_role(Role.PARAMETER.value),
        statistics=found.with_role(Role.STATISTIC.value),
        slots=slots,
        gradients=gradients,
        learning_rate=float(found.tensors[LEARNING_RATE]) if LEARNING_RATE in found.tensors else None,
        minibatches=found.minibatches,
        updates=found.updates,
    )


def slot_name(program: Program, tensor: str, owner: str) -> str:
    """Which slot of the optimizer a state tensor is: `weight.exp_avg`, or `weight.exp_avg.1` where that was taken."""
    rest = tensor.removeprefix(f"{owner}.")
    slots = program.recipe.optimizer.slots
    return next((slot for slot in slots if rest == slot or rest.startswith(f"{slot}.")), rest)


@dataclass
class Keeper:
    """Saves a run as it goes. `minibatches` and `updates` count from the beginning of the training."""

    session: Session
    keeping: Keeping
    minibatches: int = 0
    updates: int = 0
    file: CheckpointFile | None = field(default=None)
    first_updates: int = 0
    first_erases: int = 0

    @staticmethod
    def of(session: Session, compiled: Compiled, keeping: Keeping, found: Checkpoint | None) -> Keeper:
        keeper = Keeper(session, keeping)
        if keeping.checkpoint is not None:
            keeper.file = CheckpointFile(keeping.checkpoint, compiled.program, compiled.target.name)
        if found is not None:
            keeper.minibatches, keeper.updates = found.minibatches, found.updates
            keeper.first_updates = found.updates
            if keeper.file is not None:
                keeper.file.continue_from(found)
                keeper.first_erases = keeper.file.erases
        return keeper

    def stepped(self, updated: bool, is_last: bool) -> None:
        """One more mini-batch, and an update behind it."""
        self.minibatches += 1
        self.updates += updated
        every = self.keeping.every
        if self.file is not None and (is_last or (updated and every is not None and self.updates % every == 0)):
            self.save()

    def save(self) -> None:
        assert self.file is not None
        program = self.session.compiled.program
        names = [tensor.name for tensor in (*saved(program).always, *saved(program).gradients)]
        flags = [tensor.name for tensor in program.state if tensor.name == RESET_FLAG]
        self.file.save({name: self.session.read(name) for name in (*names, *flags)}, self.minibatches, self.updates)

    def save_complete(self, session: ParallelSession, kept: Path | None) -> Path | None:
        """After a failure, the last complete update: to the run's own checkpoint, or to where it is `kept`. Returns
        where; None where there is neither, or no update since the beginning."""
        updates = session.conductor.updates
        path = self.file.path if self.file is not None else kept
        if path is None or not updates:
            return None
        session.forget_since_update()
        accumulate = session.compiled.program.recipe.accumulate
        self.minibatches, self.updates = self.updates * accumulate, self.updates
        if self.file is None:
            self.file = CheckpointFile(path, session.compiled.program, session.compiled.target.name)
        self.save()
        return path

    def facts(self) -> dict[str, Any] | None:
        """For JSON and the report: what the saves cost a flash."""
        if self.file is None:
            return None
        updates = self.updates - self.first_updates
        erases = self.file.erases - self.first_erases
        return {
            "file": str(self.file.path),
            "saves": self.file.saves,
            "bytes": self.file.save_bytes,
            "sector_bytes": self.file.sector_bytes,
            "erases_per_save": self.file.erases_per_save,
            "erases_per_1000_updates": 1000.0 * erases / updates if updates else None,
            "minibatches": self.minibatches,
            "updates": self.updates,
        }
