"""Several devices as one session: what trains on one device trains on many, and does not know the difference."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.compiled import Compiled
from tilegrad.devices.base import Array, Session
from tilegrad.devices.measure import COMPUTE_SECONDS
from tilegrad.devices.residency import DEVICE, Residency, Transfer
from tilegrad.errors import UserError
from tilegrad.ir.program import StateTensor
from tilegrad.parallel.conductor import Conductor
from tilegrad.parallel.form import Form
from tilegrad.parallel.pool import Pool
from tilegrad.parallel.shares import Moved
from tilegrad.sequence.timing import EntryTiming


def held_initially(compiled: Compiled, form: Form) -> dict[str, Array]:
    """What a program begins with of what shares make."""
    return {
        tensor.name: np.zeros(tensor.type.shape, tensor.type.dtype.numpy)
        if tensor.initial is None
        else np.asarray(tensor.initial.array, tensor.type.dtype.numpy)
        for tensor in compiled.program.state
        if tensor.name in form.held
    }


def expect_here(compiled: Compiled, residency: Residency) -> Residency:
    """Refuses inputs and outputs that are to stay on a device: which one computes a share is not known before."""
    residency.checked(compiled.program)
    for row in residency.placed(compiled.program):
        if row.what != "gradient" and row.place == DEVICE:
            raise UserError(
                f"{row.what} '{row.name}' cannot stay on a device where several compute shares",
                stage="load",
                expected=f"'{row.name}' on the host: any device may compute any share",
                got="device",
                hint="one device, or leave it out of the residency",
            )
    return residency


class ParallelSession(Session):
    """`lead` makes updates and inferences; the pool computes shares. Closing it closes the pool and `sessions`."""

    def __init__(
        self, compiled: Compiled, residency: Residency, form: Form, lead: Session, lead_moved: Moved, pool: Pool
    ) -> None:
        super().__init__(compiled, residency)
        self._lead = lead
        self._pool = pool
        self._last: list[Array] = []
        self.conductor = Conductor(form, held_initially(compiled, form), lead, lead_moved, pool)

    def steps(self, batches: Iterable[Sequence[npt.ArrayLike]]) -> Iterator[float]:
        """The losses come in order; gradients and statistics are those up to the mini-batch whose loss came last."""
        checked = (self._as_inputs("step", batch) for batch in batches)
        for outputs in self.conductor.steps(checked):
            self.transferred.begin_call()
            self._results = ("step", dict(zip(self._entry("step").outputs, outputs, strict=True)))
            self._host_gradients = None
            self._minibatches += 1
            yield float(np.asarray(outputs[0]).reshape(-1)[0])

    def forget_since_update(self) -> None:
        """Back to the last complete update."""
        self.conductor.forget_since_update()

    def shares_json(self) -> dict[str, Any]:
        """Who computed how many shares, and what that moved."""
        updates = self.conductor.updates
        return {
            "accumulate": self.compiled.program.recipe.accumulate,
            "updates": updates,
            "one_after_another": self.conductor.is_chained,
            "devices": [moved.as_json(updates) for moved in self._pool.moved()],
        }

    # ---- the contract

    def _place(self, entry: str, inputs: Sequence[Array | None]) -> None:
        """They wait here: who computes a share is known when it is computed."""

    def _call(self, entry: str, inputs: Sequence[Array | None], wanted: Sequence[int]) -> list[Array]:
        there = self._placed_inputs if self._placed == entry else [None] * len(inputs)
        merged = (old if new is None else new for old, new in zip(there, inputs, strict=True))
        given = [array for array in merged if array is not None]
        if entry == "update":
            self.conductor.update()
            self._last = []
        elif entry == "infer":
            self._last = self.conductor.infer(given)
        else:
            ((*self._last,),) = self.conductor.steps([given])
        return [self._last[i] for i in wanted]

    def _fetch(self, entry: str, wanted: Sequence[int]) -> list[Array]:
        """They came with the call, wherever it was made."""
        return [self._last[i] for i in wanted]

    def _count(self, entry: str) -> Mapping[str, float]:
        start = time.perf_counter()
        self._call(entry, [None] * len(self._entry(entry).inputs), ())
        return {COMPUTE_SECONDS: time.perf_counter() - start}

    def _read(self, tensor: StateTensor) -> Array:
        return self.conductor.read(tensor.name)

    def _write(self, tensor: StateTensor, value: Array) -> None:
        self.conductor.write(tensor.name, value)

    def timings(self) -> dict[str, EntryTiming]:
        return self._lead.timings()

    def instructions(self) -> dict[str, tuple[int, ...]]:
        return self._lead.instructions()

    def close(self) -> None:
        super().close()
        self._pool.close()


def loaded_transfer(session: Session) -> int:
    """Bytes that loading a program placed."""
    loaded: Transfer = session.transferred.loaded
    return loaded.state_to_device_bytes
