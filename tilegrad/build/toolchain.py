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

COMPILE_TIMEOUT_SECONDS = 300


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
    flags = (
        "-std=c99 -O3 -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror "
        "-DTG_STATIC_INSTANCE"
    ).split()
    return Toolchain(compiler, tuple(flags), ("-lm",))


@cache
def compiler_identity(compiler: str) -> str:
    """What `--version` says: part of a cached object's key."""
    done = _run([compiler, "--version"], Path.cwd())
    return done.stdout


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
    path = None
    if kept is not None:
        key = hashlib.sha256()
        key.update(repr((compiler_identity(toolchain.compiler), toolchain.flags)).encode())
        for part in _with_headers(name, files):
            key.update(part.encode() + b"\0" + files[part] + b"\0")
        path = kept / f"{key.hexdigest()}.o"
        try:
            shutil.copyfile(path, folder / result)
            return result
        except OSError:
            pass  # not there yet
    _checked([toolchain.compiler, *toolchain.flags, "-c", name, "-o", result], folder)
    if kept is not None and path is not None:
        handle, partial = tempfile.mkstemp(dir=kept)
        os.close(handle)
        shutil.copyfile(folder / result, partial)
        os.replace(partial, path)
    return result


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
