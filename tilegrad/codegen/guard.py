"""What a guard adds to model.c; `runtime/guard/tg_guard.h` is the code itself."""

from __future__ import annotations

from tilegrad.codegen.c import Block, Call, Comment, Item, Statement, array, float_literal
from tilegrad.errors import InternalError
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import RESET_FLAG, Role


def is_guarded(plan: Plan) -> bool:
    program = plan.schedule.program
    return program.recipe.guard is not None and bool(program.with_role(Role.GUARD))


def tables(plan: Plan, has_storage: bool) -> tuple[Item, ...]:
    """Of model.c, in front of its functions."""
    guard = plan.schedule.program.recipe.guard
    if guard is None or not is_guarded(plan):
        return ()
    program = plan.schedule.program
    places = {tensor.name: place for place, tensor in enumerate(program.state)}
    rows = []
    for tensor in program.with_role(Role.GUARD):
        if tensor.owner is None:
            raise InternalError(f"nothing is restored from '{tensor.name}'")
        rows.append(f"{{{places[tensor.owner]}, {places[tensor.name]}, {int(tensor.type.dtype.is_float)}}}")
    floats = [str(int(tensor.type.dtype.is_float)) for tensor in program.state]
    owners = {tensor.owner for tensor in program.with_role(Role.GUARD)}
    in_step = {state for _, state in program.entries["step"].writes}
    defines = [
        f"#define TG_GUARDED {len(rows)}",
        f"#define TG_GUARD_FLAG {places[RESET_FLAG]}",
        f"#define TG_GUARD_FINITE {int(guard.finite)}",
        f"#define TG_GUARD_EVERY_STEP {int(bool(owners & in_step))} /* a step itself changes what is kept */",
        *([] if guard.loss is None else [f"#define TG_GUARD_LOSS {float_literal(guard.loss)}"]),
        *(["#define TG_COUNTS"] if has_storage else []),
    ]
    return (
        Comment("What the guard keeps: tensor, copy, whether it has floats."),
        *defines,
        Comment("clang-format off"),
        array("static const uint16_t guarded[][3]", rows),
        array("static const uint8_t is_float[TG_TENSOR_COUNT]", floats),
        Comment("clang-format on"),
        '#include "tg_guard.h"',
        "",
    )


def has_several_cores(plan: Plan) -> bool:
    """Whether an entry is run by cores of which only one may do what is to be done once."""
    return plan.schedule.target.is_flat and plan.schedule.target.cores > 1


def on_first_core(plan: Plan, statement: Statement) -> Statement:
    return Block("if (tg_hart() == 0)", (statement,)) if has_several_cores(plan) else statement


def at_start(plan: Plan, entry: str) -> list[Statement]:
    if not is_guarded(plan) or entry == "infer":
        return []
    if entry == "update":
        return [Block("if (!has_gradients(m))", ("return TG_BAD_LOSS;",))]
    return [on_first_core(plan, Call("begin_guarded_step", ("m",)))]


def at_end(plan: Plan, entry: str, result: str, loss: str) -> list[Statement]:
    """The end of an entry: what it returns."""
    if not is_guarded(plan) or entry == "infer":
        return [f"return {result};"]
    end = f"end_guarded_step(m, *{loss})" if entry == "step" else "end_guarded_update(m)"
    found: list[Statement] = []
    if result != "TG_OK":
        found.append(Block(f"if ({result} != TG_OK)", (f"return {result};",)))
    if has_several_cores(plan):
        found.append(Block("if (tg_hart() != 0)", ("return TG_OK;",)))
    return [*found, f"return {end};"]
