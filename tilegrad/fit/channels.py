"""Chooses what trains within a budget of memory (`--train sparse:BUDGET`): tensors, and channels of the last one.

Nothing is known of the data when a model is compiled. A gradient is about as large, taken together, in every layer of
a network that is made to be trained, so each tensor is taken to contribute alike, and each of its channels by its share
of the weight's squares. What a tensor costs is counted: bytes of itself, of its gradient and of the optimizer's state,
the activations that its gradient reads and those on the way down to it, and the multiply-accumulates of both. Tensors
are taken in the order of what they contribute for their share of the bytes and of the work, each with what those before
it have paid for already, as long as the program fits: this is asked of the program itself. Of the first that does not
fit, as many neighbouring channels train as do, and smaller ones behind it may still fit whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tilegrad.analysis.room import live_peak
from tilegrad.errors import DoesNotFit
from tilegrad.frontend.channels import channel_axis
from tilegrad.frontend.model import ImportedModel
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program, Role
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.passes.parameters import normalising, parameters_of
from tilegrad.recipe import Recipe
from tilegrad.recipe.sparse import Budget, Selected
from tilegrad.targets.base import FLASH, Target

FEWEST_CHANNELS = 4
"""Fewer are not worth a layer of their own."""
MOST_TRIALS = 40
ALIGNMENT_BYTES = 8
_THROUGH = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_FIXED = (Role.FROZEN, Role.STATISTIC, Role.CONSTANT)

SHARES = (0.75, 0.5, 0.25)
UsedBytes = Callable[[Selected | None], int]
"""State and arena of a program that trains a selection, or everything."""


def training_bytes(program: Program, target: Target) -> int:
    """State and arena, whatever is alive at once in the largest entry; flash that there is holds what never changes."""
    kept = [t for t in program.state if not (target.has_memory(FLASH) and t.role in _FIXED)]
    arena = max(live_peak(graph, ALIGNMENT_BYTES)[0] for graph in program.entries.values())
    return arena + sum(-(-tensor.type.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for tensor in kept)


def partial_trainings(model: ImportedModel) -> tuple[str, ...]:
    """Selections (`--train`) that train less than everything and that the model has, the largest first of a kind: what
    `--fit` may choose from."""
    infos = model.parameters
    names = parameters_of(infos)
    layers = len({infos[name].node for name in names})
    scales = normalising(model.graph)
    found = [*(f"sparse:{share}" for share in SHARES), *(f"last:{k}" for k in range(layers - 1, 0, -1))]
    found += ["norm"] if any(name in scales for name in names) else []
    found += ["bias"] if any(infos[name].is_bias for name in names) else []
    return tuple(found)


def choose(model: ImportedModel, recipe: Recipe, budget: Budget, used_bytes: UsedBytes) -> Selected:
    limit = budget.size_bytes if budget.size_bytes is not None else int(used_bytes(None) * (budget.share or 0.0))
    order = _ranked(model, recipe)
    chosen: dict[str, tuple[int, ...] | None] = {}
    least = None
    count = _largest(len(order), lambda k: used_bytes(Selected(dict.fromkeys(order[:k]))) <= limit)
    chosen = dict.fromkeys(order[:count])
    trials = 0
    for name in order[count:]:
        if trials >= MOST_TRIALS:
            break
        trials += 1
        taken = used_bytes(Selected({**chosen, name: None}))
        least = taken if least is None or taken < least else least
        if taken <= limit:
            chosen[name] = None
        elif not any(channels is not None for channels in chosen.values()):
            some = _some_channels(model, name, lambda part: used_bytes(Selected({**chosen, **part})) <= limit)  # noqa: B023
            chosen |= some
            trials += 5 * bool(some)
    if not chosen:
        raise DoesNotFit(
            f"training any tensor of '{model.name}' takes more than that",
            stage="recipe",
            expected=f"at most {limit} bytes of state and arena",
            got=f"{least} bytes at least",
            hint=f"--train sparse:{least}",
        )
    return Selected({name: chosen[name] for name in model.parameters if name in chosen})


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest count that fits, as if more took more."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _some_channels(
    model: ImportedModel, name: str, fits: Callable[[dict[str, tuple[int, ...] | None]], bool]
) -> dict[str, tuple[int, ...] | None]:
    """As many channels as fit: the run of that length with the largest weights."""
    if name not in model.graph.constants or model.parameters[name].type.rank < 2:
        return {}
    array = np.asarray(model.graph.constants[name].array, np.float64)
    axis = channel_axis(model, name)
    squares = np.square(array).sum(axis=tuple(d for d in range(array.ndim) if d != axis))
    total = np.concatenate([[0.0], np.cumsum(squares)])

    def run(count: int) -> tuple[int, ...]:
        first = int(np.argmax(total[count:] - total[: len(total) - count]))
        return tuple(range(first, first + count))

    steps = len(squares) // FEWEST_CHANNELS
    if steps < 2 or not fits({name: run(FEWEST_CHANNELS)}):
        return {}
    count = FEWEST_CHANNELS * _largest(steps - 1, lambda k: k <= 1 or fits({name: run(FEWEST_CHANNELS * k)}))
    return {name: run(count)}


@dataclass(frozen=True)
class _Tensor:
    """`position` is its reader's in the graph; `saved_bytes` is what its gradient reads of the forward pass."""

    name: str
    position: int
    own_bytes: int
    saved: tuple[str, int]
    macs: int


