"""The host device: its sessions, and what happens when programs crash, hang or cannot be built."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tilegrad as tg
from tests.support.projects import batch, opened, state_of, zoo_model
from tilegrad.compiled import Compiled
from tilegrad.devices.base import Session
from tilegrad.devices.host import HostDevice
from tilegrad.devices.process import HarnessSession
from tilegrad.devices.registry import open_device
from tilegrad.errors import DeviceError, UserError


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return zoo_model("simplemlp")


@pytest.fixture
def session(compiled: Compiled) -> Iterator[HarnessSession]:
    with opened(compiled) as loaded:
        assert isinstance(loaded, HarnessSession)
        yield loaded


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


# ---- the session


def test_a_session_trains_infers_and_shows_its_state(session: Session) -> None:
    x, y = batch(session.compiled)
    before = session.parameters()
    logits = session.infer(x)
    assert logits.shape == (1, 10) and logits.dtype == np.float32
    loss = session.step(x, y)
    shifted = logits - logits.max()
    assert loss == pytest.approx(float(np.log(np.exp(shifted).sum()) - shifted[0, int(y[0])]), rel=1e-5)
    gradients = session.gradients()
    assert set(gradients) == set(before) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    session.update()
    for name, array in session.parameters().items():
        expected = (before[name].astype(np.float64) - 0.01 * gradients[name]).astype(np.float32)
        np.testing.assert_allclose(array, expected, rtol=1e-6)
    assert session.step(x, y) < loss
    assert set(session.optimizer_state()) == {"tg.lazy_reset_grad", "tg.learning_rate"}


def test_gradients_accumulate_until_the_update(session: Session) -> None:
    x, y = batch(session.compiled)
    session.step(x, y)
    once = session.gradients()
    session.step(x, y)
    twice = session.gradients()
    session.update()
    session.set_parameters(session.parameters())
    for name, gradient in once.items():
        np.testing.assert_array_equal(twice[name], gradient + gradient)


def test_the_learning_rate_is_state(session: Session) -> None:
    """A schedule is the caller's: the rate is a tensor like any other, a scalar at that."""
    x, y = batch(session.compiled)
    before = session.parameters()
    session.write("tg.learning_rate", 0.0)
    session.step(x, y)
    session.update()
    for name, array in session.parameters().items():
        np.testing.assert_array_equal(array, before[name])
    session.write("tg.learning_rate", np.float32(0.5))
    assert session.read("tg.learning_rate") == np.float32(0.5) and session.read("tg.learning_rate").shape == ()


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [(tg.Momentum(), {"momentum"}), (tg.Adam(), {"exp_avg", "exp_avg_sq"})],
)
def test_optimizer_state(optimizer: tg.SGD, slots: set[str]) -> None:
    compiled = tg.compile(tg.load("simplemlp"), tg.Recipe(optimizer=optimizer), target="host")
    with opened(compiled) as session:
        x, y = batch(compiled)
        for _ in range(3):
            session.step(x, y)
            session.update()
        state = session.optimizer_state()
        expected = {f"{name}.{slot}" for name in session.parameters() for slot in slots}
        assert {name for name in state if not name.startswith("tg.")} == expected
        assert all(np.abs(state[name]).max() > 0 for name in expected)
        if slots == {"exp_avg", "exp_avg_sq"}:
            assert state["tg.update"] == 3 and state["tg.update"].dtype == np.int64


def test_wrong_inputs_are_refused_by_name(session: Session) -> None:
    x, y = batch(session.compiled)
    before = state_of(session)
    cases: dict[str, Callable[[], object]] = {
        "input 'input' of step has a wrong shape\n  expected: [1, 64]\n  got: [64]": lambda: session.step(x[0], y),
        "input 'labels' of step has a wrong shape\n  expected: [1]\n  got: [2]": lambda: session.step(x, [1, 2]),
        "input 'labels' of step has a wrong element type\n  expected: i64\n  got: float64\n"
        "  hint: whole numbers are given as integers: value.astype('int64')": (
            lambda: session.step(x, [1.5])
        ),
        "input 'input' of infer has a wrong element type\n  expected: f32\n  got: complex64": (
            lambda: session.infer(x + 1j)
        ),
        "step has a wrong number of inputs\n  expected: 2\n  got: 1": lambda: session.run("step", [x]),
        "the program has no tensor 'fc1.wight'\n  hint: did you mean 'fc1.weight'?": (
            lambda: session.set_parameters({"fc1.wight": 0})
        ),
        "the program has no tensor 'zzz'": lambda: session.read("zzz"),
        "tensor 'fc1.bias' has a wrong shape\n  expected: [8]\n  got: [9]": (
            lambda: session.write("fc1.bias", np.zeros(9))
        ),
    }
    for text, call in cases.items():
        with pytest.raises(UserError) as caught:
            call()
        assert str(caught.value) == text
    assert state_of(session) == before


