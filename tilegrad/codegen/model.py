"""model.c: a small function per node or gradient, and the three entries that call them in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from tilegrad.codegen import c, interface
from tilegrad.codegen import guard as guards
from tilegrad.codegen.cluster import ClusterLowering
from tilegrad.codegen.kernels import KernelSet
from tilegrad.codegen.lowering import Body, First, Lowering
from tilegrad.ir.listing import Listing
from tilegrad.ir.plan import Address, Plan
from tilegrad.ir.program import ENTRIES, TargetInput
from tilegrad.ir.schedule import Launch


@dataclass(frozen=True)
class _Group:
    """Launches that belong together in one function: a model's node, its gradient, or a part of the update."""

    name: str
    title: str
    launches: tuple[tuple[int, Launch], ...]


UPDATES_PER_FUNCTION = 16


def _groups(entry: str, launches: tuple[Launch, ...]) -> list[_Group]:
    """Launches of one origin that follow each other."""
    present = [(number, launch) for number, launch in enumerate(launches) if launch.nests]
    origins: list[str] = []
    chained: dict[int, str] = {}
    for position, (_, launch) in enumerate(present):
        origin = launch.node.name.split("_Grad/")[0] + ("_Grad" if "_Grad/" in launch.node.name else "")
        turn = None if launch.part is None else launch.part.turn
        if turn is not None:  # operators whose panels take turns are one function, named after the first
            origin = chained.setdefault(turn[0], origin)
        origins.append(str(position // UPDATES_PER_FUNCTION) if entry == "update" else origin)
    groups = []
    for position, (origin, pairs) in enumerate(groupby(zip(origins, present, strict=True), key=itemgetter(0))):
        base = origin.removesuffix("_Grad")
        title, name = c.comment_text(base), c.identifier(base)
        if entry == "update":
            title, name = "Updates of parameters.", f"update_{position}"
        elif base != origin:
            title, name = f"Gradient of {title}", f"backward_{position}_{name}"
        else:  # where infer does not share the step's code, it has its own
            name = f"{'forward' if entry == 'infer' else 'train'}_{position}_{name}"
        groups.append(_Group(name, title, tuple(member for _, member in pairs)))
    return groups


def _refuse_if(condition: str, status: str) -> c.Block:
    return c.Block(f"if ({condition})", (f"return {status};",))


def _entry_function(plan: Plan, entry: str, calls: list[c.Call], lowering: Lowering, has_storage: bool) -> c.Function:
    inputs, outputs = interface.entry_ports(plan, entry)
    body: list[c.Statement] = [_refuse_if("m == NULL || m->state == NULL", "TG_NOT_READY")]
    present = [port.c_name for port in (*inputs, *outputs) if port.type.size_bytes]
    if present:
        body.append(_refuse_if(" || ".join(f"{name} == NULL" for name in present), "TG_NULL_POINTER"))
    for port in inputs:
        body += _label_check(port, plan.schedule.program.labels(port.value))
    body += [*guards.at_start(plan, entry), *lowering.at_start(entry)]
    body += [_copy(plan.input_address(entry, port.value), port, lowering, True) for port in inputs if port.type.size]
    body += [*lowering.after_inputs(entry), *calls, *lowering.at_end(entry)]
    body += [_copy(plan.output_address(entry, port.value), port, lowering, False) for port in outputs if port.type.size]
    body += [f"(void){port.c_name};" for port in (*inputs, *outputs) if not port.type.size_bytes]
    if has_storage and entry in _COUNTED:
        body.append(guards.on_first_core(plan, f"{_COUNTED[entry]} = {_COUNTED[entry]} + 1;"))
    body += guards.at_end(plan, entry, lowering.result, outputs[0].c_name if outputs else "")
    return c.Function("tg_status", f"tg_{entry}", interface.entry_parameters(plan, entry), tuple(body))


_COUNTED = {"step": "m->minibatches", "update": "m->updates"}


def _label_check(port: interface.Port, labels: TargetInput | None) -> list[c.Statement]:
    if labels is None:
        return []
    label = f"{port.c_name}[i]"
    wrong = f"{label} < 0 || {label} >= {labels.classes}"
    if labels.ignored is not None:
        wrong = f"{label} != {labels.ignored} && ({wrong})"
    return [c.Block(f"for (int i = 0; i < {port.type.size}; i++)", (_refuse_if(wrong, "TG_BAD_LABEL"),))]


def _copy(address: Address, port: interface.Port, lowering: Lowering, is_inward: bool) -> c.Call:
    """A tensor that is in L2 only in parts begins or ends in L3."""
    size = str(port.type.size_bytes)
    if address.region == "l3":
        return c.Call("tg_l3_write" if is_inward else "tg_l3_read", (str(address.offset), port.c_name, size))
    ends = (lowering.where_is(port.value, address), port.c_name)
    return c.Call("memcpy", (*(ends if is_inward else ends[::-1]), size))


_ACCESS = """\
#define STATE(tensor) ((void *)(m->state + S_##tensor))
#define ARENA(tensor) ((void *)(m->arena + A_##tensor))
#define ARGS(type, name, ...) static const type name = {__VA_ARGS__}"""
_FLASH_ACCESS = "#define FLASH(tensor) ((const void *)((const unsigned char *)tg_flash + F_##tensor))"


def _functions(plan: Plan, lowering: Lowering, has_storage: bool) -> list[c.Item]:
    """Of the entries, each behind those of the nodes that it is the first to need."""
    called: dict[str, list[tuple[Body, First]]] = {entry: [] for entry in ENTRIES}
    # The forward pass of infer and step is the same code: emitted once.
    shared: dict[Body, tuple[_Group, list[First]]] = {}
    for entry, own in called.items():
        position = 0
        for group in _groups(entry, plan.schedule.entries[entry].launches):
            nests = [(number, k) for number, launch in group.launches for k in range(len(launch.nests))]
            body = tuple(lowering.nest(entry, number, k) for number, k in nests)
            own.append((body, (entry, position)))
            shared.setdefault(body, (group, []))[1].append((entry, position))
            position += len(body)
    lowering.share(shared)
    functions: list[c.Item] = []
    for entry, own in called.items():
        functions += ["", c.Comment(f"---- {entry}: {interface.ENTRY_COMMENTS[entry]}")]
        calls = []
        for body, first in own:
            group, firsts = shared[body]
            if first == firsts[0]:
                declared = lowering.before_function(body)
                functions += ["", *declared, *([""] if declared else [])]
                functions += [lowering.function(group.name, group.title, body, firsts)]
            calls.append(lowering.call(group.name, first, len(firsts) > 1))
        functions += ["", _entry_function(plan, entry, calls, lowering, has_storage)]
    return functions


def source(listing: Listing, kernels: KernelSet, present: Mapping[str, bool]) -> str:
    """model.c; `present` are the sections that a program has."""
    plan, has_storage = listing.plan, present["HAS_STORAGE"]
    program = plan.schedule.program
    lowering = Lowering(plan, kernels) if plan.schedule.target.is_flat else ClusterLowering(listing, kernels)
    functions = _functions(plan, lowering, has_storage)
    constants = lowering.items()
    return c.print_file(
        [
            c.Comment(
                f"{c.comment_text(program.name)}: {len(program.trainable)} trained tensors, loss {program.loss}, "
                f"optimizer {program.recipe.optimizer.operator}, batch {program.recipe.batch}.\n"
                "A function is one node of the model, or its gradient; TG_RUN is one kernel call (tg_rt.h)."
            ),
            "#include <string.h>",
            *(f'#include "{name}.h"' for name in ("model", "kernels", "tg_image", "tg_rt")),
            "",
            *interface.tensor_table(plan, lowering.width),
            "",
            *guards.tables(plan, has_storage),
            *lowering.names.items(lowering.width),
            _ACCESS,
            *([_FLASH_ACCESS] if plan.flash_bytes else []),
            *constants,
            *functions,
            "",
            interface.instance_functions(plan, present),
        ]
    )
