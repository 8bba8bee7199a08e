"""The folder a user takes away: its size, its memory, its bytes, and what it does not depend on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tilegrad as tg
from tests.schedule.programs import compiled_for, siracusa
from tests.support.models import model, node, value, weights
from tests.support.projects import batch, opened, state_of, zoo_model
from tilegrad import zoo
from tilegrad.build.folder import write_files
from tilegrad.build.ownership import with_listing
from tilegrad.errors import UserError
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets import base as targets

EVERY_MODEL = pytest.mark.parametrize("name", zoo.names())
MOST_LINES = 6000
MOST_LINES_WITH_TABLES = 8200  # of which the chip's own loops are 800
ALLOWED_SYMBOLS = frozenset(("memcpy", "memset", "memmove", "sqrtf"))
"""memcpy and memset are what compilers emit for copies anyway; every freestanding toolchain has them."""


@EVERY_MODEL
def test_lines_of_c(name: str) -> None:
    files = zoo_model(name).project.files
    lines = sum(
        content.count(b"\n") for path, content in files.items() if path.endswith((".c", ".h")) and path != "weights.c"
    )
    assert zoo_model(name).project.line_count == lines <= MOST_LINES


# Gradients in memory, all of it in L3 and the smallest scratchpad give the longest tables; then the longest program in
# other ways.
UNFUSED = ScheduleOptions(buffering="double", home="L3")
LONGEST = [
    pytest.param(name, UNFUSED, 8, marks=[pytest.mark.matrix] if name == "cct_lora" else []) for name in zoo.names()
] + [
    pytest.param("mobilenetv1", options, l1_kib, marks=pytest.mark.matrix)
    for options, l1_kib in (
        (replace(UNFUSED, fuses_update=True), 8),
        (UNFUSED, 256),
        (replace(UNFUSED, home="auto", buffering="auto"), 32),
        (replace(UNFUSED, is_tiled=False), 128),
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "l1_kib"), LONGEST)
def test_lines_of_c_for_a_scratchpad(name: str, options: ScheduleOptions, l1_kib: int) -> None:
    assert compiled_for(name, siracusa(l1_kib * 1024), options).project.line_count <= MOST_LINES_WITH_TABLES


@pytest.mark.matrix
@pytest.mark.parametrize("chip", ["mppa", "npu"])
@EVERY_MODEL
def test_lines_of_c_for_several_clusters(name: str, chip: str) -> None:
    assert compiled_for(name, targets.get(chip), ScheduleOptions()).project.line_count <= MOST_LINES_WITH_TABLES


@EVERY_MODEL
def test_the_arena_is_next_to_its_lower_bound(name: str) -> None:
    plan = zoo_model(name).plan
    bound = max(entry.lower_bound_bytes for entry in plan.entries.values())
    assert bound <= plan.arena_bytes <= 1.02 * bound
    use = plan.memory["RAM"]
    assert use.lower_bound_bytes <= use.used_bytes <= 1.02 * use.lower_bound_bytes


WRITE_ALL = """
import sys, pathlib, tilegrad as tg
from tilegrad import zoo
for name in zoo.names():
    tg.compile(tg.load(name), tg.Recipe(), target="host").write(pathlib.Path(sys.argv[1]) / name)
