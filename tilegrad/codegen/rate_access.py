"""The learning rate and the update counter in the C API: what a schedule is a function of."""

from __future__ import annotations

from tilegrad.codegen.c import Comment, Function, Item, declared
from tilegrad.codegen.interface import NOT_READY, guard
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import LEARNING_RATE, UPDATE_COUNTER

_SMALLEST, _LARGEST = "0.0f", "3.40282347e+38f"


def _index(plan: Plan, name: str) -> int | None:
    names = [tensor.name for tensor in plan.schedule.program.state]
    return names.index(name) if name in names else None


def rate_functions(plan: Plan) -> tuple[Function, ...]:
    """None where nothing trains; the counter where something counts updates."""
    made: list[Function] = []
    rate, counter = _index(plan, LEARNING_RATE), _index(plan, UPDATE_COUNTER)
    if rate is not None:
        bad = f"!(rate >= {_SMALLEST} && rate <= {_LARGEST})"
        made += _pair(rate, "learning_rate", "float", "rate", bad)
    if counter is not None:
        made += _pair(counter, "update_count", "int64_t", "updates", "updates < 0")
    return tuple(made)


def _pair(index: int, word: str, c_type: str, name: str, bad: str) -> list[Function]:
    get = (f"return tg_read_tensor(m, {index}, {name}, sizeof *{name});",)
    put = (NOT_READY, guard(bad, "TG_BAD_NUMBER"), f"return tg_write_tensor(m, {index}, &{name}, sizeof {name});")
    return [
        Function("tg_status", f"tg_get_{word}", ("const tg_model *m", f"{c_type} *{name}"), get),
        Function("tg_status", f"tg_set_{word}", ("tg_model *m", f"{c_type} {name}"), put),
    ]


def rate_declarations(plan: Plan) -> tuple[Item, ...]:
    functions = rate_functions(plan)
    if not functions:
        return ()
    recipe = plan.schedule.program.recipe
    text = "The learning rate: finite, 0 or more."
    if not recipe.rate.is_constant:
        text = f"The base learning rate: finite, 0 or more. tg_update follows a schedule from it:\n{recipe.rate}."
    if len(functions) > 2:
        text += "\nThe updates so far are all that is left to know: set them to go on where another run ended."
    return (Comment(text), *map(declared, functions), "")
