"""Where points are evaluated: processes of this machine, or the workers of a Dask cluster. A point that kills its
process is a result like any other, and its neighbours' results are their own."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from typing import Any, Protocol

from tilegrad.errors import DeviceError
from tilegrad.exploration.store import CRASHED, Row, without_figures

Task = Mapping[str, Any]
Work = Callable[[Task], Row]
Job = tuple[str, Task]
CONNECT_SECONDS = 10


class Pool(Protocol):
    def results(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Row]]:
        """Each key with its row, as they are done."""
        ...

    def close(self) -> None: ...


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class LocalPool:
    """`count` processes. Where one dies, all that were under way are done again, each by itself: one of them did it."""

    def __init__(self, work: Work, count: int) -> None:
        self.work = work
        self.count = count
        self._started = {child.pid for child in active_children()}

    def _executor(self, count: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(count, get_context("spawn"), initializer=_leave_interrupts_to_the_parent)

    def results(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Row]]:
        waiting = deque(jobs)
        while waiting:
            suspects: list[Job] = []
            executor = self._executor(min(self.count, len(waiting)))
            running: dict[Future[Row], Job] = {}
            while (waiting or running) and not suspects:
                while waiting and len(running) < self.count:
                    job = waiting.popleft()
                    running[executor.submit(self.work, job[1])] = job
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    job = running.pop(future)
                    try:
                        yield job[0], future.result()
                    except BrokenProcessPool:
                        suspects.append(job)
            suspects += running.values()
            executor.shutdown(wait=True, cancel_futures=True)
            for key, task in suspects:
                yield key, self._alone(task)

    def _alone(self, task: Task) -> Row:
        with self._executor(1) as executor:
            try:
                return executor.submit(self.work, task).result()
            except BrokenProcessPool:
                return without_figures(CRASHED, "its process died")

    def close(self) -> None:
        """Ends what is still at work, which nobody waits for any more."""
        for child in active_children():
            if child.pid not in self._started:
                child.terminate()


class DaskPool:
    """The workers of a cluster, each of which has this package and sees the files that are named."""

    def __init__(self, work: Work, address: str) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise DeviceError(
                "there is no Dask here", stage="explore", hint="pip install 'tilegrad[distributed]'"
            ) from error
        self.work = work
        try:
            self.client: Any = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
        except (OSError, ValueError, TimeoutError) as error:
            raise DeviceError(
                f"no Dask scheduler answers at '{address}'",
                stage="explore",
                got=str(error),
                hint="--scheduler HOST:PORT",
            ) from error

    def results(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Row]]:
        from distributed import as_completed

        futures = {self.client.submit(self.work, task, key=f"tilegrad-{key}", pure=False): key for key, task in jobs}
        if not futures:
            return
        for future in as_completed(futures, loop=self.client.loop):  # type: ignore[no-untyped-call]
            error = future.exception()
            if future.status == "cancelled" or future.status == "lost":
                raise DeviceError("the Dask cluster is gone", stage="explore", hint="the same command again goes on")
            died = without_figures(CRASHED, f"{type(error).__name__}: {error}") if error else None
            yield futures[future], died or future.result()

    def close(self) -> None:
        self.client.close()
