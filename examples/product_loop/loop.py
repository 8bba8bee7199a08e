"""The whole way of a product that learns: shipped, personalised on the device, power-cut, resumed, taken home, checked.

    python loop.py gestures --person 3 --train last:1 --device host
    python loop.py gestures --person 3 --train lora:4 --device qemu:mps2-an500

1. On a desk, a model is trained on samples of others: what every device ships with.
2. It becomes a firmware for the device that trains `--train` of it on the samples of one person.
3. The firmware runs, its power fails in the middle, and it runs again: from its last complete save.
4. What it saved is taken home as an ONNX model, adapters merged, and judged by ONNX Runtime.
5. The desk replays the training on the device itself, checks it against PyTorch, and has the same bits.

Every command is printed as it is run. Needs scikit-learn or seglearn for the data, and onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networks
import numpy as np
import onnx
import people

HERE = Path(__file__).resolve().parent
BOARDS = HERE.parent / "firmware"
BATCH = 8
CUT_STATUS = 99
PAGE_BYTES = 256
FLAGS = "-std=c99 -O2 -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno".split()
BARE = "-ffreestanding -nostdlib -ffunction-sections -fdata-sections -Wl,--gc-sections".split()
M7 = "-mcpu=cortex-m7 -mthumb -mfloat-abi=hard -mfpu=fpv5-d16".split()
QEMU = "qemu-system-arm -machine mps2-an500 -display none -monitor none -serial stdio".split()
TARGETS = {"host": "mcu", "qemu:mps2-an500": "cortex_m7"}


@dataclass(frozen=True)
class Story:
    """What is told: whose data, which part of the model learns, where, and where its files go."""

    data: str
    person: int
    train: str
    device: str
    epochs: int
    folder: Path
    samples: people.People

    @property
    def recipe(self) -> list[str]:
        rate = "0.02" if self.train.startswith("lora") else "0.05"
        return ["--train", self.train, "--batch", str(BATCH), "--optimizer", "momentum", "--lr", rate]

    @property
    def updates(self) -> int:
        return self.epochs * len(self.samples.own[0]) // BATCH


def tilegrad(story: Story, *arguments: object) -> dict[str, Any]:
    """Runs a command, shows it, and returns its JSON."""
    words = [str(argument) for argument in arguments]
    print(f"$ tilegrad {shlex.join(words)}", flush=True)
    command = [sys.executable, "-m", "tilegrad", *words, "--json", "-"]
    done = subprocess.run(command, cwd=story.folder, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"status {done.returncode}\n{done.stdout}")
    return dict(json.loads(done.stdout))


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def ship(story: Story) -> None:
    """The model that every device gets, and the samples as files."""
    for name in ("others", "own", "held_out"):
        x, y = getattr(story.samples, name)
        np.savez(story.folder / f"{name}.npz", x=x, y=y)
    made = {"gestures": networks.for_gestures, "digits": networks.for_digits}[story.data](story.samples.classes)
    onnx.save(made, story.folder / "network.onnx")
    epochs = max(2, story.epochs)
    options = ["--epochs", epochs, "--batch", 16, "--optimizer", "momentum", "--lr", "0.02", "--schedule", "cosine"]
    told = tilegrad(
        story,
        *("train", "network.onnx", "--device", "host", "--data", "others.npz", *options),
        *("--validation", "held_out.npz", "--save", "shipped.onnx", "--no-verify"),
    )["learning"]
    print(f"  trained on {len(story.samples.others[0]):,} samples of others; ", end="")
    print(f"right about this person: {percent(told['after']['accuracy'])}")


def c_array(declaration: str, values: np.ndarray[Any, Any]) -> str:
    """Floats are written with all their bits."""
    is_float = values.dtype == np.float32
    words = [float(value).hex() + "f" if is_float else str(value) for value in values.ravel().tolist()]
    rows = [", ".join(words[start : start + 8]) for start in range(0, len(words), 8)]
    return f"static const {declaration}[] = {{\n    " + ",\n    ".join(rows) + "};\n"


@dataclass(frozen=True)
class Firmware:
    """`command` runs it; `fails_at` is a byte in the middle of its third save."""

    command: list[str]
    fails_at: int


def export(story: Story) -> int:
    """The C of the model, and the samples beside it. Returns the pages of flash that a save takes."""
    target = TARGETS[story.device]
    made = tilegrad(
        story,
        *("compile", "shipped.onnx", *story.recipe, "--target", target, "--storage", "128K", "--weights-c"),
        *("-o", "model", "--force"),
    )
    (own, own_labels), (held, held_labels) = story.samples.own, story.samples.held_out
    facts = {
        "SEED": "0u",
        "BATCH": f"{BATCH}u",
        "UPDATES": f"{story.updates}u",
        "BETWEEN_SAVES": f"{max(1, story.updates // 8)}u",
        "INPUT_SIZE": f"{own[0].size}u",
        "CLASSES": f"{story.samples.classes}u",
        "OWN_COUNT": f"{len(own)}u",
        "HELD_OUT_COUNT": f"{len(held)}u",
    }
    text = "/* Samples and recipe. Written by loop.py. */\n#include <stdint.h>\n"
    text += "".join(f"#define {name} {value}\n" for name, value in facts.items())
    text += c_array("float own_inputs", own) + c_array("unsigned char own_labels", own_labels)
    text += c_array("float held_out_inputs", held) + c_array("unsigned char held_out_labels", held_labels)
    (story.folder / "samples.h").write_text(text)
    return -(-int(made["storage"]["save_bytes"]) // PAGE_BYTES)


def build(story: Story) -> Firmware:
    pages = export(story)
    board = "host" if story.device == "host" else TARGETS[story.device]
    model = story.folder / "model"
    sources = [HERE / "firmware.c", HERE / "flash" / f"{board}.c", BOARDS / "boards" / f"{board}.c"]
    sources += [model / name for name in ("model.c", "weights.c", "tg_storage.c")]
    sources += [*model.glob("flash.c"), *sorted((model / "kernels").glob("*.c"))]
    folders = [f"-I{folder}" for folder in (story.folder, HERE / "flash", BOARDS, model)]
    if board == "host":
        compiler, flags, rest = "cc", [], ["-lm"]
    else:
        compiler, flags = "arm-none-eabi-gcc", [*M7, *BARE, f"-I{model / 'bare'}"]
        rest = [str(model / "bare" / "tg_memory.c"), "-T", str(BOARDS / "boards" / f"{board}.ld"), "-lgcc"]
    if shutil.which(compiler) is None:
        raise SystemExit(f"no {compiler} here")
    image = story.folder / "firmware.elf"
    subprocess.run([compiler, *FLAGS, *flags, *folders, "-o", image, *sources, *rest], check=True)
    emulator = [*QEMU, "-semihosting-config", "enable=on,target=native", "-kernel"]
    command = [str(image)] if board == "host" else [*emulator, str(image)]
    return Firmware(command, PAGE_BYTES * (2 * pages + pages // 2) + 100)


def run_until_cut(story: Story, firmware: Firmware) -> None:
    """Power fails while the firmware saves: at a byte on this machine, by `kill -9` of the emulator elsewhere."""
    (story.folder / "flash.bin").unlink(missing_ok=True)
    environment = dict(os.environ)
    if story.device == "host":
        environment["POWER_FAILS_AT"] = str(firmware.fails_at)
    ran = subprocess.Popen(
        firmware.command,
        cwd=story.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert ran.stdout is not None
    saves = 0
    for line in ran.stdout:
        print(f"  {line.rstrip()}", flush=True)
        saves += line.startswith("saves")
        if story.device != "host" and saves == 3:
            ran.kill()
            break
    ran.stdout.close()
    if ran.wait() not in (CUT_STATUS, -signal.SIGKILL):
        raise SystemExit("the power did not fail: is there too little to learn?")
    print("  -- power cut --", flush=True)


def run_to_the_end(story: Story, firmware: Firmware) -> float:
    """The share of held-out samples that the device itself gets right in the end."""
    done = subprocess.run(
        firmware.command, cwd=story.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True
    )
    for line in done.stdout.splitlines():
        print(f"  {line}")
    right, count = (int(word) for word in done.stdout.splitlines()[-1].split() if word.isdecimal())
    return right / count


def take_home(story: Story) -> float:
    """What the flash holds, as an ONNX model; ONNX Runtime says how good it is."""
    import onnxruntime

    tilegrad(story, "checkpoint", "export", "flash.bin", "--model", "shipped.onnx", "-o", "personal.onnx")
    session = onnxruntime.InferenceSession(str(story.folder / "personal.onnx"), providers=["CPUExecutionProvider"])
    x, y = story.samples.held_out
    scores = session.run(None, {session.get_inputs()[0].name: x})[0]
    told = tilegrad(story, "evaluate", "personal.onnx", "--device", "host", "--data", "held_out.npz", "--batch", BATCH)
    loss = float(np.mean(np.log(np.exp(scores.astype(np.float64)).sum(axis=1)) - scores[np.arange(len(y)), y]))
    if abs(loss - told["loss"]) > 1e-5 * max(1.0, abs(loss)):
        raise SystemExit(f"ONNX Runtime's loss is {loss}, tilegrad's {told['loss']}")
    return float(np.mean(scores.argmax(axis=1) == y))


def replay(story: Story) -> dict[str, Any]:
    """The same training by `tilegrad train` on the device, judged by PyTorch."""
    return tilegrad(
        story,
        *("train", "shipped.onnx", *story.recipe, "--device", story.device, "--data", "own.npz"),
        *("--epochs", story.epochs, "--validation", "held_out.npz", "--save", "replayed.onnx"),
    )


def tell(story: Story) -> None:
    ship(story)
    firmware = build(story)
    print(f"the firmware on {story.device}, {story.updates} updates of {story.train}:")
    run_until_cut(story, firmware)
    on_device = run_to_the_end(story, firmware)
    at_home = take_home(story)
    print(f"ONNX Runtime: {percent(at_home)}, the device: {percent(on_device)}")
    run = replay(story)
    same = (story.folder / "replayed.onnx").read_bytes() == (story.folder / "personal.onnx").read_bytes()
    before, after = (run["learning"][when]["accuracy"] for when in ("before", "after"))
    print(f"replayed on {story.device}: {percent(before)} before, {percent(after)} after; ", end="")
    print(f"verified by {run['reference']}; " if run["verified"] else "not verified; ", end="")
    print("the same bits as the firmware's" if same else "OTHER BITS than the firmware's")
    # Merged adapters round once more: a sample that is nearly a tie may fall the other way.
    tie = 1.5 / len(story.samples.held_out[0]) if story.train.startswith("lora") else 0.0
    if not same or on_device != after or abs(at_home - on_device) > tie:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=("gestures", "digits"))
    parser.add_argument("--person", type=int, default=3, help="gestures: 3, 6 or 9; digits: how far a camera is turned")
    parser.add_argument("--train", default="last:1", help="what learns on the device: last:1, lora:4, …")
    parser.add_argument("--device", choices=tuple(TARGETS), default="host")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--slice", type=int, metavar="N", help="only N samples of the person's: to try it out")
    parser.add_argument("-o", "--output", type=Path, default=Path("build"))
    given = parser.parse_args()
    found = {"gestures": people.gestures, "digits": people.digits}[given.data](given.person)
    samples = found if given.slice is None else found.slice(given.slice)
    given.output.mkdir(parents=True, exist_ok=True)
    folder = given.output.resolve()
    tell(Story(given.data, given.person, given.train, given.device, given.epochs, folder, samples))


if __name__ == "__main__":
    main()
