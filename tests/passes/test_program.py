"""From a graph and a recipe to the three entries: loss, accumulation, lazy reset, counters, optimizer, and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tilegrad as tg
from tests.support.models import ints, model, node, value, weights
from tests.support.projects import opened
from tilegrad.errors import UserError
from tilegrad.ir.program import Program, Role
from tilegrad.ir.text import format_graph
from tilegrad.recipe import ACCUM_MODES, LOSSES, Optimizer


def linear(classes: int = 3) -> onnx.ModelProto:
    return model(
        [node("Gemm", "x w b", "y", "fc")],
        [value("x", ["n", 2])],
        [value("y", ["n", classes])],
        {"w": weights(2, classes), "b": weights(classes)},
    )


def derived(recipe: tg.Recipe, proto: onnx.ModelProto | None = None) -> Program:
    return tg.compile(proto or linear(), recipe, target="host").program


INFER = """\
graph infer
  input %x: f32[1,2]
  state %w: f32[2,3]
  state %b: f32[3]
  %y: f32[1,3] = Gemm(%x, %w, %b)  # node 'fc'
  return %y
"""
STEP = """\
graph step
  input %x: f32[1,2]
  input %labels: i64[1]
  state %w: f32[2,3]
  state %b: f32[3]
  state %tg.lazy_reset_grad: bool[1]
  state %w_grad.accumulation.buffer: f32[2,3]
  state %b_grad.accumulation.buffer: f32[3]
  state %tg.constant.0: f32[]
  state %tg.constant.1: bool[1]
  %y: f32[1,3] = Gemm(%x, %w, %b)  # node 'fc'
  %loss: f32[], %loss.1: f32[1,3] = SoftmaxCrossEntropyLoss(%y, %labels)  # node 'loss/SoftmaxCrossEntropyLoss'
  %y_grad: f32[1,3] = SoftmaxCrossEntropyLossGrad(%tg.constant.0, %loss.1, %labels)  # node \
'loss/SoftmaxCrossEntropyLoss_Grad/SoftmaxCrossEntropyLossGrad'
  %fc_Grad/Reshape: f32[3] = Reshape(%y_grad) {allowzero=1, shape=[3]}  # node 'fc_Grad/Reshape'
  %w_grad.sum.1: f32[2,3] = OuterAccumulate(%x, %y_grad, %w_grad.accumulation.buffer, \
%tg.lazy_reset_grad)  # node 'fc_Grad/OuterAccumulate'
  _, %b_grad.sum.1: f32[3] = InPlaceAccumulatorV2(%b_grad.accumulation.buffer, %fc_Grad/Reshape, \
%tg.lazy_reset_grad)  # node 'fc_Grad/InPlaceAccumulatorV2.1'
  %tg.lazy_reset_grad.off: bool[1] = Copy(%tg.constant.1)  # node 'end_of_step/Copy'
  write %w_grad.sum.1 -> %w_grad.accumulation.buffer
  write %b_grad.sum.1 -> %b_grad.accumulation.buffer
  write %tg.lazy_reset_grad.off -> %tg.lazy_reset_grad
  return %loss
"""
UPDATE = """\
graph update
  state %tg.learning_rate: f32[]
  state %w: f32[2,3]
  state %b: f32[3]
  state %w_grad.accumulation.buffer: f32[2,3]
  state %b_grad.accumulation.buffer: f32[3]
  state %tg.lazy_reset_grad: bool[1]
  state %tg.constant.2: bool[1]
  %w.updated: f32[2,3] = SGD(%w, %w_grad.accumulation.buffer, %tg.learning_rate) {weight_decay=0.0}  # node \
'update/w/SGD'
  %b.updated: f32[3] = SGD(%b, %b_grad.accumulation.buffer, %tg.learning_rate) {weight_decay=0.0}  # node \
