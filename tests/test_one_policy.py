"""The command line and the Python API compile the same program, by one policy, which is data of the pipeline."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from pkgutil import iter_modules
from typing import TypeVar

import numpy as np
import pytest

import tilegrad as tg
from tests.support.command_line import CommandLine
from tilegrad import passes
from tilegrad.data.samples import make_batches
from tilegrad.devices.process import HarnessSession
from tilegrad.devices.residency import Residency
from tilegrad.errors import UserError
from tilegrad.pipeline import (
    DUMPS,
    EPILOGUES,
    FIT,
    FORWARD_PASSES,
    GRAPH_PASSES,
    MODEL_PASSES,
    PROGRAM_PASSES,
    SPLIT,
    STAGES,
    Observer,
    Where,
    compile_inference,
    compile_model,
)
from tilegrad.recipe import Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets import base as targets

R = TypeVar("R")
ADAM = Recipe(optimizer=tg.Adam(lr=0.001))
CASES = [
    pytest.param("simplemlp", "host", Recipe(), [], {}, id="flat"),
    pytest.param("simplemlp", "mcu", Recipe(accumulate=2), ["--accum", "2"], {}, id="flat-accum"),
    pytest.param("simplemlp", "siracusa", Recipe(), [], {}, id="fused"),
    pytest.param("simplemlp", "siracusa", Recipe(accumulate=2), ["--accum", "2"], {}, id="accum"),
    pytest.param(
        "autoencoder_tiny",
        "siracusa",
        ADAM,
        ["--optimizer", "adam", "--lr", "0.001", "--buffering", "double"],
        {"buffering": "double"},
        id="adam-double",
    ),
    pytest.param(
        "autoencoder_tiny",
        "pulp_small",
        Recipe(batch=2),
        ["--batch", "2", "--buffering", "single", "--home", "L3"],
        {"buffering": "single", "home": "L3"},
        id="single-l3",
    ),
    pytest.param(
        "autoencoder_tiny", "siracusa", Recipe(train="last:1"), ["--train", "last:1", "--tiling", "off"],
        {"tiling": False}, id="untiled-last",
    ),
    pytest.param("simplemlp", "mppa", Recipe(), [], {}, id="mppa"),
    pytest.param("dscnn", "siracusa", Recipe(batchnorm="train"), ["--batchnorm", "train"], {}, id="dscnn",
                 marks=pytest.mark.slow),
]  # fmt: skip


def contents(folder: Path) -> dict[str, object]:
    """All but the README, in which the command says what stack its compiler told."""
    found: dict[str, object] = {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    manifest = json.loads((folder / "manifest.json").read_text())
    del found["README.md"], manifest["files"]["README.md"], manifest["sha256"]
    return found | {"manifest.json": manifest}


@pytest.mark.parametrize(("name", "target", "recipe", "words", "options"), CASES)
def test_python_and_the_command_line_give_the_same_bytes(
    tilegrad: CommandLine,
    tmp_path: Path,
    name: str,
    target: str,
    recipe: Recipe,
    words: list[str],
    options: dict[str, object],
) -> None:
    answer = tilegrad("compile", name, "--target", target, "-o", tmp_path / "c", *words, "--json", tmp_path / "j")
    assert answer.status == 0, answer.err
    program = tg.compile(name, recipe, target=target, **options)  # type: ignore[arg-type]
    program.write(tmp_path / "p")
    own, written = contents(tmp_path / "p"), contents(tmp_path / "c")
    assert own.keys() == written.keys()
    assert [path for path in own if own[path] != written[path]] == []


def test_the_policy_is_by_target_and_recipe() -> None:
    assert tg.compile("simplemlp", target="siracusa").program.is_fused
    assert not tg.compile("simplemlp", Recipe(accumulate=2), target="siracusa").program.is_fused
    assert not tg.compile("simplemlp", target="host").program.is_fused


def test_options_that_change_nothing_are_refused_in_python_too() -> None:
    with pytest.raises(UserError, match="--buffering does not apply to target 'host'"):
        tg.compile("simplemlp", target="host", buffering="double")


# ---- gradients of a fused program


@pytest.mark.parametrize("optimizer", [tg.SGD(lr=0.1), tg.Adam(lr=0.01)], ids=["sgd", "adam"])
def test_gradients_are_those_of_the_last_step(optimizer: tg.SGD | tg.Adam) -> None:
    """After an update too, whose parameters are others; twice; and whatever was written meanwhile."""
    fused = tg.compile("autoencoder_tiny", Recipe(optimizer=optimizer), target="siracusa")
    plain = tg.compile("autoencoder_tiny", Recipe(optimizer=optimizer), target="host")
    batches = make_batches(fused, None)
    with tg.open_device("sim:siracusa") as chip, tg.open_device("host") as host:
        session, reference = chip.load(fused), host.load(plain)
        zeros = session.gradients()
        assert zeros.keys() == reference.gradients().keys() and not any(array.any() for array in zeros.values())
        for i in range(4):
            x, y = batches.batch(i)
            assert session.step(x, y) == reference.step(x, y)
            session.update(), reference.update()
            if i == 2:
                continue  # a step whose gradients nobody asks for
            wanted = reference.gradients()
            if i == 3:
                session.set_parameters({name: np.zeros_like(v) for name, v in session.parameters().items()})
            for _ in range(2):
                assert {k: v.tobytes() for k, v in session.gradients().items()} == {
                    k: v.tobytes() for k, v in wanted.items()
                }


def test_dropout_and_batch_statistics_are_replayed() -> None:
    """A companion that took its own masks or statistics would give other gradients."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Dropout(0.5),
        torch.nn.Linear(48, 4),
    )  # fmt: skip
    for i, tensor in enumerate((*module[1].parameters(), *module[1].buffers())):
        if tensor.is_floating_point():  # no two of them alike: exporters may take equal ones for one
            tensor.data += torch.linspace(0.1, 0.3 + i / 10, 3)
    model = tg.load(module, example=torch.zeros(2, 1, 6, 6), batch=2)
    recipe = Recipe(batch=2, batchnorm="train", optimizer=tg.SGD(lr=0.1))
    fused, plain = tg.compile(model, recipe, target="siracusa"), tg.compile(model, recipe, target="host")
    batches = make_batches(fused, None)
    with tg.open_device("sim:siracusa") as chip, tg.open_device("host") as host:
        session, reference = chip.load(fused, Residency(gradients="host")), host.load(plain)
        for i in range(3):
            assert session.step(*batches.batch(i)) == reference.step(*batches.batch(i))
            wanted = reference.gradients()
            session.update(), reference.update()
            assert {k: v.tobytes() for k, v in session.gradients().items()} == {
                k: v.tobytes() for k, v in wanted.items()
            }


