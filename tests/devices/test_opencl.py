"""OpenCL devices: the host's bits from the portable kernels, resident weights, a launch per nest, and what fails."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilegrad as tg
from tests.schedule.programs import compiled_for, host_state, patched
from tests.support.command_line import CommandLine, finish, start
from tests.support.models import model, node, value
from tests.support.projects import batch
from tilegrad.codegen.kernels import KernelSet
from tilegrad.codegen.opencl import BUILD_OPTIONS, kernels_source
from tilegrad.compiled import Compiled
from tilegrad.devices import opencl
from tilegrad.devices.host import HostDevice
from tilegrad.devices.opencl import OpenclDevice
from tilegrad.devices.registry import device_names, open_device
from tilegrad.devices.residency import Residency
from tilegrad.errors import DeviceError, DoesNotFit, UserError, VerificationError
from tilegrad.ops import registry
from tilegrad.ops.kernels import RUNTIME_FOLDER, parse_kernel_file
from tilegrad.pipeline import compile_inference
from tilegrad.targets import base as targets
from tilegrad.training.train import train

TARGET = targets.get("opencl")
REASON = OpenclDevice.missing("opencl:0")
here = pytest.mark.skipif(REASON is not None, reason=f"opencl:0: {REASON}")


def state_after(compiled: Compiled, steps: int, device: OpenclDevice) -> dict[str, bytes]:
    run = train(compiled, device, steps=steps, verify=False)
    found = {"losses": repr(run.losses).encode()}
    return found | {name: array.tobytes() for name, array in (run.weights | run.statistics).items()}


@pytest.fixture
def device() -> Iterator[OpenclDevice]:
    with OpenclDevice() as opened:
        assert isinstance(opened, OpenclDevice)
        yield opened
    assert opened.live_bytes == 0


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compiled_for("simplemlp", TARGET)


# ---- the same bits


@here
@pytest.mark.parametrize(
    "name",
    [
        "simplemlp",
        "autoencoder_tiny",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("odd_cnn", "attention")),  # many kernels to build
    ],
)
def test_20_steps_leave_the_hosts_bits(name: str, device: OpenclDevice) -> None:
    assert state_after(compiled_for(name, TARGET), 20, device) == host_state(name, 20)


@here
@pytest.mark.matrix
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in tg.zoo.names() if name not in ("simplemlp", "autoencoder_tiny")])
def test_20_steps_of_every_model_leave_the_hosts_bits(name: str, device: OpenclDevice) -> None:
    assert state_after(compiled_for(name, TARGET), 20, device) == host_state(name, 20)


@here
@pytest.mark.parametrize(("work_items", "group_items"), [(1, 1), (7, 1), (300, 1), (12, 3)])
def test_any_number_of_work_items_gives_the_same_bits(work_items: int, group_items: int, device: OpenclDevice) -> None:
    compiled = patched(
        compiled_for("autoencoder_tiny", TARGET), "run.py", "(units, 1)", f"({work_items}, {group_items})"
    )
    assert state_after(compiled, 4, device) == host_state("autoencoder_tiny", 4)


def inference(nodes: list[object], inputs: int, outputs: int, count: int, target: str) -> Compiled:
    proto = model(
        nodes,  # type: ignore[arg-type]
        [value(f"x{i}", [1, count]) for i in range(inputs)],
        [value(f"y{i}", [1, count]) for i in range(outputs)],
        {},
        opset=20,
    )
    return compile_inference(tg.load(proto), tg.Recipe(), targets.get(target))


def hard_numbers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random bits: every exponent alike, subnormals, infinities and NaNs among them."""
    bits = np.random.default_rng(5).integers(0, 2**32, (2, 1, count), dtype=np.uint32)
    bits[0, 0, : count // 4] &= 0x807FFFFF  # subnormal
    found = bits.view(np.float32)
    found[0, 0, :4] = [0.0, -0.0, np.inf, np.nan]
    return found[0], found[1]


@here
def test_arithmetic_is_ieee(device: OpenclDevice) -> None:
    """Against NumPy: one correct rounding each, subnormals kept, in and out."""
    operations = {"Add": np.add, "Mul": np.multiply, "Div": np.divide, "Sqrt": None}
    nodes = [node(op, "x0" if op == "Sqrt" else "x0 x1", f"y{i}", f"/{op}") for i, op in enumerate(operations)]
    a, b = hard_numbers(4096)
    with device.load(inference(nodes, 2, len(nodes), 4096, "opencl")) as session, np.errstate(all="ignore"):
        results = dict(zip(operations, session.run("infer", [a, b]), strict=True))
        for op, function in operations.items():
            expected = np.sqrt(a) if function is None else function(a, b)
            np.testing.assert_array_equal(results[op], expected, op)
            zeros = expected == 0
            np.testing.assert_array_equal(np.signbit(results[op][zeros]), np.signbit(expected[zeros]), op)
        subnormal = (results["Mul"] != 0) & (np.abs(results["Mul"]) < np.finfo(np.float32).tiny)
        assert subnormal.any() and (results["Sqrt"][np.abs(a) < np.finfo(np.float32).tiny] > 0).any()


@here
def test_elementary_functions_are_the_hosts(device: OpenclDevice) -> None:
    names = "Exp Log Tanh Erf Sigmoid Softplus Gelu Reciprocal Elu".split()
    nodes = [node(op, "x0", f"y{i}", f"/{op}") for i, op in enumerate(names)]
    nodes.append(node("Pow", "x0 x1", f"y{len(names)}", "/Pow"))
    a, b = hard_numbers(2048)
    small = np.random.default_rng(6).normal(0, 4, a.shape).astype(np.float32)
    with HostDevice() as host:
        reference = host.load(inference(nodes, 2, len(nodes), 2048, "host"))
        session = device.load(inference(nodes, 2, len(nodes), 2048, "opencl"))
        for inputs in ([a, b], [small, small[:, ::-1]], [np.abs(small), small[:, ::-1]]):
            for name, got, wanted in zip(
                [*names, "Pow"], session.run("infer", inputs), reference.run("infer", inputs), strict=True
            ):
                np.testing.assert_array_equal(got.view(np.uint32)[got == got], wanted.view(np.uint32)[wanted == wanted])
                np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted), name)


