"""-q and -v, which every command has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer

from tilegrad.errors import UserError
from tilegrad.report.loudness import Loudness, set_loudness

_PANEL = "Output"
Quiet = Annotated[
    bool,
    typer.Option(
        "-q", "--quiet", help="Print errors and --json only; the status says the rest.", rich_help_panel=_PANEL
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v", "--verbose", help="Tell each stage and its time on stderr as it begins.", rich_help_panel=_PANEL
    ),
]
_OPTIONS = (
    Parameter("quiet", Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
    Parameter("verbose", Parameter.KEYWORD_ONLY, default=False, annotation=Verbose),
)


def spoken(command: Callable[..., int]) -> Callable[..., int]:
    """The command with these two options, which are for what prints, not for the command."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints.get(name, parameter.annotation), kind=Parameter.KEYWORD_ONLY)
        for name, parameter in signature(command).parameters.items()
    ]

    @functools.wraps(command)
    def run(**values: Any) -> int:
        quiet, verbose = values.pop("quiet"), values.pop("verbose")
        if quiet and verbose:
            raise UserError("-q and -v are opposites", stage="options", expected="one of them")
        set_loudness(Loudness.QUIET if quiet else Loudness.VERBOSE if verbose else Loudness.NORMAL)
        try:
            return command(**values)
        finally:
            set_loudness(Loudness.NORMAL)

    vars(run).pop("__wrapped__")
    vars(run)["__signature__"] = signature(command).replace(parameters=[*own, *_OPTIONS])
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *_OPTIONS)} | {"return": int}
    return run
