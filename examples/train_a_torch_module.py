"""Compiles a torch.nn.Module to C and trains that C, with every loss, gradient and weight checked against PyTorch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import tilegrad as tg

torch.manual_seed(0)
module = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 4 * 4, 3))
model = tg.load(module, example=torch.zeros(1, 1, 8, 8), batch=4)
program = tg.compile(model, tg.Recipe(optimizer=tg.Momentum(lr=0.05), batch=4))

# Which third of the picture is bright?
random = np.random.default_rng(0)
y = random.integers(0, 3, size=64)
x = 0.3 * random.standard_normal((64, 1, 8, 8), dtype=np.float32)
for sample, label in zip(x, y, strict=True):
    sample[0, :, 3 * label : 3 * label + 2] += 1.0

with tempfile.TemporaryDirectory() as folder, tg.open_device("host") as device:
    data = Path(folder) / "data.npz"
    np.savez(data, x=x, y=y)
    run = tg.train(program, device, steps=48, data=data)

assert run.verdict is not None
print(f"loss {run.losses[0]:.4f} -> {run.losses[-1]:.4f}")
print(f"verified against {run.verdict.reference}: {run.verdict.verified}")
print(f"arena {run.compiled.plan.arena_bytes} bytes, {run.compiled.project.line_count} lines of C")
