"""Keeps what the forward pass leaves for the backward pass in two bytes a number (`--store activations=bf16`).

A value that the backward pass reads is rounded once, where it is made (Store16), and what reads it there reads the
rounded value (Load16), made again shortly before: in float32 it lives only as long as the forward pass needs it. The
forward pass reads what is not rounded. So the bits depend on the setting, and not on what is computed again or moved.
State is not kept twice: a parameter, or what is made of parameters alone, is read as it is. A MaxPool's gradient asks
which element was the maximum, which rounded values cannot tell: that is kept as one byte (MaxPoolTap).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tilegrad.analysis.lifetimes import read_inputs
from tilegrad.analysis.verify import verify_graph
from tilegrad.errors import UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program, Role
from tilegrad.ir.types import DType
from tilegrad.ops.max_pool_tap import MOST_TAPS
from tilegrad.passes.builder import GraphBuilder
from tilegrad.passes.views import roots_of_views
from tilegrad.recipe import Recipe
from tilegrad.recipe.stored_types import Stored

SHARED_NODES = 3
"""Readers at most so far apart share what was loaded; it would take memory meanwhile."""
_MAX_POOL_GRAD = "MaxPoolGrad"
_KEEPING = ("Store16", "MaxPoolTap")


@dataclass(frozen=True)
class SavedValue:
    """A value of the forward pass, views apart, and the backward nodes that read it or a view of it, by position."""

    name: str
    readers: tuple[int, ...]


def forward_nodes(step: Graph) -> frozenset[int]:
    """Positions of the nodes that the loss depends on, and of those that keep what these made."""
    needed = set(step.outputs)
    found: set[int] = set()
    for i in range(len(step.nodes) - 1, -1, -1):
        if needed.intersection(filter(None, step.nodes[i].outputs)):
            found.add(i)
            needed.update(step.nodes[i].inputs)
    made = {*step.inputs, *(name for i in found for name in step.nodes[i].outputs)}
    found.update(i for i, node in enumerate(step.nodes) if node.op in _KEEPING and made.issuperset(node.inputs))
    return frozenset(found)


def saved_values(step: Graph) -> tuple[SavedValue, ...]:
    """What the backward pass reads of the forward pass: float values that depend on an input, in order of making."""
    forward = forward_nodes(step)
    made = [*step.inputs, *(name for i in sorted(forward) for name in step.nodes[i].outputs if name)]
    fed = _fed(step)
    roots = roots_of_views(step)
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(step.nodes):
        if i in forward:
            continue
        for name in dict.fromkeys(read_inputs(step, node)):
            root = roots.get(name, name)
            if root in fed and step.types[root].dtype is DType.F32:
                readers.setdefault(root, []).append(i)
    return tuple(SavedValue(name, tuple(dict.fromkeys(readers[name]))) for name in made if name in readers)


def saved_bytes(step: Graph) -> int:
    """What the forward pass leaves for the backward pass, bytes of every type, as it lies in memory."""
    forward = forward_nodes(step)
    fed, roots = _fed(step), roots_of_views(step)
    made: set[str] = {*step.inputs, *(name for i in forward for name in step.nodes[i].outputs if name)}
    found: set[str] = set()
    for i, node in enumerate(step.nodes):
        if i not in forward:
            found.update(roots.get(name, name) for name in read_inputs(step, node))
    return sum(step.types[name].size_bytes for name in found if name in made and name in fed)


def _fed(step: Graph) -> set[str]:
    """Values that depend on an input."""
    found = set(step.inputs)
    for node in step.nodes:
        if found.intersection(node.inputs):
            found.update(filter(None, node.outputs))
    return found


def refuse_stored(recipe: Recipe, reason: str) -> None:
    """Where there is no such storage."""
    if not recipe.store.is_plain:
        raise UserError(f"nothing can be stored in two bytes: {reason}", stage="recipe", got=f"--store {recipe.store}")


def store_settings(program: Program) -> tuple[Stored, ...]:
    """What a program could be stored as, what changes least first: what `--fit` may choose from. Each takes another
    `Recipe.store`; the program as it is, is not among them."""
    halves = ("bf16", "fp16")
    slots = bool(program.with_role(Role.OPTIMIZER))
    activations = bool(saved_values(program.entries["step"]))
    found = [Stored(optimizer=kept_as) for kept_as in halves if slots]
    found += [Stored(activations=kept_as) for kept_as in halves if activations]
    found += [Stored(kept_as, kept_as) for kept_as in halves if slots and activations]
    return tuple(each for each in found if each != program.recipe.store)


@dataclass(frozen=True)
class StoreActivations:
    """A program pass, behind those that fuse the backward pass: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        step = _with_taps(program.entries["step"])
        exact = {name for node in step.nodes if node.op == _MAX_POOL_GRAD for name in node.inputs[1:]}
        roots = roots_of_views(step)
        exact = {roots.get(name, name) for name in exact}
        values = [value for value in saved_values(step) if value.name not in exact]
        if not values:
            raise UserError(
                f"training '{program.name}' saves no activations to store",
                stage="recipe",
                got=f"--store {program.recipe.store}",
            )
        return program.with_step(_Rewriting(step, program.recipe.store.activations, values).graph())


