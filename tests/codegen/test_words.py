"""What the tile runtime reads: the C object has the planned words, and nests run in their order or not at all."""

from __future__ import annotations

import re
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import tilegrad as tg
from tests.schedule.programs import compiled_for, siracusa
from tests.support.projects import CONTRACT_FLAGS, batch, toolchain
from tilegrad.analysis.decode import decode_table
from tilegrad.analysis.layout import CALL, CONSTANTS, DIM, FIELD, HEADER, LOOP, NEST, OPERAND
from tilegrad.analysis.tables import nest_fields
from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import build
from tilegrad.codegen.cluster import MOST_NAMED_WORDS
from tilegrad.compiled import Compiled
from tilegrad.devices.sim import SimDevice
from tilegrad.errors import DeviceError, InternalError
from tilegrad.ops.kernels import RUNTIME_FOLDER
from tilegrad.schedule.options import ScheduleOptions

LAYOUTS = (NEST, OPERAND, LOOP, DIM, FIELD, CALL)
DUMP = """
#include <stdio.h>
#include "model_c.h"
int main(void) { return fwrite(&words, sizeof words, 1, stdout) != 1; }
"""
TILED = ScheduleOptions(buffering="double")


def test_the_layout_is_the_compilers(tmp_path: Path) -> None:
    """Sizes, offsets and constants that Python read from the header, as a C compiler sees them."""
    lines = []
    for layout in LAYOUTS:
        lines.append(f'_Static_assert(sizeof({layout.name}) == {4 * layout.words}, "{layout.name}");')
        lines += [
            f'_Static_assert(offsetof({layout.name}, {name}) == {4 * place}, "{layout.name}.{name}");'
            for name, place in layout.places.items()
        ]
    lines += [f'_Static_assert((long long){name} == {value}LL, "{name}");' for name, value in CONSTANTS.items()]
    files = compiled_for("simplemlp", siracusa(256 * 1024), TILED).project.files
    write_files(tmp_path, files)
    for header in (*HEADER.parent.glob("*.h"), *(RUNTIME_FOLDER / "pipes").glob("*.h")):
        (tmp_path / header.name).write_bytes(header.read_bytes())  # with its sections on blocks and pipes
    defined = "#define TG_BLOCKS 1\n#define TG_CLUSTERS 1\n#define TG_CARRIES\n"
    defined += "#define TG_PIPES 1\n#define TG_PIPE_DEPTH 1\n#define TG_EPILOGUES 2\n"
    (tmp_path / "layout.c").write_text(f'{defined}#include <stddef.h>\n#include "tg_tile.h"\n' + "\n".join(lines))
    assert len(lines) > 80 and HEADER.name in files
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", "layout.c"], cwd=tmp_path, check=True)


def test_a_record_takes_all_of_its_fields_and_no_other() -> None:
    values = dict.fromkeys(FIELD.fields, 1)
    assert FIELD.encode(**values) == [1] * FIELD.words
    with pytest.raises(InternalError):
        FIELD.encode(**{**values, "other": 1})
    with pytest.raises(InternalError):
        FIELD.encode(word=1)


@pytest.mark.parametrize(
    ("name", "l1_kib"), [("simplemlp", 256), ("simplemlp", 2), pytest.param("resnet8", 32, marks=pytest.mark.slow)]
)
def test_the_c_object_has_the_planned_tables(tmp_path: Path, name: str, l1_kib: int) -> None:
    """Compiled, dumped and read back: every table of the plan is in it, word for word, kernels' numbers apart."""
    compiled = compiled_for(name, siracusa(l1_kib * 1024), TILED)
    files = {**compiled.project.files, "main.c": DUMP.encode()}
    files["model_c.h"] = files.pop("model.c")
    write_files(tmp_path, files)
    program = build(toolchain("gcc", CONTRACT_FLAGS), tmp_path, files, "dump")
    content = subprocess.run([str(program)], cwd=tmp_path, capture_output=True, check=True).stdout
    dumped = struct.unpack(f"<{len(content) // 4}i", content)
    planned = {nest.table for entry in compiled.listing.entries.values() for nest in entry.nests}
    assert planned
    text = ",".join(map(str, dumped))
    for table in planned:
        assert ",".join(map(str, table[1:])) in text
    assert len(dumped) >= sum(map(len, planned))


def test_tables_read_back_from_their_words() -> None:
    compiled = compiled_for("simplemlp", siracusa(2 * 1024), TILED)
    entry = compiled.plan.schedule.entries["step"]
    for listed in compiled.listing.entries["step"].nests:
        launch = entry.launches[listed.launch]
        nest = listed.nest
        fields = nest_fields(launch.node.op, nest)
        table = decode_table(listed.table, len(fields))
        assert len(table.operands) == len(nest.operands) and len(table.args) == len(fields)
        records = (table.nest, *table.operands, *table.loops, *table.dims, *table.fields)
        words = [word for record in records for word in record.values()]
        assert (*words, *table.args, *table.levels) == listed.table


def with_model(compiled: Compiled, text: str) -> Compiled:
    files = {**compiled.project.files, "model.c": text.encode()}
    return replace(compiled, project=replace(compiled.project, files=files))


def _named(call: str) -> str:
    """What keeps a compiler from seeing that a function is not called."""
    return re.sub(r"(\w+)\(.*", r"(void)\1;", call)


CHANGES = {
    "two lines change places": lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]],
    "a line is missing": lambda lines: [*lines[:4], _named(lines[4]), *lines[5:]],
    "a line is there twice": lambda lines: [*lines[:5], lines[4], *lines[5:]],
    "the last line is missing": lambda lines: [*lines[:-1], _named(lines[-1])],
    "the last line is there twice": lambda lines: [*lines, lines[-1]],
}


@pytest.mark.parametrize("is_tiled", [True, False], ids=["tiled", "whole"])
@pytest.mark.parametrize("change", CHANGES)
def test_nests_out_of_order_are_refused(change: str, is_tiled: bool) -> None:
    """Whoever edits an entry by hand gets a status, or a hazard of the simulator's, and no wrong result."""
    compiled = compiled_for("simplemlp", siracusa(256 * 1024), replace(TILED, is_tiled=is_tiled))
    text = compiled.project.files["model.c"].decode()
    start = text.index("    tg_start(t, m, &program, &step_entry);")
    calls = re.findall(r"^    (?:forward|train|backward)_\w+\(t.*\);\n", text[start:], re.MULTILINE)
    assert len(calls) >= 6 and "".join(calls) in text
    changed = with_model(compiled, text.replace("".join(calls), "".join(CHANGES[change](calls))))
    x, y = batch(compiled)
    with SimDevice("sim:siracusa") as device, pytest.raises(DeviceError) as caught:
        device.load(changed).step(x, y)
    assert "status 11" in str(caught.value) or "hazard" in str(caught.value)


def test_a_small_program_names_every_field_and_a_large_one_is_brief() -> None:
    small = tg.compile(tg.load("simplemlp"), tg.Recipe(), target="siracusa").project.files["model.c"].decode()
    assert ".row_bytes = 256, .rows = 1" in small and "S(fc1_weight)" in small
    found = re.search(r"sizeof\(words_t\) == (\d+)", small)
    assert found and int(found[1]) < 4 * MOST_NAMED_WORDS[False]
    assert not re.search(r"(?:\b\d+, ){6}", small[small.index("words_t words") :])
