"""Emulated boards: the host's bits on every number of cores, and exact counts of instructions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.devices.boards import RISCV, VECTORS, board, every_way
from tests.devices.conformance import Subject, bits, reference_run
from tests.schedule.programs import patched
from tests.support.projects import batch
from tilegrad.build.folder import write_files
from tilegrad.codegen.board import IMAGE
from tilegrad.compiled import Compiled
from tilegrad.devices.elf import ElfFile
from tilegrad.devices.measure import INSTRUCTIONS
from tilegrad.devices.qemu import QemuDevice, QemuImage, QemuSession, sections
from tilegrad.devices.qemu_counts import Counts
from tilegrad.errors import UserError
from tilegrad.training.train import train

STEPS = 20
on_riscv = pytest.mark.parametrize("name", [board(RISCV)])


def counts_of(name: str, compiled: Compiled) -> Counts:
    """Of one step, on a machine started for it."""
    with Subject(name).open() as device:
        session = device.load(compiled)
        assert isinstance(session, QemuSession)
        session.launch("step", batch(compiled))
        return session.counts()


# ---- results


@every_way
@pytest.mark.parametrize("model", ["simplemlp", "autoencoder_tiny"])
def test_the_bits_are_the_hosts(name: str, cores: int, model: str) -> None:
    subject = Subject(name)
    with subject.open() as device:
        run = train(subject.program(model, cores), device, steps=STEPS, verify=False)
    assert bits(run) == bits(reference_run(model, STEPS))


@pytest.mark.parametrize(("name", "cores"), [board(VECTORS, 1), board(VECTORS, 5)])
@pytest.mark.parametrize("model", ["attention", "odd_cnn"])
def test_vectors_of_odd_lengths_have_the_hosts_bits(name: str, cores: int, model: str) -> None:
    """Products in every orientation, with batches, biases and leftovers; the kernels of this board are its own."""
    test_the_bits_are_the_hosts(name, cores, model)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@every_way
@pytest.mark.parametrize("model", ["dscnn", "resnet8", "cct"])
def test_the_bits_of_large_models_are_the_hosts(name: str, cores: int, model: str) -> None:
    test_the_bits_are_the_hosts(name, cores, model)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", ["simplemlp", "autoencoder_tiny", "dscnn", "cct"])
def test_the_simulators_bits_are_the_same(model: str) -> None:
    subject = Subject("sim:siracusa")
    with subject.open() as device:
        run = train(subject.program(model), device, steps=STEPS, verify=False)
    assert bits(run) == bits(reference_run(model, STEPS))


@every_way
def test_subnormals_are_kept(name: str, cores: int) -> None:
    """Inputs so small that gradients are subnormal: a unit that flushes them to zero would show."""

    def gradients(subject: Subject, cores: int | None) -> dict[str, np.ndarray]:
        compiled = subject.program("simplemlp", cores)
        x, y = batch(compiled)
        with subject.open() as device:
            session = device.load(compiled)
            session.step(x * np.float32(1e-39), y)
            return session.gradients()

    expected, got = gradients(Subject("host"), None), gradients(Subject(name), cores)
    weight = expected["fc1.weight"]
    assert np.count_nonzero((weight != 0) & (abs(weight) < np.finfo(np.float32).tiny)) > 100
    assert {n: g.tobytes() for n, g in got.items()} == {n: g.tobytes() for n, g in expected.items()}


def test_harts_wait_for_each_others_inputs() -> None:
    """The first kernel may write where inputs lie; an emulator that runs harts in turns would not show it."""
    for cores, waits in ((1, 0), (8, 1)):
        text = Subject(RISCV).program("simplemlp", cores).project.files["model.c"].decode()
        body = text[text.index("tg_status tg_step(") :]
        copied = body.rindex("memcpy(ARENA", 0, body.index("train_"))
        assert body[copied : body.index("(m);", copied)].count("tg_barrier();") == waits
        assert text.count("tg_barrier();") == 2 * waits  # update has no inputs


@on_riscv
def test_a_missing_barrier_shows(name: str) -> None:
    """The tests of bits would notice: harts that do not wait read what is not there yet."""
    subject = Subject(name)
    compiled = patched(subject.program("autoencoder_tiny", 8), "tg_rt.h", "TG_CORES), tg_barrier())", "TG_CORES))")
    with subject.open() as device, device.load(compiled) as session:
        losses = [session.step(*batch(compiled))]
    assert losses != list(reference_run("autoencoder_tiny", STEPS).losses[:1])


# ---- counts


COUNTED = """
#include "tg_bare.h"
__attribute__((noinline)) void tg_count_begin(void) { __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void tg_count_end(void) { __asm__ volatile("" ::: "memory"); }
#if TG_CORES > 1
void tg_barrier(void);
void tg_other_core(void) { tg_barrier(); }
#endif
__attribute__((noinline)) void tg_loop(void)
{
    __asm__ volatile("li t0, 1000\\n1: addi t0, t0, -1\\n xori t1, t0, 5\\n bnez t0, 1b" ::: "t0", "t1", "memory");
}
int main(int argc, char **argv)
{
    (void)argc, (void)argv;
    tg_count_begin();
    tg_loop();
    tg_count_end();
    return 0;
}
"""


@on_riscv
def test_counts_are_those_of_a_program_counted_by_hand(name: str, tmp_path: Path) -> None:
    """`li`, a thousand turns of three instructions, and the return are the loop's; the rest is its caller's."""
    files = {**Subject(name).program("simplemlp", 1).project.files, "main.c": COUNTED.encode()}
    write_files(tmp_path, files)
    done = subprocess.run(["make", "-s", "-C", tmp_path, IMAGE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    image = QemuImage(tmp_path / IMAGE, sections(ElfFile(tmp_path / IMAGE)), ("loop",), 1)
    transport = QemuDevice(name).start(image)
    assert transport.wait(60) == 0, transport.console()
    counts = transport.counter.last()
    transport.close()
    assert counts.kernels["loop"] == (3002,)
    assert 3002 < counts.total < 3020


@on_riscv
@pytest.mark.parametrize("cores", [1, 8])
def test_counts_are_the_same_on_every_run(name: str, cores: int) -> None:
    compiled = Subject(name).program("autoencoder_tiny", cores)
    counts = counts_of(name, compiled)
    assert counts == counts_of(name, compiled)
    assert len(counts.cores) == cores and all(count > 0 for count in counts.cores)
    of_kernels = [sum(kernel[core] for kernel in counts.kernels.values()) for core in range(cores)]
    # Between kernels there are calls and, with several harts, barriers that nobody spins in.
    assert all(0.9 * total < kernels < total for total, kernels in zip(counts.cores, of_kernels, strict=True))


@on_riscv
def test_instructions_are_a_counter(name: str) -> None:
    subject = Subject(name)
    compiled = subject.program("simplemlp", 2)
    with subject.open() as device:
        session = device.load(compiled)
        measured = session.measure("step", batch(compiled), repeat=3, counters=(INSTRUCTIONS,))
        assert len(set(measured.of(INSTRUCTIONS))) == 1 and measured.median(INSTRUCTIONS) > 1000
        with pytest.raises(UserError, match="does not count 'cycles'"):
            session.measure("step", batch(compiled), counters=("cycles",))


@pytest.mark.slow
@on_riscv
def test_eight_harts_share_the_work(name: str) -> None:
    alone, together = (counts_of(name, Subject(name).program("resnet8", cores)) for cores in (1, 8))
    assert alone.busiest >= 6 * together.busiest
