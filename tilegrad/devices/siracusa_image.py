"""What every device has that runs a Siracusa image: building it, reading what it printed, and judging its bits.

Nothing can be sent to the image or read from it while it runs, so a training is rehearsed on the simulator first. The
image carries the losses and the hash of the weights that came of it, compares bits, and exits with the verdict.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

import numpy as np

from tilegrad.build.workspace import Workspace
from tilegrad.compiled import Compiled
from tilegrad.data.samples import make_batches
from tilegrad.devices.base import Device, FloatArrays
from tilegrad.devices.embedded import AutonomousDevice, CoreStack, Image
from tilegrad.devices.registry import open_device
from tilegrad.devices.siracusa_build import CodeTooLarge, build_image, folder_files
from tilegrad.devices.siracusa_program import Expected, float_bits, weights_hash
from tilegrad.devices.transport import Transport
from tilegrad.errors import DeviceError, DoesNotFit, VerificationError
from tilegrad.pipeline import compile_model
from tilegrad.targets.base import L2

SIMULATOR = "sim:siracusa"
TIMEOUT_SECONDS = 3600.0
SPARE_BYTES = 4096
VERDICTS = ("same", "differs", "unchecked", "failed")
IMAGE_STATUSES = (0, 1, 2)


@dataclass(frozen=True)
class ImageRun:
    """What an image printed. Losses are one per mini-batch; cycles are the chip's own, one count per call."""

    losses: tuple[float, ...]
    cycles: Mapping[str, tuple[int, ...]]
    weights_hash: int
    stacks: tuple[CoreStack, ...]
    verdict: str
    exit_status: int

    @property
    def loss_bits(self) -> tuple[int, ...]:
        return tuple(map(float_bits, self.losses))


_LINES = {
    "step": re.compile(r"step (\d+) loss 0x([0-9a-f]{8})(?: expected 0x[0-9a-f]{8})? cycles (\d+)"),
    "update": re.compile(r"update (\d+) cycles (\d+)"),
    "infer": re.compile(r"infer (\d+) cycles (\d+)"),
    "weights": re.compile(r"weights 0x([0-9a-f]{8})(?: expected 0x[0-9a-f]{8})?"),
    "stack": re.compile(r"stack (\d+) used (\d+) of (\d+)(?: guard (intact|overwritten))?"),
    "verdict": re.compile(f"verdict ({'|'.join(VERDICTS)})"),
}


def _lines(text: str) -> dict[str, list[tuple[str, ...]]]:
    """What the image printed, between whatever the simulator says itself."""
    found: dict[str, list[tuple[str, ...]]] = {name: [] for name in _LINES}
    for line in text.splitlines():
        for name, pattern in _LINES.items():
            match = pattern.fullmatch(line.strip())
            if match is not None:
                found[name].append(match.groups())
    for name in ("step", "update"):
        numbers = [int(groups[0]) for groups in found[name]]
        if numbers != list(range(len(numbers))):
            raise _incomplete(f"its {name}s are numbered {numbers}", text)
    return found


def parse_cycles(text: str) -> Mapping[str, tuple[int, ...]]:
    """Of each entry, one count per call; the run need not have come to its end."""
    found = _lines(text)
    return {name: tuple(int(groups[-1]) for groups in found[name]) for name in ("step", "update", "infer")}


def parse_console(text: str, exit_status: int) -> ImageRun:
    """Reads what the image printed; an incomplete run is a DeviceError."""
    found = _lines(text)
    for name in ("weights", "verdict"):
        if len(found[name]) != 1:
            raise _incomplete(f"it printed {len(found[name])} lines with '{name}'", text)
    bits = np.array([int(groups[1], 16) for groups in found["step"]], np.uint32)
    return ImageRun(
        losses=tuple(bits.view(np.float32).tolist()),
        cycles=parse_cycles(text),
        weights_hash=int(found["weights"][0][0], 16),
        stacks=tuple(
            CoreStack(int(core), int(used), int(capacity), guard != "overwritten")
            for core, used, capacity, guard in found["stack"]
        ),
        verdict=found["verdict"][0][0],
        exit_status=exit_status,
    )


def _incomplete(what: str, text: str) -> DeviceError:
    words = "\n    ".join(text.strip().splitlines()[-12:])
    return DeviceError(f"the image did not run to its end: {what}", stage="run", got=f"\n    {words}")


@dataclass(frozen=True)
class SiracusaImage(Image):
    """`files` are all that the image is made of, by path: what a folder with it holds. `compiled` is the program that
    runs: the one that was given, or the same planned again."""

    files: Mapping[str, bytes]
    compiled: Compiled


def rehearse(compiled: Compiled, steps: int, *, use_cache: bool = True) -> Expected:
    """The bits that the simulator gives: those of each loss, and the hash of the trained weights."""
    batches = make_batches(compiled, None)
    accumulate = compiled.program.recipe.accumulate
    losses = []
    with open_device(SIMULATOR, use_cache=use_cache) as simulator, simulator.load(compiled) as session:
        for i in range(steps * accumulate):
            losses.append(session.step(*batches.batch(i)))
            if (i + 1) % accumulate == 0:
                session.update()
        return Expected(tuple(map(float_bits, losses)), weights_hash(session.weights().values()))


