"""model.h and what of model.c does not depend on the model's nodes: ports, tensors, initialisation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilegrad.analysis.lifetimes import align
from tilegrad.codegen import c
from tilegrad.codegen import guard as guards
from tilegrad.codegen.image import HEADER, hash_words, payload_bytes
from tilegrad.codegen.lowering import shape_text
from tilegrad.ir.blocks import Width
from tilegrad.ir.pipes import groups
from tilegrad.ir.plan import FLASH_REGION, Plan
from tilegrad.ir.program import ENTRIES
from tilegrad.ir.schedule import Schedule
from tilegrad.ir.types import TensorType
from tilegrad.targets.base import L1, L3

ENTRY_COMMENTS = {
    "infer": "Forward pass on the current parameters.",
    "step": "One mini-batch: forward, loss, backward, gradients accumulated.",
    "update": "One optimizer step on the accumulated gradients; the next tg_step starts a new accumulation.",
}
_INIT_COMMENT = (
    "Attaches memory (aligned to TG_ALIGNMENT) and loads the initial state from the bytes of weights.bin.\n"
    "What is refused leaves memory as it was, and an instance that every other function refuses."
)
_IN_PLACE_COMMENT = (
    "The same where the image was read straight into place: its first TG_HEADER_BYTES to `header`, the\n"
    "rest to the start of `state`. `image_bytes` are all that there were."
)
_BIND_COMMENT = "Attaches memory and leaves its content alone: for programs that make the initial state themselves."
_BLOCKS_COMMENT = (
    "The number of blocks from now on, TG_MOST_BLOCKS at first. One that is not TG_LEAST_BLOCKS to\n"
    "TG_MOST_BLOCKS is refused with TG_BAD_BLOCKS, and nothing has changed."
)
_STATIC_COMMENT = "The static form, for firmware with one model: the one instance, with its own memory, initialised."
MOST_SINGLE_ROWS = 100
_STATUSES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "": (
        ("TG_OK", 0, "done"),
        ("TG_BAD_LABEL", 1, "a label is outside the classes"),
        ("TG_NOT_READY", 2, "the instance was never initialised, or that was refused"),
        ("TG_NULL_POINTER", 3, "an argument is null"),
        ("TG_MISALIGNED", 4, "memory is not aligned to TG_ALIGNMENT"),
        ("TG_OVERLAPPING", 5, "state and arena share bytes"),
        ("TG_BAD_IMAGE", 6, "not an image of a state, or one whose bytes have changed"),
        ("TG_OTHER_VERSION", 7, "an image in another version of the format"),
        ("TG_OTHER_MODEL", 8, "an image of another model, or of another plan for this one"),
        ("TG_BAD_SIZE", 9, "an image that is too short or too long, or not the size of the tensor"),
        ("TG_BAD_INDEX", 10, "there is no tensor with this index"),
        ("TG_OUT_OF_ORDER", 11, "a nest was not run in its turn: the generated code was changed"),
    ),
    "storage": (
        ("TG_NO_SAVE", 12, "storage holds no complete save"),
        ("TG_OLDER_SAVE", 13, "loaded; but a later save was cut off or is damaged, and this is the one before it"),
        ("TG_STORAGE_SMALL", 14, "storage has not the bytes that two saves take"),
        ("TG_STORAGE_FAILED", 15, "storage did not do its work, or does not hold what was programmed"),
    ),
    "rates": (("TG_BAD_NUMBER", 16, "a number that is negative, infinite or none"),),
    "guard": guards.STATUSES,
    "flash": (("TG_READ_ONLY", 19, "the tensor is a constant of the program (flash.c)"),),
    "blocks": (("TG_BAD_BLOCKS", 20, "nests cannot be launched over so many blocks"),),
}
"""By what a program has to have for them."""


@dataclass(frozen=True)
class Port:
    """One tensor that a caller hands over or takes back."""

    value: str
    c_name: str
    type: TensorType


def entry_inputs(plan: Plan, entry: str) -> tuple[Port, ...]:
    return _ports(plan, entry)[0]


def entry_outputs(plan: Plan, entry: str) -> tuple[Port, ...]:
    return _ports(plan, entry)[1]


# What an entry's signature or body says itself: types, its own parameter, the functions it calls.
_TAKEN = re.compile(r"m|memcpy|memset|.*_t|(tg|forward|backward|train|update)_.*")


def _ports(plan: Plan, entry: str) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
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
    inputs = [f"const {port.type.dtype.c_name} *{port.c_name}" for port in entry_inputs(plan, entry)]
    outputs = [f"{port.type.dtype.c_name} *{port.c_name}" for port in entry_outputs(plan, entry)]
    return ("tg_model *m", *inputs, *outputs)


def _entry_comment(plan: Plan, entry: str) -> str:
    lines = [ENTRY_COMMENTS[entry]]
    for word, ports in (("in ", entry_inputs(plan, entry)), ("out", entry_outputs(plan, entry))):
        lines += [
            f"  {word} {port.c_name}: {port.type.dtype.c_name}{shape_text(port.type)} ('{c.comment_text(port.value)}')"
            for port in ports
        ]
    return "\n".join(lines)


def header(plan: Plan, has_storage: bool = False, rates: tuple[c.Item, ...] = ()) -> str:
    init, second = init_functions(plan)
    name = c.comment_text(plan.schedule.program.name)
    items: list[c.Item] = [
        c.Comment(f"{name}: a model that trains. Generated by tilegrad; see README.md here."),
        '#include <stddef.h>\n#include <stdint.h>\n\n#ifdef __cplusplus\nextern "C" {\n#endif\n',
        *_sizes(plan),
        "",
        c.Comment(_status_comment(has_storage)),
        c.enumeration("tg_status", _statuses(plan, has_storage, bool(rates))),
        "",
        c.Comment("One instance. The caller owns its memories; instances share nothing."),
        c.struct("tg_model", (*_model_fields(plan), *_kept_fields(plan, has_storage))),
        "",
        c.Comment("A tensor of the state, for reading and writing parameters, gradients and optimizer state by index."),
        c.struct("tg_tensor", _tensor_fields(plan)),
        "extern const tg_tensor tg_tensors[TG_TENSOR_COUNT];",
        *(["extern const uint32_t tg_flash[TG_FLASH_BYTES / 4];"] if plan.flash_bytes else []),
        "",
        c.declared(init, _INIT_COMMENT),
        "",
        c.declared(second, _BIND_COMMENT if second.name == "tg_bind" else _IN_PLACE_COMMENT),
        "",
        c.Comment(
            "Copies tensor `index`, which has `bytes` (tg_tensors[index].bytes), out of the instance or into it."
        ),
        *(c.declared(function) for function in tensor_access(plan)),
        "",
    ]
    items += (*rates, *guards.declarations(plan))
    for function in set_blocks(plan):
        items += [c.declared(function, _BLOCKS_COMMENT), ""]
    for entry in ENTRIES:
        comment = _entry_comment(plan, entry)
        items += [c.Function("tg_status", f"tg_{entry}", entry_parameters(plan, entry), comment=comment), ""]
    items += [
        "#ifdef TG_STATIC_INSTANCE",
        c.declared(static_instance(plan), _STATIC_COMMENT),
        "#endif\n\n#ifdef __cplusplus\n}\n#endif",
    ]
    return "\n".join(c.aligned_comments(c.print_file(items, guard="TG_MODEL_H").split("\n")))


def _sizes(plan: Plan) -> list[str]:
    program, flash = plan.schedule.program, plan.flash_bytes
    return [
        f"#define TG_STATE_BYTES {plan.state_bytes} /* parameters, gradients, optimizer state: kept */",
        f"#define TG_IMAGE_BYTES {plan.image_bytes} /* the leading part of the state that weights.bin holds */",
        *([f"#define TG_FLASH_BYTES {flash} /* constants of the program (flash.c), read in place */"] if flash else []),
        *_hierarchy_sizes(plan),
        f"#define TG_HEADER_BYTES {HEADER.size} /* what weights.bin begins with (tg_image.h) */",
        f"#define TG_WEIGHTS_BYTES {HEADER.size + payload_bytes(plan)} /* all of weights.bin */",
        f"#define TG_MODEL_HASH {', '.join(f'0x{word:08x}u' for word in hash_words(plan))}",
        f"#define TG_ARENA_BYTES {max(plan.arena_bytes, 1)} /* activations: free between calls */",
        f"#define TG_ALIGNMENT {plan.alignment_bytes} /* of both memories */",
        *(["#define TG_GUARD"] if guards.is_guarded(plan) else []),
        f"#define TG_TENSOR_COUNT {len(program.state)}",
        f"#define TG_LARGEST_TENSOR {max(tensor.type.size_bytes for tensor in program.state)} /* bytes */",
    ]


def _statuses(plan: Plan, has_storage: bool, has_rates: bool) -> list[tuple[str, int, str]]:
    present = {"": True, "storage": has_storage, "rates": has_rates, "guard": guards.is_guarded(plan)}
    present |= {"flash": bool(plan.flash_bytes), "blocks": plan.schedule.width is not None}
    return [status for what, own in _STATUSES.items() if present[what] for status in own]


def _kept_fields(plan: Plan, has_storage: bool) -> tuple[str, ...]:
    """How far a training is, and what its guard knows."""
    counters = _COUNTERS if has_storage else ()
    if not guards.is_guarded(plan):
        return counters
    return (*counters, *guards.FIELDS, *(("uint64_t kept_updates",) if has_storage else ()))


def _status_comment(has_storage: bool) -> str:
    if not has_storage:
        return "What every function returns. All but TG_OK: nothing was computed, and no memory has changed."
    return (
        "What every function returns. All but TG_OK and TG_OLDER_SAVE: nothing was computed, and no memory has\n"
        "changed, that of storage apart."
    )


def _hierarchy_sizes(plan: Plan) -> list[str]:
    target = plan.schedule.target
    if target.is_flat:
        return [f"#define TG_CORES {target.cores}"] if target.cores > 1 else []
    l3_bytes = plan.memory[L3].used_bytes if L3 in plan.memory else 0
    requests = max((len(entry.staging) for entry in plan.entries.values()), default=0)
    return [
        f"#define TG_L3_IMAGE_BYTES {plan.l3_image_bytes} /* what follows in weights.bin: initial state of L3 */",
        f"#define TG_L3_BYTES {l3_bytes} /* of L3 */",
        *_scratch_sizes(plan),
        f"#define TG_L3_REQUESTS {max(requests, 1)}",
        f"#define TG_CORES {target.cores}",
        f"#define TG_CONTROLLER {int(target.has_controller)} /* a core beside them conducts */",
        f"#define TG_DMA_LONGEST {target.engine(target.home, target.compute).longest_bytes}u /* bytes */",
    ]


def _widths(plan: Plan) -> list[Width]:
    """Of the nests that are launched over blocks."""
    launches = [launch for entry in plan.schedule.entries.values() for launch in entry.launches]
    return [width for launch in launches for width in launch.widths if width is not None]


def has_blocks(plan: Plan) -> bool:
    """Whether some nest is launched over blocks."""
    return bool(_widths(plan))


def _scratch_sizes(plan: Plan) -> list[str]:
    """Every cluster has the scratchpad that a nest needs, at the same addresses."""
    size_bytes = max(plan.memory[L1].used_bytes, 1)
    schedule, widths, own = plan.schedule, _widths(plan), plan.schedule.width
    if not widths:
        return [f"#define TG_SCRATCH_BYTES {size_bytes} /* of L1: free between calls */"]
    most, divisor = (max(width.limit for width in widths), 0) if own is None else (own.limit, own.divisor)
    sizes = [
        f"#define TG_CLUSTERS {_scratchpads(schedule)}",
        f"#define TG_L1_BYTES {align(size_bytes, plan.alignment_bytes)} /* of L1, in each cluster */",
        "#define TG_SCRATCH_BYTES (TG_CLUSTERS * TG_L1_BYTES) /* of L1: free between calls */",
        f"#define TG_BLOCKS {most} /* the most that a nest is launched over */",
    ]
    if schedule.carries:
        sizes.append("#define TG_CARRIES /* blocks ask for operands of the next launch before they meet */")
    pipes = [pipe for entry in schedule.entries.values() for pipe in entry.pipes]
    if pipes:
        sizes += [
            f"#define TG_PIPES {len(pipes)}",
            f"#define TG_PIPE_DEPTH {max(pipe.depth for pipe in pipes)} /* slots, at most */",
            f"#define TG_PIPE_LANES {max(pipe.lanes for pipe in pipes)} /* rings of a block, at most */",
        ]
    if own is not None:
        sizes += [
            f"#define TG_BLOCKS_DIVISOR {divisor} /* of the n of tg_set_blocks; 0: TG_BLOCKS it is */",
            f"#define TG_LEAST_BLOCKS {divisor or most} /* that tg_set_blocks takes */",
            f"#define TG_MOST_BLOCKS {schedule.blocks if divisor else most}",
        ]
    return sizes


def _scratchpads(schedule: Schedule) -> int:
    """As many as there are, or as nests need that run at once in a block: those on one engine share its own."""
    found = [schedule.target.scratchpads]
    for entry in schedule.entries.values():
        for first, last in groups(entry.pipes):
            found.append(sum(max(one.lanes, default=0) for one in entry.launches[first : last + 1]))
    return max(found)


def _model_fields(plan: Plan) -> tuple[str, ...]:
    flat = ("unsigned char *state", "unsigned char *arena")
    if plan.schedule.target.is_flat:
        return flat
    fields = (*flat, "unsigned char *scratch", "int l3_requests[TG_L3_REQUESTS]")
    return (*fields, "int blocks") if plan.schedule.width is not None else fields


def _tensor_fields(plan: Plan) -> tuple[str, ...]:
    flat = ("const char *name", "const char *role", "uint32_t offset", "uint32_t bytes")
    elsewhere = _elsewhere(plan)
    return (*flat, f"uint32_t in_{elsewhere}") if elsewhere else flat


def _elsewhere(plan: Plan) -> str | None:
    """The region in which tensors may be that are not in the state's, if there is one."""
    if not plan.schedule.target.is_flat:
        return "l3"
    return FLASH_REGION if plan.flash_bytes else None


