"""Compiled zoo models shared between tests, and generated projects built with any compiler and flags."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

import tilegrad as tg
from tilegrad.build.toolchain import Toolchain
from tilegrad.compiled import Compiled
from tilegrad.data.samples import make_batches
from tilegrad.devices.base import Session
from tilegrad.devices.host import HostDevice

CONTRACT_FLAGS = tuple("-std=c99 -Wall -Wextra -Werror -O2".split())
"""What the generated C promises to compile with."""

SANITIZER_FLAGS = (
    *"-std=c99 -Wall -Wextra -Werror -O0 -march=native -ffp-contract=off".split(),
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)


@cache
def zoo_model(name: str) -> Compiled:
    """A zoo model compiled for the host with the default recipe."""
    return tg.compile(tg.load(name), tg.Recipe(), target="host")


def toolchain(compiler: str, flags: tuple[str, ...]) -> Toolchain:
    found = shutil.which(compiler)
    assert found is not None, f"no {compiler}"
    return Toolchain(found, (*flags, "-DTG_STATIC_INSTANCE"), ("-lm",))


@contextmanager
def opened(compiled: Compiled, tools: Toolchain | None = None) -> Iterator[Session]:
    """The program on the host, built with `tools` or as the device does it."""
    with HostDevice(toolchain=tools) as device:
        yield device.load(compiled)


def batch(compiled: Compiled, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x, y = make_batches(compiled, None).batch(index)
    return np.asarray(x), np.asarray(y)


def state_of(session: Session) -> dict[str, bytes]:
    """Every tensor that outlives a call."""
    return {tensor.name: session.read(tensor.name).tobytes() for tensor in session.compiled.program.state}


def everything(session: Session) -> dict[str, Any]:
    """What one step, one update and one inference leave, as bytes."""
    x, y = batch(session.compiled)
    loss = session.step(x, y)
    gradients = {name: array.tobytes() for name, array in session.gradients().items()}
    session.update()
    return {"loss": loss, "gradients": gradients, "state": state_of(session), "logits": session.infer(x).tobytes()}
