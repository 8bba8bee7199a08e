"""Output folders: what is ours is replaced, what is the user's stays, and at every moment the folder is whole."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tilegrad.build import exchange as exchange_module
from tilegrad.build import replace, staging
from tilegrad.build.files import write_file
from tilegrad.build.folder import check_folder, write_folder
from tilegrad.errors import UserError

OLD = {
    "manifest.json": b'{"model": "old"}',
    "main.c": b"int main(void) { return 1; }\n",
    "model.c": b"old\n",
    "README.md": b"the same in both\n",
    "kernels/a.c": b"a\n",
    "kernels/gone.c": b"gone\n",
    "only_old/gone.c": b"gone\n",
}
NEW = {
    "manifest.json": b'{"model": "new"}',
    "main.c": b"int main(void) { return 2; }\n",
    "model.c": b"new\n",
    "README.md": b"the same in both\n",
    "kernels/a.c": b"a\n",
    "kernels/b.c": b"b\n",
    "bare/start.S": b"start\n",
}


def add_users_files(folder: Path) -> None:
    (folder / "board.c").write_text("mine")
    (folder / "board.c").chmod(0o750)
    (folder / "kernels" / "mine.c").write_text("mine too")
    (folder / ".git" / "objects" / "ab").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git" / "objects" / "ab" / "cd").write_bytes(b"\0object")
    (folder / ".git" / "objects" / "ab" / "cd").chmod(0o444)
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("/nowhere/at/all")
    (folder / "link_to_folder").symlink_to(".git")
    os.mkfifo(folder / "fifo")
    for path in sorted(folder.rglob("*"), reverse=True):
        if not path.is_symlink():
            os.utime(path, (1e9, 1e9))


def users_files(folder: Path, ours: Mapping[str, bytes] = {**OLD, **NEW}) -> dict[str, object]:
    """All that is not ours, with what tells a file from a copy of it. Folders are known by permissions and time."""
    found: dict[str, object] = {}
    our_folders = {str(Path(name).parent) for name in ours}
    for path in folder.rglob("*"):
        name, facts = str(path.relative_to(folder)), path.lstat()
        if name in ours or name in our_folders:
            continue
        if stat.S_ISDIR(facts.st_mode):
            found[name] = (facts.st_mode, facts.st_mtime_ns)
        else:
            content = path.read_bytes() if stat.S_ISREG(facts.st_mode) else None
            found[name] = (facts.st_mode, facts.st_mtime_ns, facts.st_ino, content)
    return found


def our_files(folder: Path) -> dict[str, bytes]:
    """Without the manifest, which also lists hashes, and whose own words are compared."""
    found = {name: (folder / name).read_bytes() for name in {**OLD, **NEW} if (folder / name).is_file()}
    if "manifest.json" in found:
        found["manifest.json"] = json.dumps({"model": json.loads(found["manifest.json"])["model"]}).encode()
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An earlier project with files of the user's."""
    folder = tmp_path / "place" / "out"
    write_folder(folder, OLD)
    add_users_files(folder)
    return folder


def beside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir() if path != folder)


def refused(folder: Path, files: Mapping[str, bytes] = NEW, *, force: bool = False) -> UserError:
    before = {path: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in folder.rglob("*")}
    with pytest.raises(UserError) as caught:
        write_folder(folder, files, force=force)
    assert {path: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in folder.rglob("*")} == before
    assert beside(folder) == []
    return caught.value


# ---- what is whose


def test_exactly_what_was_written_is_replaced(project: Path) -> None:
    mine = users_files(project)
    kept = (project / "README.md").lstat().st_ino
    write_folder(project, NEW)
    assert our_files(project) == NEW
    assert users_files(project) == mine and len(mine) >= 10
    assert not (project / "kernels" / "gone.c").exists() and not (project / "only_old").exists()
    assert (project / "README.md").lstat().st_ino == kept, "what has not changed is not written again"
    assert beside(project) == []
    write_folder(project, OLD)
    assert our_files(project) == OLD and users_files(project) == mine