"""


def test_every_file_is_the_same_from_any_process_into_any_folder(tmp_path: Path) -> None:
    """Two fresh processes with other hash seeds, other working directories and other folders, and this one."""
    for seed in ("1", "77"):
        folder = tmp_path / f"folder-{seed}"
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(tg.__file__).parents[1])}
        command = [sys.executable, "-c", WRITE_ALL, str(folder)]
        subprocess.run(command, check=True, cwd=folder, env=environment, timeout=280)
        for name in zoo.names():
            written = {
                str(path.relative_to(folder / name)): path.read_bytes()
                for path in (folder / name).rglob("*")
                if path.is_file()
            }
            assert written == dict(with_listing(zoo_model(name).project.files)), name


def test_the_folder_is_complete() -> None:
    files = zoo_model("simplemlp").project.files
    assert {"model.c", "model.h", "main.c", "Makefile", "manifest.json", "README.md", "weights.bin"} <= set(files)
    assert "weights.c" not in files
    manifest = json.loads(files["manifest.json"])
    assert len(files["weights.bin"]) == manifest["header_bytes"] + manifest["image_bytes"]
    assert [tensor["name"] for tensor in manifest["tensors"] if tensor["role"] == "parameter"] == [
        "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias",
    ]  # fmt: skip


@pytest.mark.parametrize("name", zoo.names())
def test_only_kernels_that_are_called(name: str) -> None:
    files = zoo_model(name).project.files
    called = set(re.findall(rb"TG_RUN\(tg_(\w+),", files["model.c"]))
    defined = set()
    for path, content in files.items():
        if path.startswith("kernels/") and path.endswith(".c"):
            defined |= set(re.findall(rb"^TG_KERNEL void tg_(\w+)\(", content, re.MULTILINE))
    assert called == defined


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`make` in a written folder, with nothing but a compiler."""
    folder = tmp_path_factory.mktemp("made") / "project"
    tg.compile(tg.load("simplemlp"), tg.Recipe(), target="host", weights_as_c=True).write(folder)
    bare = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["make", "CC=gcc"], cwd=folder, env=bare, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_make_works_in_the_written_folder(built: Path) -> None:
    assert (built / "harness").exists() and (built / "libmodel.a").exists()
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-c", "weights.c"], cwd=built, check=True)


def test_the_library_needs_nothing(built: Path) -> None:
    """No malloc, no free, no printf, no time: what the library leaves for the linker is in a short list."""
    done = subprocess.run(["nm", "libmodel.a"], cwd=built, capture_output=True, text=True, check=True)
    symbols = [line.split()[-2:] for line in done.stdout.splitlines() if len(line.split()) >= 2]
    own = {name for kind, name in symbols if kind == "T"}
    missing = {name for kind, name in symbols if kind == "U"} - own - {"tg_tensors"}
    assert missing <= ALLOWED_SYMBOLS, missing


@EVERY_MODEL
def test_no_source_mentions_the_standard_library(name: str) -> None:
    """For the models that are not linked above; comments apart."""
    for path, content in zoo_model(name).project.files.items():
        if path.endswith((".c", ".h")) and path != "main.c":
            code = re.sub(rb"/\*.*?\*/|//[^\n]*", b"", content, flags=re.DOTALL)
            found = re.findall(rb"\b(?:[mc]alloc|realloc|free|f?printf|puts|time|clock|rand|abort|exit)\b", code)
            headers = set(re.findall(rb"#\s*include\s*<(\S+)>", code)) - {b"stddef.h", b"stdint.h", b"string.h"}
            assert not found and all(header.endswith(b"intrin.h") for header in headers), (path, found, headers)


def test_without_the_static_form_nothing_is_shared(built: Path, tmp_path: Path) -> None:
    """No writable data in any object: what an instance has, it has from its caller."""
    sources = ["model.c", *(f"kernels/{path.name}" for path in sorted((built / "kernels").glob("*.c")))]
    for source in sources:
        target = tmp_path / "object.o"
        # Position independent code would put constant tables of pointers among the writable data.
        command = ["gcc", *"-std=c99 -O2 -fno-pic -fno-pie -c".split(), source, "-o", str(target)]
        subprocess.run(command, cwd=built, check=True)
        done = subprocess.run(["nm", str(target)], capture_output=True, text=True, check=True)
        kinds = {line.split()[-2] for line in done.stdout.splitlines()}
        assert not kinds & set("BbDdCcSsGg"), (source, done.stdout)


