"""An inspection for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from tilegrad.fit import Fit
from tilegrad.fit.answer import Answer
from tilegrad.inspection import Inspection
from tilegrad.passes.inference import NO_LOSS
from tilegrad.report.format import bytes_text, count_text, cycles_text, ratio_text, roofline_text, shape_text
from tilegrad.report.output import heading, table
from tilegrad.report.table import FittingTable


def inspection_report(facts: Inspection) -> Iterator[RenderableType]:
    yield heading(f"{facts.model} for {facts.target}, batch {facts.batch}, loss {facts.loss}")
    for word, values in (("input", facts.inputs), ("output", facts.outputs)):
        for name, tensor in values.items():
            yield Text(f"{word} {name} {tensor}")
    trained, total = count_text(facts.trainable_params), count_text(facts.params)
    if facts.loss == NO_LOSS:
        yield Text("the model has nothing to train: these are the costs of inference (--parameters says why)")
    else:
        yield Text(f"{trained} of {total} parameters train (--parameters lists them)")
    for note in facts.notes:
        yield Text(f"note: {note}")
    yield Text()
    yield operator_table(facts)
    yield Text()
    yield budget_table(facts)
    yield Text()
    yield Text(str(facts.stack))
    cycles = cycles_text(facts.cycles, facts.cycles_word, facts.uncounted)
    yield from (Text(line) for line in (cycles, roofline_text(facts.roofline, facts.cycles_word)) if line)
    if facts.store != "f32":
        yield Text(f"stored {facts.store}: saved activations take {bytes_text(facts.saved_activation_bytes)}")
    if facts.fit is not None:
        yield Text(fit_text(facts.fit, facts.cycles_word))
    if facts.ways is not None:
        yield Text()
        yield from ways_report(facts.ways)
    if facts.fits:
        yield fits_line(facts)  # else it is an error, which says so with the budget and what would help


def operator_table(facts: Inspection) -> FittingTable:
    columns = [f"{word} {entry}" for entry in facts.macs for word in ("n", "MACs")]
    made = table("operator", *columns, right=tuple(columns), spare=("n update", "n infer", "MACs update", "n step"))
    for use in facts.operators:
        cells = []
        for entry in facts.macs:
            cells += [_or_dash(use.count[entry]), _or_dash(use.macs[entry])]
        made.add_row(use.name, *cells)
    totals = []
    for entry, macs in facts.macs.items():
        totals += [_or_dash(sum(use.count[entry] for use in facts.operators)), _or_dash(macs)]
    made.add_row("total", *totals, style="bold")
    return made


def _or_dash(count: int) -> str:
    return count_text(count) if count else "-"


def budget_table(facts: Inspection) -> FittingTable:
    """Every byte, by what it is for."""
    right = ("bytes", "lower bound", "used / bound")
    made = table("memory", "for", *right, right=right, spare=("used / bound", "lower bound"))
    for name, level in facts.memory.items():
        made.add_row(
            name,
            "everything",
            count_text(level.used_bytes),
            count_text(level.lower_bound_bytes),
            ratio_text(level.used_bytes, level.lower_bound_bytes),
            style="bold",
        )
    for role, size in facts.state_bytes.items():
        made.add_row("  state", role, count_text(size), count_text(size), "")
    arena, bound = facts.arena_bytes, facts.arena_lower_bound_bytes
    made.add_row("  arena", "the entries share it", count_text(arena), count_text(bound), ratio_text(arena, bound))
    for entry, need in facts.entries.items():
        made.add_row("", entry, "", count_text(need.lower_bound_bytes), "")
    for part, size in facts.image_bytes.items():
        made.add_row("  image", part, count_text(size), count_text(size), "")
    return made


def fit_text(fit: Fit, word: str) -> str:
    """What it took to fit."""
    if fit.before_cycles is not None and fit.after_cycles is not None:
        if not fit.repeated:
            return "fit: nothing is cheaper to compute again than to keep, or to fetch from L3"
        return (
            f"fit: {count_text(fit.repeated)} operators are computed again where that is cheaper than L3, with the "
            f"same bits: a step takes {count_text(fit.after_cycles)} {word} instead of "
            f"{count_text(fit.before_cycles)}"
        )
    if fit.is_as_it_was:
        return f"fit: nothing has to change: {bytes_text(fit.before_bytes)} of {bytes_text(fit.limit_bytes)}"
    parts = f" and {count_text(fit.parts)} work on parts of tensors" if fit.parts else ""
    return (
        f"fit: {count_text(fit.repeated)} operators are computed again{parts}, with the same bits: "
        f"{bytes_text(fit.before_bytes)} became {bytes_text(fit.after_bytes)} of {bytes_text(fit.limit_bytes)}, "
        f"for {fit.more_macs:.1%} more MACs in a step"
    )


def ways_report(answer: Answer) -> Iterator[RenderableType]:
    """What would make it fit, the cheapest first, and what nothing goes below."""
    limit = f"{count_text(answer.limit_bytes)} bytes of {answer.memory}"
    yield heading(f"ways to fit into {limit}")
    right = (f"{answer.memory} bytes", "MACs a step", "more", "trains")
    made = table("way", "results", *right, "fits", right=right, spare=("MACs a step", "trains"))
    for way in (answer.as_is, *answer.ways):
        more = way.macs / max(answer.as_is.macs, 1) - 1.0
        made.add_row(
            way.options or "as it is",
            way.results,
            count_text(way.used_bytes),
            count_text(way.macs),
            f"{more:+.1%}",
            f"{way.trained / max(answer.trainable, 1):.1%}",
            Text("yes", style="green") if way.fits else Text("no", style="red"),
        )
    yield made
    yield Text(
        f"with the same results nothing needs less than {count_text(answer.bound_bytes)} bytes: "
        "state, and the operands of one operator or of its parts"
    )


def fits_line(facts: Inspection) -> Text:
    parts = []
    for name, level in facts.memory.items():
        limit = "no limit" if level.capacity_bytes is None else bytes_text(level.capacity_bytes)
        parts.append(f"{name} {bytes_text(level.used_bytes)} of {limit}")
    return Text("fits", style="bold green") + Text(": " + ", ".join(parts))


def parameter_report(facts: Inspection) -> Iterator[RenderableType]:
    """Every initializer, after what there is to say about ties, copies and folded layers."""
    for note in facts.notes:
        yield Text(f"note: {note}")
    yield parameter_table(facts)


def parameter_table(facts: Inspection) -> FittingTable:
    columns = ("initializer", "shape", "elements", "is a", "trains", "why")
    made = table(*columns, right=("elements",), spare=("is a", "shape"))
    for use in facts.parameters:
        made.add_row(
            use.name,
            shape_text(use.shape),
            count_text(use.elements),
            use.role,
            Text("yes", style="green") if use.trains else Text("no", style="dim"),
            use.reason,
        )
    return made
