"""The C project: every file of the folder a user takes away, as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad.build.toolchain import NATIVE_FLAG, PORTABLE_FLAGS
from tilegrad.codegen import interface, model
from tilegrad.codegen.board import board_files
from tilegrad.codegen.harness import ports_header
from tilegrad.codegen.image import HEADER, model_hash, state_image
from tilegrad.codegen.kernels import KernelSet, collect_kernels, kernel_texts, kernels_header
from tilegrad.codegen.opencl import opencl_files
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import ENTRIES
from tilegrad.ops.kernels import RUNTIME_FOLDER
from tilegrad.targets.base import OPENCL_C, Target


@dataclass(frozen=True)
class Project:
    """`files` maps a relative path to content, in a stable order."""

    plan: Plan
    files: Mapping[str, bytes]

    @property
    def c_files(self) -> tuple[str, ...]:
        return tuple(name for name in self.files if name.endswith(".c") and name != "weights.c")

    @property
    def line_count(self) -> int:
        """Lines of C, kernels and headers included, weights apart."""
        return sum(
            content.count(b"\n")
            for name, content in self.files.items()
            if name.endswith((".c", ".h", ".cl")) and name != "weights.c"
        )


def generate(plan: Plan, *, weights_as_c: bool = False) -> Project:
    kernels = collect_kernels(plan.schedule)
    texts = opencl_files(plan, kernels) if plan.schedule.target.language == OPENCL_C else _c_files(plan, kernels)
    texts["manifest.json"] = json.dumps(_manifest(plan), indent=1) + "\n"
    files = {name: text.encode() for name, text in texts.items()}
    files["weights.bin"] = state_image(plan)
    if weights_as_c:
        files["weights.c"] = _weights_c(files["weights.bin"]).encode()
    return Project(plan, dict(sorted(files.items())))


def _c_files(plan: Plan, kernels: KernelSet) -> dict[str, str]:
    model_c, used = model.source(plan, kernels)
    target = plan.schedule.target
    texts = {
        "model.h": interface.header(plan),
        "model.c": model_c,
        "kernels.h": kernels_header(kernels, used),
        "tg_image.h": (RUNTIME_FOLDER / "tg_image.h").read_text(encoding="utf-8"),
        "tg_rt.h": (target.folder / "tg_rt.h").read_text(encoding="utf-8"),
        "main.c": (RUNTIME_FOLDER / "main.c").read_text(encoding="utf-8"),
        "ports.h": ports_header(plan),
        "README.md": _readme(plan),
    }
    objects = _objects(kernels, target)
    texts |= (
        {"Makefile": _makefile(objects, target)} if target.board is None else board_files(plan, target.board, objects)
    )
    for path in _cluster_files(target):
        texts[path.name] = path.read_text(encoding="utf-8")
    texts |= {f"kernels/{name}": text for name, text in kernel_texts(kernels, used).items()}
    return texts


def _cluster_files(target: Target) -> list[Path]:
    """The tile runtime, and the simulated cluster it runs on until a chip's own runtime takes its place."""
    if target.is_flat:
        return []
    return sorted((*(RUNTIME_FOLDER / "cluster").iterdir(), *(RUNTIME_FOLDER / "sim").iterdir()))


def _weights_c(image: bytes) -> str:
    """The image as a C array, for firmware without a file system."""
    words = np.frombuffer(image, dtype="<u4")
    rows = [", ".join(f"0x{word:08x}" for word in words[i : i + 10]) for i in range(0, len(words), 10)]
    body = ",\n    ".join(rows) or "0"
    return (
        "/* The bytes of weights.bin, for tg_init on a little-endian machine without a file system. */\n"
        "/* clang-format off */\n"
        f"#include <stdint.h>\n\nextern const uint32_t tg_weights[{max(len(words), 1)}], tg_weights_bytes;\n"
        f"const uint32_t tg_weights_bytes = {len(image)};\n"
        f"const uint32_t tg_weights[{max(len(words), 1)}] = {{\n    {body}\n}};\n"
    )


def _objects(kernels: KernelSet, target: Target) -> tuple[str, ...]:
    """Of the model, the harness apart."""
    runtime = [path.stem for path in _cluster_files(target) if path.suffix == ".c"]
    sources = ["model", *runtime, *(f"kernels/{name[:-2]}" for name in kernels.files)]
    return tuple(f"{name}.o" for name in sources)


