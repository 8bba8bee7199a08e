"""A training over a pool of devices: what shares make is held and combined here, and the lead makes the updates.

The lead is one session. Parameters and the optimizer's state live there; gradients, statistics and counters, which
every share changes on the device that computes it, are held here. An update takes the gradients there, and what it
changed of the parameters to whoever computes shares. Nothing else moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tilegrad.parallel.combine import Held, add_share, share_state
from tilegrad.parallel.form import Form
from tilegrad.parallel.pool import Pool
from tilegrad.parallel.shares import Array, Lead, Moved, Share


class Conductor:
    """`initial` is what is held at the beginning; `moved` counts what crosses between us and the lead."""

    def __init__(self, form: Form, initial: Mapping[str, Array], lead: Lead, moved: Moved, pool: Pool) -> None:
        self.form = form
        self.pool = pool
        self.minibatches = 0
        self.updates = 0
        self._lead = lead
        self._moved = moved
        self._held = Held.of(form, initial)
        self._complete = self._held.copy()
        self._on_lead: set[str] = set()  # what an update wrote of what is held, and nobody has asked for
        self._stale: set[str] = set(form.inferred)  # what inference reads and the lead does not have

    @property
    def is_chained(self) -> bool:
        """Whether each share needs what the one before it left."""
        return bool(self.form.chained)

    def steps(self, batches: Iterable[Sequence[npt.ArrayLike]]) -> Iterator[Sequence[Array]]:
        """The mini-batches of an update, or a part of them: the outputs of each, once its gradients are added."""
        given = ([np.asarray(array) for array in batch] for batch in batches)
        groups = ([each] for each in given) if self.is_chained else (given,)
        for group in groups:
            self._bring_back()
            self._stale |= set(self.form.inferred)
            for result in self.pool.compute(self._shares(group)):
                add_share(self.form, self._held, result.made)
                self.minibatches += 1
                yield result.outputs

    def _shares(self, inputs: Iterable[Sequence[Array]]) -> Iterator[Share]:
        """Made ahead of the results of those before them, of which they need nothing, unless they are chained."""
        form, first = self.form, self._next_number()
        state = share_state(form, self._held)
        for k, each in enumerate(inputs):
            counted = {} if form.counter is None else {form.counter: np.full_like(state[form.counter], first + k)}
            yield Share(first + k, each, {**state, **counted})

    def _next_number(self) -> int:
        return self.minibatches if self.form.counter is None else int(self._held[self.form.counter])

    def _bring_back(self) -> None:
        """Sums that clipping scaled are needed only where a step adds to them."""
        if self.form.flag is not None and bool(self._held[self.form.flag].any()):
            self._on_lead -= set(self.form.gradients)
        for name in sorted(self._on_lead):
            self.read(name)

    def update(self) -> None:
        """One optimizer step on the lead; then everybody has what it changed."""
        form = self.form
        writes = self._held.some([name for name in form.summed if name not in self._on_lead])
        changed = form.resident if self.pool.wants_parameters else ()
        single = tuple(name for name in form.updated if name in form.held and name not in form.gradients)
        outputs, made = self._lead.begin("update", (), writes, (*changed, *single)).finish()
        self._moved.count(form, (), outputs, writes, made)
        self._on_lead = {name for name in form.updated if name in form.gradients}
        for name in single:
            self._held.put(name, made[name])
        self._complete = self._held.copy()
        self.updates += 1
        if changed:
            self.pool.publish({name: made[name] for name in changed})

    def infer(self, inputs: Sequence[Array]) -> list[Array]:
        """On the lead, which needs the statistics for it."""
        writes = {name: self._held[name] for name in self.form.inferred if name in self._stale}
        outputs, _ = self._lead.exchange("infer", inputs, writes, ())
        self._moved.count_asked([*inputs, *writes.values()], outputs)
        self._stale.clear()
        return outputs

    def read(self, name: str) -> Array:
        if name in self._held and name not in self._on_lead:
            return self._held[name].copy()
        _, made = self._lead.exchange(None, None, {}, (name,))
        self._moved.count_asked(reads=list(made.values()))
        if name in self._held:
            self._held.put(name, made[name])
            self._on_lead.discard(name)
        return made[name].copy()

    def write(self, name: str, value: Array) -> None:
        """State from outside: a checkpoint's, say. What is held is so from now on; the rest reaches everybody."""
        if name in self._held:
            kept = np.array(value)
            self._held.put(name, kept)
            self._complete.put(name, kept)
            self._on_lead.discard(name)
            self._stale |= {name} & set(self.form.inferred)
            return
        self._lead.exchange(None, None, {name: value}, ())
        self._moved.count_asked(writes=[value])
        if self.pool.wants_parameters and name in self.form.read:
            self.pool.publish({name: np.array(value)})

    def forget_since_update(self) -> None:
        """Back to the last complete update: what is there of the next one does not count."""
        self._held = self._complete.copy()
        self._on_lead = {name for name in self._on_lead if name in self.form.updated}
        self._stale |= set(self.form.inferred)
