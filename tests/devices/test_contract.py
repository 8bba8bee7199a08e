"""The contract itself: registration, memory handles, residency, measuring, and the device that runs nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilegrad as tg
from tests.devices.devices import MemoryDevice
from tests.support.command_line import CommandLine
from tests.support.projects import batch, opened, state_of, zoo_model
from tilegrad.compiled import Compiled
from tilegrad.devices import registry
from tilegrad.devices.accelerator import AcceleratorDevice
from tilegrad.devices.base import Capabilities, Device, Session
from tilegrad.devices.embedded import EmbeddedDevice, Image, Sections
from tilegrad.devices.host import HostDevice
from tilegrad.devices.null import NullDevice
from tilegrad.devices.residency import Residency, Transfer
from tilegrad.errors import DeviceError, UserError, VerificationError
from tilegrad.ir.program import Role


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return zoo_model("simplemlp")


# ---- registration


@pytest.fixture
def memory_kind() -> Iterator[None]:
    registry.register(MemoryDevice)
    yield
    registry.unregister("memory")


def test_an_incomplete_device_cannot_be_registered() -> None:
    class Half(Device):
        kind = "half"

        @classmethod
        def names(cls) -> tuple[str, ...]:
            return ("half",)

    class NoMemory(AcceleratorDevice):
        kind = "none"
        capabilities = Capabilities()

    class NoImage(EmbeddedDevice):
        kind = "none"
        capabilities = Capabilities()

    for incomplete, lacking in (
        (Half, ("_load()", "missing()", "target_of()", "capabilities")),
        (NoMemory, ("_allocate()", "_free()", "_copy_to()", "_copy_from()", "_fill_zero()")),
        (NoImage, ("build()", "start()")),
    ):
        with pytest.raises(UserError) as caught:
            registry.register(incomplete)
        assert incomplete.__name__ in caught.value.message and caught.value.got is not None
        assert all(f"no {what}" in caught.value.got for what in lacking)
    assert {"half", "none"}.isdisjoint(kind.kind for kind in registry.kinds())


def test_a_kind_is_registered_once(memory_kind: None) -> None:
    class Another(MemoryDevice):
        pass

    with pytest.raises(UserError, match="there is a device 'memory' already"):
        registry.register(Another)
    assert registry.register(MemoryDevice) is MemoryDevice


def test_every_device_registered_is_complete() -> None:
    kinds = registry.kinds()
    assert {"host", "null", "sim"} <= {kind.kind for kind in kinds} and kinds[0] is HostDevice
    names = registry.device_names()
    assert len(set(names)) == len(names)
    for kind in kinds:
        for name in kind.names():
            assert name.partition(":")[0] == kind.kind and registry.device_kind(name) is kind
            reason = kind.missing(name)
            assert reason is None or reason, name


def test_the_list_says_why_a_device_cannot_be_used(memory_kind: None, tilegrad: CommandLine) -> None:
    rows = {row["name"]: row for row in tilegrad("devices", "--json", "-").json["devices"]}
    assert rows["memory:0"]["usable"] and rows["memory:0"]["reason"] is None
    assert not rows["memory:1"]["usable"] and rows["memory:1"]["reason"] == "it is switched off"
    assert "no: it is switched off" in tilegrad("devices").out
    answer = tilegrad("train", "simplemlp", "--device", "memory:1")
    assert answer.status == 3 and "device 'memory:1' cannot be used here: it is switched off" in answer.err
    answer = tilegrad("train", "simplemlp", "--device", "memory:2")
    assert answer.status == 2 and "did you mean 'memory:" in answer.err


def test_a_busy_device(memory_kind: None, tilegrad: CommandLine) -> None:
    """Also for another process; and free again when its holder is gone, however it went."""
    script = (
        "import sys\nfrom tests.devices.devices import MemoryDevice\n"
        "device = MemoryDevice()\nprint('open', flush=True)\nsys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdin is not None
    assert holder.stdout.readline() == "open\n"
    answer = tilegrad("train", "simplemlp", "--device", "memory:0")
    assert answer.status == 3 and "device 'memory:0' is busy" in answer.err
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    with MemoryDevice(), pytest.raises(DeviceError, match="is busy"):
        MemoryDevice()
    assert tilegrad("train", "simplemlp", "--device", "memory:0").status == 0


# ---- memory


def test_memory_is_byte_exact() -> None:
    with MemoryDevice() as device:
        assert isinstance(device, MemoryDevice)
        tensor = device.allocate(10)
        device.fill_zero(tensor)
        assert device.copy_from(tensor) == bytes(10)
        device.copy_to(tensor, b"\x01\x02\x03", offset=4)
        assert device.copy_from(tensor) == b"\0\0\0\0\x01\x02\x03\0\0\0"
        assert device.copy_from(tensor, 2, offset=5) == b"\x02\x03"
        device.fill_zero(tensor, 1, offset=5)
        assert device.copy_from(tensor, 3, offset=4) == b"\x01\0\x03"
        array = np.arange(6, dtype=np.int16).reshape(2, 3).T[:, 1:]  # neither contiguous nor of bytes
        device.copy_to(tensor, array)
        assert device.copy_from(tensor, 6) == array.tobytes()
        device.copy_to(tensor, np.float32(1.5).reshape(()))
        assert device.copy_from(tensor, 4) == np.float32(1.5).tobytes()
        assert device.copy_from(tensor, 0) == b""
        device.copy_to(tensor, b"", offset=10)
        device.copy_to(tensor, np.zeros((0, 3), np.float32))


def test_live_bytes() -> None:
    with MemoryDevice() as device:
        assert isinstance(device, MemoryDevice)
        sizes = (1, 0, 1000)
        tensors = [device.allocate(size) for size in sizes]
        assert device.live_bytes == device.raw_bytes == 1001
        device.free(tensors[2])
        device.free(tensors[1])
        assert device.live_bytes == device.raw_bytes == 1
    assert device.live_bytes == device.raw_bytes == 0
    device.close()


def test_handles_that_cannot_be_used() -> None:
    with MemoryDevice() as device:
        assert isinstance(device, MemoryDevice)
        freed, alive = device.allocate(4), device.allocate(4)
        device.free(freed)
        with MemoryDevice("memory:1") as other:
            assert isinstance(other, MemoryDevice)
            foreign = other.allocate(4)
            for tensor, words in ((freed, "freed already"), (foreign, "a tensor of 'memory:1' cannot be used here")):
                for use in (
                    lambda t: device.free(t),
                    lambda t: device.copy_to(t, b"1234"),
                    lambda t: device.copy_from(t),
                    lambda t: device.fill_zero(t),
                    lambda t: device.check_owned(t),
                ):
                    with pytest.raises(UserError, match=words):
                        use(tensor)
            assert other.copy_from(foreign) == b"\xa5" * 4
        for offset, size in ((0, 5), (-1, 2), (4, 1), (2, -1)):
            with pytest.raises(UserError, match="a copy leaves its memory"):
                device.copy_from(alive, size, offset)
        with pytest.raises(UserError, match="cannot have that size"):
            device.allocate(-1)
        assert device.live_bytes == 4
    for use in (lambda: device.copy_from(alive), lambda: device.free(alive), lambda: device.allocate(1)):
        with pytest.raises(UserError):
            use()


# ---- residency


@pytest.mark.parametrize("place", ["inputs", "outputs", "gradients"])
def test_a_place_that_does_not_exist(place: str) -> None:
    with pytest.raises(UserError, match=f"{place} cannot be placed there"):
        Residency(**{place: "moon"})


def test_a_tensor_that_does_not_exist(compiled: Compiled) -> None:
    with HostDevice() as device:
        for load in (
            lambda: device.load(compiled, Residency({"inputs": "device"})),
            lambda: tg.compile("simplemlp", residency=Residency({"inputs": "device"})),
        ):
            with pytest.raises(UserError) as caught:
                load()
            assert caught.value.message == "'inputs' is no input, output or gradient of 'simplemlp'"
            assert caught.value.expected == (
                "'input', 'labels', 'output', 'loss', 'fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias'"
            )
            assert caught.value.hint == "did you mean 'input'?"
        session = device.load(compiled, Residency({"input": "device"}))
        x, y = batch(compiled)
        for message, call in (
            ("input 'input' of step is not on the device", lambda: session.launch("step", {"labels": y})),
            ("input 'labels' lives on the host", lambda: session.launch("step", {"input": x})),
            ("input 'labels' lives on the host", lambda: session.place("step", [x, y])),
            ("step has no input 'x'", lambda: session.launch("step", {"x": x})),
            ("step has a wrong number of inputs", lambda: session.launch("step", [x])),
        ):
            with pytest.raises(UserError, match=message):
                call()
        session.step(x, y)
        with pytest.raises(UserError, match="step has no output 'los'"):
            session.outputs("step", ["los"])


@pytest.mark.parametrize("wrong", [{"input": "moon"}, "device", ["input"]])
def test_a_residency_that_is_none(wrong: Any) -> None:
    with pytest.raises(UserError, match=r"cannot be placed there|tensors are placed by name"):
        Residency(wrong)


def test_a_program_knows_its_residency(compiled: Compiled) -> None:
    program = tg.compile("simplemlp", residency=Residency({"input": "device"}))
    x, y = batch(compiled)
    with HostDevice() as device:
        session = device.load(program)
        session.step(x, y)
        session.launch("step", {"labels": y})
        assert session.transferred.last == Transfer(input_bytes=y.nbytes, output_bytes=4)
        session.infer(x)
        with pytest.raises(UserError, match="input 'input' of step is not on the device"):
            session.launch("step", {"labels": y})


def test_several_devices_keep_no_inputs(compiled: Compiled) -> None:
    with tg.open_device("host*2") as devices, pytest.raises(UserError) as caught:
        devices.load(compiled, Residency({"input": "device"}))
    assert caught.value.message == "input 'input' cannot stay on a device where several compute shares"


def test_inputs_that_stay_are_sent_once(compiled: Compiled) -> None:
    x, y = batch(compiled)
    with HostDevice() as device:
        with device.load(compiled) as usual:
            losses = [usual.step(x, y), usual.step(x, y)]
            logits = usual.infer(x)
        session = device.load(compiled, Residency(inputs="device"))
        with pytest.raises(UserError, match="no inputs of step are on the device"):
            session.step()
        session.place("step", [x, y])
        assert session.transferred.last == Transfer(input_bytes=x.nbytes + y.nbytes)
        for loss in losses:
            assert session.step() == loss
            assert session.transferred.last == Transfer(output_bytes=4)
        session.update()
        assert session.transferred.last == Transfer()
        session.step()
        session.set_parameters({t.name: t.initial.array for t in compiled.program.trainable if t.initial is not None})
        assert session.infer(x).tobytes() == logits.tobytes()
        assert session.infer().tobytes() == logits.tobytes()
        with pytest.raises(UserError, match="no inputs of step are on the device"):
            session.step()
        with pytest.raises(UserError, match="both data and target"):
            session.step(x)


def test_inputs_of_the_host_come_with_every_call(compiled: Compiled) -> None:
    x, y = batch(compiled)
    with opened(compiled) as session:
        session.step(x, y)
        for call in (lambda: session.step(), lambda: session.place("step", [x, y])):
            with pytest.raises(UserError, match="inputs live on the host"):
                call()
        session.step(x, y)
        assert session.transferred.last.input_bytes == x.nbytes + y.nbytes


def test_outputs_that_stay_come_when_asked_for(compiled: Compiled) -> None:
    x, y = batch(compiled)
    with HostDevice() as device:
        loss, logits = device.load(compiled).step(x, y), device.load(compiled).infer(x)
        session = device.load(compiled, Residency(outputs="device"))
        session.launch("infer", [x])
        assert session.transferred.last.from_device_bytes == 0
        session.launch("step", [x, y])
        assert session.transferred.last.from_device_bytes == 0
        session.launch("update", [])
        for _ in range(2):
            assert session.outputs("step")[0] == np.float32(loss)
            assert session.transferred.last.from_device_bytes == 4
        with pytest.raises(UserError, match="no outputs of infer are on the device"):
            session.outputs("infer")
        session.set_parameters({t.name: t.initial.array for t in compiled.program.trainable if t.initial is not None})
        assert session.infer(x).tobytes() == logits.tobytes()


def test_gradients_of_the_host_come_with_every_step(compiled: Compiled) -> None:
    x, y = batch(compiled)
    size = sum(tensor.type.size_bytes for tensor in compiled.program.with_role(Role.GRADIENT))
    with HostDevice() as device:
        usual, session = device.load(compiled), device.load(compiled, Residency(gradients="host"))
        for steps in range(2):
            usual.step(x, y)
            assert usual.transferred.last.state_from_device_bytes == 0
            session.step(x, y)
            assert session.transferred.last.state_from_device_bytes == size, steps
            for name, gradient in usual.gradients().items():
                assert session.gradients()[name].tobytes() == gradient.tobytes()
            assert session.transferred.last.state_from_device_bytes == size, "they are here already"
        session.gradients()["fc1.bias"][:] = 0.0
        assert session.gradients()["fc1.bias"].tobytes() == usual.gradients()["fc1.bias"].tobytes(), "a copy"


def test_steps_move_no_weights(compiled: Compiled) -> None:
    """They are placed once, when the program is loaded."""
    x, y = batch(compiled)
    size = sum(tensor.type.size_bytes for tensor in compiled.program.state)
    with opened(compiled) as session:
        assert session.transferred.loaded == session.transferred.total == Transfer(state_to_device_bytes=size)
        for _ in range(3):
            session.step(x, y)
            assert session.transferred.last == Transfer(input_bytes=x.nbytes + y.nbytes, output_bytes=4)
            session.update()
            assert session.transferred.last == Transfer()
        total = session.transferred.total
        assert total.to_device_bytes == size + 3 * (x.nbytes + y.nbytes) and total.from_device_bytes == 12
        session.set_parameters(session.parameters())
        parameters = sum(tensor.type.size_bytes for tensor in compiled.program.trainable)
        assert session.transferred.last == Transfer(0, 0, parameters, parameters)


# ---- measuring


@pytest.mark.parametrize("entry", ["infer", "step", "update"])
def test_measuring_gives_a_row_for_each_call_and_changes_nothing(compiled: Compiled, entry: str) -> None:
    x, y = batch(compiled)
    inputs: Sequence[Any] = {"infer": [x], "step": [x, y], "update": []}[entry]
    with opened(compiled) as session:
        session.step(x, y)
        before = state_of(session)
        measured = session.measure(entry, inputs, repeat=5, warmup=2)
        assert state_of(session) == before
        assert measured.counters == session.counters == HostDevice.capabilities.counters
        assert measured.values.shape == (5, len(measured.counters)) and (measured.values >= 0).all()
        wall, compute = measured.of("wall_seconds"), measured.of("compute_seconds")
        assert (wall >= measured.of("transfer_seconds")).all() and (compute > 0).all()
        only = session.measure(entry, inputs, repeat=2, warmup=0, counters=["compute_seconds"])
        assert only.values.shape == (2, 1) and only.median("compute_seconds") > 0


def test_measuring_on_inputs_that_stay(compiled: Compiled) -> None:
    x, y = batch(compiled)
    with HostDevice() as device:
        session = device.load(compiled, Residency(inputs="device", outputs="device"))
        with pytest.raises(UserError, match="no inputs of step"):
            session.measure("step")
        session.place("step", [x, y])
        assert session.measure("step", repeat=3).values.shape == (3, 3)
        session.measure("update", [], repeat=1)
        assert session.step() > 0, "an entry without inputs leaves those of others"


def test_a_counter_that_the_device_lacks(compiled: Compiled) -> None:
    x, _ = batch(compiled)
    with opened(compiled) as session:
        for lacking in ("instructions", "cycles", "joules"):
            with pytest.raises(UserError) as caught:
                session.measure("infer", [x], counters=("wall_seconds", lacking))
            assert str(caught.value) == (
                f"the device does not count '{lacking}'\n"
                "  expected: wall_seconds or compute_seconds or transfer_seconds\n"
                f"  got: {lacking}"
            )
        for wrong in ({"repeat": 0}, {"warmup": -1}):
            with pytest.raises(UserError, match="cannot be used"):
                session.measure("infer", [x], **wrong)
        with pytest.raises(UserError, match="there is no entry 'train'"):
            session.measure("train", [x])


def test_a_wrong_result_has_no_time(compiled: Compiled) -> None:
    x, y = batch(compiled)
    with opened(compiled) as session:
        loss = session.step(x, y)
        gradient = session.gradients()["fc1.weight"]
        session.update()
        session.set_parameters({t.name: t.initial.array for t in compiled.program.trainable if t.initial is not None})
        names = {t.owner: t.name for t in compiled.program.with_role(Role.GRADIENT)}
        right = {compiled.program.entries["step"].outputs[0]: loss, names["fc1.weight"]: gradient}
        session.measure("step", [x, y], repeat=2, expected=right)
        wrong = gradient.copy()
        wrong.flat[17] += 0.25 * np.abs(gradient).max()
        before = state_of(session)
        with pytest.raises(VerificationError) as caught:
            session.measure("step", [x, y], repeat=2, expected=right | {names["fc1.weight"]: wrong})
        assert "there is no time for a wrong result" in str(caught.value)
        assert f"'{names['fc1.weight']}' is off by" in str(caught.value) and caught.value.exit_status == 1
        assert state_of(session) == before
        with pytest.raises(VerificationError, match="off by inf"):
            session.measure("step", [x, y], expected={names["fc1.weight"]: np.zeros(3)})
        with pytest.raises(UserError, match="step does not make"):
            session.measure("step", [x, y], expected={"fc1.weight": gradient})


def test_calls_that_differ_have_no_time(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that computes something else the third time."""
    x, _ = batch(compiled)
    with opened(compiled) as session:
        fetch, calls = session._fetch, iter(range(10))

        def flaky(entry: str, wanted: Sequence[int]) -> list[Any]:
            (logits,) = fetch(entry, wanted)
            return [logits if next(calls) < 2 else np.nextafter(logits, np.float32(9))]

        monkeypatch.setattr(session, "_fetch", flaky)
        with pytest.raises(VerificationError, match="call 3 of infer differs from the first"):
            session.measure("infer", [x], repeat=5)


