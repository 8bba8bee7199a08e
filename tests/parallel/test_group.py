"""Several devices of this machine: the bits of one, whoever computes what, and no byte moved that need not be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tilegrad as tg
from tests.parallel.runs import GroupWithSlow, assert_same_bits, compiled, run_on
from tests.support.models import model, node, value, weights
from tilegrad.cli import main
from tilegrad.data.samples import make_batches, sample_spec
from tilegrad.devices.registry import device_kind, open_device
from tilegrad.errors import DeviceError, UserError
from tilegrad.ops.base import MINIBATCH_COUNTER
from tilegrad.parallel.form import form_of
from tilegrad.parallel.group import DeviceGroup, open_devices
from tilegrad.parallel.session import ParallelSession
from tilegrad.parallel.specification import parse_devices
from tilegrad.training.keeping import Keeping


def here(*names: str) -> bool:
    return all(device_kind(name).missing(name) is None for name in names)


@pytest.mark.parametrize("device", ["host*1", "host*2", "host*4"])
@pytest.mark.parametrize(
    ("model", "batchnorm", "optimizer"), [("autoencoder_tiny", "frozen", "adam"), ("dscnn", "train", "sgd")]
)
def test_any_number_of_devices_gives_the_bits_of_one(device: str, model: str, batchnorm: str, optimizer: str) -> None:
    program = compiled(model, 3, optimizer=optimizer, batchnorm=batchnorm, batch=2)
    assert_same_bits(run_on("host", program), run_on(device, program))


@pytest.mark.matrix
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("model", "batchnorm"),
    [
        ("autoencoder_tiny", "frozen"),
        ("dscnn", "frozen"),
        ("dscnn", "train"),
        ("resnet8", "frozen"),
        ("resnet8", "train"),
        ("cct_lora", "frozen"),
    ],
)
def test_the_matrix_of_devices(model: str, batchnorm: str, optimizer: str) -> None:
    program = compiled(model, 5, optimizer=optimizer, batchnorm=batchnorm, batch=2)
    alone = run_on("host", program, 3)
    mixed = ("host,sim:siracusa", "host,sim:siracusa,qemu:riscv32", "host,opencl:0")
    for device in ("host*1", "host*2", "host*4", *mixed):
        if here(*parse_devices(device).kinds):
            assert_same_bits(alone, run_on(device, program, 3))


@pytest.mark.slow
def test_mixed_kinds_give_the_bits_of_one() -> None:
    kinds = [name for name in ("host", "sim:siracusa", "qemu:riscv32") if here(name)]
    program = compiled("autoencoder_tiny", 6, optimizer="adam")
    assert_same_bits(run_on("host", program), run_on(",".join(kinds), program))


def test_a_slow_device_gets_fewer_shares_and_changes_no_bit() -> None:
    program = compiled("dscnn", 12, batchnorm="train")
    specification = parse_devices("host*2")
    devices = [open_device(name) for name in specification.names]
    with GroupWithSlow(specification, devices) as group:
        run = run_on(group, program, 3)
    assert_same_bits(run_on("host", program, 3), run)
    assert run.shares is not None
    fast, slow = (row["shares"] for row in run.shares["devices"])
    assert fast + slow == 36 and slow < fast


def test_an_update_moves_gradients_and_changed_parameters_alone() -> None:
    program = compiled("autoencoder_tiny", 4)
    run = run_on("host*2", program, 5)
    assert run.shares is not None
    trained = sum(tensor.type.size_bytes for tensor in program.program.trainable)
    lead, other = run.shares["devices"]
    assert lead["shares"] + other["shares"] == 20
    for row in (lead, other):
        assert row["from_device_bytes"].get("gradients", 0) == row["shares"] * trained
        assert row["to_device_bytes"].get("control", 0) <= row["shares"]
    assert lead["to_device_bytes"]["gradients"] == 5 * trained  # the sum of each update
    assert "parameters" not in lead["to_device_bytes"]  # they are there
    assert lead["from_device_bytes"]["parameters"] == 5 * trained
    assert other["to_device_bytes"].get("parameters", 0) in [n * trained for n in range(5)]  # never the first placement
    assert "parameters" not in other["from_device_bytes"] and "gradients" not in other["to_device_bytes"]


def test_statistics_that_two_nodes_share_are_computed_one_after_another() -> None:
    proto = model(
        [
            node("Conv", "x k", "c", "/conv"),
            node("BatchNormalization", "c scale bias mean var", "n", "/bn"),
            node("BatchNormalization", "n scale bias mean var", "y", "/bn_1"),
        ],
        [value("x", ["n", 1, 4, 4])],
        [value("y", ["n", 2, 2, 2])],
        {"k": weights(2, 1, 3, 3), "scale": weights(2), "bias": weights(2), "mean": weights(2)}
        | {"var": np.ones(2, np.float32)},
    )
    program = tg.compile(proto, tg.Recipe(accumulate=3, batch=4, batchnorm="train", loss="mse"), "host")
    run = run_on("host*2", program)
    assert_same_bits(run_on("host", program), run)
    assert run.shares is not None and run.shares["one_after_another"] is True


def test_dropout_is_drawn_by_the_number_of_the_mini_batch() -> None:
    proto = model(
        [node("Dropout", "x ratio training", "d", "drop"), node("Gemm", "d w", "y", "fc")],
        [value("x", ["n", 8])],
        [value("y", ["n", 3])],
        {"w": weights(8, 3), "ratio": np.float32(0.5), "training": np.array(True)},
    )
    program = tg.compile(proto, tg.Recipe(accumulate=4, batch=2), "host")
    assert form_of(program.program).counter == MINIBATCH_COUNTER
    alone = run_on("host", program, 3)
    assert len(set(alone.losses)) == 12
    assert_same_bits(alone, run_on("host*3", program, 3))


def test_a_checkpoint_goes_over_from_one_device_to_several(tmp_path: Path) -> None:
    program = compiled("dscnn", 3, optimizer="adam", batchnorm="train", batch=2)
    saved = tmp_path / "saved"
    run_on("host", program, 2, keeping=Keeping(checkpoint=saved))
    whole = run_on("host", program, 4)
    rest = run_on("host*2", program, 4, keeping=Keeping(resume=saved))
    assert rest.weights_sha256 == whole.weights_sha256 and rest.losses == whole.losses[6:]


def test_gradients_are_those_up_to_the_last_loss() -> None:
    program = compiled("autoencoder_tiny", 3)
    with open_devices("host*2") as several, open_devices("host") as one:
        left, right = several.load(program), one.load(program)
        assert isinstance(left, ParallelSession)
        batches = list(make_batches(program, None).first(3))
        for loss, batch in zip(left.steps(batches), batches, strict=True):
            assert loss == right.step(*batch)
            for name, array in right.gradients().items():
                assert left.gradients()[name].tobytes() == array.tobytes()
        assert left.infer(batches[0][0]).tobytes() == right.infer(batches[0][0]).tobytes()


def test_clipping_and_schedules_are_those_of_one_device() -> None:
    recipe = tg.Recipe(accumulate=2, clip=0.01, optimizer=tg.Momentum(lr=0.1), rate=tg.Rate(kind="step", every=1))
    program = tg.compile("autoencoder_tiny", recipe, "host")
    assert_same_bits(run_on("host", program, 4), run_on("host*2", program, 4))


# ---- bad input


def test_devices_whose_programs_differ_are_refused() -> None:
    program, other = compiled("autoencoder_tiny", 2), compiled("autoencoder_tiny", 3, target="riscv32")
    specification = parse_devices("host,qemu:riscv32")
    devices = [device_kind(name)(name) for name in specification.names]
    with DeviceGroup(specification, devices, programs={"riscv32": other}) as group, pytest.raises(UserError) as error:
        group.load(program)
    assert "another one than for the first device" in str(error.value)


def test_a_device_that_fails_ends_the_run() -> None:
    program = compiled("autoencoder_tiny", 4)
    with open_devices("host*2") as group:
        session = group.load(program)
        assert isinstance(session, ParallelSession) and isinstance(group, DeviceGroup)
        victim = group.devices[1]._sessions[0]
        victim.transport.kill()  # type: ignore[attr-defined]
        with pytest.raises(DeviceError):
            for _ in range(4):
                list(session.steps(make_batches(program, None).first(8)))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, str]]:
    status = main([*arguments, "--json", "-"])
    return status, json.loads(capsys.readouterr().out)["error"]


TRAIN = ("train", "autoencoder_tiny", "--device", "host*2")


def test_shares_that_do_not_divide_the_data_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = sample_spec(compiled("autoencoder_tiny", 1)).input_shape
    path = tmp_path / "samples.npz"
    np.savez(path, x=np.zeros((10, *shape), np.float32))
    status, error = refused(capsys, *TRAIN, "--shares", "4", "--data", str(path))
    assert status == 2 and error["message"] == "the shares do not divide the data"
    assert error["hint"] == "--shares 5"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--shares", "0"), 2, "number of shares"),
        (("--shares", "4", "--accum", "3"), 2, "as many shares as mini-batches"),
        (("--shares", "2", "--guard", "nan"), 2, "guard"),
        (("--shares", "2", "--device", "host*x"), 2, "cannot be used"),
        (("--shares", "2", "--device", "host,nothing"), 2, "no device 'nothing'"),
        (("--shares", "2", "--scheduler", "somewhere"), 2, "scheduler 'somewhere' cannot be used"),
        (("--shares", "2", "--scheduler", "local:0"), 2, "scheduler 'local:0' cannot be used"),
        (("--shares", "2", "--scheduler", "local:2"), 2, "each runs one device"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    arguments: tuple[str, ...], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, error = refused(capsys, *TRAIN, *arguments)
    assert found == status and words in error["message"]


def test_a_kind_that_is_missing_here_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_kind("qemu:riscv32"), "missing", classmethod(lambda cls, name: "no emulator"))
    status, error = refused(capsys, "train", "autoencoder_tiny", "--device", "host,qemu:riscv32", "--shares", "2")
    assert status == 3 and "qemu:riscv32" in error["message"] and "no emulator" in error["message"]


def test_the_report_tells_who_computed_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--shares", "4", "--steps", "2", "--no-verify"]) == 0
    told = capsys.readouterr().out
    assert "autoencoder_tiny on host*2" in told and "host (makes updates)" in told
