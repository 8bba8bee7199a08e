"""Runs a C compiler: argument lists only, objects cached by content."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from tilegrad.build.cache import ObjectCache, open_cache
from tilegrad.build.tools import Tools
from tilegrad.errors import DeviceError

PORTABLE_FLAGS = tuple(
    "-std=c99 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror".split()
)
"""For any compiler that takes GNU options; -ffp-contract=off is part of the result's bits."""

NATIVE_FLAG = "-march=native"


@dataclass(frozen=True)
class Toolchain:
    """`flags` are for compiling, `link_flags` go behind the objects.

    `linker` is the command that links, where that is not the compiler with its flags.
    """

    compiler: str
    flags: tuple[str, ...]
    link_flags: tuple[str, ...] = ()
    linker: tuple[str, ...] = ()


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


@lru_cache
def compiler_identity(compiler: str) -> str:
    """What `--version` says."""
    return Tools().run([compiler, "--version"], Path(tempfile.gettempdir())).stdout


@lru_cache
def _identity(toolchain: Toolchain) -> str:
    """All but the sources that an object depends on: the compiler, its flags, and what those mean on this machine.

    The predefined macros say which instructions -march=native stands for: a cache may be shared between machines.
    """
    compiler, flags = toolchain.compiler, toolchain.flags
    macros = Tools().run([compiler, *flags, "-dM", "-E", "-x", "c", os.devnull], Path(tempfile.gettempdir())).stdout
    return repr((compiler_identity(compiler), flags, macros))


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


def _object(
    tools: Tools, toolchain: Toolchain, folder: Path, name: str, files: Mapping[str, bytes], cache: ObjectCache | None
) -> str:
    """Compiles one file, or takes its object from the cache. Returns the object's path below `folder`."""
    result = name[:-2] + ".o"
    key = "" if cache is None else _key(toolchain, name, files)
    content = None if cache is None else cache.take(key)
    if content is not None:
        (folder / result).write_bytes(content)
        return result
    tools.checked([toolchain.compiler, *toolchain.flags, "-c", name, "-o", result], folder)
    if cache is not None:
        cache.keep(key, (folder / result).read_bytes())
    return result


def _key(toolchain: Toolchain, name: str, files: Mapping[str, bytes]) -> str:
    key = hashlib.sha256(_identity(toolchain).encode())
    for part in _with_headers(name, files):
        key.update(part.encode() + b"\0" + files[part] + b"\0")
    return key.hexdigest()


def build(
    toolchain: Toolchain, folder: Path, files: Mapping[str, bytes], output: str, *, use_cache: bool = True
) -> Path:
    """Compiles the C and assembly files of a project that lies in `folder`, and links them."""
    sources = [name for name in sorted(files) if name.endswith((".c", ".S")) and name != "weights.c"]
    cache = open_cache(use_cache)
    tools = Tools()
    with ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 1)) as pool:
        try:
            compiling = [pool.submit(_object, tools, toolchain, folder, name, files, cache) for name in sources]
            finished, _ = wait(compiling, return_when=FIRST_EXCEPTION)
            for done in finished:
                done.result()
        except BaseException:
            # A failure or an interrupt: the other compilers are not waited for.
            pool.shutdown(wait=False, cancel_futures=True)
            tools.stop()
            raise
    objects = [done.result() for done in compiling]
    if cache is not None:
        cache.finish()
    linker = toolchain.linker or (toolchain.compiler, *toolchain.flags)
    tools.checked([*linker, *objects, "-o", output, *toolchain.link_flags], folder)
    return folder / output
