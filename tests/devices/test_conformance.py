"""One suite for every device: the same models, the same bits, the same failures. What is absent is skipped by name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.devices.conformance import (
    CRASH,
    HANG,
    MODELS,
    STEPS,
    Subject,
    all_devices,
    bits,
    check_failure,
    faulty,
    images,
    interrupt,
    is_over,
    present,
    process_of,
    reference_run,
    wait_until_busy,
)
from tests.schedule.programs import compiled_for
from tests.support.projects import batch, state_of
from tilegrad.build.workspace import PREFIX
from tilegrad.compiled import Compiled
from tilegrad.data.samples import infer_inputs, make_batches
from tilegrad.devices.accelerator import AcceleratorDevice
from tilegrad.devices.base import Device
from tilegrad.devices.embedded import EmbeddedDevice
from tilegrad.devices.measure import COUNTERS
from tilegrad.devices.residency import Residency, Transfer
from tilegrad.errors import DeviceError, DoesNotFit, UserError, VerificationError
from tilegrad.ir.program import Role
from tilegrad.targets import base as targets
from tilegrad.training.train import train

every_device = pytest.mark.parametrize("subject", present())
every_accelerator = pytest.mark.parametrize("subject", present(AcceleratorDevice))
every_board = pytest.mark.parametrize("subject", present(EmbeddedDevice))
every_process = pytest.mark.parametrize("subject", present(has_process=True))
"""Where a crash is survived; elsewhere programs run inside this process."""


@pytest.fixture
def device(subject: Subject) -> Iterator[Device]:
    with subject.open() as opened:
        yield opened


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place for temporary files, empty."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def initial(compiled: Compiled) -> dict[str, np.ndarray]:
    return {tensor.name: tensor.initial.array for tensor in compiled.program.trainable if tensor.initial is not None}


@pytest.mark.parametrize("subject", all_devices())
def test_a_device_is_here(subject: Subject) -> None:
    """The one place where absent devices are told, so that a run's summary names each once."""
    with subject.open() as device:
        assert device.name == subject.name and subject.name in device.identity
        assert device.target_name == subject.kind.target_of(subject.name)


# ---- results


@pytest.mark.parametrize("model", MODELS)
@every_device
def test_losses_gradients_and_weights(subject: Subject, device: Device, model: str) -> None:
    """The host's bits; the host itself is judged by PyTorch, or by what takes its place where that is missing."""
    expected = reference_run(model)
    assert expected.verdict is not None and expected.verdict.verified
    run = train(subject.program(model), device, steps=STEPS, verify=False)
    assert run.device == subject.name and bits(run) == bits(expected)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("subject", images())
def test_an_image_makes_the_same_bits(subject: Subject, device: Device, model: str) -> None:
    """It draws its samples itself, of any number of inputs and targets, and is an error where a bit is another."""
    run = train(subject.program(model), device, steps=STEPS, verify=False, keep_gradients=False)
    expected = reference_run(model)
    assert run.device == subject.name and run.losses == expected.losses
    assert run.weights_sha256 == expected.weights_sha256 and (run.cycles["step"] or 0) > 0


@every_device
def test_a_run_is_verified(subject: Subject, device: Device) -> None:
    run = train(subject.program("simplemlp"), device, steps=STEPS)
    assert run.verdict is not None and run.verdict.verified


@every_device
def test_infer(subject: Subject, device: Device) -> None:
    host = Subject("host")
    for model in MODELS:
        inputs = infer_inputs(host.program(model), make_batches(host.program(model), None).batch(0))
        with host.open() as other:
            expected = other.load(host.program(model)).infer(*inputs)
        session = device.load(subject.program(model))
        for _ in range(2):
            assert session.infer(*inputs).tobytes() == expected.tobytes()
        session.close()


@every_device
def test_state_is_what_was_written(subject: Subject, device: Device) -> None:
    """Every tensor takes any bits and gives them back, and no other tensor changes; constants in flash take none."""
    compiled = subject.program("odd_cnn")
    session = device.load(compiled)
    expected = state_of(session)
    random = np.random.default_rng(0)
    for tensor in compiled.program.state:
        array = np.frombuffer(random.bytes(tensor.type.size_bytes), tensor.type.dtype.numpy).reshape(tensor.type.shape)
        if compiled.plan.is_read_only(tensor.name):
            with pytest.raises(UserError, match="a constant of the program"):
                session.write(tensor.name, array)
            continue
        session.write(tensor.name, array)
        expected[tensor.name] = array.tobytes()
    assert state_of(session) == expected


