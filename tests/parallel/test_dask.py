"""Shares on a Dask cluster: whatever happens to workers, no bit changes; without a scheduler, no update is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed")
from distributed.versions import get_versions

from tests.parallel.clusters import Cluster, cluster
from tests.parallel.runs import assert_same_bits, compiled, run_on
from tilegrad.cli import main
from tilegrad.compiled import Compiled
from tilegrad.errors import DeviceError
from tilegrad.parallel import dask_cluster, dask_pool, dask_worker
from tilegrad.parallel.dask_group import DaskGroup
from tilegrad.parallel.folder import device_files
from tilegrad.training.keeping import Keeping
from tilegrad.training.train import Run, train


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is kept of interrupted runs is this test's own."""
    folder = tmp_path / "cache" / "objects"
    folder.mkdir(parents=True)
    monkeypatch.setattr("tilegrad.parallel.interrupted.cache_folder", lambda: folder)
    return folder.parent


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as made:
        yield made


def shared(program: Compiled, scheduler: str, updates: int, progress: object = None, **options: object) -> Run:
    with DaskGroup("host", scheduler) as group:
        told = progress if progress is not None else lambda what, done, of: None
        return train(program, group, steps=updates, verify=False, progress=told, **options)  # type: ignore[arg-type]


class At:
    """Does something once, when so many mini-batches are done."""

    def __init__(self, minibatch: int, act: object) -> None:
        self.minibatch, self.act, self.is_done = minibatch, act, False

    def __call__(self, what: str, done: int, of: int) -> None:
        if what.startswith("train") and done >= self.minibatch and not self.is_done:
            self.is_done = True
            self.act()  # type: ignore[operator]


@pytest.mark.slow
def test_a_killed_worker_changes_no_bit(two: Cluster) -> None:
    program = compiled("dscnn", 4, batchnorm="train", optimizer="adam")
    progress = At(6, lambda: two.workers[0].kill())
    run = shared(program, two.address, 4, progress)
    assert progress.is_done and two.workers[0].poll() is not None
    assert_same_bits(run_on("host", program, 4), run)
    assert run.shares is not None
    assert sum(row["shares"] for row in run.shares["devices"]) == 16  # none is counted twice