TWO_INSTANCES = """
#include <stdio.h>
#include <string.h>
#include "model.h"

extern const uint32_t tg_weights[];
static _Alignas(TG_ALIGNMENT) unsigned char state[2][TG_STATE_BYTES], arena[2][TG_ARENA_BYTES], copy[TG_STATE_BYTES];
static unsigned char file[TG_WEIGHTS_BYTES];

int main(void)
{
    tg_model a, b;
    float x[64], loss[2] = {-1.0f, -1.0f}, logits[10];
    int64_t label = 3;
    FILE *weights = fopen("weights.bin", "rb");
    if (weights == NULL || fread(file, 1, sizeof file, weights) != sizeof file)
        return 1;
    if (memcmp(file, tg_weights, sizeof file) != 0)
        return 2;
    for (int i = 0; i < 64; i++)
        x[i] = (float)i / 64.0f - 0.5f;
    if (tg_init(&a, state[0], arena[0], tg_weights, sizeof file) != TG_OK)
        return 10;
    if (tg_init(&b, state[1], arena[1], file, sizeof file) != TG_OK)
        return 11;
    memset(arena[1], 0x5a, sizeof arena[1]);
    memcpy(copy, state[1], sizeof copy);
    for (int i = 0; i < 5; i++) {
        if (tg_step(&a, x, &label, &loss[0]) != TG_OK)
            return 3;
        tg_update(&a);
    }
    if (memcmp(copy, state[1], sizeof copy) != 0 || memcmp(state[0], state[1], sizeof copy) == 0)
        return 4;
    for (int i = 0; i < TG_ARENA_BYTES; i++)
        if (arena[1][i] != 0x5a)
            return 5;
    for (int i = 0; i < 5; i++) {
        tg_step(&b, x, &label, &loss[1]);
        tg_infer(&a, x, logits);
        tg_update(&b);
    }
    if (loss[0] != loss[1] || memcmp(state[0], state[1], sizeof copy) != 0)
        return 6;
    for (label = -1; label <= 10; label += 11) {
        loss[0] = 123.0f;
        memset(arena[0], 0x5a, sizeof arena[0]);
        if (tg_step(&a, x, &label, &loss[0]) != TG_BAD_LABEL || loss[0] != 123.0f)
            return 7;
        for (int i = 0; i < TG_ARENA_BYTES; i++)
            if (arena[0][i] != 0x5a)
                return 8;
        if (memcmp(state[0], state[1], sizeof copy) != 0)
            return 9;
    }
    printf("%a\\n", (double)loss[1]);
    return 0;
}
"""


def test_two_instances_share_nothing_and_a_bad_label_touches_nothing(built: Path, tmp_path: Path) -> None:
    """Trains A, then B: B is untouched by A's training, and ends in the same state. Links weights.c and libmodel.a."""
    source = tmp_path / "two.c"
    source.write_text(TWO_INSTANCES)
    inputs = [str(path) for path in (source, built / "weights.c", built / "libmodel.a")]
    command = ["gcc", *"-std=c11 -Wall -Wextra -Werror -O1".split(), f"-I{built}", *inputs, "-o", "two"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "two")], cwd=built, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"check {done.returncode} failed"
    assert float.fromhex(done.stdout.strip()) > 0


@pytest.mark.parametrize("label", [-1, 10, 2**40, -(2**63)])
def test_a_label_out_of_range_is_refused_and_changes_nothing(label: int) -> None:
    compiled = zoo_model("simplemlp")
    x, y = batch(compiled)
    with opened(compiled) as session:
        session.step(x, y)
        before = state_of(session)
        with pytest.raises(UserError) as caught:
            session.step(x, y * 0 + label)
        assert str(caught.value) == "a label is outside the classes\n  expected: 0 to 9"
        assert state_of(session) == before
        session.step(x, y)  # and the session goes on


@pytest.mark.parametrize("target", ["host", "mcu"])
def test_weights_as_c_hold_the_bytes_of_weights_bin(tmp_path: Path, target: str) -> None:
    compiled = tg.compile(tg.load("simplemlp"), tg.Recipe(), target=target, weights_as_c=True)
    words = re.findall(rb"0x([0-9a-f]{8})", compiled.project.files["weights.c"])
    content = b"".join(int(word, 16).to_bytes(4, "little") for word in words)
    assert content == compiled.project.files["weights.bin"]
    write_files(tmp_path, compiled.project.files)
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-c", "weights.c"], cwd=tmp_path, check=True)


def test_one_value_as_input_and_as_outputs() -> None:
    """A model may hand an input back, or a value twice: each is a parameter of its own, in the model's order."""
    proto = model(
        [node("Gemm", "x w", "y", "fc"), node("Identity", "y", "z", "copy"), node("Identity", "w", "v", "weight")],
        [value("x", [2, 4])],
        [value("y", [2, 3]), value("x", [2, 4]), value("z", [2, 3]), value("v", [4, 3])],
        {"w": weights(4, 3)},
    )
    x = weights(2, 4, seed=5)
    with opened(tg.compile(proto, tg.Recipe(batch=2), target="host")) as session:
        y, same, z, v = session.run("infer", [x])
        assert same.tobytes() == x.tobytes() and z.tobytes() == y.tobytes() and v.tobytes() == weights(4, 3).tobytes()
        assert session.step(x, [0, 1]) > 0