def test_closing_a_session_closes_its_companion() -> None:
    fused = tg.compile("simplemlp", target="siracusa")
    with tg.open_device("sim:siracusa") as device:
        with device.load(fused) as session:
            session.step(*make_batches(fused, None).batch(0))
            session.gradients()
            assert session._companion is not None
            companion = session._companion._session
        assert isinstance(companion, HarnessSession) and companion.conversation.is_closed


# ---- the table of passes


@dataclass
class Seen(Observer):
    """What ran and what was left out, in order."""

    names: list[str] = field(default_factory=list)

    def run(self, name: str, work: Callable[[], R], stage: str | None = None) -> R:
        self.names.append(name)
        return super().run(name, work, stage)

    def skip(self, name: str, where: Where) -> None:
        self.names.append(name)


TABLE = (*GRAPH_PASSES, *FORWARD_PASSES, *PROGRAM_PASSES, SPLIT)
PASS_CLASSES = {
    name
    for module in iter_modules(passes.__path__)
    for name, kind in vars(import_module(f"{passes.__name__}.{module.name}")).items()
    if isinstance(kind, type) and kind.__module__.endswith(f".{module.name}") and hasattr(kind, "apply")
}
"""What tilegrad/passes has that is a pass, by what every pass is: a class with a method `apply`."""


def test_dump_after_knows_every_stage_and_pass_in_order(tilegrad: CommandLine) -> None:
    names = [*MODEL_PASSES, *(each.name for each in TABLE), FIT, EPILOGUES]
    assert len(set(DUMPS)) == len(DUMPS) == len(STAGES) + len(names)
    assert [name for name in DUMPS if name in STAGES] == list(STAGES)
    assert [name for name in DUMPS if name in names] == names


def test_nothing_is_observed_that_cannot_be_dumped() -> None:
    """Whatever runs, or is left out, in the order in which it is listed: nothing is rewritten beside the table."""
    trains = (Recipe(), Recipe(train="lora:2"), Recipe(train="sparse:4K"))
    recipes = (*trains, Recipe(batchnorm="fold"), Recipe(batchnorm="train"))
    for recipe, options in product(recipes, (ScheduleOptions(), ScheduleOptions(fit_bytes=1 << 20))):
        for target in ("host", "siracusa"):
            seen = Seen()
            compile_model(tg.load("simplemlp"), recipe, targets.get(target), seen, options=options)
            assert seen.names == [name for name in DUMPS if name != "import"], (recipe, options, target)
    seen = Seen()
    compile_inference(tg.load("simplemlp"), Recipe(), targets.get("host"), seen)
    assert seen.names == [name for name in DUMPS if name not in ("import", *MODEL_PASSES)]


def test_every_pass_is_in_the_table() -> None:
    named = {type(own).__name__ for each in TABLE if (own := getattr(each.apply, "__self__", None)) is not None}
    assert named == PASS_CLASSES and {"FreezeStatistics", "SplitConvGrad", "OrderPeak"} <= named