@pytest.mark.matrix
def test_a_worker_that_does_not_answer_is_not_waited_for(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped in the middle of an update, and goes on when its share was computed by another: too late, and for
    the second time."""
    monkeypatch.setenv(dask_pool.PATIENCE_VARIABLE, "0.5")
    program = compiled("autoencoder_tiny", 6)
    stopped = two.workers[0]
    run = shared(program, two.address, 6, At(9, lambda: os.kill(stopped.pid, signal.SIGSTOP)))
    assert_same_bits(run_on("host", program, 6), run)
    monkeypatch.setenv(dask_pool.PATIENCE_VARIABLE, "30")
    os.kill(stopped.pid, signal.SIGCONT)
    assert_same_bits(run_on("host", program, 8), shared(program, two.address, 8))


@pytest.mark.slow
def test_a_lost_scheduler_loses_no_complete_update(
    two: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "ANSWER_SECONDS", 2.0)
    program = compiled("dscnn", 4, batchnorm="train", optimizer="adam")
    whole = run_on("host", program, 5)
    with pytest.raises(DeviceError) as lost:
        shared(program, two.address, 5, At(9, two.scheduler.kill))
    assert "the last complete one, is saved" in str(lost.value.hint)
    (kept,) = (tmp_path / "cache" / "interrupted").iterdir()
    rest = run_on("host", program, 5, keeping=Keeping(resume=kept))  # --resume, on one device
    assert rest.resumed_at >= 8 and rest.weights_sha256 == whole.weights_sha256
    assert rest.losses == whole.losses[rest.resumed_at :]
    (tmp_path / "again").mkdir()
    with cluster(tmp_path / "again", 1) as other:  # the same command
        again = shared(program, other.address, 5)
    assert again.resumed_at == rest.resumed_at and again.weights_sha256 == whole.weights_sha256
    assert not kept.exists()


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
def test_killing_a_worker_at_any_moment_changes_no_bit(seed: int, two: Cluster) -> None:
    generator = random.Random(seed)
    program = compiled("dscnn", 4, batchnorm="train", optimizer="adam")
    alone = run_on("host", program, 12)
    killed = []

    def kill() -> None:
        time.sleep(generator.uniform(0.0, 0.3))
        victim = generator.choice(two.workers)
        two.add_worker()
        victim.kill()
        killed.append(victim)

    killer = threading.Thread(target=kill)
    run = shared(program, two.address, 12, At(generator.randrange(1, 36), killer.start))
    killer.join()
    assert killed
    assert_same_bits(alone, run)


def test_answers_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker keeps its program by hash, writes the weights that are others, and gives the same bits again."""
    program = compiled("autoencoder_tiny", 2)
    files = device_files("host", program)
    state = {"tg.lazy_reset_grad": [True]}
    with dask_worker_cleared():
        weights = {t.name: t.initial.array for t in program.program.trainable if t.initial is not None}
        from tilegrad.data.samples import make_batches

        (batch,) = make_batches(program, None).first(1)
        ask = (dask_worker.__version__, "host", ("p", files), ("w", weights), batch, state)
        first, second = dask_worker.compute_share(*ask), dask_worker.compute_share(*ask)  # type: ignore[arg-type]
        assert {n: a.tobytes() for n, a in first.made.items()} == {n: a.tobytes() for n, a in second.made.items()}
        assert first.written_bytes > 0 and second.written_bytes == 0
        changed = {**weights, next(iter(weights)): next(iter(weights.values())) + 1}
        third = dask_worker.compute_share(*ask[:3], ("v", changed), *ask[4:])  # type: ignore[arg-type]
        assert third.written_bytes == next(iter(weights.values())).nbytes
        with pytest.raises(DeviceError, match="another tilegrad"):
            dask_worker.compute_share("0.0.0", *ask[1:])  # type: ignore[arg-type]
        assert dask_worker.forget("p") == 1


class dask_worker_cleared:
    def __enter__(self) -> None:
        dask_worker.forget()

    def __exit__(self, *_: object) -> None:
        dask_worker.forget()


# ---- bad input


def test_a_scheduler_that_does_not_answer_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dask_cluster, "ANSWER_SECONDS", 0.5)
    with socket.socket() as listening:  # takes connections, and says nothing
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        silent = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        assert _status(capsys, silent) == (3, f"no Dask scheduler answers at '{silent}'")
    assert _status(capsys, silent)[0] == 3  # nobody is there any more


def _status(capsys: pytest.CaptureFixture[str], scheduler: str) -> tuple[int, str]:
    arguments = ["train", "autoencoder_tiny", "--device", "host", "--shares", "2", "--scheduler", scheduler]
    status = main([*arguments, "--no-verify", "--json", "-"])
    return status, json.loads(capsys.readouterr().out)["error"]["message"]


class Told:
    """A client of a scheduler with other versions, or of a worker with another tilegrad."""

    def __init__(self, package: str, worker: object = dask_worker.__version__) -> None:
        ours = get_versions()
        self.versions = {**ours, "packages": {**ours["packages"], package: "3.9.0"}}
        self.scheduler = self
        self.worker = worker
        self._run = "run"

    def sync(self, what: object, *_: object, **__: object) -> object:
        return {"tcp://other:1": self.worker} if what == self._run else self.versions

    def scheduler_info(self) -> dict[str, dict[str, object]]:
        return {"workers": {"tcp://other:1": {}}}


@pytest.mark.parametrize("package", ["dask", "distributed", "python"])
def test_a_scheduler_of_another_version_is_refused(package: str) -> None:
    with pytest.raises(DeviceError, match="other versions"):
        dask_cluster.check_cluster(Told(package), "tcp://other:1", 1)


@pytest.mark.parametrize("answer", ["0.0.7", ModuleNotFoundError("No module named 'tilegrad'")])
def test_a_worker_with_another_tilegrad_is_refused(answer: object) -> None:
    with pytest.raises(DeviceError, match="another tilegrad, or none"):
        dask_cluster.check_cluster(Told("numpy", answer), "tcp://other:1", 1)


def test_without_dask_the_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, message = _status(capsys, "local:2")
    assert status == 3 and "tilegrad[distributed]" in message
