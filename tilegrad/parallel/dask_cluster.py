"""A Dask cluster to compute shares on: one that is there, or one of this machine that goes with the command."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tilegrad import __version__
from tilegrad.errors import DeviceError, UserError
from tilegrad.parallel.dask_worker import version

ANSWER_SECONDS = 10.0
WORKER_SECONDS = 30.0
ALLOWED_FAILURES = 1_000_000
"""How often a share's worker may end before Dask takes the share for the reason: we count failures of shares ourselves,
and a worker that is killed says nothing about its shares."""
FORM = "tcp://HOST:PORT, or local:N for N workers of this machine"
_PACKAGE = "PyPI: pip install 'tilegrad[distributed]'"
_STAGE = "scheduler"


def check_scheduler(text: str) -> int | None:
    """The number of local workers, None for an address; anything else is refused. Nothing is looked up."""
    local = re.fullmatch(r"local:([0-9]{1,3})", text)
    if local is not None and int(local[1]) > 0:
        return int(local[1])
    if re.fullmatch(r"(tcp|tls)://(\[[0-9A-Fa-f:.]+\]|[^\s/:]+):[0-9]{1,5}", text):
        return None
    raise UserError(f"the scheduler '{text}' cannot be used", stage="options", expected=FORM, got=text)


@contextlib.contextmanager
def open_cluster(text: str) -> Iterator[Any]:
    """A client of the scheduler, whose version and workers were checked. Closes what it started."""
    count = check_scheduler(text)
    if importlib.util.find_spec("distributed") is None:
        raise DeviceError(
            f"there is no Dask here: the Python package distributed is not installed ({_PACKAGE})", stage=_STAGE
        )
    import dask
    import distributed

    quiet = logging.getLogger("distributed")
    level = quiet.level
    quiet.setLevel(logging.CRITICAL + 1)
    settings = {
        "distributed.scheduler.allowed-failures": ALLOWED_FAILURES,
        "distributed.comm.timeouts.connect": f"{ANSWER_SECONDS:g}s",
        "distributed.admin.system-monitor.gil.enabled": False,
    }
    try:
        with dask.config.set(settings), contextlib.ExitStack() as stack:
            address: Any = text
            if count is not None:
                address = stack.enter_context(_local(distributed, count))
            client = stack.enter_context(_connected(distributed, address, text))
            check_cluster(client, text, 1 if count is None else count)
            _allow_failures(client)
            yield client
    finally:
        quiet.setLevel(level)


@contextlib.contextmanager
def _local(distributed: Any, count: int) -> Iterator[Any]:
    try:
        cluster = distributed.LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            worker_dashboard_address=None,
            host="127.0.0.1",
            silence_logs=logging.CRITICAL + 1,
        )
    except Exception as error:
        raise DeviceError(f"no Dask workers can be started here: {_first_line(error)}", stage=_STAGE) from error
    try:
        yield cluster
    finally:
        with contextlib.suppress(Exception):
            cluster.close(timeout=ANSWER_SECONDS)


@contextlib.contextmanager
def _connected(distributed: Any, address: Any, said: str) -> Iterator[Any]:
    try:
        if isinstance(address, str) and address.startswith("tcp://"):
            asyncio.run(_expect_answer(address))
        client = distributed.Client(address, timeout=f"{ANSWER_SECONDS:g}s", set_as_default=False)
    except Exception as error:
        raise DeviceError(
            f"no Dask scheduler answers at '{said}'",
            stage=_STAGE,
            expected=f"an answer within {ANSWER_SECONDS:g} seconds, from distributed {distributed.__version__}",
            got=_first_line(error),
            hint="start one with `dask scheduler`, or use local:N",
        ) from error
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):
            client.close(timeout=ANSWER_SECONDS)


async def _expect_answer(address: str) -> None:
    """Asks who is there. Dask's client waits without end for one who takes a connection and says nothing."""
    from distributed.comm import connect

    async def asked() -> Any:
        comm = await connect(address, timeout=ANSWER_SECONDS)
        try:
            await comm.write({"op": "identity", "reply": True})
            return await comm.read()
        finally:
            comm.abort()

    told = await asyncio.wait_for(asked(), ANSWER_SECONDS)
    if not isinstance(told, Mapping) or told.get("type") != "Scheduler":
        raise OSError(f"{told.get('type') if isinstance(told, Mapping) else 'something'} answers, no scheduler")


def check_cluster(client: Any, said: str, wanted: int) -> None:
    """Refuses another version of Dask, of Python or of tilegrad, and a scheduler without workers."""
    try:
        _expect_versions(client.sync(client.scheduler.versions, callback_timeout=ANSWER_SECONDS), said)
        deadline = time.monotonic() + WORKER_SECONDS
        while len(client.scheduler_info()["workers"]) < wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        if not client.scheduler_info()["workers"]:
            raise DeviceError(
                f"the scheduler '{said}' has no workers",
                stage=_STAGE,
                expected=f"one within {WORKER_SECONDS:g} seconds",
                got="none",
                hint=f"start one on each machine: dask worker {said}",
            )
        theirs = _versions_of_workers(client)
    except DeviceError:
        raise
    except Exception as error:
        raise DeviceError(
            f"the scheduler '{said}' cannot be used", stage=_STAGE, got=_first_line(error)
        ) from error
    for worker, answer in theirs.items():
        has_gone = isinstance(answer, OSError) and worker not in client.scheduler_info()["workers"]
        if answer != __version__ and not has_gone:
            got = f"none: {_first_line(answer)}" if isinstance(answer, BaseException) else f"tilegrad {answer}"
            raise DeviceError(
                f"the worker '{worker}' of '{said}' has another tilegrad, or none",
                stage=_STAGE,
                expected=f"tilegrad {__version__}",
                got=got,
                hint="install the same version on every machine",
            )


def _versions_of_workers(client: Any) -> dict[str, Any]:
    """Where one says nothing, nobody is waited for: each share says which version it is for."""
    try:
        return dict(client.sync(client._run, version, on_error="return", callback_timeout=ANSWER_SECONDS))
    except TimeoutError:
        return {}


def _expect_versions(theirs: Mapping[str, Any], said: str) -> None:
    from distributed.versions import get_versions

    ours = _relevant(get_versions())
    other = {key: value for key, value in _relevant(theirs).items() if ours.get(key) != value}
    if other:
        raise DeviceError(
            f"the scheduler '{said}' has other versions than this machine",
            stage=_STAGE,
            expected=", ".join(f"{key} {ours.get(key)}" for key in other),
            got=", ".join(f"{key} {value}" for key, value in other.items()),
            hint="install the same versions on every machine",
        )


def _relevant(versions: Mapping[str, Any]) -> dict[str, str]:
    """What must be the same for tasks to be understood: packages, and Python but for its last number."""
    packages = versions.get("packages", {})
    found = {name: str(packages.get(name)) for name in ("dask", "distributed")}
    return {**found, "Python": ".".join(str(packages.get("python")).split(".")[:2])}


def _allow_failures(client: Any) -> None:
    limit = ALLOWED_FAILURES

    def allow(dask_scheduler: Any) -> None:  # a function of its own, so that the scheduler needs no tilegrad
        dask_scheduler.allowed_failures = max(dask_scheduler.allowed_failures, limit)

    with contextlib.suppress(Exception):  # a scheduler may refuse to run what it is sent: then it has its own limit
        client.run_on_scheduler(allow)


def _first_line(error: object) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
