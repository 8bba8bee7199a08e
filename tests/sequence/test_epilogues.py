"""Tiles that go on through another kernel: the same bits, the same words, and only where that is faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import tilegrad as tg
from tests.schedule.programs import KIB, quick_sim, run_once, siracusa
from tests.sequence.decode import Machine
from tests.sequence.emitted_words import emitted
from tests.sequence.listed_actions import difference
from tests.support.models import ints, model, node, value, weights
from tilegrad import frontend
from tilegrad.compiled import Compiled
from tilegrad.devices.host import HostDevice
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program
from tilegrad.ir.types import DType, TensorType
from tilegrad.pipeline import compile_model
from tilegrad.recipe import SGD, Recipe
from tilegrad.schedule import epilogues as pairs
from tilegrad.schedule.epilogues import ChainKind, PairKey
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence import epilogues, fastest
from tilegrad.sequence.timing import NestTiming
from tilegrad.sequence.trace import check_trace, read_trace
from tilegrad.targets import base as targets
from tilegrad.targets.base import Target
from tilegrad.training.train import train

RECIPE = Recipe(batch=2, optimizer=SGD(lr=0.05), loss="mse")


def chains() -> onnx.ModelProto:
    """Every kind: convolutions with a bias and without, products of three dimensions with a bias, a scalar or a
    residual, one or two operators behind them, what is read again and what is not."""
    return model(
        [
            node("Conv", "x w1 b1", "c1", "/conv", kernel_shape=[3, 3], strides=[2, 1], pads=[1, 1, 1, 1]),
            node("Relu", "c1", "r1", "/relu"),
            node("Conv", "r1 w2 _", "c2", "/depthwise", kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=5),
            node("Gelu", "c2", "g2", "/gelu"),  # whose gradient reads c2
            node("Conv", "g2 w3 b3", "c3", "/pointwise", kernel_shape=[1, 1]),
            node("Add", "r1 c3", "a3", "/skip"),
            node("Reshape", "a3 rows", "f", "/rows"),
            node("MatMul", "f w4", "m4", "/matmul"),
            node("Add", "m4 b4", "a4", "/bias"),
            node("Tanh", "a4", "t4", "/tanh"),
            node("MatMul", "t4 w5", "m5", "/other"),
            node("Mul", "m5 half", "y", "/scale"),
        ],
        [value("x", ["batch", 3, 9, 7])],
        [value("y", ["batch", 5, 6])],
        {
            "w1": weights(5, 3, 3, 3, seed=1) * 0.3,
            "b1": weights(5, seed=2),
            "w2": weights(5, 1, 3, 3, seed=3) * 0.3,
            "w3": weights(5, 5, 1, 1, seed=4) * 0.3,
            "b3": weights(5, seed=5),
            "w4": weights(35, 8, seed=6) * 0.3,
            "b4": weights(8, seed=7),
            "w5": weights(8, 6, seed=8) * 0.3,
            "rows": ints(0, 0, -1),
            "half": 0.5,
        },
        opset=20,
    )


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every chain that is legal is made."""
    monkeypatch.setattr(epilogues, "_pays", lambda *given: True)
    monkeypatch.setattr(epilogues, "LEAST_IDLE", 0.0)
    monkeypatch.setattr(epilogues, "_is_faster", lambda *given: True)
    yield


def compiled_for(target: Target, options: ScheduleOptions | None = None) -> Compiled:
    asked = replace(options or ScheduleOptions(), fuses_update=False)
    return compile_model(frontend.load(chains(), batch=RECIPE.batch), RECIPE, target, options=asked)


def operators(compiled: Compiled, entry: str) -> list[str]:
    launches = compiled.listing.plan.schedule.entries[entry].launches
    return [launch.node.op for launch in launches if "+" in launch.node.op]


def trained(compiled: Compiled, on_host: bool = False) -> tuple[list[float], dict[str, bytes]]:
    with HostDevice() if on_host else quick_sim() as device:
        run = train(compiled, device, steps=2, verify=False)
    return run.losses, {name: array.tobytes() for name, array in run.weights.items()}


def test_what_operators_declare_is_chained(always: None) -> None:
    compiled = compiled_for(siracusa())
    forward = ["Conv+Relu", "Conv+Gelu", "Conv+Add", "MatMul+Add+Tanh", "MatMul+Mul"]
    assert operators(compiled, "infer") == forward
    backward = ["FusedMatMul+TanhGrad", "ConvGrad+GeluGrad"]
    assert operators(compiled, "step")[: len(forward)] == forward
    assert set(backward) <= set(operators(compiled, "step")[len(forward) :])


WAYS = [
    (siracusa(), ScheduleOptions()),
    (siracusa(4 * KIB), ScheduleOptions(buffering="double")),
    (siracusa(3 * KIB, cores=3), ScheduleOptions(buffering="single")),
    (siracusa(4 * KIB, cores=1), ScheduleOptions(home="L3")),
]


@pytest.mark.parametrize(("target", "options"), WAYS)
def test_bits_are_those_of_operators_apart(always: None, target: Target, options: ScheduleOptions) -> None:
    compiled = compiled_for(target, options)
    assert operators(compiled, "step") and "TG_EPILOGUES" in compiled.project.files["model.h"].decode()
    assert trained(compiled) == trained(compiled_for(targets.get("host")), on_host=True)


