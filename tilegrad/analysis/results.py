"""Results by name: which pointer of a launched kernel gives which value of the graph.

An operator's nests say it by names, and everything behind them goes by these, so that what else a launch writes (its
scratch tensors, statistics, rings of pipes) shifts nothing. Here a schedule is held to that: what was declared is what
is launched, one to one, and nothing is left over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilegrad.errors import UserError
from tilegrad.ir.graph import Node
from tilegrad.ir.nest import Nest
from tilegrad.ir.schedule import EntrySchedule, Launch
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView


def check_results(entry: EntrySchedule) -> None:
    """Refuses a schedule in which some result is not where its name says."""
    launched: dict[str, list[Launch]] = {}
    for launch in entry.launches:
        launched.setdefault(launch.node.name, []).append(launch)
    for node in entry.graph.nodes:
        operator = registry.get(node.op)
        if not operator.is_view:
            view = NodeView(node, entry.graph.types)
            own = [view.temporary(i) for i in range(len(operator.temporaries(view)))]
            declared = operator.nests(view)
            wanted = [value for value in node.outputs if value and entry.graph.types[value].size]
            _check_declared(node, declared, wanted, own)
            for launch in launched.get(node.name, []):
                _check_launched(entry, launch, declared)
    for pipe in entry.pipes:
        made = {value for _, value in _results(entry, entry.launches[pipe.producer].nests[-1])}
        read = {one.value for one in entry.launches[pipe.consumer].nests[0].reads}
        if pipe.value not in made & read:
            node = entry.launches[pipe.producer].node
            raise _refused(node, f"pipe {pipe.number} carries a value that does not pass it", made, [pipe.value])


def _check_declared(node: Node, nests: Sequence[Nest], wanted: Sequence[str], own: Sequence[str]) -> None:
    """Each result of a node that has elements is written, and nothing but results and its own scratch; no value by two
    pointers of a call."""
    written: set[str] = set()
    for nest in nests:
        pointers: dict[str, str] = {}
        for operand in nest.results:
            value = operand.value or ""
            if value in pointers:
                both = f"'{pointers[value]}' and '{operand.name}'"
                raise _refused(node, f"tg_{nest.kernel} gives '{value}' by {both}", ["one pointer"], [both])
            pointers[value] = operand.name
        written |= pointers.keys()
    unmapped = [value for value in wanted if value not in written]
    if unmapped:
        raise _refused(node, "results that no nest writes", wanted, sorted(written), unmapped)
    strange = sorted(written - {*node.outputs, *own})
    if strange:
        raise _refused(node, "nests write what is no result of the node", [*wanted, *own], sorted(written), strange)


def _check_launched(entry: EntrySchedule, launch: Launch, declared: Sequence[Nest]) -> None:
    first = 0 if launch.part is None else launch.part.nest
    for nest, said in zip(launch.nests, declared[first:], strict=False):
        got, wanted = dict(_results(entry, nest)), {one.name: one.value or "" for one in said.results}
        if got != wanted:
            differing = sorted(name for name in got.keys() | wanted.keys() if got.get(name) != wanted.get(name))
            what = f"tg_{nest.kernel} is launched with results that are not those of its operator"
            raise _refused(launch.node, what, _pairs(wanted, differing), _pairs(got, differing))


def _results(entry: EntrySchedule, nest: Nest) -> Iterator[tuple[str, str]]:
    """Pointer and value; of a panel, what it is a part of."""
    for operand in nest.results:
        value = operand.value or ""
        yield operand.name, entry.panels[value].value if value in entry.panels else value


def _pairs(results: dict[str, str], names: Sequence[str]) -> list[str]:
    return [f"{name}: '{results[name]}'" for name in names if name in results]


def _refused(
    node: Node, what: str, expected: Sequence[str] | set[str], got: Sequence[str], about: Sequence[str] = ()
) -> UserError:
    named = f": {', '.join(map(repr, about))}" if about else ""
    return UserError(
        f"{node.op}: {what}{named}",
        stage="schedule",
        node=node.name,
        expected=", ".join(sorted(expected)) or "none",
        got=", ".join(got) or "none",
    )
