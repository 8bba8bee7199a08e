"""The devices of this machine: each computes shares from one queue while there are any.

A device that can has two: it begins the next one while we take the results of the last. A device that is slower takes
fewer shares because it comes back for the next one later, and takes none at the end that the fastest would have done
before it. All are fed by the thread that wants the results: another one would only take turns with it.
"""

from __future__ import annotations

import contextlib
import select
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tilegrad.errors import TilegradError
from tilegrad.parallel.form import Form
from tilegrad.parallel.shares import Array, Arrays, Computing, Engine, Moved, Share, ShareResult
from tilegrad.parallel.threaded import Threaded

SHARES_AHEAD = 8
"""For each device, so that all have work while the results of a slow one are waited for."""
_TRIAL_SHARES = 2
"""Of each device, before it is judged by how long it takes: the first share of a program takes longer."""
_LOOK_SECONDS = 0.2
"""A program that is lost without a word is noticed after that."""


class Pool(ABC):
    """Computes shares. Results come in share order, whoever computed them and when."""

    @abstractmethod
    def compute(self, shares: Iterable[Share]) -> Iterator[ShareResult]:
        """The result of each share, in order. Shares are made while others are computed; those whose results nobody
        waits for any more are given up."""

    @abstractmethod
    def publish(self, changed: Mapping[str, Array]) -> None:
        """What an update changed: whoever computes a share from now on has it."""

    @property
    @abstractmethod
    def wants_parameters(self) -> bool:
        """Whether anybody but the one who makes the updates has to be told what they changed."""

    @abstractmethod
    def moved(self) -> Sequence[Moved]:
        """What crossed, device by device."""

    @abstractmethod
    def close(self) -> None:
        """No share is begun any more. Closing twice is no error."""

    @abstractmethod
    def join(self) -> None:
        """Waits until nothing of it runs."""


class Worker:
    """One device. `pending` is what it has not been told of the parameters yet, `begun` the shares that it computes."""

    def __init__(self, engine: Engine, moved: Moved) -> None:
        self.engine = engine if engine.takes_ahead else Threaded(engine)
        self.moved = moved
        self.pending: Arrays = {}
        self.begun: deque[tuple[int, Computing]] = deque()
        self._most = 2 if engine.takes_ahead else 1
        self._start, self._done = 0.0, 0  # when it began to compute without a pause, and how many shares it has since

    @property
    def has_room(self) -> bool:
        return len(self.begun) < self._most

    def begin(self, form: Form, index: int, share: Share) -> None:
        if not self.begun:
            self._start, self._done = time.monotonic(), 0
        changed, self.pending = self.pending, {}
        self.begun.append((index, Computing(self.engine, form, share, changed)))

    def finish(self) -> tuple[int, ShareResult]:
        index, computing = self.begun.popleft()
        result = computing.finish(self.moved)
        self._done += 1
        self.moved.computed((time.monotonic() - self._start) / self._done)
        return index, result


def _need(worker: Worker) -> tuple[int, int]:
    """Who has least comes first, and of those whoever had least so far."""
    return len(worker.begun), worker.moved.shares


class LocalPool(Pool):
    """`workers[0]` is the one that makes the updates, and so has the parameters already."""

    def __init__(self, form: Form, workers: Sequence[Worker]) -> None:
        self._form = form
        self._workers = tuple(workers)

    @property
    def wants_parameters(self) -> bool:
        return len(self._workers) > 1

    def publish(self, changed: Mapping[str, Array]) -> None:
        for worker in self._workers[1:]:
            worker.pending.update(changed)

    def moved(self) -> Sequence[Moved]:
        return [worker.moved for worker in self._workers]

    def compute(self, shares: Iterable[Share]) -> Iterator[ShareResult]:
        """Results that are here come first, then shares that nobody waits for yet, with a look at the devices after
        each; then whoever is done next."""
        coming = enumerate(shares)
        queue: deque[tuple[int, Share]] = deque()
        results: dict[int, ShareResult] = {}
        made = done = 0
        is_all = False
        try:
            while not is_all or done < made:
                if done in results:
                    yield results.pop(done)
                    done += 1
                    continue
                makes = not is_all and made - done < SHARES_AHEAD * len(self._workers)
                if makes and (found := next(coming, None)) is not None:
                    queue.append(found)
                    made += 1
                elif makes:
                    is_all = True
                results.update(worker.finish() for worker in self._answered(is_patient=not makes))
                self._feed(queue)
        except (Exception, GeneratorExit):
            self._settle()
            raise

    def _feed(self, queue: deque[tuple[int, Share]]) -> None:
        """A device that has nothing to do comes before one that would only not have to wait."""
        for worker in sorted(self._workers, key=_need) if queue else ():
            if queue and worker.has_room and self._is_worth_it(worker, len(queue)):
                worker.begin(self._form, *queue.popleft())

    def _answered(self, is_patient: bool) -> list[Worker]:
        """Those who have a result, or never will; the patient wait until there is one."""
        busy = [worker for worker in self._workers if worker.begun]
        while busy:
            poll, awaited = select.poll(), {}
            for worker in busy:
                if (file := worker.engine.waits_on) is not None:
                    awaited[file] = worker
                    poll.register(file, select.POLLIN)
            if len(awaited) < len(busy):
                return [worker for worker in busy if worker not in awaited.values()]
            ready = poll.poll(1000 * _LOOK_SECONDS if is_patient else 0)
            if ready or not is_patient:
                return [awaited[file] for file, _ in ready]
            if lost := [worker for worker in busy if worker.engine.is_lost]:
                return lost
        return []

    def _settle(self) -> None:
        """Nothing is under way when this returns."""
        for worker in self._workers:
            while worker.begun:
                with contextlib.suppress(TilegradError):
                    worker.finish()

    def _is_worth_it(self, worker: Worker, left: int) -> bool:
        """Not where the fastest device would be done with all that is left before this one is with one more share. That
        one always goes on, so that every share is computed. It has as much under way as this one, half of it done."""
        own, under_way = worker.moved.seconds, len(worker.begun)
        if own is None or worker.moved.shares < _TRIAL_SHARES:
            return not under_way
        fastest = min(each.moved.seconds for each in self._workers if each.moved.seconds is not None)
        return own * (under_way + 1) <= fastest * (left + 1 + under_way / 2)

    def close(self) -> None:
        """Threads end when what they wait for does: `join` is for when the sessions are closed, too."""
        for worker in self._workers:
            if isinstance(worker.engine, Threaded):
                worker.engine.close()

    def join(self) -> None:
        for worker in self._workers:
            if isinstance(worker.engine, Threaded):
                worker.engine.join()
