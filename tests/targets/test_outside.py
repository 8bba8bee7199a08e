"""A chip from outside the package: by a file, by a call or by an entry point. It is compiled for and simulated like any
other, with the host's bits, and what cannot be is refused by field, value and what would work."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import tilegrad as tg
from tests.support.command_line import CommandLine
from tilegrad.api import unfused
from tilegrad.costs.clock import Clock
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.errors import DoesNotFit, UserError
from tilegrad.targets import base as targets
from tilegrad.targets import files
from tilegrad.targets.base import L1, L2, ComputeEngine, CoreCosts, DmaEngine, DmaTiming, Memory, Target

EXAMPLES = Path(__file__).parents[2] / "examples" / "target"
CLUSTER, ONE_HOP = EXAMPLES / "small_cluster.toml", EXAMPLES / "one_hop.py"
TEXT = CLUSTER.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(targets._registered)
    yield
    targets._registered.clear()
    targets._registered.update(before)
    targets._installed.cache_clear()


def test_the_example_is_the_chip_of_the_documents() -> None:
    assert len(TEXT.splitlines()) <= 40
    chip = files.read(CLUSTER)
    assert (chip.cores, chip.memory(L1).capacity_bytes, chip.memory(L2).capacity_bytes) == (4, 60 << 10, 512 << 10)
    assert chip.far_engine is not None and chip.far_engine.shares == "dma" and chip.engine(L2, L1).name == "dma"


def test_the_documents_explain_every_field() -> None:
    text = (EXAMPLES.parents[1] / "docs" / "targets.md").read_text(encoding="utf-8")
    every = {
        one.name
        for record in (Target, Memory, DmaEngine, DmaTiming, ComputeEngine, CoreCosts)
        for one in fields(record)
    }
    assert sorted(name for name in every if f"`{name}`" not in text and f'{name}="' not in text) == []


@pytest.mark.parametrize("model", ["autoencoder_tiny", pytest.param("resnet8", marks=pytest.mark.matrix)])
def test_every_mode_on_a_chip_from_a_file_has_the_bits_of_the_host(model: str, tilegrad: CommandLine) -> None:
    words = (model, "--steps", "1", "--no-verify", "--json", "-")
    answer = tilegrad("compare", *words, "--target", CLUSTER)
    assert answer.status == 0 and answer.json["cycles_are"] == "estimated, uncalibrated", answer.err
    host = tilegrad("train", *words, "--device", "host").json["weights_sha256"]
    assert [row["weights_sha256"] for row in answer.json["rows"]] == [host] * 3


def test_one_hop_without_l3(tilegrad: CommandLine, tmp_path: Path) -> None:
    """No column tells of an L3, and bits are the host's."""
    words = ("--no-verify", "--steps", "1")
    shown = tilegrad("compare", "simplemlp", "--target", ONE_HOP, *words, "--json", tmp_path / "j")
    assert shown.status == 0 and "L2-L1" in shown.out and "L3" not in shown.out
    found = {row["weights_sha256"] for row in json.loads((tmp_path / "j").read_text())["rows"]}
    assert found == {tilegrad("train", "simplemlp", "--device", "host", *words, "--json", "-").json["weights_sha256"]}


def test_gradients_are_read_where_they_do_not_fit_beside_the_rest() -> None:
    """From a larger L2, where there is no L3 to take them."""
    chip = targets.known(files.read(ONE_HOP))
    used_bytes = tg.compile("simplemlp", target=chip).plan.memory[L2].used_bytes
    compiled = tg.compile("simplemlp", target=chip.with_capacity(L2, used_bytes))
    apart = unfused(compiled)
    assert apart.plan.memory[L2].used_bytes > used_bytes and set(apart.plan.memory) == {L1, L2}


