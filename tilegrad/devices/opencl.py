"""Accelerators reached through OpenCL: `opencl:N` is the N-th device of all the drivers on this machine.

A program is two buffers that stay on the device and a list of kernels whose arguments were set when it was loaded; to
run an entry is to enqueue its kernels, in order. The driver works inside this process: a kernel that crashes takes
Python along, which is why these devices say `has_process=False`.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from tilegrad.codegen.harness import port_offsets
from tilegrad.codegen.interface import entry_inputs, entry_outputs
from tilegrad.codegen.kernels import collect_kernels
from tilegrad.codegen.opencl import BUILD_OPTIONS, KERNELS_FILE, KernelLaunch, buffer_bytes, opencl_program
from tilegrad.devices.accelerator import AcceleratorDevice, DeviceTensor
from tilegrad.devices.base import Array, Capabilities, Session, bad_label
from tilegrad.devices.measure import COMPUTE_SECONDS
from tilegrad.devices.registry import register
from tilegrad.devices.residency import Residency
from tilegrad.errors import DeviceError, DoesNotFit
from tilegrad.ir.program import ENTRIES, StateTensor
from tilegrad.pipeline import Compiled

WAIT_LIMIT_SECONDS = 600.0
LAST_WORDS = 12  # lines of a compiler's log that are shown
_PACKAGES = "PyPI: pip install 'tilegrad[opencl]', which is pyopencl and pocl-binary-distribution"


@cache
def _drivers() -> tuple[tuple[Any, ...], str | None]:
    """Every OpenCL device of this machine, and why there is none where there is none."""
    if importlib.util.find_spec("pyopencl") is None:
        return (), f"the Python package pyopencl is not installed ({_PACKAGES})"
    try:
        cl = importlib.import_module("pyopencl")
    except ImportError as error:
        return (), f"pyopencl cannot be imported: {error} ({_PACKAGES})"
    found: list[Any] = []
    try:
        for platform in cl.get_platforms():
            found += platform.get_devices()
    except cl.Error as error:
        if not found:
            return (), f"no OpenCL driver answers: {error} ({_PACKAGES})"
    return tuple(found), None if found else f"there is no OpenCL driver ({_PACKAGES})"


def _unfit(device: Any) -> str | None:
    """Why a driver's device cannot keep the bit contract (docs/numerics.md), or cannot build at all."""
    cl = importlib.import_module("pyopencl")
    wanted = {
        "DENORM": "keeps no subnormals",
        "INF_NAN": "has no infinities and NaNs",
        "ROUND_TO_NEAREST": "does not round to nearest",
        "CORRECTLY_ROUNDED_DIVIDE_SQRT": "does not round divisions and square roots correctly",
    }
    for flag, lacks in wanted.items():
        if not device.single_fp_config & getattr(cl.device_fp_config, flag):
            return f"{device.name.strip()} {lacks}, so results would not be those of other devices"
    if not device.endian_little:
        return f"{device.name.strip()} is big endian"
    if not (device.available and device.compiler_available):
        return f"the driver of {device.name.strip()} says that it is not available, or has no compiler"
    if "pocl" in device.platform.version.lower() and shutil.which("ld") is None:
        return "PoCL needs the linker `ld` (Debian: apt-get install binutils)"
    return None


