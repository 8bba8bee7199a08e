"""Sources, the batch, and what becomes of a model's values on the way to our graph."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.support.kernels import run_graph
from tests.support.models import ints, mlp, model, node, value, weights
from tilegrad import zoo
from tilegrad.analysis.verify import verify_graph
from tilegrad.frontend import SourceKind, load
from tilegrad.ir.graph import Graph
from tilegrad.passes.fuse import fuse


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


# Sources


def test_file(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "net.onnx")
    for source in (tmp_path / "net.onnx", str(tmp_path / "net.onnx")):
        imported = load(source)
        assert (imported.name, imported.kind) == ("net", SourceKind.FILE)
        assert operators(imported.graph) == ["Gemm", "Relu", "Gemm"]


def test_model_proto_is_left_alone() -> None:
    proto = mlp()
    before = proto.SerializeToString()
    imported = load(proto, batch=3)
    assert (imported.name, imported.kind) == ("test", SourceKind.PROTO)
    assert proto.SerializeToString() == before


@pytest.mark.parametrize("name", zoo.names())
def test_zoo(name: str) -> None:
    imported = load(name, seed=7)
    card = zoo.describe(name)
    assert (imported.name, imported.kind) == (name, SourceKind.ZOO)
    assert imported.graph.types[imported.graph.inputs[0]].shape == (1, *card.input_shape)
    assert sum(i.type.size for i in imported.parameters.values() if i.role == "parameter") == card.params
    wanted = {t.name: numpy_helper.to_array(t) for t in zoo.build(name, 7).graph.initializer}
    for parameter, info in imported.parameters.items():
        if info.role == "parameter":
            assert np.array_equal(imported.graph.constants[parameter].array, wanted[parameter])


def test_torch_module() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Dropout(0.5))
    module.train()
    imported = load(module, example=torch.zeros(1, 6), batch=2)
    assert imported.kind is SourceKind.TORCH and module.training
    assert imported.graph.types[imported.graph.outputs[0]].shape == (2, 5)
    assert list(imported.parameters) == ["0.weight", "0.bias"]


def test_torch_module_keeps_what_trains() -> None:
    """BatchNorm is not folded away, Dropout not dropped, weights keep their names, and the module is not touched."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    module = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Dropout(0.25), nn.Flatten(), nn.Linear(24, 3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    imported = load(module, example=torch.randn(1, 2, 8))
    assert operators(imported.graph) == ["Conv", "BatchNormalization", "Dropout", "Flatten", "Gemm"]
    assert imported.graph.nodes[2].attributes["ratio"] == 0.25
    named = {name for name, _ in module.named_parameters()}
    assert {name for name, info in imported.parameters.items() if info.role == "parameter"} == named
    assert all(part.training for part in module.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_torch_module_with_matrices_of_higher_rank() -> None:
    """The exporter transposes a Linear's weight; the product reads it in place instead."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(6, 5)
    imported = load(module, example=torch.zeros(1, 3, 6))
    assert [n.op for n in fuse(imported.graph).nodes] == ["FusedMatMul", "Add"]
    assert {name: info.is_bias for name, info in imported.parameters.items()} == {"weight": False, "bias": True}


def test_batch_norm_exported_in_training_mode() -> None:
    values = {"s": weights(4), "b": weights(4), "m": weights(4), "v": np.ones(4, np.float32)}
    proto = model(
        [node("BatchNormalization", "x s b m v", "y nm nv", "bn", training_mode=1)],
        [value("x", ["n", 4, 3])],
        [value("y", None)],
        values,
    )
    imported = load(proto)
    (only,) = imported.graph.nodes
    assert (only.outputs, dict(only.attributes)) == (("y",), {})
    assert imported.notes == ("BatchNormalization 'bn' was exported in training mode; --batchnorm decides now",)


def test_importing_the_frontend_is_light() -> None:
    """PyTorch and the exporters' libraries are loaded only when they are asked for."""
    code = (
        "import sys, tilegrad.frontend as f; f.load('mlp');"
        "print([m for m in ('torch', 'onnxscript', 'onnx_ir', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(mlp(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert not any(t.HasField("raw_data") for t in onnx.load(path, load_external_data=False).graph.initializer)
    assert load(path).graph == replace(load(mlp()).graph, name="m")


# The batch


@pytest.mark.parametrize("batch", [None, 1, 5])
def test_free_batch(batch: int | None) -> None:
    imported = load(mlp(), batch=batch)
    assert imported.graph.types["x"].shape == (batch or 1, 8)
    assert imported.graph.types["y"].shape == (batch or 1, 4)
    for proto in (imported.proto, imported.original):
        onnx.checker.check_model(proto)
        (y,) = ReferenceEvaluator(proto).run(None, {"x": weights(batch or 1, 8)})
        assert y.shape == (batch or 1, 4)


def test_fixed_batch_stays() -> None:
    assert load(mlp(3)).graph.types["y"].shape == (3, 4)


def test_fixed_batch_is_replaced() -> None:
    assert load(mlp(3), batch=5).graph.types["y"].shape == (5, 4)


def test_every_input_gets_the_batch() -> None:
    proto = model(
        [node("Add", "a b", "s"), node("Mul", "s c", "y")],
        [value("a", ["n", 4]), value("b", [None, 4]), value("c", [4])],
        [value("y", ["n", 4])],
    )
    imported = load(proto, batch=6)
    assert [imported.graph.types[name].shape for name in "abcy"] == [(6, 4), (6, 4), (4,), (6, 4)]


# Values


def test_names_are_kept_and_made_unique() -> None:
    proto = model(
        [node("Relu", "x", "a", "same"), node("Relu", "a", "b", "same"), node("Relu", "b", "y")],
        [value("x", [1, 4])],
        [value("y", [1, 4])],
    )
    assert [n.name for n in load(proto).graph.nodes] == ["same", "same.1", "Relu_2"]


def test_initializers_listed_as_inputs() -> None:
    """As before IR version 4."""
    proto = mlp()
    proto.graph.input.append(value("w1", [16, 8]))
    assert load(proto).graph.inputs == ("x",)


def test_static_operands_become_attributes_and_defaults_vanish() -> None:
    proto = model(
        [
            node("Clip", "x low high", "c"),
            node("Slice", "c starts ends axes", "s"),
            node("Clip", "s _ high", "d"),
            node("Softmax", "d", "y", axis=-1),
        ],
        [value("x", [1, 8])],
        [value("y", [1, 4])],
        {"low": 0.0, "high": 6.0, "starts": ints(0), "ends": ints(4), "axes": ints(1)},
    )
    nodes = load(proto).graph.nodes
    assert [(n.op, n.inputs, dict(n.attributes)) for n in nodes] == [
        ("Clip", ("x",), {"min": 0.0, "max": 6.0}),
        ("Slice", ("c",), {"starts": (0,), "ends": (4,), "axes": (1,)}),
        ("Clip", ("s",), {"max": 6.0}),
        ("Softmax", ("d",), {}),
    ]


def test_cast_names_our_types() -> None:
    proto = model([node("Cast", "x", "y", to=TensorProto.INT32)], [value("x", [1, 8])], [value("y", [1, 8], "i32")])
    (cast,) = load(proto).graph.nodes
    assert dict(cast.attributes) == {"to": "i32"}


def test_weights_stored_in_another_precision() -> None:
    proto = model(
        [node("Cast", "w", "w32", to=TensorProto.FLOAT), node("MatMul", "x w32", "y")],
        [value("x", [1, 8])],
        [value("y", [1, 4])],
        {"w": weights(8, 4).astype(np.float16)},
    )
    imported = load(proto)
    assert operators(imported.graph) == ["MatMul"] and imported.parameters["w"].role == "parameter"
    assert imported.notes == ("initializer 'w' is float16 and cast to f32 in the model; stored as f32",)


def test_exponent_of_another_type() -> None:
    for exponent in (np.array(2, np.int64), np.array(2.0, np.float64)):
        proto = model([node("Pow", "x e", "y")], [value("x", [1, 3])], [value("y", [1, 3])], {"e": exponent})
        graph = load(proto).graph
        assert np.array_equal(run_graph(graph, {"x": np.array([[1, 2, 3]])})["y"], [[1, 4, 9]])


# Functions


def test_local_functions_are_inlined() -> None:
    body = [node("Gemm", "a w b", "t", "gemm", transB=1), node("Relu", "t", "r", "relu")]
    function = helper.make_function("local", "Layer", ["a", "w", "b"], ["r"], body, [helper.make_opsetid("", 17)])
    proto = model(
        [node("Layer", "x w1 b1", "h", "one", domain="local"), node("Layer", "h w2 b2", "y", "two", domain="local")],
        [value("x", ["n", 8])],
        [value("y", ["n", 4])],
        {"w1": weights(16, 8), "b1": weights(16), "w2": weights(4, 16), "b2": weights(4)},
        functions=[function],
        domains=["local"],
    )
    imported = load(proto)
    assert operators(imported.graph) == ["Gemm", "Relu", "Gemm", "Relu"]
    assert [i.role for i in imported.parameters.values()] == ["parameter"] * 4


@pytest.mark.parametrize(
    ("op", "attributes", "opset"),
    [("Mish", {}, 18), ("Selu", {}, 17), ("Celu", {"alpha": 1.5}, 17), ("Softsign", {}, 23)],
)
def test_operators_that_onnx_defines_by_others(op: str, attributes: dict[str, float], opset: int) -> None:
    proto = model([node(op, "x", "y", "act", **attributes)], [value("x", [2, 5])], [value("y", [2, 5])], opset=opset)
    x = weights(2, 5)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert np.allclose(run_graph(load(proto).graph, {"x": x})["y"], wanted, atol=1e-6)


def test_attention_is_expanded() -> None:
    proto = model(
        [node("Attention", "q k v", "y", "attend")],
        [value(name, [1, 2, 5, 4]) for name in "qkv"],
        [value("y", [1, 2, 5, 4])],
        opset=23,
    )
    feeds = {name: weights(1, 2, 5, 4, seed=i) for i, name in enumerate("qkv")}
    graph = load(proto).graph
    assert all(n.name.startswith("attend/") for n in graph.nodes)
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    assert np.allclose(run_graph(graph, feeds)["y"], wanted, atol=1e-6)


def test_every_imported_graph_verifies() -> None:
    for name in zoo.names():
        verify_graph(load(name).graph)