def test_an_option_about_an_l3_that_is_not_there(tilegrad: CommandLine) -> None:
    for words, line in (
        (("--home", "L3"), "got: --home L3"),
        (("--buffering", "l3=double"), "got: --buffering l3=double"),
        (("--l3", "4M"), "expected: L1 or L2"),
    ):
        answer = tilegrad("train", "simplemlp", "--target", ONE_HOP, *words)
        assert answer.status == 2 and line in answer.err, words
    with pytest.raises(DoesNotFit) as caught:
        tg.compile("resnet8", target=ONE_HOP)
    assert caught.value.message == "the program does not fit into L2 of one_hop"
    assert caught.value.hint is not None and "--l2" in caught.value.hint


def clock_of(target: Target) -> Clock:
    return Clock(target, KernelCosts(target))


def test_rows_without_2d_transfers_are_commands_of_their_own() -> None:
    chip = targets.known(files.read(ONE_HOP))
    able = replace(chip, engines=(replace(chip.engines[0], has_2d=True),))
    times = []
    for one in (chip, able):
        clock = clock_of(one)
        _, arrived = clock.command(clock.near, True, 640, rows=10)
        times.append((arrived, clock.now))
    assert times[1] == (12 + 30 + 640 / 4, 12)  # no core computes, so nothing is lost at the memory's banks
    # Ten set-ups one behind the other, of which two are under way while the conductor brings the next.
    assert times[0][0] == pytest.approx(12 + 10 * (30 + 64 / 4)) and times[0][1] > 8 * 46


def test_one_engine_on_two_hops_moves_one_thing_at_a_time() -> None:
    shared = targets.known(files.read(CLUSTER))
    near, far = shared.engines
    apart = replace(shared, engines=(near, replace(far, shares=None)))
    starts = []
    for one in (shared, apart):
        clock = clock_of(one)
        assert clock.far is not None
        _, done = clock.command(clock.near, True, 4000)
        start, _ = clock.command(clock.far, True, 4000)
        starts.append((start, done))
        clock.restart()
        assert clock.command(clock.far, True, 8)[0] == 10
    assert starts[0][0] == starts[0][1] and starts[1][0] == 20 < starts[1][1]


def test_a_name_works_wherever_a_target_does(tilegrad: CommandLine) -> None:
    chip = tg.register_target(replace(files.read(ONE_HOP), name="mine"))
    assert isinstance(chip, Target) and not chip.is_calibrated and chip.costs is not None
    assert "mine" in targets.names() and "sim:mine" in tilegrad("devices").out and "mine" in tilegrad("targets").out
    with tg.open_device("sim:mine") as device:
        run = tg.train(tg.compile("simplemlp", target="mine"), device, steps=1, verify=False)
    assert run.losses and run.compiled.target == chip
    assert tg.compile("simplemlp", target=CLUSTER).target.name == "small_cluster"
    answer = tilegrad("inspect", "simplemlp", "--target", CLUSTER, "--device", "sim:small_cluster", "--json", "-")
    assert answer.status == 0 and answer.json["target"] == "small_cluster"


def test_the_list_says_whose_costs_are_another_chips(tilegrad: CommandLine) -> None:
    rows = re.split(r"\n(?=\w)", tilegrad("targets").out)
    marked = {row.split()[0] for row in rows if "(uncalibrated)" in row}
    ours = {path.parent.name for path in targets.TARGETS_FOLDER.glob("*/target.py")}  # other tests register chips
    assert marked & ours == {"gap9", "mppa", "npu", "pulp_small"}