_COUNTERS = ("uint64_t minibatches", "uint64_t updates")
"""How far a training is; kept where it can be saved."""
_IMAGE = ("const void *image", "size_t image_bytes")


def _memory_names(plan: Plan) -> tuple[str, ...]:
    return ("state", "arena") if plan.schedule.target.is_flat else ("state", "arena", "scratch")


def _memories(plan: Plan) -> tuple[str, ...]:
    return ("tg_model *m", *(f"void *{name}" for name in _memory_names(plan)))


def tensor_table(plan: Plan, width: int) -> tuple[c.Item, ...]:
    rows, elsewhere = [], _elsewhere(plan)
    for tensor in plan.schedule.program.state:
        address = plan.state_addresses[tensor.name]
        where = [address.offset, tensor.type.size_bytes, *([int(address.region == elsewhere)] if elsewhere else [])]
        rows.append(f'{{"{c_string(tensor.name)}", "{tensor.role.value}", {", ".join(map(str, where))}}}')
    own_width = 0 if len(rows) <= MOST_SINGLE_ROWS else width - 12
    table = c.array("const tg_tensor tg_tensors[TG_TENSOR_COUNT]", rows, own_width)
    return (c.Comment("clang-format off"), table, c.Comment("clang-format on"))


def guard(condition: str, status: str) -> c.If:
    return c.If(condition, (f"return {status};",))


