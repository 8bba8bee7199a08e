"""The zoo's counts, weights and outputs, against MODELS.md's figures, ONNX Runtime, ONNX's reference and PyTorch."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from math import prod, sqrt

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.zoo import counting
from tilegrad import random, zoo
from tilegrad.data import batches as data
from tilegrad.errors import UserError
from tilegrad.random import Purpose

# MODELS.md: parameters, trainable, forward MACs, MACs per step (None where it gives no figure).
PUBLISHED = {
    "simplemlp": (610, 610, None, None),
    "mlp": (118_282, 118_282, None, 253_696),
    "autoencoder": (267_928, 267_928, 264_192, 710_656),
    "autoencoder_tiny": (29_120, 29_120, None, 77_824),
    "dscnn": (23_180, 23_180, 2_656_768, 7_650_304),
    "resnet8": (77_946, 77_946, 12_501_632, 37_062_528),
    "mobilenetv1": (213_586, 213_586, 7_489_664, 21_971_328),
    "cct": (283_723, 283_723, 35_341_568, 104_255_232),
    "cct_lora": (291_915, 9_482, None, 50_474_752),
}
NAMES = zoo.names()


def values(model: onnx.ModelProto) -> dict[str, npt.NDArray[np.float32]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def samples(name: str, batch: int) -> npt.NDArray[np.float32]:
    entry = zoo.describe(name)
    return np.random.default_rng(1).uniform(-1, 1, (batch, *entry.input_shape)).astype(np.float32)


def runtime_output(model: onnx.ModelProto, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"input": x})
    return np.asarray(output)


def test_the_zoo_is_complete() -> None:
    assert tuple(PUBLISHED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_counts(name: str) -> None:
    entry = zoo.describe(name)
    counts = counting.count(zoo.build(name), entry.train)
    found = (counts.params, counts.trainable_params, counts.macs_forward, counts.macs_per_step)
    assert found == (entry.params, entry.trainable_params, entry.macs_forward, entry.macs_per_step)
    for published, ours in zip(PUBLISHED[name], found, strict=True):
        assert published is None or published == ours


def test_lora_step_by_reasoning() -> None:
    """Which gradients rank-4 adapters on q, k, v and the output need, written out by hand, in MACs."""
    tokens, dim, rank, heads, head = 64, 128, 4, 2, 64
    square = tokens * dim * dim
    factor = tokens * dim * rank
    scores = heads * tokens * tokens * head
    pool = tokens * dim
    classifier = dim * 10
    tokenizer = 32 * 32 * 64 * 27 + 16 * 16 * 128 * 64 * 9
    forward = tokenizer + 2 * (6 * square + 2 * scores + 4 * 2 * factor) + 2 * pool + classifier
    backward_head = 2 * classifier + pool + 2 * pool  # dW and dX; the pool's weight is frozen; the sum has two operands
    backward_block = 2 * square + square + 4 * scores  # dX of the MLP and the output projection; both operands twice
    adapters = 4 * 2 * factor + 4 * factor + factor  # dA and dB; dX through every B; dX through the output's A
    through_inputs = 3 * square + 3 * factor  # only the second block has adapters below its q, k, v
    backward = backward_head + 2 * (backward_block + adapters) + through_inputs
    assert forward == zoo.describe("cct_lora").macs_forward
    assert forward + backward == 50_474_752


@pytest.mark.parametrize("name", NAMES)
def test_model_is_valid_onnx_for_any_batch(name: str) -> None:
    model = zoo.build(name)
    entry = zoo.describe(name)
    onnx.checker.check_model(model, full_check=True)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    for batch in (1, 4):
        known = counting.shapes(counting.bind_batch(model, batch))
        assert known["input"] == (batch, *entry.input_shape)
        assert known["output"] == (batch, *((entry.classes,) if entry.classes else entry.input_shape))
        assert all(0 not in shape for shape in known.values()), "a shape was not inferred"
        assert all(output in known for node in model.graph.node for output in node.output)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_runs_in_onnxruntime_and_the_reference_evaluator(name: str, batch: int) -> None:
    model = zoo.build(name)
    x = samples(name, batch)
    (evaluated,) = ReferenceEvaluator(model).run(None, {"input": x})
    reference = np.asarray(evaluated, np.float32)
    found = runtime_output(model, x)
    assert found.shape == reference.shape and found.dtype == np.float32
    assert np.isfinite(found).all() and float(np.std(found)) > 1e-4
    np.testing.assert_allclose(found, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_is_the_architecture_pytorch_reads_from_the_table(name: str) -> None:
    torch = pytest.importorskip("torch")
    from tests.zoo import torch_models

    model = zoo.build(name, seed=3)
    weights = {key: torch.tensor(value) for key, value in values(model).items()}
    x = samples(name, 2)
    expected = torch_models.FORWARD[name](weights, torch.tensor(x)).numpy()
    np.testing.assert_allclose(runtime_output(model, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_batch_rows_are_independent(name: str) -> None:
    model = zoo.build(name)
    x = samples(name, 4)
    together = runtime_output(model, x)
    for row in range(4):
        np.testing.assert_allclose(runtime_output(model, x[row : row + 1])[0], together[row], rtol=1e-4, atol=1e-5)


def fan_in(name: str, arrays: dict[str, npt.NDArray[np.float32]]) -> int:
    """A layer's inputs per output: from the weight's layout, which is [out, in, ...] but for MatMul's [in, out]."""
    if name == "positional_emb":
        return 128
    weight = arrays[name.removesuffix("bias") + "weight" if name.endswith(".bias") else name]
    is_matmul = name.startswith(("blocks.", "attention_pool"))
    return int(weight.shape[0]) if is_matmul else prod(weight.shape[1:])


