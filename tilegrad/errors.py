"""The four ways tilegrad fails, each with its exit status.

A user's mistake and a bug of ours are different types, so that neither is ever reported as the other. Every error says
where it was found (stage, node), what was expected, what came, and what to do.
"""

from __future__ import annotations

from typing import Any

from tilegrad.visible import visible


class TilegradError(Exception):
    """Base of every error a command may end with; never raised itself."""

    exit_status = 70

    def __init__(
        self,
        message: str,
        *,
        stage: str | None = None,
        node: str | None = None,
        expected: str | None = None,
        got: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.node = node
        self.expected = expected
        self.got = got
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message if self.node is None else f"node '{self.node}': {self.message}"]
        lines += [
            f"  {label}: {text}"
            for label, text in (("expected", self.expected), ("got", self.got), ("hint", self.hint))
            if text is not None
        ]
        return visible("\n".join(lines))

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints in place of a result."""
        return {
            "error": {
                "kind": type(self).__name__,
                "status": self.exit_status,
                "message": self.message,
                "stage": self.stage,
                "node": self.node,
                "expected": self.expected,
                "got": self.got,
                "hint": self.hint,
            }
        }


class VerificationError(TilegradError):
    """The run disagrees with its reference."""

    exit_status = 1


class UserError(TilegradError):
    """The model, the recipe, the data or a path cannot be used as given."""

    exit_status = 2


class DoesNotFit(UserError):
    """The program needs more memory than the target has; carries the byte budget in its message."""


class DeviceError(TilegradError):
    """A device, toolchain or compiler is missing, busy or fails."""

    exit_status = 3


class InternalError(TilegradError):
    """tilegrad broke one of its own rules: always our bug."""

    exit_status = 70