def _with_taps(step: Graph) -> Graph:
    """The graph whose poolings remember where their maxima were, wherever a byte can say that.

    A Relu before the pooling then need not be remembered: where its output was a maximum, that is the pooling's output,
    and everywhere else there is no gradient.
    """
    producer = {name: i for i, node in enumerate(step.nodes) for name in node.outputs if name}
    pools: dict[int, list[Node]] = {}
    for node in step.nodes:
        if node.op == _MAX_POOL_GRAD and _tap_count(node) <= MOST_TAPS and node.inputs[2] in producer:
            pools.setdefault(producer[node.inputs[2]], []).append(node)
    if not pools:
        return step
    builder = _like(step)
    masks = _masks_behind(step)
    forms: dict[str, tuple[Node, ...]] = {}
    for i, node in enumerate(step.nodes):
        for form in forms.get(node.name, (node,)):
            builder.append(form)
        for grad in pools.get(i, ()):
            builder.node_name = node.name
            (tap,) = builder.emit("MaxPoolTap", grad.inputs[1:], grad.attributes, hint=f"{node.outputs[0]}.tap")
            attributes = {**grad.attributes, "shape": step.types[grad.inputs[1]].shape}
            dy, _, y = grad.inputs
            mask = masks.get(grad.name)
            if mask is None:
                forms[grad.name] = (Node(grad.name, "MaxPoolTapGrad", (dy, tap), grad.outputs, attributes),)
                continue
            masked = builder.unique(f"{dy}.masked")
            builder.types[masked] = step.types[dy]
            forms[grad.name] = (Node(mask.name, mask.op, (dy, y), (masked,)),)
            forms[mask.name] = (Node(grad.name, "MaxPoolTapGrad", (masked, tap), mask.outputs, attributes),)
    return verify_graph(builder.finish(step.outputs))


def _masks_behind(step: Graph) -> dict[str, Node]:
    """The gradient of a Relu that alone reads a pooling's gradient, by the name of that."""
    grads = {node.outputs[0]: node for node in step.nodes if node.op == _MAX_POOL_GRAD}
    readers = step.consumers()
    return {
        grads[node.inputs[0]].name: node
        for node in step.nodes
        if node.op == "ReluGrad"
        and node.inputs[0] in grads
        and node.inputs[1] == grads[node.inputs[0]].inputs[1]
        and readers[node.inputs[0]] == [node]
        and node.inputs[0] not in step.outputs
    }


def _tap_count(node: Node) -> int:
    kernel = node.attributes["kernel_shape"]
    assert isinstance(kernel, tuple)
    count = 1
    for extent in kernel:
        count *= int(extent)
    return count


def _like(step: Graph) -> GraphBuilder:
    """A builder without nodes that knows every name of a graph."""
    return GraphBuilder.from_graph(replace(step, nodes=()))


@dataclass
class _Rewriting:
    """One use: the graph with its saved values stored and loaded."""

    step: Graph
    kept_as: str
    values: Sequence[SavedValue]
    builder: GraphBuilder = field(init=False)
    producers: dict[str, Node] = field(init=False)

    def graph(self) -> Graph:
        step = self.step
        self.builder = _like(step)
        self.producers = step.producers()
        producer = {name: i for i, node in enumerate(step.nodes) for name in node.outputs if name}
        roots = roots_of_views(step)
        stored: dict[str, str] = {}
        after: dict[int, list[str]] = {}
        groups: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
        for value in self.values:
            after.setdefault(producer.get(value.name, -1), []).append(value.name)
            for group in _groups(value.readers):
                groups.setdefault(group[0], []).append((value.name, group))
        reads: dict[int, dict[str, str]] = {}
        names = {value.name for value in self.values}
        for i in range(-1, len(step.nodes)):
            for root, group in groups.get(i, ()):
                loaded = self._emit("Load16", stored[root], root)
                for reader in group:
                    reads.setdefault(reader, {})[root] = loaded
            if i >= 0:
                node = step.nodes[i]
                again = reads.get(i, {})
                wanted = set(read_inputs(step, node)) if again else set()
                inputs = []
                for name in node.inputs:
                    root = roots.get(name, name)
                    is_read = root in again and root in names and name in wanted
                    inputs.append(self._viewed(name, root, again) if is_read else name)
                self.builder.append(node.with_inputs(tuple(inputs)))
            for root in after.get(i, ()):
                stored[root] = self._emit("Store16", root, root, {"to": self.kept_as})
        return verify_graph(self.builder.finish(step.outputs))

    def _emit(self, op: str, source: str, root: str, attributes: dict[str, str] | None = None) -> str:
        self.builder.node_name = root
        word = "stored" if op == "Store16" else "loaded"
        return self.builder.emit(op, [source], attributes, hint=f"{root}.{word}")[0]

    def _viewed(self, name: str, root: str, again: dict[str, str]) -> str:
        """What was loaded, under the views that `name` has of it."""
        if name == root:
            return again[root]
        if name in again:
            return again[name]
        view = self.producers[name]
        source = self._viewed(view.inputs[0], root, again)
        self.builder.node_name = view.name
        made = self.builder.emit(view.op, [source, *view.inputs[1:]], view.attributes, hint=f"{name}.loaded")
        again[name] = made[0]
        return made[0]


def _groups(readers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Readers that are near each other."""
    group: list[int] = []
    for reader in readers:
        if group and reader - group[0] > SHARED_NODES:
            yield tuple(group)
            group = []
        group.append(reader)
    if group:
        yield tuple(group)
