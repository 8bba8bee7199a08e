"""A few updates of a program on a device: what two programs that compute the same have in common."""

from __future__ import annotations

import numpy as np

from tilegrad.compiled import Compiled
from tilegrad.devices.registry import open_device

STEPS = 3


def results(compiled: Compiled, shape: tuple[int, ...], classes: int, device: str = "host") -> tuple[object, ...]:
    """Losses, and the bits of the weights afterwards."""
    random = np.random.default_rng(5)
    with open_device(device) as opened, opened.load(compiled) as session:
        losses = []
        for _ in range(STEPS):
            x = random.standard_normal(shape).astype(np.float32)
            losses.append(float(session.step(x, random.integers(0, classes, shape[0]))))
            session.update()
        return losses, {name: array.tobytes() for name, array in session.weights().items()}
