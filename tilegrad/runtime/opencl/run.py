"""Runs the model of this folder on an OpenCL device, with numpy and pyopencl alone.

python run.py DATA.npz [STEPS]    trains on the first device: DATA has `x` and `y`, samples along the first axis
python run.py --serve [N]         is driven over stdin and stdout, on the N-th device

The protocol of `--serve` is that of a C project's main.c. A request is two little-endian 32-bit words, command and
payload length, then the payload; a reply is status, payload length and payload.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl

FOLDER = Path(__file__).parent
WORDS = {"int32_t": "<i4", "uint32_t": "<u4", "float": "<f4"}
ENTRIES = ("infer", "step", "update")  # commands 1 to 3
GET, PUT, MEASURE, QUIT, PLACE, FETCH = 4, 5, 6, 7, 8, 9
KEEP_OUTPUTS, REPLY_LATER = 256, 512
OK, BAD_LABEL = 0, 1


def devices() -> list[Any]:
    """Of all drivers; one without a device answers with an error."""
    found: list[Any] = []
    for platform in cl.get_platforms():
        with contextlib.suppress(cl.Error):
            found += platform.get_devices()
    return found


def initial_state(manifest: dict[str, Any]) -> Any:
    """The bytes of weights.bin behind its header, or the end of this program if they are not of this model."""
    content = (FOLDER / "weights.bin").read_bytes()
    size = manifest["header_bytes"]
    if len(content) < size:
        sys.exit("weights.bin is too short")
    magic, version, model_hash, payload_bytes, crc = struct.unpack("<4sI16sII", content[:size])
    payload = content[size:]
    if (magic, version) != (b"TGIM", 1):
        sys.exit("weights.bin is no image, or in another version of the format")
    if model_hash.hex() != manifest["model_hash"]:
        sys.exit("weights.bin is of another model, or of another plan for this one")
    if len(payload) != payload_bytes or payload_bytes != manifest["image_bytes"]:
        sys.exit("weights.bin is too short or too long")
    if zlib.crc32(payload) != crc:
        sys.exit("the bytes of weights.bin have changed")
    return np.frombuffer(payload, np.uint8)


class Model:
    """`state` is kept and `arena` is free between calls; `inputs` stay while the arena's bytes are reused."""

    def __init__(self, number: int = 0) -> None:
        device = devices()[number]
        self.manifest = json.loads((FOLDER / "launches.json").read_text())
        self.tensors = json.loads((FOLDER / "manifest.json").read_text())["tensors"]
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        source = (FOLDER / self.manifest["source"]).read_text()
        self.program = cl.Program(self.context, source).build(self.manifest["build_options"], cache_dir=False)
        entries = self.manifest["entries"]
        sizes = self.manifest["buffers"]
        self.buffers = {name: cl.Buffer(self.context, cl.mem_flags.READ_WRITE, size) for name, size in sizes.items()}
        state = np.zeros(sizes["state"], np.uint8)
        image = initial_state(json.loads((FOLDER / "manifest.json").read_text()))
        state[: image.size] = image
        self.copy(self.buffers["state"], state)
        made: dict[str, Any] = {}  # equal launches, of the forward pass in `infer` and `step`, are one object
        self.kernels = {
            name: [self.kernel(launch, made) for launch in entry["launches"]] for name, entry in entries.items()
        }
        # Any number of work items gives the same bits: each takes its share of a kernel's outputs.
        units = device.max_compute_units
        self.work_items, self.group_items = (units, 1) if device.type & cl.device_type.CPU else (256 * units, 64)

    def kernel(self, launch: dict[str, Any], made: dict[str, Any]) -> Any:
        """A kernel and its arguments: for each operand a buffer and a byte offset, then the struct, by value."""
        key = json.dumps([launch["kernel"], launch["operands"], launch["arguments"]])
        if key in made:
            return made[key]
        kernel = made[key] = cl.Kernel(self.program, launch["kernel"])
        arguments: list[Any] = []
        for place in launch["operands"]:
            arguments += [None, np.uint64(0)] if place is None else [self.buffers[place[0]], np.uint64(place[1])]
        types = self.manifest["kernels"][launch["kernel"]]["arguments"]
        record = np.zeros((), [(name, WORDS[c_type]) for c_type, name in types])
        for name, value in launch["arguments"].items():
            record[name] = float(value) if isinstance(value, str) else value  # infinities are strings in JSON
        kernel.set_args(*arguments, record)
        return kernel

    def copy(self, target: Any, source: Any, **offsets: Any) -> None:
        cl.enqueue_copy(self.queue, target, source, **offsets)

    def place(self, entry: str, payload: bytes, at: int = 0) -> bool:
        """Inputs, packed, or a part of them; False, and nothing done, if a label is none of the classes."""
        for port in self.manifest["entries"][entry]["inputs"]:
            count = int(np.prod(port["shape"]))
            first = port["at"] - at
            if first < 0 or first + count * np.dtype(port["dtype"]).itemsize > len(payload):
                continue
            data = np.frombuffer(payload, port["dtype"], count, first)
            ignored = data == port["ignored"] if "ignored" in port else False
            if port["classes"] is not None and not np.all(ignored | ((data >= 0) & (data < port["classes"]))):
                return False
        if payload:
            self.copy(self.buffers["inputs"], np.frombuffer(payload, np.uint8), dst_offset=at)
        return True

    def run(self, entry: str) -> int:
        """Runs an entry on the inputs placed last; returns the nanoseconds that its kernels took."""
        for port in self.manifest["entries"][entry]["inputs"]:
            size = int(np.prod(port["shape"])) * np.dtype(port["dtype"]).itemsize
            if size:
                where = self.buffers[port["buffer"]]
                self.copy(
                    where, self.buffers["inputs"], src_offset=port["at"], dst_offset=port["offset"], byte_count=size
                )
        events = [
            cl.enqueue_nd_range_kernel(self.queue, kernel, (self.work_items,), (self.group_items,))
            for kernel in self.kernels[entry]
        ]
        self.queue.finish()
        return sum(event.profile.end - event.profile.start for event in events)

    def outputs(self, entry: str) -> bytes:
        """Those of the last call, packed."""
        payload = np.zeros(self.manifest["entries"][entry]["output_bytes"], np.uint8)
        for port in self.manifest["entries"][entry]["outputs"]:
            size = int(np.prod(port["shape"])) * np.dtype(port["dtype"]).itemsize
            payload[port["at"] : port["at"] + size] = self.read(port["buffer"], port["offset"], size)
        return payload.tobytes()

    def read(self, buffer: str, offset: int, size: int) -> Any:
        data = np.empty(size, np.uint8)
        if size:
            self.copy(data, self.buffers[buffer], src_offset=offset)
        return data

    def write(self, buffer: str, offset: int, data: bytes) -> None:
        if data:
            self.copy(self.buffers[buffer], np.frombuffer(data, np.uint8), dst_offset=offset)