NOT_READY = guard("m == NULL || m->state == NULL", "TG_NOT_READY")
FAILED = guard("status != TG_OK", "status")


def tensor_check() -> c.Function:
    checks = (
        NOT_READY,
        guard("index < 0 || index >= TG_TENSOR_COUNT", "TG_BAD_INDEX"),
        guard("data == NULL", "TG_NULL_POINTER"),
        "return bytes == tg_tensors[index].bytes ? TG_OK : TG_BAD_SIZE;",
    )
    parameters = ("const tg_model *m", "int index", "const void *data", "size_t bytes")
    return c.Function("static tg_status", "check_tensor", parameters, checks)


def tensor_access(plan: Plan) -> list[c.Function]:
    """tg_read_tensor and tg_write_tensor."""
    found = []
    inside, elsewhere = "m->state + tg_tensors[index].offset", _elsewhere(plan)
    for word, model, data in (("read", "const tg_model *m", "void *"), ("write", "tg_model *m", "const void *")):
        copy = c.Call("memcpy", ("data", inside, "bytes") if word == "read" else (inside, "data", "bytes"))
        body: list[c.Statement] = ["tg_status status = check_tensor(m, index, data, bytes);", FAILED]
        if elsewhere == FLASH_REGION and word == "write":
            body += [guard("tg_tensors[index].in_flash", "TG_READ_ONLY"), copy]
        elif elsewhere:
            far = c.Call(f"tg_l3_{word}", ("tg_tensors[index].offset", "data", "tg_tensors[index].bytes"))
            constant = c.Call("memcpy", ("data", "(const unsigned char *)tg_flash + tg_tensors[index].offset", "bytes"))
            there = constant if elsewhere == FLASH_REGION else far
            body.append(c.If(f"tg_tensors[index].in_{elsewhere}", (there,), (copy,)))
        else:
            body.append(copy)
        body += [*guards.reset(word == "write" and guards.is_guarded(plan)), "return TG_OK;"]
        parameters = (model, "int index", f"{data}data", "size_t bytes")
        found.append(c.Function("tg_status", f"tg_{word}_tensor", parameters, tuple(body)))
    return found


