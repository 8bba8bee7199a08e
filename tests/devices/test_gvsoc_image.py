"""The image for Siracusa: what is in it and where, and that it gives the host's bits on a model of the chip."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.devices.siracusa import DRIVERS, build, finished, model_program, needs_compiler, run, tool
from tests.schedule.programs import KIB, compiled_for, recipe_of, siracusa
from tests.support.small_models import linear
from tilegrad import frontend, zoo
from tilegrad.build.frames import deepest_bytes
from tilegrad.build.toolchain import list_frames
from tilegrad.compiled import Compiled
from tilegrad.devices.elf import ElfFile
from tilegrad.devices.gvsoc import GvsocDevice
from tilegrad.devices.host import HostDevice
from tilegrad.devices.siracusa_build import CLUSTER_TOOLCHAIN, CONTROLLER_CORE, build_image, cluster_files, folder_files
from tilegrad.devices.siracusa_image import what_ran
from tilegrad.devices.siracusa_program import Expected, float_bits, image_files, weights_hash
from tilegrad.errors import DoesNotFit, UserError
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.stack import stack_use
from tilegrad.targets import base as targets
from tilegrad.targets.base import WORKER
from tilegrad.training.train import train

pytestmark = needs_compiler


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_program(tmp_path_factory.mktemp("siracusa"))


def host_bits(compiled: Compiled, steps: int) -> Expected:
    """What the host computes: an image must give the same."""
    flat = compile_model(compiled.model, compiled.program.recipe, targets.get("host"))
    with HostDevice() as device:
        ran = train(flat, device, steps=steps, verify=False)
    return Expected(tuple(map(float_bits, ran.losses)), weights_hash(ran.weights.values()))


@dataclass(frozen=True)
class Way:
    name: str
    options: ScheduleOptions
    cores: int = 8
    l1_bytes: int = 64 * KIB

    def __str__(self) -> str:
        mode = self.options.buffering if self.options.is_tiled else "untiled"
        return f"{self.name}-{mode}-{self.options.home}-{self.cores}"


WAYS = (
    Way("simplemlp", ScheduleOptions()),
    Way("simplemlp", ScheduleOptions(is_tiled=False), cores=1),
    Way("autoencoder_tiny", ScheduleOptions(fuses_update=True)),
    Way("autoencoder_tiny", ScheduleOptions(buffering="double", home="L3"), l1_bytes=16 * KIB),
    # Adam, batch statistics, two mini-batches of three; stored weights; many small tiles on three cores.
    Way("odd_cnn", ScheduleOptions(buffering="double", home="L3"), cores=3, l1_bytes=4 * KIB),
    Way("attention", ScheduleOptions(buffering="single"), l1_bytes=4 * KIB),
)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_image_gives_the_hosts_bits(way: Way, program: Path, tmp_path: Path) -> None:
    compiled = compiled_for(way.name, siracusa(way.l1_bytes, way.cores), way.options)
    expected = host_bits(compiled, 2)
    ran = finished(program, build(compiled, tmp_path, 2, expected))
    assert ran.verdict == "same" and ran.exit_status == 0
    assert ran.loss_bits == expected.loss_bits
    assert ran.weights_hash == expected.weights_hash
    assert len(ran.cycles["update"]) == 2 and len(ran.cycles["step"]) == 2 * recipe_of(way.name).accumulate
    *workers, conductor = ran.stacks
    assert [stack.core for stack in ran.stacks] == [*range(way.cores), CONTROLLER_CORE]
    assert all(stack.is_intact and stack.used_bytes < stack.capacity_bytes for stack in ran.stacks)
    # What was painted over is at most what the compiler tells: not every program takes the deepest way.
    bound = told_stack(compiled, tmp_path, 2)
    assert 0.5 * bound <= conductor.used_bytes <= bound
    told = stack_use(compiled).worker or 0
    assert 0.5 * told <= max(stack.used_bytes for stack in workers) <= told + WORKER_FRAME_BYTES


def test_a_worker_conducts_where_there_is_no_controller(program: Path, tmp_path: Path) -> None:
    chip = replace(siracusa(16 * KIB), conductor=WORKER)
    compiled = compiled_for("simplemlp", chip, ScheduleOptions(buffering="double"))
    ran = finished(program, build(compiled, tmp_path, 1, host_bits(compiled, 1)))
    assert ran.verdict == "same" and [stack.core for stack in ran.stacks] == list(range(8))


WORKER_FRAME_BYTES = 16  # of `cluster_main`, which is below it


def told_stack(compiled: Compiled, folder: Path, steps: int) -> int:
    """From where the conductor enters C, by the compiler's account; what an entry takes is a part of it."""
    files = {**folder_files(compiled, steps, None), **cluster_files(compiled)}
    cluster = {name: data for name, data in files.items() if name not in ("chip/fabric.c", "chip/image.c")}
    (folder / "told").mkdir()
    listings = list_frames(CLUSTER_TOOLCHAIN, folder / "told", cluster)
    callers = listings[sorted(n for n in cluster if n.endswith(".c")).index("chip/program.c")].frames["run_program"]
    chip = listings[sorted(n for n in cluster if n.endswith(".c")).index("chip/tg_chip.c")].frames["cluster_main"] or 0
    whole = deepest_bytes(listings, ["run_program"], recursion=4)["run_program"] + chip
    assert stack_use(compiled).entries["step"] + (callers or 0) <= whole
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dscnn", "resnet8", "cct_lora"])
def test_images_of_zoo_models(name: str, program: Path, tmp_path: Path) -> None:
    """cct_lora has tensors in L3."""
    compiled = compiled_for(name, targets.get("siracusa"), ScheduleOptions(fuses_update=True))
    expected = host_bits(compiled, 1)
    ran = finished(program, build(compiled, tmp_path, 1, expected))
    assert (ran.verdict, ran.loss_bits, ran.weights_hash) == ("same", expected.loss_bits, expected.weights_hash)
    assert all(stack.is_intact for stack in ran.stacks)


