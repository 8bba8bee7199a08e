"""The contract of every device: what it must say of itself, and what a program loaded on it can do.

A device is one module of this package, with one class that `registry.register` takes. It is opened as a context manager
and loads compiled programs into sessions; closing it closes what it loaded. Checking, counting of transferred bytes and
residency are done here, once; a device supplies raw operations (the methods with an underscore).

`accelerator.AcceleratorDevice` adds memory, `embedded.EmbeddedDevice` an image.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import TracebackType
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from tilegrad.build.lock import Claim
from tilegrad.compiled import Compiled
from tilegrad.devices.companion import Companion, matters, no_loader
from tilegrad.devices.measure import COMPUTE_SECONDS, TRANSFER_SECONDS, WALL_SECONDS, Extent, Measurement, measure
from tilegrad.devices.packed import total_bytes
from tilegrad.devices.peak import Peak, described_peak
from tilegrad.devices.residency import DEVICE, HOST, Residency, Transfer, Transfers
from tilegrad.errors import UserError
from tilegrad.ir.graph import Graph
from tilegrad.ir.program import ENTRIES, Role, StateTensor
from tilegrad.ir.types import TensorType
from tilegrad.learned import folded_names, learned, module_state
from tilegrad.passes.index_bounds import index_bounds
from tilegrad.sequence.timing import EntryTiming
from tilegrad.targets import base as targets
from tilegrad.targets.base import Target

FloatArrays = dict[str, npt.NDArray[Any]]
Array = npt.NDArray[Any]
AnySession = TypeVar("AnySession", bound="Session")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Capabilities:
    """What a device can do; the conformance tests and the commands ask this and never the device's name.

    `runs` is False where programs are checked and not run. `is_interactive` is False where a run is decided when it
    is built, so that nothing can be sent or read while it runs. `counters` are what `measure` may be asked for.
    `estimates_cycles` says that cycles come from a model of the chip. `has_process` says that a process of its own
    runs each program, so that a crash is survived. `is_exclusive` says that one process at a time may open it.
    `profiles` says that a training can be told nest by nest: where its cycles went.
    """

    runs: bool = True
    is_interactive: bool = True
    counters: tuple[str, ...] = (WALL_SECONDS, COMPUTE_SECONDS, TRANSFER_SECONDS)
    estimates_cycles: bool = False
    has_process: bool = True
    is_exclusive: bool = False
    profiles: bool = False


def one_at_a_time(
    method: Callable[Concatenate[AnySession, Arguments], Result],
) -> Callable[Concatenate[AnySession, Arguments], Result]:
    """For what is more than one exchange with a device, or changes what a session knows of it."""

    @functools.wraps(method)
    def locked(session: AnySession, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with session._lock:
            return method(session, *arguments, **named)

    return locked


class Session(ABC):
    """A program loaded on a device. State lives on the device between calls.

    Threads may share a session: each call is finished before another begins, in no particular order.

    One set of inputs and one set of outputs are on the device at a time: those placed and those made last.
    """

    counters: tuple[str, ...] = Capabilities().counters

    def __init__(self, compiled: Compiled, residency: Residency | None = None) -> None:
        self.compiled = compiled
        self._lock = threading.RLock()
        self.residency = residency or Residency()
        placed = sum(tensor.type.size_bytes for tensor in compiled.program.state)
        self.transferred = Transfers(Transfer(state_to_device_bytes=placed))
        self._tensors = {tensor.name: tensor for tensor in compiled.program.state}
        self._index_bounds = index_bounds(compiled.program.entries["infer"])
        self._placed: str | None = None
        self._placed_inputs: Sequence[Array] = ()
        self._results: tuple[str, list[Array] | None] | None = None
        self._host_gradients: FloatArrays | None = None
        self._minibatches = 0
        self.undone: list[tuple[int, str]] = []  # what a guard has undone: in which mini-batch, and why
        self._companion = Companion(compiled, no_loader) if compiled.program.is_fused else None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- what a device supplies; arguments are checked already

    @abstractmethod
    def _place(self, entry: str, inputs: Sequence[Array]) -> None:
        """Copies inputs, in the order of the entry's graph, to where the entry reads them."""

    @abstractmethod
    def _call(self, entry: str, inputs: Sequence[Array] | None, wants_outputs: bool) -> list[Array] | None:
        """Runs an entry on these inputs, or on those placed last, and returns its outputs where they are wanted.

        A label outside the classes is `bad_label(compiled)`, and nothing was computed.
        """

    @abstractmethod
    def _fetch(self, entry: str) -> list[Array]:
        """The outputs of the last call, which was of this entry."""

    @abstractmethod
    def _count(self, entry: str) -> Mapping[str, float]:
        """Runs an entry on the inputs placed last, and returns the counters that the device itself has.

        `compute_seconds` is one of them on every device; wall and transfer seconds are measured around this.
        """

    @abstractmethod
    def _read(self, tensor: StateTensor) -> Array:
        """A copy of one state tensor."""

    @abstractmethod
    def _write(self, tensor: StateTensor, value: Array) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Ends what runs and frees what was taken; calls this one, too. Closing twice is no error."""
        if self._companion is not None:
            self._companion.close()

    # ---- entries

    @one_at_a_time
    def place(self, entry: str, inputs: Sequence[npt.ArrayLike]) -> None:
        """Puts the inputs of an entry on the device, for calls without inputs. Needs inputs to live on the device."""
        self._check_inputs_stay()
        self.transferred.begin_call()
        self._place_checked(entry, self._as_inputs(entry, inputs))

    @one_at_a_time
    def launch(self, entry: str, inputs: Sequence[npt.ArrayLike] | None = None) -> None:
        """Runs one entry on inputs in the order of its graph, or on those placed last.

        Outputs come back at once or when `outputs` asks for them, as the program's residency says.
        """
        graph = self._entry(entry)
        arrays = None if inputs is None else self._as_inputs(entry, inputs)
        if arrays is None and graph.inputs:
            self._check_inputs_stay()
            self._check_placed(entry)
        self.transferred.begin_call()
        wants_outputs = bool(graph.outputs) and self.residency.outputs == HOST
        before = self._before(entry)
        results = self._call(entry, arrays, wants_outputs)
        if arrays:
            self._placed = entry
            self._placed_inputs = arrays
            self.transferred.add(Transfer(input_bytes=sum(array.nbytes for array in arrays)))
        if self._companion is not None and entry == "step":
            self._companion.remember(before, self._placed_inputs)
        if graph.outputs:
            self._results = (entry, results)
        if results is not None:
            self.transferred.add(Transfer(output_bytes=sum(array.nbytes for array in results)))
        self._host_gradients = None
        self._minibatches += entry == "step"
        if entry == "step" and self.residency.gradients == HOST:
            self._host_gradients = self.gradients()

    @one_at_a_time
    def outputs(self, entry: str) -> list[Array]:
        """The outputs of the last call, which was of this entry. Brings them to the host where they are not."""
        if self._results is None or self._results[0] != entry:
            raise UserError(f"no outputs of {entry} are on the device", stage="run", hint=f"launch {entry} first")
        results = self._results[1]
        if results is None:
            results = self._fetch(entry)
            self._results = (entry, results)
            self.transferred.add(Transfer(output_bytes=sum(array.nbytes for array in results)))
        return list(results)

    @one_at_a_time
    def run(self, entry: str, inputs: Sequence[npt.ArrayLike] | None = None) -> list[Array]:
        """Runs one entry and returns its outputs."""
        self.launch(entry, inputs)
        return self.outputs(entry) if self._entry(entry).outputs else []

    @one_at_a_time
    def step(self, *inputs: npt.ArrayLike) -> float:
        """One mini-batch: forward, backward, accumulate. Takes the data and then the targets, in the order of the
        entry's inputs, or nothing: those placed last. Returns the loss; `launch` leaves it on the device."""
        if len(inputs) == 1 and len(self._entry("step").inputs) == 2:
            raise UserError("step takes both data and target, or neither", stage="run")
        return float(np.asarray(self.run("step", inputs or None)[0]).reshape(-1)[0])

    @one_at_a_time
    def update(self) -> None:
        """One optimizer step."""
        self.launch("update", [])

    @one_at_a_time
    def infer(self, *inputs: npt.ArrayLike) -> Array:
        """The first output; `run` returns all of them."""
        return self.run("infer", inputs or None)[0]

    def steps(self, batches: Iterable[Sequence[npt.ArrayLike]]) -> Iterator[float]:
        """Mini-batches one after another: the loss of each, when gradients and statistics have it in them.

        A session over several devices computes those of one call at the same time, so a call is at most an update's.
        """
        for batch in batches:
            yield self.step(*batch)

    @one_at_a_time
    def exchange(
        self,
        entry: str | None,
        inputs: Sequence[npt.ArrayLike] | None,
        writes: Mapping[str, npt.ArrayLike],
        reads: Sequence[str],
    ) -> tuple[list[Array], Mapping[str, Array]]:
        """Writes state, runs an entry, and reads state, with nothing between them: one exchange with a device that
        takes requests ahead of its answers. Returns the outputs and what was read. `None` runs nothing."""
        arrays = None if entry is None else self._as_inputs(entry, inputs or ())
        written = [(self._tensor(name), value) for name, value in writes.items()]
        put = [(found, as_declared(value, found.type, f"tensor '{found.name}'")) for found, value in written]
        for name in reads:
            self._tensor(name)
        self.transferred.begin_call()
        outputs, made = self._exchange(entry, arrays, put, reads)
        self._host_gradients = None
        if entry is not None:
            self._placed, self._placed_inputs = entry, arrays or ()
            self._results = (entry, outputs) if self._entry(entry).outputs else self._results
            self._minibatches += entry == "step"
        self.transferred.add(
            Transfer(
                sum(array.nbytes for array in arrays or ()),
                sum(array.nbytes for array in outputs),
                sum(array.nbytes for _, array in put),
                total_bytes(made),
            )
        )
        return outputs, made

    @one_at_a_time
    def exchange_checked(
        self, entry: str | None, inputs: Sequence[Array], writes: Mapping[str, Array], reads: Sequence[str]
    ) -> tuple[list[Array], Mapping[str, Array]]:
        """The same for arrays that were checked already, as they are for every share of an update."""
        outputs, made = self._exchange(
            entry,
            inputs,
            [(self._tensors[name], value) for name, value in writes.items()],
            reads,
        )
        self._host_gradients = None
        self._minibatches += entry == "step"
        return outputs, made

    def _exchange(
        self,
        entry: str | None,
        inputs: Sequence[Array] | None,
        writes: Sequence[tuple[StateTensor, Array]],
        reads: Sequence[str],
    ) -> tuple[list[Array], Mapping[str, Array]]:
        """One request after another; a device that need not wait for each answer does better."""
        for tensor, value in writes:
            self._write(tensor, value)
        outputs: list[Array] = []
        if entry is not None:
            outputs = self._call(entry, inputs, bool(self._entry(entry).outputs)) or []
        return outputs, {name: self._read(self._tensors[name]) for name in reads}

    # ---- state

    @one_at_a_time
    def read(self, tensor: str) -> Array:
        """A copy of one state tensor."""
        value = self._read(self._tensor(tensor))
        self.transferred.add(Transfer(state_from_device_bytes=value.nbytes))
        return value

    @one_at_a_time
    def write(self, tensor: str, value: npt.ArrayLike) -> None:
        found = self._tensor(tensor)
        array = as_declared(value, found.type, f"tensor '{tensor}'")
        if self.compiled.plan.is_read_only(tensor):
            raise UserError(
                f"tensor '{tensor}' cannot be written: it is a constant of the program, in flash",
                stage="run",
                expected="a tensor that trains, or state that training changes",
                got=f"role {found.role.value}",
                hint="compile the model with other values (--weights), or train it (--train)",
            )
        self._write(found, array)
        self.transferred.add(Transfer(state_to_device_bytes=array.nbytes))
        self._host_gradients = None

    def _read_all(self, *roles: Role, by_owner: bool = False) -> FloatArrays:
        tensors = self.compiled.program.with_role(*roles)
        return {(t.owner if by_owner and t.owner else t.name): self.read(t.name) for t in tensors}

    @one_at_a_time
    def weights(self) -> FloatArrays:
        """Every trained parameter, by the name of the program's tensor."""
        return self._read_all(Role.PARAMETER)

    @one_at_a_time
    def parameters(self) -> FloatArrays:
        """All that was learned, by initializer name: trained parameters and, where the recipe trains them, running
        statistics. What BatchNormalization was folded into is called NAME.folded: it is not the model's NAME."""
        return learned(self.compiled, self.weights(), self.statistics)

    @one_at_a_time
    def set_parameters(self, values: Mapping[str, npt.ArrayLike]) -> None:
        names = {saved: name for name, saved in folded_names(self.compiled).items()}
        for name, value in values.items():
            self.write(names.get(name, name), value)

    def state_dict(self) -> dict[str, Array]:
        """What `load_state_dict` of the torch module takes, whole: learned, frozen and never touched tensors."""
        return module_state(self.compiled, self.parameters(), self._minibatches)

    @one_at_a_time
    def gradients(self) -> FloatArrays:
        """The accumulated gradient of each trained parameter, by the parameter's name.

        A program whose optimizer is fused keeps none: its companion gives those of the last step (devices/companion.py
        says at what cost).
        """
        if self._host_gradients is not None:
            return {name: array.copy() for name, array in self._host_gradients.items()}
        if self._companion is not None:
            return self._companion.gradients()
        return self._read_all(Role.GRADIENT, by_owner=True)

    def _before(self, entry: str) -> FloatArrays:
        """The state before a step, where its gradients may be asked for and are not kept. Not counted as transferred:
        the program does not need it."""
        if self._companion is None or entry != "step":
            return {}
        is_read_only = self.compiled.plan.is_read_only
        kept = (tensor for tensor in self.compiled.program.state if matters(tensor) and not is_read_only(tensor.name))
        return {tensor.name: self._read(tensor) for tensor in kept}

    @one_at_a_time
    def statistics(self) -> FloatArrays:
        """Running means and variances. A frozen variance is not on the device: it is the model's."""
        tensors = self.compiled.program.with_role(Role.STATISTIC)
        constants = self.compiled.model.graph.constants
        frozen = {t.owner: constants[t.owner].array.copy() for t in tensors if t.owner is not None}
        return frozen | {t.name: self.read(t.name) for t in tensors if t.owner is None}

    @one_at_a_time
    def optimizer_state(self) -> FloatArrays:
        return self._read_all(Role.OPTIMIZER, Role.HYPER)

    # ---- measuring

    @one_at_a_time
    def measure(
        self,
        entry: str,
        inputs: Sequence[npt.ArrayLike] | None = None,
        *,
        repeat: int = 10,
        warmup: int = 1,
        number: int = 1,
        min_seconds: float = 0.0,
        counters: Sequence[str] | None = None,
        expected: Mapping[str, npt.ArrayLike] | None = None,
    ) -> Measurement:
        """Counters of `repeat` calls, each from the same state, which is put back at the end.

        A row is the mean of `number` calls, and of as many more as it takes until they have lasted `min_seconds`.

        `expected` maps outputs, or state that the entry writes, to what they should be. A result that is not, or calls
        whose bits differ, raise VerificationError: there is no figure for a wrong result.
        """
        extent = Extent(repeat, warmup, number, min_seconds)
        return measure(self, entry, inputs, extent, counters, expected)

    @one_at_a_time
    def count(self, entry: str) -> Mapping[str, float]:
        """One call on the inputs placed last, outputs left on the device: what the device itself counted."""
        before = self._before(entry)
        counted = self._counted(entry)
        if self._companion is not None and entry == "step":
            self._companion.remember(before, self._placed_inputs)
        return counted

    def _counted(self, entry: str) -> Mapping[str, float]:
        """The same where state is put back afterwards, so that gradients stay those of the step before."""
        graph = self._entry(entry)
        self._check_placed(entry)
        self.transferred.begin_call()
        counted = self._count(entry)
        self._host_gradients = None
        if graph.outputs:
            self._results = (entry, None)
        return counted

    @one_at_a_time
    def seconds_per_call(self, entry: str, calls: int) -> float:
        """Compute time of one call, averaged over `calls`, on the inputs last given."""
        return sum(self._count(entry)[COMPUTE_SECONDS] for _ in range(calls)) / max(calls, 1)

    def timings(self) -> dict[str, EntryTiming]:
        """Estimated cycles of one call of each entry run so far, where the device has a notion of them."""
        return {}

    def instructions(self) -> dict[str, tuple[int, ...]]:
        """Of each core, in the first call of each entry run so far, where the device counts them."""
        return {}

    # ---- checks

    def _entry(self, entry: str) -> Graph:
        if entry not in ENTRIES:
            raise UserError(f"there is no entry '{entry}'", stage="run", expected=" or ".join(ENTRIES), got=entry)
        return self.compiled.program.entries[entry]

    def _tensor(self, name: str) -> StateTensor:
        if name not in self._tensors:
            near = get_close_matches(name, self._tensors, n=1)
            raise UserError(
                f"the program has no tensor '{name}'",
                stage="run",
                hint=f"did you mean '{near[0]}'?" if near else None,
            )
        return self._tensors[name]

    def _as_inputs(self, entry: str, inputs: Sequence[npt.ArrayLike]) -> list[Array]:
        """Inputs as data of the declared types."""
        graph = self._entry(entry)
        if len(inputs) != len(graph.inputs):
            raise UserError(
                f"{entry} has a wrong number of inputs",
                stage="run",
                expected=str(len(graph.inputs)),
                got=str(len(inputs)),
            )
        arrays = [
            as_declared(value, graph.types[name], f"input '{name}' of {entry}")
            for name, value in zip(graph.inputs, inputs, strict=True)
        ]
        for name, array in zip(graph.inputs, arrays, strict=True):
            self._check_indices(entry, name, array)
        return arrays

    def _check_indices(self, entry: str, name: str, array: Array) -> None:
        rows = self._index_bounds.get(name)
        if rows is not None and array.size and not (array.min() >= -rows and array.max() < rows):
            raise UserError(
                f"input '{name}' of {entry} has an index out of range",
                stage="run",
                expected=f"0 to {rows - 1}",
                got=f"{array.min()} to {array.max()}",
            )

    def _check_inputs_stay(self) -> None:
        if self.residency.inputs != DEVICE:
            raise UserError(
                "inputs live on the host",
                stage="run",
                expected="a program loaded with Residency(inputs='device')",
                got=f"Residency(inputs='{self.residency.inputs}')",
                hint="give the inputs with each call",
            )

    def _check_placed(self, entry: str) -> None:
        graph = self._entry(entry)
        if graph.inputs and self._placed != entry:
            raise UserError(
                f"no inputs of {entry} are on the device",
                stage="run",
                expected=", ".join(f"'{name}'" for name in graph.inputs),
                hint="give them with the call, or place them first",
            )

    def _place_checked(self, entry: str, arrays: Sequence[Array]) -> None:
        self._place(entry, arrays)
        self._placed = entry
        self._placed_inputs = arrays
        self.transferred.add(Transfer(input_bytes=sum(array.nbytes for array in arrays)))