@every_device
def test_parameters_can_be_put_back(subject: Subject, device: Device) -> None:
    compiled = subject.program("simplemlp")
    x, y = batch(compiled)
    session = device.load(compiled)
    start = session.parameters()
    assert {name: array.tobytes() for name, array in start.items()} == {
        name: array.tobytes() for name, array in initial(compiled).items()
    }
    losses = []
    for _ in range(2):
        losses.append(session.step(x, y))
        session.update()
        losses.append(session.step(x, y))
        session.update()
        session.set_parameters(start)
    assert losses[:2] == losses[2:] and losses[1] < losses[0]


@every_device
def test_wrong_input_is_refused_and_changes_nothing(subject: Subject, device: Device) -> None:
    compiled = subject.program("simplemlp")
    x, y = batch(compiled)
    session = device.load(compiled)
    before = state_of(session)
    for text, call in (
        ("input 'input' of step has a wrong shape", lambda: session.step(x[0], y)),
        ("input 'labels' of step has a wrong element type", lambda: session.step(x, [1.5])),
        ("a label is outside the classes", lambda: session.step(x, [10])),
        ("a label is outside the classes", lambda: session.step(x, [-1])),
        ("the program has no tensor 'fc1.wight'", lambda: session.read("fc1.wight")),
        ("tensor 'fc1.bias' has a wrong shape", lambda: session.write("fc1.bias", np.zeros(9))),
        ("there is no entry 'train'", lambda: session.launch("train", [])),
    ):
        with pytest.raises(UserError, match=text):
            call()
    assert state_of(session) == before
    assert session.step(x, y) > 0


@every_device
def test_a_program_for_another_target(subject: Subject, device: Device) -> None:
    other = next(name for name in ("host", "mcu") if name != subject.kind.target_of(subject.name))
    with pytest.raises(UserError) as caught:
        device.load(compiled_for("simplemlp", targets.get(other)))
    assert caught.value.message == f"the program is compiled for target '{other}', not for device '{subject.name}'"


# ---- residency


@every_device
def test_steps_move_inputs_and_losses_and_no_weights(subject: Subject, device: Device) -> None:
    compiled = subject.program("simplemlp")
    x, y = batch(compiled)
    session = device.load(compiled)
    assert session.transferred.total.state_to_device_bytes == sum(t.type.size_bytes for t in compiled.program.state)
    for _ in range(3):
        session.step(x, y)
        assert session.transferred.last == Transfer(input_bytes=x.nbytes + y.nbytes, output_bytes=4)
        session.update()
        assert session.transferred.last == Transfer()


@every_device
def test_inputs_outputs_and_gradients_have_their_place(subject: Subject, device: Device) -> None:
    compiled = subject.program("simplemlp")
    x, y = batch(compiled)
    size = sum(tensor.type.size_bytes for tensor in compiled.program.with_role(Role.GRADIENT))
    usual = device.load(compiled)
    session = device.load(compiled, Residency(inputs="device", outputs="device", gradients="host"))
    session.place("step", [x, y])
    for _ in range(2):
        expected = usual.step(x, y)
        session.launch("step")
        assert session.transferred.last == Transfer(state_from_device_bytes=size), "gradients alone"
        assert session.outputs("step")[0] == np.float32(expected)
        assert session.transferred.last == Transfer(output_bytes=4, state_from_device_bytes=size)
        gradients = {name: array.tobytes() for name, array in session.gradients().items()}
        assert gradients == {name: array.tobytes() for name, array in usual.gradients().items()}
        usual.update()
        session.update()
        assert session.transferred.last == Transfer()
    assert state_of(session) == state_of(usual)