'update/b/SGD'
  %tg.lazy_reset_grad.on: bool[1] = Copy(%tg.constant.2)  # node 'end_of_update/Copy'
  write %w.updated -> %w
  write %b.updated -> %b
  write %tg.lazy_reset_grad.on -> %tg.lazy_reset_grad
  return \n"""


def test_the_whole_program() -> None:
    program = derived(tg.Recipe())
    assert format_graph(program.entries["infer"]) == INFER
    assert format_graph(program.entries["step"]) == STEP
    assert format_graph(program.entries["update"]) == UPDATE
    assert (program.target_input, program.label_classes, program.loss) == ("labels", 3, "cross_entropy")
    roles = {tensor.name: tensor.role for tensor in program.state}
    assert roles == {
        "w": Role.PARAMETER,
        "b": Role.PARAMETER,
        "tg.lazy_reset_grad": Role.HYPER,
        "b_grad.accumulation.buffer": Role.GRADIENT,
        "w_grad.accumulation.buffer": Role.GRADIENT,
        "tg.learning_rate": Role.HYPER,
        "tg.constant.0": Role.CONSTANT,
        "tg.constant.1": Role.CONSTANT,
        "tg.constant.2": Role.CONSTANT,
    }
    assert {tensor.owner for tensor in program.with_role(Role.GRADIENT)} == {"w", "b"}


def seed_gradient(program: Program) -> float:
    """What the loss's own gradient starts with."""
    (start,) = (one.inputs[0] for one in program.entries["step"].nodes if one.op.endswith("LossGrad"))
    initial = program.tensor(start).initial
    assert initial is not None
    return float(initial.array)


@pytest.mark.parametrize(("mode", "accumulate", "seed"), [("mean", 4, 0.25), ("sum", 4, 1.0), ("mean", 1, 1.0)])
def test_accumulation_scales_the_gradient_not_the_loss(mode: str, accumulate: int, seed: float) -> None:
    program = derived(tg.Recipe(accumulate=accumulate, accum_mode=mode))
    assert seed_gradient(program) == seed
    step = [one.op for one in program.entries["step"].nodes]
    assert step == [one.op for one in derived(tg.Recipe()).entries["step"].nodes], "no operator is spent on it"


def test_the_reset_is_lazy() -> None:
    """The update raises a flag; the next step overwrites instead of adding, and lowers it. Nothing is cleared."""
    program = derived(tg.Recipe())
    flag = program.tensor("tg.lazy_reset_grad")
    assert flag.initial is not None and flag.initial.array.tolist() == [True]
    constants = {tensor.name: tensor.initial for tensor in program.with_role(Role.CONSTANT)}
    for entry, wanted in (("step", [False]), ("update", [True])):
        graph = program.entries[entry]
        (written,) = (source for source, state in graph.writes if state == flag.name)
        initial = constants[graph.producers()[written].inputs[0]]
        assert initial is not None and initial.array.tolist() == wanted
    assert not any(state.endswith("buffer") for _, state in program.entries["update"].writes), (
        "the update does not touch the buffers"
    )
    with opened(tg.compile(linear(), tg.Recipe(), target="host")) as session:
        x = np.array([[1.0, -2.0]], np.float32)
        poison = {t.name: np.full(t.type.shape, np.nan, np.float32) for t in program.with_role(Role.GRADIENT)}
        for name, array in poison.items():
            session.write(name, array)
        session.step(x, [0])
        assert session.read("tg.lazy_reset_grad").tolist() == [False]
        assert all(np.isfinite(gradient).all() for gradient in session.gradients().values()), "old content is not read"
        session.update()
        assert session.read("tg.lazy_reset_grad").tolist() == [True]
        finished = session.gradients()
        assert any(np.abs(gradient).max() > 0 for gradient in finished.values()), "and stays readable after the update"


@pytest.mark.parametrize(
    ("optimizer", "slots", "counts"),
    [
        (tg.SGD(), [], False),
        (tg.Momentum(), ["momentum"], False),
        (tg.Adam(), ["exp_avg", "exp_avg_sq"], True),
        (tg.AdamW(), ["exp_avg", "exp_avg_sq"], True),
    ],
)
def test_slots_and_counters(optimizer: Optimizer, slots: list[str], counts: bool) -> None:
    program = derived(tg.Recipe(optimizer=optimizer))
    assert {tensor.name for tensor in program.with_role(Role.OPTIMIZER)} == {
        f"{name}.{slot}" for name in ("w", "b") for slot in slots
    }
    assert all(tensor.initial is None for tensor in program.with_role(Role.OPTIMIZER)), "slots start at zero"
    update = program.entries["update"]
    assert [one.op for one in update.nodes][:2] == [optimizer.operator] * 2
    assert ("tg.update" in update.state) is counts
    assert "tg.minibatch" not in [tensor.name for tensor in program.state], "nothing draws random numbers"


