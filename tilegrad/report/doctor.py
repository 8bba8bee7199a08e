"""Which tools and libraries are here, what each one missing would unlock, and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tilegrad.build.cache import cache_folder
from tilegrad.devices.registry import kinds
from tilegrad.report.output import table

VERSION_TIMEOUT_SECONDS = 10


@dataclass(frozen=True)
class Tool:
    """A program on PATH or a Python package. `needed` tells what tilegrad cannot work without."""

    name: str
    unlocks: str
    get: str
    candidates: tuple[str, ...] = ()
    package: str | None = None
    needed: bool = False


@dataclass(frozen=True)
class Finding:
    tool: str
    found: bool
    version: str
    where: str
    unlocks: str
    get: str
    needed: bool


TOOLS = (
    Tool(
        "C compiler",
        "the device `host`: everything that runs generated C",
        "Debian: apt-get install gcc libc6-dev",
        candidates=("cc", "gcc", "clang"),
        needed=True,
    ),
    Tool("onnx", "reading models", "pip install onnx", package="onnx", needed=True),
    Tool(
        "PyTorch",
        "verification of every loss, gradient and weight of any model; loading a torch.nn.Module; benchmarks",
        "pip install 'tilegrad[torch]'",
        package="torch",
    ),
    Tool(
        "clang",
        "the tests that compile generated C with a second compiler",
        "Debian: apt-get install clang",
        candidates=("clang",),
    ),
    Tool(
        "make",
        "building a generated project with its own Makefile",
        "Debian: apt-get install make",
        candidates=("make",),
    ),
    Tool(
        "onnxruntime",
        "the inference column of `make bench`, and tests against it",
        "pip install 'tilegrad[onnxruntime]'",
        package="onnxruntime",
    ),
    Tool(
        "onnxscript",
        "loading a torch.nn.Module with PyTorch's newer exporter",
        "pip install onnxscript",
        package="onnxscript",
    ),
)


def examine() -> tuple[Finding, ...]:
    return tuple(_package(tool) if tool.package is not None else _program(tool) for tool in TOOLS)


def _program(tool: Tool) -> Finding:
    where = next(filter(None, map(shutil.which, tool.candidates)), None)
    version = "" if where is None else _version(where)
    return Finding(tool.name, where is not None, version, where or "", tool.unlocks, tool.get, tool.needed)


def _version(program: str) -> str:
    """The first line of `--version`; a program that does not answer is still there."""
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=VERSION_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "does not answer --version"
    return next(iter(done.stdout.splitlines()), "").strip()


def _package(tool: Tool) -> Finding:
    """Looks a package up without importing it: importing torch alone takes seconds."""
    assert tool.package is not None
    spec = importlib.util.find_spec(tool.package)
    if spec is None:
        return Finding(tool.name, False, "", "", tool.unlocks, tool.get, tool.needed)
    try:
        version = importlib.metadata.version(tool.package)
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
            absent.add_row(Text(finding.tool, style=style), finding.unlocks, finding.get)
        yield absent
    yield Text()
    for name, reason in devices().items():
        yield Text(f"device {name}: " + ("usable" if reason is None else reason))
    folder = cache_folder()
    yield Text("no place to keep compiled objects" if folder is None else f"compiled objects are kept in {folder}")
    yield Text("everything tilegrad uses is here" if not missing else f"{len(missing)} missing")