@here
@pytest.mark.slow
def test_every_kernel_is_opencl_c(device: OpenclDevice) -> None:
    """Not only those of the models that run here."""
    paths = sorted({path for name in registry.names() if (path := registry.kernel_source(name)) is not None})
    files = {path.name: parse_kernel_file(path) for path in paths if path.parent == registry.OPS_FOLDER}
    signatures = {kernel.name: kernel for file in files.values() for kernel in file.kernels}
    headers = {path.name: path for path in RUNTIME_FOLDER.glob("*.h")}
    source = kernels_source(
        KernelSet(files, signatures, headers), set(signatures), TARGET.folder / "tg_rt.h", "everything"
    )
    cl = importlib.import_module("pyopencl")
    program = cl.Program(cl.Context([device.driver]), source).build(list(BUILD_OPTIONS), cache_dir=False)
    assert set(program.kernel_names.split(";")) == {f"run_{name}" for name in signatures}


# ---- launches and residency


def test_a_nest_is_a_launch() -> None:
    """And a launch is one kernel: run.py enqueues each of the list once."""
    compiled = compiled_for("odd_cnn", TARGET)
    listed = json.loads(compiled.project.files["launches.json"])["entries"]
    for entry, scheduled in compiled.plan.schedule.entries.items():
        assert len(listed[entry]["launches"]) == sum(len(launch.nests) for launch in scheduled.launches) > 0