def test_dropout_counts_mini_batches() -> None:
    proto = model(
        [node("Dropout", "x ratio training", "d", "drop"), node("Gemm", "d w", "y", "fc")],
        [value("x", ["n", 2])],
        [value("y", ["n", 3])],
        {"w": weights(2, 3), "ratio": np.float32(0.5), "training": np.array(True)},
    )
    program = derived(tg.Recipe(accumulate=2), proto)
    step = program.entries["step"]
    assert "tg.minibatch" in step.state
    (following,) = (source for source, state in step.writes if state == "tg.minibatch")
    assert step.producers()[following].op == "Add"
    assert "tg.minibatch" not in program.entries["infer"].state
    with opened(tg.compile(proto, tg.Recipe(accumulate=2), target="host")) as session:
        x = np.ones((1, 2), np.float32)
        for _ in range(3):
            session.step(x, [1])
        session.update()
        assert session.read("tg.minibatch") == 3


@pytest.mark.parametrize(
    ("loss", "operator", "target"),
    [
        ("cross_entropy", "SoftmaxCrossEntropyLoss", "i64[4]"),
        ("mse", "MSELoss", "f32[4,3]"),
        ("l1", "L1Loss", "f32[4,3]"),
        ("bce_with_logits", "BCEWithLogitsLoss", "f32[4,3]"),
    ],
)
def test_losses_and_their_targets(loss: str, operator: str, target: str) -> None:
    program = derived(tg.Recipe(loss=loss, batch=4))
    step = program.entries["step"]
    assert str(step.types[program.target_input]) == target and step.outputs == ("loss",)
    assert operator in [one.op for one in step.nodes] and str(step.types["loss"]) == "f32[]"
    assert (program.label_classes is None) == (loss != "cross_entropy")


def test_names_of_the_model_win() -> None:
    """A model may call its tensors what we call ours: they keep their names, ours step aside."""
    proto = model(
        [node("Gemm", "labels w", "loss", "fc1"), node("Gemm", "loss w.momentum", "w_grad", "fc2")],
        [value("labels", ["n", 2])],
        [value("w_grad", ["n", 3])],
        {"w": weights(2, 4), "w.momentum": weights(4, 3)},
    )
    compiled = tg.compile(proto, tg.Recipe(optimizer=tg.Momentum()), target="host")
    names = [tensor.name for tensor in compiled.program.state]
    assert "w.momentum.1" in names and len(names) == len(set(names))
    assert compiled.program.target_input == "labels.1"
    assert {tensor.name for tensor in compiled.program.trainable} == {"w", "w.momentum"}
    with opened(compiled) as session:
        before = session.step(np.ones((1, 2), np.float32), [1])
        session.update()
        assert session.step(np.ones((1, 2), np.float32), [1]) < before


@pytest.mark.parametrize("name", ["tg.learning_rate", "tg.lazy_reset_grad", "tg.update", "tg.minibatch"])
def test_a_few_names_are_ours(name: str) -> None:
    proto = linear()
    proto.graph.node[0].input[1] = proto.graph.initializer[0].name = name
    with pytest.raises(UserError) as caught:
        derived(tg.Recipe(), proto)
    assert str(caught.value) == (
        f"the model has a tensor called '{name}', a name that tilegrad keeps for itself\n  hint: rename it in the model"
    )


NOTHING_REACHES = model(
    [node("Gemm", "x w", "h", "fc"), node("Cast", "h", "i", "truncate", to=7), node("Cast", "i", "y", "back", to=1)],
    [value("x", ["n", 2])],
    [value("y", ["n", 3])],
    {"w": weights(2, 3)},
)
FLAT_OUTPUT = model(
    [node("Gemm", "x w", "h", "fc"), node("Reshape", "h shape", "y", "flat")],
    [value("x", [1, 2])],
    [value("y", [3])],
    {"w": weights(2, 3), "shape": ints(3)},
)
INTEGER_OUTPUT = model(
    [node("Gemm", "x w", "h", "fc"), node("Cast", "h", "y", "truncate", to=7)],
    [value("x", ["n", 2])],
    [value("y", ["n", 3], "i64")],
    {"w": weights(2, 3)},
)


