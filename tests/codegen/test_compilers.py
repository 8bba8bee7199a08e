"""What compilers say about the C of every zoo model, and that they all make the same bits of it."""

from __future__ import annotations

import dataclasses
import shutil
from functools import cache
from typing import Any

import pytest

from tests.support.projects import CONTRACT_FLAGS, SANITIZER_FLAGS, everything, opened, toolchain, zoo_model
from tilegrad import zoo
from tilegrad.errors import DeviceError

COMPILERS = ("gcc", "clang")
SMALL = ("simplemlp", "mlp", "autoencoder_tiny")
MODELS = [name if name in SMALL else pytest.param(name, marks=pytest.mark.slow) for name in zoo.names()]


def needs(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{len(MODELS)} models were not compiled with {compiler}: it is not installed")


@cache
def on_the_host(name: str) -> dict[str, Any]:
    with opened(zoo_model(name)) as session:
        return everything(session)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_warning_and_the_hosts_bits(compiler: str, name: str) -> None:
    """-O2 without -march: no FMA instruction, no wide vectors, and still the bits of the host's own build."""
    needs(compiler)
    with opened(zoo_model(name), toolchain(compiler, CONTRACT_FLAGS)) as session:
        assert everything(session) == on_the_host(name)


@pytest.mark.parametrize("name", MODELS)
def test_clean_under_sanitizers(name: str) -> None:
    """Step, update and inference; a finding ends the program, which is then a DeviceError."""
    with opened(zoo_model(name), toolchain("gcc", SANITIZER_FLAGS)) as session:
        assert everything(session) == on_the_host(name)


def test_the_sanitizers_would_have_found_something() -> None:
    """A project that is wrong on purpose: a check that never fails is none."""
    compiled = zoo_model("simplemlp")
    files = dict(compiled.project.files)
    files["model.h"] = files["model.h"].replace(b"#define TG_ARENA_BYTES ", b"#define TG_ARENA_BYTES -512 + ")
    broken = dataclasses.replace(compiled, project=dataclasses.replace(compiled.project, files=files))
    with (
        opened(broken, toolchain("gcc", SANITIZER_FLAGS)) as session,
        pytest.raises(DeviceError, match="ended before it answered") as caught,
    ):
        everything(session)
    assert "ABORTING" in str(caught.value)
