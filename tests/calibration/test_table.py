"""The table of kernel costs: complete, and made from the sources as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilegrad import frontend, zoo
from tilegrad.build.riscv import COUNTED_FLAGS
from tilegrad.calibration.counting import missing_tools, source_hash
from tilegrad.calibration.table import (
    FEWEST,
    content_hash,
    description_hash,
    make_table,
    merged,
    stale_kernels,
)
from tilegrad.costs.derived import family_of
from tilegrad.costs.kernel_cost import CLASSES, KernelCosts
from tilegrad.costs.loops import is_mirrored
from tilegrad.ir.nest import Nest
from tilegrad.ops import registry
from tilegrad.ops.kernels import parse_kernel_file
from tilegrad.passes.parameters import select
from tilegrad.passes.program import derive_program
from tilegrad.pipeline import canonical_graph, defaults, forward_graph
from tilegrad.recipe import Recipe
from tilegrad.schedule.schedule import schedule_program
from tilegrad.targets.base import get

COSTS = KernelCosts(get("siracusa"))
SOURCES = sorted({path for op in registry.names() if (path := registry.kernel_source(op)) is not None})
KERNELS = sorted(kernel.name for path in SOURCES for kernel in parse_kernel_file(path).kernels)


def _counted_sources() -> set[str]:
    return {entry["source"] for entry in COSTS.table["kernels"].values()}


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name in _counted_sources()], ids=lambda p: p.name)
def test_counts_are_of_the_sources_as_they_are(path: Path) -> None:
    """A source without any counts is no mistake: its kernels' cycles are shown as uncounted."""
    assert COSTS.table["sources"].get(path.name) == source_hash(path), f"{path.name} has changed: run make calibrate"


def test_counts_are_of_the_descriptions_and_the_content_as_they_are() -> None:
    """Coefficients belong to trip counts: where a description changes, they are fitted anew."""
    kernels = COSTS.table["kernels"]
    changed = [kernel for kernel, entry in kernels.items() if entry["description"] != description_hash(kernel)]
    assert changed == [], "descriptions have changed: run make calibrate"
    assert COSTS.table["content"] == content_hash(), "content has changed: run make calibrate"


def test_a_changed_description_is_stale() -> None:
    kernels = {**COSTS.table["kernels"], "gemm_nn": {**COSTS.table["kernels"]["gemm_nn"], "description": "another"}}
    uncounted = {kernel for kernel in KERNELS if not COSTS.is_counted(kernel)}
    assert stale_kernels(COSTS.table) == uncounted
    assert stale_kernels({**COSTS.table, "kernels": kernels}) == {"gemm_nn", *uncounted}
    assert stale_kernels({**COSTS.table, "content": "another"}) == set(KERNELS)


def test_the_table_says_where_it_comes_from() -> None:
    assert "riscv64" in COSTS.table["compiler"]
    assert "qemu" in COSTS.table["emulator"]
    assert COSTS.table["flags"] == " ".join(COUNTED_FLAGS)


def test_no_counts_are_of_kernels_that_are_gone() -> None:
    assert set(COSTS.table["kernels"]) <= set(KERNELS)


def test_only_matrix_products_convolutions_and_rank_one_updates_are_mirrored() -> None:
    """All others are derived from their nest: a new operator needs no description."""
    mirrored = [kernel for kernel in KERNELS if is_mirrored(kernel)]
    assert all(re.match("gemm|matmul|conv|outer|dense_grad", kernel) for kernel in mirrored)
    assert "conv_db" not in mirrored and len(mirrored) < 30


def test_coefficients_are_well_formed() -> None:
    for kernel, entry in COSTS.table["kernels"].items():
        for variant, found in entry["variants"].items():
            assert found["samples"] >= FEWEST, (kernel, variant)
            assert set(found["classes"]) <= set(CLASSES)
            for values in found["classes"].values():
                assert len(values) == len(found["trips"])
                assert min(values) >= 0


def _zoo_nests(name: str, recipe: Recipe) -> list[Nest]:
    model = frontend.load(name)
    graph = canonical_graph(model, recipe)
    loss, train = defaults(model)
    forward = forward_graph(graph, freezes=recipe.batchnorm != "train")
    program = derive_program(*forward, recipe, model.roles, select(graph, model.parameters, train), loss)
    schedule = schedule_program(program, get("host"))
    return [nest for entry in schedule.entries.values() for launch in entry.launches for nest in launch.nests]


@pytest.mark.parametrize("name", zoo.names())
def test_every_nest_of_the_zoo_has_counts_of_its_own_variant(name: str) -> None:
    for nest in _zoo_nests(name, Recipe()):
        entry = COSTS.table["kernels"][nest.kernel]
        assert family_of(nest, entry).variant(nest) in entry["variants"], nest.kernel


@pytest.mark.skipif(bool(missing_tools()), reason="a table names the tools that it was made with")
def test_counting_a_few_kernels_keeps_what_the_others_have() -> None:
    """The estimate of uncounted kernels rests on all that were counted, not on those counted last."""
    nothing = make_table({}, 1)
    assert nothing["kernels"] == {}
    kept = merged(COSTS.table, nothing)
    assert kept["uncounted"] == COSTS.table["uncounted"] and kept["kernels"].keys() == COSTS.table["kernels"].keys()