@every_device
def test_single_tensors_have_their_place(subject: Subject, device: Device) -> None:
    """Of a step the first input stays, and one gradient comes; of two outputs one stays until it is asked for."""
    compiled = subject.program("two_heads")
    (inputs,) = make_batches(compiled, None).first(1)
    names, outputs = compiled.program.entries["step"].inputs, compiled.program.entries["infer"].outputs
    parameter = compiled.program.trainable[0]
    usual = device.load(compiled)
    session = device.load(compiled, Residency({names[0]: "device", outputs[0]: "device", parameter.name: "host"}))
    session.place("step", {names[0]: inputs[0]})
    assert session.transferred.last == Transfer(input_bytes=inputs[0].nbytes)
    rest = dict(zip(names[1:], inputs[1:], strict=True))
    size = sum(array.nbytes for array in rest.values())
    for given in (rest, [None, *inputs[1:]]):
        expected = usual.step(*inputs)
        session.launch("step", given)
        moved = Transfer(input_bytes=size, output_bytes=4, state_from_device_bytes=parameter.type.size_bytes)
        if compiled.program.is_fused:  # copies that the program does not need are not counted
            moved = replace(moved, state_from_device_bytes=0)
        assert session.transferred.last == moved
        assert session.outputs("step")[0] == np.float32(expected)
        gradients = {name: array.tobytes() for name, array in session.gradients().items()}
        assert gradients == {name: array.tobytes() for name, array in usual.gradients().items()}
        usual.update()
        session.update()
    data = inputs[: len(compiled.program.entries["infer"].inputs)]
    made = usual.run("infer", data)
    session.launch("infer", data)
    assert session.transferred.last.output_bytes == sum(array.nbytes for array in made[1:])
    (kept,) = session.outputs("infer", outputs[:1])
    assert kept.tobytes() == made[0].tobytes()
    assert session.transferred.last.output_bytes == sum(array.nbytes for array in made)
    assert state_of(session) == state_of(usual)


# ---- measuring


@every_device
def test_measuring(subject: Subject, device: Device) -> None:
    compiled = subject.program("simplemlp")
    x, y = batch(compiled)
    session = device.load(compiled)
    before = state_of(session)
    measured = session.measure("step", [x, y], repeat=3, warmup=1)
    assert measured.counters == device.counters == session.counters
    assert measured.values.shape == (3, len(device.counters)) and (measured.values >= 0).all()
    assert {"wall_seconds", "compute_seconds", "transfer_seconds"} <= set(device.counters) <= set(COUNTERS)
    for counted in {"cycles", "instructions"} & set(device.counters):
        assert (measured.of(counted) == measured.of(counted)[0]).all() and measured.of(counted)[0] > 0
    assert state_of(session) == before
    for lacking in {*COUNTERS, "joules"} - set(device.counters):
        with pytest.raises(UserError, match=f"the device does not count '{lacking}'"):
            session.measure("step", [x, y], counters=[lacking])
    with pytest.raises(VerificationError, match="there is no time for a wrong result"):
        session.measure("step", [x, y], expected={compiled.program.entries["step"].outputs[0]: 0.5})
    assert session.measure("update", [], repeat=2).values.shape == (2, len(device.counters))


# ---- many of them


@every_device
def test_two_sessions_at_once(subject: Subject, device: Device) -> None:
    compiled = subject.program("simplemlp")
    x, y = batch(compiled)
    first, second = device.load(compiled), device.load(compiled)
    untouched = state_of(second)
    losses = []
    for _ in range(3):
        losses.append(first.step(x, y))
        first.update()
    assert state_of(second) == untouched
    for loss in losses:
        assert second.step(x, y) == loss
        second.update()
    assert state_of(first) == state_of(second)


@pytest.mark.slow
@pytest.mark.timeout(900)
@every_device
def test_a_hundred_loads(subject: Subject, device: Device, scratch: Path) -> None:
    """Nothing is left of a closed session: no process, no folder, no open file, no memory.

    A hundred on the host, fewer on the first device of each other kind, ten on its siblings, which are the same code.
    """
    compiled = subject.program("simplemlp")
    x, y = batch(compiled)
    losses, files = set(), 0
    for _ in range(100 if subject.name == "host" else 30 if subject.name == subject.kind.names()[0] else 10):
        with device.load(compiled) as session:
            losses.add(session.step(x, y))
        assert not device.capabilities.has_process or is_over(process_of(session))
        assert list(scratch.glob(f"{PREFIX}*")) == []
        assert not isinstance(device, AcceleratorDevice) or device.live_bytes == 0
        files = files or len(list(Path("/proc/self/fd").iterdir()))
    assert len(losses) == 1
    assert len(list(Path("/proc/self/fd").iterdir())) <= files + 2


