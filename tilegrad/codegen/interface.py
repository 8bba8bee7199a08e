"""model.h and what of model.c does not depend on the model's nodes: ports, tensors, initialisation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilegrad.analysis.lifetimes import align
from tilegrad.codegen import c
from tilegrad.codegen import guard as guards
from tilegrad.codegen.image import HEADER, hash_text, model_hash, payload_bytes
from tilegrad.codegen.lowering import shape_text
from tilegrad.codegen.texts import runtime_text
from tilegrad.ir.blocks import Width
from tilegrad.ir.pipes import groups
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import ENTRIES, LEARNING_RATE, UPDATE_COUNTER, Program
from tilegrad.ir.schedule import Schedule
from tilegrad.ir.types import TensorType
from tilegrad.targets.base import L1, L3

ENTRY_COMMENTS = {
    "infer": "Forward pass on the current parameters.",
    "step": "One mini-batch: forward, loss, backward, gradients accumulated.",
    "update": "One optimizer step on the accumulated gradients; the next tg_step starts a new accumulation.",
}
MOST_SINGLE_ROWS = 100


@dataclass(frozen=True)
class Port:
    """One tensor that a caller hands over or takes back."""

    value: str
    c_name: str
    type: TensorType


# What an entry's signature or body says itself: types, its own parameter, the functions it calls.
_TAKEN = re.compile(r"m|memcpy|memset|.*_t|(tg|forward|backward|train|update)_.*")


def entry_ports(plan: Plan, entry: str) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Inputs and outputs; one value may be both, or an output twice, and is then as many parameters."""
    graph = plan.schedule.entries[entry].graph
    taken: set[str] = set()

    def port(value: str) -> Port:
        name = c.identifier(value).lower()
        if name[0].isdigit() or name in c.KEYWORDS or _TAKEN.fullmatch(name):
            name = f"tensor_{name}"
        while name in taken:
            name += "_"
        taken.add(name)
        return Port(value, name, graph.types[value])

    return tuple(map(port, graph.inputs)), tuple(map(port, graph.outputs))


def entry_parameters(plan: Plan, entry: str) -> tuple[str, ...]:
    inputs, outputs = entry_ports(plan, entry)
    read = [f"const {port.type.dtype.c_name} *{port.c_name}" for port in inputs]
    return ("tg_model *m", *read, *(f"{port.type.dtype.c_name} *{port.c_name}" for port in outputs))


def _entry_comment(plan: Plan, entry: str) -> str:
    lines = [ENTRY_COMMENTS[entry]]
    for word, ports in zip(("in ", "out"), entry_ports(plan, entry), strict=True):
        lines += [
            f"  {word} {port.c_name}: {port.type.dtype.c_name}{shape_text(port.type)} ('{c.comment_text(port.value)}')"
            for port in ports
        ]
    return "\n".join(lines)


def sections(plan: Plan, has_storage: bool, has_array: bool) -> dict[str, bool]:
    """Which parts of the runtime's files a program has, by their macros: `TG_…` where the C says it too. `has_array`:
    its weights are there as C."""
    schedule = plan.schedule
    names = {tensor.name for tensor in schedule.program.state}
    has_blocks = bool(_widths(plan))
    return {
        "HAS_BOARD": schedule.target.board is not None,
        "HAS_SCRATCH": not schedule.target.is_flat,
        "HAS_CORES": schedule.target.cores > 1,
        "HAS_FLASH": bool(plan.flash_bytes),
        "HAS_IMAGE": bool(plan.image_bytes),
        "HAS_ZEROS": plan.state_bytes > plan.image_bytes,
        "HAS_WEIGHTS_C": has_array or schedule.target.board is not None,  # which has no files
        "HAS_STORAGE": has_storage,
        "HAS_TRAINING": bool(schedule.program.trainable),
        "HAS_GUARD": guards.is_guarded(plan),
        "HAS_RATE": LEARNING_RATE in names,
        "HAS_UPDATE_COUNT": UPDATE_COUNTER in names,
        "TG_BLOCKS": has_blocks,
        "TG_MOST_BLOCKS": schedule.width is not None,
        "TG_CARRIES": has_blocks and schedule.carries,
        "TG_EPILOGUES": schedule.has_epilogues,
        "TG_PIPES": any(entry.pipes for entry in schedule.entries.values()),
    }


def header(plan: Plan, present: Mapping[str, bool]) -> str:
    """model.h."""
    entries = [
        c.Function("tg_status", f"tg_{entry}", entry_parameters(plan, entry), comment=_entry_comment(plan, entry))
        for entry in ENTRIES
    ]
    values = {**_values(plan), "entries": "\n".join(c.print_file([entry]) for entry in entries).rstrip("\n")}
    return c.aligned_comments(runtime_text("project/model.h", present, values))


