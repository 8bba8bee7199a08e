"""Runs a C compiler: argument lists only, objects cached by content."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from tilegrad.errors import DeviceError

PORTABLE_FLAGS = tuple(
    "-std=c99 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror".split()
)
"""For any compiler that takes GNU options; -ffp-contract=off is part of the result's bits."""

NATIVE_FLAG = "-march=native"
COMPILE_TIMEOUT_SECONDS = 300
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Toolchain:
    """`flags` are for compiling, `link_flags` go behind the objects."""

    compiler: str
    flags: tuple[str, ...]
    link_flags: tuple[str, ...] = ()


@cache
def find_compiler(*candidates: str) -> str:
    for candidate in candidates:
        found = shutil.which(candidate)
        if found is not None:
            return found
    raise DeviceError(
        "no C compiler found",
        stage="build",
        expected=" or ".join(candidates) + " on PATH",
        got="none of them",
        hint="install one (Debian: apt-get install gcc), or set CC",
    )


def host_toolchain() -> Toolchain:
    compiler = find_compiler(*([os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]))
    return Toolchain(compiler, (*PORTABLE_FLAGS, NATIVE_FLAG, "-DTG_STATIC_INSTANCE"), ("-lm",))


@cache
def compiler_identity(compiler: str) -> str:
    """What `--version` says."""
    done = _run([compiler, "--version"], Path.cwd())
    return done.stdout


@cache
def _identity(toolchain: Toolchain) -> str:
    """All but the sources that an object depends on: the compiler, its flags, and what those mean on this machine.

    The predefined macros say which instructions -march=native stands for: a cache may be shared between machines.
    """
    compiler, flags = toolchain.compiler, toolchain.flags
    macros = _run([compiler, *flags, "-dM", "-E", "-x", "c", os.devnull], Path.cwd()).stdout
    return repr((compiler_identity(compiler), flags, macros))


def cache_folder() -> Path | None:
    """Where objects are kept, or None where there is no place for them."""
    root = Path(os.environ.get("TILEGRAD_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser())
    folder = root / "tilegrad" / "objects"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            list(command),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=COMPILE_TIMEOUT_SECONDS,
        )
    except FileNotFoundError as error:
        raise DeviceError(f"cannot run '{command[0]}'", stage="build", hint="check that it is installed") from error
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"'{Path(command[0]).name}' did not finish in {COMPILE_TIMEOUT_SECONDS} s", stage="build"
        ) from error


def _checked(command: Sequence[str], folder: Path) -> None:
    done = _run(command, folder)
    if done.returncode != 0:
        words = "\n    ".join(done.stderr.strip().splitlines()[:12])
        raise DeviceError(
            f"the C compiler failed with status {done.returncode}",
            stage="build",
            got=f"{' '.join(command)}\n    {words}",
        )


_INCLUDE = re.compile(rb'^\s*#\s*include\s+"([\w./]+)"', re.MULTILINE)


def _with_headers(name: str, files: Mapping[str, bytes]) -> list[str]:
    """A file and every header it includes, directly or not: all that its object depends on."""
    found = [name]
    for current in found:
        here = PurePosixPath(current).parent
        for match in _INCLUDE.findall(files[current]):
            header = next((h for h in (str(here / match.decode()), match.decode()) if h in files), None)
            if header is not None and header not in found:
                found.append(header)
    return found


def _object(toolchain: Toolchain, folder: Path, name: str, files: Mapping[str, bytes], use_cache: bool) -> str:
    """Compiles one file, or takes its object from the cache. Returns the object's path below `folder`."""
    result = name[:-2] + ".o"
    kept = cache_folder() if use_cache else None
    path = None if kept is None else kept / f"{_key(toolchain, name, files)}.o"
    content = None if path is None else _take(path)
    if content is not None:
        (folder / result).write_bytes(content)
        return result
    _checked([toolchain.compiler, *toolchain.flags, "-c", name, "-o", result], folder)
    if path is not None:
        _keep(path, (folder / result).read_bytes())
    return result


def _key(toolchain: Toolchain, name: str, files: Mapping[str, bytes]) -> str:
    key = hashlib.sha256(_identity(toolchain).encode())
    for part in _with_headers(name, files):
        key.update(part.encode() + b"\0" + files[part] + b"\0")
    return key.hexdigest()


def _take(path: Path) -> bytes | None:
    """A cached object, or None where there is none or it is damaged: its checksum comes first."""
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    digest, content = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == digest else None


def _keep(path: Path, content: bytes) -> None:
    """Appears whole or not at all; a cache that cannot be written is no obstacle."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
            try:
                partial.write(hashlib.sha256(content).digest() + content)
                partial.close()
                os.replace(partial.name, path)
            except BaseException:
                Path(partial.name).unlink()
                raise
    except OSError:
        return


def build(
    toolchain: Toolchain, folder: Path, files: Mapping[str, bytes], output: str, *, use_cache: bool = True
) -> Path:
    """Compiles the C files of a project that lies in `folder`, and links them."""
    sources = [name for name in sorted(files) if name.endswith(".c") and name != "weights.c"]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        objects = list(
            pool.map(lambda name: _object(toolchain, folder, name, files, use_cache), sources)
        )
    _checked([toolchain.compiler, *toolchain.flags, *objects, "-o", output, *toolchain.link_flags], folder)
    return folder / output
