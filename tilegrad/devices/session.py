"""A program loaded on a device: what it can be asked for, checked and counted once for every device.

A device supplies raw operations (the methods with an underscore).
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import TracebackType
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from tilegrad.compiled import Compiled
from tilegrad.devices.capabilities import Capabilities
from tilegrad.devices.companion import Companion, matters, no_loader
from tilegrad.devices.measure import COMPUTE_SECONDS, Extent, Measurement, measure
from tilegrad.devices.packed import total_bytes
from tilegrad.devices.residency import DEVICE, HOST, Residency, Transfer, Transfers
from tilegrad.devices.values import Array, FloatArrays, Inputs, as_declared
from tilegrad.errors import UserError
from tilegrad.ir.graph import Graph
from tilegrad.ir.program import ENTRIES, Role, StateTensor
from tilegrad.learned import folded_names, learned, module_state
from tilegrad.passes.index_bounds import index_bounds
from tilegrad.sequence.timing import EntryTiming

AnySession = TypeVar("AnySession", bound="Session")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Exchanged = tuple[list[Array], Mapping[str, Array]]
"""Outputs of an entry, and state that was read after it."""


def one_at_a_time(
    method: Callable[Concatenate[AnySession, Arguments], Result],
) -> Callable[Concatenate[AnySession, Arguments], Result]:
    """For what is more than one exchange with a device, or changes what a session knows of it."""

    @functools.wraps(method)
    def locked(session: AnySession, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with session._lock:
            return method(session, *arguments, **named)

    return locked


@dataclass(frozen=True, eq=False)
class Begun:
    """An exchange with a session, whose lock it has while it waits."""

    _lock: threading.RLock
    _finish: Callable[[], Exchanged]

    def finish(self) -> Exchanged:
        with self._lock:
            return self._finish()


class Session(ABC):
    """A program loaded on a device. State lives on the device between calls.

    Threads may share a session: each call is finished before another begins, in no particular order.

    One set of inputs and one set of outputs are on the device at a time: those placed and those made last.
    """

    counters: tuple[str, ...] = Capabilities().counters
    takes_ahead: bool = Capabilities().takes_ahead

    def __init__(self, compiled: Compiled, residency: Residency | None = None) -> None:
        self.compiled = compiled
        self._lock = threading.RLock()
        self.residency = residency or Residency()
        self._places = self.residency.checked(compiled.program)
        placed = sum(tensor.type.size_bytes for tensor in compiled.program.state)
        self.transferred = Transfers(Transfer(state_to_device_bytes=placed))
        self._tensors = {tensor.name: tensor for tensor in compiled.program.state}
        self._index_bounds = index_bounds(compiled.program.entries["infer"])
        self._placed: str | None = None
        self._placed_inputs: list[Array | None] = []
        self._results: tuple[str, dict[str, Array]] | None = None
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
    def _place(self, entry: str, inputs: Sequence[Array | None]) -> None:
        """Copies inputs, in the order of the entry's graph, to where the entry reads them; None is left as it is."""

    @abstractmethod
    def _call(self, entry: str, inputs: Sequence[Array | None], wanted: Sequence[int]) -> list[Array]:
        """Runs an entry on these inputs, and for None on what was placed last; returns the outputs that are wanted, by
        their numbers in ascending order.

        A label outside the classes is `bad_label(compiled)`, and nothing was computed.
        """

    @abstractmethod
    def _fetch(self, entry: str, wanted: Sequence[int]) -> list[Array]:
        """Outputs of the last call, which was of this entry."""

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
    def place(self, entry: str, inputs: Inputs) -> None:
        """Puts inputs of an entry on the device, for calls without them: all, or some by name. Needs them to live on
        the device."""
        arrays = self._as_some_inputs(entry, inputs)
        self._check_inputs_stay(entry, [array is not None for array in arrays])
        self.transferred.begin_call()
        self._place_checked(entry, arrays)

    @one_at_a_time
    def launch(self, entry: str, inputs: Inputs | None = None) -> None:
        """Runs one entry on inputs in the order of its graph. Those that are not given (None, or not among the names
        of a mapping) are those placed last.

        Outputs come back at once or when `outputs` asks for them, as the program's residency says.
        """
        graph = self._entry(entry)
        arrays = self._as_some_inputs(entry, {} if inputs is None else inputs)
        self._check_inputs_stay(entry, [array is None for array in arrays])
        self._check_placed(entry, arrays)
        self.transferred.begin_call()
        here = [i for i, name in enumerate(graph.outputs) if self._places[name] == HOST]
        before = self._before(entry)
        results = self._call(entry, arrays, here)
        self._now_placed(entry, arrays)
        if self._companion is not None and entry == "step":
            self._companion.remember(before, [array for array in self._placed_inputs if array is not None])
        if graph.outputs:
            self._results = (entry, {})
            self._came(entry, here, results)
        self._host_gradients = None
        self._minibatches += entry == "step"
        if entry == "step" and self._gradients_here:
            self._host_gradients = self._read_gradients(self._gradients_here)

    @one_at_a_time
    def outputs(self, entry: str, names: Sequence[str] | None = None) -> list[Array]:
        """The outputs of the last call, which was of this entry, or those with these names. Brings them to the host
        where they are not."""
        if self._results is None or self._results[0] != entry:
            raise UserError(f"no outputs of {entry} are on the device", stage="run", hint=f"launch {entry} first")
        made, results = self._entry(entry).outputs, self._results[1]
        wanted = made if names is None else tuple(names)
        for name in wanted:
            if name not in made:
                expected = " or ".join(f"'{each}'" for each in made)
                raise UserError(f"{entry} has no output '{name}'", stage="run", expected=expected, got=name)
        missing = [i for i, name in enumerate(made) if name in wanted and name not in results]
        if missing:
            self._came(entry, missing, self._fetch(entry, missing))
        return [results[name] for name in wanted]

    def _came(self, entry: str, numbers: Sequence[int], arrays: Sequence[Array]) -> None:
        """Outputs, from the device."""
        assert self._results is not None
        names = self._entry(entry).outputs
        self._results[1].update((names[i], array) for i, array in zip(numbers, arrays, strict=True))
        self.transferred.add(Transfer(output_bytes=sum(array.nbytes for array in arrays)))

    @one_at_a_time
    def run(self, entry: str, inputs: Inputs | None = None) -> list[Array]:
        """Runs one entry and returns its outputs."""
        self.launch(entry, inputs)
        return self.outputs(entry) if self._entry(entry).outputs else []

    @one_at_a_time
    def step(self, *inputs: npt.ArrayLike) -> float:
        """One mini-batch: forward, backward, accumulate. Takes the data and then the targets, in the order of the
        entry's inputs, or nothing: those placed last. Returns the loss; `launch` leaves it on the device."""
        if len(inputs) == 1 and len(self._entry("step").inputs) == 2:
            raise UserError("step takes both data and target, or neither", stage="run")
        self.launch("step", inputs or None)
        (loss,) = self.outputs("step", self._entry("step").outputs[:1])
        return float(np.asarray(loss).reshape(-1)[0])

    @one_at_a_time
    def update(self) -> None:
        """One optimizer step."""
        self.launch("update", [])

    @one_at_a_time
    def infer(self, *inputs: npt.ArrayLike) -> Array:
        """The first output; `run` returns all of them."""
        self.launch("infer", inputs or None)
        return self.outputs("infer", self._entry("infer").outputs[:1])[0]

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
    ) -> Exchanged:
        """Writes state, runs an entry, and reads state, with nothing between them: one exchange with a device that
        takes requests ahead of its answers. Returns the outputs and what was read. `None` runs nothing."""
        arrays = None if entry is None else self._as_inputs(entry, inputs or ())
        put = {n: as_declared(value, self._tensor(n).type, f"tensor '{n}'") for n, value in writes.items()}
        for name in reads:
            self._tensor(name)
        self.transferred.begin_call()
        outputs, read = self._begin(entry, arrays or (), put, reads)()
        self._host_gradients = None
        if entry is not None:
            self._placed, self._placed_inputs = entry, list(arrays or ())
            made = self._entry(entry).outputs
            self._results = (entry, dict(zip(made, outputs, strict=True))) if made else self._results
            self._minibatches += entry == "step"
        self.transferred.add(
            Transfer(
                sum(array.nbytes for array in arrays or ()),
                sum(array.nbytes for array in outputs),
                sum(array.nbytes for array in put.values()),
                total_bytes(read),
            )
        )
        return outputs, read

    @one_at_a_time
    def begin(
        self, entry: str | None, inputs: Sequence[Array], writes: Mapping[str, Array], reads: Sequence[str]
    ) -> Begun:
        """The same for arrays that were checked already, as they are for every share of an update. Where the session
        `takes_ahead`, another one may begin before this is finished."""
        finish = self._begin(entry, inputs, writes, reads)
        self._host_gradients = None
        self._minibatches += entry == "step"
        return Begun(self._lock, finish)

    @property
    def waits_on(self) -> int | None:
        """A descriptor that can be read when what was begun may be finished without waiting; None where nothing has to
        be waited for."""
        return None

    @property
    def is_lost(self) -> bool:
        """Whether what was begun will never be answered."""
        return False

    def _begin(
        self, entry: str | None, inputs: Sequence[Array], writes: Mapping[str, Array], reads: Sequence[str]
    ) -> Callable[[], Exchanged]:
        """One request after another, done when this returns; a device that need not wait for answers does better."""
        for name, value in writes.items():
            self._write(self._tensors[name], value)
        outputs: list[Array] = []
        if entry is not None:
            outputs = self._call(entry, inputs, range(len(self._entry(entry).outputs)))
        made = {name: self._read(self._tensors[name]) for name in reads}
        return lambda: (outputs, made)

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
        here = {name: array.copy() for name, array in (self._host_gradients or {}).items()}
        trained = [tensor.name for tensor in self.compiled.program.trainable]
        found = here | self._read_gradients([name for name in trained if name not in here])
        return {name: found[name] for name in trained if name in found}

    @functools.cached_property
    def _gradients_here(self) -> list[str]:
        """The parameters whose gradients are copied after every step."""
        rows = self.residency.placed(self.compiled.program)
        return [row.owner for row in rows if row.owner is not None and row.place == HOST]

    def _read_gradients(self, parameters: Sequence[str]) -> FloatArrays:
        if self._companion is not None:
            return {name: array for name, array in self._companion.gradients().items() if name in parameters}
        kept = {tensor.owner: tensor.name for tensor in self.compiled.program.with_role(Role.GRADIENT)}
        return {name: self.read(kept[name]) for name in parameters if name in kept}

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
        """As float32, whatever it is stored as."""
        found = self._read_all(Role.OPTIMIZER, Role.HYPER)
        halves = {tensor.name for tensor in self.compiled.program.state if tensor.type.dtype.is_half}
        return {name: array.astype(np.float32) if name in halves else array for name, array in found.items()}

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
            self._companion.remember(before, [array for array in self._placed_inputs if array is not None])
        return counted

    def _counted(self, entry: str) -> Mapping[str, float]:
        """The same where state is put back afterwards, so that gradients stay those of the step before."""
        graph = self._entry(entry)
        self._check_placed(entry)
        self.transferred.begin_call()
        counted = self._count(entry)
        self._host_gradients = None
        if graph.outputs:
            self._results = (entry, {})
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
        self._check_count(entry, inputs)
        names = self._entry(entry).inputs
        return [self._as_input(entry, name, value) for name, value in zip(names, inputs, strict=True)]

    def _check_count(self, entry: str, inputs: Sequence[object]) -> None:
        wanted = len(self._entry(entry).inputs)
        if len(inputs) != wanted:
            raise UserError(
                f"{entry} has a wrong number of inputs", stage="run", expected=str(wanted), got=str(len(inputs))
            )

    def _as_input(self, entry: str, name: str, value: npt.ArrayLike) -> Array:
        array = as_declared(value, self._entry(entry).types[name], f"input '{name}' of {entry}")
        self._check_indices(entry, name, array)
        return array

    def _check_indices(self, entry: str, name: str, array: Array) -> None:
        rows = self._index_bounds.get(name)
        if rows is not None and array.size and not (array.min() >= -rows and array.max() < rows):
            raise UserError(
                f"input '{name}' of {entry} has an index out of range",
                stage="run",
                expected=f"0 to {rows - 1}",
                got=f"{array.min()} to {array.max()}",
            )

    def _as_some_inputs(self, entry: str, inputs: Inputs) -> list[Array | None]:
        """In the order of the entry's graph; None for what is not given."""
        names = self._entry(entry).inputs
        if isinstance(inputs, Mapping):
            for name in inputs:
                if name not in names:
                    expected = " or ".join(f"'{each}'" for each in names) or "no input at all"
                    raise UserError(f"{entry} has no input '{name}'", stage="run", expected=expected, got=name)
            inputs = [inputs.get(name) for name in names]
        self._check_count(entry, inputs)
        return [
            None if value is None else self._as_input(entry, name, value)
            for name, value in zip(names, inputs, strict=True)
        ]

    def _check_inputs_stay(self, entry: str, asked: Sequence[bool]) -> None:
        """Those that are asked for to be on the device may be."""
        names = [name for name, is_asked in zip(self._entry(entry).inputs, asked, strict=True) if is_asked]
        here = [name for name in names if self._places[name] != DEVICE]
        if here:
            whole = len(here) == len(self._entry(entry).inputs)
            named = ", ".join(f"'{name}'" for name in here)
            raise UserError(
                "inputs live on the host" if whole else f"input {named} lives on the host",
                stage="run",
                expected="a program loaded with "
                + ("Residency(inputs='device')" if whole else f"Residency({{'{here[0]}': 'device'}})"),
                hint="give the inputs with each call" if whole else f"give {named} with each call",
            )

    def _check_placed(self, entry: str, given: Sequence[Array | None] = ()) -> None:
        """What is not given is on the device."""
        names = self._entry(entry).inputs
        there = self._placed_inputs if self._placed == entry else [None] * len(names)
        given = given or [None] * len(names)
        lacking = [name for name, old, new in zip(names, there, given, strict=True) if old is None and new is None]
        if lacking:
            raise UserError(
                f"no inputs of {entry} are on the device"
                if len(lacking) == len(names)
                else f"input '{lacking[0]}' of {entry} is not on the device",
                stage="run",
                expected=", ".join(f"'{name}'" for name in lacking),
                hint="give them with the call, or place them first",
            )

    def _now_placed(self, entry: str, arrays: Sequence[Array | None]) -> None:
        """One entry's inputs are there at a time: those of another are overwritten."""
        if all(array is None for array in arrays):
            return
        there = self._placed_inputs if self._placed == entry else [None] * len(arrays)
        self._placed = entry
        self._placed_inputs = [old if new is None else new for old, new in zip(there, arrays, strict=True)]
        self.transferred.add(Transfer(input_bytes=sum(array.nbytes for array in arrays if array is not None)))

    def _place_checked(self, entry: str, arrays: Sequence[Array | None]) -> None:
        self._place(entry, arrays)
        self._now_placed(entry, arrays)