def instance_functions(plan: Plan, present: Mapping[str, bool]) -> str:
    """What of model.c is the same for all: how an instance comes by its memory, and how its tensors are read."""
    places = {tensor.name: place for place, tensor in enumerate(plan.schedule.program.state)}
    values = {"rate": places.get(LEARNING_RATE), "update_count": places.get(UPDATE_COUNTER)}
    return runtime_text("project/instance.c", present, values).rstrip("\n")


def _values(plan: Plan) -> dict[str, object]:
    """What model.h says of a program."""
    program, target = plan.schedule.program, plan.schedule.target
    return {
        "model": c.comment_text(program.name),
        "state_bytes": plan.state_bytes,
        "image_bytes": plan.image_bytes,
        "flash_bytes": plan.flash_bytes,
        "cores": target.cores,
        **({} if target.is_flat else _hierarchy_values(plan)),
        "header_bytes": HEADER.size,
        "weights_bytes": HEADER.size + payload_bytes(plan),
        "model_hash": hash_text(model_hash(plan)),
        "arena_bytes": max(plan.arena_bytes, 1),
        "alignment": plan.alignment_bytes,
        "tensor_count": len(program.state),
        "largest_tensor": max(tensor.type.size_bytes for tensor in program.state),
        "rate_comment": _rate_comment(program),
    }


def _rate_comment(program: Program) -> str:
    """Of the learning rate and the update counter: what a schedule is a function of."""
    text, rate = "The learning rate: finite, 0 or more.", program.recipe.rate
    if not rate.is_constant:
        text = f"The base learning rate: finite, 0 or more. tg_update follows a schedule from it:\n{rate}."
    if any(tensor.name == UPDATE_COUNTER for tensor in program.state):
        text += "\nThe updates so far are all that is left to know: set them to go on where another run ended."
    return text.replace("\n", "\n * ")


def _hierarchy_values(plan: Plan) -> dict[str, object]:
    """Every cluster has the scratchpad that a nest needs, at the same addresses."""
    schedule, target, own = plan.schedule, plan.schedule.target, plan.schedule.width
    scratch_bytes = max(plan.memory[L1].used_bytes, 1)
    most = max((width.limit for width in _widths(plan)), default=1) if own is None else own.limit
    divisor = 0 if own is None else own.divisor
    pipes = [pipe for entry in schedule.entries.values() for pipe in entry.pipes]
    moves = max(1, *(len(entry.staging) for entry in plan.entries.values()))
    return {
        "l3_image_bytes": plan.l3_image_bytes,
        "l3_bytes": plan.memory[L3].used_bytes if L3 in plan.memory else 0,
        "l3_requests": moves,
        "l3_queue": 1 if target.far_engine is None else min(moves, target.far_engine.queue_depth),
        "clusters": _scratchpads(schedule),
        "l1_bytes": align(scratch_bytes, plan.alignment_bytes),
        "scratch_bytes": scratch_bytes,
        "blocks": most,
        "blocks_divisor": divisor,
        "least_blocks": divisor or most,
        "most_blocks": schedule.blocks if divisor else most,
        "pipes": len(pipes),
        "pipe_depth": max((pipe.depth for pipe in pipes), default=0),
        "pipe_lanes": max((pipe.lanes for pipe in pipes), default=0),
        "controller": int(target.has_controller),
        "dma_longest": target.engine(target.home, target.compute).longest_bytes,
    }


def _widths(plan: Plan) -> list[Width]:
    """Of the nests that are launched over blocks."""
    launches = [launch for entry in plan.schedule.entries.values() for launch in entry.launches]
    return [width for launch in launches for width in launch.widths if width is not None]


def _scratchpads(schedule: Schedule) -> int:
    """As many as there are, or as nests need that run at once in a block: those on one engine share its own."""
    found = [schedule.target.scratchpads]
    for entry in schedule.entries.values():
        for first, last in groups(entry.pipes):
            found.append(sum(max(one.lanes, default=0) for one in entry.launches[first : last + 1]))
    return max(found)


def tensor_table(plan: Plan, width: int) -> tuple[c.Item, ...]:
    rows, may_be_elsewhere = [], not plan.schedule.target.is_flat or plan.flash_bytes
    for tensor in plan.schedule.program.state:
        address = plan.state_addresses[tensor.name]
        where = [address.offset, tensor.type.size_bytes]
        where += [int(address.region != "state")] if may_be_elsewhere else []
        rows.append(f'{{"{c_string(tensor.name)}", "{tensor.role.value}", {", ".join(map(str, where))}}}')
    own_width = 0 if len(rows) <= MOST_SINGLE_ROWS else width - 12
    table = c.array("const tg_tensor tg_tensors[TG_TENSOR_COUNT]", rows, own_width)
    return (c.Comment("clang-format off"), table, c.Comment("clang-format on"))


def c_string(text: str) -> str:
    """Any string as the inside of a C string literal."""
    return "".join(
        c if c.isascii() and (c.isalnum() or c in " ._-/:+=()[]<>,;@#*") else "".join(f"\\{b:03o}" for b in c.encode())
        for c in text
    )