def _makefile(objects: Sequence[str], target: Target) -> str:
    flags = (*PORTABLE_FLAGS, *([NATIVE_FLAG] if target.name == "host" else []))
    return (
        "# Builds libmodel.a (drop it into your firmware) and `harness`, a program driven over stdin and stdout.\n"
        "# -ffp-contract=off is part of the result: without it, bits differ between compilers.\n"
        f"CFLAGS ?= {' '.join(flags)}\n"
        "CPPFLAGS += -DTG_STATIC_INSTANCE\n"
        f"OBJECTS = {' '.join(objects)}\n\n"
        "harness: main.o libmodel.a\n\t$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lm\n\n"
        "libmodel.a: $(OBJECTS)\n\t$(AR) rcs $@ $^\n\n"
        "main.o model.o: model.h kernels.h ports.h tg_rt.h $(wildcard kernels/*.h)\n\n"
        "clean:\n\trm -f harness libmodel.a main.o $(OBJECTS)\n\n.PHONY: clean\n"
    )


def _manifest(plan: Plan) -> dict[str, Any]:
    """What is in the folder, for scripts: tensors, entries, memory."""
    program = plan.schedule.program
    return {
        "model": program.name,
        "target": plan.schedule.target.name,
        "loss": program.loss,
        "recipe": {
            "optimizer": program.recipe.optimizer.operator,
            "lr": program.recipe.optimizer.lr,
            **program.recipe.optimizer.attributes,
            "batch": program.recipe.batch,
            "accumulate": program.recipe.accumulate,
            "accum_mode": program.recipe.accum_mode,
            "batchnorm": program.recipe.batchnorm,
            "seed": program.recipe.seed,
        },
        "state_bytes": plan.state_bytes,
        "image_bytes": plan.image_bytes,
        "header_bytes": HEADER.size,
        "model_hash": model_hash(plan).hex(),
        "arena_bytes": plan.arena_bytes,
        "memory": {
            name: {
                "used": use.used_bytes,
                "capacity": use.capacity_bytes,
                "lower_bound": use.lower_bound_bytes,
            }
            for name, use in plan.memory.items()
        },
        "macs": {entry: plan.schedule.macs(entry) for entry in ENTRIES},
        "entries": {
            entry: {
                word: [
                    {"name": port.value, "c_name": port.c_name, "dtype": str(port.type.dtype)}
                    | {"shape": port.type.shape}
                    for port in ports(plan, entry)
                ]
                for word, ports in (("inputs", interface.entry_inputs), ("outputs", interface.entry_outputs))
            }
            for entry in ENTRIES
        },
        "tensors": [
            {
                "name": tensor.name,
                "role": tensor.role.value,
                "dtype": str(tensor.type.dtype),
                "shape": tensor.type.shape,
                "offset": plan.state_addresses[tensor.name].offset,
                "bytes": tensor.type.size_bytes,
            }
            for tensor in program.state
        ],
    }


def _readme(plan: Plan) -> str:
    program = plan.schedule.program
    inputs = [port.c_name for port in interface.entry_inputs(plan, "step")]
    outputs = [f"&{port.c_name}" for port in interface.entry_outputs(plan, "step")]
    step = ", ".join(["&m", *inputs, *outputs])
    name = " ".join(program.name.split())
    harness = "| `main.c`, `ports.h`, `Makefile` | a harness driven over stdin and stdout: `make harness` |"
    if plan.schedule.target.board is not None:
        harness = (
            "| `main.c`, `ports.h` | a harness driven over semihosting |\n"
            "| `bare/`, `link.ld`, `Makefile` | start, linker script and all else that `make` needs for `image.elf` |"
        )
    return f"""# {name}: C that trains, generated by tilegrad

Plain C99, no malloc, no dependency. Compile `model.c` and `kernels/*.c` into your firmware with `-ffp-contract=off`.

| file | what |
|---|---|
| `model.h` | the API: `tg_init`, `tg_infer`, `tg_step`, `tg_update`, `tg_read_tensor`, `tg_write_tensor` |
| `model.c` | the model: one function per node or gradient of a node, names and shapes in comments |
| `kernels/` | the kernels it calls |
| `weights.bin` | the initial state ({plan.image_bytes} bytes behind a header of {HEADER.size}) for `tg_init` |
{harness}
| `manifest.json` | tensors, offsets, entries and memory, for scripts |

Memory: {plan.state_bytes} bytes of state, kept between calls; {plan.arena_bytes} bytes of arena, free between calls.

```c
#include "model.h"
static unsigned char state[TG_STATE_BYTES], arena[TG_ARENA_BYTES]; /* aligned to TG_ALIGNMENT */
tg_model m;
if (tg_init(&m, state, arena, weights, weights_bytes) != TG_OK) /* the bytes of weights.bin, and how many there are */
    handle_bad_weights();
for (;;) {{
    /* {program.recipe.accumulate} mini-batch(es) per update */
    if (tg_step({step}) != TG_OK)
        handle_bad_label();
    tg_update(&m);
}}
```
"""