def passes_of(text: str) -> set[str]:
    """The passes that a module can run: what it imports, and what it takes from a module."""
    nodes = list(ast.walk(ast.parse(text)))
    imported = {node.name for node in nodes if isinstance(node, ast.alias)}
    return PASS_CLASSES & (imported | {node.attr for node in nodes if isinstance(node, ast.Attribute)})


def test_no_pass_runs_beside_the_table() -> None:
    """A stage that ran one by itself would show its result to nobody."""
    package = Path(tg.__file__).parent
    users = {str(path.relative_to(package)) for path in package.rglob("*.py") if passes_of(path.read_text("utf-8"))}
    assert users == {"pipeline.py"}
    assert passes_of("from tilegrad.passes.order_end import OrderEnd as Last") == {"OrderEnd"}
    assert passes_of("from tilegrad.passes import order_end\norder_end.OrderEnd()") == {"OrderEnd"}


def test_what_a_pass_made_is_what_is_dumped(tilegrad: CommandLine) -> None:
    """Each of these changes something of dscnn, and the dump in front of it does not have it yet."""
    fit = ("--device", "host", "--ram", "400K", "--fit")
    for before, name, made in (
        ("canonicalize", "freeze-statistics", "FrozenBatchNormalization("),
        ("freeze-statistics", "fuse-activation", "relu=1"),
        ("order-peak", "split-conv-grad", "Grad.image"),
    ):
        texts = [tilegrad("compile", "dscnn", *fit, "--dump-after", each).out for each in (before, name)]
        assert [made in text for text in texts] == [False, True], name


@pytest.mark.parametrize("name", DUMPS)
def test_every_pass_can_be_dumped(tilegrad: CommandLine, name: str) -> None:
    options = {
        "adapters": "--train lora:2", "channels": "--train sparse:4K", "fold-batchnorm": "--batchnorm fold",
        "guard": "--guard nan", "store": "--store bf16", "fit": "--device host --ram 64K --fit",
        "split-conv-grad": "--device host --ram 64K --fit",
    }  # fmt: skip
    needs = options.get(name, "").split()
    answer = tilegrad("compile", "simplemlp", "--dump-after", name, *needs)
    assert answer.status == 0 and "fc1" in answer.out
    if name == "fuse-update":
        assert "SGD" in answer.out.partition("graph step")[2].partition("graph update")[0]


def test_a_pass_that_is_not_for_the_target_says_what_it_is_for(tilegrad: CommandLine) -> None:
    answer = tilegrad("compile", "simplemlp", "--device", "host", "--dump-after", "fuse-update")
    assert answer.status == 2 and Where.FUSING.value in answer.err
    assert tilegrad("compile", "simplemlp", "--dump-after", "fuse-updat").err.count("did you mean 'fuse-update'?") == 1


@pytest.mark.parametrize("name", [*MODEL_PASSES, SPLIT.name, FIT])
def test_a_pass_that_nobody_asked_for_says_who_would(tilegrad: CommandLine, name: str) -> None:
    answer = tilegrad("compile", "simplemlp", "--dump-after", name)
    assert answer.status == 2 and MODEL_PASSES.get(name, Where.FITTED).value in answer.err


def test_statistics_that_change_are_not_frozen(tilegrad: CommandLine) -> None:
    answer = tilegrad("compile", "dscnn", "--batchnorm", "train", "--dump-after", "freeze-statistics")
    assert answer.status == 2 and Where.FROZEN.value in answer.err


def test_passes_that_are_for_some_targets_leave_the_others_alone() -> None:
    """What the host compiles is what each pass for every program makes, in order."""
    program = tg.compile("simplemlp", target="host").program
    assert {node.op for node in program.entries["update"].nodes} >= {"SGD"}
    assert targets.get("host").is_flat and not targets.get("siracusa").is_flat


@pytest.mark.parametrize("words", [[], ["--l1", "16K", "--buffering", "double"]], ids=["auto", "double"])
def test_cycles_are_known_before_anything_runs(tilegrad: CommandLine, tmp_path: Path, words: list[str]) -> None:
    """`inspect` and `compile` run nothing; the simulator, whose trace is compared with the listing, says the same."""
    device = ("simplemlp", "--device", "sim:siracusa", *words)
    inspected = tilegrad("inspect", *device, "--json", tmp_path / "i.json")
    written = tilegrad("compile", *device, "-o", tmp_path / "c", "--json", tmp_path / "c.json")
    trained = tilegrad("train", *device, "--steps", 1, "--no-verify", "--json", tmp_path / "t.json")
    found = [json.loads((tmp_path / f"{name}.json").read_text())["cycles"] for name in "ict"]
    assert found[0] == found[1] and found[0]["step"] > 1000
    assert found[2]["step"] == found[0]["step"]
    shown = f"estimated cycles: step {found[0]['step']:,}"
    assert all(shown in answer.out for answer in (inspected, written, trained))
