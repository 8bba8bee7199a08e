"""Damaged and nonsensical models end in a UserError or in a valid graph, quickly, and in nothing else."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from tests.support.models import ints, model, node, value, weights
from tilegrad.analysis.verify import verify_graph
from tilegrad.errors import UserError
from tilegrad.frontend import load

MAX_SECONDS = 5.0
ODD_INTEGERS = (0, -1, 1, 2, 7, -7, 2**31, 2**40, -(2**40), 2**62, -(2**63))
OPERATORS = (
    *("Relu", "Reshape", "Slice", "Concat", "Tile", "ConstantOfShape", "Range", "OneHot", "Loop", "If", "Pad"),
    *("EyeLike", "NonZero", "TopK", "CumSum", "Einsum", "Scan", "Compress", "Squeeze", "Split", "Gather", "Dropout"),
    *("GroupNormalization", "BatchNormalization", "LayerNormalization", "Cast", "MatMul", "Resize", "Frobnicate"),
)


def sample() -> onnx.ModelProto:
    """Every stage of the import has something to do here."""
    constant = numpy_helper.from_array(ints(0, 2, -1))
    return model(
        [
            node("Conv", "x w b", "c", "conv", pads=[1, 1, 1, 1], strides=[2, 2], kernel_shape=[3, 3]),
            node("Shape", "c", "shape"),
            node("Gather", "shape zero", "n", axis=0),
            node("Unsqueeze", "n axis", "n1"),
            node("Concat", "n1 rest", "target", "concat", axis=0),
            node("Constant", "", "groups", value=constant),
            node("Reshape", "c groups", "g", "split"),
            node("InstanceNormalization", "g ones zeros", "i", "norm"),
            node("Reshape", "i shape", "j", "join"),
            node("Mul", "j gamma", "k"),
            node("Slice", "shape from to", "last"),
            node("ConstantOfShape", "last", "fill"),
            node("Cast", "fill", "pad", to=1),
            node("Add", "k pad", "l"),
            node("Clip", "l low high", "m"),
            node("ReduceMean", "m", "r", "pool", axes=[2, 3], keepdims=0),
            node("Reshape", "r target", "f", "flat"),
            node("Softmax", "f", "s", axis=1),
            node("Gemm", "s fc fb", "y", "fc", transB=1),
        ],
        [value("x", ["batch", 3, 8, 8])],
        [value("y", ["batch", 5])],
        {
            "w": weights(4, 3, 3, 3), "b": weights(4), "gamma": weights(4, 1, 1), "fc": weights(5, 4), "fb": weights(5),
            "zero": np.array(0), "axis": ints(0), "rest": ints(4), "from": ints(3), "to": ints(2**62),
            "ones": np.ones(2, np.float32), "zeros": np.zeros(2, np.float32), "low": 0.0, "high": 6.0,
        },
    )


SAMPLE = sample()
SAMPLE_BYTES = SAMPLE.SerializeToString()


def check(source: object, **options: int | None) -> None:
    start = time.monotonic()
    try:
        verify_graph(load(source, **options).graph)
    except UserError as error:
        assert str(error) and error.exit_status == 2
    assert time.monotonic() - start < MAX_SECONDS


def test_the_sample_itself() -> None:
    graph = load(SAMPLE, batch=2).graph
    assert graph.types["y"].shape == (2, 5)
    assert {n.op for n in graph.nodes} <= {"Conv", "Reshape", "InstanceNormalization", "Mul", "Add", "Clip", "Gemm"} | {
        "ReduceMean",
        "Softmax",
    }


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(SAMPLE_BYTES) - 1), st.integers(0, 7)), min_size=1, max_size=16))
def test_flipped_bits(flips: list[tuple[int, int]]) -> None:
    data = bytearray(SAMPLE_BYTES)
    for position, bit in flips:
        data[position] ^= 1 << bit
    check_bytes(bytes(data))


@settings(max_examples=100)
@given(st.integers(0, len(SAMPLE_BYTES) - 1), st.binary(max_size=8), st.integers(0, 12))
def test_inserted_and_missing_bytes(position: int, extra: bytes, missing: int) -> None:
    check_bytes(SAMPLE_BYTES[:position] + extra + SAMPLE_BYTES[position + missing :])


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_noise(data: bytes) -> None:
    check_bytes(data)


def check_bytes(data: bytes) -> None:
    """Through a file, as a user's damaged download would come."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(data)
        check(path)


