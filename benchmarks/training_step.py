"""One training step of each zoo model, batch 1, one thread: tilegrad, PyTorch eager and torch.compile, interleaved.

CPU time, the least of several rounds: other programs on the machine slow everything, but not the ratios much. PyTorch
runs what a user writes: forward, loss, backward, torch.optim.SGD, zero_grad. Ours is the step and the update of the
generated C. Inference is compared with ONNX Runtime in the same way.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from onnx import numpy_helper

from benchmarks import torch_zoo
from tilegrad import zoo
from tilegrad.api import SGD, Recipe, load, open_device
from tilegrad.api import compile as compile_model
from tilegrad.devices.base import Session

LEARNING_RATE = 0.001
ROUND_SECONDS = 0.05
RESULTS = Path(__file__).parent / "RESULTS.md"
LOSS_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Row:
    """Seconds; None where a competitor does not work here."""

    model: str
    ours: float
    eager: float
    compiled: float | None
    ours_inference: float
    runtime_inference: float

    @property
    def best_torch(self) -> float:
        return min(self.eager, self.compiled) if self.compiled is not None else self.eager


class TorchTraining:
    def __init__(self, model: torch.nn.Module, x: torch.Tensor, target: torch.Tensor, loss: str) -> None:
        self.model, self.x, self.target = model, x, target
        self.loss = F.cross_entropy if loss == "cross_entropy" else F.mse_loss
        self.optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.model(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        return loss


def seconds_per_call(function: Callable[[], object], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        function()
    return (time.process_time() - start) / calls


def calls_for(function: Callable[[], object]) -> int:
    function()
    return max(3, round(ROUND_SECONDS / max(seconds_per_call(function, 3), 1e-7)))


def runtime_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def with_torch_compile(training: TorchTraining) -> TorchTraining | None:
    """The same training with the module compiled, or None where torch.compile fails on this machine."""
    try:
        torch._dynamo.reset()
        compiled = TorchTraining(
            torch.compile(training.model), training.x, training.target, "cross_entropy"
        )
        compiled.loss = training.loss
        for _ in range(3):
            compiled.step()
    except Exception as error:  # noqa: BLE001 (whatever stops the competitor is reported, not ours to fix)
        print(f"    torch.compile does not work here: {type(error).__name__}: {str(error).splitlines()[0]}")
        return None
    return compiled


def training_seconds(session: Session, inputs: tuple[np.ndarray, np.ndarray], calls: int) -> float:
    """A step and an update. A call before leaves its inputs where the timed ones find them."""
    session.step(*inputs)
    return session.seconds_per_call("step", calls) + session.seconds_per_call("update", calls)


def inference_seconds(session: Session, x: np.ndarray, calls: int) -> float:
    session.infer(x)
    return session.seconds_per_call("infer", calls)


def measure(name: str, rounds: int, use_compile: bool) -> Row:
    entry = zoo.describe(name)
    proto = zoo.build(name)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    draw = np.random.default_rng(7)
    x = draw.uniform(-1, 1, (1, *entry.input_shape)).astype(np.float32)
    label = np.array([1], np.int64)
    target = torch.tensor(x) if entry.classes is None else torch.tensor(label)
    eager = TorchTraining(torch_zoo.build(name, weights), torch.tensor(x), target, entry.loss)
    compiled = None
    if use_compile:
        compiled = with_torch_compile(
            TorchTraining(torch_zoo.build(name, weights), torch.tensor(x), target, entry.loss)
        )
    program = compile_model(load(name), Recipe(optimizer=SGD(lr=LEARNING_RATE), train=entry.train))
    runtime = runtime_session(proto)
    with open_device("host").load(program) as session:
        inputs = (x, x if entry.classes is None else label)
        ours_loss = float(np.ravel(session.step(*inputs))[0])
        eager_loss = float(eager.step().detach())
        if abs(ours_loss - eager_loss) > LOSS_TOLERANCE * max(abs(eager_loss), 1.0):
            raise RuntimeError(f"{name}: the two do not train the same model: losses {ours_loss} and {eager_loss}")
        times: dict[str, list[float]] = {key: [] for key in ("ours", "eager", "compiled", "infer", "runtime")}
        input_name = runtime.get_inputs()[0].name
        functions = {"eager": eager.step, "runtime": lambda: runtime.run(None, {input_name: x})}
        if compiled is not None:
            functions["compiled"] = compiled.step
        counts = {key: calls_for(function) for key, function in functions.items()}
        counts["ours"] = max(3, round(ROUND_SECONDS / max(training_seconds(session, inputs, 20), 1e-7)))
        for _ in range(rounds):
            times["ours"].append(training_seconds(session, inputs, counts["ours"]))
            times["infer"].append(inference_seconds(session, x, 3 * counts["ours"]))
            for key, function in functions.items():
                times[key].append(seconds_per_call(function, counts[key]))
    least = {key: min(values) for key, values in times.items() if values}
    return Row(name, least["ours"], least["eager"], least.get("compiled"), least["infer"], least["runtime"])


def geometric_mean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def machine() -> str:
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text(encoding="utf-8").splitlines() if cpu_info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    wide = ", AVX-512" if any("avx512f" in line for line in lines) else ""
    return f"{names[0] if names else platform.processor()}{wide}"


def table(rows: Sequence[Row]) -> str:
    def us(seconds: float | None) -> str:
        return "-" if seconds is None else f"{seconds * 1e6:,.0f}"

    def times(ratio: float) -> str:
        return f"{ratio:.1f}×"

    lines = [
        "| model | step, µs | PyTorch eager, µs | torch.compile, µs | eager / ours | best PyTorch / ours "
        "| inference, µs | ONNX Runtime, µs | ONNX Runtime / ours |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = (
            f"`{row.model}`", us(row.ours), us(row.eager), us(row.compiled), times(row.eager / row.ours),
            times(row.best_torch / row.ours), us(row.ours_inference), us(row.runtime_inference),
            times(row.runtime_inference / row.ours_inference),
        )
        lines.append("| " + " | ".join(cells) + " |")
    means = (
        times(geometric_mean([row.eager / row.ours for row in rows])),
        times(geometric_mean([row.best_torch / row.ours for row in rows])),
        times(geometric_mean([row.runtime_inference / row.ours_inference for row in rows])),
    )
    lines.append(f"| geometric mean | | | | {means[0]} | {means[1]} | | | {means[2]} |")
    return "\n".join(lines)


def report(rows: Sequence[Row]) -> str:
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return (
        "# One training step against PyTorch, one inference against ONNX Runtime\n\n"
        f"{today}, {machine()}; PyTorch {torch.__version__}, ONNX Runtime {onnxruntime.__version__}.\n"
        "Batch 1, float32, one thread, SGD, frozen BatchNorm statistics. CPU time, the least of interleaved rounds\n"
        "(`make bench`). A step is forward, backward and the optimizer's update.\n\n"
        f"{table(rows)}\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_step", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(zoo.names()))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it takes minutes to start")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # what an interrupted run left behind would stop torch.compile
        for name in options.models:
            rows.append(measure(name, options.rounds, not options.no_compile))
            print(table(rows[-1:]).splitlines()[2], flush=True)
    print(f"\n{table(rows)}")
    if list(options.models) == list(zoo.names()):
        RESULTS.write_text(report(rows), encoding="utf-8")
        print(f"\nwritten to {RESULTS.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
