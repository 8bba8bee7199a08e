"""A gradient check for people: one row per tensor, those nearest to their limit first."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from tilegrad.report.format import error_text, plural
from tilegrad.report.output import heading, table
from tilegrad.report.training import outcome_text
from tilegrad.training.gradcheck import GradientCheck


def gradcheck_report(check: GradientCheck) -> Iterator[RenderableType]:
    verdict = check.verdict
    yield heading(f"{check.compiled.program.name} on {check.device}")
    word = outcome_text(verdict)
    yield word + Text(f" against {verdict.reference}")
    yield Text(f"covers {verdict.coverage}")
    yield Text(f"loss {check.loss:.7g}, reference {verdict.reference_losses[0]:.7g}")
    yield Text()
    made = table("gradient of", "error", "allowed", "note", right=("error", "allowed"))
    for row in sorted(verdict.tensors, key=lambda row: -row.severity):
        style = "" if row.passed else "bold red"
        made.add_row(Text(row.name, style=style), error_text(row.error), error_text(row.allowed), row.note)
    yield made
    off = sum(not row.passed for row in verdict.tensors)
    yield Text(f"{plural(len(verdict.tensors), 'gradient')} checked, {off} off")