@pytest.mark.matrix
@pytest.mark.parametrize("name", zoo.names())
def test_images_of_every_zoo_model(name: str, program: Path, tmp_path: Path) -> None:
    compiled = compiled_for(name, siracusa(128 * KIB), ScheduleOptions(buffering="double", fuses_update=True))
    expected = host_bits(compiled, 4)
    ran = finished(program, build(compiled, tmp_path, 4, expected))
    assert (ran.verdict, ran.loss_bits, ran.weights_hash) == ("same", expected.loss_bits, expected.weights_hash)


@pytest.mark.parametrize("loss", ["mse", "l1", "bce_with_logits"])
def test_targets_of_every_loss(loss: str, program: Path, tmp_path: Path) -> None:
    """Eight features and four outputs: no reconstruction."""
    recipe = Recipe(loss=loss, batch=2)
    model = frontend.load(linear(), batch=2)
    compiled = compile_model(model, recipe, siracusa())
    expected = host_bits(compiled, 2)
    assert finished(program, build(compiled, tmp_path, 2, expected)).loss_bits == expected.loss_bits


def test_the_order_of_cores_and_transfers_does_not_matter(program: Path, tmp_path: Path) -> None:
    compiled = compiled_for("autoencoder_tiny", siracusa(16 * KIB), ScheduleOptions(home="L3"))
    image = build(compiled, tmp_path, 1, host_bits(compiled, 1))
    assert {finished(program, image, seed).verdict for seed in range(2, 10)} == {"same"}


def test_other_bits_are_told(program: Path, tmp_path: Path) -> None:
    compiled = compiled_for("simplemlp", siracusa())
    expected = host_bits(compiled, 2)
    wrong = replace(expected, loss_bits=(expected.loss_bits[0], expected.loss_bits[1] ^ 1))
    done = run(program, build(compiled, tmp_path, 2, wrong))
    assert done.returncode == 1 and "verdict differs" in done.stdout
    assert f"loss 0x{expected.loss_bits[1]:08x} expected 0x{wrong.loss_bits[1]:08x}" in done.stdout


def test_nothing_to_compare_with(program: Path, tmp_path: Path) -> None:
    compiled = compiled_for("simplemlp", siracusa())
    ran = finished(program, build(compiled, tmp_path, 1))
    assert (ran.verdict, ran.exit_status) == ("unchecked", 0)
    assert ran.loss_bits == host_bits(compiled, 1).loss_bits


