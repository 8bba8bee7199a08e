"""What went wrong in systems that do this job, each with the test that would have caught it.

Where a test stands already, the table names it; `test_the_table_is_true` looks it up. The rest is in this file. Lessons
about blocks, pipes and lanes have none: the programs here run on one cluster.

| lesson | test |
|---|---|
| an accumulation node with mismatched shapes was accepted | tests/ops/test_optimizers.py::test_accumulator_refuses |
| an optional output skipped its type check | test_optional_outputs_are_checked |
| the loss has one form, and the one-output form becomes it | test_a_loss_with_one_output_gets_its_second |
| a scalar loss was written once per tile | test_a_loss_over_tiles_is_one_sum |
| the harness printed errors and exited 0 | tests/cli/test_statuses.py::test_1_the_run_disagrees_and_the_worst_tensor_is_named |
| leftover mini-batches were dropped | tests/test_data.py::test_samples_come_in_order_and_wrap_round |
| leftover mini-batches stay in the accumulator | tests/training/test_training.py::test_leftover_mini_batches_are_added_to_the_next_update |
| leftover mini-batches, counted | test_every_sample_is_used |
| boolean inputs fell through a type table | test_boolean_inputs_work |
| zero-sized inputs fell through a type table | test_zero_sized_inputs_work |
| four steps were compared | tests/training/test_training.py::test_models |
| losses alone were compared | tests/verify/test_compare.py::test_each_figure_is_judged |
| a golden was a second run of the same code | tests/verify/test_independence.py::test_no_reference_imports_what_it_judges |
| a golden was never run | tests/codegen/test_golden.py::test_the_golden_c_trains_as_pytorch_does |
| a 32-bit counter overflowed | test_counters_have_64_bits |
| a debug print sat in a kernel | test_generated_code_is_silent |
| an in-place output had an address of its own | test_updates_are_written_where_the_state_is |
| an alias had its owner in another memory | tests/place/test_levels.py::test_what_is_updated_in_place_is_in_one_memory |
| an in-place update's way out overwrote live memory | tests/place/test_levels.py::test_state_is_where_the_next_call_looks_for_it |
| inputs were reused before the backward pass read them | tests/place/test_lifetimes.py::test_an_input_read_later_is_not_taken_over |
| a plan with overlapping buffers was used | tests/place/test_validate.py::test_faults_are_refused |
| a step left something behind in scratch | test_a_step_leaves_nothing_behind_but_state |
| a table in scratchpad was changed by a step | tests/devices/test_sim.py::test_an_entry_leaves_nothing_but_state |
| a step read what nobody wrote | tests/codegen/test_project.py::test_two_instances_share_nothing_and_a_bad_label_touches_nothing |
| planning took gigabytes | test_import_to_c_is_quick_and_small |
| planning grew with the scratchpad | tests/schedule/test_lessons.py::test_the_search_does_not_grow_with_the_scratchpad |
| planning grew with the scratchpad, in memory | tests/schedule/test_lessons.py::test_planning_takes_little_memory_for_any_scratchpad |
| the solver saw the first operator's cost alone | tests/schedule/test_lessons.py::test_every_operators_cost_counts |
| the same for what is reported | tests/schedule/test_lessons.py::test_every_operators_cost_is_in_the_reported_cycles |
| two identical schedules gave different C | tests/schedule/test_lessons.py::test_the_same_input_gives_the_same_c |
| an operator was emitted with no DMA at all | tests/sequence/test_replay.py::test_faults_are_found |
| double buffering was refused for in-place and multi-output operators | tests/schedule/test_lessons.py::test_double_buffering_is_refused_for_nothing |
| double buffering of single tiles | tests/schedule/test_lessons.py::test_auto_never_doubles_a_single_tile |
| double buffering that was slower | tests/devices/test_sim.py::test_auto_is_never_slower_than_single_or_double |
| one request for two transfers | tests/sequence/test_replay.py::test_faults_are_found |
| one request for two transfers, when it runs | tests/devices/test_sim.py::test_faults_of_the_driver_stop_the_run |
| the untiled baseline was edited C that computed nothing | tests/devices/test_sim.py::test_the_bits_are_the_hosts |
| two identical runs gave different C | tests/codegen/test_project.py::test_every_file_is_the_same_from_any_process_into_any_folder |
| a device left methods unimplemented | tests/devices/test_contract.py::test_an_incomplete_device_cannot_be_registered |
| a program of another device was accepted | tests/devices/test_host.py::test_a_program_for_another_target_is_refused |
| a tensor of another device was accepted | tests/devices/test_contract.py::test_handles_that_cannot_be_used |
| unsupported counters came back as -1 | tests/devices/test_contract.py::test_a_counter_that_the_device_lacks |
| intermediates landed in the working directory | tests/build/test_build.py::test_a_read_only_working_directory |
| a path went through a shell | tests/build/test_build.py::test_a_folder_for_temporary_files_with_a_hostile_name |
| many builds at once disturbed each other | tests/build/test_build.py::test_many_builds_at_once |
| importing changed PATH and read a login name | test_importing_has_no_side_effects |
| the eleventh loaded module failed | tests/devices/test_conformance.py::test_a_hundred_loads |
| modules leaked when evaluation raised | tests/devices/test_conformance.py::test_closing_the_device_closes_its_sessions |
| a launch was left out without an error | tests/devices/test_opencl.py::test_a_nest_is_a_launch |
| memory that does not fit, without a budget | tests/errors/test_schedule_errors.py::test_following_the_hint_leads_to_a_program |
| errors were dumps, and came one at a time | tests/errors/test_cli_errors.py::test_all_unsupported_operators_are_listed_at_once |
"""  # noqa: E501

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilegrad as tg
from tests.support.kernels import run_graph
from tests.support.models import model, node, value, weights
from tests.support.operators import one_node_graph
from tests.support.projects import batch, opened, state_of, zoo_model
from tilegrad import zoo
from tilegrad.analysis.verify import verify_graph
from tilegrad.compiled import Compiled
from tilegrad.data.samples import make_batches
from tilegrad.devices.process import HarnessSession
from tilegrad.errors import UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import ENTRIES
from tilegrad.ir.types import DType, TensorType