@pytest.mark.parametrize(
    ("proto", "recipe", "text"),
    [
        pytest.param(
            NOTHING_REACHES,
            tg.Recipe(),
            "no trainable parameter influences the loss\n"
            "  got: 1 selected parameter(s), none on a differentiable path to 'y'\n"
            "  hint: `tilegrad inspect MODEL --parameters` lists what could train",
            id="no path",
        ),
        pytest.param(
            FLAT_OUTPUT,
            tg.Recipe(),
            "cross entropy needs logits with a batch and a class dimension\n"
            "  expected: rank 2 or more\n"
            "  got: 'y' f32[3]\n"
            "  hint: choose --loss bce_with_logits, huber, l1 or mse",
            id="no classes",
        ),
        pytest.param(
            INTEGER_OUTPUT,
            tg.Recipe(loss="mse"),
            "the model's first output cannot be trained against\n  expected: a float output\n  got: 'y' i64[1,3]",
            id="integer output",
        ),
    ],
)
def test_models_that_a_recipe_does_not_fit(proto: onnx.ModelProto, recipe: tg.Recipe, text: str) -> None:
    with pytest.raises(UserError) as caught:
        derived(recipe, proto)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loss": "hinge"}, f"the loss cannot be used\n  expected: {' or '.join(LOSSES)}\n  got: hinge"),
        (
            {"accum_mode": "max"},
            f"the accumulation mode cannot be used\n  expected: {' or '.join(ACCUM_MODES)}\n  got: max",
        ),
        ({"batchnorm": "off"}, "the BatchNorm policy cannot be used\n  expected: frozen or train or fold\n  got: off"),
        ({"batch": 0}, "the batch size cannot be used\n  expected: 1 or more\n  got: 0"),
        (
            {"accumulate": -1},
            "the number of mini-batches to accumulate cannot be used\n  expected: 1 or more\n  got: -1",
        ),
        ({"seed": 2**32}, "the seed cannot be used\n  expected: 0 to 4294967295\n  got: 4294967296"),
    ],
)
def test_recipes_that_cannot_be(options: dict[str, object], text: str) -> None:
    with pytest.raises(UserError) as caught:
        tg.Recipe(**options)  # type: ignore[arg-type]
    assert str(caught.value) == text and caught.value.stage == "recipe"


NUMBER = "a finite number, 0 or more"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tg.SGD(lr=-1.0), f"the learning rate cannot be used\n  expected: {NUMBER}\n  got: -1.0"),
        (lambda: tg.SGD(lr=float("nan")), f"the learning rate cannot be used\n  expected: {NUMBER}\n  got: nan"),
        (lambda: tg.Adam(lr=float("inf")), f"the learning rate cannot be used\n  expected: {NUMBER}\n  got: inf"),
        (
            lambda: tg.SGD(lr=1e39),
            "the learning rate cannot be used\n  expected: at most 3.4e+38, the largest float\n  got: 1e+39",
        ),
        (lambda: tg.SGD(weight_decay=-0.1), f"the weight decay cannot be used\n  expected: {NUMBER}\n  got: -0.1"),
        (
            lambda: tg.Momentum(momentum=-0.9),
            "the momentum cannot be used\n  expected: 0 or more, less than 1\n  got: -0.9",
        ),
        (lambda: tg.Adam(beta1=1.0), "beta1 cannot be used\n  expected: 0 or more, less than 1\n  got: 1.0"),
        (lambda: tg.AdamW(beta2=-0.1), "beta2 cannot be used\n  expected: 0 or more, less than 1\n  got: -0.1"),
        (lambda: tg.Adam(epsilon=-1.0), f"epsilon cannot be used\n  expected: {NUMBER}\n  got: -1.0"),
    ],
)
def test_optimizers_that_cannot_be(make: object, text: str) -> None:
    with pytest.raises(UserError) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value) == text
