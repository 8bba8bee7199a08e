"""Exchanges with a running program: begun ahead of each other, finished in order, and none sees another's memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.projects import batch, zoo_model
from tilegrad.compiled import Compiled
from tilegrad.devices.host import HostDevice
from tilegrad.devices.process import HarnessSession
from tilegrad.devices.transport import WINDOWS, ProcessTransport
from tilegrad.errors import DeviceError, UserError
from tilegrad.ir.program import Role


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return zoo_model("simplemlp")


@pytest.fixture(params=[True, False], ids=["windows", "pipes"])
def session(compiled: Compiled, request: pytest.FixtureRequest) -> Iterator[HarnessSession]:
    with HostDevice() as device:
        loaded = device.load(compiled)
        assert isinstance(loaded, HarnessSession) and loaded.takes_ahead
        if not request.param:
            loaded.transport.windows = ()
        yield loaded


def names(compiled: Compiled, role: Role) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in compiled.program.with_role(role))


def numbered(compiled: Compiled, number: int) -> dict[str, np.ndarray]:
    """Parameters that can be told from those of another number."""
    trained = compiled.program.with_role(Role.PARAMETER)
    return {tensor.name: np.full(tensor.type.shape, number, np.float32) for tensor in trained}


def test_what_is_begun_ahead_is_what_one_after_another_gives(compiled: Compiled, session: HarnessSession) -> None:
    reads = names(compiled, Role.GRADIENT)
    batches = [batch(compiled, i) for i in range(6)]
    with HostDevice() as device:
        alone = device.load(compiled)
        expected = [alone.exchange("step", each, {}, reads) for each in batches]
    begun = session.begin("step", batches[0], {}, reads)
    for i in range(6):
        ahead = session.begin("step", batches[i + 1], {}, reads) if i < 5 else None
        (loss,), gradients = begun.finish()
        assert loss.tobytes() == expected[i][0][0].tobytes()
        assert {name: gradients[name].tobytes() for name in reads} == {
            name: expected[i][1][name].tobytes() for name in reads
        }
        begun = ahead or begun


def test_results_that_are_kept_stay_as_they_are(compiled: Compiled, session: HarnessSession) -> None:
    """More than there are windows, with two under way at any time."""
    reads = names(compiled, Role.PARAMETER)
    kept, begun = [], session.begin(None, (), numbered(compiled, 0), reads)
    for number in range(1, 3 * WINDOWS):
        ahead = session.begin(None, (), numbered(compiled, number), reads)
        kept.append(begun.finish()[1])
        begun = ahead
    kept.append(begun.finish()[1])
    for number, found in enumerate(kept):
        assert all(np.all(found[name] == number) for name in reads)


def test_a_call_between_takes_the_answers_before_it(compiled: Compiled, session: HarnessSession) -> None:
    x, y = batch(compiled)
    reads = names(compiled, Role.GRADIENT)
    begun = session.begin("step", (x, y), {}, reads)
    logits, after = session.infer(x), session.gradients()
    (loss,), found = begun.finish()
    assert np.isfinite(loss).all() and logits.shape[0] == x.shape[0]
    owners = {tensor.name: tensor.owner for tensor in compiled.program.with_role(Role.GRADIENT)}
    assert all(found[name].tobytes() == after[owners[name] or ""].tobytes() for name in reads)


def test_an_error_is_that_of_its_own_exchange(compiled: Compiled, session: HarnessSession) -> None:
    x, y = batch(compiled)
    bad = session.begin("step", (x, np.full_like(y, 1000)), {}, ())
    good = session.begin("step", (x, y), {}, ())
    with pytest.raises(UserError, match="label"):
        bad.finish()
    assert np.isfinite(good.finish()[0][0]).all()


def test_a_program_that_dies_fails_all_that_is_under_way(compiled: Compiled, session: HarnessSession) -> None:
    assert isinstance(session.transport, ProcessTransport)
    os.kill(session.transport.process.pid, signal.SIGSTOP)
    begun = [session.begin("step", batch(compiled), {}, ()) for _ in range(2)]
    os.kill(session.transport.process.pid, signal.SIGKILL)
    session.transport.process.wait()
    assert session.is_lost
    for each in begun:
        with pytest.raises(DeviceError, match="SIGKILL"):
            each.finish()


def test_more_is_asked_than_pipes_hold(compiled: Compiled, session: HarnessSession) -> None:
    """The program cannot go on while nobody takes its answers, and so does not read: `send` takes them."""
    session.transport.windows = ()
    reads = names(compiled, Role.PARAMETER)
    sizes = {tensor.name: tensor.type.size_bytes for tensor in compiled.program.state}
    most = 3 + 3 * (1 << 20) // sum(sizes[name] for name in reads)
    begun = [session.begin(None, (), numbered(compiled, number), reads) for number in range(most)]
    for number, each in enumerate(begun):
        found = each.finish()[1]
        assert all(np.all(found[name] == number) for name in reads)
