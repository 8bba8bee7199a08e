"""Sections of the runtime that a program has no use for, against what a C preprocessor leaves."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import tilegrad as tg
from tilegrad.codegen.texts import with_sections
from tilegrad.ops.kernels import RUNTIME_FOLDER

TEXT = """a
#ifdef GONE
b
#ifdef OTHER
c
#else
d
#endif
#else
e
#endif
#ifndef GONE
f
#if 1
g
#endif
#else
h
#endif

#ifdef GONE

#endif

i
"""


def test_what_stays() -> None:
    assert with_sections(TEXT, {"GONE": False}) == "a\ne\nf\n#if 1\ng\n#endif\n\ni\n"
    assert with_sections(TEXT, {"GONE": True}) == "a\nb\n#ifdef OTHER\nc\n#else\nd\n#endif\nh\n\ni\n"
    assert with_sections(TEXT, {"GONE": True, "OTHER": False}) == "a\nb\nd\nh\n\ni\n"
    assert with_sections(TEXT, {}) == TEXT.replace("\n\n\n", "\n\n")


@pytest.mark.parametrize("target", ["host", "mcu", "siracusa", "mppa", "cortex_m7", "opencl"])
def test_nothing_is_left_to_fill_in(target: str) -> None:
    files = tg.compile("simplemlp", target=target, weights_as_c=True).project.files
    texts = {name: content.decode() for name, content in files.items() if not name.endswith(".bin")}
    assert {name for name, text in texts.items() if re.search(r"@\w+@|\bHAS_", text)} == set()


CLUSTER = ("tg_tile.c", "tg_tile.h", "tg_cluster.h")


@pytest.mark.parametrize("path", [*(f"cluster/{name}" for name in CLUSTER), "sim/tg_sim.c", "main.c"])
def test_the_compiler_sees_the_same(path: str, tmp_path: Path) -> None:
    text = (RUNTIME_FOLDER / path).read_text(encoding="utf-8")
    absent = dict.fromkeys(["TG_BLOCKS", "TG_MOST_BLOCKS", "TG_PIPES", "TG_CARRIES"], False)
    seen = [_preprocessed(each, tmp_path) for each in (text, with_sections(text, absent))]
    assert seen[0] == seen[1]


def _preprocessed(text: str, folder: Path) -> list[str]:
    """Every line that is left, without what is included."""
    source = folder / "source.c"
    source.write_text("\n".join(line for line in text.splitlines() if "#include" not in line), encoding="utf-8")
    command = ["gcc", "-E", "-P", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
