"""The C project: every file of the folder a user takes away, as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilegrad.codegen import guard as guards
from tilegrad.codegen import interface, model
from tilegrad.codegen.board import board_files
from tilegrad.codegen.folder import makefile, project_readme
from tilegrad.codegen.harness import ports_header
from tilegrad.codegen.image import HEADER, flash_image, model_hash, state_image
from tilegrad.codegen.kernels import KernelSet, collect_kernels, kernel_texts, kernels_header
from tilegrad.codegen.opencl import opencl_files
from tilegrad.codegen.saved import saved_header
from tilegrad.codegen.texts import runtime_text
from tilegrad.errors import UserError
from tilegrad.ir.listing import Listing
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import ENTRIES, StateTensor
from tilegrad.ops.kernels import RUNTIME_FOLDER
from tilegrad.recipe.storage import Storage
from tilegrad.targets.base import OPENCL_C

WEIGHTS_C, FLASH_C = "weights.c", "flash.c"


@dataclass(frozen=True, repr=False)
class Project:
    """`files` maps a relative path to content, in a stable order."""

    plan: Plan
    files: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"<Project: {len(self.files):,} files, {self.line_count:,} lines of C>"

    @property
    def line_count(self) -> int:
        """Lines of C, kernels and headers included, weights and other constants apart."""
        return sum(
            content.count(b"\n")
            for name, content in self.files.items()
            if name.endswith((".c", ".h", ".cl")) and name not in (WEIGHTS_C, FLASH_C)
        )


def generate(listing: Listing, *, weights_as_c: bool = False, storage: Storage | None = None) -> Project:
    plan = listing.plan
    kernels = collect_kernels(plan.schedule)
    is_opencl = plan.schedule.target.language == OPENCL_C
    if is_opencl and guards.is_guarded(plan):
        raise UserError(
            f"a program for '{plan.schedule.target.name}' has no guard",
            stage="codegen",
            expected="a target in C",
            got=f"--guard {plan.schedule.program.recipe.guard}",
        )
    texts = opencl_files(plan, kernels) if is_opencl else _c_files(listing, kernels, weights_as_c, storage)
    texts["manifest.json"] = json.dumps(_manifest(plan), indent=1) + "\n"
    files = {name: text.encode() for name, text in texts.items()}
    files["weights.bin"] = state_image(plan)
    if weights_as_c:
        files[WEIGHTS_C] = _array_c(WEIGHTS_C, files["weights.bin"])
    if plan.flash_bytes:
        files[FLASH_C] = _array_c(FLASH_C, flash_image(plan))
    return Project(plan, dict(sorted(files.items())))


def _c_files(listing: Listing, kernels: KernelSet, weights_as_c: bool, storage: Storage | None) -> dict[str, str]:
    plan, target = listing.plan, listing.plan.schedule.target
    has_storage = storage is not None
    present = interface.sections(plan, has_storage, weights_as_c)
    nests = [nest for entry in plan.schedule.entries.values() for launch in entry.launches for nest in launch.nests]
    used = {kernel for nest in nests for kernel in nest.kernels}
    texts = {
        "model.h": interface.header(plan, present),
        "model.c": model.source(listing, kernels, present),
        "kernels.h": kernels_header(kernels, used),
        "tg_rt.h": (target.folder / "tg_rt.h").read_text(encoding="utf-8"),
        "ports.h": ports_header(plan),
        "README.md": project_readme(plan, weights_as_c, present),
        **_runtime_files(present),
        **{f"kernels/{name}": text for name, text in kernel_texts(kernels, used).items()},
    }
    if plan.schedule.program.trainable:  # the order of samples, for firmware that has its own
        texts["tg_random.h"] = runtime_text("tg_random.h").replace('"tg_kernel.h"', '"kernels/tg_kernel.h"')
    if guards.is_guarded(plan):
        texts.setdefault("kernels/tg_fma.h", runtime_text("tg_fma.h"))
    if storage is not None:
        texts["tg_saved.h"] = saved_header(plan, storage)
    sources = ["model", *(() if target.is_flat else ("tg_tile", "tg_sim"))]
    sources += [f"kernels/{name[:-2]}" for name in kernels.files] + (["flash"] if plan.flash_bytes else [])
    objects = [f"{name}.o" for name in sources]
    beside = (*(("weights.o",) if weights_as_c else ()), *(("tg_storage.o",) if has_storage else ()))
    texts["Makefile"] = makefile(objects, beside, target, present)
    return texts if target.board is None else {**texts, **board_files(plan, target.board)}


_RUNTIME_FILES = {
    "HAS_SCRATCH": ("cluster/*", "sim/*"),  # the simulated cluster, until a chip's own runtime takes its place
    "TG_PIPES": ("pipes/*",),
    "HAS_GUARD": ("guard/*", "tg_parts.h"),
    "HAS_STORAGE": ("storage/*", "tg_parts.h"),
}
"""By what a program has to have for them."""


def _runtime_files(present: Mapping[str, bool]) -> dict[str, str]:
    """As they are, without what launches over blocks and pipes would add."""
    patterns = ["main.c", "tg_image.h", *(one for what, own in _RUNTIME_FILES.items() if present[what] for one in own)]
    absent = {macro: False for macro, is_present in present.items() if not is_present}
    return {path.name: runtime_text(path, absent) for one in patterns for path in RUNTIME_FOLDER.glob(one)}


def _array_c(name: str, image: bytes) -> bytes:
    """An image as a C array, for firmware without a file system."""
    words = np.frombuffer(image, dtype="<u4")
    rows = [", ".join(f"0x{word:08x}" for word in words[i : i + 10]) for i in range(0, len(words), 10)]
    values = {"bytes": len(image), "count": max(len(words), 1), "words": ",\n    ".join(rows) or "0"}
    return runtime_text(f"project/{name}", values=values).encode()


def _manifest(plan: Plan) -> dict[str, Any]:
    """What is in the folder, for scripts: tensors, entries, memory."""
    program = plan.schedule.program
    recipe = program.recipe
    return {
        "model": program.name,
        "target": plan.schedule.target.name,
        "loss": program.loss,
        "recipe": {
            "optimizer": recipe.optimizer.operator,
            "lr": recipe.optimizer.lr,
            **recipe.optimizer.attributes,
            **{name: getattr(recipe, name) for name in ("batch", "accumulate", "accum_mode", "batchnorm", "seed")},
            **({} if recipe.store.is_plain else {"store": str(recipe.store)}),
        },
        "state_bytes": plan.state_bytes,
        "image_bytes": plan.image_bytes,
        "header_bytes": HEADER.size,
        "model_hash": model_hash(plan).hex(),
        "arena_bytes": plan.arena_bytes,
        "flash_bytes": plan.flash_bytes,
        "memory": {
            name: {"used": use.used_bytes, "capacity": use.capacity_bytes, "lower_bound": use.lower_bound_bytes}
            for name, use in plan.memory.items()
        },
        "macs": {entry: plan.schedule.macs(entry) for entry in ENTRIES},
        "entries": {
            entry: {
                way: [_port(port) for port in ports]
                for way, ports in zip(("inputs", "outputs"), interface.entry_ports(plan, entry), strict=True)
            }
            for entry in ENTRIES
        },
        "tensors": [_tensor(plan, tensor) for tensor in program.state],
    }


def _port(port: interface.Port) -> dict[str, Any]:
    return {"name": port.value, "c_name": port.c_name, "dtype": str(port.type.dtype), "shape": port.type.shape}


def _tensor(plan: Plan, tensor: StateTensor) -> dict[str, Any]:
    address = plan.state_addresses[tensor.name]
    described = {"name": tensor.name, "role": tensor.role.value, "dtype": str(tensor.type.dtype)}
    place = {"region": address.region, "offset": address.offset, "bytes": tensor.type.size_bytes}
    return {**described, "shape": tensor.type.shape, **place}
