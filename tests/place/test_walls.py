"""Models that are larger than L2 in every way, trained with the host's bits: long, for the matrix."""

from __future__ import annotations

import io
import resource
from collections.abc import Callable
from dataclasses import dataclass

import onnx
import pytest
import torch
from torch import nn

from tests.place.test_panels import dense
from tests.schedule.programs import quick_sim
from tilegrad import frontend, zoo
from tilegrad.compiled import Compiled
from tilegrad.devices.host import HostDevice
from tilegrad.frontend import ImportedModel
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Adam, Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets.base import L1, L2, L3, get
from tilegrad.training.train import train

KIB = 1024
MIB = 1024 * KIB
pytestmark = pytest.mark.matrix


def exported(module: nn.Module, *shape: int) -> ImportedModel:
    torch.manual_seed(0)
    file = io.BytesIO()
    torch.onnx.export(module.eval(), (torch.randn(shape),), file, opset_version=17, dynamo=False)  # type: ignore[arg-type]
    return frontend.load(onnx.load_model_from_string(file.getvalue()))


class LargeConv(nn.Module):
    """Activations of 32 x 128 x 128, 2 MB each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.last = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        found: torch.Tensor = self.last(y.mean((2, 3)))
        return found


class Inverted(nn.Module):
    """A block of MobileNetV3: expansion, depthwise, squeeze and excitation, projection."""

    def __init__(self, inner: int, wide: int, outer: int, stride: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.depthwise = nn.Sequential(depthwise, nn.BatchNorm2d(wide), nn.Hardswish())
        squeezed = (nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, wide // 4, 1), nn.ReLU())
        self.excite = nn.Sequential(*squeezed, nn.Conv2d(wide // 4, wide, 1), nn.Hardsigmoid())
        self.project = nn.Sequential(nn.Conv2d(wide, outer, 1, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.depthwise(self.expand(x))
        y: torch.Tensor = self.project(wide * self.excite(wide))
        return x + y if x.shape == y.shape else y


class Ghost(nn.Module):
    """A module of GhostNet: half of the channels are made cheaply from the other half."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        half = outer // 2
        self.primary = nn.Sequential(nn.Conv2d(inner, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU())
        cheap = nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False)
        self.cheap = nn.Sequential(cheap, nn.BatchNorm2d(half), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.primary(x)
        return torch.cat([made, self.cheap(made)], 1)


def classifier(channels: int, *body: nn.Module) -> nn.Module:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def mobilenet() -> ImportedModel:
    stem = nn.Conv2d(3, 16, 3, 2, 1)
    return exported(classifier(24, stem, Inverted(16, 64, 16, 1), Inverted(16, 72, 24, 2)), 1, 3, 128, 128)


def ghostnet() -> ImportedModel:
    return exported(
        classifier(72, nn.Conv2d(3, 16, 3, 2, 1), Ghost(16, 64), Ghost(64, 24), Ghost(24, 72)), 1, 3, 128, 128
    )


class Residual(nn.Module):
    """A block of ResNet."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        first = (nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU())
        self.own = nn.Sequential(*first, nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer))
        is_same = inner == outer and stride == 1
        other = (nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        self.other = nn.Sequential(*(() if is_same else other))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.own(x) + self.other(x))


def resnet18() -> ImportedModel:
    """11.2 million parameters."""
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    body: list[nn.Module] = [*stem]
    for inner, outer in ((64, 64), (64, 128), (128, 256), (256, 512)):
        body += [Residual(inner, outer, 1 if inner == outer else 2), Residual(outer, outer, 1)]
    return exported(classifier(512, *body), 1, 3, 64, 64)


class Grown(nn.Module):
    """A layer of DenseNet: what it makes comes behind what it was given."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.made = nn.Sequential(nn.BatchNorm2d(inner), nn.ReLU(), nn.Conv2d(inner, 24, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.made(x)], 1)


def densenet() -> ImportedModel:
    return exported(classifier(128, nn.Conv2d(3, 32, 3, 2, 1), *(Grown(32 + 24 * k) for k in range(4))), 1, 3, 96, 96)


@dataclass(frozen=True)
class Case:
    model: Callable[[], ImportedModel]
    recipe: Recipe = Recipe()  # noqa: RUF009 - frozen
    l2: int | None = None
    l3: int | None = None


MLP = (256, 400, 400, 400, 400, 10)
CASES = {
    "mlp, all of L2": Case(lambda: dense(*MLP)),
    "mlp, 1M": Case(lambda: dense(*MLP), l2=MIB),
    "mlp, 512K": Case(lambda: dense(*MLP), l2=512 * KIB),
    "mlp, 256K": Case(lambda: dense(*MLP), l2=256 * KIB),
    "1200 x 1200": Case(lambda: dense(64, 1200, 1200, 10)),
    "2000 x 2000": Case(lambda: dense(64, 2000, 2000, 10), l3=32 * MIB),
    "adam, 6 MB": Case(lambda: dense(256, 800, 1200, 360, 10), Recipe(optimizer=Adam(lr=0.001)), l3=64 * MIB),
    "32 x 128 x 128": Case(lambda: exported(LargeConv(), 1, 3, 128, 128)),
    "like MobileNetV3": Case(mobilenet, l3=32 * MIB),
    "like GhostNet": Case(ghostnet, l3=32 * MIB),
    "like DenseNet": Case(densenet, l3=32 * MIB),
    "2000 x 2000, 64K": Case(lambda: dense(64, 2000, 2000, 10), l2=64 * KIB, l3=32 * MIB),
}


def same_bits(model: ImportedModel, recipe: Recipe, options: ScheduleOptions, **sizes: int | None) -> Compiled:
    target = get("siracusa")
    for name, size in sizes.items():
        target = target if size is None else target.with_capacity(name, size)
    compiled = compile_model(model, recipe, target, options=options)
    with quick_sim() as device:
        found = train(compiled, device, steps=2, verify=False, keep_gradients=False)
    with HostDevice() as host:
        wanted = train(compile_model(model, recipe, get("host")), host, steps=2, verify=False)
    assert (found.losses, found.weights_sha256) == (wanted.losses, wanted.weights_sha256)
    return compiled


@pytest.mark.timeout(1800)
def test_resnet18() -> None:
    """Its C is no longer than the issue allows, and planning it takes no more memory, which the process knows."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    compiled = same_bits(resnet18(), Recipe(), ScheduleOptions(), **{L3: 128 * MIB})
    assert compiled.project.line_count <= 8000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= max(before, 1_500_000)


def test_a_hundred_layers() -> None:
    same_bits(dense(*[128] * 101), Recipe(), ScheduleOptions())


@pytest.mark.parametrize("name", CASES)
def test_larger_than_l2(name: str) -> None:
    case = CASES[name]
    same_bits(case.model(), case.recipe, ScheduleOptions(), **{L2: case.l2, L3: case.l3})


@pytest.mark.parametrize("name", zoo.names())
def test_zoo_from_l3_with_little_l2(name: str) -> None:
    same_bits(frontend.load(name), Recipe(), ScheduleOptions(home="L3"), **{L1: 64 * KIB, L2: 256 * KIB})