@here
def test_weights_stay_and_only_what_was_asked_for_moves(compiled: Compiled, device: OpenclDevice) -> None:
    x, y = batch(compiled)
    state_bytes = sum(tensor.type.size_bytes for tensor in compiled.program.state)
    with device.load(compiled) as session:
        for _ in range(3):
            session.step(x, y)
            moved = session.transferred.last
            assert (moved.input_bytes, moved.output_bytes) == (x.nbytes + y.nbytes, 4)
            assert moved.state_to_device_bytes == moved.state_from_device_bytes == 0
            session.update()
            assert session.transferred.last.to_device_bytes == session.transferred.last.from_device_bytes == 0
        total = session.transferred.total
        assert total.state_to_device_bytes == session.transferred.loaded.state_to_device_bytes == state_bytes
        expected = session.parameters()
    resident = Residency(inputs="device", outputs="device", gradients="device")
    with device.load(compiled, resident) as session:
        session.place("step", [x, y])
        for _ in range(3):
            session.launch("step")
            assert session.transferred.last.to_device_bytes == session.transferred.last.from_device_bytes == 0
            session.update()
        assert session.outputs("step")[0].shape == ()
        for name, array in session.parameters().items():
            np.testing.assert_array_equal(array, expected[name])


@here
def test_times_come_from_the_devices_own_clock(compiled: Compiled, device: OpenclDevice) -> None:
    x, y = batch(compiled)
    session = device.load(compiled)
    before = session.parameters()
    measured = session.measure("step", [x, y], repeat=3, warmup=1)
    assert measured.values.shape == (3, 3) and (measured.values > 0).all()
    assert (measured.of("compute_seconds") < measured.of("wall_seconds")).all()
    for name, array in session.parameters().items():
        np.testing.assert_array_equal(array, before[name])
    with pytest.raises(UserError, match="does not count 'cycles'"):
        session.measure("step", [x, y], counters=["cycles"])
    with pytest.raises(VerificationError, match="off by"):
        session.measure("infer", [x], expected={compiled.program.entries["infer"].outputs[0]: np.ones((1, 10))})


# ---- memory


@here
def test_copies_are_byte_exact_at_any_offset(device: OpenclDevice) -> None:
    content = np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8).tobytes()
    tensor = device.allocate(1003)
    device.fill_zero(tensor)
    device.copy_to(tensor, content, 3)
    assert device.copy_from(tensor) == bytes(3) + content
    assert device.copy_from(tensor, 5, 10) == content[7:12]
    device.fill_zero(tensor, 7, 501)
    assert device.copy_from(tensor, offset=3) == content[:498] + bytes(7) + content[505:]
    device.free(tensor)
    for misuse in (device.free, device.copy_from, device.fill_zero):
        with pytest.raises(UserError, match="freed already"):
            misuse(tensor)


@here
def test_a_device_that_is_too_small_says_the_budget(compiled: Compiled, device: OpenclDevice) -> None:
    device.memory_bytes = 4096
    with pytest.raises(DoesNotFit) as caught:
        device.load(compiled)
    plan = compiled.plan
    assert caught.value.exit_status == 2 and caught.value.message == "the memory of 'opencl:0' is too small"
    for size in (4096, plan.state_bytes, plan.arena_bytes):
        assert str(size) in f"{caught.value.expected} {caught.value.got}"
    assert device.live_bytes == 0
    device.memory_bytes, device.largest_buffer_bytes = 1 << 40, 2048
    with pytest.raises(DoesNotFit, match="2048 in one buffer"):
        device.load(compiled)
    with pytest.raises(DoesNotFit):
        device.allocate(2049)
    device.largest_buffer_bytes = 1 << 40
    session = device.load(compiled)
    assert device.live_bytes >= plan.state_bytes + plan.arena_bytes, "a program is on the device"
    session.close()
    assert device.live_bytes == 0


# ---- two devices


