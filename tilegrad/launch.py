"""Where the `tilegrad` process starts. Imports nothing heavy, so that an interrupt is orderly from the first moment on.

Loading ONNX takes a good part of a second and PyTorch several: signals must be handled before that.
"""

from __future__ import annotations

import gc
import sys

from tilegrad.interrupts import interrupted, interruptible

_YOUNGEST_OBJECTS = 50_000  # that the garbage collector waits for; Python's default is 700


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
