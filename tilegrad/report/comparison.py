"""`tilegrad compare` for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tilegrad.recipe import Recipe
from tilegrad.report.format import bytes_text, count_text, uncounted_text
from tilegrad.report.output import heading, table
from tilegrad.report.training import outcome_text
from tilegrad.targets.base import Target
from tilegrad.training.comparison import Row, hidden_share

SPARE = ("tiles", "L3-L2", "L2-L1", "L3", "stalled", "hidden", "L2", "L1", "MAC/cycle", "speed-up")


def _recipe_of(rows: Sequence[Row], recipe: Recipe) -> Recipe:
    """As it was compiled: a training graph has its own batch."""
    return next((row.compiled.program.recipe for row in rows if row.compiled is not None), recipe)


def comparison_json(model: str, device: str, target: Target, recipe: Recipe, rows: Sequence[Row]) -> dict[str, Any]:
    recipe = _recipe_of(rows, recipe)
    return {
        "model": model,
        "device": device,
        "target": target.name,
        "cores": target.cores,
        "batch": recipe.batch,
        "accum": recipe.accumulate,
        "cycles_are": target.cycles_are,
        "uncounted": list(_uncounted(rows)),
        "rows": [row.as_json() for row in rows],
    }


def comparison_report(
    model: str, device: str, target: Target, recipe: Recipe, rows: Sequence[Row]
) -> Iterator[RenderableType]:
    recipe = _recipe_of(rows, recipe)
    yield heading(f"{model} on {device}")
    word = target.cycles_word
    yield Text(f"{word} of one update: batch {recipe.batch}, {recipe.accumulate} mini-batch(es) per update")
    yield Text()
    levels, hops = [memory.name for memory in target.memories], [engine.hop for engine in target.engines]
    right = ("cycles", "speed-up", "MAC/cycle", "tiles", *levels, *hops, "hidden", "stalled")
    made = table("mode", *right, "verdict", right=right, spare=tuple(name for name in SPARE if name in right))
    for row in rows:
        if row.run is None or row.compiled is None:
            made.add_row(row.mode, *("-",) * len(right), "-")
            continue
        made.add_row(*_cells(row, levels, hops))
    yield made
    if _uncounted(rows):
        yield Text()
        yield Text(uncounted_text(_uncounted(rows)))
    stacks = [(row.mode, row.run.stack.entries) for row in rows if row.run is not None]
    texts = [f"{mode} {bytes_text(entries['step'])}" for mode, entries in stacks if entries]
    if texts:
        yield Text()
        yield Text(f"stack of a step, at most: {', '.join(texts)}")
    yield from _rooflines(rows)
    for reason in dict.fromkeys(row.reason for row in rows if row.reason is not None):
        modes = ", ".join(row.mode for row in rows if row.reason == reason)
        yield Text()
        yield Text(f"{modes}: {reason}")


def _rooflines(rows: Sequence[Row]) -> Iterator[Text]:
    """What a step would take if only one thing took time, and how close the whole of it comes to the longest."""
    lines = []
    for row in rows:
        facts = row.roofline()
        if facts is None or facts["ratio"] is None:
            continue
        parts = [f"compute {count_text(facts['compute'])}"]
        parts += [f"{hop} {count_text(cycles)}" for hop, cycles in facts["hops"].items()]
        text = f"{row.mode}: {', '.join(parts)} cycles; a step takes {facts['ratio']:.2f} × the most of these"
        if facts["least_l3_bytes"]:
            share = facts["l3_bytes"] / facts["least_l3_bytes"]
            text += f"; L3 moves {bytes_text(facts['l3_bytes'])}, {share:.2f} × the least"
        lines.append(text)
    if lines:
        yield Text()
        word = rows[0].compiled.target.cycles_are if rows[0].compiled is not None else "estimated"
        yield Text(f"roofline of a step, {word}: each alone")
        yield from (Text(f"  {line}") for line in lines)


def _uncounted(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(sorted({kernel for row in rows if row.run is not None for kernel in row.run.uncounted}))


def _cells(row: Row, levels: Sequence[str], hops: Sequence[str]) -> Iterator[str]:
    assert row.run is not None and row.compiled is not None
    facts = row.as_json()
    step = row.run.estimates["step"]
    hidden = [hidden_share(step, hop) for hop in step.hops]
    yield row.mode
    yield count_text(round(row.cycles_per_update or 0))
    yield f"{row.speedup:.2f}×" if row.speedup else "-"
    yield f"{facts['macs_per_cycle']:.2f}"
    yield count_text(facts["tiles"])
    for level in levels:
        yield bytes_text(facts["memory"][level]["used"])
    for hop in hops:
        yield bytes_text(facts["dma_bytes"].get(hop, 0))
    yield " / ".join("-" if share is None else f"{share:.0%}" for share in hidden)
    yield f"{facts['stalled']:.0%}"
    verdict = row.run.verdict
    yield "not verified" if verdict is None else str(outcome_text(verdict))