# ---- crashes and hangs


def test_a_crash_is_a_device_error(session: HarnessSession) -> None:
    x, y = batch(session.compiled)
    session.step(x, y)
    os.kill(session.transport.process.pid, signal.SIGKILL)
    with pytest.raises(DeviceError) as caught:
        for _ in range(1000):
            session.step(x, y)
    assert "(signal SIGKILL)" in str(caught.value) and caught.value.exit_status == 3
    assert not exists(session.transport.process.pid), "a zombie is left"
    with pytest.raises(DeviceError, match="signal SIGKILL"):
        session.update()


def test_a_crash_in_the_middle_of_an_entry(session: HarnessSession) -> None:
    """Killed while it computes, not while it waits."""
    x, y = batch(session.compiled)
    session.step(x, y)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.seconds_per_call, "step", 2**31)
        time.sleep(0.2)
        os.kill(session.transport.process.pid, signal.SIGSEGV)
        with pytest.raises(DeviceError) as caught:
            running.result(timeout=30)
    assert str(caught.value).startswith("the program ended before it answered (signal SIGSEGV)\n")
    assert not exists(session.transport.process.pid)


def test_a_hang_ends_at_the_time_limit(session: HarnessSession) -> None:
    session.timeout_seconds = 0.3
    os.kill(session.transport.process.pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(DeviceError) as caught:
        session.step(*batch(session.compiled))
    assert time.monotonic() - start < 10
    assert str(caught.value).startswith("the program did not answer in time (signal SIGKILL)\n")
    assert not exists(session.transport.process.pid)


def test_a_stopped_program_does_not_keep_close_waiting(compiled: Compiled) -> None:
    with opened(compiled) as session:
        assert isinstance(session, HarnessSession)
        os.kill(session.transport.process.pid, signal.SIGSTOP)
        start = time.monotonic()
        session.close()
        assert time.monotonic() - start < 10 and not exists(session.transport.process.pid)


def test_what_the_program_said_is_quoted(session: HarnessSession) -> None:
    with pytest.raises(DeviceError) as caught:
        session._request(99, b"")
    assert str(caught.value).startswith("the program ended before it answered (status 2)\n")
    assert "harness: malformed request" in str(caught.value)


def test_the_program_ends_when_python_does() -> None:
    """Even killed, Python leaves no orphan: the harness ends with its input."""
    script = (
        "import time\nfrom tests.support.projects import zoo_model\nfrom tilegrad.devices.host import HostDevice\n"
        "session = HostDevice().load(zoo_model('simplemlp'))\nprint(session.transport.process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    python = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert python.stdout is not None
    pid = int(python.stdout.readline())
    assert is_running(pid)
    python.kill()
    python.wait()
    python.stdout.close()
    end = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_running(pid)


# ---- by name


@pytest.mark.parametrize(
    ("name", "hint"),
    [("hots", "did you mean 'host'?"), ("Host", "did you mean 'host'?"), ("zzz", "`tilegrad devices` lists them")],
)
def test_an_unknown_device(name: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        open_device(name)
    assert caught.value.message == f"there is no device '{name}'" and caught.value.hint == hint
    assert caught.value.expected is not None and "host" in caught.value.expected.split(" or ")


def test_a_program_for_another_target_is_refused() -> None:
    program = tg.compile(tg.load("simplemlp"), tg.Recipe(), target="mcu")
    with HostDevice() as device, pytest.raises(UserError) as caught:
        device.load(program)
    assert str(caught.value) == (
        "the program is compiled for target 'mcu', not for device 'host'\n"
        "  expected: target 'host'\n"
        "  got: target 'mcu'\n"
        "  hint: compile with --device host"
    )
