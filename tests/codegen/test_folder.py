"""The folder by itself: the README's program compiles and runs; the library is whole, and for any machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import tilegrad as tg
from tests.support.models import model, node, value, weights
from tilegrad.compiled import Compiled
from tilegrad.pipeline import compile_inference
from tilegrad.recipe import Recipe
from tilegrad.targets import base as targets

STRICT = ("gcc", *"-std=c99 -O0 -ffp-contract=off -Wall -Wextra -Werror".split())
WATCHED = ("-fsanitize=undefined", "-fno-sanitize-recover")
CROSS = {
    "arm-none-eabi-": ("-mcpu=cortex-m7", "-mthumb"),
    "riscv64-unknown-elf-": ("-march=rv32imafc", "-mabi=ilp32f"),
}
FREESTANDING = '#include <stddef.h>\nvoid *memcpy(void *, const void *, size_t);\nvoid *memset(void *, int, size_t);\n'


def example(folder: Path) -> str:
    (block,) = re.findall(r"^```c\n(.*?)^```", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(block)


def run_example(folder: Path) -> None:
    """As a reader would: the program beside the model's files, its warnings errors, its alignment watched."""
    (folder / "example.c").write_text(example(folder))
    sources = [str(path.relative_to(folder)) for path in folder.rglob("*.c") if path.name != "main.c"]
    built = subprocess.run(
        [*STRICT, *WATCHED, *sources, "-o", "example", "-lm"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run(["./example"], cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("weights_as_c", [True, False], ids=["array", "file"])
@pytest.mark.parametrize(
    ("name", "target", "recipe"),
    [
        ("simplemlp", "mcu", Recipe(accumulate=2)),
        ("simplemlp", "siracusa", Recipe()),
        pytest.param("autoencoder_tiny", "host", Recipe(optimizer=tg.Adam()), marks=pytest.mark.slow),
        pytest.param("autoencoder_tiny", "pulp_small", Recipe(batch=2), marks=pytest.mark.slow),
    ],
)
def test_the_program_of_the_readme_compiles_and_runs(
    tmp_path: Path, name: str, target: str, recipe: Recipe, weights_as_c: bool
) -> None:
    tg.compile(name, recipe, target=target, weights_as_c=weights_as_c).write(tmp_path / "c")
    text = (tmp_path / "c" / "README.md").read_text()
    assert "`weights.c`" in text and "`tg_weights`" in text and "weights_image" not in text
    assert ("not in this folder" not in text) is weights_as_c
    if target == "host":  # vector kernels need the machine's own instructions
        (tmp_path / "c" / "example.c").write_text(example(tmp_path / "c"))
        subprocess.run(["make", "libmodel.a"], cwd=tmp_path / "c", check=True, capture_output=True)
        command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "example.c", "libmodel.a", "-lm", "-o", "example"]
        subprocess.run(command, cwd=tmp_path / "c", check=True)
        subprocess.run(["./example"], cwd=tmp_path / "c", check=True)
    else:
        run_example(tmp_path / "c")


@pytest.mark.parametrize("name", ["state", "m", "train_state", "main"])
def test_a_tensor_may_be_called_what_the_program_calls_its_own(tmp_path: Path, name: str) -> None:
    gemm = node("Gemm", f"{name} w", "y", "fc")
    proto = model([gemm], [value(name, [1, 4])], [value("y", [1, 4])], {"w": weights(4, 4)})
    tg.compile(proto, Recipe(), target="mcu", weights_as_c=True).write(tmp_path / "c")
    run_example(tmp_path / "c")


def test_a_program_that_only_infers_has_an_example_too(tmp_path: Path) -> None:
    compiled: Compiled = compile_inference(tg.load("simplemlp"), Recipe(), targets.get("mcu"))
    compiled.write(tmp_path / "c")
    assert "tg_infer(&m" in example(tmp_path / "c")
    run_example(tmp_path / "c")


# ---- the library


def members(folder: Path, archiver: str = "ar") -> list[str]:
    done = subprocess.run([archiver, "t", "libmodel.a"], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_library_has_the_weights(tmp_path: Path) -> None:
    tg.compile("simplemlp", target="mcu", weights_as_c=True).write(tmp_path / "with")
    tg.compile("simplemlp", target="mcu").write(tmp_path / "without")
    for folder in ("with", "without"):
        command = ["make", "libmodel.a"]
        done = subprocess.run(command, cwd=tmp_path / folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "weights.o" in members(tmp_path / "with") and "weights.o" not in members(tmp_path / "without")
    (tmp_path / "with" / "example.c").write_text(example(tmp_path / "with"))
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "example.c", "libmodel.a", "-lm", "-o", "example"]
    subprocess.run(command, cwd=tmp_path / "with", check=True)
    subprocess.run(["./example"], cwd=tmp_path / "with", check=True)


def _without_ar(folder: Path) -> str:
    """A PATH whose `ar` refuses to work."""
    folder.mkdir()
    (folder / "ar").write_text("#!/bin/sh\nexit 9\n")
    (folder / "ar").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize("way", ["CROSS", "CC"])
@pytest.mark.parametrize("prefix", CROSS)
def test_the_cross_compilers_own_archiver_is_used(tmp_path: Path, prefix: str, way: str) -> None:
    if shutil.which(f"{prefix}gcc") is None:
        pytest.skip(f"no {prefix}gcc")
    folder = tmp_path / "c"
    tg.compile("simplemlp", target="mcu", weights_as_c=True).write(folder)
    (folder / "string.h").write_text(FREESTANDING)
    flags = " ".join(("-std=c99", "-O1", "-ffp-contract=off", "-ffreestanding", "-Wall", "-Werror", *CROSS[prefix]))
    named = f"CROSS={prefix}" if way == "CROSS" else f"CC={prefix}gcc"
    done = subprocess.run(
        ["make", named, f"CFLAGS={flags}", "CPPFLAGS=-I.", "libmodel.a"],
        cwd=folder, env={**os.environ, "PATH": _without_ar(tmp_path / "bin")}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {"model.o", "weights.o"} <= set(members(folder, f"{prefix}ar"))
    command = [f"{prefix}nm", "-s", "libmodel.a"]
    symbols = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert re.search(r"^tg_step in model\.o$", symbols.stdout, re.MULTILINE), "the archive has an index"


@pytest.mark.parametrize("target", ["cortex_m7", "riscv32"])
def test_the_library_of_a_board(tmp_path: Path, target: str) -> None:
    board = targets.get(target).board
    assert board is not None
    if shutil.which(board.compiler) is None:
        pytest.skip(f"no {board.compiler}")
    tg.compile("simplemlp", target=target, weights_as_c=True).write(tmp_path / "c")
    environment = {**os.environ, "PATH": _without_ar(tmp_path / "bin")}
    done = subprocess.run(
        ["make", "libmodel.a"], cwd=tmp_path / "c", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "weights.o" in members(tmp_path / "c")


def test_an_archiver_that_is_named_is_used(tmp_path: Path) -> None:
    tg.compile("simplemlp", target="mcu").write(tmp_path / "c")
    (tmp_path / "mine").write_text('#!/bin/sh\necho mine\nexec ar "$@"\n')
    (tmp_path / "mine").chmod(0o755)
    for words, environment in ((["make", f"AR={tmp_path / 'mine'}"], {}), (["make"], {"AR": str(tmp_path / "mine")})):
        done = subprocess.run(
            [*words, "-B", "libmodel.a"], cwd=tmp_path / "c", env={**os.environ, **environment}, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        assert "mine\n" in done.stdout
