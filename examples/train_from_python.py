"""Trains a zoo model on the host, one mini-batch at a time, and shows what the state of a session holds."""

from __future__ import annotations

import numpy as np

import tilegrad as tg

recipe = tg.Recipe(loss="cross_entropy", optimizer=tg.Adam(lr=0.003), batch=8)
program = tg.compile(tg.load("mlp"), recipe, target="host")  # pure: no file is written, no device is touched

# Ten clusters of points; the label is the cluster.
random = np.random.default_rng(0)
centres = random.standard_normal((10, 784), dtype=np.float32)

with tg.open_device("host") as device:
    session = device.load(program)
    for update in range(1, 31):
        labels = random.integers(0, 10, size=8)
        samples = centres[labels] + 0.5 * random.standard_normal((8, 784), dtype=np.float32)
        loss = session.step(samples, labels)
        session.update()
        if update % 10 == 0:
            print(f"update {update}: loss {loss:.4f}")
    right = np.argmax(session.infer(centres[:8]), axis=1) == np.arange(8)
    print(f"{right.sum()} of 8 centres are recognised")
    for name, weight in session.parameters().items():
        print(f"{name}: {weight.shape}, norm {np.linalg.norm(weight):.3f}")
