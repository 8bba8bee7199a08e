"""What a device can do, as data."""

from __future__ import annotations

from dataclasses import dataclass

from tilegrad.devices.measure import COMPUTE_SECONDS, TRANSFER_SECONDS, WALL_SECONDS


@dataclass(frozen=True)
class Capabilities:
    """What a device can do; the conformance tests and the commands ask this and never the device's name.

    `runs` is False where programs are checked and not run. `is_interactive` is False where a run is decided when it
    is built, so that nothing can be sent or read while it runs. `counters` are what `measure` may be asked for.
    `estimates_cycles` says that cycles come from a model of the chip. `has_process` says that a process of its own
    runs each program, so that a crash is survived. `is_exclusive` says that one process at a time may open it.
    `is_single` says that it runs one program at a time. `profiles` says that a training can be told nest by nest: where
    its cycles went. `takes_ahead` says that an exchange may begin before the answers to the last one are taken, so that
    the device does not wait for us in between.
    """

    runs: bool = True
    is_interactive: bool = True
    counters: tuple[str, ...] = (WALL_SECONDS, COMPUTE_SECONDS, TRANSFER_SECONDS)
    estimates_cycles: bool = False
    has_process: bool = True
    is_exclusive: bool = False
    is_single: bool = False
    profiles: bool = False
    takes_ahead: bool = False
