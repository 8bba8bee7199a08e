"""Moments that an interrupt must not cut in two: what is made and the note that it was made, or a clean-up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that have a handler in Python wait until the block has ended; each is then handled once.

    Python runs handlers in the main thread alone, so other threads need nothing. Blocks may be nested.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        del frame
        waiting.append(number)

    before = {each: handler for each in _SIGNALS if callable(handler := signal.getsignal(each))}
    for each in before:
        signal.signal(each, wait)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in dict.fromkeys(waiting):
            signal.raise_signal(number)
