"""Runs a C compiler: argument lists only, objects and what the compiler tells of stacks cached by content."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from subprocess import CompletedProcess
from typing import TypeVar

from tilegrad.build.cache import ObjectCache, open_cache
from tilegrad.build.folder import write_files
from tilegrad.build.frames import Listing, parse_listing
from tilegrad.build.tools import PROBE_SECONDS, Tools, limit_seconds, temporary_folder
from tilegrad.errors import DeviceError

PORTABLE_FLAGS = tuple(
    "-std=c99 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror".split()
)
"""For any compiler that takes GNU options; -ffp-contract=off is part of the result's bits."""

NATIVE_FLAG = "-march=native"
R = TypeVar("R")


@dataclass(frozen=True)
class Toolchain:
    """`flags` are for compiling, `link_flags` go behind the objects.

    `linker` is the command that links, where that is not the compiler with its flags. Where it `assembles`, an object
    is made from assembly, which also tells the stack, so that both take one compilation.
    """

    compiler: str
    flags: tuple[str, ...]
    link_flags: tuple[str, ...] = ()
    linker: tuple[str, ...] = ()
    assembles: bool = False

    @property
    def telling(self) -> Toolchain:
        """The same as far as assembly, with an account of the stack."""
        return replace(self, flags=(*self.flags, "-fstack-usage", "-S"), assembles=False)


NO_COMPILER = "no C compiler found"


def find_compiler(*candidates: str) -> str:
    for candidate in candidates:
        found = shutil.which(candidate)
        if found is not None:
            return found
    raise DeviceError(
        NO_COMPILER,
        stage="build",
        expected=" or ".join(candidates) + " on PATH",
        got="none of them",
        hint="install one (Debian: apt-get install gcc), or set CC",
    )


def host_toolchain() -> Toolchain:
    compiler = find_compiler(*([os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]))
    flags = (*PORTABLE_FLAGS, NATIVE_FLAG, "-DTG_STATIC_INSTANCE")
    return Toolchain(compiler, flags, ("-lm",), assembles=_tells_stacks(compiler))


@lru_cache
def _answer(*command: str) -> CompletedProcess[str] | DeviceError:
    """To a question that is asked once: a compiler that does not answer is not waited for again."""
    try:
        return Tools(min(PROBE_SECONDS, limit_seconds())).run(command, temporary_folder())
    except DeviceError as error:
        return error


def _ask(*command: str) -> CompletedProcess[str]:
    answer = _answer(*command)
    if isinstance(answer, DeviceError):
        raise answer
    return answer


def _tells_stacks(compiler: str) -> bool:
    return _ask(compiler, "-fstack-usage", "-E", "-x", "c", os.devnull).returncode == 0


def compiler_identity(compiler: str) -> str:
    """What `--version` says."""
    return _ask(compiler, "--version").stdout


@lru_cache
def _identity(toolchain: Toolchain) -> str:
    """All but the sources that an object depends on: the compiler, its flags, and what those mean on this machine.

    The predefined macros say which instructions -march=native stands for: a cache may be shared between machines.
    """
    compiler, flags = toolchain.compiler, toolchain.flags
    macros = _ask(compiler, *flags, "-dM", "-E", "-x", "c", os.devnull).stdout
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


def _compiled(
    toolchain: Toolchain, name: str, files: Mapping[str, bytes], cache: ObjectCache | None, make: Callable[[], bytes]
) -> bytes:
    """What `make` gets out of compiling one file with this toolchain, or what the cache kept of it."""
    if cache is None:
        return make()
    key = _key(toolchain, name, files)
    content = cache.take(key)
    if content is None:
        content = make()
        cache.keep(key, content)
    return content


def _object(
    tools: Tools, toolchain: Toolchain, folder: Path, name: str, files: Mapping[str, bytes], cache: ObjectCache | None
) -> str:
    """Compiles one file, or takes its object from the cache. Returns the object's path below `folder`."""
    stem = name[:-2]
    result = f"{stem}.o"

    def make() -> bytes:
        flags, source = toolchain.flags, name
        if toolchain.assembles and name.endswith(".c"):
            told = _tell(tools, toolchain, folder, name)
            if cache is not None:
                cache.keep(_key(toolchain.telling, name, files), told)
            flags, source = (*flags, "-Wno-unused-command-line-argument"), f"{stem}.s"
        command = [toolchain.compiler, *flags, "-c", source, "-o", result]
        return _made(tools, command, folder, result).read_bytes()

    (folder / result).write_bytes(_compiled(toolchain, name, files, cache, make))
    return result


def _made(tools: Tools, command: Sequence[str], folder: Path, result: str) -> Path:
    """The file that a command says it has made, if it has."""
    tools.checked(command, folder)
    path = folder / result
    if not path.is_file():
        raise DeviceError(
            f"the C compiler said that all was well, but did not write '{result}'",
            stage="build",
            got=" ".join(command),
            hint="is CC a C compiler?",
        )
    return path


def _tell(tools: Tools, toolchain: Toolchain, folder: Path, name: str) -> bytes:
    """Compiles one file as far as assembly, and returns what that tells."""
    stem = name[:-2]
    command = [toolchain.compiler, *toolchain.telling.flags, name, "-o", f"{stem}.s"]
    assembly = _made(tools, command, folder, f"{stem}.s").read_text(errors="replace")
    account = folder / f"{stem}.su"  # none where a file has no function
    return parse_listing(assembly, account.read_text(errors="replace") if account.exists() else "").to_bytes()


def list_frames(
    toolchain: Toolchain, folder: Path, files: Mapping[str, bytes], *, use_cache: bool = True
) -> list[Listing]:
    """What the compiler tells of the stack of each C file. `folder` is an empty one, to work in."""
    write_files(folder, files)
    tools, cache = Tools(), open_cache(use_cache)

    def tell(name: str) -> Listing:
        return Listing.from_bytes(
            _compiled(toolchain.telling, name, files, cache, lambda: _tell(tools, toolchain, folder, name))
        )

    listings = _in_parallel(tools, [partial(tell, name) for name in sorted(files) if name.endswith(".c")])
    if cache is not None:
        cache.finish()
    return listings


def _in_parallel(tools: Tools, work: Sequence[Callable[[], R]]) -> list[R]:
    """The results of all, in order. A failure or an interrupt ends the others' tools: they are not waited for."""
    with ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 1)) as pool:
        try:
            started = [pool.submit(piece) for piece in work]
            finished, _ = wait(started, return_when=FIRST_EXCEPTION)
            for done in finished:
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            tools.stop()
            raise
    return [done.result() for done in started]


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
    objects = _in_parallel(tools, [partial(_object, tools, toolchain, folder, name, files, cache) for name in sources])
    if cache is not None:
        cache.finish()
    linker = toolchain.linker or (toolchain.compiler, *toolchain.flags)
    return _made(tools, [*linker, *objects, "-o", output, *toolchain.link_flags], folder, output)