def answer(model: Model, command: int, payload: bytes) -> tuple[int, bytes]:
    """Status and content of the reply to one request."""
    keeps_outputs, command = command & KEEP_OUTPUTS, command & 255
    if 1 <= command <= len(ENTRIES):
        entry = ENTRIES[command - 1]
        if payload and not model.place(entry, payload):
            return BAD_LABEL, b""
        model.run(entry)
        return OK, b"" if keeps_outputs else model.outputs(entry)
    if command == GET:
        tensors = [model.tensors[index] for (index,) in struct.iter_unpack("<I", payload)]
        return OK, b"".join(model.read("state", each["offset"], each["bytes"]).tobytes() for each in tensors)
    words = struct.unpack_from(f"<{min(len(payload), 12) // 4}I", payload)
    if command == PUT:
        model.write("state", model.tensors[words[0]]["offset"], payload[4:])
        return OK, b""
    entry = ENTRIES[words[0] - 1]
    if command == MEASURE:
        return OK, struct.pack("<QQQ", sum(model.run(entry) for _ in range(words[1])), 0, 0)
    if command == PLACE:
        return (OK if model.place(entry, payload[8:], words[1]) else BAD_LABEL), b""
    if command == FETCH:
        return OK, model.outputs(entry)[words[1] :][: words[2]]
    raise ValueError(f"there is no command {command}")


def serve(number: int) -> None:
    """Until told to quit, or until the other side has gone. What drivers print must not mix with replies."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        model = Model(number)
    except cl.Error as error:
        sys.exit(str(error))
    while len(head := sys.stdin.buffer.read(8)) == 8:
        command, size = struct.unpack("<II", head)
        if command == QUIT:
            return
        status, content = answer(model, command, sys.stdin.buffer.read(size))
        replies.write(struct.pack("<II", status, len(content)) + content)
        if not command & REPLY_LATER:
            replies.flush()


def train(data: str, steps: int) -> None:
    """One mini-batch per update; rows are taken in order, wrapping round. Prints a loss per step."""
    model = Model()
    ports = model.manifest["entries"]["step"]["inputs"]
    arrays = [np.load(data)[name] for name in ("x", "y")]
    batch = ports[0]["shape"][0]
    for step in range(steps):
        payload = bytearray(model.manifest["entries"]["step"]["input_bytes"])
        for port, array in zip(ports, arrays, strict=True):
            rows = array[np.arange(step * batch, (step + 1) * batch) % len(array)]
            content = np.ascontiguousarray(rows, port["dtype"]).tobytes()
            payload[port["at"] : port["at"] + len(content)] = content
        if not model.place("step", bytes(payload)):
            sys.exit("a label is none of the classes")
        model.run("step")
        print(float(np.frombuffer(model.outputs("step"), np.float32, 1)[0]))
        model.run("update")


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    else:
        train(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4)
