"""OrderPeak: branches one behind the other where that needs less, the same bits, and nothing where it gains nothing."""

from __future__ import annotations

import onnx
import pytest

from tests.support.models import model, node, value, weights
from tilegrad import frontend, zoo
from tilegrad.analysis.room import live_peak
from tilegrad.devices.host import HostDevice
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.passes.builder import GraphBuilder
from tilegrad.passes.order_peak import lowered
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Recipe
from tilegrad.targets.base import get
from tilegrad.training.train import train

BRANCHES, WIDE = 4, 1024


def branches(is_deep: bool) -> onnx.ModelProto:
    """Wide layers that end in narrow ones: branch by branch, or all of the wide ones first."""
    wide = [node("Gemm", f"x a{i}", f"wide{i}", f"/wide{i}") for i in range(BRANCHES)]
    narrow = [node("Gemm", f"wide{i} b{i}", f"narrow{i}", f"/narrow{i}") for i in range(BRANCHES)]
    both = [pair for pairs in zip(wide, narrow, strict=True) for pair in pairs] if is_deep else [*wide, *narrow]
    names = " ".join(f"narrow{i}" for i in range(BRANCHES))
    tail = [node("Concat", names, "all", "/concat", axis=1), node("Gemm", "all c", "y", "/last")]
    tensors = {f"a{i}": weights(16, WIDE, seed=i) * 0.1 for i in range(BRANCHES)}
    tensors |= {f"b{i}": weights(WIDE, 8, seed=10 + i) * 0.1 for i in range(BRANCHES)}
    tensors["c"] = weights(8 * BRANCHES, 4, seed=20)
    return model([*both, *tail], [value("x", [1, 16])], [value("y", [1, 4])], tensors)


@pytest.mark.parametrize("target", ["host", "siracusa"])
def test_branches_run_one_behind_the_other(target: str) -> None:
    """With all but the last layer frozen nothing is kept, so one wide tensor at a time is enough."""
    made = {
        is_deep: compile_model(frontend.load(branches(is_deep)), Recipe(train="last:1"), get(target))
        for is_deep in (False, True)
    }
    peaks = {
        is_deep: [live_peak(entry, 8)[0] for entry in one.program.entries.values()] for is_deep, one in made.items()
    }
    assert peaks[False][:2] == peaks[True][:2]
    assert max(peaks[False][:2]) < 2 * 4 * WIDE
    if target == "host":
        with HostDevice() as host:
            runs = [train(one, host, steps=2, verify=False) for one in made.values()]
        assert runs[0].weights_sha256 == runs[1].weights_sha256 and runs[0].losses == runs[1].losses


@pytest.mark.parametrize("name", zoo.names())
def test_what_gains_nothing_stays(name: str) -> None:
    """Models come in an order that is as good: their programs are what they were."""
    graph = frontend.load(name).graph
    assert lowered(graph) is graph


def state_in_order() -> Graph:
    """`late` reads the state behind what changes it, and could free a large tensor before."""
    builder = GraphBuilder("step")
    builder.add_state("s", TensorType(DType.F32, (4096,)))
    builder.add_input("x", TensorType(DType.F32, (4096,)))
    builder.append(Node("large", "Neg", ("x",), ("a",)))
    builder.append(Node("large_too", "Neg", ("a",), ("b",)))
    builder.append(Node("read", "Add", ("s", "x"), ("c",)))
    builder.append(Node("change", "Add", ("s", "b"), ("s_new",)))
    builder.writes.append(("s_new", "s"))
    return builder.finish(("c",))


def test_readers_of_state_keep_their_place() -> None:
    names = [one.name for one in lowered(state_in_order()).nodes]
    assert names.index("read") < names.index("change")
