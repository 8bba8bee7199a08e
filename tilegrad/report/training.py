"""A training run for people: losses beside the reference's, the verdict, memory, time, and where the C is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tilegrad.compiled import Compiled
from tilegrad.devices.embedded import CoreStack, Image
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Role
from tilegrad.place.board import image_parts
from tilegrad.report.checkpoint import wear_text
from tilegrad.report.format import (
    bytes_text,
    count_text,
    error_text,
    plural,
    ratio_text,
    roofline_text,
    seconds_text,
    uncounted_text,
)
from tilegrad.report.output import heading, table
from tilegrad.report.profile import profile_report
from tilegrad.report.several import shares_table
from tilegrad.report.table import FittingTable
from tilegrad.training.beside import Beside
from tilegrad.training.course import Learning
from tilegrad.training.measures import Measures
from tilegrad.training.train import Run, parameter_count
from tilegrad.verify.compare import Verdict

ALL_LOSSES_UP_TO = 12
LOSSES_AT_EACH_END = 5
UNDONE_TOLD = 5
SHORTEST_TOLD_SECONDS = 0.001


def run_report(run: Run, folder: Path | None) -> Iterator[RenderableType]:
    yield from header(run)
    yield Text()
    if not run.losses:
        yield from checked_report(run)
    else:
        yield loss_table(run)
    if run.learning is not None:
        yield Text()
        yield from learning_report(run.learning)
    yield Text()
    if not run.losses:
        yield Text("not verified: nothing was run")
    elif run.verdict is None:
        yield Text(f"not verified ({run.unverified})")
    else:
        yield from verdict_report(run.verdict)
    yield Text()
    if run.shares is not None:
        yield shares_table(run.shares)
        yield Text()
    yield memory_table(run.compiled.plan)
    if run.beside is not None:
        yield Text()
        yield from beside_report(run.beside)
    yield Text(str(run.stack))
    if run.stacks:
        yield stacks_line(run.stacks)
    yield Text()
    if run.estimates or run.counted_cycles:
        yield cycles_line(run)
        roofline = roofline_text(
            run.estimates["step"].roofline if "step" in run.estimates else None, run.compiled.target.cycles_word
        )
        yield from [Text(roofline)] if roofline else []
    if run.profile is not None:
        yield Text()
        yield from profile_report(run.profile)
        yield Text()
    if run.instructions:
        yield instructions_line(run)
    if run.undone:
        yield undone_line(run.undone)
    if run.checkpoint is not None:
        yield checkpoint_line(run.checkpoint)
    yield time_line(run.timings_seconds)
    yield code_line(run.compiled, folder)


def undone_line(undone: Sequence[tuple[int, str]]) -> Text:
    told = ", ".join(f"mini-batch {number} ({why})" for number, why in undone[:UNDONE_TOLD])
    more = f" and {len(undone) - UNDONE_TOLD} more" if len(undone) > UNDONE_TOLD else ""
    return Text(f"guard: the last good parameters came back {plural(len(undone), 'time')}, in {told}{more}")


def checkpoint_line(facts: Mapping[str, Any]) -> Text:
    wear = wear_text(facts["erases_per_save"], facts["sector_bytes"], facts["erases_per_1000_updates"])
    return Text(f"checkpoint: {facts['file']}, save {count_text(facts['saves'])}, {bytes_text(facts['bytes'])}; {wear}")


def stacks_line(stacks: Sequence[CoreStack]) -> Text:
    """What the image painted and found used: of each size, the stack of the cluster that was used most, and the fabric
    controller's."""
    rising = sorted(stacks, key=lambda stack: stack.used_bytes)
    deepest = {(stack.is_of_the_fabric_controller, stack.capacity_bytes): stack for stack in rising}
    parts = [f"{one.whose} {one.used_bytes:,} of {one.capacity_bytes:,}" for one in deepest.values()]
    guards = "all guard zones intact" if all(one.is_intact for one in stacks) else "a guard zone was overwritten"
    return Text(f"stacks as measured on {plural(len(stacks), 'core')}, the deepest: {', '.join(parts)}; {guards}")


def header(run: Run) -> Iterator[Text]:
    program = run.compiled.program
    recipe = program.recipe
    trained = sum(tensor.type.size for tensor in program.trainable)
    total = parameter_count(run.compiled)
    yield heading(f"{program.name} on {run.device}")
    yield Text(
        f"{count_text(trained)} of {count_text(total)} parameters train, "
        f"{count_text(run.macs_per_step)} MACs per mini-batch"
    )
    many = recipe.accumulate > 1
    mini_batches = f", each after {recipe.accumulate} mini-batches ({recipe.accum_mode})" if many else ""
    yield Text(
        f"loss {program.loss}, {recipe.optimizer.operator} lr {recipe.optimizer.lr:g}, batch {recipe.batch}, "
        f"{plural(run.steps, 'update')}{mini_batches}"
    )
    yield from recipe_lines(run)
    if run.resumed_at:
        yield Text(f"resumed behind mini-batch {count_text(run.resumed_at)}")
    for note in (*run.compiled.model.notes, *run.notes):
        yield Text(f"note: {note}")


