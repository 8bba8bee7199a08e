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
from tilegrad.parallel.shares import Array, Moved, Share, ShareResult

PATIENCE_VARIABLE = "TILEGRAD_SHARE_SECONDS"
PATIENCE_SECONDS = 30.0
SLOWEST_TIMES = 10.0
"""A share is asked for again after the patience and so many times what the slowest one took."""
NO_WORKER_SECONDS = 60.0
RETRIES = 3
"""Of a share whose program failed on a worker that is still there."""
MOST_TIMES = 8
SILENT_TIMES = 20.0
"""So many times the patience, a worker that did not answer is not asked."""
SHARES_AHEAD = 4
_TICK_SECONDS = 0.5
_FORGET_SECONDS = 2.0


class SchedulerLost(DeviceError):
    """The scheduler, or all of its workers, went away."""


@dataclass(eq=False)
class _Asked:
    """A share that is being computed, perhaps by several."""

    share: Share
    key: str
    futures: list[Any] = field(default_factory=list)
    times: int = 0
    since: float = 0.0


class DaskPool(Pool):
    """`files` is a device's folder (`folder.device_files`); `initial` has the parameters that an update may change."""

    def __init__(
        self,
        client: Any,
        device: str,
        files: Mapping[str, bytes],
        form: Form,
        initial: Mapping[str, Array],
        lead: Moved,
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
        self._least_patience_seconds = float(os.environ.get(PATIENCE_VARIABLE) or PATIENCE_SECONDS)
        self._silent: dict[str, float] = {}  # workers that did not answer, and until when they are left alone
        self._generation = 0
        digest = hashlib.sha256()
        for name in sorted(files):
            digest.update(f"{name} {len(files[name])} ".encode() + files[name])
        self._program_hash = digest.hexdigest()
        self._files = dict(files)
        self._weights: Any = None
        self._weights_hash = ""
        self._program: Any = None
        self._hold_program()

    @property
    def wants_parameters(self) -> bool:
        return True

    def publish(self, changed: Mapping[str, Array]) -> None:
        self._parameters.update(changed)
        self._weights = None

    def moved(self) -> Sequence[Moved]:
        return [self._lead, *(self._moved[worker] for worker in sorted(self._moved))]

    def compute(self, shares: Iterable[Share]) -> Iterator[ShareResult]:
        if self._weights is None:
            self._weights_hash = arrays_hash(self._parameters)
            self._hold_weights()
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

    def _hold_program(self) -> None:
        key = f"program-{self._program_hash}-{self._generation}"
        self._program = self._submitted(key, hold, (self._program_hash, self._files))

    def _hold_weights(self) -> None:
        key = f"weights-{self._weights_hash}-{self._generation}"
        self._weights = self._submitted(key, hold, (self._weights_hash, dict(self._parameters)))

    def _submitted(self, key: str, function: Any, *arguments: Any) -> Any:
        """To any worker, but for those that say nothing any more."""
        with _lost_scheduler():
            workers = self._answering() if self._silent else None
            options = {"key": key, "pure": True, "retries": RETRIES, "workers": workers or None}
            return self._client.submit(function, *arguments, **options)

    def _ask(self, share: Share) -> _Asked:
        digest = hashlib.sha256(f"{self._program_hash} {self._weights_hash} {share.number} {self._device} ".encode())
        digest.update(arrays_hash(share.state).encode())
        digest.update(arrays_hash({str(i): array for i, array in enumerate(share.inputs)}).encode())
        asked = _Asked(share, f"share-{digest.hexdigest()}")
        self._send(asked)
        return asked

    def _send(self, asked: _Asked) -> None:
        key = asked.key if not asked.times else f"{asked.key}-again-{asked.times}"
        share = asked.share
        arguments = (__version__, self._device, self._program, self._weights, list(share.inputs), dict(share.state))
        asked.futures.append(self._submitted(key, compute_share, *arguments))
        asked.times += 1
        asked.since = time.monotonic()

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
            if not asked.futures or now - asked.since > self._patience_seconds:
                self._ask_again(asked)

    @property
    def _patience_seconds(self) -> float:
        return self._least_patience_seconds + SLOWEST_TIMES * self._slowest_seconds

    def _taken(self, asked: _Asked, future: Any) -> Answer | None:
        """A result; None where it cannot be had from the worker that has it, or where another may still bring one."""
        if future.status == "finished":
            try:
                answer: Answer = future.result(timeout=self._patience_seconds)
            except TimeoutError:
                self._blame(self._client.who_has([future]).get(future.key, ()))
                asked.futures.remove(future)
                return None
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
        if asked.times >= MOST_TIMES:
            raise DeviceError(f"a share was asked for {MOST_TIMES} times, and nobody has answered", stage="run")
        with _lost_scheduler():
            keys = {str(future.key) for future in asked.futures}
            at_it = [worker for worker, tasks in self._client.processing().items() if keys & set(map(str, tasks))]
            has_it = [worker for workers in self._client.who_has(asked.futures).values() for worker in workers]
        self._blame([*at_it, *has_it])
        self._send(asked)

    def _blame(self, workers: Iterable[str]) -> None:
        """They get nothing for a while, as long as there are others. Program and weights may be theirs alone."""
        until = time.monotonic() + SILENT_TIMES * self._patience_seconds
        self._silent |= dict.fromkeys(workers, until)
        self._generation += 1
        self._hold_program()
        self._hold_weights()

    def _answering(self) -> list[str]:
        now = time.monotonic()
        self._silent = {worker: until for worker, until in self._silent.items() if until > now}
        return [worker for worker in self._workers() if worker not in self._silent]

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
                ask = self._client._run  # one who says nothing is not waited for
                self._client.sync(ask, forget, self._program_hash, on_error="ignore", callback_timeout=_FORGET_SECONDS)
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
