"""An engine in a thread of its own, for one that is not waited for from outside.

Threads are enough: programs are processes, and a thread that waits for one does not hold Python up.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue

from tilegrad.parallel.shares import Array, Engine

_JOIN_SECONDS = 10.0

Exchanged = tuple[list[Array], Mapping[str, Array]]


class Threaded:
    """One exchange at a time. `close` before what the engine runs on is closed, `join` after it."""

    takes_ahead = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: SimpleQueue[Asked | None] = SimpleQueue()
        self._reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._work, name="share of a device", daemon=True)
        self._thread.start()

    @property
    def waits_on(self) -> int | None:
        return self._reader

    @property
    def is_lost(self) -> bool:
        """The thread would have said so."""
        return False

    def begin(
        self, entry: str | None, inputs: Sequence[Array], writes: Mapping[str, Array], reads: Sequence[str]
    ) -> Asked:
        made = Asked(self._reader, entry, inputs, writes, reads)
        self._asked.put(made)
        return made

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            asked.compute(self._engine)
            os.write(self._writer, b".")
        os.close(self._writer)

    def close(self) -> None:
        self._asked.put(None)

    def join(self) -> None:
        self._thread.join(_JOIN_SECONDS)
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1


class Asked:
    """An exchange that the thread makes; a byte says that it is done."""

    def __init__(
        self,
        reader: int,
        entry: str | None,
        inputs: Sequence[Array],
        writes: Mapping[str, Array],
        reads: Sequence[str],
    ) -> None:
        self._reader = reader
        self._arguments = entry, inputs, writes, reads
        self._made: Exchanged | BaseException | None = None

    def compute(self, engine: Engine) -> None:
        try:
            self._made = engine.begin(*self._arguments).finish()
        except BaseException as error:  # noqa: BLE001 - the thread that waits for the result raises it
            self._made = error

    def finish(self) -> Exchanged:
        os.read(self._reader, 1)
        assert self._made is not None
        if isinstance(self._made, BaseException):
            raise self._made
        return self._made
