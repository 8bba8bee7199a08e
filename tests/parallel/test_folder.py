"""A program over several devices as a folder: checked, moved, run; refused where it is not what was written."""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.parallel.runs import compiled, run_on
from tilegrad.build.folder import write_folder
from tilegrad.build.ownership import MANIFEST, with_listing
from tilegrad.cli import main
from tilegrad.compiled import Compiled
from tilegrad.devices import native
from tilegrad.devices.registry import device_kind
from tilegrad.errors import DeviceError, UserError
from tilegrad.parallel.folder import MODULE, TRAINING, device_files, program_files, read_folder
from tilegrad.parallel.program import open_program
from tilegrad.parallel.specification import parse_devices


@pytest.fixture(scope="module")
def program() -> Compiled:
    return compiled("autoencoder_tiny", 3, optimizer="adam")


@pytest.fixture(scope="module")
def written(program: Compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program") / "on two"
    write_folder(folder, program_files({"host": program}, parse_devices("host*2"), updates=2))
    return folder


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "elsewhere"))


def test_a_folder_that_was_copied_runs(
    program: Compiled, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = run_on("host", program)
    saved = tmp_path / "weights.npz"
    assert main(["run", str(copy), "--json", "-", "--save-weights", str(saved)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["weights_sha256"] == alone.weights_sha256
    assert tuple(document["losses"]) == alone.losses
    assert [row["device"] for row in document["shares"]["devices"]] == ["host", "host"]
    with np.load(saved) as arrays:
        assert {name: arrays[name].tobytes() for name in arrays} == {n: a.tobytes() for n, a in alone.weights.items()}


def test_steps_and_data_can_be_chosen(program: Compiled, copy: Path, tmp_path: Path) -> None:
    shape = program.program.entries["step"].types[program.program.entries["step"].inputs[0]].shape[1:]
    data = tmp_path / "samples.npz"
    np.savez(data, x=np.random.default_rng(0).standard_normal((6, *shape), np.float32))
    alone = run_on("host", program, 3, data=data)
    with open_program(copy) as opened:
        losses = []
        batches = opened.batches(3, data)
        for update in range(3):
            losses += opened.compute_shares(batches[3 * update : 3 * update + 3])
            opened.update()
        assert tuple(losses) == alone.losses and opened.weights_sha256() == alone.weights_sha256


def test_the_module_reads_as_python_and_runs_by_itself(copy: Path) -> None:
    tree = ast.parse((copy / MODULE).read_text(encoding="utf-8"))
    assert [each.name for each in tree.body if isinstance(each, ast.FunctionDef)] == ["train"]
    done = subprocess.run([sys.executable, MODULE], cwd=copy, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.count("loss") == 6 and "weights_sha256" in done.stdout


def test_no_compiler_is_needed(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(copy / "host"))
    monkeypatch.setenv("CC", "no-such-compiler")
    with open_program(copy) as opened:
        opened.compute_shares(opened.batches(1))


def test_what_was_built_for_another_processor_is_built_again(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = open_program(copy)
    with expected:
        losses = expected.compute_shares(expected.batches(1))
    monkeypatch.setattr(native, "processor_features", lambda: set())
    with open_program(copy) as opened:
        assert opened.compute_shares(opened.batches(1)) == losses
    monkeypatch.setattr(device_kind("host"), "missing", classmethod(lambda cls, name: "no C compiler"))
    with pytest.raises(DeviceError, match="another processor"):
        open_program(copy)


def test_one_flipped_byte_in_any_file_is_refused_by_name(copy: Path) -> None:
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    assert len(files) > 20
    generator = np.random.default_rng(0)
    for path in files:
        content = path.read_bytes()
        places = {0, len(content) // 2, len(content) - 1, int(generator.integers(len(content)))}
        for place in places:
            changed = bytearray(content)
            changed[place] ^= 1 << int(generator.integers(8))
            path.write_bytes(bytes(changed))
            with pytest.raises(UserError) as error:
                read_folder(copy)
            assert f"'{path.relative_to(copy)}'" in error.value.message
        path.write_bytes(content)
    read_folder(copy)


def test_every_missing_file_is_refused_by_name(copy: Path) -> None:
    for path in sorted(path for path in copy.rglob("*") if path.is_file()):
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(UserError) as error:
            read_folder(copy)
        assert path.relative_to(copy).name in error.value.message
        path.symlink_to(copy / MANIFEST)  # nor is a link what was written
        with pytest.raises(UserError):
            read_folder(copy)
        path.unlink()
        path.write_bytes(content)


def test_a_tampered_folder_starts_nothing(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = copy / MODULE
    module.write_text(module.read_text(encoding="utf-8") + "raise SystemExit(99)\n", encoding="utf-8")
    assert main(["run", str(copy)]) == 2
    assert MODULE in capsys.readouterr().err


def _rewritten(folder: Path, changes: dict[str, bytes]) -> None:
    """A folder that somebody put together, manifest and all."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files = with_listing({**files, **changes})
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def test_devices_whose_programs_differ_are_refused(copy: Path) -> None:
    other = compiled("autoencoder_tiny", 2)
    training = json.loads((copy / TRAINING).read_bytes())
    training["devices"] = ["host", "sim:siracusa"]
    training["folders"] = {"host": "host", "sim:siracusa": "other"}
    changes = {f"other/{name}": content for name, content in device_files("host", other).items()}
    _rewritten(copy, {**changes, TRAINING: json.dumps(training).encode()})
    with pytest.raises(UserError, match="have different programs"):
        read_folder(copy)


def test_another_version_of_the_format_is_refused(copy: Path) -> None:
    training = json.loads((copy / TRAINING).read_bytes()) | {"format": 99}
    _rewritten(copy, {TRAINING: json.dumps(training).encode()})
    with pytest.raises(UserError, match="another version of the format"):
        read_folder(copy)


def test_a_kind_that_is_missing_here_is_named(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_kind("host"), "missing_to_serve", classmethod(lambda cls, name: "no such machine"))
    assert main(["run", str(copy)]) == 3
    assert "no such machine" in capsys.readouterr().err


def test_other_folders_are_refused(tmp_path: Path, program: Compiled, capsys: pytest.CaptureFixture[str]) -> None:
    program.write(tmp_path / "c")
    (tmp_path / "empty").mkdir()
    for name, words in (("c", "no program over several devices"), ("empty", "no manifest"), ("nothing", "no folder")):
        assert main(["run", str(tmp_path / name)]) == 2
        assert words in " ".join(capsys.readouterr().err.split())


def test_compile_writes_the_folder_that_run_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["compile", "autoencoder_tiny", "--device", "host,sim:siracusa", "--shares", "2", "--steps", "1"]
    assert main([*arguments, "-o", str(out), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["folders"] == {"host": "host", "sim:siracusa": "sim-siracusa"}
    manifest = json.loads((out / MANIFEST).read_bytes())
    on_disk = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert set(manifest["files"]) == on_disk - {MANIFEST}
    assert all(hashlib.sha256((out / n).read_bytes()).hexdigest() == h for n, h in manifest["files"].items())
    for folder in document["folders"].values():
        assert {"weights.bin", "model.c", "harness", MANIFEST} <= {path.name for path in (out / folder).iterdir()}
    assert main(["run", str(out), "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    program = compiled("autoencoder_tiny", 2)
    assert told["weights_sha256"] == run_on("host", program, 1).weights_sha256