def set_blocks(plan: Plan) -> tuple[c.Function, ...]:
    """tg_set_blocks, where a width was asked for."""
    wrong = guard("blocks < TG_LEAST_BLOCKS || blocks > TG_MOST_BLOCKS", "TG_BAD_BLOCKS")
    body = (NOT_READY, wrong, "m->blocks = blocks;", "return TG_OK;")
    made = c.Function("tg_status", "tg_set_blocks", ("tg_model *m", "int blocks"), body)
    return () if plan.schedule.width is None else (made,)


def c_string(text: str) -> str:
    """Any string as the inside of a C string literal."""
    return "".join(
        c if c.isascii() and (c.isalnum() or c in " ._-/:+=()[]<>,;@#*") else "".join(f"\\{b:03o}" for b in c.encode())
        for c in text
    )


def init_functions(plan: Plan) -> tuple[c.Function, c.Function]:
    """tg_init, and the other way to an instance: where the state is there already. Everything is checked before
    anything is written."""
    arguments = ("m", *_memory_names(plan))
    image = "(const unsigned char *)image + TG_HEADER_BYTES"
    load: list[c.Statement] = []
    if not plan.schedule.target.is_flat:
        load.append(c.Call("tg_l3_clear", ("TG_L3_BYTES",)))
        load.append(c.Call("tg_l3_write", ("0", f"{image} + TG_IMAGE_BYTES", "TG_L3_IMAGE_BYTES")))
    if plan.image_bytes:
        load.append(c.Call("memcpy", ("m->state", image, "TG_IMAGE_BYTES")))
    clear: list[c.Statement] = []
    if plan.state_bytes > plan.image_bytes:
        clear.append(c.Call("memset", ("m->state + TG_IMAGE_BYTES", "0", "TG_STATE_BYTES - TG_IMAGE_BYTES")))

    def made(name: str, more: tuple[str, ...], check: str, then: Sequence[c.Statement]) -> c.Function:
        checked = [c.If("status == TG_OK", (f"status = tg_check_image({check});",))] if check else []
        start = f"tg_status status = check_memory({', '.join(arguments)});"
        body = (start, *checked, FAILED, c.Call("attach", arguments), *then, "return TG_OK;")
        return c.Function("tg_status", name, (*_memories(plan), *more), body)

    init = made("tg_init", _IMAGE, "image, image_bytes, NULL", [*load, *clear])
    if not plan.schedule.target.is_flat:
        return init, made("tg_bind", (), "", ())
    header = ("const void *header", "size_t image_bytes")
    return init, made("tg_init_in_place", header, "header, image_bytes, state", clear)