@every_device
def test_closing_the_device_closes_its_sessions(subject: Subject, scratch: Path) -> None:
    compiled = subject.program("simplemlp")
    x, y = batch(compiled)
    with pytest.raises(KeyError), subject.open() as device:
        sessions = [device.load(compiled) for _ in range(2)]
        sessions[0].close()
        sessions[0].close()  # once more is no error
        raise KeyError
    device.close()
    for session in sessions:
        if device.capabilities.has_process:
            assert is_over(process_of(session))
        with pytest.raises((DeviceError, UserError)):
            session.step(x, y)
    assert list(scratch.glob(f"{PREFIX}*")) == []


# ---- failures


@every_process
def test_a_crash(subject: Subject, device: Device, scratch: Path) -> None:
    compiled = faulty(subject.program("simplemlp"), CRASH)
    session = device.load(compiled)
    session.step(*batch(compiled))
    with pytest.raises(DeviceError) as caught:
        session.update()
    check_failure(caught.value, process_of(session), "ended before it answered")
    with pytest.raises(DeviceError) as again:
        session.infer(batch(compiled)[0])
    assert str(again.value) == str(caught.value)
    session.close()
    assert process_of(session).folder.exists(), "kept"
    assert device.load(subject.program("simplemlp")).step(*batch(compiled)) > 0, "the device goes on"


@every_process
def test_a_hang(subject: Subject, device: Device, scratch: Path) -> None:
    session = device.load(faulty(subject.program("simplemlp"), HANG))
    transport = process_of(session)
    session.timeout_seconds = 1.0  # type: ignore[attr-defined]
    with pytest.raises(DeviceError) as caught:
        session.update()
    check_failure(caught.value, transport, "did not answer in time")


@every_process
def test_an_interrupted_run(subject: Subject, device: Device, scratch: Path) -> None:
    session = device.load(faulty(subject.program("simplemlp"), HANG))
    transport = process_of(session)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.update)
        wait_until_busy(transport)
        interrupt(transport)
        with pytest.raises(DeviceError) as caught:
            running.result(timeout=60)
    check_failure(caught.value, transport, "ended before it answered")


# ---- by what it adds


@every_accelerator
def test_memory(subject: Subject, device: AcceleratorDevice) -> None:
    content = np.random.default_rng(0).bytes(1_000_003)
    tensor, other = device.allocate(len(content)), device.allocate(7)
    device.copy_to(tensor, content)
    device.fill_zero(other)
    assert device.copy_from(tensor) == content and device.copy_from(other) == bytes(7)
    device.fill_zero(tensor, 5, offset=3)
    device.copy_to(tensor, b"\xff", offset=6)
    assert device.copy_from(tensor, 12) == content[:3] + b"\0\0\0\xff\0" + content[8:12]
    assert device.copy_from(tensor, offset=12) == content[12:]
    assert device.live_bytes == len(content) + 7
    device.free(other)
    for use in (device.free, device.copy_from, device.fill_zero):
        with pytest.raises(UserError, match="freed already"):
            use(other)
    with subject.open() as second:
        assert isinstance(second, AcceleratorDevice)
        with pytest.raises(UserError, match="cannot be used here"):
            second.copy_from(tensor)
    device.load(subject.program("simplemlp"))
    device.close()
    assert device.live_bytes == 0
    with pytest.raises(UserError):
        device.copy_from(tensor)


@every_board
def test_image(subject: Subject, device: EmbeddedDevice, tmp_path: Path) -> None:
    image = device.build(subject.program("simplemlp"), tmp_path)
    assert image.path.is_file() and image.path.parent == tmp_path
    sections = image.sections
    assert min(sections.text_bytes, sections.bss_bytes, sections.stack_bytes) > 0
    transport = device.start(image)
    assert transport.console() == "" and transport.wait(0.0) is None
    assert transport.kill() != 0
    transport.close()
    shutil.rmtree(tmp_path)


# ---- the long runs

TWENTY_STEPS = ("simplemlp", "autoencoder_tiny", "dscnn", "cct")


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", TWENTY_STEPS)
@every_device
def test_twenty_steps_on_one_core_and_on_all(subject: Subject, device: Device, model: str) -> None:
    """The host's bits; a model that is too large for a device is refused with the budget."""
    for cores in sorted({1, targets.get(subject.kind.target_of(subject.name)).cores}):
        try:
            compiled = subject.program(model, cores)
        except DoesNotFit as error:
            assert error.expected is not None and error.got is not None
            continue
        assert bits(train(compiled, device, steps=20, verify=False)) == bits(reference_run(model, 20))
