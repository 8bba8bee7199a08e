"""Which tools and libraries are here, what each one missing would unlock, and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tilegrad.build.cache import cache_folder, limit_bytes
from tilegrad.build.tools import Tools, temporary_folder
from tilegrad.build.workspace import Workspace
from tilegrad.devices.registry import kinds
from tilegrad.errors import DeviceError
from tilegrad.report.format import bytes_text, plural
from tilegrad.report.output import table

VERSION_TIMEOUT_SECONDS = 10


@dataclass(frozen=True)
class Tool:
    """A program on PATH or a Python package. `needed` tells what tilegrad cannot work without.

    `proof` tries a program that was found, and says what is wrong with it.
    """

    name: str
    unlocks: str
    get: str
    candidates: tuple[str, ...] = ()
    package: str | None = None
    needed: bool = False
    variable: str | None = None  # the environment variable that names another program
    proof: Callable[[str], str | None] | None = None


@dataclass(frozen=True)
class Finding:
    tool: str
    found: bool
    version: str
    where: str
    unlocks: str
    get: str
    needed: bool


def _cannot_compile(compiler: str) -> str | None:
    """A compiler without a C library's headers, or without a linker, is no compiler."""
    with closing(Workspace()) as workspace:
        (workspace.path / "try.c").write_text('#include <stdio.h>\nint main(void) { return puts("") < 0; }\n')
        try:
            Tools(VERSION_TIMEOUT_SECONDS).checked([compiler, "try.c", "-o", "try"], workspace.path)
        except DeviceError as error:
            return f"{compiler} cannot compile a program: {(error.got or error.message).splitlines()[-1].strip()}"
    return None


def _debian(*packages: str) -> str:
    return f"Debian: apt-get install {' '.join(packages)}"


TOOLS = (
    Tool(
        "C compiler",
        "the devices `host`, `sim:*` and `iss:siracusa`: everything that runs generated C on this machine",
        _debian("gcc", "libc6-dev"),
        candidates=("cc", "gcc", "clang"),
        needed=True,
        variable="CC",
        proof=_cannot_compile,
    ),
    Tool("onnx", "reading models", "PyPI: pip install onnx", package="onnx", needed=True),
    Tool(
        "PyTorch",
        "verification of every loss, gradient and weight of any model; loading a torch.nn.Module; benchmarks",
        "PyPI: pip install 'tilegrad[torch]'",
        package="torch",
    ),
    Tool(
        "RISC-V compiler",
        "the device `qemu:riscv32`, images for `iss:siracusa` and `gvsoc:siracusa`; `make calibrate`",
        _debian("gcc-riscv64-unknown-elf"),
        candidates=("riscv64-unknown-elf-gcc",),
    ),
    Tool(
        "QEMU for RISC-V",
        "the device `qemu:riscv32`, with exact counts of instructions; `make calibrate`",
        _debian("qemu-system-misc"),
        candidates=("qemu-system-riscv32",),
    ),
    Tool(
        "Cortex-M compiler",
        "the devices `qemu:mps2-an500` and `qemu:mps3-an547`",
        _debian("gcc-arm-none-eabi"),
        candidates=("arm-none-eabi-gcc",),
    ),
    Tool(
        "QEMU for Arm",
        "the devices `qemu:mps2-an500` and `qemu:mps3-an547`",
        _debian("qemu-system-arm"),
        candidates=("qemu-system-arm",),
    ),
    Tool(
        "pyopencl",
        "the devices `opencl:N`",
        "PyPI: pip install 'tilegrad[opencl]'",
        package="pyopencl",
    ),
    Tool(
        "PoCL",
        "an OpenCL driver that runs on this machine's own cores, for `opencl:N` without a graphics card",
        "PyPI: pip install pocl-binary-distribution",
        package="pocl_binary_distribution",
    ),
    Tool("ld", "PoCL, which links what it compiles", _debian("binutils"), candidates=("ld",)),
    Tool(
        "GVSoC",
        "running images on the chip's cycle model, `gvsoc:siracusa`; images can be compiled without it",
        "no Debian or PyPI package: build gvsoc from its sources, then put it on PATH or name it in TILEGRAD_GVSOC",
        candidates=("gvsoc",),
        variable="TILEGRAD_GVSOC",
    ),
    Tool(
        "AccessCore",
        "the devices `mppa:iss`, `mppa:qemu` and `mppa:hw`; `sim:mppa` works without it",
        "no Debian or PyPI package: Kalray's SDK, with kvx-cos-gcc on PATH",
        candidates=("kvx-cos-gcc",),
    ),
    Tool(
        "clang",
        "vector code for RISC-V under QEMU; the tests that compile generated C with a second compiler",
        _debian("clang"),
        candidates=("clang",),
    ),
    Tool("make", "building a generated project with its own Makefile", _debian("make"), candidates=("make",)),
    Tool(
        "onnxruntime",
        "the inference column of `make bench`, and tests against it",
        "PyPI: pip install 'tilegrad[onnxruntime]'",
        package="onnxruntime",
    ),
    Tool(
        "onnxscript",
        "loading a torch.nn.Module with PyTorch's newer exporter",
        "PyPI: pip install onnxscript",
        package="onnxscript",
    ),
    Tool(
        "OR-tools",
        "tests of the memory planner against a solver",
        "PyPI: pip install ortools",
        package="ortools",
    ),
)


