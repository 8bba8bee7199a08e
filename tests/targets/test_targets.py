"""Targets are data: what they say, what may be overridden, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tilegrad.errors import UserError
from tilegrad.targets import base as targets
from tilegrad.targets.base import L1, L2, L3, DmaEngine, DmaTiming, Memory, Target

KIB = 1024
SIRACUSA = targets.get("siracusa")


def engine(**changes: object) -> DmaEngine:
    return replace(SIRACUSA.engines[0], **changes)  # type: ignore[arg-type]


def test_siracusa_is_the_chip() -> None:
    """HARDWARE.md's figures."""
    assert (SIRACUSA.cores, SIRACUSA.fpus, SIRACUSA.home, SIRACUSA.compute) == (8, 4, L2, L1)
    capacities = {memory.name: memory.capacity_bytes for memory in SIRACUSA.memories}
    assert capacities[L1] == 240 * KIB and capacities[L3] == 8 * KIB * KIB
    assert 0 < (capacities[L2] or 0) < 0x1F0000
    assert SIRACUSA.memory(L2).core_extra_cycles == 14 and SIRACUSA.memory(L1).core_extra_cycles == 0
    assert SIRACUSA.memory(L3).core_extra_cycles is None
    dma = SIRACUSA.engine(L2, L1)
    assert (dma.longest_bytes, dma.queue_depth, dma.enqueue_cycles) == (131071, 8, 5)
    assert dma.has_2d and dma.duplex


@pytest.mark.parametrize(
    ("size_bytes", "rows", "measured"),
    [
        (64, 1, 23),
        (1024, 1, 143),
        (4096, 1, 527),
        (16384, 1, 2063),
        (65536, 1, 8207),
        (4096, 64, 529),
        (16384, 64, 2065),
    ],
)
def test_dma_takes_what_was_measured(size_bytes: int, rows: int, measured: int) -> None:
    assert SIRACUSA.engine(L2, L1).inward.cycles(size_bytes, rows) == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(
    ("size_bytes", "is_read", "fc_cycles"),
    [
        (64, True, 76),
        (1024, True, 752),
        (4096, True, 2880),
        (16384, True, 11402),
        (65536, True, 45524),
        (64, False, 104),
        (1024, False, 1308),
        (4096, False, 5148),
        (16384, False, 20511),
        (65536, False, 81952),
    ],
)
def test_l3_takes_what_was_measured(size_bytes: int, is_read: bool, fc_cycles: int) -> None:
    """Transfer only, in cycles of the fabric controller: setting one up is an act of the conductor's."""
    hyper = SIRACUSA.engine(L3, L2)
    cycles = (hyper.inward if is_read else hyper.outward).cycles(size_bytes)
    assert cycles == pytest.approx(fc_cycles * 1.4407, rel=0.02)


def test_a_smaller_chip_is_one_folder() -> None:
    small = targets.get("pulp_small")
    assert small.memory(L1).capacity_bytes == 112 * KIB and small.memory(L2).capacity_bytes == 1408 * KIB
    assert small.folder == SIRACUSA.folder and not small.is_flat
    gap9 = targets.get("gap9")
    assert (gap9.cores, gap9.has_controller, gap9.is_calibrated) == (8, True, False)
    assert gap9.memory(L1).capacity_bytes == 112 * KIB and gap9.memory(L2).capacity_bytes == 1328 * KIB
    assert targets.get("mcu").is_flat and targets.get("host").is_flat


