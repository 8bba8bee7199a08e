"""A session that threads share: every call is whole, and closing does not wait for one that hangs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.projects import batch, opened, zoo_model
from tilegrad.compiled import Compiled
from tilegrad.devices.process import HarnessSession
from tilegrad.errors import DeviceError


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return zoo_model("simplemlp")


def test_two_threads_use_one_session(compiled: Compiled) -> None:
    x, y = batch(compiled)
    with opened(compiled) as session:
        loss, logits, weights = session.step(x, y), session.infer(x), session.parameters()

        def work(number: int) -> None:
            for _ in range(60):
                if number % 2:
                    assert session.step(x, y) == loss
                    assert session.gradients().keys() == weights.keys()
                else:
                    assert np.array_equal(session.infer(x), logits)
                    read = session.parameters()
                    assert all(np.array_equal(read[name], weights[name]) for name in weights)

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, number) for number in range(4)]:
                done.result()
        assert session.step(x, y) == loss


def test_updates_from_two_threads_are_counted(compiled: Compiled) -> None:
    """Steps and updates of two threads alternate in some order; the sum of all is that of one thread."""
    x, y = batch(compiled)
    with opened(compiled) as session:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: session.step(x, y), range(40)))
        together = session.gradients()
    with opened(compiled) as session:
        for _ in range(40):
            session.step(x, y)
        alone = session.gradients()
    assert all(np.array_equal(together[name], alone[name]) for name in alone)


def test_a_session_that_hangs_in_one_thread_is_closed_by_another(compiled: Compiled) -> None:
    x, y = batch(compiled)
    with opened(compiled) as session:
        assert isinstance(session, HarnessSession)
        begun = threading.Event()
        receive = session.transport.receive

        def slow(size: int, deadline: float) -> bytes:
            begun.set()
            time.sleep(3)
            return receive(size, deadline)

        session.transport.receive = slow  # type: ignore[method-assign]
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(session.step, x, y)
            assert begun.wait(30)
            session.close()
            with pytest.raises(DeviceError):
                running.result(timeout=30)
