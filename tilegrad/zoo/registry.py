"""What the zoo holds: each model's builder and its published figures, which the tests count for themselves."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import onnx

from tilegrad import random
from tilegrad.errors import UserError
from tilegrad.zoo import cct, mlp, resnet8, separable
from tilegrad.zoo.builder import Blueprint, Tensor


@dataclass(frozen=True)
class ZooEntry:
    """A zoo model's card. MACs are for batch 1; a step's count forward, weight and input gradients."""

    name: str
    summary: str
    source: str
    input_shape: tuple[int, ...]
    classes: int | None
    loss: str
    params: int
    trainable_params: int
    macs_forward: int
    macs_per_step: int
    train: str = "all"


@dataclass(frozen=True)
class _Model:
    entry: ZooEntry
    blueprint: Callable[[], Blueprint]


_MODELS: tuple[_Model, ...] = (
    _Model(
        ZooEntry(
            name="simplemlp",
            summary="Gemm 64-8-10, no activation: the smallest end to end",
            source="tilegrad",
            input_shape=(64,),
            classes=10,
            loss="cross_entropy",
            params=610,
            trainable_params=610,
            macs_forward=592,
            macs_per_step=1_264,
        ),
        mlp.simplemlp,
    ),
    _Model(
        ZooEntry(
            name="mlp",
            summary="Gemm 784-128-128-10 with ReLU",
            source="tilegrad",
            input_shape=(784,),
            classes=10,
            loss="cross_entropy",
            params=118_282,
            trainable_params=118_282,
            macs_forward=118_016,
            macs_per_step=253_696,
        ),
        mlp.mlp,
    ),
    _Model(
        ZooEntry(
            name="autoencoder",
            summary="Gemm 640-128x4-8-128x4-640 with BatchNorm and ReLU",
            source="MLPerf Tiny, anomaly detection",
            input_shape=(640,),
            classes=None,
            loss="mse",
            params=267_928,
            trainable_params=267_928,
            macs_forward=264_192,
            macs_per_step=710_656,
        ),
        mlp.autoencoder,
    ),
    _Model(
        ZooEntry(
            name="autoencoder_tiny",
            summary="Gemm 128-64-32-64-64-32-64-128 with ReLU: the small scratchpad case",
            source="tilegrad",
            input_shape=(128,),
            classes=None,
            loss="mse",
            params=29_120,
            trainable_params=29_120,
            macs_forward=28_672,
            macs_per_step=77_824,
        ),
        mlp.autoencoder_tiny,
    ),
    _Model(
        ZooEntry(
            name="dscnn",
            summary="depthwise-separable CNN, 64 channels",
            source="MLPerf Tiny, keyword spotting",
            input_shape=(1, 49, 10),
            classes=12,
            loss="cross_entropy",
            params=23_180,
            trainable_params=23_180,
            macs_forward=2_656_768,
            macs_per_step=7_650_304,
        ),
        separable.dscnn,
    ),
    _Model(
        ZooEntry(
            name="resnet8",
            summary="ResNet-8 with 16, 32, 64 filters",
            source="MLPerf Tiny, image classification",
            input_shape=(3, 32, 32),
            classes=10,
            loss="cross_entropy",
            params=77_946,
            trainable_params=77_946,
            macs_forward=12_501_632,
            macs_per_step=37_062_528,
        ),
        resnet8.resnet8,
    ),
    _Model(
        ZooEntry(
            name="mobilenetv1",
            summary="MobileNetV1 at width 0.25",
            source="MLPerf Tiny, visual wake words",
            input_shape=(3, 96, 96),
            classes=2,
            loss="cross_entropy",
            params=213_586,
            trainable_params=213_586,
            macs_forward=7_489_664,
            macs_per_step=21_971_328,
        ),
        separable.mobilenetv1,
    ),
    _Model(
        ZooEntry(
            name="cct",
            summary="compact convolutional transformer, 2 blocks, dim 128, 2 heads",
            source="Hassani et al., CCT",
            input_shape=(3, 32, 32),
            classes=10,
            loss="cross_entropy",
            params=283_723,
            trainable_params=283_723,
            macs_forward=35_341_568,
            macs_per_step=104_255_232,
        ),
        cct.cct,
    ),
    _Model(
        ZooEntry(
            name="cct_lora",
            summary="cct with LoRA rank 4, alpha 16; adapters and classifier train",
            source="Hassani et al., CCT; Hu et al., LoRA",
            input_shape=(3, 32, 32),
            classes=10,
            loss="cross_entropy",
            params=291_915,
            trainable_params=9_482,
            macs_forward=35_865_856,
            macs_per_step=50_474_752,
            train="names:*lora_*,fc.*",
        ),
        cct.cct_lora,
    ),
)


def names() -> tuple[str, ...]:
    """Every model of the zoo, small to large."""
    return tuple(model.entry.name for model in _MODELS)


def describe(name: str) -> ZooEntry:
    """The model's card."""
    return _find(name).entry


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """The model with initial weights from the seed; the same seed gives the same bytes."""
    return _find(name).blueprint().draw(random.check_seed(seed))


def initial_tensors(name: str) -> tuple[Tensor, ...]:
    """How each of the model's tensors is drawn; its position is the stream of random numbers it is drawn from."""
    return _find(name).blueprint().tensors


def _find(name: str) -> _Model:
    for model in _MODELS:
        if model.entry.name == name:
            return model
    close = difflib.get_close_matches(name, names(), n=1)
    raise UserError(
        f"no model '{name}' in the zoo",
        stage="zoo",
        expected=f"one of {', '.join(names())}",
        hint=f"did you mean '{close[0]}'?" if close else None,
    )