TWO_DEVICES = """
import json
from tests.schedule.programs import compiled_for
from tests.support.projects import batch
from tilegrad.devices.opencl import OpenclDevice
from tilegrad.errors import UserError
from tilegrad.targets import base as targets

compiled = compiled_for("simplemlp", targets.get("opencl"))
x, y = batch(compiled)
losses = {name: [] for name in OpenclDevice.names()}
with OpenclDevice("opencl:0") as first, OpenclDevice("opencl:1") as second:
    sessions = {device.identity: device.load(compiled) for device in (first, second)}
    for _ in range(3):
        for name, session in sessions.items():
            losses[name].append(session.step(x, y))
            session.update()
    refused = 0
    tensor = first.allocate(16)
    for misuse in (second.free, second.copy_from, second.fill_zero):
        try:
            misuse(tensor)
        except UserError as error:
            refused += "a tensor of 'opencl:0' cannot be used here" in error.message
print(json.dumps({"losses": losses, "refused": refused, "live": first.live_bytes + second.live_bytes}))
"""


@here
def test_two_devices_in_one_process(compiled: Compiled) -> None:
    """PoCL shows the processor as two devices if it is asked before it starts."""
    environment = {**os.environ, "POCL_DEVICES": "pthread basic", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES], env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    if "opencl:1" not in done.stdout and "index out of range" in done.stderr:
        pytest.skip("the OpenCL driver is not PoCL: there is one device")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    x, y = batch(compiled)
    with HostDevice() as host:
        session = host.load(compiled_for("simplemlp", targets.get("host")))
        expected = []
        for _ in range(3):
            expected.append(session.step(x, y))
            session.update()
    assert found == {"losses": {"opencl:0": expected, "opencl:1": expected}, "refused": 3, "live": 0}


# ---- the folder


