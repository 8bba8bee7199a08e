"""An exploration loses nothing: not when it is killed, not when a point kills its process."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exploration.work import deadly
from tests.support.command_line import CommandLine, start
from tilegrad.commands.explore import axis_kinds
from tilegrad.exploration.axes import Point, parse_axes
from tilegrad.exploration.pool import DaskPool, LocalPool
from tilegrad.exploration.search import search

AXES = ("l1=4K,16K", "cores=1,8", "train=all,last:0")


def table_of(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "exploration.json").read_text())["rows"]  # type: ignore[no-any-return]


def test_a_point_that_dies_does_not_condemn_its_neighbours() -> None:
    jobs = [(str(number), {"number": number}) for number in range(8)]
    rows = dict(LocalPool(deadly, 2).results(jobs))
    assert len(rows) == 8
    assert {key for key, row in rows.items() if row["status"] == "crashed"} == {"3", "4"}
    assert all(row["figures"] == {"memory": int(key)} for key, row in rows.items() if row["status"] == "ok")


@pytest.mark.slow
def test_grid_files_and_going_on(tilegrad: CommandLine, tmp_path: Path) -> None:
    """Rows with figures, rows with reasons; the same command again evaluates nothing, another axis only what is new."""
    words = ("explore", "simplemlp", "--vary", *AXES, "--jobs", "1", "-o", tmp_path / "out")
    answer = tilegrad(*words)
    assert answer.status == 0 and "8 points, 8 of them evaluated now" in answer.out, answer.err
    rows = table_of(tmp_path / "out")
    assert [row["status"] for row in rows] == ["ok", "failed"] * 4
    assert "got: 0" in rows[1]["reason"] and any(row["pareto"] for row in rows)
    cycles = tilegrad("inspect", "simplemlp", "--l1", "4K", "--cores", "1", "--json", "-").json["cycles"]
    assert rows[0]["figures"]["step_cycles"] == cycles["step"]
    with (tmp_path / "out" / "points.csv").open() as file:
        assert [line["key"] for line in csv.DictReader(file)] == [row["key"] for row in rows]
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    assert parquet.read_table(tmp_path / "out" / "points.parquet").column("key").to_pylist() == [r["key"] for r in rows]
    (tmp_path / "out" / "points" / f"{rows[3]['key']}.json").unlink()
    (tmp_path / "out" / "points" / f"{rows[4]['key']}.json").write_text("{ torn")
    assert "8 points, 2 of them evaluated now" in tilegrad(*words).out and table_of(tmp_path / "out") == rows
    for plot in ("--plot pareto -o p.svg", "-o p.html"):
        assert tilegrad("report", tmp_path / "out", *plot.replace("-o ", f"-o {tmp_path}/").split()).status == 0


def killed(folder: Path, words: tuple[object, ...], seconds: float) -> int:
    """Points that are done when the command is killed, with all of its processes."""
    process = start(*words)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return len(list(folder.glob("points/*.json")))


@pytest.mark.slow
def test_killed_and_resumed(tilegrad: CommandLine, tmp_path: Path) -> None:
    words = ("explore", "simplemlp", "--vary", "l1=4K:16K", "cores=1,8", "--jobs", "1", "-o")
    folder = tmp_path / "killed"
    process = start(*words, folder)
    while len(list(folder.glob("points/*.json"))) < 2 and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = len(list(folder.glob("points/*.json")))
    answer = tilegrad(*words, folder)
    assert answer.status == 0 and f"6 points, {6 - done} of them evaluated now" in answer.out
    assert 2 <= done <= 6 and len({row["key"] for row in table_of(folder)}) == 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    made = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    yield made.scheduler_address
    made.close()


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_dscnn_is_resumed_and_the_same_on_a_cluster(tilegrad: CommandLine, tmp_path: Path, cluster: str) -> None:
    axes = ("l1=32K:128K", "buffering=single,double", "cores=1,2,4,8", "batch=1,2")
    words = ("explore", "dscnn", "--vary", *axes, "--jobs", "2", "-o")
    folder = tmp_path / "local"
    done = killed(folder, (*words, folder), random.Random(time.time_ns()).uniform(5, 60))
    answer = tilegrad(*words, folder)
    assert answer.status == 0 and f"48 points, {48 - done} of them evaluated now" in answer.out
    on_cluster = tilegrad(*words, tmp_path / "dask", "--scheduler", cluster)
    assert on_cluster.status == 0 and "48 of them evaluated now" in on_cluster.out
    assert table_of(folder) == table_of(tmp_path / "dask") and len({row["key"] for row in table_of(folder)}) == 48
    assert (folder / "points.csv").read_bytes() == (tmp_path / "dask" / "points.csv").read_bytes()


@pytest.mark.matrix
def test_workers_of_a_cluster(tilegrad: CommandLine, cluster: str, tmp_path: Path) -> None:
    words = ("explore", "simplemlp", "--vary", "cores=1,8", "train=all,bogus", "--json")
    tables = []
    for name, more in (("local", ("--jobs", "1")), ("dask", ("--scheduler", cluster))):
        assert tilegrad(*words, tmp_path / name, *more).status == 0
        tables.append(json.loads((tmp_path / name).read_text())["rows"])
    assert tables[0] == tables[1] and [row["status"] for row in tables[0]] == ["ok", "failed"] * 2
    pool = DaskPool(deadly, cluster)
    assert {key: row["status"] for key, row in pool.results([("a", {"number": 3}), ("b", {"number": 1})])} == {
        "a": "crashed",
        "b": "ok",
    }
    pool.close()


def test_a_search_with_a_budget_is_the_same_again() -> None:
    """It sees no more points than it may, finds what is good, and survives points without figures."""
    pytest.importorskip("optuna", reason="optuna is not installed")
    axes = parse_axes(["cores=1:64", "batch=1:8"], axis_kinds())
    seen: list[list[Point]] = [[], []]

    def evaluate(points: Sequence[Point], run: int) -> list[dict[str, Any]]:
        seen[run] += points
        return [
            {"figures": {} if point["batch"] == 8 else {"cycles": float(abs(int(point["cores"]) - 50))}}
            for point in points
        ]

    for run in (0, 1):
        search(axes, 60, ("cycles",), lambda points, run=run: evaluate(points, run), seed=7)  # type: ignore[misc]
    assert seen[0] == seen[1] and len({tuple(point.items()) for point in seen[0]}) == 60
    misses = [abs(int(point["cores"]) - 50) for point in seen[0]]
    assert sum(misses[-20:]) < sum(misses[:20]), "it learns nothing"


@pytest.mark.slow
def test_accuracy_is_what_training_reaches(tilegrad: CommandLine, tmp_path: Path) -> None:
    random_of = np.random.default_rng(0)
    x = random_of.normal(size=(40, 64)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    words = ("--data", tmp_path / "d.npz", "--epochs", "2", "--validation", "0.2", "--json", "-")
    answer = tilegrad("explore", "simplemlp", "--vary", "lr=0.001,0.1", *words, "--jobs", "1")
    assert answer.status == 0, answer.err
    trained = tilegrad("train", "simplemlp", "--device", "host", "--lr", "0.1", "--no-verify", *words).json
    figures = answer.json["rows"][1]["figures"]
    after = trained["learning"]["after"]
    assert (figures["accuracy"], figures["loss"]) == (after["accuracy"], after["loss"])
    assert answer.json["objectives"] == ["memory", "cycles", "accuracy", "loss"]


def test_bad_input(tilegrad: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    for words, told in (
        (("simplemlp",), "there is nothing to vary"),
        (("simplemlp", "--vary", "colour=red"), "there is no axis 'colour'"),
        (("nothing", "--vary", "cores=1,2"), "nothing"),
        (("simplemlp", "--vary", "target=none"), "there is no target 'none'"),
        (("simplemlp", "--vary", "cores=1", "--budget", "0"), "--budget"),
        (("simplemlp", "--vary", "cores=1", "--objective", "beauty"), "there is no objective 'beauty'"),
        (("simplemlp", "--vary", "cores=1", "--objective", "loss"), "reached by training"),
        (("simplemlp", "--vary", "cores=1", "--epochs", "2"), "nothing to train on"),
        (("simplemlp", "--vary", "cores=1", "-o", tmp_path / "other"), "is not an exploration"),
    ):
        answer = tilegrad("explore", *words)
        assert answer.status == 2 and told in answer.err and answer.out == "", words
    assert tilegrad("report", tmp_path / "other", "-o", tmp_path / "r.html").status == 2
    assert tilegrad("report", "simplemlp", "--plot", "pareto", "-o", tmp_path / "r.svg").status == 2