@pytest.mark.parametrize("content", ['{"name": "app", "files": {}}', "no json", "[]", '{"written_by": "tilegrad"}', ""])
def test_a_manifest_of_another_program_is_not_ours(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "proj"
    folder.mkdir()
    (folder / "manifest.json").write_text(content)
    (folder / "thesis.tex").write_text("years of work")
    for force in (False, True):
        error = refused(folder, force=force)
        assert "not a tilegrad project" in error.message and error.exit_status == 2
        with pytest.raises(UserError, match="not a tilegrad project"):
            check_folder(folder, force=force)


def test_an_edited_file_is_kept_unless_forced(project: Path) -> None:
    (project / "main.c").write_text("my own main")
    error = refused(project)
    assert error.got == "edited since: 'main.c'" and error.hint == "--force overwrites what was edited"
    with pytest.raises(UserError, match="files there would be lost"):
        check_folder(project, ["main.c"])
    check_folder(project, ["model.c"])
    mine = users_files(project)
    write_folder(project, NEW, force=True)
    assert our_files(project) == NEW and users_files(project) == mine


def test_an_edited_file_that_is_no_longer_made_is_kept(project: Path) -> None:
    (project / "kernels" / "gone.c").write_text("edited")
    write_folder(project, NEW)
    assert (project / "kernels" / "gone.c").read_text() == "edited"
    refused(project, OLD, force=True)  # from now on it is the user's


def test_an_edited_manifest_is_an_edited_file(project: Path) -> None:
    document = json.loads((project / "manifest.json").read_text())
    (project / "manifest.json").write_text(json.dumps({**document, "model": "mine"}))
    assert "'manifest.json'" in (refused(project).got or "")
    write_folder(project, NEW, force=True)
    assert our_files(project) == NEW


def other_file(path: Path) -> None:
    path.write_text("mine")


def other_folder(path: Path) -> None:
    path.mkdir()
    (path / "mine").write_text("mine")


def link_outside(path: Path) -> None:
    path.symlink_to("/etc/hostname")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *(("kernels/b.c", make) for make in (other_file, other_folder, link_outside, os.mkfifo)),
        *(("bare", make) for make in (other_file, link_outside, os.mkfifo)),
    ],
)
def test_another_file_in_the_way_is_never_overwritten(project: Path, name: str, make: Callable[[Path], None]) -> None:
    make(project / name)
    for force in (False, True):
        error = refused(project, force=force)
        assert error.got == f"not written by tilegrad: '{name}'" and "--force" not in (error.hint or "")


def test_a_folder_of_the_users_with_our_name_is_shared(project: Path) -> None:
    other_folder(project / "bare")
    write_folder(project, NEW)
    assert (project / "bare" / "mine").read_text() == "mine" and our_files(project) == NEW


@pytest.mark.parametrize("where", ["model.c", "kernels"])
def test_a_link_in_the_place_of_ours_is_the_users(project: Path, tmp_path: Path, where: str) -> None:
    """Even one that leads to the same content: what it leads to is not ours."""
    elsewhere = tmp_path / "elsewhere"
    (project / where).rename(elsewhere)
    (project / where).symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in [elsewhere, *elsewhere.rglob("*")] if path.is_file()}
    refused(project, force=True)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    "name", ["../victim", "/tmp/victim", "kernels/../../victim", "link_to_folder/HEAD", "sub/victim"]
)
def test_a_hostile_manifest_reaches_nothing_outside(project: Path, name: str) -> None:
    victim = project.parent / "victim"
    victim.write_text("precious")
    outside = project.parent / "outside"
    outside.mkdir()
    (outside / "victim").write_text("precious")
    (project / "sub").symlink_to(outside)
    digest = hashlib.sha256(b"precious").hexdigest()
    document = json.loads((project / "manifest.json").read_text())
    head = hashlib.sha256((project / ".git" / "HEAD").read_bytes()).hexdigest()
    document["files"][name.replace("/tmp", str(project.parent))] = head if "HEAD" in name else digest
    (project / "manifest.json").write_text(json.dumps(document))
    mine = users_files(project)
    write_folder(project, NEW, force=True)
    assert victim.read_text() == "precious" and (outside / "victim").read_text() == "precious"
    assert users_files(project) == mine


@pytest.mark.parametrize(
    "damage", [b"[]", b"{" * 100_000, b'{"written_by": {"name": "tilegrad", "format": 1}, "files": 3}']
)
def test_a_damaged_manifest_lists_nothing(project: Path, damage: bytes) -> None:
    (project / "manifest.json").write_bytes(damage)
    assert "not a tilegrad project" in refused(project, force=True).message


# ---- kinds of folders


