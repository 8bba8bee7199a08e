"""Signals that end a command in order. Imports nothing heavy: they are handled before anything is loaded."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_caught: list[int] = []


def interrupted() -> bool:
    """Whether a signal asked to stop. An interrupted import may surface as any error, not only KeyboardInterrupt."""
    return bool(_caught)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does: through every clean-up on the way out.

    Only the first signal counts, so that an impatient second one cannot cut the clean-up short.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        _caught.append(number)
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    _caught.clear()
    for number in _SIGNALS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