# Each is a mistake that a driver can make; the model of the chip, or the verdict, must notice it.
FAULTS = {
    "a transfer is not waited for": {"while (mchan_busy() & counters)": "while (0 & counters)"},
    "a counter is never given back": {"    mchan_free(counters);": "    ;"},
    "cores listen to the DMA engine": {"EVENT_MASK) = event": "EVENT_MASK) = event | 1u << 8"},
    "the barrier is not set up": {"barrier_set_up((1u << TG_CORES) - 1, 1u << CONDUCTOR);": ""},
    "nobody is dispatched to": {"        dispatch_to((1u << TG_CORES) - 1);": ""},
    "the conductor does not wait for the workers": {"waiting();\n    barrier_await();": "waiting();"},
    "a worker passes no barrier": {"core, TG_CORES);\n        barrier_pass();": "core, TG_CORES);"},
    "constants are not brought": {"*to++ = *from++;": "to++, from++;"},
    "L3 is started over and over": {"hyper.channels[i].number = ++hyper.started;": "hyper.started++;"},
    "L3 is not waited for": {"while (!are_done((uint32_t)request))": "while (0 && !are_done((uint32_t)request))"},
    "L3 is read for written": {"inward ? HYPER_READS : HYPER_WRITES": "inward ? HYPER_WRITES : HYPER_READS"},
    "L3 is not set up": {"    hyper_set_up();\n": ""},
    "the wrong direction": {"inward ? MCHAN_INWARD : 0": "inward ? 0 : MCHAN_INWARD"},
    "rows without their distance": {"REGISTER(MCHAN) = stride": "REGISTER(MCHAN) = row_bytes + 0 * stride"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_seeded_faults_are_noticed(fault: str, program: Path, tmp_path: Path) -> None:
    compiled = compiled_for("autoencoder_tiny", siracusa(8 * KIB), ScheduleOptions(buffering="double", home="L3"))
    image = build(compiled, tmp_path, 1, host_bits(compiled, 1), FAULTS[fault])
    done = run(program, image)
    assert done.returncode not in (0, 2), f"{fault}: {done.stdout}{done.stderr}"


@pytest.mark.parametrize(("core", "word"), [(0, 0), (7, 15), (CONTROLLER_CORE, 0), (CONTROLLER_CORE, 15)])
def test_a_guard_zone_that_is_overwritten_fails_the_run(core: int, word: int, program: Path, tmp_path: Path) -> None:
    """At either end of it, and the ninth core's is one of them."""
    above = 4096 + (0 if core == CONTROLLER_CORE else 1408 * (core + 1))
    fault = (
        f"extern uint32_t _cluster_stacks[]; ((volatile uint32_t *)((uintptr_t)_cluster_stacks - {above}))[{word}] = 1;"
    )
    weights = "    report(RECORD_WEIGHTS,"
    image = build(compiled_for("simplemlp", siracusa()), tmp_path, 1, None, {weights: f"    {fault}\n{weights}"})
    ran = finished(program, image)
    assert (ran.verdict, ran.exit_status) == ("failed", 2)
    assert [stack.core for stack in ran.stacks if not stack.is_intact] == [core]


@pytest.mark.parametrize(("who", "room"), [("worker", 1344), ("conductor", 4032)])
def test_frames_that_reach_beyond_a_guard_zone_are_refused(who: str, room: int, tmp_path: Path) -> None:
    """They need not write to it, so that nothing would show afterwards."""
    array = f"volatile char large[{room}]; large[0] = 0; (void)large[0];"
    work, start = "        tg_kernel_call *call =", "    static tg_model m;"
    at = work if who == "worker" else start
    with pytest.raises(DoesNotFit, match=f"the stack of the {who}") as caught:
        build(compiled_for("simplemlp", siracusa()), tmp_path, 1, None, {at: f"{array}\n{at}"})
    assert caught.value.expected == f"at most {room} bytes" and caught.value.exit_status == 2


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_drivers_in_ways_that_no_model_uses_them(seed: int, program: Path, tmp_path: Path) -> None:
    """More parts than counters, more transfers than channels, longer ones than the engine takes."""
    compiled = compiled_for("simplemlp", siracusa())
    files = {**folder_files(compiled, 1, None), "chip/program.c": DRIVERS.read_bytes()}
    image = build_image(compiled, tmp_path, files).path
    assert finished(program, image, seed).weights_hash == 0


# ---- Where things are.

L1, STACKS, OWN = range(0x10000000, 0x1003C000), range(0x1003C000, 0x1003FC00), range(0x1003FC00, 0x10040000)
PRIVATE0, PRIVATE1 = range(0x1C000000, 0x1C008000), range(0x1C008000, 0x1C010000)
SHARED = range(0x1C010000, 0x1C200000)
PLACES = {
    ".vectors": PRIVATE1,
    ".text_fabric": PRIVATE1,
    ".stack": PRIVATE0,
    ".l1_constants": OWN,
    ".l1": OWN,
    **dict.fromkeys(
        (".text", ".rodata", ".data", ".stored_arena", ".arena", ".stored_state", ".state", ".bss"), SHARED
    ),
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolutions, integers, Adam, stored weights, L3."""
    compiled = compiled_for("odd_cnn", siracusa(16 * KIB), ScheduleOptions(home="L3"))
    return build(compiled, tmp_path_factory.mktemp("image"), 1)


def test_sections_are_where_the_memory_map_wants_them(image: Path) -> None:
    sections = {name: s for name, s in ElfFile(image).sections.items() if s.address and s.size_bytes}
    assert set(sections) <= set(PLACES), set(sections) - set(PLACES)
    for name, section in sections.items():
        assert section.address in PLACES[name], name
        assert section.address + section.size_bytes <= PLACES[name].stop, name
    spans = sorted((s.address, s.address + s.size_bytes) for s in sections.values())
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))


def test_nothing_is_loaded_into_l1(image: Path) -> None:
    """The cluster sleeps when the image is loaded: what it needs in L1 is stored elsewhere."""
    command = [tool("riscv64-unknown-elf-readelf"), "-lW", str(image)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    addresses = [int(line.split()[3], 16) for line in listed.splitlines() if line.strip().startswith("LOAD")]
    assert addresses and all(PRIVATE0.start <= address < SHARED.stop for address in addresses)


def test_symbols_are_where_the_memory_map_wants_them(image: Path) -> None:
    symbols = ElfFile(image).symbols()
    assert symbols["_start"].address == PRIVATE1.start
    assert symbols["fabric_main"].address in PRIVATE1
    assert symbols["_fabric_stack"].address - 16 in PRIVATE0
    assert symbols["cluster_main"].address in SHARED and symbols["mailbox"].address in SHARED
    assert symbols["_cluster_stacks"].address == STACKS.stop
    assert symbols["_scratch"].address == L1.start and symbols["_l1_constants"].address in OWN
    assert STACKS.start <= symbols["_cluster_stacks_end"].address < STACKS.stop
    assert symbols["_arena"].address % 64 == symbols["_state"].address % 64 == 0


def test_arenas_are_as_large_as_planned(image: Path) -> None:
    compiled = compiled_for("odd_cnn", siracusa(16 * KIB), ScheduleOptions(home="L3"))
    symbols = ElfFile(image).symbols()
    assert symbols["_state"].address - symbols["_arena"].address >= compiled.plan.arena_bytes
    assert symbols["_bss_start"].address - symbols["_state"].address >= compiled.plan.state_bytes
    assert symbols["_image_end"].address <= SHARED.stop


def _disassembly(image: Path, *options: str) -> str:
    command = [tool("riscv64-unknown-elf-objdump"), "-d", *options, str(image)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_code_has_no_double_precision(image: Path) -> None:
    code = _disassembly(image)
    assert re.search(r"\tfmadd\.s\t", code)
    assert not re.search(r"\tf[a-z.]*\.d(\.|\t)|\tfld\t|\tfsd\t", code)


def test_code_calls_no_library_but_the_compilers(image: Path) -> None:
    """All functions are ours, or the compiler's for 64-bit integers."""
    code = _disassembly(image)
    functions = set(re.findall(r"^[0-9a-f]+ <([^>]+)>:$", code, re.MULTILINE))
    sources = "\n".join(
        path.read_text() for pattern in ("*.[cSh]", "*/*.[cSh]") for path in sorted(image.parent.glob(pattern))
    )
    words = set(re.findall(r"\w+", sources))
    foreign = {name for name in functions if not name.startswith("tg_") and name.split(".")[0] not in words}
    compilers = re.compile(r"__(u?(div|mod)di3|ashldi3|lshrdi3|ashrdi3|muldi3|clz\w*|float(un)?disf)")
    assert all(map(compilers.fullmatch, foreign)), foreign


@pytest.mark.parametrize("name", ["simplemlp", pytest.param("dscnn", marks=pytest.mark.slow)])
def test_no_function_is_linked_twice(name: str, tmp_path: Path) -> None:
    """Neither under one name nor under two: products of gemm.c are those of conv.c."""
    code = _disassembly(build(compiled_for(name, siracusa()), tmp_path, 1), "--no-show-raw-insn")
    bodies: dict[str, str] = {}
    for found in re.finditer(r"^[0-9a-f]+ <([^>]+)>:\n((?:.+\n)+)", code, re.MULTILINE):
        lines = [line.partition("\t")[2] for line in found[2].splitlines()]
        body = re.sub(r"[0-9a-f]+ <", "<", "\n".join(lines).replace(f"<{found[1]}", "<itself"))
        if len(lines) >= 20:
            assert bodies.setdefault(body, found[1]) == found[1]
    names = re.findall(r"^[0-9a-f]+ <([^>]+)>:$", code, re.MULTILINE)
    assert len(names) == len(set(names))


def test_the_fabric_controllers_code_has_no_floating_point(image: Path) -> None:
    own = _disassembly(image, "-j", ".vectors", "-j", ".text_fabric")
    assert "fabric_main" in own and "_start" in own
    assert not re.search(r"\tf(?!ence)\w+\.?\w*\t", own)
    attributes = [tool("riscv64-unknown-elf-readelf"), "-A", str(image.parent / "fabric.o")]
    assert "_f2p" not in subprocess.run(attributes, capture_output=True, text=True, check=True).stdout


def test_the_makefile_gives_the_same_image(tmp_path: Path) -> None:
    image = build(compiled_for("simplemlp", siracusa()), tmp_path, 1)
    before = image.read_bytes()
    for path in [*tmp_path.glob("**/*.o"), image]:
        path.unlink()
    subprocess.run([tool("make"), "-C", str(tmp_path)], check=True, capture_output=True)
    assert image.read_bytes() == before


# ---- What does not go.


def test_code_that_does_not_fit_names_a_budget(tmp_path: Path) -> None:
    """All of the shared L2 for tensors leaves none for code."""
    wide = frontend.load(linear(1000, 500), batch=1)
    target = replace(
        targets.get("siracusa"),
        memories=tuple(
            replace(memory, capacity_bytes=0x1F0000) if memory.name == "L2" else memory
            for memory in targets.get("siracusa").memories
        ),
    )
    compiled = compile_model(wide, Recipe(), target, options=ScheduleOptions(fuses_update=True, home="L2"))
    assert compiled.plan.memory["L2"].used_bytes > 0x1F0000 - 64 * KIB
    with pytest.raises(DoesNotFit) as caught:
        build(compiled, tmp_path, 1)
    assert caught.value.expected == "at most 2031616 bytes"
    assert re.fullmatch(r"--l2 \d+K leaves room for the code", caught.value.hint or "")


def test_steps_must_be_some() -> None:
    with pytest.raises(UserError, match="number of steps"):
        image_files(compiled_for("simplemlp", siracusa()), 0, None)


def test_only_what_cannot_be_drawn_is_stored() -> None:
    zoo_files = image_files(compiled_for("simplemlp", targets.get("siracusa")), 1, None)
    assert not any(name.endswith(".bin") for name in zoo_files)
    compiled = compiled_for("resnet8", targets.get("siracusa"))
    files = image_files(compiled, 1, None)
    (stored,) = (bytearray(content) for name, content in files.items() if name.endswith(".bin"))
    for tensor in compiled.program.state:  # inverse deviations are computed here, from variances that are drawn
        if tensor.name.endswith(".inverse_deviation"):
            offset = compiled.plan.state_addresses[tensor.name].offset
            stored[offset : offset + tensor.type.size_bytes] = bytes(tensor.type.size_bytes)
    assert not any(stored)
    own = image_files(compiled_for("odd_cnn", siracusa(), ScheduleOptions(home="L3")), 1, None)
    assert any(name.endswith(".bin") for name in own)


@pytest.mark.slow
def test_a_program_is_planned_again_where_its_code_needs_room(program: Path, tmp_path: Path) -> None:
    """Three layers whose activations fit into L3: with less L2 they go there."""
    chip = targets.get("siracusa")
    roomy = replace(
        chip,
        memories=tuple(replace(m, capacity_bytes=0x1F0000) if m.name == "L2" else m for m in chip.memories),
    )
    model = frontend.load("mlp", batch=312)
    compiled = compile_model(model, Recipe(batch=312), roomy, options=ScheduleOptions(fuses_update=True))
    assert compiled.plan.memory["L2"].used_bytes > 0x1F0000 - 32 * KIB
    device = GvsocDevice()
    device.steps = 1
    device.expected = host_bits(compiled, 1)
    image = device.build(compiled, tmp_path)
    assert finished(program, image.path).verdict == "same"
    (note,), room = what_ran(compiled, image.compiled), image.compiled.target.memory("L2").capacity_bytes or 0
    assert room < 0x1F0000 and f"planned again, and measured, as with --l2 {room // KIB}K" in note
    assert what_ran(compiled, compiled) == ()
