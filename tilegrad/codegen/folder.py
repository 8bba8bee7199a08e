"""What makes a folder of C usable by itself: a README with a program that compiles as it stands, and a Makefile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilegrad.build.toolchain import NATIVE_FLAG, PORTABLE_FLAGS
from tilegrad.codegen.board import makefile_values
from tilegrad.codegen.image import HEADER, payload_bytes
from tilegrad.codegen.interface import entry_ports
from tilegrad.codegen.texts import runtime_text
from tilegrad.ir.plan import Plan
from tilegrad.targets.base import Target
from tilegrad.visible import visible_line


def makefile(objects: Sequence[str], beside: Sequence[str], target: Target, present: Mapping[str, bool]) -> str:
    """`beside` are objects for the library that the harness does not need."""
    flags = (*PORTABLE_FLAGS, *([NATIVE_FLAG] if target.name == "host" else []))
    values = {"target": target.name, "objects": " ".join(objects), "beside": "".join(f" {name}" for name in beside)}
    values |= {"cflags": " ".join(flags)} if target.board is None else makefile_values(target.board)
    return runtime_text("project/Makefile", present, values)


def project_readme(plan: Plan, has_array: bool, present: Mapping[str, bool]) -> str:
    """`has_array`: the weights are in the folder as C."""
    schedule = plan.schedule
    blocks = [f"{plan.state_bytes} bytes of state, kept between calls"]
    blocks.append(f"{plan.arena_bytes} of arena, free between them")
    if not schedule.target.is_flat:
        blocks.append(f"{plan.memory[schedule.target.compute].used_bytes} of scratch in L1, free too")
    if plan.flash_bytes:
        blocks.append(f"{plan.flash_bytes} of flash for constants, beside the code")
    values = {
        "name": visible_line(" ".join(schedule.program.name.split())),
        "sources": "`model.c`, `flash.c` and `kernels/*.c`" if plan.flash_bytes else "`model.c` and `kernels/*.c`",
        "payload_bytes": payload_bytes(plan),
        "header_bytes": HEADER.size,
        "weights_c": "in this folder" if has_array else "not in this folder: `tilegrad compile --weights-c` writes it",
        "flash_bytes": plan.flash_bytes,
        "memory": "; ".join(blocks),
        "alignment_bytes": plan.alignment_bytes,
        "does": "trains" if schedule.program.trainable else "infers",
        "example": _example(plan, present),
    }
    return runtime_text("project/README.md", present, values)


def _example(plan: Plan, present: Mapping[str, bool]) -> str:
    """A whole program. No tensor of a model has the names that it uses: see `interface.entry_ports`."""
    is_flat = plan.schedule.target.is_flat
    entry = "step" if plan.schedule.program.trainable else "infer"
    inputs, outputs = entry_ports(plan, entry)
    ports = [*inputs, *outputs]
    buffers = [f"    static {port.type.dtype.c_name} {port.c_name}[{max(port.type.size, 1)}];" for port in ports]
    values = {
        "buffers": "\n".join(buffers),
        "memories": "train_state, train_arena" + ("" if is_flat else ", train_scratch"),
        "image": "tg_weights" if present["HAS_WEIGHTS_C"] else "train_image",
        "image_bytes": "TG_HEADER_BYTES + TG_IMAGE_BYTES" + ("" if is_flat else " + TG_L3_IMAGE_BYTES"),
        "accumulate": plan.schedule.program.recipe.accumulate,
        "inputs": " and ".join(port.c_name for port in inputs),
        "ports": ", ".join(port.c_name for port in ports),
    }
    return runtime_text("project/example.c", present, values).rstrip("\n")