def _ranked(model: ImportedModel, recipe: Recipe) -> list[str]:
    """What contributes most for its share of bytes and work first."""
    graph = model.graph
    tensors = list(_tensors(model, recipe))
    way_bytes, way_macs = _on_the_way(graph)
    all_bytes = sum(t.own_bytes for t in tensors) + sum(dict(t.saved for t in tensors).values()) + way_bytes[0]
    all_macs = sum(t.macs for t in tensors) + way_macs[0]
    order: list[str] = []
    deepest = len(graph.nodes)
    paid: set[str] = set()
    while tensors:

        def cost(tensor: _Tensor) -> float:
            down = min(tensor.position, deepest)  # noqa: B023
            saved = 0 if tensor.saved[0] in paid else tensor.saved[1]
            size = tensor.own_bytes + saved + way_bytes[down] - way_bytes[deepest]  # noqa: B023
            macs = tensor.macs + way_macs[down] - way_macs[deepest]  # noqa: B023
            return size / max(all_bytes, 1) + macs / max(all_macs, 1)

        best = min(tensors, key=lambda tensor: (cost(tensor), -tensor.position, tensor.name))
        tensors.remove(best)
        order.append(best.name)
        paid.add(best.saved[0])
        deepest = min(deepest, best.position)
    return order


def _tensors(model: ImportedModel, recipe: Recipe) -> Iterator[_Tensor]:
    graph = model.graph
    copies = 2 + len(recipe.optimizer.slots)  # itself and its gradient
    readers: dict[str, tuple[int, Node]] = {}
    for i, node in enumerate(graph.nodes):
        for name in node.inputs:
            readers.setdefault(name, (i, node))
    for name in parameters_of(model.parameters):
        if name not in readers or name not in graph.constants:
            continue
        position, node = readers[name]
        size = graph.types[name].size_bytes
        is_product = graph.types[name].rank > 1 or node.inputs.index(name) == 1
        data = node.inputs[0]
        saved = (data, graph.types[data].size_bytes) if is_product and data != name else ("", 0)
        yield _Tensor(name, position, copies * size, saved, _macs(graph, node) if graph.types[name].rank > 1 else 0)


def _on_the_way(graph: Graph) -> tuple[list[int], list[int]]:
    """From each node to the end: what gradients on their way down read, and the work of passing them on."""
    sizes, macs = [0], [0]
    for node in reversed(graph.nodes):
        is_read = node.op not in _THROUGH and not registry.get(node.op).is_view
        sizes.append(sizes[-1] + (graph.types[node.outputs[0]].size_bytes if is_read else 0))
        macs.append(macs[-1] + _macs(graph, node))
    return sizes[::-1], macs[::-1]


def _macs(graph: Graph, node: Node) -> int:
    operator = registry.get(node.op)
    return 0 if operator.is_view else sum(nest.macs for nest in operator.nests(NodeView(node, graph.types)))
