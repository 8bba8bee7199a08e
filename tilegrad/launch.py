"""Where the `tilegrad` process starts. Imports nothing heavy, so that an interrupt is orderly from the first moment on.

Loading ONNX takes a good part of a second and PyTorch several: signals must be handled before that.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_caught: list[int] = []
_YOUNGEST_OBJECTS = 50_000  # that the garbage collector waits for; Python's default is 700


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


def _collect_seldom() -> None:
    """A compiler's graphs live until the command ends. Looking through all of them for cycles again and again, and
    through every module, takes a fifth of the time that a large model needs."""
    gc.freeze()
    gc.set_threshold(_YOUNGEST_OBJECTS, 20, 20)


def run() -> None:
    """The console script."""
    with interruptible():
        try:
            from tilegrad.report.streams import prepare_streams

            prepare_streams()
            from tilegrad.cli import main

            _collect_seldom()
            status = main(sys.argv[1:])
        except BaseException:
            if not interrupted():
                raise
            from tilegrad.report.failure import report_interrupt

            status = report_interrupt(sys.argv[1:])
    sys.exit(status)
