"""Sums that are longer than L2: their panels come in the order of the sum and go on from each other, with the host's
bits; one that does not is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from tests.place.test_panels import checked, dense, with_launch
from tests.schedule.programs import KIB, quick_sim, siracusa
from tests.support.models import model, node, value, weights
from tilegrad import frontend
from tilegrad.compiled import Compiled
from tilegrad.devices.host import HostDevice
from tilegrad.errors import DoesNotFit
from tilegrad.frontend import ImportedModel
from tilegrad.ir.nest import AxisKind, Range
from tilegrad.ir.plan import Plan
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Recipe
from tilegrad.sequence import replay
from tilegrad.sequence.needs import Needs
from tilegrad.sequence.parts import wrong_parts
from tilegrad.sequence.replay import ListingError
from tilegrad.targets.base import get
from tilegrad.training.train import train


def image() -> ImportedModel:
    """An image of 6.4 KB for each channel: gradients of weights and of a normalization are sums over all of it."""
    nodes = [
        node("Conv", "x w1 b1", "c1", "/conv1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c1 g s m v", "n1", "/norm"),
        node("Relu", "n1", "r1", "/relu"),
        node("Conv", "r1 w2", "c2", "/conv2", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0]),
        node("GlobalAveragePool", "c2", "p", "/mean"),
        node("Flatten", "p", "f", "/flatten"),
        node("Gemm", "f w3", "y", "/fc"),
    ]
    tensors = {
        "w1": weights(3, 2, 3, 3, seed=1) * 0.3,
        "b1": weights(3, seed=2),
        "g": weights(3, seed=3),
        "s": weights(3, seed=4),
        "m": weights(3, seed=5) * 0.1,
        "v": abs(weights(3, seed=6)) + 0.5,
        "w2": weights(2, 3, 3, 3, seed=7) * 0.3,
        "w3": weights(2, 4, seed=8),
    }
    return frontend.load(model(nodes, [value("x", ["batch", 2, 40, 40])], [value("y", ["batch", 4])], tensors))


MODELS: dict[str, tuple[Callable[[], ImportedModel], int]] = {
    "dense": (lambda: dense(1200, 4, 3), 4 * KIB),
    "image": (image, 12 * KIB),
}


@cache
def compiled(name: str) -> Compiled:
    make, l2_bytes = MODELS[name]
    return compile_model(make(), Recipe(), siracusa(8 * KIB, l2_bytes=l2_bytes))


def continuing(plan: Plan, entry: str = "step") -> list[int]:
    launches = plan.schedule.entries[entry].launches
    return [i for i, launch in enumerate(launches) if any(o.continues for n in launch.nests for o in n.operands)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_sum_longer_than_l2_has_the_bits_of_the_host(name: str) -> None:
    found = compiled(name)
    assert len(continuing(found.plan)) > 2
    host = compile_model(MODELS[name][0](), Recipe(), get("host"))
    with quick_sim() as sim, HostDevice() as device:
        runs = [train(found, sim, steps=2, verify=False), train(host, device, steps=2, verify=False)]
    assert runs[0].losses == runs[1].losses and runs[0].weights_sha256 == runs[1].weights_sha256


def test_panels_of_a_sum_out_of_order_are_found() -> None:
    plan = compiled("dense").plan
    number = continuing(plan)[-1]
    schedule = plan.schedule.entries["step"]
    launches = list(schedule.launches)
    assert wrong_parts(schedule, Needs()) is None
    launches[number - 1], launches[number] = launches[number], launches[number - 1]
    found = wrong_parts(replace(schedule, launches=tuple(launches)), Needs())
    assert found is not None and found[1] == "the panels of a sum are not in its order"


def test_a_sum_that_begins_anew_is_found() -> None:
    plan = compiled("dense").plan
    number = continuing(plan)[0]
    launch = plan.schedule.entries["step"].launches[number]
    (nest,) = launch.nests
    forgets = replace(launch, nests=(replace(nest, operands=nest.pointers),))
    with pytest.raises(ListingError, match="does not go on from the sums that were begun"):
        checked(with_launch(plan, "step", number, forgets))
    summed = next(axis.name for axis in nest.axes if axis.kind is AxisKind.REDUCTION)
    origin = tuple(one for one in nest.origin if one[0] != summed)
    unaware = replace(launch, nests=(replace(nest, origin=origin),))
    with pytest.raises(ListingError, match="does not know that it is a part of the sum"):
        checked(with_launch(plan, "step", number, unaware))


def test_what_a_sum_goes_on_from_is_what_was_summed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay counts steps of sums itself: it finds a panel that leaves out a step."""
    plan = compiled("dense").plan
    number = continuing(plan)[0]
    launch = plan.schedule.entries["step"].launches[number]
    assert launch.part is not None
    summed = next(axis.name for axis in launch.nests[0].axes if axis.kind is AxisKind.REDUCTION)
    r = launch.part.ranges[summed]
    later = replace(launch.part, ranges={**launch.part.ranges, summed: Range(r.start + 1, r.stop)})
    monkeypatch.setattr(replay, "wrong_parts", lambda schedule, needs: None)
    with pytest.raises(ListingError, match=r"finds 'h0, [\d,]+ of 1,200 steps of its sum' where"):
        checked(with_launch(plan, "step", number, replace(launch, part=later)))


def test_an_l2_too_small_for_one_panel_is_refused_with_one_that_would_do() -> None:
    target = siracusa(8 * KIB, l2_bytes=24)
    with pytest.raises(DoesNotFit, match="the smallest panel of an operator does not fit into L2") as caught:
        compile_model(dense(1200, 4, 3), Recipe(), target)
    assert caught.value.hint is not None and caught.value.node is not None
    needed = int(caught.value.hint.split("at least ")[1].split()[0])
    compile_model(dense(1200, 4, 3), Recipe(), siracusa(8 * KIB, l2_bytes=needed))


def test_an_operator_of_too_many_panels_is_refused_with_an_l2_that_takes_fewer() -> None:
    target = siracusa(8 * KIB, l2_bytes=256)
    with pytest.raises(DoesNotFit, match=r"in panels that fit into L2 has more than 4,096 of them") as caught:
        compile_model(dense(600, 300, 3), Recipe(), target)
    assert caught.value.hint is not None and caught.value.node is not None
    assert int(caught.value.hint.split("at least ")[1].split()[0]) > 256
