"""Channels that train: only these change, as PyTorch trains them, and what is chosen for a budget fits it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tilegrad as tg
from tests.support.command_line import CommandLine
from tilegrad.compiled import Compiled
from tilegrad.errors import UserError
from tilegrad.fit.channels import partial_trainings, training_bytes
from tilegrad.frontend.channels import Parted
from tilegrad.passes.parameters import select
from tilegrad.recipe.sparse import Budget, Selected, parse_sparse, sparse_of
from tilegrad.targets import base as targets
from tilegrad.training.train import train

CHOSEN: dict[str, object] = {
    "conv.weight": [1, 2],
    "conv.bias": [0],
    "deep.weight": ["0-1", 4],
    "norm.weight": [3],
    "body.weight": [0, 2, 4, 6, "8-9"],
    "body.bias": "all",
    "head.weight": [3],
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.deep = nn.Conv2d(5, 5, 3, groups=5)
        self.body, self.head = nn.Linear(45, 11), nn.Linear(11, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        x = torch.relu(self.deep(x)).flatten(1)
        return self.head(torch.relu(self.body(x)))


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(3)
    return Net().eval()


@pytest.fixture
def chosen(tmp_path: Path) -> Path:
    path = tmp_path / "chosen.json"
    path.write_text(json.dumps({"tensors": CHOSEN}))
    return path


def compiled(net: Net, selection: str, target: str = "host", store: str = "f32") -> Compiled:
    optimizer = tg.Momentum(lr=0.05, weight_decay=0.01)
    recipe = tg.Recipe(batch=2, optimizer=optimizer, train=selection, store=tg.Stored.parse(store))
    return tg.compile(tg.load(net, example=torch.zeros(2, 2, 5, 5), batch=2), recipe, target)


@pytest.mark.parametrize("store", ["f32", "bf16"])
def test_only_chosen_channels_train_as_in_pytorch(net: Net, chosen: Path, store: str) -> None:
    program = compiled(net, f"sparse:{chosen}", store=store)
    with tg.open_device("host") as device:
        run = train(program, device, steps=3)
    assert run.verdict is not None and run.verdict.verified
    kept = run.state_dict()
    for name, parameter in net.named_parameters():
        before = parameter.detach().numpy()
        changed = np.abs(kept[name] - before).reshape(before.shape[0], -1).max(1) > 0
        selected = parse_sparse(str(chosen))
        assert isinstance(selected, Selected)
        channels = selected.tensors.get(name, ())
        wanted = range(before.shape[0]) if channels is None else channels
        assert np.flatnonzero(changed).tolist() == list(wanted), name


def test_state_is_of_what_trains(net: Net, chosen: Path) -> None:
    program = compiled(net, f"sparse:{chosen}").program
    trained = {tensor.name: tensor.type for tensor in program.trainable}
    slots = {tensor.owner: tensor.type for tensor in program.state if tensor.role.value in ("optimizer", "gradient")}
    assert slots == trained
    assert sum(each.size for each in trained.values()) == 2 * 18 + 1 + 3 * 9 + 1 + 6 * 45 + 11 + 11
    # The gradient of a layer's weight is computed for its channels alone.
    products = [node for node in program.entries["step"].nodes if node.op == "ConvGrad" and node.outputs[1]]
    assert (2, 2, 3, 3) in [program.entries["step"].types[node.outputs[1]].shape for node in products]


def test_the_forward_pass_keeps_its_bits(net: Net, chosen: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 2, 5, 5)).astype(np.float32)
    found = []
    for selection in ("all", f"sparse:{chosen}"):
        with tg.open_device("host") as device, device.load(compiled(net, selection)) as session:
            found.append(session.infer(x).tobytes())
    assert found[0] == found[1]


def test_a_budget_is_kept(net: Net) -> None:
    chip = targets.get("mcu").without_limits()
    everything = compiled(net, "all", "mcu")
    full = training_bytes(everything.program, chip)
    for share in (0.8, 0.5):
        program = compiled(net, f"sparse:{share}", "mcu")
        assert isinstance(program.model.adapted, Parted) and program.model.adapted.selected.tensors
        assert training_bytes(program.program, chip) <= share * full
        assert program.plan.memory["RAM"].used_bytes <= share * full + 64  # the plan is next to its lower bound
    with pytest.raises(UserError, match="takes more than that"):
        compiled(net, "sparse:1K", "mcu")


def test_what_could_train_in_part(net: Net) -> None:
    """For who looks for what fits: each of these is taken."""
    model = tg.load(net, example=torch.zeros(2, 2, 5, 5), batch=2)
    found = partial_trainings(model)
    assert {"last:1", "norm", "bias", "sparse:0.5"} <= set(found) and "last:9" not in found
    for selection in found:
        if not selection.startswith("sparse"):
            assert select(model.graph, model.parameters, selection)


def test_texts() -> None:
    assert sparse_of("bias") is None and sparse_of("sparse:0.25+bias") == "0.25"
    assert parse_sparse("25%") == Budget(share=0.25) and parse_sparse("64K") == Budget(size_bytes=65536)
    for wrong in ("", "150%", "chosen", "half.yaml"):
        with pytest.raises(UserError):
            parse_sparse(wrong)
    with pytest.raises(UserError, match="without adapters"):
        sparse_of("sparse:0.5+lora:4")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"fc1.weight": [8, 99], "fc9.weight": "all"}', "no channels 8, 99 of 'fc1.weight', which has 8; no tensor"),
        ('{"fc1.weight": "some"}', "does not say which channels of 'fc1.weight' train"),
        ('{"fc1.weight": []}', "chooses no channel"),
        ("[1]", "names no tensors"),
        ("{", "cannot be understood"),
    ],
)
def test_bad_files(tmp_path: Path, tilegrad: CommandLine, content: str, message: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(content)
    answer = tilegrad("inspect", "simplemlp", "--device", "host", "--train", f"sparse:{path}")
    assert answer.status == 2 and answer.err.count("error:") == 1
    assert message in " ".join(answer.err.split())


def test_a_file_that_is_not_there(tilegrad: CommandLine) -> None:
    answer = tilegrad("inspect", "simplemlp", "--device", "host", "--train", "sparse:nowhere.toml")
    assert answer.status == 2 and "cannot read 'nowhere.toml'" in answer.err


def test_toml_and_a_fused_device_have_the_same_bits(net: Net, chosen: Path, tmp_path: Path) -> None:
    rows = [f'"{name}" = {json.dumps(channels)}' for name, channels in CHOSEN.items()]
    (tmp_path / "chosen.toml").write_text("\n".join(rows))
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((2, 2, 5, 5)).astype(np.float32), draw.integers(0, 4, 2)
    found = []
    for device_name, path in (("host", chosen), ("sim:siracusa", tmp_path / "chosen.toml")):
        program = compiled(net, f"sparse:{path}", device_name.split(":")[-1])
        with tg.open_device(device_name) as device, device.load(program) as session:
            session.step(x, y)
            session.update()
            found.append({name: array.tobytes() for name, array in session.weights().items()})
    assert found[0] == found[1]
