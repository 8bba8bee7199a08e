"""Shares as Dask tasks, by the hash of what they are computed from.

Dask computes a lost worker's tasks again, elsewhere. What we add is patience: a share that does not come is asked for
once more, of other workers. Answers are taken by the share's place in its update, the first of each, so that one that
comes late or twice changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tilegrad import __version__
from tilegrad.errors import DeviceError, TilegradError
from tilegrad.parallel.dask_worker import Answer, arrays_hash, compute_share, forget, hold
from tilegrad.parallel.form import Form
from tilegrad.parallel.pool import Pool
from tilegrad.parallel.shares import Array, Arrays, Moved, Share, ShareResult

PATIENCE_VARIABLE = "TILEGRAD_SHARE_SECONDS"
PATIENCE_SECONDS = 30.0
SLOWEST_TIMES = 10.0
"""A share is asked for again after the patience and so many times what the slowest one took."""
NO_WORKER_SECONDS = 60.0
RETRIES = 3
"""Of a share whose program failed on a worker that is still there."""
MOST_AGAIN = 8
SHARES_AHEAD = 4
_TICK_SECONDS = 0.5


class SchedulerLost(DeviceError):
    """The scheduler, or all of its workers, went away."""


@dataclass(eq=False)
class _Asked:
    """A share that is being computed, perhaps by several."""

    share: Share
    key: str
    futures: list[Any] = field(default_factory=list)
    since: float = 0.0


class DaskPool(Pool):
    """`files` is a device's folder (`folder.device_files`); `initial` has the parameters that an update may change."""

    def __init__(
        self, client: Any, device: str, files: Mapping[str, bytes], form: Form, initial: Arrays, lead: Moved
    ) -> None:
        self._client = client
        self._device = device
        self._form = form
        self._lead = lead
        self._moved: dict[str, Moved] = {}
        self._target = lead.target
        self._loaded_bytes = lead.loaded_bytes
        self._parameters = dict(initial)
        self._slowest_seconds = 0.0
        self._patience_seconds = float(os.environ.get(PATIENCE_VARIABLE) or PATIENCE_SECONDS)
        digest = hashlib.sha256()
        for name in sorted(files):
            digest.update(f"{name} {len(files[name])} ".encode() + files[name])
        self._program_hash = digest.hexdigest()
        self._program = self._held("program", self._program_hash, (self._program_hash, dict(files)))
        self._weights: Any = None
        self._weights_hash = ""

    @property
    def wants_parameters(self) -> bool:
        return True

    def publish(self, changed: Mapping[str, Array]) -> None:
        self._parameters.update(changed)
        self._weights = None

    def moved(self) -> Sequence[Moved]:
        return [self._lead, *(self._moved[worker] for worker in sorted(self._moved))]

    def _held(self, what: str, key: str, content: Any) -> Any:
        with _lost_scheduler():
            return self._client.submit(hold, content, key=f"{what}-{key}", pure=True)

    def compute(self, shares: Iterable[Share]) -> Iterator[ShareResult]:
        if self._weights is None:
            self._weights_hash = arrays_hash(self._parameters)
            content = (self._weights_hash, dict(self._parameters))
            self._weights = self._held("weights", self._weights_hash, content)
        coming = iter(shares)
        asked: list[_Asked] = []
        ahead = SHARES_AHEAD * max(1, len(self._workers()))
        while True:
            while len(asked) < ahead and (share := next(coming, None)) is not None:
                asked.append(self._ask(share))
            if not asked:
                return
            first = asked.pop(0)
            yield self._counted(first.share, self._answer(first))

    def _ask(self, share: Share) -> _Asked:
        digest = hashlib.sha256(f"{self._program_hash} {self._weights_hash} {share.number} {self._device} ".encode())
        digest.update(arrays_hash(share.state).encode())
        digest.update(arrays_hash({str(i): array for i, array in enumerate(share.inputs)}).encode())
        asked = _Asked(share, f"share-{digest.hexdigest()}", since=time.monotonic())
        asked.futures.append(self._submitted(asked, asked.key))
        return asked

    def _submitted(self, asked: _Asked, key: str, workers: Sequence[str] | None = None) -> Any:
        with _lost_scheduler():
            return self._client.submit(
                compute_share,
                __version__,
                self._device,
                self._program,
                self._weights,
                list(asked.share.inputs),
                dict(asked.share.state),
                key=key,
                pure=True,
                retries=RETRIES,
                workers=workers,
            )

    def _answer(self, asked: _Asked) -> Answer:
        """The first that comes, of those who were asked."""
        from distributed import wait

        workers_since = time.monotonic()
        while True:
            with _lost_scheduler():
                done = set()
                with suppress(TimeoutError), self._client.as_current():
                    done = set(
                        wait(  # type: ignore[no-untyped-call]
                            asked.futures, timeout=_TICK_SECONDS, return_when="FIRST_COMPLETED"
                        ).done
                    )
                for future in [each for each in asked.futures if each in done]:
                    answer = self._taken(asked, future)
                    if answer is not None:
                        return answer
            self._expect_scheduler()
            now = time.monotonic()
            if self._workers():
                workers_since = now
            elif now - workers_since > NO_WORKER_SECONDS:
                raise SchedulerLost("no Dask worker is left", stage="run", hint="start others, and --resume")
            if now - asked.since > self._patience_seconds + SLOWEST_TIMES * self._slowest_seconds:
                self._ask_again(asked)

    def _taken(self, asked: _Asked, future: Any) -> Answer | None:
        """A result; None where a copy of the share may still bring one."""
        if future.status == "finished":
            answer: Answer = future.result()
            self._slowest_seconds = max(self._slowest_seconds, answer.seconds)
            return answer
        asked.futures.remove(future)
        if future.status == "cancelled":
            raise SchedulerLost("the Dask scheduler went away", stage="run")
        error = future.exception()
        if asked.futures:
            return None
        if isinstance(error, TilegradError):
            raise error
        raise DeviceError(f"a share failed on its worker: {type(error).__name__}: {error}", stage="run") from error

    def _expect_scheduler(self) -> None:
        if self._client.status != "running":
            raise SchedulerLost("the Dask scheduler went away", stage="run")

    def _ask_again(self, asked: _Asked) -> None:
        """Of workers that are not at it, if there are others."""
        asked.since = time.monotonic()
        if len(asked.futures) >= MOST_AGAIN:
            raise DeviceError(f"no worker has answered for a share in {MOST_AGAIN} times", stage="run")
        with _lost_scheduler():
            keys = {future.key for future in asked.futures}
            at_it = {worker for worker, tasks in self._client.processing().items() if keys & set(map(str, tasks))}
            others = [worker for worker in self._workers() if worker not in at_it]
            key = f"{asked.key}-again-{len(asked.futures)}"
            asked.futures.append(self._submitted(asked, key, others or None))

    def _workers(self) -> list[str]:
        return list(self._client.scheduler_info()["workers"])

    def _counted(self, share: Share, answer: Answer) -> ShareResult:
        where = f"{self._device} at {answer.worker}"
        moved = self._moved.setdefault(answer.worker, Moved(where, self._target, self._loaded_bytes))
        moved.count(self._form, share.inputs, answer.outputs, share.state, answer.made)
        moved.to_device["parameters"] += answer.written_bytes
        moved.computed(answer.seconds)
        return ShareResult(answer.outputs, answer.made)

    def close(self) -> None:
        """Programs that workers keep for us end."""
        self._program = self._weights = None
        try:
            if self._client.status == "running":
                self._client.run(forget, self._program_hash, on_error="ignore")
        except Exception:  # noqa: BLE001, S110 - whoever is gone keeps nothing for us
            pass

    def join(self) -> None:
        """Nothing of it runs here."""


class _lost_scheduler:  # noqa: N801 - reads as what it catches
    """Whatever Dask raises when nobody is there any more is one error."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, TilegradError):
            words = str(error).strip().splitlines()
            told = f"{type(error).__name__}: {words[0]}" if words else type(error).__name__
            raise SchedulerLost("the Dask scheduler went away", stage="run", got=told) from error
