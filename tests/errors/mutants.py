"""Valid models, damaged: the same damage every time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import onnx

from tests.frontend.test_fuzz import SAMPLE
from tests.support.models import ints, mlp, model, node, value, weights

BYTES_EACH = 50
FIELDS_EACH = 50
NUMBERS = (0, -1, 1, 3, 255, 2**31, 2**40, 2**62, -(2**63))
TEXTS = ("", "x", "y", "w", "Relu", "Loop", "If", "Conv", "\x00", "a" * 300)


def originals() -> dict[str, onnx.ModelProto]:
    normalised = model(
        [
            node("Conv", "x w b", "c", "conv", pads=[1, 1, 1, 1]),
            node("BatchNormalization", "c scale bias mean variance", "n", "norm"),
            node("Relu", "n", "r"),
            node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
            node("GlobalAveragePool", "p", "g"),
            node("Flatten", "g", "f"),
            node("Gemm", "f fw fb", "y", "fc", transB=1),
        ],
        [value("x", [1, 2, 8, 8])],
        [value("y", [1, 3])],
        {
            "w": weights(4, 2, 3, 3),
            "b": weights(4),
            "fw": weights(3, 4),
            "fb": weights(3),
            "scale": weights(4),
            "bias": weights(4),
            "mean": weights(4),
            "variance": weights(4) ** 2,
        },
    )
    attention = model(
        [
            node("Gather", "words x", "e", "embed"),
            node("LayerNormalization", "e scale bias", "n", "norm"),
            node("MatMul", "n wq", "q"),
            node("Transpose", "n", "t", perm=[0, 2, 1]),
            node("MatMul", "q t", "s"),
            node("Softmax", "s", "a", axis=-1),
            node("MatMul", "a n", "o"),
            node("ReduceMean", "o", "m", axes=[1], keepdims=0),
            node("Slice", "m from to", "l"),
            node("Gemm", "l fw", "y", "fc"),
        ],
        [value("x", [1, 5], "i64")],
        [value("y", [1, 3])],
        {
            "words": weights(9, 8),
            "scale": weights(8),
            "bias": weights(8),
            "wq": weights(8, 8),
            "fw": weights(4, 3),
            "from": ints(0, 0),
            "to": ints(1, 4),
        },
    )
    return {"sample": SAMPLE, "mlp": mlp(), "normalised": normalised, "attention": attention}


def mutants() -> Iterator[tuple[str, bytes]]:
    """Name and content."""
    for name, proto in originals().items():
        data = proto.SerializeToString()
        for number in range(BYTES_EACH):
            yield f"{name}_bytes_{number}", _damaged(data, random.Random(f"{name} {number}"))
        for number in range(FIELDS_EACH):
            copy = onnx.ModelProto()
            copy.CopyFrom(proto)
            draw = random.Random(f"{name} field {number}")
            for _ in range(draw.randint(1, 3)):
                _change_field(copy, draw)
            yield f"{name}_fields_{number}", copy.SerializeToString()


def _damaged(data: bytes, draw: random.Random) -> bytes:
    """Bits turned over, a part missing, a part twice, or the end gone."""
    kind, at = draw.randrange(4), draw.randrange(len(data))
    if kind == 0:
        changed = bytearray(data)
        for _ in range(draw.randint(1, 12)):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        return bytes(changed)
    if kind == 1:
        return data[:at]
    length = draw.randint(1, 40)
    return data[:at] + data[at + length :] if kind == 2 else data[: at + length] + data[at:]


def _change_field(message: Any, draw: random.Random) -> None:
    """One field anywhere below: another number or text, or an element of a list twice or gone."""
    fields = [(field, content) for field, content in message.ListFields() if field.name != "raw_data"]
    if not fields:
        return
    field, content = draw.choice(fields)
    if field.type == field.TYPE_MESSAGE:
        if hasattr(content, "ListFields"):
            _change_field(content, draw)
        elif draw.random() < 0.8:
            _change_field(draw.choice(content), draw)
        elif draw.random() < 0.5:
            content.append(draw.choice(content))
        else:
            del content[draw.randrange(len(content))]
        return
    fresh: Any = draw.choice(TEXTS) if field.type == field.TYPE_STRING else draw.choice(NUMBERS)
    if field.type == field.TYPE_BYTES:
        fresh = draw.choice(TEXTS).encode()
    if field.type in (field.TYPE_INT32, field.TYPE_ENUM):
        fresh = draw.choice((0, 1, 7, 8, 9, 23))
    if isinstance(content, int | float | str | bytes):
        setattr(message, field.name, fresh)
    else:
        content[draw.randrange(len(content))] = fresh