ROOT = Path(__file__).parents[1]


def test_the_table_is_true() -> None:
    assert __doc__ is not None
    rows = [line.split(" | ")[1].removesuffix(" |") for line in __doc__.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 25
    for row in rows:
        path, _, name = row.strip().rpartition("::")
        source = (ROOT / path if path else Path(__file__)).read_text(encoding="utf-8")
        functions = {one.name for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)}
        assert name in functions, row


# ---- training graphs and verification


def loss_graph(log_prob: TensorType) -> Graph:
    types = {
        "logits": TensorType(DType.F32, (2, 3)),
        "labels": TensorType(DType.I64, (2,)),
        "loss": TensorType(DType.F32, ()),
        "log_prob": log_prob,
    }
    one = Node("criterion", "SoftmaxCrossEntropyLoss", ("logits", "labels"), ("loss", "log_prob"))
    return Graph("test", ("logits", "labels"), ("loss",), (one,), types)


def test_optional_outputs_are_checked() -> None:
    """The second output of the loss, though nobody reads it."""
    verify_graph(loss_graph(TensorType(DType.F32, (2, 3))))
    for wrong in (TensorType(DType.F32, (3, 2)), TensorType(DType.I64, (2, 3)), TensorType(DType.F32, ())):
        with pytest.raises(UserError) as caught:
            verify_graph(loss_graph(wrong))
        assert str(caught.value) == (
            "node 'criterion': SoftmaxCrossEntropyLoss: the declared type of output 'log_prob' is wrong\n"
            f"  expected: f32[2,3]\n  got: {wrong}"
        )
    with pytest.raises(UserError, match="SoftmaxCrossEntropyLoss has too many outputs"):
        logits, labels = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
        one_node_graph("SoftmaxCrossEntropyLoss", [logits, labels], outputs=(True, True, True))


def test_a_loss_with_one_output_gets_its_second() -> None:
    proto = model(
        [node("Gemm", "x w", "h", "fc"), node("SoftmaxCrossEntropyLoss", "h t", "loss", "criterion")],
        [value("x", [2, 4]), value("t", [2], "i64")],
        [value("loss", [])],
        {"w": weights(4, 3)},
    )
    graph = tg.load(proto).graph
    (criterion,) = (one for one in graph.nodes if one.op == "SoftmaxCrossEntropyLoss")
    assert criterion.outputs == ("loss", "loss.log_prob")
    assert graph.types["loss.log_prob"] == TensorType(DType.F32, (2, 3))


@pytest.mark.parametrize("loss", ["SoftmaxCrossEntropyLoss", "MSELoss", "L1Loss", "BCEWithLogitsLoss"])
@pytest.mark.parametrize("tile", [1, 2, 3])
def test_a_loss_over_tiles_is_one_sum(loss: str, tile: int) -> None:
    """Tiles over the batch, the last one ragged: the mean over all of it, in the same bits, and not the last tile's."""
    x = weights(7, 70)
    target = np.arange(7) % 5 if loss == "SoftmaxCrossEntropyLoss" else weights(7, 70, seed=1)
    outputs = (True, True) if loss == "SoftmaxCrossEntropyLoss" else (True,)
    graph = one_node_graph(loss, [x, target], outputs=outputs)
    whole = run_graph(graph, {"x0": x, "x1": target})["y0"]
    sizes = dict.fromkeys("n b i s j".split(), tile)
    assert run_graph(graph, {"x0": x, "x1": target}, sizes, cores=3)["y0"].tobytes() == whole.tobytes()
    last = run_graph(
        one_node_graph(loss, [x[-1:], target[-1:]], outputs=outputs), {"x0": x[-1:], "x1": target[-1:]}
    )["y0"]
    assert abs(float(whole) - float(last)) > 1e-3