def test_a_simulated_chip_counts_cycles() -> None:
    program = tg.compile(tg.load("simplemlp"), tg.Recipe(), target="siracusa")
    x, y = batch(program)
    with registry.open_device("sim:siracusa") as device:
        session = device.load(program)
        cycles = session.measure("step", [x, y], repeat=2, counters=["cycles"]).of("cycles")
    assert cycles[0] == cycles[1] > 1000


# ---- images


def test_sections() -> None:
    sections = Sections(text_bytes=100, data_bytes=8, bss_bytes=40, stack_bytes=16)
    assert sections.flash_bytes == 108 and sections.ram_bytes == 64
    assert Image(Path("a/b.elf"), sections).as_json() == {
        "path": "b.elf",
        "text_bytes": 100,
        "data_bytes": 8,
        "bss_bytes": 40,
        "stack_bytes": 16,
    }


# ---- null


def test_null_checks_and_gives_no_numbers(compiled: Compiled) -> None:
    x, y = batch(compiled)
    with NullDevice() as device:
        session: Session = device.load(compiled)
        for call in (
            lambda: session.step(x, y),
            lambda: session.update(),
            lambda: session.infer(x),
            lambda: session.parameters(),
            lambda: session.measure("infer", [x], counters=()),
        ):
            with pytest.raises(UserError, match="device 'null' runs nothing"):
                call()
        with pytest.raises(UserError, match="wrong shape"):
            session.step(x[0], y)
        with pytest.raises(UserError, match="does not count 'wall_seconds'"):
            session.measure("infer", [x], counters=["wall_seconds"])


def test_training_on_null_ends_after_compiling(tilegrad: CommandLine) -> None:
    answer = tilegrad("train", "simplemlp", "--device", "null")
    assert answer.status == 0 and "not verified: nothing was run" in answer.out
    assert "types and shapes of" in answer.out
    run = tilegrad("train", "simplemlp", "--device", "null", "--json", "-").json
    assert run["verified"] is None and run["losses"] == [] and run["weights_sha256"] is None
    for command in (("infer",), ("gradcheck",), ("train", "--save-weights", "w.npz"), ("compare",)):
        answer = tilegrad(command[0], "simplemlp", *command[1:], "--device", "null")
        assert answer.status == 2 and "null" in answer.err, answer.err