def attaching(plan: Plan, has_storage: bool) -> tuple[c.Item, ...]:
    """What both begin with."""
    names = _memory_names(plan)
    first, second = "(uintptr_t)state", "(uintptr_t)arena"
    overlap = f"{first} < {second} + TG_ARENA_BYTES && {second} < {first} + TG_STATE_BYTES"
    checks: tuple[c.Statement, ...] = (
        guard("m == NULL", "TG_NULL_POINTER"),
        *(f"m->{name} = NULL;" for name in names),
        guard(" || ".join(f"{name} == NULL" for name in names), "TG_NULL_POINTER"),
        guard(f"({' | '.join(f'(uintptr_t){name}' for name in names)}) % TG_ALIGNMENT != 0", "TG_MISALIGNED"),
        guard(overlap, "TG_OVERLAPPING"),
        "return TG_OK;",
    )
    attached: list[c.Statement] = [f"m->{name} = (unsigned char *){name};" for name in names]
    attached += [f"m->{name.split()[1]} = 0;" for name in _kept_fields(plan, has_storage)]
    if plan.schedule.width is not None:
        attached.append("m->blocks = TG_MOST_BLOCKS;")
    if not plan.schedule.target.is_flat:
        attached.append(c.Call("tg_attach", ("m->scratch", "m->state", "m->arena")))
    memories = ("tg_model *m", *(f"const void *{name}" for name in names))
    return (
        c.Comment("Until an instance has its memories, nothing runs on it."),
        c.Function("static tg_status", "check_memory", memories, checks),
        "",
        c.Function("static void", "attach", _memories(plan), tuple(attached)),
        "",
    )


def static_instance(plan: Plan) -> c.Function:
    names = _memory_names(plan)
    body: tuple[c.Statement, ...] = (
        *(f"static unsigned char {n}[TG_{n.upper()}_BYTES] __attribute__((aligned(TG_ALIGNMENT)));" for n in names),
        "static tg_model instance;",
        guard("m == NULL", "TG_NULL_POINTER"),
        "*m = &instance;",
        c.Call("return tg_init", ("&instance", *names, "image", "image_bytes")),
    )
    return c.Function("tg_status", "tg_static_instance", ("tg_model **m", *_IMAGE), body)