def test_so_they_are_over_several_clusters(always: None) -> None:
    compiled = compiled_for(targets.get("mppa").with_clusters(4), ScheduleOptions(blocks="3"))
    assert operators(compiled, "step")
    with tg.open_device("sim:mppa") as device:
        run = train(compiled, device, steps=2, verify=False)
    found = run.losses, {name: array.tobytes() for name, array in run.weights.items()}
    assert found == trained(compiled_for(targets.get("host")), on_host=True)


@pytest.mark.parametrize(("target", "options"), WAYS[1:3])
def test_words_and_the_driver_say_what_is_listed(
    always: None, target: Target, options: ScheduleOptions, tmp_path: Path
) -> None:
    compiled = compiled_for(target, options)
    program = emitted(compiled, tmp_path)
    for entry in compiled.listing.entries:
        assert difference(Machine, program, compiled.listing, entry) is None
    with quick_sim() as device:
        session = device.load(compiled)
        run_once(session)
        check_trace(compiled.listing, read_trace(session.folder / session.TRACE))  # type: ignore[attr-defined]


def test_another_epilogue_is_not_what_the_words_say(always: None, tmp_path: Path) -> None:
    compiled = compiled_for(siracusa(4 * KIB))
    program = emitted(compiled, tmp_path)
    own = compiled.listing.entries["infer"]
    for i, listed in enumerate(own.nests):
        if listed.nest.epilogues:
            without = replace(listed, nest=replace(listed.nest, epilogues=()))
            other = replace(own, nests=(*own.nests[:i], without, *own.nests[i + 1 :]))
            assert difference(Machine, program, replace(compiled.listing, entries={"infer": other}), "infer")


def test_programs_are_never_slower() -> None:
    """By the clock, whatever is chosen."""
    for name, target in (("resnet8", siracusa(64 * KIB)), ("autoencoder_tiny", siracusa())):
        chosen = tg.compile(name, target=target)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(epilogues, "MOST_EPILOGUES", 0)
            apart = tg.compile(name, target=target)
        assert chosen.cycles["step"] is not None and apart.cycles["step"] is not None
        assert chosen.cycles["step"] <= apart.cycles["step"], name


def test_chains_are_made_where_tiles_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are faster; not where nothing is tiled, nor in one flat memory, nor where that takes long to see."""
    compiled = compiled_for(siracusa())
    assert "Conv+Relu" in operators(compiled, "infer") and "ConvGrad+GeluGrad" in operators(compiled, "step")
    assert not operators(compiled_for(siracusa(), ScheduleOptions(is_tiled=False)), "step")
    assert not operators(compiled_for(targets.get("host")), "step")
    monkeypatch.setattr(fastest, "MANY_TILES", 0)
    assert not operators(compiled_for(siracusa()), "step")


def test_what_is_no_chain_is_none() -> None:
    """What the second reads comes later; it reads rows, not elements; its elements are integers."""

    def found(nodes: tuple[Node, ...], dtype: DType = DType.F32) -> list[tuple[str, str, str]]:
        types = {name: TensorType(dtype, (4, 4)) for name in "awbyzs"}
        return [pair.key for pair in pairs._pairs(Graph("g", ("a", "w", "b"), ("z",), nodes, types))]

    product = Node("m", "MatMul", ("a", "w"), ("y",))
    late = Node("n", "Neg", ("b",), ("s",))
    total = Node("t", "Add", ("y", "s"), ("z",))
    assert found((late, product, total)) == [("m", "t", "y")]
    assert found((product, late, total)) == []
    assert found((product, Node("r", "Softmax", ("y",), ("z",), {"axis": -1}))) == []
    assert found((Node("m", "Neg", ("a",), ("y",)), Node("r", "Relu", ("y",), ("z",)))) == []


def test_a_kind_is_tried_where_its_nests_do_not_only_compute() -> None:
    """A chain saves no more than waits and conducting."""
    compiled = compiled_for(targets.get("host"))
    found = pairs.candidates(compiled.program)
    timing = compiled_for(siracusa()).timing["step"]
    every = epilogues._firsts(found, None)
    product = next(kind for kind, key in every.items() if key[0] == found_node(compiled, "MatMul"))
    assert len(every) > 3
    for name, idle in (("", 0.0), (every[product][0], 0.5 * epilogues.LEAST_IDLE), (every[product][0], 1.0)):
        nests = [NestTiming(name, "", 1, 100.0, 100.0 * (1.0 - idle), 0.0, 0)]
        tried = epilogues._firsts(found, replace(timing, cycles=100.0, nests=tuple(nests)))
        assert set(tried) == ({product} if idle == 1.0 else set())


def found_node(compiled: Compiled, op: str) -> str:
    return next(node.name for node in compiled.program.entries["step"].nodes if node.op == op)


def test_a_pair_that_is_another_with_few_nodes_around_it_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled_for(targets.get("host")).program
    found = pairs.candidates(program)
    (key, (kind, keeps)), *_, (_, other) = found.kinds.items()
    assert other[0] != kind
    alone: tuple[tuple[dict[PairKey, tuple[ChainKind, bool]], bool], ...]
    alone = (({}, False), ({key: other}, False), ({key: (kind, keeps)}, True))
    for kinds, is_tried in alone:
        timed: list[Program] = []
        monkeypatch.setattr(epilogues, "candidates", lambda _, kinds=kinds: pairs.Candidates(found.pairs, kinds))
        monkeypatch.setattr(epilogues, "with_chains", lambda apart, *_: apart)
        monkeypatch.setattr(epilogues, "_timing", lambda one, *_, timed=timed: timed.append(one))
        assert not epilogues._pays(program, found, key, kind, siracusa(), ScheduleOptions())
        assert bool(timed) == is_tried
