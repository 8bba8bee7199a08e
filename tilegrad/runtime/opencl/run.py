"""Trains the model of this folder on an OpenCL device, with numpy and pyopencl alone: an example to start from.

python run.py DATA.npz [STEPS]    DATA has `x` and `y`, samples along the first axis; a loss per step is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl

FOLDER = Path(__file__).parent
WORDS = {"int32_t": "<i4", "uint32_t": "<u4", "float": "<f4"}


class Model:
    """Two buffers, `state` (kept) and `arena` (free between calls), and for each entry its kernels, ready to launch."""

    def __init__(self, device: Any) -> None:
        self.manifest = json.loads((FOLDER / "launches.json").read_text())
        context = cl.Context([device])
        self.queue = cl.CommandQueue(context)
        source = (FOLDER / self.manifest["source"]).read_text()
        self.program = cl.Program(context, source).build(self.manifest["build_options"])
        sizes = self.manifest["buffers"]
        self.buffers = {name: cl.Buffer(context, cl.mem_flags.READ_WRITE, size) for name, size in sizes.items()}
        state = np.zeros(sizes["state"], np.uint8)
        image = np.fromfile(FOLDER / "weights.bin", np.uint8)
        state[: image.size] = image
        cl.enqueue_copy(self.queue, self.buffers["state"], state)
        # Any number of work items gives the same bits: each takes its share of a kernel's outputs.
        self.work_items = device.max_compute_units
        self.entries = {
            name: [self._kernel(launch) for launch in entry["launches"]]
            for name, entry in self.manifest["entries"].items()
        }

    def _kernel(self, launch: dict[str, Any]) -> Any:
        """For each operand a buffer and a byte offset, then the struct of arguments, by value."""
        kernel = cl.Kernel(self.program, launch["kernel"])
        arguments: list[Any] = []
        for place in launch["operands"]:
            arguments += [None, np.uint64(0)] if place is None else [self.buffers[place[0]], np.uint64(place[1])]
        types = self.manifest["kernels"][launch["kernel"]]["arguments"]
        record = np.zeros((), [(name, WORDS[c_type]) for c_type, name in types])
        for name, value in launch["arguments"].items():
            record[name] = float(value) if isinstance(value, str) else value
        kernel.set_args(*arguments, record)
        return kernel

    def run(self, entry: str, *inputs: Any) -> list[Any]:
        ports = self.manifest["entries"][entry]
        for port, value in zip(ports["inputs"], inputs, strict=True):
            data = np.ascontiguousarray(value, port["dtype"]).reshape(port["shape"])
            cl.enqueue_copy(self.queue, self.buffers[port["buffer"]], data, dst_offset=port["offset"])
        for kernel in self.entries[entry]:
            cl.enqueue_nd_range_kernel(self.queue, kernel, (self.work_items,), (1,))
        outputs = [np.empty(port["shape"], port["dtype"]) for port in ports["outputs"]]
        for port, array in zip(ports["outputs"], outputs, strict=True):
            cl.enqueue_copy(self.queue, array, self.buffers[port["buffer"]], src_offset=port["offset"])
        self.queue.finish()
        return outputs


def main(data: str, steps: int = 4) -> None:
    """One mini-batch per update; rows are taken in order, wrapping round."""
    model = Model(cl.get_platforms()[0].get_devices()[0])
    arrays = np.load(data)
    x, y = arrays["x"], arrays["y"]
    batch = model.manifest["entries"]["step"]["inputs"][0]["shape"][0]
    for step in range(steps):
        rows = np.arange(step * batch, (step + 1) * batch) % len(x)
        (loss,) = model.run("step", x[rows], y[rows])
        model.run("update")
        print(float(loss))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