def test_every_sample_is_used(tmp_path: Path) -> None:
    """Seven samples in mini-batches of two, two to an update: three updates see 12 samples, wrapping round once."""
    x = np.arange(7, dtype=np.float32)[:, None] * np.ones((1, 64), np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(7))
    compiled = tg.compile("simplemlp", tg.Recipe(batch=2, accumulate=2), target="host")
    batches = make_batches(compiled, tmp_path / "data.npz")
    seen = [int(label) for index in range(6) for label in batches.batch(index)[1]]
    assert seen == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]


def test_boolean_inputs_work() -> None:
    proto = model(
        [node("Where", "mask x zero", "h", "gate"), node("Gemm", "h w", "y", "fc")],
        [value("mask", [1, 4], "bool"), value("x", [1, 4])],
        [value("y", [1, 3])],
        {"w": weights(4, 3), "zero": np.float32(0)},
    )
    compiled = tg.compile(proto, tg.Recipe(), target="host")
    x = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    with opened(compiled) as session:
        for mask in ([[True, False, True, False]], [[False] * 4], [[True] * 4]):
            (y,) = session.run("infer", [mask, x])
            np.testing.assert_allclose(y, np.where(mask, x, 0) @ weights(4, 3), rtol=1e-6)
            session.run("step", [mask, x, [1]])
            gradient = session.gradients()["w"]
            session.update()
            session.set_parameters({"w": weights(4, 3)})
            assert (np.abs(gradient).sum(axis=1) > 0).tolist() == np.array(mask)[0].tolist()


def test_zero_sized_inputs_work() -> None:
    proto = model(
        [node("Concat", "x nothing", "h", "join", axis=1), node("Gemm", "h w", "y", "fc")],
        [value("x", [1, 4]), value("nothing", [1, 0])],
        [value("y", [1, 3])],
        {"w": weights(4, 3)},
    )
    compiled = tg.compile(proto, tg.Recipe(), target="host")
    x, nothing = np.ones((1, 4), np.float32), np.zeros((1, 0), np.float32)
    with opened(compiled) as session:
        (y,) = session.run("infer", [x, nothing])
        np.testing.assert_allclose(y, x @ weights(4, 3), rtol=1e-6)
        (before,) = session.run("step", [x, nothing, [1]])
        session.update()
        assert session.run("step", [x, nothing, [1]])[0] < before


@pytest.mark.parametrize("start", [2**31 - 1, 2**32 - 1, 2**40])
def test_counters_have_64_bits(start: int) -> None:
    """Updates and mini-batches beyond 32 bits are counted on; Adam's correction and dropout's masks stay right."""
    proto = model(
        [
            node("Gemm", "x w", "h", "fc1"),
            node("Dropout", "h ratio training", "d", "drop"),
            node("Gemm", "d v", "y", "fc2"),
        ],
        [value("x", [1, 4])],
        [value("y", [1, 3])],
        {"w": weights(4, 64), "v": weights(64, 3), "ratio": np.float32(0.5), "training": np.array(True)},
    )
    compiled = tg.compile(proto, tg.Recipe(optimizer=tg.Adam()), target="host")
    x = np.ones((1, 4), np.float32)
    with opened(compiled) as session:
        session.write("tg.update", start)
        session.write("tg.minibatch", start)
        losses = []
        for _ in range(3):
            losses.append(session.step(x, [1]))
            session.update()
        assert session.read("tg.update") == session.read("tg.minibatch") == start + 3
        assert np.isfinite(losses).all() and all(np.isfinite(w).all() for w in session.parameters().values())
        assert len(set(losses)) == 3


def test_generated_code_is_silent() -> None:
    """Nothing on stderr, and on stdout nothing but the protocol: any other byte would break it."""
    for name in ("simplemlp", "autoencoder_tiny"):
        compiled = zoo_model(name)
        with opened(compiled) as session:
            assert isinstance(session, HarnessSession)
            x, y = batch(compiled)
            for _ in range(3):
                session.step(x, y)
                session.update()
                session.infer(x)
            assert session.transport.console() == ""


# ---- aliases, liveness, memory plans


