"""Gradients of a program that keeps none: its optimizer is fused into the backward pass, as it is on scratchpads.

The unfused program has the same bits. So a session keeps what its last step began from, and where gradients are asked
for, the unfused companion takes that one step. It is compiled, built and loaded when it is first needed, and stays.

What this costs: a copy of the state (optimizer slots apart) before every step; once, the time of compiling and building
the companion; and a step on it for every step whose gradients are asked for. `pipeline.unfused` has no such costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilegrad.compiled import Compiled
from tilegrad.errors import UserError
from tilegrad.ir.program import Role, StateTensor
from tilegrad.pipeline import unfused

if TYPE_CHECKING:
    from tilegrad.devices.base import Array, FloatArrays, Session

Loader = Callable[[Compiled], "Session"]


def matters(tensor: StateTensor) -> bool:
    """Whether a gradient depends on what a state tensor holds."""
    return tensor.role is not Role.OPTIMIZER


class Companion:
    """The unfused program beside a session of a fused one."""

    def __init__(self, compiled: Compiled, load: Loader) -> None:
        self._fused = compiled
        self._load = load
        self._session: Session | None = None
        self._before: FloatArrays = {}
        self._inputs: Sequence[Array] | None = None
        self._gradients: FloatArrays | None = None

    def remember(self, before: FloatArrays, inputs: Sequence[Array]) -> None:
        """What a step begins from."""
        self._before, self._inputs, self._gradients = before, inputs, None

    def gradients(self) -> FloatArrays:
        """Of the step that was remembered last, by the parameter's name; zeros before the first."""
        if self._inputs is None:
            trained = self._fused.program.trainable
            return {tensor.name: np.zeros(tensor.type.shape, tensor.type.dtype.numpy) for tensor in trained}
        if self._gradients is None:
            self._gradients = self._step(self._inputs)
        return {name: array.copy() for name, array in self._gradients.items()}

    def _step(self, inputs: Sequence[Array]) -> FloatArrays:
        session = self._loaded()
        for tensor in session.compiled.program.state:
            if matters(tensor) and not session.compiled.plan.is_read_only(tensor.name):
                session.write(tensor.name, self._start_of(tensor))
        session.run("step", inputs)
        return session.gradients()

    def _loaded(self) -> Session:
        if self._session is None:
            self._session = self._load(unfused(self._fused))
        return self._session

    def _start_of(self, tensor: StateTensor) -> Array:
        """As the fused program had it; gradients and the flag that resets them are the companion's own."""
        if tensor.name in self._before:
            return self._before[tensor.name]
        if tensor.initial is not None:
            return tensor.initial.array
        return np.zeros(tensor.type.shape, tensor.type.dtype.numpy)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def no_loader(compiled: Compiled) -> Session:
    raise UserError(
        f"'{compiled.name}' keeps no gradients: its optimizer is fused into the backward pass",
        stage="run",
        hint="load it with device.load, or load tg.unfused(program), which has the same bits",
    )
