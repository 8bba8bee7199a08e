"""Guards: a NaN, an infinity or a loss above a limit brings the last good parameters back, and a status says so."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilegrad as tg
from tests.devices.boards import board
from tests.support.projects import SANITIZER_FLAGS, toolchain
from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import build
from tilegrad.cli import main
from tilegrad.devices.base import Session
from tilegrad.devices.qemu import MACHINES
from tilegrad.errors import UserError
from tilegrad.ir.program import Role

DEVICES = ["host", "sim:siracusa", board("qemu:riscv32")]
X = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
Y = np.array([3])


def target_of(device: str) -> str:
    return {"host": "host", "sim:siracusa": "siracusa"}.get(device) or MACHINES[device].target


def weights(session: Session) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in session.weights().items()}


@pytest.mark.parametrize("device", DEVICES)
def test_the_last_good_parameters_come_back(device: str) -> None:
    check_guard(device, "auto")


def test_state_in_l3_comes_back() -> None:
    check_guard("sim:siracusa", "L3")


def check_guard(device: str, home: str) -> None:
    recipe = tg.Recipe(optimizer=tg.Momentum(lr=0.05), guard=tg.Guard(loss=50.0))
    with tg.open_device(device) as opened:
        session = opened.load(tg.compile("simplemlp", recipe, target=target_of(device), home=home))
        session.step(X, Y)
        session.update()
        good = weights(session)
        loss = session.step(X, Y)  # which says that they are good
        session.update()
        assert weights(session) != good and session.undone == []
        assert np.isnan(session.step(np.where(np.arange(64) == 5, np.nan, X), Y))
        assert weights(session) == good and session.undone == [(3, "the loss")]
        session.update()  # nothing was learned from it: nothing to update
        assert weights(session) == good and len(session.undone) == 1
        assert session.step(X, Y) == loss
        session.update()
        limit = session.step(X * 1e4, (Y + 1) % 10)
        assert limit > 50.0 and weights(session) == good and session.undone[1:] == [(5, "the loss")]
        session.write("tg.learning_rate", np.float32(3e38))
        session.step(X, Y)
        session.update()
        assert session.undone[2:] == [(6, "the update")] and weights(session) == good


def test_a_guard_changes_no_bit_of_a_good_run() -> None:
    runs = []
    for guard in (None, tg.Guard()):
        with tg.open_device("sim:siracusa") as device:
            compiled = tg.compile("simplemlp", tg.Recipe(optimizer=tg.Adam(), guard=guard), target="siracusa")
            runs.append(tg.train(compiled, device, verify=guard is not None))
    assert runs[0].weights_sha256 == runs[1].weights_sha256
    assert runs[1].verdict is not None and runs[1].verdict.verified and not runs[1].undone
    kept = runs[1].compiled.program.with_role(Role.GUARD)
    assert {tensor.owner for tensor in kept} >= {tensor.name for tensor in runs[1].compiled.program.trainable}


MAIN = r"""
#include <math.h>
#include <stdio.h>
#include "model.h"
#include "tg_storage_nor.h"

extern const uint32_t tg_weights[], tg_weights_bytes;
static unsigned char memory[65536], page[256];

int main(void)
{
    tg_model *m = NULL;
    tg_nor nor;
    tg_storage storage;
    float x[64], loss, norm;
    int64_t label = 3;
    for (int i = 0; i < 64; i++)
        x[i] = (float)(i % 7) / 7.0f;
    if (tg_static_instance(&m, tg_weights, tg_weights_bytes) != TG_OK)
        return 1;
    tg_nor_attach(&nor, &storage, memory, sizeof memory, 4096, 256, page);
    if (tg_step(m, x, &label, &loss) != TG_OK || tg_norm(m, "gradient", &norm) != TG_OK || !(norm > 0.0f))
        return 2;
    double sum = 0.0;
    for (int i = 0; i < TG_TENSOR_COUNT; i++)
        if (tg_tensors[i].role[0] == 'g' && tg_tensors[i].role[1] == 'r')
            for (uint32_t k = 0; k < tg_tensors[i].bytes / 4; k++)
                sum += pow(((const float *)(const void *)(m->state + tg_tensors[i].offset))[k], 2.0);
    if (fabs(sqrt(sum) - norm) > 1e-6 * norm)
        return 3;
    if (tg_norm(m, "parameter", &norm) != TG_OK || tg_norm(m, "nothing", &norm) != TG_BAD_INDEX)
        return 4;
    if (tg_update(m) != TG_OK || tg_save(m, &storage) != TG_OK || m->updates != 1)
        return 5;
    x[5] = NAN;
    if (tg_step(m, x, &label, &loss) != TG_BAD_LOSS || m->updates != 0 || m->minibatches != 2)
        return 6;
    if (tg_update(m) != TG_BAD_LOSS || m->updates != 0)
        return 7;
    /* What was loaded is good until a loss says otherwise. */
    if (tg_load(m, &storage) != TG_OK || m->updates != 1 || tg_step(m, x, &label, &loss) != TG_BAD_LOSS)
        return 8;
    if (m->updates != 1)
        return 9;
    return 0;
}
"""


def test_in_c_with_storage_under_sanitizers(tmp_path: Path) -> None:
    recipe = tg.Recipe(optimizer=tg.Adam(), guard=tg.Guard())
    files = dict(tg.compile("simplemlp", recipe, storage="64K", weights_as_c=True).project.files)
    files["main.c"] = MAIN.encode()
    files["image.c"] = files.pop("weights.c")
    write_files(tmp_path, files)
    program = build(toolchain("gcc", SANITIZER_FLAGS), tmp_path, files, "guarded")
    done = subprocess.run([str(program)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"check {done.returncode}: {done.stderr}"


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    begun = ["train", "simplemlp", "--device", "host"]
    assert main([*begun, "--lr", "1e20", "--steps", "4", "--guard", "nan,loss=100", "--json", "-"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert run["undone"][0] == {"minibatch": 2, "by": "the loss"} and run["verified"] is None
    for wrong in ("inf", "loss", "loss=nan", "loss=x", "nan,nan", ""):
        assert main([*begun, "--guard", wrong]) == 2
        assert "the guard cannot be used" in capsys.readouterr().err


def test_a_guard_of_nothing_is_refused() -> None:
    with pytest.raises(UserError):
        tg.Guard(finite=False)