def bad_label(compiled: Compiled) -> UserError:
    classes = compiled.program.label_classes
    return UserError("a label is outside the classes", stage="run", expected=f"0 to {(classes or 1) - 1}")


def as_declared(value: npt.ArrayLike, wanted: TensorType, what: str) -> Array:
    """A value as an array of the declared type; a wrong shape, or numbers that the type cannot hold, are refused."""
    array = np.asarray(value)
    if array.shape != wanted.shape:
        raise UserError(
            f"{what} has a wrong shape", stage="run", expected=str(list(wanted.shape)), got=str(list(array.shape))
        )
    if array.dtype.kind not in ("biuf" if wanted.dtype.is_float else "biu"):
        raise UserError(
            f"{what} has a wrong element type",
            stage="run",
            expected=str(wanted.dtype),
            got=str(array.dtype),
            hint="whole numbers are given as integers: value.astype('int64')" if array.dtype.kind == "f" else None,
        )
    if array.dtype == wanted.dtype.numpy:
        return array.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(wanted.dtype.numpy)
    if not wanted.dtype.is_float and not np.array_equal(converted, array):
        raise UserError(
            f"{what} has numbers that its type cannot hold", stage="run", expected=str(wanted.dtype), got=_range(array)
        )
    return converted


def _range(array: Array) -> str:
    return f"{array.min()} to {array.max()}, {array.dtype}"