IMPOSSIBLE: dict[str, tuple[Callable[[], object], str, str]] = {
    "the capacity of L1 (capacity_bytes)": (lambda: Memory(L1, 0, 8), "1 to 2147483647 bytes", "0"),
    "the capacity of L2 (capacity_bytes)": (lambda: Memory(L2, -5, 8), "1 to 2147483647 bytes", "-5"),
    "the alignment of L1 (alignment_bytes)": (lambda: Memory(L1, 64, 12), "a power of two, 8 or more", "12"),
    "the alignment of L3 (alignment_bytes)": (lambda: Memory(L3, 64, 4), "a power of two, 8 or more", "4"),
    "the alignment of L2 (alignment_bytes)": (lambda: Memory(L2, 64, 1 << 63), "65536 at most", str(1 << 63)),
    "the access cost of L2 (core_extra_cycles)": (lambda: Memory(L2, 64, 8, -1), "0 or more", "-1"),
    "the set-up of a DMA engine (setup_cycles)": (lambda: DmaTiming(-1.0, 0.1), "0 cycles or more", "-1.0"),
    "the speed of a DMA engine (cycles_per_byte)": (lambda: DmaTiming(1.0, 0.0), "more than 0", "0.0"),
    "the queue of mchan (queue_depth)": (lambda: engine(queue_depth=0), "1 or more", "0"),
    "the longest transfer of mchan (longest_bytes)": (lambda: engine(longest_bytes=7), "8 to 2147483647 bytes", "7"),
    "the home memory (home)": (lambda: replace(SIRACUSA, home="L4"), "L1 or L2 or L3", "L4"),
    "the compute memory (compute)": (lambda: replace(SIRACUSA, compute="TCM"), "L1 or L2 or L3", "TCM"),
    "engine mchan (near, far)": (
        lambda: replace(SIRACUSA, engines=(engine(near="L0"),)),
        "two of its memories",
        "L2-L0",
    ),
    "the number of cores (cores)": (lambda: replace(SIRACUSA, cores=0), "1 to 1024", "0"),
    "the number of FPUs (fpus)": (lambda: replace(SIRACUSA, fpus=-4), "1 to 1024", "-4"),
    "the number of clusters (clusters)": (lambda: replace(SIRACUSA, clusters=0), "1 to 128", "0"),
    "the clock (clock_hz)": (lambda: replace(SIRACUSA, clock_hz=-1), "0 Hz or more", "-1"),
    "the conductor (conductor)": (
        lambda: replace(SIRACUSA, conductor="tenth core"),
        "worker or controller",
        "tenth core",
    ),
    "the cost of a row of a DMA engine (cycles_per_extra_row)": (
        lambda: DmaTiming(1.0, 1.0, -1.0),
        "0 cycles or more",
        "-1.0",
    ),
    "the cost of starting mchan (enqueue_cycles)": (lambda: engine(enqueue_cycles=-5), "0 cycles or more", "-5"),
    "the memories (memories)": (
        lambda: replace(SIRACUSA, memories=(*SIRACUSA.memories, SIRACUSA.memories[0])),
        "one of each name",
        "L1, L2, L3, L1",
    ),
    "L1, where kernels compute (core_extra_cycles),": (
        lambda: replace(SIRACUSA, memories=(Memory(L1, 64, 8, None), *SIRACUSA.memories[1:])),
        "a memory that cores address",
        "none",
    ),
    "a hierarchy without a way from L3 to L2 (engines)": (
        lambda: replace(SIRACUSA, engines=SIRACUSA.engines[:1]),
        "an engine near L2, far L3",
        "L2-L1",
    ),
    "a chip that computes in L1, where tensors live (memories),": (
        lambda: replace(SIRACUSA, home=L1, conductor="worker"),
        "one memory (and FLASH), or tensors in L2 and kernels in L1",
        "L1, L2, L3",
    ),
    "the access cost of L3 (core_extra_cycles)": (
        lambda: replace(SIRACUSA, memories=(*SIRACUSA.memories[:2], Memory(L3, 64, 8, 5))),
        "none: only an engine reaches it",
        "5",
    ),
    "the engines (engines)": (
        lambda: replace(SIRACUSA, engines=(*SIRACUSA.engines, engine(name="more"))),
        "one for each of L2-L1 and L3-L2",
        "L2-L1, L3-L2, L2-L1",
    ),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_numbers_that_cannot_be(what: str) -> None:
    make, expected, got = IMPOSSIBLE[what]
    with pytest.raises(UserError) as caught:
        make()
    assert str(caught.value) == f"target: {what} cannot be\n  expected: {expected}\n  got: {got}"
    assert caught.value.exit_status == 2 and caught.value.stage == "target"


@pytest.mark.parametrize("field", ["queue_depth", "enqueue_cycles"])
def test_numbers_that_no_chip_has(field: str) -> None:
    """What 64 bits do not hold would end somewhere behind, in another's words: of a compiler, if 32 bits are meant."""
    with pytest.raises(UserError, match=r"\(longest_bytes\) cannot be\n  expected: 8 to 2147483647 bytes"):
        engine(longest_bytes=1 << 32)
    with pytest.raises(UserError, match=rf"\({field}\) cannot be\n  expected: .* to {1 << 40}"):
        engine(**{field: 1 << 63})
    with pytest.raises(UserError, match=rf"\(setup_cycles\) cannot be\n  expected: {1 << 40} at most"):
        DmaTiming(1e99, 0.1)


@pytest.mark.parametrize("capacity_bytes", [0, -1, 1 << 31, 1 << 40])
def test_l1_has_a_size_that_offsets_reach(capacity_bytes: int) -> None:
    with pytest.raises(UserError) as caught:
        SIRACUSA.with_capacity(L1, capacity_bytes)
    assert str(caught.value) == (
        f"L1 of target 'siracusa' cannot have {capacity_bytes} bytes\n"
        f"  expected: 1 to 2147483647 bytes\n  got: {capacity_bytes} bytes"
    )


def test_a_chip_that_might_be_is_told_from_the_one_that_is() -> None:
    assert SIRACUSA.with_capacity(L1, 32 * KIB).larger_than(SIRACUSA) == ()
    assert [m.name for m in SIRACUSA.with_capacity(L1, 4096 * KIB).larger_than(SIRACUSA)] == ["L1"]


def test_a_memory_that_a_chip_has_not() -> None:
    with pytest.raises(UserError) as caught:
        targets.get("mcu").with_capacity(L1, 1024)
    assert str(caught.value) == "target 'mcu' has no L1\n  expected: RAM or FLASH\n  got: L1"


@pytest.mark.parametrize("cores", [0, -1, 9, 64])
def test_cores_are_those_of_the_chip(cores: int) -> None:
    with pytest.raises(UserError) as caught:
        SIRACUSA.with_cores(cores)
    text = f"target 'siracusa' cannot run on {cores} cores\n  expected: 1 to 8\n  got: {cores}"
    assert str(caught.value) == text and caught.value.exit_status == 2


def test_an_unknown_target_is_explained() -> None:
    with pytest.raises(UserError) as caught:
        targets.get("sirakusa")
    assert caught.value.message == "there is no target 'sirakusa'"
    assert caught.value.hint == "did you mean 'siracusa'?"


def test_overrides_change_nothing_else() -> None:
    changed: Target = SIRACUSA.with_capacity(L1, 32 * KIB).with_cores(2)
    assert changed.memory(L1).capacity_bytes == 32 * KIB and changed.cores == 2
    assert replace(changed, memories=SIRACUSA.memories, cores=8) == SIRACUSA