def planned_again(compiled: Compiled, l2_bytes: int) -> Compiled:
    """The same program, with another L2."""
    target = compiled.target.with_capacity(L2, l2_bytes)
    return compile_model(compiled.model, compiled.program.recipe, target, options=compiled.options)


def _with_room(compiled: Compiled, refusal: CodeTooLarge) -> Compiled:
    """The same program planned into what its code leaves of L2, less a little: other tables may be longer."""
    try:
        return planned_again(compiled, refusal.room_bytes - SPARE_BYTES)
    except DoesNotFit as error:
        raise refusal from error


def what_ran(given: Compiled, ran: Compiled) -> tuple[str, ...]:
    """What is said where cycles are those of another program than the one that is estimated."""
    if ran is given:
        return ()
    kib = (ran.target.memory(L2).capacity_bytes or 0) // 1024
    return (f"code and tables leave {kib} KB of L2 to tensors: planned again, and measured, as with --l2 {kib}K",)


class SiracusaDevice(AutonomousDevice):
    """An image is given the bits to compare with: `expected`, or what a rehearsal gives when it is built."""

    def __init__(self, name: str, *, use_cache: bool = True) -> None:
        super().__init__(name, use_cache=use_cache)
        self.expected: Expected | None = None

    @classmethod
    def target_of(cls, name: str) -> str:
        del name
        return "siracusa"

    def _after(self, image: Image) -> None:
        """Takes what a run left beside its image, before the folder goes."""

    @abstractmethod
    def _failure(self, ended: str, said: str, transport: Transport) -> DeviceError:
        """What is told of a simulator that did not run an image to its end."""

    def build(self, compiled: Compiled, folder: Path) -> SiracusaImage:
        """Code that needs more of L2 than targets leave it gets that: the program is planned again, with less."""
        expected = self.expected or rehearse(compiled, self.steps, use_cache=self.use_cache)
        files = folder_files(compiled, self.steps, expected)
        try:
            image = build_image(compiled, folder, files, use_cache=self.use_cache)
        except CodeTooLarge as error:
            compiled = _with_room(compiled, error)
            files = folder_files(compiled, self.steps, expected)
            image = build_image(compiled, folder, files, use_cache=self.use_cache)
        return SiracusaImage(image.path, image.sections, files, compiled)

    def folder_files(self, compiled: Compiled, image: Image) -> dict[str, bytes]:
        """The harness and the simulated cluster stay out: an image has a program of its own."""
        files = image.files if isinstance(image, SiracusaImage) else compiled.project.files
        return {**files, image.path.name: image.path.read_bytes()}

    def run(self, image: Image, *, timeout_seconds: float = TIMEOUT_SECONDS) -> ImageRun:
        """Runs an image to its end. Other bits than the rehearsal's are a verdict; anything else is a DeviceError."""
        transport = self.start(image)
        try:
            status = transport.wait(timeout_seconds)
            if status is None:
                transport.kill()
                ended = f"did not end in {timeout_seconds:g} s"
            else:
                ended = f"was ended by {Signals(-status).name}" if status < 0 else f"ended with status {status}"
            said = transport.console()
            if status not in IMAGE_STATUSES:
                raise self._failure(ended, said, transport)
            return parse_console(said, status)
        finally:
            transport.close()

    def rehearsal(self) -> Device:
        return open_device(SIMULATOR, use_cache=self.use_cache)

    def train(self, compiled: Compiled, losses: tuple[float, ...], weights: FloatArrays) -> Mapping[str, int]:
        self.expected = Expected(tuple(map(float_bits, losses)), weights_hash(weights.values()))
        workspace = Workspace()
        with workspace.kept_on_failure() as folder:
            image = self.build(compiled, folder)
            self.notes = what_ran(compiled, image.compiled)
            ran = self.run(image)
            self._after(image)
        workspace.close()
        self.stacks = ran.stacks
        self._check(ran, self.expected)
        # The first call of each entry fills the instruction caches; the last is like all that follow.
        return {entry: counts[-1] for entry, counts in ran.cycles.items() if counts}

    def _check(self, ran: ImageRun, expected: Expected) -> None:
        for stack in ran.stacks:
            if not stack.is_intact:
                raise DeviceError(
                    f"the image failed: the stack of {stack.whose} reached into its guard zone",
                    stage="run",
                    expected=f"at most {stack.capacity_bytes} bytes",
                    got=f"{stack.used_bytes} bytes",
                )
        if ran.verdict == "failed":
            raise DeviceError("the image failed: a label outside the classes", stage="run")
        pairs = zip(ran.loss_bits, expected.loss_bits, strict=False)
        wrong = [i for i, (got, wanted) in enumerate(pairs) if got != wanted]
        if wrong:
            raise VerificationError(
                f"the chip's losses are not the simulator's from mini-batch {wrong[0]} on",
                stage="verify",
                expected=f"0x{expected.loss_bits[wrong[0]]:08x}",
                got=f"0x{ran.loss_bits[wrong[0]]:08x}",
            )
        if ran.verdict != "same" or len(ran.losses) != len(expected.loss_bits):
            raise VerificationError(
                "the chip's weights are not the simulator's",
                stage="verify",
                expected=f"hash 0x{expected.weights_hash:08x} after {len(expected.loss_bits)} mini-batches",
                got=f"hash 0x{ran.weights_hash:08x} after {len(ran.losses)}",
            )
