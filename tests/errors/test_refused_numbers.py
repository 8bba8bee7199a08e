"""Numbers that mean nothing are refused, with their place and what would be right: none trains to NaN in silence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tilegrad as tg
from tests.support.command_line import CommandLine
from tests.support.models import ints, mlp, model, node, value, weights
from tilegrad.errors import UserError
from tilegrad.passes.index_bounds import index_bounds


def refused(proto: onnx.ModelProto, batch: int | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        tg.load(proto, batch=batch)
    return caught.value


# ---- indices


def gather(op: str, index: np.ndarray, *, computed: bool = False) -> onnx.ModelProto:
    """From a parameter, or from an activation behind one; the index is an initializer or made of two."""
    nodes = [node("Gemm", "x w", "h", "fc")]
    initializers: dict[str, object] = {"w": weights(8, 4), "i": index}
    if computed:
        nodes.append(node("Add", "i zero", "j", "add"))
        initializers["zero"] = np.zeros((), index.dtype)
    nodes.append(node(op, f"h {'j' if computed else 'i'}", "y", "pick", axis=1))
    return model(nodes, [value("x", [2, 8])], [value("y", [2, index.shape[-1]])], initializers)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize(
    ("op", "index", "got"),
    [
        ("Gather", ints(0, 4), "4 at [1]"),
        ("Gather", ints(-5, 0), "-5 at [0]"),
        ("GatherElements", np.array([[0, 1], [3, 7]]), "7 at [1, 1]"),
    ],
)
def test_a_constant_index_out_of_range(op: str, index: np.ndarray, got: str, computed: bool) -> None:
    error = refused(gather(op, index, computed=computed))
    assert error.node == "pick" and error.message.startswith(f"{op}: an index ('")
    assert (error.expected, error.got) == ("-4 to 3", got)


def test_a_constant_index_in_range_is_taken() -> None:
    tg.load(gather("Gather", ints(-4, 3, 0)))


def test_a_parameter_gathered_out_of_range() -> None:
    proto = model(
        [node("Gather", "table i", "g", "embed"), node("Add", "x g", "y", "add")],
        [value("x", ["n", 4])],
        [value("y", ["n", 4])],
        {"table": weights(3, 4), "i": np.array(3)},
    )
    assert refused(proto).node == "embed"


def test_constant_labels_of_a_loss_in_the_graph() -> None:
    def proto(label: int, **attributes: int) -> onnx.ModelProto:
        return model(
            [node("Gemm", "x w", "h", "fc"), node("SoftmaxCrossEntropyLoss", "h l", "y", "loss", **attributes)],
            [value("x", [2, 8])],
            [value("y", [])],
            {"w": weights(8, 4), "l": ints(0, label)},
        )

    error = refused(proto(4))
    assert error.node == "loss" and (error.expected, error.got) == ("0 to 3", "4")
    tg.load(proto(-1, ignore_index=-1))


def tokens() -> onnx.ModelProto:
    """Token ids that are reshaped and cast before they index."""
    return model(
        [
            node("Cast", "x", "i", "cast", to=onnx.TensorProto.INT32),
            node("Unsqueeze", "i axis", "u", "wider"),
            node("Gather", "table u", "g", "embed"),
            node("Flatten", "g", "f", "flat"),
            node("Gemm", "f w", "y", "fc"),
        ],
        [value("x", ["n", 3], "i64")],
        [value("y", ["n", 2])],
        {"table": weights(5, 4), "axis": ints(1), "w": weights(12, 2)},
    )


def test_token_ids_out_of_range_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert index_bounds(tg.load(tokens()).graph) == {"x": 5}
    path, data = tmp_path / "tokens.onnx", tmp_path / "data.npz"
    path.write_bytes(tokens().SerializeToString())
    np.savez(data, x=np.array([[0, 1, 4], [2, 5, 0]]), y=np.array([0, 1]))
    answer = CommandLine(capsys)("train", path, "--device", "host", "--data", data)
    assert answer.status == 2 and "token out of range" in answer.err and "0 to 4" in answer.err
    with tg.open_device("host") as device, device.load(tg.compile(tokens())) as session:
        assert np.isfinite(session.step(np.array([[0, -1, 4]]), np.array([1])))
        for wrong in (5, -6):
            with pytest.raises(UserError, match="input 'x' of step has an index out of range"):
                session.step(np.array([[0, 1, wrong]]), np.array([1]))


# ---- dimensions


@pytest.mark.parametrize(
    ("extent", "word", "batch"),
    [
        *((extent, "negative", batch) for extent in (-5,) for batch in (None, 1)),
        *((extent, "huge", batch) for extent in (2**40, 2**31) for batch in (None, 1)),
        (0, "empty", 1),  # taken as it is, a model without samples is legal: ONNX's own tests have such
    ],
)
def test_a_batch_that_is_none(extent: int, word: str, batch: int | None) -> None:
    error = refused(mlp(extent), batch)
    assert error.message == f"the batch of input 'x' is {word}"
    least = 0 if batch is None else 1
    assert error.got == f"[{extent}, 8]" and error.expected == f"{least} to {2**31 - 1} in dimension 0, or a name"


def test_a_negative_dimension_elsewhere() -> None:
    proto = model([node("Relu", "x", "y", "r")], [value("x", ["n", -3])], [value("y", None)])
    assert refused(proto).message == "the shape of input 'x' is negative"


def test_an_empty_dimension_elsewhere_is_taken() -> None:
    imported = tg.load(model([node("Relu", "x", "y", "r")], [value("x", ["n", 0])], [value("y", None)]))
    assert imported.graph.types["y"].shape == (1, 0)


def test_a_batch_that_is_replaced_is_noted() -> None:
    assert tg.load(mlp(4), batch=2).notes == ("the model's fixed batch of 4 was replaced by 2",)
    assert tg.load(mlp(4), batch=4).notes == tg.load(mlp(), batch=2).notes == ()


@pytest.mark.parametrize("batch", ["0", "-1", str(2**31), str(2**40)])
def test_batch_options(batch: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = CommandLine(capsys)("inspect", "simplemlp", "--batch", batch)
    assert answer.status == 2 and "the batch size cannot be used" in answer.err


# ---- coefficients


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("op", "inputs", "name"),
    [
        ("LeakyRelu", "h", "alpha"),
        ("Elu", "h", "alpha"),
        ("Selu", "h", "gamma"),
        ("Celu", "h", "alpha"),
        ("ThresholdedRelu", "h", "alpha"),
        ("HardSigmoid", "h", "beta"),
        ("Gemm", "h v", "alpha"),
        ("Gemm", "h v c", "beta"),
        ("LayerNormalization", "h s", "epsilon"),
        ("BatchNormalization", "h s c s s", "epsilon"),
        ("BatchNormalization", "h s c s s", "momentum"),
    ],
)
def test_a_coefficient_that_is_not_finite(op: str, inputs: str, name: str, number: float) -> None:
    proto = model(
        [node("Gemm", "x w", "h", "fc"), node(op, inputs, "y", "bad", **{name: number})],
        [value("x", ["n", 8])],
        [value("y", None)],
        {"w": weights(8, 4), "v": weights(4, 4), "c": weights(4), "s": np.ones(4, np.float32)},
    )
    error = refused(proto)
    assert error.node == "bad" and error.message == f"{op}: attribute '{name}' is not finite"


def test_a_negative_epsilon() -> None:
    proto = model(
        [node("LayerNormalization", "x s", "y", "bad", epsilon=-1e-5)],
        [value("x", ["n", 4])],
        [value("y", None)],
        {"s": np.ones(4, np.float32)},
    )
    assert refused(proto).message == "LayerNormalization: epsilon must not be negative"


# ---- the recipe's numbers


@pytest.mark.parametrize(
    "options",
    [
        ("--optimizer", "momentum", "--momentum", "2"),
        ("--optimizer", "momentum", "--momentum", "1"),
        ("--optimizer", "momentum", "--momentum", "nan"),
        ("--lr", "nan"),
        ("--lr", "inf"),
        ("--lr=-0.1",),
        ("--weight-decay", "nan"),
        ("--weight-decay=-1",),
        ("--tolerance", "nan"),
        ("--tolerance", "inf"),
        ("--tolerance", "0"),
        ("--steps", "0"),
        ("--steps", str(2**40)),
        ("--accum", "0"),
        ("--seed", "-1"),
        ("--seed", str(2**32)),
        ("--train", "last:99"),
        ("--train", "last:0"),
        ("--cores", "0"),
        ("--l1", "0"),
        ("--l1", "-5"),
    ],
)
def test_options_that_mean_nothing(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    answer = CommandLine(capsys)("train", "simplemlp", "--no-verify", *options)
    assert answer.status == 2 and "expected" in answer.err, answer.err


def test_more_layers_than_there_are() -> None:
    with pytest.raises(UserError) as caught:
        tg.compile("simplemlp", tg.Recipe(train="last:99"))
    assert str(caught.value).startswith("the model has 2 layers with parameters\n  expected: last:1 to last:2\n")
    tg.compile("simplemlp", tg.Recipe(train="last:2"))
