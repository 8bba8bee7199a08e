"""Runs for tests of several devices: small, and compared by their bits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import tilegrad as tg
from tilegrad.compiled import Compiled
from tilegrad.devices.base import Array, Device, Session
from tilegrad.devices.session import Begun
from tilegrad.parallel.group import DeviceGroup, open_devices
from tilegrad.parallel.shares import Engine
from tilegrad.training.train import Run, train

OPTIMIZERS = {"sgd": tg.SGD(lr=0.01), "adam": tg.Adam(lr=0.001)}


def compiled(
    model: str, shares: int, *, optimizer: str = "sgd", batchnorm: str = "frozen", batch: int = 1, target: str = "host"
) -> Compiled:
    recipe = tg.Recipe(
        accumulate=shares, optimizer=OPTIMIZERS[optimizer], batchnorm=batchnorm, batch=batch  # type: ignore[arg-type]
    )
    return tg.compile(model, recipe, target)


def run_on(device: str | Device, program: Compiled, updates: int = 2, **options: Any) -> Run:
    if isinstance(device, Device):
        return train(program, device, steps=updates, verify=False, **options)
    with open_devices(device) as opened:
        return train(program, opened, steps=updates, verify=False, **options)


def assert_same_bits(expected: Run, got: Run) -> None:
    assert got.weights_sha256 == expected.weights_sha256
    assert got.losses == expected.losses
    for name, array in expected.statistics.items():
        assert array.tobytes() == got.statistics[name].tobytes(), name
    for name, array in expected.first_gradients.items():
        assert array.tobytes() == got.first_gradients[name].tobytes(), name


class Slow:
    """A session that takes a while for each share."""

    takes_ahead = False

    def __init__(self, session: Session, seconds: float) -> None:
        self.session = session
        self.seconds = seconds
        self.exchange = session.exchange

    def begin(
        self, entry: str | None, inputs: Sequence[Array], writes: Mapping[str, Array], reads: Sequence[str]
    ) -> Begun:
        time.sleep(self.seconds)
        return self.session.begin(entry, inputs, writes, reads)


class GroupWithSlow(DeviceGroup):
    """The device with this number is slow."""

    slow = 1
    seconds = 0.1

    def _engine(self, number: int, session: Session) -> Engine:
        return Slow(session, self.seconds) if number == self.slow else session
