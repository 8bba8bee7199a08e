"""How a command fails: one clear message on stderr, `{"error": …}` where JSON was asked for, and the exit status."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from tilegrad import __version__
from tilegrad.build import written
from tilegrad.build.files import write_file
from tilegrad.errors import TilegradError
from tilegrad.report import json
from tilegrad.report.output import console_on, say, write_json_to_stdout
from tilegrad.report.streams import writing_to_stderr
from tilegrad.visible import visible

USAGE_STATUS = 2
BUG_STATUS = 70
INTERRUPTED_STATUS = 130
_UNUSABLE_FILES = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EIO,
)


def json_destination(arguments: Sequence[str]) -> str | None:
    """What `--json` says, read without a parser: the parser may be what fails."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if argument == "--":
            return None
        if argument == "--json":
            return None if following.startswith("--") else following or None  # an option is no file
        if argument.startswith("--json="):
            return argument.partition("=")[2] or None
    return None


def debugging() -> bool:
    return os.environ.get("TILEGRAD_DEBUG", "0") not in ("", "0")


def error_document(kind: str, status: int, message: str, hint: str | None = None) -> dict[str, Any]:
    """The shape of `TilegradError.as_json`, for failures that are none."""
    fields = {"stage": None, "node": None, "expected": None, "got": None, "hint": hint}
    return {"error": {"kind": kind, "status": status, "message": message, **fields}}


def report_error(error: TilegradError, arguments: Sequence[str]) -> int:
    if error.exit_status == BUG_STATUS:
        return report_bug(error, arguments)
    _say("error: ", str(error))
    _write(error.as_json(), arguments)
    return error.exit_status


def announce(error: TilegradError) -> int:
    """For a command that has written its result already and whose answer is bad news."""
    _say("error: ", str(error))
    return error.exit_status


def report_usage(message: str, command: str, arguments: Sequence[str]) -> int:
    hint = f"`{command} --help` explains"
    text = message.rstrip()
    _say("error: ", f"{text}\n  hint: {hint}")
    _write(error_document("UsageError", USAGE_STATUS, text, hint), arguments)
    return USAGE_STATUS


def report_interrupt(arguments: Sequence[str]) -> int:
    """Says what had been written, and leaves a result that had."""
    done = written.paths()
    names = ", ".join(f"'{path}'" for path in done)
    message = f"interrupted: {names} had been written" if done else "interrupted: nothing was written"
    destination = json_destination(arguments)
    if destination is None or Path(destination) not in done:
        hint = f"written before that: {names}" if done else None
        _write(error_document("Interrupted", INTERRUPTED_STATUS, "interrupted", hint), arguments)
        if written.paths() != done:
            message += f"; '{destination}' says so" if done else f" but '{destination}', which says so"
    _say("", message)
    return INTERRUPTED_STATUS


def report_os_error(error: OSError, arguments: Sequence[str]) -> int:
    """A full disk or a file we may not use is the user's to mend; any other OSError that gets here is our bug."""
    if error.errno not in _UNUSABLE_FILES:
        return report_bug(error, arguments)
    where = f"cannot use '{error.filename}'" if error.filename else "cannot write"
    message = f"{where}: {error.strerror}"
    _say("error: ", message)
    _write(error_document("UserError", USAGE_STATUS, message), arguments)
    return USAGE_STATUS


def report_bug(error: BaseException, arguments: Sequence[str]) -> int:
    text = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {error}"
    hint = "please report it with the command and the model"
    kept = None if debugging() else _keep(text, arguments)
    if kept is None:
        with writing_to_stderr():
            sys.stderr.write(visible(text))
    else:
        hint += f"; the traceback is in '{kept}' (TILEGRAD_DEBUG=1 prints it)"
    _say("bug in tilegrad: ", f"{message}\n  hint: {hint}")
    _write(error_document("InternalError", BUG_STATUS, message, hint), arguments)
    return BUG_STATUS


def _keep(text: str, arguments: Sequence[str]) -> str | None:
    """Writes the traceback to a file of its own, or returns None where there is no place for one."""
    words = f"tilegrad {__version__}, Python {sys.version.split()[0]}\n{' '.join(arguments)}\n\n{text}"
    try:
        handle, path = tempfile.mkstemp(prefix="tilegrad-bug-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(visible(words))
    except OSError:
        return None
    return path


def _say(label: str, message: str) -> None:
    with writing_to_stderr():
        say(console_on(sys.stderr), Text(label, style="bold red") + Text(message))


def _write(document: dict[str, Any], arguments: Sequence[str]) -> None:
    destination = json_destination(arguments)
    if destination == "-":
        with contextlib.suppress(TilegradError):  # a full stdout: there is an exit status already
            write_json_to_stdout(document)
    elif destination is not None:
        try:
            write_file(Path(destination), json.dumps(document).encode())
        except TilegradError:
            return  # it is most likely the very error that has just been told