@pytest.mark.parametrize("name", NAMES)
def test_initial_weights(name: str) -> None:
    """Element by element as MODELS.md says, from (seed, tensor index, element)."""
    arrays = values(zoo.build(name, seed=5))
    classifier = {"simplemlp": "fc2.", "mlp": "fc3."}.get(name, "fc.")
    for index, (tensor, array) in enumerate(arrays.items()):
        if array.dtype == np.int64 or array.ndim == 0:
            continue
        drawn = random.words(5, Purpose.WEIGHTS, index, array.size).reshape(array.shape)
        if re.search(r"(bn|norm)\d*\.weight$", tensor):
            expected = np.ones_like(array)
        elif re.search(r"(bn|norm)\d*\.bias$", tensor):
            expected = np.zeros_like(array)
        elif tensor.endswith("running_mean"):
            expected = random.to_signed(drawn) * np.float32(0.1)
        elif tensor.endswith("running_var"):
            expected = np.float32(0.5) + random.to_unit(drawn)
        else:
            scale = 0.5 if tensor.startswith(classifier) else 1.0
            expected = random.to_signed(drawn) * np.float32(scale / sqrt(fan_in(tensor, arrays)))
        np.testing.assert_array_equal(array, expected, err_msg=tensor)


def test_seeds_give_other_weights_and_the_same_seed_the_same_bytes() -> None:
    assert zoo.build("cct", 1).SerializeToString() == zoo.build("cct", 1).SerializeToString()
    assert not np.array_equal(values(zoo.build("mlp", 1))["fc1.weight"], values(zoo.build("mlp", 2))["fc1.weight"])


def test_lora_starts_from_the_base_models_weights() -> None:
    base, adapted = values(zoo.build("cct", 9)), values(zoo.build("cct_lora", 9))
    for tensor, array in base.items():
        np.testing.assert_array_equal(adapted[tensor], array)
    adapters = {tensor for tensor in adapted if "lora_" in tensor}
    assert len(adapters) == 16
    assert all(np.abs(adapted[tensor]).mean() > 0.01 for tensor in adapters)
    assert adapted["blocks.0.attn.q.scaling"] == np.float32(4.0)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_readable_and_unique(name: str) -> None:
    model = zoo.build(name)
    nodes = [node.name for node in model.graph.node]
    assert len(set(nodes)) == len(nodes)
    for node in model.graph.node:
        assert re.fullmatch(rf"(/[a-z0-9_]+)*/{node.op_type}(_\d+)?", node.name), node.name
    tensors = [tensor.name for tensor in model.graph.initializer]
    assert len(set(tensors)) == len(tensors)
    assert all(re.fullmatch(r"[a-zA-Z0-9_.]+", tensor) for tensor in tensors)


def test_the_selector_of_cct_lora_names_adapters_and_classifier_only() -> None:
    globs = zoo.describe("cct_lora").train.removeprefix("names:").split(",")
    chosen = {tensor for tensor in values(zoo.build("cct_lora")) if any(fnmatchcase(tensor, glob) for glob in globs)}
    assert len(chosen) == 18 and {"fc.weight", "fc.bias"} < chosen
    assert all("lora_" in tensor or tensor.startswith("fc.") for tensor in chosen)


@pytest.mark.parametrize("name", NAMES)
def test_synthetic_data_fits_the_model(name: str) -> None:
    entry = zoo.describe(name)
    target_shape = () if entry.classes else entry.input_shape
    x, y = data.synthetic(0, data.SampleSpec(entry.input_shape, entry.loss, target_shape, entry.classes), 4).batch(0)
    output = runtime_output(zoo.build(name), x)
    if entry.classes:
        assert y.shape == (4,) and y.dtype == np.int64 and 0 <= y.min() <= y.max() < output.shape[1]
    else:
        assert y.shape == output.shape


def test_an_unknown_name_is_refused_with_the_closest() -> None:
    for ask in (zoo.build, zoo.describe):
        with pytest.raises(UserError) as caught:
            ask("resnet9")
        assert str(caught.value) == (
            "no model 'resnet9' in the zoo\n"
            "  expected: one of simplemlp, mlp, autoencoder, autoencoder_tiny, dscnn, resnet8, mobilenetv1, cct, "
            "cct_lora\n"
            "  hint: did you mean 'resnet8'?"
        )