def recipe_lines(run: Run) -> Iterator[Text]:
    """What of the recipe is not usual, and what clipping costs."""
    program = run.compiled.program
    recipe = program.recipe
    if not recipe.rate.is_constant:
        yield Text(f"learning rate: {recipe.rate}")
    if program.undecayed:
        yield Text(f"no weight decay on {plural(len(program.undecayed), 'tensor')} of biases and normalisations")
    if recipe.clip is not None:
        held = sum(tensor.type.size_bytes for tensor in program.with_role(Role.GRADIENT))
        fusible = not run.compiled.target.is_flat and recipe.accumulate == 1
        cost = ", which fusing the update into the backward pass would save" if fusible else ""
        yield Text(f"gradients clipped to norm {recipe.clip:g}: all of them are kept, {bytes_text(held)}{cost}")


def beside_report(beside: Beside) -> Iterator[RenderableType]:
    """What adapters save, or training a part."""
    made = table(f"{beside.word} save", beside.word, "everything", "", right=(beside.word, "everything", ""))
    a, b = beside.adapters, beside.everything
    made.add_row("trained parameters", count_text(a.trained), count_text(b.trained), f"{b.trained / a.trained:.1f}×")
    less = 100 * (1 - a.dynamic_bytes / b.dynamic_bytes)
    made.add_row("dynamic memory", bytes_text(a.dynamic_bytes), bytes_text(b.dynamic_bytes), f"{less:.1f} % less")
    if a.dma_bytes and b.dma_bytes:
        ratio = f"{b.dma_bytes / a.dma_bytes:.2f}×"
        made.add_row("DMA a step (estimated)", bytes_text(a.dma_bytes), bytes_text(b.dma_bytes), ratio)
    yield made


def learning_table(learning: Learning) -> FittingTable:
    """Before, after each epoch, and at the end where that is not an epoch's."""
    top = list(learning.before.top)
    shown = ["loss", *(["accuracy"] if learning.before.accuracy is not None else []), *(f"top-{k}" for k in top)]
    shown += ["mean error"] if learning.before.mean_error is not None else []
    numbers = ("updates", "training loss", *shown)
    made = table("epoch", *numbers, right=numbers, spare=("updates",))

    def row(word: str, updates: str, loss: str, measures: Measures) -> None:
        cells = [f"{measures.loss:.5g}"]
        cells += [f"{100 * measures.accuracy:.2f} %"] if measures.accuracy is not None else []
        cells += [f"{100 * measures.top[k]:.2f} %" for k in top]
        cells += [f"{measures.mean_error:.5g}"] if measures.mean_error is not None else []
        made.add_row(word, updates, loss, *cells)

    row("before", "0", "-", learning.before)
    for epoch in learning.epochs:
        row(str(epoch.number), count_text(epoch.updates), f"{epoch.loss:.5g}", epoch.measures)
    if not learning.epochs:
        row("after", "-", "-", learning.after)
    return made


def learning_report(learning: Learning) -> Iterator[RenderableType]:
    yield learning_table(learning)
    whose = "held out" if learning.is_held_out else "that trained, too"
    samples = plural(learning.before.samples, "sample")
    yield Text(f"measured on {samples} {whose}: {learning.before} -> {learning.after}")
    if learning.stopped:
        yield Text("stopped early: no better measure since")
    if learning.kept is not None:
        yield Text(f"kept the parameters of epoch {learning.kept}, the best")


def checked_report(run: Run) -> Iterator[Text]:
    """What compiling proved, where nothing is run after it."""
    plan = run.compiled.plan
    nodes = sum(len(entry.graph.nodes) for entry in plan.schedule.entries.values())
    yield Text(f"{run.device} runs nothing. Compiling the model checked")
    yield Text(f"  types and shapes of {plural(nodes, 'node')} of {', '.join(plan.entries)}")
    yield Text(f"  the memory of {plural(len(plan.state_addresses), 'state tensor')} and of every value, node by node")


def cycles_line(run: Run) -> Text:
    calls = ", ".join(f"{name} {count_text(cycles)}" for name, cycles in run.cycles.items() if cycles is not None)
    rate = "-" if run.macs_per_cycle is None else f"{run.macs_per_cycle:.2f}"
    counted = f"cycles, {run.counted_how}" if run.counted_cycles else None
    word = counted or run.compiled.target.cycles_word
    uncounted = "" if run.counted_cycles or not run.uncounted else f"; {uncounted_text(run.uncounted)}"
    return Text(f"{word}: {calls}; {rate} MAC/cycle over an update{uncounted}")


def instructions_line(run: Run) -> Text:
    """Counted, not estimated. Of several cores, those of the busiest."""
    calls = ", ".join(f"{entry} {count_text(max(cores))}" for entry, cores in run.instructions.items())
    step = run.instructions.get("step", ())
    rate = f"; {sum(step) / run.macs_per_step:.2f} per MAC of a step" if step and run.macs_per_step else ""
    of = f" of the busiest of {len(step)} cores" if len(step) > 1 else ""
    return Text(f"instructions{of}: {calls}{rate}")


