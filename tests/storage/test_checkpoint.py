"""Checkpoints on a desk: the format is the C's, wrong files are refused by name, and hostile ones break nothing."""

from __future__ import annotations

import contextlib
import json
import random
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilegrad as tg
from tests.storage.programs import compiled_for, figures, power_program, run
from tilegrad.cli import main
from tilegrad.codegen.saved import RECORD, frozen_crc, save_bytes, saved, saved_hash
from tilegrad.errors import DoesNotFit, UserError
from tilegrad.ir.program import RESET_FLAG
from tilegrad.training.checkpoint import CheckpointFile, expect_same_training, parse_checkpoint, read_checkpoint

STORAGE_BYTES = 65536


@pytest.fixture(scope="module")
def power(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return power_program(tmp_path_factory.mktemp("power"))


def state_of(target: str = "host", seed: int = 0) -> dict[str, Any]:
    """Any state of the program, between updates."""
    draw = np.random.default_rng(seed)
    state: dict[str, Any] = {}
    for tensor in compiled_for(target).program.state:
        drawn = draw.standard_normal(tensor.type.shape) * 3.0
        state[tensor.name] = drawn.astype(tensor.type.dtype.numpy)
    return {**state, RESET_FLAG: np.array([True]), "tg.learning_rate": np.float32(0.01)}


def written(path: Path, saves: int = 1, seed: int = 0) -> bytes:
    file = CheckpointFile(path, compiled_for().program, "host")
    for number in range(saves):
        file.save(state_of(seed=seed + number), 2 * number + 2, number + 1)
    return path.read_bytes()


def test_what_the_c_saved_is_read_here(power: Path) -> None:
    """In the middle of an update, so gradients are there; the CRC of everything is the C's own."""
    status, text = run(power, "write", "flash.bin", STORAGE_BYTES, 5)
    assert status == 0
    told = figures(text)
    found = read_checkpoint(power.parent / "flash.bin")
    assert (found.minibatches, found.updates, found.is_accumulating) == (5, 2, True)
    assert found.record.model_hash == saved_hash(compiled_for().program)
    state = found.state_for(compiled_for().program)
    names = [tensor.name for tensor in compiled_for().program.state if tensor.name in state]
    everything = b"".join(np.ascontiguousarray(state[name]).tobytes() for name in names)
    constants = [t for t in compiled_for().program.state if t.name not in state]
    assert not constants or all(t.initial is not None for t in constants)
    if not constants:
        assert f"{zlib.crc32(everything):08x}" == told["crc"]
    assert found.record.erases == int(told["erases"]) == found.record.erases_per_save
    assert found.record.used_bytes == save_bytes(compiled_for().program, "host", 256, with_gradients=True)


def test_what_was_written_here_is_loaded_by_the_c(power: Path, tmp_path: Path) -> None:
    path = tmp_path / "desk.bin"
    content = written(path, 3)
    status, text = run(power, "read", path, len(content))
    assert status == 0 and text.startswith("status 0 minibatches 6 updates 3"), text
    damaged = bytearray(content)
    at = content.index(b"TGCK")
    damaged[at + RECORD.size + 700] ^= 1  # in the payload of slot 0, which holds the third save
    path.write_bytes(damaged)
    status, text = run(power, "read", path, len(content))
    assert text.startswith("status 13 minibatches 4 updates 2"), text
    found = read_checkpoint(path)
    assert found.updates == 2 and "save 3 was cut off or is damaged" in found.note


def test_a_dump_may_be_larger_than_the_storage(tmp_path: Path) -> None:
    content = written(tmp_path / "c.bin")
    found = parse_checkpoint(b"\0" * 1000 + content + b"\xff" * 5000, "dump")
    assert found.updates == 1 and not found.note


def test_frozen_tensors_are_never_saved(tmp_path: Path) -> None:
    compiled = tg.compile("simplemlp", tg.Recipe(train="last:1"), storage="64K")
    kinds = saved(compiled.program)
    assert {tensor.name for tensor in kinds.frozen} == {"fc1.weight", "fc1.bias"}
    assert not {tensor.name for tensor in kinds.always} & {"fc1.weight", "fc1.bias"}
    assert save_bytes(compiled.program, "host", 256) < save_bytes(tg.compile("simplemlp").program, "host", 256)
    assert frozen_crc(compiled.program) != frozen_crc(
        tg.compile(tg.load("simplemlp", seed=3), tg.Recipe(train="last:1")).program
    )


def test_one_hash_for_every_target() -> None:
    recipe = tg.Recipe(optimizer=tg.Momentum(lr=0.1))
    hashes = {saved_hash(tg.compile("simplemlp", recipe, target=t).program) for t in ("host", "siracusa", "riscv32")}
    assert len(hashes) == 1
    others = [
        saved_hash(tg.compile("simplemlp", tg.Recipe()).program),
        saved_hash(tg.compile("mlp", recipe).program),
        saved_hash(tg.compile("simplemlp", replace(recipe, train="last:1")).program),
        saved_hash(tg.compile("simplemlp", replace(recipe, loss="mse")).program),
    ]
    assert len({*hashes, *others}) == 5


# ---- bad input


def refusal(content: bytes) -> str:
    with pytest.raises(UserError) as caught:
        parse_checkpoint(content, "F")
    return str(caught.value)


def test_files_that_are_no_checkpoint() -> None:
    assert "an empty file, 0 bytes" in refusal(b"")
    assert "an archive" in refusal(b"PK\x03\x04 and more")
    assert "weights.bin" in refusal(compiled_for().project.files["weights.bin"])
    assert "'F' is no checkpoint" in refusal(bytes(10000))


def test_a_checkpoint_of_a_newer_version(tmp_path: Path) -> None:
    content = written(tmp_path / "c.bin")
    record = bytearray(content[: RECORD.size])
    record[4:8] = struct.pack("<I", 9)
    record[-4:] = struct.pack("<I", zlib.crc32(record[:-4]))
    message = refusal(content.replace(content[: RECORD.size], bytes(record)))
    assert "another version of the format" in message and "got: version 9" in message and "newer tilegrad" in message


def test_a_checkpoint_that_was_cut_off(tmp_path: Path) -> None:
    content = written(tmp_path / "c.bin")
    assert "holds no complete save" in refusal(content[:2000])


def test_the_refusals_of_another_training(tmp_path: Path) -> None:
    written(tmp_path / "c.bin")
    found = read_checkpoint(tmp_path / "c.bin")

    def refused(model: str, **options: Any) -> str:
        with pytest.raises(UserError) as caught:
            expect_same_training(found, tg.compile(model, tg.Recipe(**options)).program, "c.bin")
        return str(caught.value)

    expect_same_training(found, compiled_for("siracusa").program, "c.bin")
    other = refused("mlp", optimizer=tg.Adam())
    assert "is of another model" in other and "'fc1.weight' f32[128,784]" in other and "f32[8,64]" in other
    assert "'fc1.bias.exp_avg' missing" in refused("simplemlp")
    assert "expected: optimizer.lr 0.01" in refused("simplemlp", optimizer=tg.Adam(lr=0.5))
    assert "expected: batch 1" in refused("simplemlp", optimizer=tg.Adam(), batch=2)
    assert "seed 1" in refused("simplemlp", optimizer=tg.Adam(), seed=1)


@given(st.data())
def test_hostile_files_are_refused_by_name(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any change to the directory, with records that fit it: a UserError, never a traceback."""
    content = written(tmp_path_factory.mktemp("hostile") / "c.bin")
    record = list(RECORD.unpack(content[: RECORD.size]))
    directory_bytes, payload_bytes, offset = record[5], record[6], record[8]
    payload = bytearray(content[offset : offset + payload_bytes])
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, directory_bytes - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        record[5] = data.draw(st.integers(0, 2**32 - 1))
    record[7] = zlib.crc32(payload)
    body = RECORD.pack(*record)[:-4]
    packed = (body + struct.pack("<I", zlib.crc32(body))).ljust(256, b"\xff")
    with contextlib.suppress(UserError):
        parse_checkpoint(packed + packed + bytes(payload), "F")


def test_no_flip_gives_a_wrong_tensor(tmp_path: Path) -> None:
    """The desk's reader, as the C's: a flipped bit never changes what is read."""
    content = written(tmp_path / "c.bin", 2)
    good = parse_checkpoint(content, "F")
    before = parse_checkpoint(written(tmp_path / "d.bin", 1), "F")
    draw = random.Random(3)
    used = 0
    for _ in range(300):
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        found = parse_checkpoint(bytes(flipped), "F")
        expected = good if found.updates == good.updates else before
        used += found.updates == 1
        assert all(np.array_equal(found.tensors[name], expected.tensors[name]) for name in expected.tensors)
        assert bool(found.note) == (found.updates == 1)
    assert used > 0


def test_a_storage_that_is_too_small() -> None:
    with pytest.raises(DoesNotFit) as caught:
        tg.compile("mlp", storage="64K")
    message = str(caught.value)
    assert "at most 65536 bytes" in message and "got: 950272 bytes" in message
    assert "the largest 'fc1.weight' f32[128,784]" in message
    for wrong in ("63K", "64K:4K:3", "64K:0", "a lot", "64K:4K:256:1"):
        with pytest.raises(UserError):
            tg.compile("simplemlp", storage=wrong)


# ---- the commands


def test_show_export_and_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one.bin", tmp_path / "two.bin"
    written(one)
    written(two, seed=5)
    assert main(["checkpoint", "show", str(one), "--json", "-"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["model"] == "simplemlp" and shown["updates"] == 1 and shown["erases_per_save"] == 3
    assert shown["erases_per_1000_updates"] == 3000.0
    assert main(["checkpoint", "show", str(one)]) == 0
    assert "fc1.weight" in capsys.readouterr().out
    assert main(["checkpoint", "export", str(one), "-o", str(tmp_path / "w.npz")]) == 0
    with np.load(tmp_path / "w.npz") as arrays:
        assert sorted(arrays) == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]
        assert np.array_equal(arrays["fc1.weight"], state_of()["fc1.weight"])
    capsys.readouterr()
    assert main(["checkpoint", "diff", str(one), str(two), "--json", "-", "--exit-code"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert not rows["same"] and len(rows["tensors"]) == len(saved(compiled_for().program).always)
    assert main(["checkpoint", "diff", str(one), str(one), "--exit-code"]) == 0
    assert "the same bits in all" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["show", "export", "diff"])
def test_the_commands_refuse_with_2(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.bin"
    wrong.write_bytes(b"nothing")
    more = {"export": ["-o", str(tmp_path / "o.npz")], "diff": [str(wrong)]}.get(command, [])
    assert main(["checkpoint", command, str(wrong), *more]) == 2
    assert "is no checkpoint" in capsys.readouterr().err
    assert main(["checkpoint", command, str(tmp_path / "none"), *more]) == 2
    assert not (tmp_path / "o.npz").exists()
