"""What adapters save beside training everything, on the chip: as the issue asks of `cct`."""

from __future__ import annotations

import pytest

import tilegrad as tg
from tilegrad.training.beside import beside_all


@pytest.mark.slow
def test_adapters_of_cct_save_what_they_promise() -> None:
    beside = beside_all(tg.compile("cct", tg.Recipe(train="lora:4:16:*attn*"), "siracusa"))
    assert beside is not None
    adapters, everything = beside.adapters, beside.everything
    assert everything.trained >= 14 * adapters.trained
    assert adapters.dynamic_bytes <= 0.77 * everything.dynamic_bytes
    assert adapters.dma_bytes is not None and everything.dma_bytes is not None
    assert everything.dma_bytes >= 1.6 * adapters.dma_bytes


def test_a_program_without_adapters_has_nothing_beside() -> None:
    assert beside_all(tg.compile("simplemlp")) is None
