"""Random small programs: chains and branches with views, in-place operators, scratch, state reads and state writes."""

from __future__ import annotations

import random
from math import prod

from tilegrad.ir.graph import Graph
from tilegrad.ir.program import Program, Role, StateTensor
from tilegrad.ir.schedule import Schedule
from tilegrad.ir.types import DType, TensorType
from tilegrad.passes.builder import GraphBuilder
from tilegrad.recipe import Recipe
from tilegrad.schedule.schedule import schedule_program
from tilegrad.targets import base as targets

SHAPES = ((2, 3), (3, 2), (4, 4), (6,), (5, 3), (3, 5))


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


class _Drawer:
    """Appends random operators to a builder."""

    def __init__(self, draw: random.Random, build: GraphBuilder) -> None:
        self.draw = draw
        self.build = build
        self.values: list[str] = []

    def shape(self, value: str) -> tuple[int, ...]:
        return self.build.type_of(value).shape

    def like(self, value: str) -> str:
        """A value of the same shape, perhaps the same one."""
        return self.draw.choice([v for v in self.values if self.shape(v) == self.shape(value)])

    def add_operator(self) -> None:
        x = self.draw.choice(self.values)
        kind = self.draw.choice(["Relu", "Add", "Add", "Mul", "Sum", "Reshape", "Identity", "Gemm", "Transpose", "Neg"])
        if kind in ("Relu", "Neg", "Identity"):
            (y,) = self.build.emit(kind, [x])
        elif kind in ("Add", "Mul"):
            (y,) = self.build.emit(kind, [x, self.like(x)])
        elif kind == "Sum":  # folds through scratch tensors
            (y,) = self.build.emit("Sum", [x, self.like(x), self.like(x), self.like(x)])
        elif kind == "Reshape":
            size = prod(self.shape(x))
            (y,) = self.build.emit("Reshape", [x], {"shape": self.draw.choice([(size,), (1, size), (size, 1)])})
        else:
            if len(self.shape(x)) != 2:
                return
            if kind == "Transpose":
                (y,) = self.build.emit("Transpose", [x], {"perm": (1, 0)})
            else:
                rows = [v for v in self.values if len(self.shape(v)) == 2 and self.shape(v)[0] == self.shape(x)[1]]
                if not rows:
                    return
                (y,) = self.build.emit("Gemm", [x, self.draw.choice(rows)])
        self.values.append(y)


def _state(draw: random.Random) -> dict[str, TensorType]:
    return {f"state{i}": f32(*draw.choice(SHAPES)) for i in range(draw.randrange(1, 5))}


def _write_state(draw: random.Random, drawer: _Drawer, state: dict[str, TensorType]) -> None:
    """New content for some of the state: accumulated onto the old, or computed from anything, after all reads."""
    build = drawer.build
    for name in state:
        sources = [v for v in drawer.values if drawer.shape(v) == state[name].shape]
        if name not in build.state or draw.random() < 0.4 or not sources:
            continue
        source = draw.choice(sources)
        kind = draw.choice(["accumulate", "add", "fresh"])
        if kind == "accumulate":
            _, value = build.emit("InPlaceAccumulatorV2", [name, source], outputs=(False, True))
        elif kind == "add":
            (value,) = build.emit("Add", [name, source])
        else:
            (value,) = build.emit("Neg", [source])
        build.writes.append((value, name))
        # The old content is gone, and so is whatever views it.
        gone = {name}
        for node in build.nodes:
            if node.op in ("Reshape", "Identity") and node.inputs[0] in gone:
                gone.add(node.outputs[0])
        drawer.values = [v for v in drawer.values if v not in gone]


def random_graph(draw: random.Random, name: str, state: dict[str, TensorType], operators: int, writes: bool) -> Graph:
    build = GraphBuilder(name)
    drawer = _Drawer(draw, build)
    for i in range(draw.randrange(1, 4)):
        drawer.values.append(build.add_input(f"input{i}", f32(*draw.choice(SHAPES))))
    for tensor, tensor_type in state.items():
        if draw.random() < 0.7:
            drawer.values.append(build.add_state(tensor, tensor_type))
    for _ in range(operators):
        drawer.add_operator()
    if writes:
        _write_state(draw, drawer, state)
    written_over = {tensor for _, tensor in build.writes}
    candidates = [v for v in drawer.values if v not in build.state and v not in written_over]
    outputs = draw.sample(candidates, min(len(candidates), draw.randrange(1, 4)))
    return build.finish(outputs)


def prefix(graph: Graph, count: int, name: str) -> Graph:
    """The first nodes of a graph as a graph that gives its last values, as `infer` is to `step`."""
    nodes = graph.nodes[:count]
    produced = [value for node in nodes for value in node.outputs if value]
    known = {*graph.inputs, *graph.state, *produced}
    types = {value: t for value, t in graph.types.items() if value in known}
    outputs = tuple(produced[-1:]) or graph.inputs[:1]
    return Graph(name, graph.inputs, outputs, nodes, types, {}, graph.state)


def random_schedule(seed: int, operators: int) -> Schedule:
    """A program of random entries on the host target."""
    draw = random.Random(seed)
    state = _state(draw)
    step = random_graph(draw, "step", state, operators, writes=True)
    update = random_graph(draw, "update", state, operators // 2, writes=True)
    infer = prefix(step, draw.randrange(0, len(step.nodes) + 1 - len(step.writes)), "infer")
    tensors = tuple(StateTensor(name, tensor_type, Role.PARAMETER) for name, tensor_type in state.items())
    entries = {"infer": infer, "step": step, "update": update}
    program = Program("random", Recipe(), step.outputs[0], tensors, entries, step.inputs[0], None)
    return schedule_program(program, targets.get("host"))
