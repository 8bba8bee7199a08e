"""Real data, person by person: exercises seen by a watch, and digits seen by a camera that hangs askew.

What everybody else did trains the model that a product ships with. Of the one person a product is for there are their
own samples, which it learns from, and later ones that it never sees, by which it is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Samples = tuple[Floats, npt.NDArray[np.int64]]
WINDOW = 50
"""Of a watch's series, at 25 Hz: two seconds."""
PEOPLE_WE_KNOW = (1, 2, 4, 5, 7, 8, 10)


@dataclass(frozen=True)
class People:
    """Inputs and classes: of all others, the person's own, and theirs that are held out."""

    others: Samples
    own: Samples
    held_out: Samples
    classes: int

    def slice(self, count: int) -> People:
        """Some of each, evenly spread: for trying the story out."""

        def some(samples: Samples, most: int) -> Samples:
            at = np.linspace(0, len(samples[0]) - 1, min(most, len(samples[0]))).astype(np.int64)
            return samples[0][at], samples[1][at]

        return People(some(self.others, 8 * count), some(self.own, count), some(self.held_out, count), self.classes)


def gestures(person: int) -> People:
    """Seven exercises of the shoulder, by a watch's accelerometer and gyroscope: ten people, both arms (seglearn).

    The person's own samples are from the first third of each recording, those held out from its second half.
    """
    from seglearn.datasets import load_watch

    found: dict[str, Any] = load_watch()
    if person in PEOPLE_WE_KNOW or person not in found["subject"]:
        raise SystemExit(f"person {person} is no stranger: choose 3, 6 or 9")
    recordings = list(zip(found["X"], found["y"], found["subject"], strict=True))
    strange = [(x, y) for x, y, who in recordings if who == person]
    return People(
        _windows([(x, y) for x, y, who in recordings if who in PEOPLE_WE_KNOW], WINDOW // 2),
        _windows([(x[: len(x) // 3], y) for x, y in strange], WINDOW // 2),
        _windows([(x[len(x) // 2 :], y) for x, y in strange], WINDOW // 2),
        classes=7,
    )


def _windows(recordings: list[tuple[npt.NDArray[np.float64], int]], every: int) -> Samples:
    """Two seconds each, six channels of about unit size; half of the 50 values a second are enough."""
    inputs, classes = [], []
    for series, label in recordings:
        halved = series[: len(series) // 2 * 2].reshape(-1, 2, 6).mean(axis=1) / [0.5, 0.5, 0.5, 2.5, 2.5, 2.5]
        for start in range(0, len(halved) - WINDOW + 1, every):
            inputs.append(halved[start : start + WINDOW].T)
            classes.append(label)
    return np.array(inputs, np.float32), np.array(classes, np.int64)


def digits(person: int) -> People:
    """Handwritten digits of 8 × 8 pixels (scikit-learn). They do not tell who wrote them, so that here the person is a
    camera: number N hangs turned by N · 10 degrees, and sees the last third of the digits only."""
    from scipy.ndimage import rotate
    from sklearn.datasets import load_digits

    found = load_digits()
    images, classes = found.images / 16.0, found.target.astype(np.int64)
    known = len(images) * 2 // 3
    turned = rotate(images[known:], 10.0 * person, axes=(2, 1), reshape=False, order=1).clip(0.0, 1.0)
    own = len(turned) // 2

    def samples(pixels: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> Samples:
        return pixels.reshape(len(pixels), 64).astype(np.float32), labels

    return People(
        samples(images[:known], classes[:known]),
        samples(turned[:own], classes[known : known + own]),
        samples(turned[own:], classes[known + own :]),
        classes=10,
    )