@pytest.mark.parametrize("name", zoo.names())
def test_updates_are_written_where_the_state_is(name: str) -> None:
    """A new parameter, buffer or flag is at its owner's address when the entry ends; no address is empty or shared."""
    plan = zoo_model(name).plan
    for entry in ENTRIES:
        graph = plan.schedule.entries[entry].graph
        for source, state in graph.writes:
            assert plan.address(entry, source, len(graph.nodes)) == plan.state_addresses[state], (entry, source)
    spans = sorted(
        (plan.state_addresses[tensor.name].offset, tensor.type.size_bytes) for tensor in plan.schedule.program.state
    )
    assert all(start + size <= after for (start, size), (after, _) in itertools.pairwise(spans))


def stateful() -> Compiled:
    """Everything that a step keeps: gradients, running statistics, a counter for dropout, Adam's moments."""
    proto = model(
        [
            node("Conv", "x k", "c", "conv"),
            node("BatchNormalization", "c scale bias mean variance", "n", "bn"),
            node("Dropout", "n ratio training", "d", "drop"),
            node("Flatten", "d", "f", "flatten"),
            node("Gemm", "f w", "y", "fc"),
        ],
        [value("x", ["n", 1, 5, 5])],
        [value("y", ["n", 3])],
        {"k": weights(2, 1, 3, 3), "scale": weights(2), "bias": weights(2), "mean": weights(2)}
        | {"variance": np.ones(2, np.float32), "w": weights(18, 3)}
        | {"ratio": np.float32(0.5), "training": np.array(True)},
    )
    return tg.compile(proto, tg.Recipe(batch=3, batchnorm="train", optimizer=tg.Adam()), target="host")


def test_a_step_leaves_nothing_behind_but_state() -> None:
    """The same state and the same data give the same bits, whatever ran in between."""
    for compiled in (stateful(), zoo_model("simplemlp")):
        with opened(compiled) as session:
            for index in range(2):
                session.step(*batch(compiled, index))
            session.update()
            saved = {tensor.name: session.read(tensor.name) for tensor in compiled.program.state}
            x, y = batch(compiled, 5)
            loss = session.step(x, y)
            after_step = state_of(session)
            session.update()
            after_update = state_of(session)
            for index in range(7, 10):  # other data through every entry
                session.infer(batch(compiled, index)[0] * 1e20)
                session.step(batch(compiled, index)[0] * 1e20, batch(compiled, index)[1])
                session.update()
            for name, array in saved.items():
                session.write(name, array)
            assert session.step(x, y) == loss
            assert state_of(session) == after_step
            session.update()
            assert state_of(session) == after_update


def test_inference_changes_nothing() -> None:
    for compiled in (stateful(), zoo_model("simplemlp")):
        with opened(compiled) as session:
            session.step(*batch(compiled))
            before = state_of(session)
            first = session.infer(batch(compiled, 3)[0])
            assert state_of(session) == before
            session.infer(batch(compiled, 4)[0])
            assert session.infer(batch(compiled, 3)[0]).tobytes() == first.tobytes()


IMPORT_TO_C = """
import json, re, sys, time
from pathlib import Path
import tilegrad as tg, tilegrad.api
start = time.process_time()
files = tg.compile(tg.load(sys.argv[1]), tg.Recipe(), target="host").project.files
seconds = time.process_time() - start
# Not getrusage: its peak includes what the parent had when it forked.
peak_kib = int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
print(json.dumps([seconds, peak_kib / 1024]))
"""


SLOWEST = "mobilenetv1"


@pytest.mark.parametrize(
    "name", [name if name == SLOWEST else pytest.param(name, marks=pytest.mark.slow) for name in zoo.names()]
)
def test_import_to_c_is_quick_and_small(name: str) -> None:
    """At most 3 s of one core and 500 MB, the interpreter included."""
    command = [sys.executable, "-c", IMPORT_TO_C, name]
    seconds, megabytes = json.loads(subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout)
    assert seconds <= 3.0 and megabytes <= 500


# ---- devices


WATCHED_IMPORT = """
import os, sys, pkgutil, importlib
environment, path, folder = dict(os.environ), list(sys.path), os.getcwd()
import tilegrad
assert "numpy" not in sys.modules and "onnx" not in sys.modules, "`import tilegrad` alone costs nothing"
for module in pkgutil.walk_packages(tilegrad.__path__, "tilegrad."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert dict(os.environ) == environment, "the environment has changed"
assert sys.path == path and os.getcwd() == folder
"""


def test_importing_has_no_side_effects(tmp_path: Path) -> None:
    """Every module of the package, in an empty home: no file, no change of the environment, no word."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WATCHED_IMPORT],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_no_command_goes_through_a_shell() -> None:
    for path in sorted((ROOT / "tilegrad").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"os\.system|os\.popen|shell=True|subprocess\.getoutput|rm -r", text), path
