"""stdout and stderr as they are found: closed, full, a pipe that nobody reads, or without the letters we use."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from tilegrad.errors import UserError

_PLAIN = {"×": "x", "…": "...", "µ": "u", "→": "->", "≤": "<=", "≥": ">=", "·": "*", "–": "-", "—": "-", "•": "*"}
_HANDLER = "tilegrad-plain"


def prepare_streams() -> None:
    """For the whole process: what an encoding lacks is written in other letters, and a closed stream takes all."""
    codecs.register_error(_HANDLER, _in_plain_letters)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - for good
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_HANDLER)


def _in_plain_letters(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lacking), error.end


def takes_all_letters(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-").startswith("utf")


@contextlib.contextmanager
def writing_to_stdout() -> Iterator[None]:
    """`tilegrad … | head` must neither print a traceback nor lose the exit status; a full disk is an error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        raise UserError(f"cannot write to stdout: {error.strerror or error}", stage="write") from error


@contextlib.contextmanager
def writing_to_stderr() -> Iterator[None]:
    """There is nobody left to be told."""
    try:
        yield
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """What is written from now on, and what Python still holds, goes nowhere, instead of failing at the very end."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