@register
class OpenclDevice(AcceleratorDevice):
    kind = "opencl"
    capabilities = Capabilities(has_process=False)

    def __init__(self, name: str = "opencl:0", *, use_cache: bool = True) -> None:
        super().__init__(name, use_cache=use_cache)
        self.wait_limit_seconds = WAIT_LIMIT_SECONDS
        self.driver = _drivers()[0][int(name.partition(":")[2])]
        self.memory_bytes = int(self.driver.global_mem_size)
        self.largest_buffer_bytes = int(self.driver.max_mem_alloc_size)
        self.cl: Any = importlib.import_module("pyopencl")
        self.work_items, self.group_items = self._work_size()
        self._context = self.cl.Context([self.driver])
        profiling = self.cl.command_queue_properties.PROFILING_ENABLE
        self._queue = self.cl.CommandQueue(self._context, properties=profiling)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f"{cls.kind}:{i}" for i in range(max(len(_drivers()[0]), 1)))

    @classmethod
    def target_of(cls, name: str) -> str:
        return "opencl"

    @classmethod
    def missing(cls, name: str) -> str | None:
        drivers, reason = _drivers()
        return reason or _unfit(drivers[int(name.partition(":")[2])])

    def _work_size(self) -> tuple[int, int]:
        """Work items of a launch, and of a group. Any number gives the same bits; a CPU's core takes one at a time."""
        units = int(self.driver.max_compute_units)
        if self.driver.type & self.cl.device_type.CPU:
            return units, 1
        group = min(64, int(self.driver.max_work_group_size))
        return 4 * units * group, group

    # ---- memory

    def _allocate(self, size_bytes: int) -> Any:
        self.expect_room({"this buffer": size_bytes})
        try:
            return self.cl.Buffer(self._context, self.cl.mem_flags.READ_WRITE, size_bytes)
        except self.cl.Error as error:
            raise self._no_room({"this buffer": size_bytes}) from error

    def _free(self, buffer: Any) -> None:
        buffer.release()

    def _copy_to(self, buffer: Any, offset: int, data: memoryview) -> None:
        self.wait(self._enqueued(self.cl.enqueue_copy, buffer, data, dst_offset=offset, is_blocking=False))

    def _copy_from(self, buffer: Any, offset: int, size_bytes: int) -> bytes:
        data = np.empty(size_bytes, np.uint8)
        self.wait(self._enqueued(self.cl.enqueue_copy, data, buffer, src_offset=offset, is_blocking=False))
        return data.tobytes()

    def _fill_zero(self, buffer: Any, offset: int, size_bytes: int) -> None:
        self.wait(self._enqueued(self.cl.enqueue_fill_buffer, buffer, np.uint8(0), offset, size_bytes))

    def expect_room(self, sizes: Mapping[str, int]) -> None:
        """Refuses, with the budget, what the device cannot hold beside what is on it."""
        if self.live_bytes + sum(sizes.values()) > self.memory_bytes or max(sizes.values()) > self.largest_buffer_bytes:
            raise self._no_room(sizes)

    def _no_room(self, sizes: Mapping[str, int]) -> DoesNotFit:
        parts = ", ".join(f"{size} for {what}" for what, size in sizes.items())
        taken = f", beside {self.live_bytes} in use" if self.live_bytes else ""
        return DoesNotFit(
            f"the memory of '{self.identity}' is too small",
            stage="memory",
            expected=f"at most {self.memory_bytes} bytes, and {self.largest_buffer_bytes} in one buffer",
            got=f"{sum(sizes.values())} bytes: {parts}{taken}",
            hint="train fewer parameters (--train last:K), a smaller batch, or a stateless optimizer (sgd)",
        )

    # ---- what sessions use

    def build(self, source: str) -> Any:
        """A program; what the driver's compiler says against it is the error."""
        program = self.cl.Program(self._context, source)
        try:
            return program.build(list(BUILD_OPTIONS), cache_dir=False)
        except self.cl.Error as error:
            raise DeviceError(
                f"the OpenCL compiler of '{self.identity}' failed",
                stage="build",
                got="\n    ".join(str(error).strip().splitlines()[-LAST_WORDS:]),
                hint=f"`tilegrad compile --device {self.name} -o DIR` writes the source, {KERNELS_FILE}",
            ) from error

    def kernel(self, program: Any, launch: KernelLaunch, buffers: Mapping[str, DeviceTensor]) -> Any:
        """A kernel with its arguments set: all that is left is to enqueue it."""
        kernel = self.cl.Kernel(program, launch.kernel)
        arguments: list[Any] = []
        for place in launch.operands:
            buffer = None if place is None else buffers[place.region].buffer
            arguments += [buffer, np.uint64(0 if place is None else place.offset)]
        kernel.set_args(*arguments, np.frombuffer(launch.argument_bytes, np.uint8))
        return kernel

    def enqueue(self, kernel: Any) -> Any:
        return self._enqueued(self.cl.enqueue_nd_range_kernel, kernel, (self.work_items,), (self.group_items,))

    def enqueue_copy(self, target: DeviceTensor, to: int, source: DeviceTensor, at: int, size_bytes: int) -> Any:
        """A copy that does not leave the device."""
        return self._enqueued(
            self.cl.enqueue_copy, target.buffer, source.buffer, dst_offset=to, src_offset=at, byte_count=size_bytes
        )

    def flush(self) -> None:
        self._queue.flush()

    def _enqueued(self, command: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return command(self._queue, *arguments, **named)
        except self.cl.Error as error:
            raise DeviceError(f"'{self.identity}' refused a command: {error}", stage="run") from error

    def wait(self, event: Any) -> None:
        """Until a command is done. Polls, so that Ctrl-C and the time limit work while a kernel runs."""
        self._queue.flush()
        deadline = time.monotonic() + self.wait_limit_seconds
        pause = 20e-6
        while (status := event.command_execution_status) > self.cl.command_execution_status.COMPLETE:
            if time.monotonic() > deadline:
                raise DeviceError(
                    f"'{self.identity}' did not finish within {self.wait_limit_seconds:g} s",
                    stage="run",
                    got=f"{self.driver.name.strip()}, {self.driver.platform.version.strip()}",
                    hint="OpenCL cannot stop a kernel: end this process",
                )
            time.sleep(pause)
            pause = min(pause * 1.25, 2e-3)
        if status < 0:
            raise DeviceError(f"a command on '{self.identity}' failed with status {status}", stage="run")

    def _load(self, compiled: Compiled, residency: Residency) -> Session:
        return OpenclSession(self, compiled, residency)


class OpenclSession(Session):
    """State and arena stay on the device. Inputs have a buffer of their own: the arena's bytes are reused in a step."""

    def __init__(self, device: OpenclDevice, compiled: Compiled, residency: Residency) -> None:
        super().__init__(compiled, residency)
        self.device = device
        self._is_closed = False
        plan = compiled.plan
        self._offsets = {entry: port_offsets(entry_inputs(plan, entry)) for entry in ENTRIES}
        sizes = {
            "state": buffer_bytes(plan.state_bytes),
            "arena": buffer_bytes(plan.arena_bytes),
            "inputs": buffer_bytes(max(size for _, size in self._offsets.values())),
        }
        device.expect_room(sizes)
        program = device.build(compiled.project.files[KERNELS_FILE].decode())
        self._buffers: dict[str, DeviceTensor] = {}
        try:
            for name, size in sizes.items():
                self._buffers[name] = device.allocate(size)
            device.fill_zero(self._buffers["state"])
            device.copy_to(self._buffers["state"], compiled.project.files["weights.bin"])
            self._kernels = self._prepared(program)
        except BaseException:
            self.close()
            raise

    def _prepared(self, program: Any) -> dict[str, list[Any]]:
        """Kernels by entry; equal launches, of the forward pass in `infer` and `step`, are one object."""
        made: dict[object, Any] = {}

        def prepared(launches: Iterable[KernelLaunch]) -> list[Any]:
            result = []
            for launch in launches:
                key = (launch.kernel, launch.operands, launch.argument_bytes)
                if key not in made:
                    made[key] = self.device.kernel(program, launch, self._buffers)
                result.append(made[key])
            return result

        plan = self.compiled.plan
        entries = opencl_program(plan, collect_kernels(plan.schedule)).entries
        return {entry: prepared(launches) for entry, launches in entries.items()}

    def _place(self, entry: str, inputs: Sequence[Array]) -> None:
        self._check_labels(entry, inputs)
        for array, offset in zip(inputs, self._offsets[entry][0], strict=True):
            self.device.copy_to(self._buffers["inputs"], array, offset)

    def _check_labels(self, entry: str, inputs: Sequence[Array]) -> None:
        """What generated C does before it computes."""
        program = self.compiled.program
        for port, array in zip(entry_inputs(self.compiled.plan, entry), inputs, strict=True):
            is_label = port.value == program.target_input and program.label_classes is not None
            if is_label and not np.all((array >= 0) & (array < program.label_classes)):
                raise bad_label(self.compiled)

    def _enqueue(self, entry: str) -> list[Any]:
        """One event per kernel."""
        device, plan = self.device, self.compiled.plan
        for buffer in self._buffers.values():
            device.check_owned(buffer)
        for port, offset in zip(entry_inputs(plan, entry), self._offsets[entry][0], strict=True):
            if port.type.size_bytes:
                place = plan.address(entry, port.value)
                inside = self._buffers[place.region]
                device.enqueue_copy(inside, place.offset, self._buffers["inputs"], offset, port.type.size_bytes)
        events = [device.enqueue(kernel) for kernel in self._kernels[entry]]
        device.flush()
        return events

    def _call(self, entry: str, inputs: Sequence[Array] | None, wants_outputs: bool) -> list[Array] | None:
        """Returns once all is enqueued, unless outputs are wanted: nothing else has to wait for the device."""
        if inputs is not None:
            self._place(entry, inputs)
        self._enqueue(entry)
        return self._fetch(entry) if wants_outputs else None

    def _fetch(self, entry: str) -> list[Array]:
        results = []
        for port in entry_outputs(self.compiled.plan, entry):
            place = self.compiled.plan.address(entry, port.value)
            data = self.device.copy_from(self._buffers[place.region], port.type.size_bytes, place.offset)
            results.append(np.frombuffer(data, port.type.dtype.numpy).reshape(port.type.shape).copy())
        return results

    def _count(self, entry: str) -> Mapping[str, float]:
        """The device's own clock, kernels alone."""
        events = self._enqueue(entry)
        for event in events[-1:]:
            self.device.wait(event)
        nanoseconds = sum(event.profile.end - event.profile.start for event in events)
        return {COMPUTE_SECONDS: nanoseconds * 1e-9}

    def _read(self, tensor: StateTensor) -> Array:
        place = self.compiled.plan.state_addresses[tensor.name]
        data = self.device.copy_from(self._buffers[place.region], tensor.type.size_bytes, place.offset)
        return np.frombuffer(data, tensor.type.dtype.numpy).reshape(tensor.type.shape).copy()

    def _write(self, tensor: StateTensor, value: Array) -> None:
        place = self.compiled.plan.state_addresses[tensor.name]
        self.device.copy_to(self._buffers[place.region], value, place.offset)

    def close(self) -> None:
        """Freed buffers stay known by name: what is asked of a closed session says that they are freed."""
        self._kernels = {}
        if not self._is_closed:
            self._is_closed = True
            for buffer in self._buffers.values():
                self.device.free(buffer)
