"""What becomes of hostile models: those that must be refused, that must be read, and that may be either.

A model is a function that fills a folder and returns its path; those that are only a file are made by a decorator.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx

from tests.support.models import model, node, value, weights

Maker = Callable[[Path], Path]
REFUSED: dict[str, Maker] = {}
SOUND: dict[str, Maker] = {}
EITHER: dict[str, Maker] = {}

X, Y = [value("x", [1, 4])], [value("y", [1, 4])]
W = {"w": weights(4, 4)}
MATMUL = node("MatMul", "x w", "h", "first")


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def add(table: dict[str, Maker], name: str, make: Callable[[], onnx.ModelProto]) -> None:
    assert not any(name in known for known in (REFUSED, SOUND, EITHER))
    table[name] = lambda folder: saved(make(), folder)


def refused(make: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    add(REFUSED, make.__name__, make)
    return make


def sound(make: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    add(SOUND, make.__name__, make)
    return make


def chained(*nodes: onnx.NodeProto, initializers: dict[str, object] | None = None, opset: int = 17) -> onnx.ModelProto:
    """x → MatMul → h → `nodes` → y."""
    return model([MATMUL, *nodes], X, [value("y", None)], {**W, **(initializers or {})}, opset=opset)


def either(make: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    add(EITHER, make.__name__, make)
    return make