class Device(ABC):
    """`name` is the full device name; `kind` its family (host, sim, qemu, opencl, …)."""

    kind: ClassVar[str]
    capabilities: Capabilities

    def __init__(self, name: str, *, use_cache: bool = True) -> None:
        self.name = name
        self.use_cache = use_cache
        self._sessions: list[Session] = []
        self._claim = Claim(name) if self.capabilities.is_exclusive else None

    @classmethod
    @abstractmethod
    def names(cls) -> tuple[str, ...]:
        """The device names of this kind; where they cannot be found out, those that would be looked for.

        Asked only when they matter: it may look for hardware.
        """

    @classmethod
    @abstractmethod
    def target_of(cls, name: str) -> str:
        """The target that programs for this device are compiled for."""

    @classmethod
    @abstractmethod
    def missing(cls, name: str) -> str | None:
        """Why this device cannot be used here, with the package that brings what is missing; None if it can."""

    @classmethod
    def project_files(cls, compiled: Compiled) -> Mapping[str, bytes]:
        """The C project as this device builds it, by path."""
        return compiled.project.files

    @abstractmethod
    def _load(self, compiled: Compiled, residency: Residency) -> Session: ...

    @property
    def target_name(self) -> str:
        return self.target_of(self.name)

    @property
    def identity(self) -> str:
        """What tells this device from every other on this machine: `opencl:0` is not `opencl:1`."""
        return self.name

    @property
    def counters(self) -> tuple[str, ...]:
        return self.capabilities.counters

    def peak(self) -> Peak:
        """The most that the device can do: multiply-adds and bytes. One that does not know is refused, not guessed."""
        target = targets.get(self.target_name)
        if target.is_flat:
            raise UserError(
                f"device '{self.name}' does not know its peak",
                stage="measure",
                expected="a device that is described by cycles, or that is this machine",
                got=self.name,
                hint="such as sim:siracusa or host",
            )
        return described_peak(target)

    @classmethod
    def check_target(cls, name: str, target: Target) -> None:
        """Refuses another chip, and more memory than the chip has: only a simulator can have that."""
        own = targets.get(cls.target_of(name))
        if target.name != own.name:
            raise UserError(
                f"the program is compiled for target '{target.name}', not for device '{name}'",
                stage="load",
                expected=f"target '{own.name}'",
                got=f"target '{target.name}'",
                hint=f"compile with --device {name}",
            )
        if cls.capabilities.estimates_cycles:
            return
        for memory in target.larger_than(own):
            raise UserError(
                f"device '{name}' has less {memory.name} than the program may use",
                stage="target",
                expected=f"at most {own.memory(memory.name).capacity_bytes} bytes",
                got=f"{memory.capacity_bytes} bytes",
                hint=f"a smaller --{memory.name.lower()}; only a simulated chip (sim:{own.name}) can have more",
            )

    def load(self, compiled: Compiled, residency: Residency | None = None) -> Session:
        self.check_target(self.name, compiled.target)
        session = self._load(compiled, residency or Residency())
        session.counters = self.counters
        if compiled.program.is_fused:
            session._companion = Companion(compiled, self.load)
        self._sessions.append(session)
        return session

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            while self._sessions:
                self._sessions.pop().close()
        finally:
            if self._claim is not None:
                self._claim.release()


def unknown_device(name: str, known: Sequence[str]) -> UserError:
    near = get_close_matches(name, known, n=1, cutoff=0.4)
    return UserError(
        f"there is no device '{name}'",
        stage="device",
        expected=" or ".join(known),
        got=name,
        hint=f"did you mean '{near[0]}'?" if near else "`tilegrad devices` lists them",
    )
