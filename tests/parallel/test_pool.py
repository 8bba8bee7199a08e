"""Who gets a share, and when: no device waits for us that need not, and none that is slow holds an update up."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tilegrad.errors import UserError
from tilegrad.parallel.form import Form
from tilegrad.parallel.pool import LocalPool, Worker
from tilegrad.parallel.shares import Array, Moved, Share, ShareResult

FORM = Form(("g",), {}, (), None, None, (), (), ("w",), ("g",), ())


class Told:
    """An engine that answers at once, unless it is quiet, and remembers what it was asked for."""

    is_lost = False

    def __init__(self, takes_ahead: bool = True, bad: int = -1) -> None:
        self.takes_ahead = takes_ahead
        self.bad = bad
        self.is_quiet = False
        self._silence, self._end = os.pipe()
        self.events: list[tuple[str, int]] = []
        self.under_way = self.most = 0

    @property
    def waits_on(self) -> int | None:
        return self._silence if self.is_quiet else None

    def __del__(self) -> None:
        os.close(self._silence)
        os.close(self._end)

    def begin(
        self, entry: str | None, inputs: Sequence[Array], writes: Mapping[str, Array], reads: Sequence[str]
    ) -> Answer:
        number = int(inputs[0][0])
        self.events.append(("begin", number))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return Answer(self, number)

    def exchange(self, *arguments: Any) -> Any:
        return self.begin(*arguments).finish()


class Answer:
    def __init__(self, engine: Told, number: int) -> None:
        self.engine = engine
        self.number = number

    def finish(self) -> tuple[list[Array], Mapping[str, Array]]:
        self.engine.events.append(("finish", self.number))
        self.engine.under_way -= 1
        if self.number == self.engine.bad:
            raise UserError("a bad share", stage="run")
        return [np.array([float(self.number)], np.float32)], {"g": np.array([self.number], np.float32)}


def shares(count: int, *engines: Told) -> Iterator[Share]:
    """The engines are quiet until all are made: a share takes longer than to make the next ones."""
    for engine in engines:
        engine.is_quiet = True
    for k in range(count):
        yield Share(k, [np.array([k])], {})
    for engine in engines:
        engine.is_quiet = False


def pool_of(*engines: Told) -> tuple[LocalPool, list[Worker]]:
    """They have computed before: how long a share takes is known."""
    made = [Moved(f"device {i}", "host", shares=2, seconds=1.0) for i in range(len(engines))]
    workers = [Worker(engine, moved) for engine, moved in zip(engines, made, strict=True)]
    return LocalPool(FORM, workers), workers


def numbers(results: Iterator[ShareResult]) -> list[int]:
    return [int(result.made["g"][0]) for result in results]


def test_the_next_share_is_sent_before_the_last_ones_gradients_are_taken() -> None:
    engine = Told()
    pool, _ = pool_of(engine)
    assert numbers(pool.compute(shares(5, engine))) == list(range(5))
    assert engine.most == 2
    for k in range(4):
        assert engine.events.index(("begin", k + 1)) < engine.events.index(("finish", k))


def test_a_device_that_cannot_has_one_share_at_a_time() -> None:
    engine = Told(takes_ahead=False)
    pool, _ = pool_of(engine)
    for _ in range(2):
        assert numbers(pool.compute(shares(5))) == list(range(5))
    assert engine.most == 1
    pool.close()
    pool.join()


def test_an_idle_device_comes_before_one_that_would_be_ahead() -> None:
    first, second = Told(), Told()
    pool, _ = pool_of(first, second)
    assert numbers(pool.compute(shares(4, first, second))) == list(range(4))
    assert first.events[0] == ("begin", 0) and second.events[0] == ("begin", 1)


@pytest.mark.parametrize(("seconds", "takes_part"), [(1.0, True), (1.2, True), (100.0, False)])
def test_a_slow_device_takes_no_share_that_would_be_waited_for(seconds: float, takes_part: bool) -> None:
    fast, slow = Told(), Told()
    pool, workers = pool_of(fast, slow)
    workers[1].moved.seconds = seconds
    workers[0].moved.computed = workers[1].moved.computed = lambda seconds: None  # type: ignore[method-assign]
    assert numbers(pool.compute(shares(8, fast, slow))) == list(range(8))
    assert bool(slow.events) is takes_part


def test_a_device_is_not_judged_by_its_first_share() -> None:
    fast, new = Told(), Told()
    pool, workers = pool_of(fast, new)
    workers[1].moved.shares, workers[1].moved.seconds = 1, 100.0
    numbers(pool.compute(shares(4, fast, new)))
    assert new.events


def test_an_error_leaves_nothing_under_way() -> None:
    engines = Told(bad=3), Told(bad=3)
    pool, _ = pool_of(*engines)
    numbers(pool.compute(shares(3)))
    with pytest.raises(UserError, match="a bad share"):
        numbers(pool.compute(shares(9, *engines)))
    assert all(engine.under_way == 0 for engine in engines)
    assert numbers(pool.compute(shares(3))) == [0, 1, 2]


def test_results_that_nobody_wants_any_more_are_given_up() -> None:
    engines = Told(), Told()
    pool, _ = pool_of(*engines)
    results = pool.compute(shares(9, *engines))
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert all(engine.under_way == 0 for engine in engines)