def test_a_chip_of_an_installed_package(tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = [EntryPoint("one_hop", "tests.targets.test_outside:INSTALLED", targets.ENTRY_POINTS)]
    monkeypatch.setattr(targets, "entry_points", lambda group: [entry] if group == targets.ENTRY_POINTS else [])
    targets._installed.cache_clear()
    assert "installed" in targets.names() and "sim:installed" in tilegrad("devices").out
    broken = EntryPoint("broken", "tests.targets.test_outside:TEXT", targets.ENTRY_POINTS)
    monkeypatch.setattr(targets, "entry_points", lambda group: [broken])
    targets._installed.cache_clear()
    answer = tilegrad("targets")
    assert answer.status == 2 and "got: str, which is no Target" in answer.err


INSTALLED = replace(files.read(ONE_HOP), name="installed")


def test_a_flat_chip_is_compiled_for_and_not_run(tilegrad: CommandLine, tmp_path: Path) -> None:
    chip = tmp_path / "flat.toml"
    chip.write_text('name = "flat"\nsummary = ""\n[memories.RAM]\ncapacity_bytes = "256K"\nalignment_bytes = 8\n')
    answer = tilegrad("compile", "simplemlp", "--target", chip, "-o", tmp_path / "c", "--json", "-")
    assert answer.status == 0 and (tmp_path / "c" / "model.c").exists()
    engine = TEXT[TEXT.index("[engines.dma]") : TEXT.index("[engines.dma_outside]")]
    moving = tmp_path / "moving.toml"
    moving.write_text(chip.read_text() + engine.replace('"L1"', '"RAM"').replace('"L2"', '"RAM"'))
    answer = tilegrad("targets", moving)
    assert answer.status == 2 and "the engines (engines)" in answer.err and "got: dma" in answer.err
    refused = tilegrad("train", "simplemlp", "--target", chip)
    assert refused.status == 2 and "no device runs target 'flat'" in refused.err
    chip.write_text(chip.read_text() + '[memories.FLASH]\ncapacity_bytes = "1M"\nalignment_bytes = 8\n')
    found = tilegrad("inspect", "simplemlp", "--target", chip, "--train", "last:1", "--json", "-")
    assert found.status == 0 and found.json["target"] == "flat", found.err


CHANGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "no cores": ("cores = 4", "cores = 0", ("(cores)", "1 to 1024", "got: 0")),
    "part of a core": ("cores = 4", "cores = 2.5", ("cores", "a whole number", "2.5")),
    "cores in words": ("cores = 4", 'cores = "four"', ("cores", "a whole number", "'four'")),
    "a conductor that is not there": ('"worker"', '"tenth core"', ("conductor", "worker or controller", "tenth core")),
    "a conductor by number": ('"worker"', "8", ("conductor", "text in quotes", "8")),
    "no scratchpad": ('"60K"', "0", ("memories.L1", "(capacity_bytes)", "1 to 2147483647 bytes", "got: 0")),
    "a size that is none": ('"60K"', '"60X"', ("memories.L1.capacity_bytes", "64K, 2M or bytes", "60X")),
    "more than offsets reach": ('"512K"', '"4G"', ("memories.L2", "(capacity_bytes)", "4294967296")),
    "an odd alignment": ("alignment_bytes = 8", "alignment_bytes = 12", ("(alignment_bytes)", "a power of two", "12")),
    "no room for one": ("alignment_bytes = 8", "alignment_bytes = 65536", ("61440 at most", "got: 65536")),
    "an engine that stands still": ("0.25", "0", ("engines.dma.inward", "(cycles_per_byte)", "more than 0")),
    "an endless engine": ("0.25", "inf", ("engines.dma.inward", "(cycles_per_byte)", "got: inf")),
    "no number": ("0.25", "nan", ("(cycles_per_byte)", "got: nan")),
    "time that runs back": ("setup_cycles = 20", "setup_cycles = -20", ("(setup_cycles)", "0 cycles or more", "-20")),
    "no queue": ("queue_depth = 4", "queue_depth = 0", ("engines.dma", "(queue_depth)", "1 or more", "got: 0")),
    "an engine to nowhere": ('near = "L1"', 'near = "L0"', ("engine dma", "two of its memories", "L2-L0")),
    "no way to the cores": (
        'near = "L1"\nfar = "L2"', 'near = "L1"\nfar = "L3"',
        ("without a way from L2 to L1", "an engine near L1, far L2", "L3-L1, L3-L2"),
    ),
    "no way to L3": (TEXT[TEXT.index("[engines.dma_outside]"):], "", ("without a way from L3 to L2", "got: L2-L1")),
    "no engine": (TEXT[TEXT.index("[engines.dma]"):], "", ("without a way from L2 to L1", "got: no engine")),
    "a memory by another name": ("[memories.L1]", "[memories.TCM]", ("(memories)", "L1 and L2", "got: TCM, L2, L3")),
    "no L2": ("[memories.L2]", "[memories.RAM]", ("(memories)", "L1 and L2, or", "got: L1, RAM, L3")),
    "L3 that cores reach": ('"4M"', '"4M"\ncore_extra_cycles = 5', ("(core_extra_cycles)", "none: only", "got: 5")),
    "longer than 32 bits": ("65535", "4294967296", ("(longest_bytes)", "8 to 2147483647 bytes", "got: 4294967296")),
    "nobody conducts": ('"worker"', '""', ("conductor", "worker or controller", "got: ''")),
    "no memory": (TEXT[TEXT.index("[memories"):TEXT.index("[engines")], "", ("memories", "[memories.L1]", "got: none")),
    "a slip": ("fpus = 2", "fpu = 2", ("no field 'fpu'", "did you mean 'fpus'?")),
    "a slip in a table": ("has_2d", "has_3d", ("engines.dma has no field 'has_3d'", "did you mean 'has_2d'?")),
    "no speed": ("inward = { setup_cycles = 20", "outward = { setup_cycles = 20", ("engines.dma.inward is missing",)),
    "a field left out": ("queue_depth = 4\n", "", ("engines.dma.queue_depth is missing", "queue_depth = ")),
    "shares what is not there": ('"dma" #', '"idma" #', ("engines.dma_outside.shares", "dma", "got: idma")),
    "a name with a slash": ('"small_cluster"', '"../x"', ("(name)", "a letter, then letters")),
    "a name that is taken": ('"small_cluster"', '"siracusa"', ("chip.toml':", "a name of its own", "siracusa")),
    "a runtime that is not there": ("cores = 4", 'cores = 4\nruntime = "mcu"', ("chip.toml':", "(runtime)", "mcu")),
    "not TOML": ("cores = 4", "cores = = 4", ("is not TOML", "line 6")),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_files_that_cannot_be(case: str, tilegrad: CommandLine, tmp_path: Path) -> None:
    before, after, words = CHANGES[case]
    assert before in TEXT
    path = tmp_path / "chip.toml"
    path.write_text(TEXT.replace(before, after, 1), encoding="utf-8")
    answer = tilegrad("compare", "simplemlp", "--target", path)
    told = re.sub(r"\s+", " ", answer.err)
    assert answer.status == 2 and answer.out == "" and "Traceback" not in told
    assert [word for word in words if word not in told] == []


PROGRAMS = {
    "no TARGET": ("X = 1\n", "got: no such name"),
    "another thing": ("TARGET = 4\n", "got: int"),
    "not Python": ("TARGET = (\n", "is not Python"),
    "an error": ("import tilegrad as tg\n\nTARGET = tg.Target()\n", "line 3: TypeError"),
    "an exit": ("raise SystemExit(0)\n", "line 1: SystemExit: 0"),
    "a word for a flag": (ONE_HOP.read_text().replace("has_2d=False", 'has_2d="no"'), "(has_2d) cannot be"),
    "what cannot be": (ONE_HOP.read_text().replace("cores=2,", "cores=-2,"), "got: -2"),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_programs_that_cannot_be(case: str, tilegrad: CommandLine, tmp_path: Path) -> None:
    source, word = PROGRAMS[case]
    path = tmp_path / "chip.py"
    path.write_text(source)
    answer = tilegrad("targets", path)
    assert answer.status == 2 and word in re.sub(r"\s+", " ", answer.err)
    assert [file.name for file in tmp_path.iterdir()] == ["chip.py"]


def test_files_that_are_not_there(tilegrad: CommandLine, tmp_path: Path) -> None:
    for name in ("none.toml", "none.py", "folder/chip.json"):
        assert tilegrad("inspect", "simplemlp", "--target", tmp_path / name).status == 2
    assert tilegrad("inspect", "simplemlp", "--target", "sirakusa").status == 2


def test_toml_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chip.toml"
    path.write_text(TEXT.replace('"worker"', "\"__import__('os').abort()\""))
    with pytest.raises(UserError, match="the conductor"):
        files.read(path)