def test_a_linked_folder_is_written_where_it_is(project: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(project)
    mine = users_files(project)
    write_folder(link, NEW)
    assert link.is_symlink() and our_files(project) == NEW and users_files(project) == mine


def test_an_empty_folder_keeps_its_permissions(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir(0o750)
    write_folder(folder, NEW)
    assert our_files(folder) == NEW and stat.S_IMODE(folder.stat().st_mode) == 0o750


def test_the_folder_we_stand_in_stays_the_same_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell there would otherwise be left in a folder that is gone."""
    monkeypatch.chdir(project / "kernels")
    inode, mine = project.stat().st_ino, users_files(project)
    write_folder(Path(".."), NEW)
    assert our_files(project) == NEW and users_files(project) == mine
    assert project.stat().st_ino == inode and beside(project) == []


@pytest.mark.parametrize("lacking", ["exchange", "links"])
def test_a_file_system_that_cannot(project: Path, monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    def cannot(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    if lacking == "exchange":
        monkeypatch.setattr(replace, "exchange", cannot)
    else:
        monkeypatch.setattr("os.link", cannot)
    mine = users_files(project)
    write_folder(project, NEW)
    assert our_files(project) == NEW and users_files(project) == mine and beside(project) == []
    assert not (project / "only_old").exists()


@pytest.mark.parametrize("name", ["x" * 300, "deep/" * 2000 + "x"])
def test_a_name_that_is_too_long(tmp_path: Path, tilegrad: CommandLine, linear_file: Path, name: str) -> None:
    for command in ("compile", "train", "infer"):
        answer = tilegrad(command, linear_file, "--device", "host", "-o", tmp_path / name)
        assert answer.status == 2 and "File name too long" in answer.err, answer.err
    for option in ("--json", "--save-weights"):
        answer = tilegrad("train", linear_file, "--device", "host", "--no-verify", option, tmp_path / name)
        assert answer.status == 2 and "File name too long" in answer.err, answer.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]


def test_the_longest_name_that_there_can_be(tmp_path: Path) -> None:
    """What is made beside it has a short name."""
    write_folder(tmp_path / ("x" * 255), NEW)
    write_file(tmp_path / ("y" * 255), b"content")
    assert our_files(tmp_path / ("x" * 255)) == NEW


def test_files_that_come_while_it_is_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process works in the folder, between our look at it and the moment of the exchange."""

    def late(one: Path, other: Path) -> None:
        (project / ".git" / "new").write_text("new")
        (project / "board.c").unlink()
        (project / "saved").write_text("by an editor")
        os.replace(project / "saved", project / ".git" / "HEAD")
        exchange_module.exchange(one, other)

    monkeypatch.setattr(replace, "exchange", late)
    write_folder(project, NEW)
    assert our_files(project) == NEW and not (project / "board.c").exists()
    assert (project / ".git" / "new").read_text() == "new"
    assert (project / ".git" / "HEAD").read_text() == "by an editor"


# ---- the command line


def test_every_command_with_a_folder_can_be_forced(tilegrad: CommandLine, linear_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for command in ("compile", "train", "infer"):
        extra = () if command == "compile" else ("--no-verify",)
        line = (command, linear_file, "--device", "host", "-o", folder, *extra)
        assert tilegrad(*line).status == 0
        (folder / "notes.txt").write_text("mine")
        (folder / "main.c").write_text("edited")
        answer = tilegrad(*line)
        assert answer.status == 2 and "edited since: 'main.c'" in answer.err, answer.err
        assert (folder / "main.c").read_text() == "edited"
        assert tilegrad(*line, "--force").status == 0
        assert (folder / "main.c").read_text() != "edited" and (folder / "notes.txt").read_text() == "mine"


def test_a_web_app_is_not_ours(tilegrad: CommandLine, linear_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "proj"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"name": "app", "icons": []}')
    (folder / "thesis.tex").write_text("years of work")
    for extra in ((), ("--force",)):
        answer = tilegrad("compile", linear_file, "--device", "host", "-o", folder, *extra)
        assert answer.status == 2 and "manifest.json that is not tilegrad's" in answer.err
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "thesis.tex"]


# ---- killed, or without room, at every moment

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.chmod", "os.utime", "os.scandir")


def in_child(work: Callable[[], None]) -> int:
    """Runs `work` in a forked process; the exit status, or minus the signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except UserError:
            os._exit(2)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def at_event(number: int, place: Path, act: Callable[[], None]) -> None:
    """Acts just before the file system is used for the number-th time. There is no way back: for a child only."""
    count = 0
    is_acting = False

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count, is_acting
        if event not in EVENTS or is_acting or str(place) not in str(arguments[0]):
            return
        if act is no_room and not takes_room(event, arguments):
            return
        count += 1
        if count == number:
            is_acting = True
            try:
                act()
            finally:
                is_acting = False

    sys.addaudithook(hook)


def takes_room(event: str, arguments: tuple[object, ...]) -> bool:
    if event == "open":
        return isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
    return event in ("os.mkdir", "os.rename", "os.link")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def no_room() -> None:
    raise OSError(28, "No space left on device")


def moments(first: int = 1) -> range:
    """A child that was not stopped ends the loop."""
    return range(first, 1000)


def is_whole(folder: Path) -> bool:
    return our_files(folder) in (OLD, NEW)


@pytest.mark.slow
@pytest.mark.parametrize("act", [kill, no_room])
def test_at_every_moment_the_folder_is_the_old_or_the_new_one(tmp_path: Path, act: Callable[[], None]) -> None:
    seen = []
    for moment in moments():
        folder = tmp_path / f"{moment}" / "out"
        write_folder(folder, OLD)
        add_users_files(folder)
        mine = users_files(folder)

        def work(folder: Path = folder, moment: int = moment) -> None:
            at_event(moment, folder.parent, act)
            write_folder(folder, NEW)

        status = in_child(work)
        assert status in ((-9, 0) if act is kill else (2, 0))
        assert is_whole(folder) and users_files(folder) == mine, moment
        seen.append(our_files(folder) == NEW)
        left = beside(folder)
        assert left == [] if act is no_room else len(left) <= 1 and all(name.startswith(".") for name in left)
        check_folder(folder)
        assert beside(folder) == [], "the next run removes it"
        assert is_whole(folder) and users_files(folder) == mine
        if status == 0:
            break
    assert True in seen and False in seen


@pytest.mark.slow
@pytest.mark.parametrize("exists", [False, True])
def test_a_new_folder_appears_at_once(tmp_path: Path, exists: bool) -> None:
    for moment in moments():
        folder = tmp_path / f"{moment}" / "out"
        (folder if exists else folder.parent).mkdir(parents=True)

        def work(folder: Path = folder, moment: int = moment) -> None:
            at_event(moment, folder.parent, kill)
            write_folder(folder, NEW)

        status = in_child(work)
        there = our_files(folder) if folder.exists() else {}
        assert there in ({}, NEW) and folder.exists() >= exists, moment
        write_folder(folder, NEW)
        assert our_files(folder) == NEW and beside(folder) == []
        if status == 0:
            break


@pytest.mark.slow
def test_in_place_the_next_run_brings_the_old_state_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(replace, "exchange", cannot)
    seen = []
    for moment in moments():
        folder = tmp_path / f"{moment}" / "out"
        write_folder(folder, OLD)
        add_users_files(folder)
        mine = users_files(folder)

        def work(folder: Path = folder, moment: int = moment) -> None:
            at_event(moment, folder.parent, kill)
            write_folder(folder, NEW)

        status = in_child(work)
        now = users_files(folder)
        assert {name: now.get(name) for name in mine} == mine
        check_folder(folder)
        assert is_whole(folder) and users_files(folder) == mine and beside(folder) == [], moment
        seen.append(our_files(folder) == NEW)
        if status == 0:
            break
    assert True in seen and False in seen


@pytest.mark.slow
@pytest.mark.parametrize("act", [kill, no_room])
def test_a_file_is_the_old_or_the_new_one(tmp_path: Path, act: Callable[[], None]) -> None:
    for moment in moments():
        path = tmp_path / f"{moment}" / "run.json"
        path.parent.mkdir()
        path.write_bytes(b"old")

        def work(path: Path = path, moment: int = moment) -> None:
            at_event(moment, path.parent, act)
            write_file(path, b"new")

        status = in_child(work)
        assert path.read_bytes() in (b"old", b"new") and len(beside(path)) <= (act is kill)
        write_file(path, b"newer")
        assert beside(path) == [] and path.read_bytes() == b"newer"
        if status == 0:
            break


# ---- what a killed process left


def test_hidden_folders_of_the_users_stay(project: Path) -> None:
    place = project.parent
    (place / ".tilegrad").mkdir()
    (place / ".tilegrad-0123456789abcdef").mkdir()
    (place / ".tilegrad-0123456789abcdef" / "mine").write_text("mine")
    (place / ".tilegrad-fedcba9876543210").mkdir()
    (place / ".tilegrad-fedcba9876543210" / "owner.json").write_text('{"written_by": "me"}')
    (place / ".tilegrad-0000000000000000").write_text("a file")
    before = beside(project)
    write_folder(project, NEW)
    assert beside(project) == before and (place / ".tilegrad-0123456789abcdef" / "mine").exists()


def test_a_folder_that_is_in_use_is_not_removed(project: Path) -> None:
    """Another process is writing: ours waits for it."""
    with staging.claimed(project.parent) as is_alone:
        assert is_alone
        mine = staging.Staging(project.parent, "other")

        def work() -> None:
            staging.CLAIM_SECONDS = 0.3
            write_folder(project, NEW)

        assert in_child(work) == 2 and mine.path.exists() and our_files(project) == OLD
        mine.remove()


@pytest.mark.parametrize("output", ["..", "../..", "/etc", "a/b", "", 3])
def test_a_forged_note_leads_nowhere(project: Path, tmp_path: Path, output: object) -> None:
    forged = project.parent / ".tilegrad-0123456789abcdef"
    (forged / "old").mkdir(parents=True)
    (forged / "old" / "model.c").write_text("forged")
    (forged / "journal.json").write_text(json.dumps({"added": {}, "there": ["model.c", "../escaped", "/tmp/escaped"]}))
    (forged / "owner.json").write_text(json.dumps({"written_by": "tilegrad staging 1", "output": output, "inode": 1}))
    write_folder(project, NEW)
    assert our_files(project) == NEW and not (tmp_path / "escaped").exists() and not (tmp_path / "model.c").exists()