def examine() -> tuple[Finding, ...]:
    return tuple(_package(tool) if tool.package is not None else _program(tool) for tool in TOOLS)


def _program(tool: Tool) -> Finding:
    named = os.environ.get(tool.variable) if tool.variable is not None else None
    where = next(filter(None, map(shutil.which, (named,) if named else tool.candidates)), None)
    wrong = tool.proof(where) if where is not None and tool.proof is not None else None
    version = "" if where is None else wrong or _version(where)
    is_found = where is not None and wrong is None
    return Finding(tool.name, is_found, version, where or "", tool.unlocks, tool.get, tool.needed)


def _version(program: str) -> str:
    """The first line of `--version`; a program that does not answer is still there."""
    try:
        done = Tools(VERSION_TIMEOUT_SECONDS).run([program, "--version"], temporary_folder())
    except DeviceError:
        return "does not answer --version"
    return next(iter(done.stdout.splitlines()), "").strip()


def _package(tool: Tool) -> Finding:
    """Looks a package up without importing it: importing torch alone takes seconds."""
    assert tool.package is not None
    spec = importlib.util.find_spec(tool.package)
    if spec is None:
        return Finding(tool.name, False, "", "", tool.unlocks, tool.get, tool.needed)
    try:
        version = importlib.metadata.version(tool.package.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        version = "unknown version"
    where = str(Path(spec.origin).parent) if spec.origin else ""
    return Finding(tool.name, True, version, where, tool.unlocks, tool.get, tool.needed)


def devices() -> dict[str, str | None]:
    """Each device, and why it cannot be used here (None: it can)."""
    return {name: kind.missing(name) for kind in kinds() for name in kind.names()}


def as_json(findings: tuple[Finding, ...]) -> dict[str, Any]:
    folder = cache_folder()
    return {
        "tools": [asdict(finding) for finding in findings],
        "devices": [{"name": name, "usable": reason is None, "reason": reason} for name, reason in devices().items()],
        "cache": None if folder is None else str(folder),
        "cache_limit": limit_bytes(),
    }


def doctor_report(findings: tuple[Finding, ...]) -> Iterator[RenderableType]:
    here = table("here", "version", "for")
    for finding in findings:
        if finding.found:
            here.add_row(finding.tool, finding.version, finding.unlocks)
    yield here
    missing = [finding for finding in findings if not finding.found]
    if missing:
        yield Text()
        absent = table("missing", "would unlock", "get it")
        for finding in missing:
            style = "bold red" if finding.needed else ""
            why = f"{finding.unlocks} ({finding.version})" if finding.version else finding.unlocks
            absent.add_row(Text(finding.tool, style=style), why, finding.get)
        yield absent
    yield Text()
    reasons = devices().values()
    usable = sum(reason is None for reason in reasons)
    yield Text(f"{usable} of {plural(len(reasons), 'device')} can be used here (`tilegrad devices` lists them)")
    folder = cache_folder()
    kept = f"compiled objects are kept in {folder}, up to {bytes_text(limit_bytes())} of them"
    yield Text("no place to keep compiled objects" if folder is None else kept)
    yield Text(_summary(missing, len(findings)))


def _summary(missing: Sequence[Finding], count: int) -> str:
    if not missing:
        return "everything tilegrad uses is here"
    needed = [finding.tool for finding in missing if finding.needed]
    rest = f"tilegrad needs {' and '.join(needed)}" if needed else "tilegrad works without"
    return f"{len(missing)} missing of {plural(count, 'tool')}: {rest}"
