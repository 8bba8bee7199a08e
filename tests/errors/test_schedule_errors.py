"""What does not fit is refused with the operator, its byte budget, and what would do."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import tilegrad as tg
from tests.schedule.programs import UNTILED, compiled_for, siracusa
from tests.sequence.test_pipes import PAIR, product_then_sum
from tests.support.models import mlp
from tests.support.small_models import linear
from tilegrad import frontend, pipeline
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.errors import DoesNotFit, UserError
from tilegrad.ir.nest import Nest
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.tiling import TilingOptions, TilingSearch
from tilegrad.targets import base as targets


def test_an_l1_that_cannot_hold_one_element() -> None:
    with pytest.raises(DoesNotFit) as caught:
        compiled_for("simplemlp", siracusa(24))
    assert re.fullmatch(
        r"node '/fc1/Gemm': the smallest tile of tg_gemm_nt does not fit into L1\n"
        r"  expected: at most 24 bytes\n"
        r"  got: (\d+) bytes: .*, its description \d+\n"
        r"  hint: give L1 at least \1 bytes \(--l1\)",
        str(caught.value),
    )
    assert caught.value.exit_status == 2


def test_rows_that_a_kernel_needs_whole() -> None:
    """Softmax needs its row, so L1 must hold one."""
    step = compiled_for("simplemlp", siracusa(), UNTILED).plan.schedule.entries["step"]
    (loss,) = [launch for launch in step.launches if launch.node.op == "SoftmaxCrossEntropyLossWithGrad"]
    (nest,) = loss.nests
    with pytest.raises(DoesNotFit) as caught:
        _search(loss.node.op, nest, 88).choices(loss.node.name)
    assert caught.value.message == "the smallest tile of tg_nll_with_grad_i64 does not fit into L1"
    assert str(caught.value.got).partition(": ")[2].startswith("x 40, label 8, dy 4, loss 4, dx 40, its description ")


@pytest.mark.parametrize("name", ["simplemlp", "attention", "odd_cnn"])
def test_following_the_hint_leads_to_a_program(name: str) -> None:
    """The operator that needs most is named, not the first one: what the hint asks for is enough for all of them."""
    options = ScheduleOptions(buffering="single")
    with pytest.raises(DoesNotFit) as caught:
        compiled_for(name, siracusa(8), options)
    (wanted,) = re.findall(r"give L1 at least (\d+) bytes", caught.value.hint or "")
    compiled_for(name, siracusa(int(wanted)), options)
    with pytest.raises(DoesNotFit) as again:
        compiled_for(name, siracusa(int(wanted) // 2), options)
    assert again.value.node == caught.value.node


def _search(op: str, nest: Nest, l1_bytes: int) -> TilingSearch:
    target = siracusa(l1_bytes)
    options = TilingOptions(target, "auto", KernelCosts(target))
    return TilingSearch(options, op, nest)


@pytest.mark.parametrize("name", ["attention", "odd_cnn", "resnet8"])
def test_the_smallest_l1_is_the_smallest(name: str) -> None:
    """For every kind of nest: that much will do, and half of it will not."""
    seen: set[object] = set()
    for entry in compiled_for(name, siracusa(), UNTILED).plan.schedule.entries.values():
        for launch in entry.launches:
            for nest in launch.nests:
                key = (nest.kernel, nest.axes)
                if key in seen:
                    continue
                seen.add(key)
                op = launch.node.op
                _, smallest = _search(op, nest, 1024).smallest()
                tiling = _search(op, nest, smallest).choices(launch.node.name)[0][0]
                assert tiling.scratch_bytes < smallest
                with pytest.raises(DoesNotFit) as caught:
                    _search(op, nest, smallest // 2).choices(launch.node.name)
                assert caught.value.node == launch.node.name
                assert caught.value.hint == f"give L1 at least {smallest} bytes (--l1)"
    assert len(seen) > 20


def test_home_l2_that_does_not_fit() -> None:
    recipe = Recipe()
    with pytest.raises(DoesNotFit) as caught:
        compile_model(frontend.load("mobilenetv1"), recipe, siracusa(), options=replace(UNTILED, home="L2"))
    error = caught.value
    assert re.fullmatch(r"the step entry does not fit into L2", error.message)
    assert error.expected == "at most 1818624 bytes"
    found = re.fullmatch(r"(\d+) bytes at this node: (\d+) of state and (\d+) of activations", error.got or "")
    assert found is not None
    total, state, activations = map(int, found.groups())
    assert total == state + activations > 1818624
    assert error.hint == "use --home auto, which moves tensors to L3"
    assert error.node is not None and error.exit_status == 2


def test_an_l2_that_not_even_l3_can_help() -> None:
    with pytest.raises(DoesNotFit) as caught:
        compile_model(frontend.load(mlp(), batch=4), Recipe(batch=4), siracusa(l2_bytes=64), options=UNTILED)
    error = caught.value
    assert error.expected == "at most 64 bytes"
    assert re.fullmatch(r"\d+ bytes at this node: \d+ of state and \d+ of activations", error.got or "")
    peak = int((error.got or "").split()[0])
    assert error.hint == f"give L2 at least {peak} bytes (--l2)"


@pytest.mark.parametrize("home", ["auto", "L2", "L3"])
def test_a_model_that_is_too_large_for_l3_too(home: str) -> None:
    """2,000 times 2,500 weights take 20 MB: no other home would help, nor more of L2 alone."""
    with pytest.raises(DoesNotFit) as caught:
        options = ScheduleOptions(home=home, fuses_update=True)
        compile_model(frontend.load(linear(2000, 2500)), Recipe(), siracusa(), options=options)
    error = caught.value
    assert error.message == "the program does not fit into L3 of siracusa, nor into L2 and L3 together"
    assert error.expected == "at most 8388608 bytes in L3 and 1818624 in L2"
    found = re.fullmatch(r"(\d+) bytes: (\d+) of state and (\d+) of activations", error.got or "")
    assert found is not None
    total, state, activations = map(int, found.groups())
    assert total == state + activations and state >= 4 * 2000 * 2500 and error.exit_status == 2


def test_what_is_refused_untiled_is_trained_in_panels() -> None:
    """dscnn keeps 97 KB of state; one of its convolutions needs its own weights and their gradient in L2, 33 KB."""
    with pytest.raises(DoesNotFit) as caught:
        compiled_for("dscnn", siracusa(l2_bytes=64 * 1024), UNTILED)
    error = caught.value
    peak, state, activations = map(int, re.findall(r"\d+", (error.got or "").replace(" at this node", "")))
    assert error.node is not None and peak == state + activations > 64 * 1024
    assert compiled_for("dscnn", siracusa(l2_bytes=64 * 1024)).plan.memory["L2"].used_bytes <= 64 * 1024


@pytest.mark.parametrize(
    ("word", "value", "choices"),
    [
        ("buffering", "triple", "auto or single or double, or of each hop, as l2=single,l3=double"),
        ("home", "L4", "auto or L2 or L3"),
    ],
)
def test_options_that_do_not_exist(word: str, value: str, choices: str) -> None:
    with pytest.raises(UserError) as caught:
        ScheduleOptions(**{word: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"--{word} cannot be '{value}'\n  expected: {choices}\n  got: {value}"


def test_the_matrix_of_l1_sizes_runs_or_is_refused() -> None:
    """32 KB are enough for every operator of these; 8 KB too, or the message has the budget."""
    for l1_bytes in (8 * 1024, 32 * 1024):
        for name in ("resnet8", "dscnn"):
            plan = compiled_for(name, siracusa(l1_bytes)).plan
            assert plan.memory["L1"].used_bytes <= l1_bytes


def test_a_fused_program_that_fits_l2_has_readable_gradients() -> None:
    """Its gradients come from the unfused program, which needs twice as much: that one may use L3."""
    options = ScheduleOptions(home="L2", fuses_update=True)
    fused = compiled_for("autoencoder", siracusa(), options)
    assert fused.program.is_fused and fused.plan.memory["L3"].used_bytes == 0
    unfused = pipeline.unfused(fused)
    assert not unfused.program.is_fused and unfused.plan.memory["L3"].used_bytes > 0
    with pytest.raises(DoesNotFit):
        compiled_for("autoencoder", siracusa(), ScheduleOptions(home="L2"))


@pytest.mark.parametrize(
    ("width", "engine", "budget"),
    [(2048, "matrix", "a 96, b 196608, y 8192"), (1024, "vector", "a 4096, b 4096, y 4096")],
)
def test_slots_of_a_pipe_that_do_not_fit_are_refused_with_their_bytes(width: int, engine: str, budget: str) -> None:
    """On the side that makes boxes, and on the one that reads them."""
    sizes = {"matrix": 65536 if engine == "matrix" else 1 << 20, "vector": 3072}
    npu = targets.get("npu")
    engines = tuple(replace(one, scratch_bytes=sizes[one.name]) for one in npu.compute_engines)
    with pytest.raises(DoesNotFit) as caught:
        tg.compile(
            product_then_sum(16, 24, width),
            tg.Recipe(loss="mse", batch=16),
            target=replace(npu, clusters=3, compute_engines=engines),
            pipes=[(*PAIR, 2)],
        )
    error = caught.value
    assert error.message == f"the slots of a pipe from 'first' to 'second' do not fit into {engine}"
    assert error.expected == f"at most {sizes[engine]} bytes" and budget in (error.got or "")
    assert error.exit_status == 2 and error.node is not None
