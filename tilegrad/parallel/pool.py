"""The devices of this machine: each has a thread, which takes shares from one queue while there are any.

Threads are enough: programs are processes of their own, and a thread that waits for one does not hold Python up. A
device that is slower takes fewer shares because it comes back for the next one later, and takes none at the end that
the fastest would have done before it.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilegrad.parallel.form import Form
from tilegrad.parallel.shares import Array, Arrays, Computing, Engine, Moved, Share, ShareResult

_JOIN_SECONDS = 10.0
SHARES_AHEAD = 8
"""For each device, so that all have work while the results of a slow one are waited for."""


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


@dataclass(eq=False)
class Worker:
    """One device. `pending` is what it has not been told of the parameters yet, `under_way` how many shares it has
    taken."""

    engine: Engine
    moved: Moved
    pending: Arrays = field(default_factory=dict)
    under_way: int = 0


class LocalPool(Pool):
    """`workers[0]` is the one that makes the updates, and so has the parameters already."""

    def __init__(self, form: Form, workers: Sequence[Worker]) -> None:
        self._form = form
        self._workers = tuple(workers)
        self._queue: deque[tuple[int, Share]] = deque()
        self._results: dict[int, ShareResult] = {}
        self._error: BaseException | None = None
        self._is_closed = False
        lock = threading.RLock()
        self._offered = threading.Condition(lock)  # there may be something to do: devices wait for it
        self._arrived = threading.Condition(lock)  # there may be something to give: whoever wants results waits for it
        self._awaited = -1
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"share of {worker.moved.device}", daemon=True)
            for worker in self._workers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def wants_parameters(self) -> bool:
        return len(self._workers) > 1

    def publish(self, changed: Mapping[str, Array]) -> None:
        with self._offered:
            for worker in self._workers[1:]:
                worker.pending.update(changed)

    def moved(self) -> Sequence[Moved]:
        return [worker.moved for worker in self._workers]

    def compute(self, shares: Iterable[Share]) -> Iterator[ShareResult]:
        self._results.clear()
        coming = iter(shares)
        begun = done = 0
        is_all = False
        try:
            while not is_all or done < begun:
                if not is_all and begun - done < SHARES_AHEAD * len(self._workers) and not self._has(done):
                    share = next(coming, None)
                    is_all = share is None
                    begun += share is not None
                    if share is not None:
                        self._begin(begun - 1, share)
                else:
                    yield self._result(done)
                    done += 1
        except GeneratorExit:
            self._settle()
            raise

    def _has(self, index: int) -> bool:
        with self._arrived:
            return index in self._results or self._error is not None

    def _begin(self, index: int, share: Share) -> None:
        with self._offered:
            if self._error is not None:
                raise self._error
            self._queue.append((index, share))
            self._offered.notify_all()

    def _result(self, index: int) -> ShareResult:
        with self._arrived:
            self._awaited = index
            self._arrived.wait_for(lambda: index in self._results or self._error is not None)
            if index not in self._results:
                self._queue.clear()
                assert self._error is not None
                raise self._error
            return self._results.pop(index)

    def _settle(self) -> None:
        """Nothing is under way when this returns."""
        with self._arrived:
            self._queue.clear()
            self._awaited = -1
            self._arrived.wait_for(lambda: not self._is_busy)

    @property
    def _is_busy(self) -> bool:
        return any(worker.under_way for worker in self._workers)

    def _work(self, worker: Worker) -> None:
        """A share is sent before the results of the one before it are taken, where the device can: it does not wait
        for us in between."""
        begun: deque[tuple[int, Computing]] = deque()
        last = time.monotonic()
        try:
            while True:
                offered = self._offer(worker)
                if offered is not None:
                    index, share, changed = offered
                    last = last if begun else time.monotonic()
                    begun.append((index, Computing(worker.engine, self._form, share, changed)))
                elif begun:
                    index, computing = begun.popleft()
                    result = computing.finish(worker.moved)
                    now = time.monotonic()
                    worker.moved.computed(now - last)
                    last = now
                    self._done(worker, index, result)
                else:
                    return
        except BaseException as error:  # noqa: BLE001 - the thread that waits for the result raises it
            self._fail(worker, error)

    def _offer(self, worker: Worker) -> tuple[int, Share, Arrays] | None:
        """A share to begin, and what the device has to be told before it. None: there is none for it, and it has
        something to finish, or all is over."""
        if worker.under_way > worker.engine.takes_ahead:
            return None
        with self._offered:
            if not worker.under_way:
                self._offered.wait_for(lambda: self._is_closed or self._is_worth_it(worker))
            if self._is_closed or not self._is_worth_it(worker):
                return None
            worker.under_way += 1
            changed, worker.pending = worker.pending, {}
            return *self._queue.popleft(), changed

    def _done(self, worker: Worker, index: int, result: ShareResult) -> None:
        with self._arrived:
            worker.under_way -= 1
            self._results[index] = result
            if index == self._awaited or not self._is_busy:
                self._arrived.notify_all()
            if self._queue:
                self._offered.notify_all()

    def _fail(self, worker: Worker, error: BaseException) -> None:
        with self._arrived:
            worker.under_way = 0
            self._error = self._error or error
            self._queue.clear()
            self._arrived.notify_all()

    def _is_worth_it(self, worker: Worker) -> bool:
        """Not where the fastest device would be done with all that is left before this one is with one more share. That
        one always goes on, so that every share is computed. It has as much under way as this one, half of it done."""
        own, under_way, left = worker.moved.seconds, worker.under_way, len(self._queue)
        if own is None or not left:
            return left > 0 and not under_way
        fastest = min(each.moved.seconds for each in self._workers if each.moved.seconds is not None)
        return own * (under_way + 1) <= fastest * (left + 1 + under_way / 2)

    def close(self) -> None:
        """Threads end when what they wait for does: `join` is for when the sessions are closed, too."""
        with self._offered:
            self._is_closed = True
            self._queue.clear()
            self._offered.notify_all()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
