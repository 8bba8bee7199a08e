"""What both of PyTorch's exporters write is accepted, computes what PyTorch does, and trains what PyTorch trains."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from tests.frontend.torch_modules import CASES, build, example
from tests.support.kernels import run_graph
from tilegrad.frontend import ImportedModel, load
from tilegrad.ops import registry
from tilegrad.passes.fuse import fuse

LEGACY = [name for name, case in CASES.items() if not case.legacy_fails]


def export(name: str, path: Path, *, dynamo: bool, free: bool) -> Path:
    module, x = build(name), example(name, 2)
    options: dict[str, object] = {"input_names": ["x"], "output_names": ["y"], "dynamo": dynamo}
    if dynamo:
        options |= {"dynamic_shapes": ({0: torch.export.Dim("batch")},) if free else None, "verbose": False}
    else:
        options |= {"opset_version": 17, "dynamic_axes": {"x": {0: "batch"}} if free else None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), path, **options)  # type: ignore[arg-type]
    return path


def check(name: str, imported: ImportedModel, batch: int) -> None:
    graph = imported.graph
    x = example(name, batch, seed=3)
    with torch.no_grad():
        wanted = build(name)(x).numpy()
    for form in (graph, fuse(graph)):
        assert all(registry.find(node.op) is not None for node in form.nodes)
        assert "Erf" not in {node.op for node in fuse(graph).nodes}
        got = run_graph(form, {"x": x.numpy()})["y"]
        assert got.shape == wanted.shape
        assert np.max(np.abs(got - wanted)) <= 2e-5 * np.max(np.abs(wanted))
    onnx.checker.check_model(imported.proto)


def check_parameters(name: str, imported: ImportedModel, *, folds: bool) -> None:
    """As many elements train as PyTorch trains. An exporter that folds batch norm or embeddings leaves other ones."""
    ours = sum(info.type.size for info in imported.parameters.values() if info.role == "parameter")
    theirs = sum(parameter.numel() for parameter in build(name).parameters())
    if not folds:
        assert ours == theirs
    for parameter, content in build(name).named_parameters():
        if parameter in imported.parameters:
            assert imported.parameters[parameter].role == "parameter", imported.parameters[parameter]
            assert folds or np.array_equal(imported.graph.constants[parameter].array, content.detach().numpy())


@pytest.mark.parametrize("free", [True, False], ids=["free", "fixed"])
@pytest.mark.parametrize("name", LEGACY)
def test_legacy_exporter(name: str, free: bool, tmp_path: Path) -> None:
    path = export(name, tmp_path / "m.onnx", dynamo=False, free=free)
    for batch in (1, 3) if free else (2,):
        check(name, load(path, batch=batch), batch)
    check_parameters(name, load(path), folds=name == "cnn" or (name in ("tokens", "block") and not free))


@pytest.mark.slow
@pytest.mark.parametrize("free", [True, False], ids=["free", "fixed"])
@pytest.mark.parametrize("name", CASES)
def test_dynamo_exporter(name: str, free: bool, tmp_path: Path) -> None:
    """Weights are in a data file beside the model here."""
    path = export(name, tmp_path / "m.onnx", dynamo=True, free=free)
    assert (tmp_path / "m.onnx.data").exists()
    for batch in (1, 3) if free else (2,):
        check(name, load(path, batch=batch), batch)
    check_parameters(name, load(path), folds=name in ("cnn", "tokens", "block"))


def test_dynamo_exporter_once(tmp_path: Path) -> None:
    test_dynamo_exporter("block", True, tmp_path)


@pytest.mark.parametrize("name", LEGACY)
def test_module_itself(name: str) -> None:
    """Passed as a module, exactly the module's own parameters are the parameters, under their own names."""
    module = build(name)
    imported = load(module, example=example(name, 1), batch=2)
    assert {n for n, info in imported.parameters.items() if info.role == "parameter"} == dict(
        module.named_parameters()
    ).keys()
    x = example(name, 2, seed=5)
    with torch.no_grad():
        wanted = module(x).numpy()
    graph = fuse(imported.graph)
    got = run_graph(graph, {graph.inputs[0]: x.numpy()})[graph.outputs[0]]
    assert np.max(np.abs(got - wanted)) <= 2e-5 * np.max(np.abs(wanted))
