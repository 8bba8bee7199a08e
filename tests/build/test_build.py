"""Building: the cache of objects, its limit, compilers that fail, hang or are interrupted, and hostile folders."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, finish, start
from tests.support.projects import batch, everything, opened, zoo_model
from tests.support.projects import toolchain as tools_of
from tilegrad.build import toolchain
from tilegrad.build.cache import ObjectCache, cache_folder, prune
from tilegrad.build.tools import Tools
from tilegrad.build.workspace import FAILURE_FILE, KEPT_FAILURES, Workspace
from tilegrad.compiled import Compiled
from tilegrad.devices.host import HostDevice
from tilegrad.errors import DeviceError, UserError


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return zoo_model("simplemlp")


QUICK = tools_of("gcc", ("-std=c99", "-O0"))
"""The optimizer's time is not what these tests are about."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("TILEGRAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tilegrad" / "objects"


def test_objects_are_kept_and_taken(cache: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(compiled, QUICK) as session:
        expected = everything(session)
    kept = {path.name: path.read_bytes() for path in cache.iterdir()}
    sources = [name for name in compiled.project.files if name.endswith(".c")]
    assert len(kept) == len(sources) and all(name.endswith(".o") for name in kept)
    commands: list[list[str]] = []
    checked = Tools.checked

    def watched(tools: Tools, command: list[str], folder: Path) -> str:
        commands.append(command)
        return checked(tools, command, folder)

    monkeypatch.setattr(Tools, "checked", watched)
    with opened(compiled, QUICK) as session:
        assert everything(session) == expected
    assert len(commands) == 1 and "-c" not in commands[0], "only the link was left to do"
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == kept


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "a folder"])
def test_a_damaged_cache_is_no_obstacle(cache: Path, compiled: Compiled, damage: str) -> None:
    with opened(compiled, QUICK) as session:
        expected = everything(session)
    for path in cache.iterdir():
        content = path.read_bytes()
        if damage == "truncated":
            path.write_bytes(content[: len(content) // 2])
        elif damage == "empty":
            path.write_bytes(b"")
        elif damage == "flipped":
            path.write_bytes(content[:-200] + bytes([content[-200] ^ 1]) + content[-199:])
        else:
            path.unlink()
            path.mkdir()
    with opened(compiled, QUICK) as session:
        assert everything(session) == expected
    with opened(compiled, QUICK) as session:  # and what the repair left is sound
        assert everything(session) == expected


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null"])
def test_no_place_for_a_cache(compiled: Compiled, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("TILEGRAD_CACHE", place)
    assert cache_folder() is None
    with opened(compiled, QUICK) as session:
        assert session.step(*batch(compiled)) > 0


def test_a_cache_that_cannot_be_written_to(cache: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full, or read-only for a user who is not root."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with opened(compiled, QUICK) as session:
        assert session.step(*batch(compiled)) > 0
    assert list(cache.iterdir()) == []


def test_other_flags_are_other_objects(cache: Path, compiled: Compiled) -> None:
    tools = toolchain.host_toolchain()
    name = "model.c"
    keys = {
        toolchain._key(one, name, compiled.project.files)
        for one in (
            tools,
            toolchain.Toolchain(tools.compiler, (*tools.flags, "-DX")),
            toolchain.Toolchain(tools.compiler, tuple(flag for flag in tools.flags if flag != "-march=native")),
        )
    }
    assert len(keys) == 3
    changed = {**compiled.project.files, "kernels/tg_kernel.h": b"/* other */\n"}
    assert toolchain._key(tools, name, changed) not in keys, "a header two includes away counts"


def test_many_builds_at_once(cache: Path, compiled: Compiled) -> None:
    """Threads that fill an empty cache together."""

    def run(_: int) -> object:
        with opened(compiled, QUICK) as session:
            return everything(session)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, range(4)))
    assert all(result == results[0] for result in results)
    assert all(path.suffix == ".o" for path in cache.iterdir())


def test_a_read_only_working_directory(compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.chdir("/proc")  # root may write where permissions say no; nobody may write here
    with opened(compiled) as session:
        assert session.step(*batch(compiled)) > 0
    monkeypatch.chdir(tmp_path)
    with opened(compiled) as session:
        assert session.step(*batch(compiled)) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_temporary_files_with_a_hostile_name(
    compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = tmp_path / "a b; $(touch owned) 'c' ü"
    strange.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(strange))
    with opened(compiled) as session:
        assert session.step(*batch(compiled)) > 0
    assert list(strange.iterdir()) == [] and not (tmp_path / "owned").exists()


# ---- the limit


def filled(folder: Path, count: int, size: int) -> ObjectCache:
    """`count` objects, the first one used longest ago."""
    folder.mkdir(parents=True)
    kept = ObjectCache(folder)
    for i in range(count):
        kept.keep(f"{i:02}", bytes([i]) * (size - 32))  # a checksum comes before
        os.utime(folder / f"{i:02}.o", (1e9 + i, 1e9 + i))
    return kept


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    kept = filled(tmp_path / "objects", 10, 1000)
    assert kept.take("00") == bytes(968), "now it is the one used last"
    prune(kept.folder, 10_000)
    assert len(list(kept.folder.iterdir())) == 10, "at the limit, not above it"
    prune(kept.folder, 5000)
    assert sorted(path.name for path in kept.folder.iterdir()) == ["00.o", "07.o", "08.o", "09.o"]
    prune(kept.folder, 0)
    assert list(kept.folder.iterdir()) == []
    prune(kept.folder / "nowhere", 0)


def test_files_being_written_stay(tmp_path: Path) -> None:
    kept = filled(tmp_path / "objects", 2, 1000)
    (kept.folder / "tmpabc").write_bytes(bytes(100))
    (kept.folder / "tmpold").write_bytes(bytes(100))
    os.utime(kept.folder / "tmpold", (1e9, 1e9))
    prune(kept.folder, 0)
    assert [path.name for path in kept.folder.iterdir()] == ["tmpabc"]


def test_a_build_keeps_the_limit(cache: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGRAD_CACHE_LIMIT", "20K")
    for _ in range(2):
        with opened(compiled, QUICK) as session:
            assert session.step(*batch(compiled)) > 0
        assert sum(path.stat().st_size for path in cache.iterdir()) <= 20 * 1024


def test_a_limit_that_is_no_size(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGRAD_CACHE_LIMIT", "lots")
    with pytest.raises(UserError, match="TILEGRAD_CACHE_LIMIT is not a size"), opened(compiled, QUICK):
        pass


def test_pruning_while_others_build(cache: Path, compiled: Compiled) -> None:
    """Objects vanish under a build's hands; it is right all the same."""
    with opened(compiled, QUICK) as session:
        expected = everything(session)
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom tilegrad.build.cache import prune\n"
        "print('ready', flush=True)\nend = time.monotonic() + 60\n"
        "while time.monotonic() < end:\n    prune(Path(sys.argv[1]), 0)\n"
    )
    pruner = subprocess.Popen([sys.executable, "-c", script, str(cache)], stdout=subprocess.PIPE, text=True)
    try:
        assert pruner.stdout is not None and pruner.stdout.readline() == "ready\n"
        for _ in range(3):
            with opened(compiled, QUICK) as session:
                assert everything(session) == expected
    finally:
        pruner.kill()
        pruner.communicate()


def test_no_cache_keeps_nothing(cache: Path, compiled: Compiled) -> None:
    with HostDevice(toolchain=QUICK, use_cache=False) as device:
        assert device.load(compiled).step(*batch(compiled)) > 0
    assert not cache.exists()


@pytest.mark.parametrize("command", ["train", "infer", "gradcheck", "compare", "compile"])
def test_every_command_that_builds_can_do_without(tilegrad: CommandLine, command: str) -> None:
    assert "--no-cache" in tilegrad(command, "--help").out


# ---- compilers


def script_of(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_a_compiler_that_fails_is_quoted_and_its_folder_kept(compiled: Compiled, tmp_path: Path) -> None:
    broken = script_of(tmp_path / "brokencc", "echo 'out of cheese' >&2; exit 4\n")
    tools = toolchain.Toolchain(broken, ("-std=c99",))
    with HostDevice(toolchain=tools, use_cache=False) as device, pytest.raises(DeviceError) as caught:
        device.load(compiled)
    assert caught.value.message == "the C compiler failed with status 4" and caught.value.exit_status == 3
    assert "out of cheese" in str(caught.value) and "brokencc -std=c99 -c " in str(caught.value)
    assert caught.value.hint is not None
    folder = Path(caught.value.hint.split("'")[1])
    assert (folder / "model.c").exists() and "out of cheese" in (folder / FAILURE_FILE).read_text()


def test_a_compiler_that_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot run '/nowhere/cc': No such file or directory"):
        Tools().run(["/nowhere/cc"], tmp_path)
    (tmp_path / "data").write_text("not a program")
    with pytest.raises(DeviceError, match="Permission denied"):
        Tools().run([str(tmp_path / "data")], tmp_path)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def are_gone(pids: Iterable[int]) -> bool:
    """A killed process may need a moment to go; one that was not killed would need a minute."""
    end = time.monotonic() + 20
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(map(is_alive, pids))


def pids_in(path: Path, count: int) -> list[int]:
    end = time.monotonic() + 30
    while not path.exists() or len(path.read_text().split()) < count:
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return [int(word) for word in path.read_text().split()]


FORKING = "echo $$ >> pids; sleep 60 & echo $! >> pids; wait\n"
"""As a compiler does: a driver that waits for a child."""


def test_a_compiler_that_hangs_ends_with_its_children(tmp_path: Path) -> None:
    hanging = script_of(tmp_path / "hangingcc", FORKING)
    with pytest.raises(DeviceError, match=r"'hangingcc' did not finish in 0\.5 s"):
        Tools(timeout_seconds=0.5).run([hanging], tmp_path)
    assert are_gone(pids_in(tmp_path / "pids", 2))


def test_stopping_ends_what_runs_and_starts_no_more(tmp_path: Path) -> None:
    hanging, tools = script_of(tmp_path / "hangingcc", FORKING), Tools()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(tools.run, [hanging], tmp_path)
        pids = pids_in(tmp_path / "pids", 2)
        tools.stop()
        assert running.result(timeout=30).returncode == -9
    assert are_gone(pids)
    with pytest.raises(DeviceError, match="the build was stopped"):
        tools.run([hanging], tmp_path)


def test_one_failure_stops_the_other_compilers(compiled: Compiled, tmp_path: Path) -> None:
    """The first file takes a minute, the second fails."""
    text = f"cd {tmp_path}; if mkdir first; then {FORKING.strip()}; touch finished; else sleep 1; exit 1; fi\n"
    tools = toolchain.Toolchain(script_of(tmp_path / "cc", text), ())
    with HostDevice(toolchain=tools, use_cache=False) as device, pytest.raises(DeviceError, match="with status 1"):
        device.load(compiled)
    assert are_gone(pids_in(tmp_path / "pids", 2))
    assert not (tmp_path / "finished").exists()


# ---- folders


def test_failures_are_kept_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running = Workspace()
    folders = []
    for i in range(KEPT_FAILURES + 3):
        failed = Workspace()
        failed.keep(f"failure {i}")
        os.utime(failed.path / FAILURE_FILE, (1e9 + i, 1e9 + i))
        failed.close()
        folders.append(failed.path)
    kept = [folder for folder in folders if folder.exists()]
    assert kept[-1] == folders[-1] and KEPT_FAILURES <= len(kept) <= KEPT_FAILURES + 1
    assert (folders[-1] / FAILURE_FILE).read_text() == f"failure {KEPT_FAILURES + 2}\n"
    assert running.path.exists()
    running.close()
    assert not running.path.exists()


def test_no_place_for_temporary_files(compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(DeviceError, match="there is no place for temporary files"), opened(compiled):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_compilers(tmp_path: Path, number: signal.Signals) -> None:
    """They are in groups of their own, so that it is tilegrad who ends them, children included."""
    scratch, pids = tmp_path / "scratch", tmp_path / "pids"
    scratch.mkdir()
    hanging = script_of(tmp_path / "cc", f"cd {tmp_path}; {FORKING}")
    environment = {"CC": hanging, "TMPDIR": str(scratch), "TILEGRAD_CACHE": str(tmp_path / "cache")}
    process = start("train", "simplemlp", "--no-cache", "--device", "host", environment=environment)
    running = pids_in(pids, 2)
    process.send_signal(number)
    answer = finish(process)
    assert answer.status == 130 and answer.err == "interrupted: nothing was written\n"
    assert are_gone({*running, *pids_in(pids, 2)})
    assert list(scratch.iterdir()) == []
