"""What people who tune ask for: means over calls, and the most that a device can do."""

from __future__ import annotations

import numpy as np
import pytest

import tilegrad as tg
from tilegrad.devices.measure import WALL_SECONDS
from tilegrad.devices.null import NullDevice
from tilegrad.errors import UserError
from tilegrad.targets import base as targets

INPUTS = [np.zeros((1, 64), np.float32), np.zeros(1, np.int64)]


def test_a_row_is_the_mean_of_so_many_calls() -> None:
    with tg.open_device("host") as device:
        session = device.load(tg.compile("simplemlp"))
        before = session.weights()
        assert session.measure("step", INPUTS, repeat=3, number=4).calls == (4, 4, 4)
        longer = session.measure("step", INPUTS, repeat=2, min_seconds=0.01)
        assert all(n * s >= 0.01 for n, s in zip(longer.calls, longer.of(WALL_SECONDS), strict=True))
        for options in ({"number": 0}, {"min_seconds": -1.0}, {"min_seconds": float("nan")}):
            with pytest.raises(UserError, match="cannot be used"):
                session.measure("step", INPUTS, **options)  # type: ignore[arg-type]
        for name, array in session.weights().items():
            assert array.tobytes() == before[name].tobytes()


def test_the_peak_of_a_chip_is_its_description() -> None:
    chip = targets.get("siracusa")
    with tg.open_device("sim:siracusa") as device:
        peak = device.peak()
    assert peak.macs_per_cycle == min(chip.fpus, chip.cores) and set(peak.bytes_per_cycle) == {"L2-L1", "L3-L2"}
    assert peak.macs_per_second == peak.macs_per_cycle * chip.clock_hz


def test_the_peak_of_this_machine_is_measured() -> None:
    with tg.open_device("host") as device:
        peak = device.peak()
    assert "measured" in peak.how and peak.macs_per_cycle is None
    assert peak.macs_per_second is not None and peak.macs_per_second > 1e6 and peak.bytes_per_second["RAM"] > 1e6


def test_a_device_that_does_not_know_its_peak_says_so() -> None:
    with NullDevice("null") as device, pytest.raises(UserError, match="does not know its peak"):
        device.peak()