def loss_table(run: Run) -> FittingTable:
    references = () if run.verdict is None else run.verdict.reference_losses
    checks = () if run.verdict is None else run.verdict.losses
    numbers = ("mini-batch", "loss", "reference", "relative error")
    shown_numbers = numbers if references else numbers[:2]
    made = table(*shown_numbers, right=numbers, spare=("reference",) if references else ())
    count = len(run.losses)
    shown = list(range(count))
    if count > ALL_LOSSES_UP_TO:
        shown = [*range(LOSSES_AT_EACH_END), *range(count - LOSSES_AT_EACH_END, count)]
    for i in shown:
        if i == count - LOSSES_AT_EACH_END and len(shown) < count:
            made.add_row("…")
        row = [str(run.resumed_at + i + 1), f"{run.losses[i]:.7g}"]
        if references:
            row += [f"{references[i]:.7g}", error_text(checks[i].error)] if i < len(references) else ["-", "-"]
        made.add_row(*row)
    return made


def outcome_text(verdict: Verdict) -> Text:
    """One word: in capitals where it is not good."""
    if verdict.verified:
        return Text("verified", style="bold green")
    return Text(verdict.outcome.upper(), style="bold yellow" if verdict.outcome == "inconclusive" else "bold red")


def verdict_report(verdict: Verdict) -> Iterator[RenderableType]:
    yield outcome_text(verdict) + Text(f" against {verdict.reference}")
    yield Text(f"covers {verdict.coverage}")
    yield verdict_table(verdict)


def verdict_table(verdict: Verdict) -> FittingTable:
    """Of each kind, the figure nearest to its limit. Both limits are shown: ours and PyTorch's own float32 distance."""
    has_jitter = any(row.jitter_difference is not None for row in (*verdict.losses, *verdict.tensors))
    noise = ("PyTorch's own float32", *(("with weights one ulp off",) if has_jitter else ()))
    numbers = ("figures", "worst error", "allowed", *noise)
    made = table("checked", *numbers, "of", right=numbers, spare=("figures", *noise[:1]))
    counts = {"loss": len(verdict.losses)}
    for row in verdict.tensors:
        counts[row.kind] = counts.get(row.kind, 0) + 1
    for kind, count in counts.items():
        worst = verdict.worst(kind)  # type: ignore[arg-type]
        if worst is not None:
            made.add_row(
                "losses" if kind == "loss" else f"{kind}s",
                count_text(count),
                Text(error_text(worst.error), style="" if worst.passed else "bold red"),
                error_text(worst.allowed),
                error_text(worst.float32_difference),
                *((error_text(worst.jitter_difference),) if has_jitter else ()),
                worst.subject,
            )
    return made


def memory_table(plan: Plan) -> FittingTable:
    """Per level, and the parts it is made of. Only the arena can be planned well or badly: state is all live."""
    right = ("used", "lower bound", "used / bound", "capacity")
    made = table("memory", *right, right=right, spare=("used / bound", "lower bound"))
    for name, use in plan.memory.items():
        made.add_row(
            name,
            bytes_text(use.used_bytes),
            bytes_text(use.lower_bound_bytes),
            ratio_text(use.used_bytes, use.lower_bound_bytes),
            "no limit" if use.capacity_bytes is None else bytes_text(use.capacity_bytes),
        )
    bound = max(entry.lower_bound_bytes for entry in plan.entries.values())
    made.add_row("  state", bytes_text(plan.state_bytes), bytes_text(plan.state_bytes), "", "")
    made.add_row("  arena", bytes_text(plan.arena_bytes), bytes_text(bound), ratio_text(plan.arena_bytes, bound), "")
    for part, size in image_parts(plan.schedule).items():
        made.add_row(f"  {part}", bytes_text(size), bytes_text(size), "", "")
    return made


def time_line(timings_seconds: Mapping[str, float]) -> Text:
    told = {stage: seconds for stage, seconds in timings_seconds.items() if seconds >= SHORTEST_TOLD_SECONDS}
    parts = ", ".join(f"{stage} {seconds_text(seconds)}" for stage, seconds in told.items())
    return Text(f"time: {seconds_text(sum(timings_seconds.values()))} ({parts})")


def code_line(compiled: Compiled, folder: Path | None) -> Text:
    project = compiled.project
    size = f"C: {plural(project.line_count, 'line')} in {plural(len(project.files), 'file')}"
    if folder is None:
        return Text(f"{size}; -o DIR keeps the project")
    return Text(f"{size}, in {folder} (start with {folder / 'README.md'})")


def image_line(image: Image) -> Text:
    sections = image.sections
    return Text(
        f"image: {image.path.name}, {count_text(sections.text_bytes)} bytes of code and constants, "
        f"{count_text(sections.ram_bytes)} of RAM (state, arena, stack, buffers)"
    )