def test_the_folder_is_complete_and_stable(tilegrad: CommandLine, tmp_path: Path) -> None:
    """Needs no OpenCL."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        assert tilegrad("compile", "simplemlp", "--device", "opencl:0", "-o", folder).status == 0
    one, two = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert one == two
    assert set(one) == {"README.md", "kernels.cl", "launches.json", "manifest.json", "run.py", "weights.bin"}
    launches = json.loads(one["launches.json"])
    assert set(launches["entries"]) == {"infer", "step", "update"}
    for entry in launches["entries"].values():
        for launch in entry["launches"]:
            kernel = launches["kernels"][launch["kernel"]]
            assert len(launch["operands"]) == len(kernel["operands"])
            assert list(launch["arguments"]) == [name for _, name in kernel["arguments"]]
            assert f"__kernel void {launch['kernel']}(" in one["kernels.cl"].decode()
    assert b'#include "' not in one["kernels.cl"].replace(b'#include "tg_fma.h"', b"")


@here
def test_the_folder_runs_without_tilegrad(tmp_path: Path) -> None:
    compiled = compiled_for("autoencoder_tiny", TARGET)
    compiled.write(tmp_path / "folder")
    batches = [batch(compiled, i) for i in range(4)]
    np.savez(
        tmp_path / "data.npz", x=np.concatenate([x for x, _ in batches]), y=np.concatenate([y for _, y in batches])
    )
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "folder" / "run.py"), "data.npz"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    losses = tuple(map(float, done.stdout.split()))
    assert repr(losses).encode() == host_state("autoencoder_tiny", 4)["losses"]


def test_infinite_arguments_are_json() -> None:
    """Clip without bounds."""
    proto = model([node("Clip", "x", "y", "/clip")], [value("x", [1, 4])], [value("y", [1, 4])], {})
    compiled = compile_inference(tg.load(proto), tg.Recipe(), TARGET)
    text = compiled.project.files["launches.json"].decode()
    assert "Infinity" not in text and "NaN" not in text
    json.loads(text)


# ---- failures


@here
def test_train_from_the_command_line(tilegrad: CommandLine) -> None:
    answer = tilegrad("train", "simplemlp", "--device", "opencl:0", "--steps", "2", "--no-verify", "--json", "-")
    assert answer.status == 0, answer.err
    found = answer.json
    assert (found["device"], found["target"], found["cycles"]["step"]) == ("opencl:0", "opencl", None)
    assert repr(tuple(found["losses"])).encode() == host_state("simplemlp", 2)["losses"]


def test_a_device_that_is_not_there(tilegrad: CommandLine) -> None:
    answer = tilegrad("train", "simplemlp", "--device", "opencl:77")
    assert answer.status == 2 and "there is no device 'opencl:77'" in answer.err and "opencl:0" in answer.err


def test_no_pyopencl_names_the_packages(monkeypatch: pytest.MonkeyPatch, tilegrad: CommandLine) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        opencl.importlib.util, "find_spec", lambda name, *rest: None if name == "pyopencl" else find(name, *rest)
    )
    opencl._drivers.cache_clear()
    try:
        assert "opencl:0" in device_names()
        answer = tilegrad("train", "simplemlp", "--device", "opencl:0", "--steps", "1")
        assert tilegrad("devices").status == 0
    finally:
        opencl._drivers.cache_clear()
    assert answer.status == 3
    for word in ("pyopencl", "pocl-binary-distribution", "opencl:0"):
        assert word in answer.err


@pytest.mark.skipif(importlib.util.find_spec("pyopencl") is None, reason="pyopencl is not installed")
def test_no_driver_names_the_packages(tmp_path: Path) -> None:
    environment = {"OCL_ICD_VENDORS": str(tmp_path / "none")}
    answer = finish(start("train", "simplemlp", "--device", "opencl:0", "--steps", "1", environment=environment))
    assert (
        answer.status == 3
        and "no OpenCL driver has a device" in answer.err
        and "pocl-binary-distribution" in answer.err
    )


@here
def test_a_driver_without_our_arithmetic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        name = "GPU of old"
        single_fp_config = 2 | 4  # infinities, rounding to nearest: what OpenCL demands at least

    monkeypatch.setattr(opencl, "_drivers", lambda: ((Driver(),), None))
    with pytest.raises(DeviceError, match="GPU of old keeps no subnormals") as caught:
        open_device("opencl:0")
    assert caught.value.exit_status == 3


@here
def test_the_compilers_words_are_shown(
    compiled: Compiled, device: OpenclDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = {**compiled.project.files, "kernels.cl": b"__kernel void run_copy_b1() { undeclared = 1; }\n"}
    with pytest.raises(DeviceError) as caught:
        device.load(replace(compiled, project=replace(compiled.project, files=files)))
    assert caught.value.exit_status == 3 and "undeclared" in str(caught.value.got)
    (folder,) = tmp_path.glob("tilegrad-*")
    assert caught.value.hint == f"the folder is '{folder}'" and "undeclared" in (folder / "kernels.cl").read_text()
    assert device.live_bytes == 0


@here
def test_a_label_outside_the_classes_computes_nothing(compiled: Compiled, device: OpenclDevice) -> None:
    x, y = batch(compiled)
    session = device.load(compiled)
    session.step(x, y)
    before = session.gradients()
    for label in (-1, 10):
        with pytest.raises(UserError, match="a label is outside the classes"):
            session.step(x, np.full_like(y, label))
    for name, array in session.gradients().items():
        np.testing.assert_array_equal(array, before[name])


@here
def test_a_program_for_another_target_is_refused(device: OpenclDevice) -> None:
    with pytest.raises(UserError, match="compiled for target 'host'"):
        device.load(compiled_for("simplemlp", targets.get("host")))


@here
def test_a_model_of_views_alone(device: OpenclDevice) -> None:
    proto = model([node("Flatten", "x", "y", "/flatten")], [value("x", [1, 2, 3])], [value("y", [1, 6])], {})
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    with device.load(compile_inference(tg.load(proto), tg.Recipe(), TARGET)) as session:
        np.testing.assert_array_equal(session.infer(x), x.reshape(1, 6))
