"""Power fails at any byte of any erase or program, and bits flip anywhere: no completed save is lost, no corrupt one is
loaded. The flash is `tg_storage_nor.c`, which tears pages and sectors; power.c says what was lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.storage.programs import power_program, run
from tests.support.projects import SANITIZER_FLAGS

GEOMETRIES = [(4096, 256), (512, 8), (2048, 1), (65536, 512), (256, 256)]
"""Sectors and pages: a usual flash, a small one's words, single bytes, large sectors, and pages that are sectors."""


@pytest.fixture(scope="module")
def power(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return power_program(tmp_path_factory.mktemp("power"))


def counted(text: str, word: str) -> int:
    found = re.search(rf"{word} (\d+)", text)
    assert found is not None, text
    return int(found[1])


@pytest.mark.parametrize(("sector", "page"), GEOMETRIES)
def test_no_completed_save_is_lost(power: Path, sector: int, page: int) -> None:
    status, text = run(power, "cuts", 400, sector + page, sector, page)
    assert status == 0, text
    assert counted(text, "cuts") == 400 and counted(text, "saves") > 20, text


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_cuts(power: Path, seed: int) -> None:
    for sector, page in GEOMETRIES:
        status, text = run(power, "cuts", 2000, seed, sector, page)
        assert status == 0 and counted(text, "cuts") == 2000, text


@pytest.mark.parametrize(("sector", "page"), GEOMETRIES)
def test_no_corrupt_save_is_loaded(power: Path, sector: int, page: int) -> None:
    """1,000 flips of one bit anywhere, and 1,000 of one in each slot. The save before is used, and a status says so."""
    status, text = run(power, "flips", 1000, sector, sector, page)
    assert status == 0, text
    assert counted(text, "the save before used") > 0, text


@pytest.mark.parametrize("target", ["host", "siracusa"])
def test_clean_under_sanitizers(tmp_path: Path, target: str) -> None:
    program = power_program(tmp_path, target, SANITIZER_FLAGS)
    for what in ("cuts", "flips"):
        status, text = run(program, what, 40, 7, 4096, 256)
        assert status == 0, text


FAULTS = {
    "the only save is overwritten": (b"int other = last_complete(slots) == 0;", b"int other = 0;"),
    "a save counts before all of it is there": (
        b"slot.is_complete = slot.record.word[AT_VERSION] != VERSION || "
        b"payload_is_whole(storage, slot.offset, &slot.record);",
        b"slot.is_complete = 1;",
    ),
    "the record is not checked": (
        b"return record->word[AT_MAGIC] == MAGIC && record->word[AT_RECORD_CRC] == record_crc(record);",
        b"return record->word[AT_MAGIC] == MAGIC;",
    ),
    "nothing says that a later save is damaged": (b"? TG_OLDER_SAVE : TG_OK;", b"? TG_OK : TG_OK;"),
    "gradients are forgotten": (b"int with_gradients = is_accumulating(m);", b"int with_gradients = 0;"),
    "counters are forgotten": (
        b"m->updates = long_at(&slots[last].record, AT_UPDATES);",
        b"m->updates = 0;",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_would_be_found(tmp_path: Path, fault: str) -> None:
    program = power_program(tmp_path, flags=("-std=c99", "-O2", "-w"), tg_storage=FAULTS[fault])
    results = [run(program, what, 300, 5, 512, 8) for what in ("cuts", "flips")]
    assert any(status == 1 and "LOST" in text for status, text in results), results


def test_a_flash_that_is_too_small(power: Path) -> None:
    status, text = run(power, "size", 4096, 256)
    assert status == 0 and int(text) == 24576
    status, text = run(power, "write", "small.bin", 8192, 4)
    assert "status 14" in text and "needed 24576" in text, text
    status, text = run(power, "write", "odd.bin", 12288, 4)
    assert "status 9" in text, text