@settings(max_examples=400)
@given(st.data())
def test_nonsense_that_parses(data: st.DataObject) -> None:
    """Wrong numbers, wrong wires, wrong operators, wrong types: any of them, several at once."""
    proto = onnx.ModelProto()
    proto.CopyFrom(SAMPLE)
    for _ in range(data.draw(st.integers(1, 3))):
        data.draw(st.sampled_from(MUTATIONS))(proto, data)
    check(proto, batch=data.draw(st.sampled_from([None, 1, 3])))


def _pick_node(proto: onnx.ModelProto, data: st.DataObject) -> onnx.NodeProto:
    return proto.graph.node[data.draw(st.integers(0, len(proto.graph.node) - 1))]


def _attribute(proto: onnx.ModelProto, data: st.DataObject) -> None:
    picked = _pick_node(proto, data)
    number = data.draw(st.sampled_from(ODD_INTEGERS))
    for attribute in picked.attribute:
        if attribute.type == onnx.AttributeProto.INT:
            attribute.i = number
        elif attribute.ints:
            attribute.ints[data.draw(st.integers(0, len(attribute.ints) - 1))] = number


def _rewire(proto: onnx.ModelProto, data: st.DataObject) -> None:
    picked = _pick_node(proto, data)
    names = ["", *(name for n in proto.graph.node for name in (*n.input, *n.output))]
    side = picked.input if data.draw(st.booleans()) and picked.input else picked.output
    side[data.draw(st.integers(0, len(side) - 1))] = data.draw(st.sampled_from(names))


def _operator(proto: onnx.ModelProto, data: st.DataObject) -> None:
    _pick_node(proto, data).op_type = data.draw(st.sampled_from(OPERATORS))


def _operands(proto: onnx.ModelProto, data: st.DataObject) -> None:
    picked = _pick_node(proto, data)
    if picked.input and data.draw(st.booleans()):
        del picked.input[-1]
    else:
        picked.input.append(data.draw(st.sampled_from(["x", "zero", "w", "shape"])))


def _initializer(proto: onnx.ModelProto, data: st.DataObject) -> None:
    tensors = proto.graph.initializer
    tensor = tensors[data.draw(st.integers(0, len(tensors) - 1))]
    if tensor.data_type == onnx.TensorProto.INT64 and data.draw(st.booleans()):
        count = len(tensor.raw_data) // 8
        numbers = data.draw(st.lists(st.sampled_from(ODD_INTEGERS), min_size=count, max_size=count))
        tensor.raw_data = np.array(numbers, np.int64).tobytes()
    elif tensor.dims and data.draw(st.booleans()):
        tensor.dims[0] = data.draw(st.sampled_from(ODD_INTEGERS))
    else:
        tensor.data_type = data.draw(st.integers(0, 24))


def _declared(proto: onnx.ModelProto, data: st.DataObject) -> None:
    declared = data.draw(st.sampled_from([proto.graph.input[0], proto.graph.output[0]])).type.tensor_type
    if data.draw(st.booleans()):
        declared.shape.dim[data.draw(st.integers(0, len(declared.shape.dim) - 1))].dim_value = data.draw(
            st.sampled_from(ODD_INTEGERS)
        )
    else:
        declared.elem_type = data.draw(st.integers(0, 24))


def _opset(proto: onnx.ModelProto, data: st.DataObject) -> None:
    proto.opset_import[0].version = data.draw(st.sampled_from([0, 1, 7, 11, 12, 13, 18, 20, 21, 23, 24, 28, 99]))


MUTATIONS = [_attribute, _rewire, _operator, _operands, _initializer, _declared, _opset]
