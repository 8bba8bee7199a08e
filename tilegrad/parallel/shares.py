"""A share of an update: mini-batch k as a pure function of weights, state, samples and its number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tilegrad.devices.packed import Layout, Packed
from tilegrad.parallel.form import Form

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

WORDS = ("inputs", "outputs", "gradients", "parameters", "statistics", "control")
ASKED = "asked"
"""What bytes are counted as. Control is a flag and a number per share. What was asked for from outside, such as weights
to save, is no part of an update."""


class Exchange(Protocol):
    """What was begun with an engine."""

    def finish(self) -> tuple[list[Array], Mapping[str, Array]]:
        """The outputs, and what was read."""


class Engine(Protocol):
    """What runs a program: a device's session, or a program of a folder."""

    @property
    def takes_ahead(self) -> bool:
        """Whether one more exchange may begin before the last one is finished."""

    @property
    def waits_on(self) -> int | None:
        """While an exchange is under way: a descriptor that can be read when it may be finished without waiting; None
        where there is nothing to wait for."""

    @property
    def is_lost(self) -> bool:
        """Whether what is under way will never be answered: `finish` says why."""

    def begin(
        self, entry: str | None, inputs: Sequence[Array], writes: Mapping[str, Array], reads: Sequence[str]
    ) -> Exchange:
        """Writes state, runs an entry, reads state. Exchanges are finished in the order in which they begin."""


class Lead(Engine, Protocol):
    """The engine that has what is not shared: updates and inference run there."""

    def exchange(
        self,
        entry: str | None,
        inputs: Sequence[npt.ArrayLike] | None,
        writes: Mapping[str, npt.ArrayLike],
        reads: Sequence[str],
    ) -> tuple[list[Array], Mapping[str, Array]]:
        """Begun and finished, of what need not have been checked."""


@dataclass(frozen=True, eq=False)
class Share:
    """`number` counts mini-batches from the beginning of the training: Dropout draws by it, whoever computes it."""

    number: int
    inputs: Sequence[Array]
    state: Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class ShareResult:
    """`made` are gradients, and the batch's part of statistics."""

    outputs: Sequence[Array]
    made: Mapping[str, Array]


@dataclass
class Moved:
    """What crossed between us and one device, the `shares` that it computed, and the seconds of the quickest."""

    device: str
    target: str
    loaded_bytes: int = 0
    shares: int = 0
    seconds: float | None = None
    to_device: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*WORDS, ASKED), 0))
    from_device: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*WORDS, ASKED), 0))
    _known: dict[Layout, Mapping[str, int]] = field(default_factory=dict)

    def computed(self, seconds: float) -> None:
        self.shares += 1
        self.seconds = seconds if self.seconds is None else min(self.seconds, seconds)

    def count(
        self,
        form: Form,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        writes: Mapping[str, Array],
        reads: Mapping[str, Array],
    ) -> None:
        self.to_device["inputs"] += sum(array.nbytes for array in inputs)
        self.from_device["outputs"] += sum(array.nbytes for array in outputs)
        for name, value in writes.items():
            self.to_device[form.what(name)] += value.nbytes
        for word, size in self._sizes(form, reads).items():
            self.from_device[word] += size

    def _sizes(self, form: Form, arrays: Mapping[str, Array]) -> Mapping[str, int]:
        """By what they are; blocks of one layout have the same."""
        layout = arrays.layout if isinstance(arrays, Packed) else None
        if layout is not None and layout in self._known:
            return self._known[layout]
        sizes: dict[str, int] = {}
        for name, array in arrays.items():
            sizes[form.what(name)] = sizes.get(form.what(name), 0) + array.nbytes
        if layout is not None:
            self._known[layout] = sizes
        return sizes

    def count_asked(self, writes: Sequence[npt.ArrayLike] = (), reads: Sequence[Array] = ()) -> None:
        self.to_device[ASKED] += sum(np.asarray(value).nbytes for value in writes)
        self.from_device[ASKED] += sum(array.nbytes for array in reads)

    def as_json(self, updates: int) -> dict[str, Any]:
        """Totals, and means over the updates."""

        def told(counts: Mapping[str, int]) -> dict[str, int]:
            return {word: size for word, size in counts.items() if size}

        to, back = (sum(counts[word] for word in WORDS) for counts in (self.to_device, self.from_device))
        return {
            "device": self.device,
            "target": self.target,
            "shares": self.shares,
            "loaded_bytes": self.loaded_bytes,
            "to_device_bytes": told(self.to_device),
            "from_device_bytes": told(self.from_device),
            "to_device_bytes_per_update": to / updates if updates else None,
            "from_device_bytes_per_update": back / updates if updates else None,
        }


class Computing:
    """A share that an engine has begun, after it got what of its parameters has `changed` since it began one."""

    def __init__(self, engine: Engine, form: Form, share: Share, changed: Mapping[str, Array]) -> None:
        self._form = form
        self._inputs = share.inputs
        self._writes = {**changed, **share.state}
        self._begun = engine.begin("step", share.inputs, self._writes, form.made)

    def finish(self, moved: Moved) -> ShareResult:
        outputs, made = self._begun.finish()
        moved.count(self._form, self._inputs, outputs, self._writes, made)
        return ShareResult(outputs, made)
