"""What a device is, and how one is found by name.

A device is one module here. It is opened as a context manager and loads compiled programs into sessions; closing it
closes what it loaded. An incomplete device cannot be made: the methods are abstract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tilegrad.errors import UserError
from tilegrad.ir.program import Role
from tilegrad.ir.types import TensorType
from tilegrad.pipeline import Compiled
from tilegrad.scheduling.clock import EntryTiming

FloatArrays = dict[str, npt.NDArray[Any]]


class Session(ABC):
    """A program loaded on a device. State lives on the device between calls."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def run(self, entry: str, inputs: Sequence[npt.ArrayLike]) -> list[npt.NDArray[Any]]:
        """Runs one entry on inputs in the order of its graph; returns its outputs."""

    @abstractmethod
    def read(self, tensor: str) -> npt.NDArray[Any]:
        """Bytes of one state tensor, as an array of its own."""

    @abstractmethod
    def write(self, tensor: str, value: npt.ArrayLike) -> None: ...

    @abstractmethod
    def seconds_per_call(self, entry: str, calls: int) -> float:
        """CPU time of one call, averaged over `calls`, on the inputs last given."""

    @abstractmethod
    def close(self) -> None: ...

    def timings(self) -> dict[str, EntryTiming]:
        """Estimated cycles of one call of each entry run so far, where the device has a notion of them."""
        return {}

    def step(self, x: npt.ArrayLike, y: npt.ArrayLike) -> float:
        """One mini-batch: forward, backward, accumulate. Returns the loss."""
        return float(self.run("step", [x, y])[0])

    def update(self) -> None:
        """One optimizer step."""
        self.run("update", [])

    def infer(self, x: npt.ArrayLike) -> npt.NDArray[Any]:
        return self.run("infer", [x])[0]

    def _read_all(self, *roles: Role, by_owner: bool = False) -> FloatArrays:
        tensors = self.compiled.program.with_role(*roles)
        return {(t.owner if by_owner and t.owner else t.name): self.read(t.name) for t in tensors}

    def parameters(self) -> FloatArrays:
        """Every trained parameter, by initializer name."""
        return self._read_all(Role.PARAMETER)

    def set_parameters(self, values: Mapping[str, npt.ArrayLike]) -> None:
        for name, value in values.items():
            self.write(name, value)

    def gradients(self) -> FloatArrays:
        """The accumulated gradient of each trained parameter, by the parameter's name."""
        return self._read_all(Role.GRADIENT, by_owner=True)

    def statistics(self) -> FloatArrays:
        """Running means and variances."""
        return self._read_all(Role.STATISTIC)

    def optimizer_state(self) -> FloatArrays:
        return self._read_all(Role.OPTIMIZER, Role.HYPER)

    def _as_input(self, entry: str, position: int, value: npt.ArrayLike) -> npt.NDArray[Any]:
        """An input as data of the declared type."""
        graph = self.compiled.program.entries[entry]
        name = graph.inputs[position]
        return as_declared(value, graph.types[name], f"input '{name}' of {entry}")


def as_declared(value: npt.ArrayLike, wanted: TensorType, what: str) -> npt.NDArray[Any]:
    """A value as an array of the declared type; a wrong shape, or numbers that the type cannot hold, are refused."""
    array = np.asarray(value)
    if array.shape != wanted.shape:
        raise UserError(
            f"{what} has a wrong shape", stage="run", expected=str(list(wanted.shape)), got=str(list(array.shape))
        )
    is_number = array.dtype.kind in "biuf"
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(wanted.dtype.numpy) if is_number else array
    if not is_number or not (wanted.dtype.is_float or np.array_equal(converted, array)):
        raise UserError(
            f"{what} has a wrong element type", stage="run", expected=str(wanted.dtype), got=str(array.dtype)
        )
    return converted


class Device(ABC):
    """`name` is the full device name; `kind` its family (host, sim, qemu, opencl, …)."""

    kind: ClassVar[str]
    estimates_cycles: ClassVar[bool] = False
    target_name: str

    def __init__(self, name: str, *, use_cache: bool = True) -> None:
        self.name = name
        self.use_cache = use_cache
        self._sessions: list[Session] = []

    @classmethod
    @abstractmethod
    def names(cls) -> tuple[str, ...]:
        """The device names of this kind."""

    @classmethod
    def target_of(cls, name: str) -> str:
        """The target that programs for this device are compiled for."""
        return cls.target_name

    @classmethod
    @abstractmethod
    def missing(cls, name: str) -> str | None:
        """Why this device cannot be used here, or None if it can."""

    @abstractmethod
    def _load(self, compiled: Compiled) -> Session: ...

    def load(self, compiled: Compiled) -> Session:
        if compiled.target.name != self.target_name:
            raise UserError(
                f"the program is compiled for target '{compiled.target.name}', not for device '{self.name}'",
                stage="load",
                expected=f"target '{self.target_name}'",
                got=f"target '{compiled.target.name}'",
                hint=f"compile with --device {self.name}",
            )
        session = self._load(compiled)
        self._sessions.append(session)
        return session

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        while self._sessions:
            self._sessions.pop().close()


def unknown_device(name: str, known: Sequence[str]) -> UserError:
    near = get_close_matches(name, known, n=1, cutoff=0.4)
    return UserError(
        f"there is no device '{name}'",
        stage="device",
        expected=" or ".join(known),
        got=name,
        hint=f"did you mean '{near[0]}'?" if near else "`tilegrad devices` lists them",
    )
