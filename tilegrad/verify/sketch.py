"""A tensor reduced to a few numbers that still notice any change of it.

A golden cannot hold every weight of every snapshot. It holds the norm, a few coordinates, and a few projections onto
sign vectors: for a difference d, a projection of d has the root mean square ‖d‖, so the projections estimate the
relative error over *all* coordinates, those not sampled included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilegrad.errors import UserError
from tilegrad.verify.reference import Array, tensor_scale

PROJECTIONS = 4


@dataclass(frozen=True)
class Sketch:
    """`projections` are Σ ±tensor; `values` are the tensor at `indices` (flat)."""

    size: int
    norm: float
    projections: Array
    indices: Array
    values: Array


def _hashed(count: int, salt: int) -> Array:
    """The same 64 random bits for a position everywhere and always (SplitMix64's finalizer over a counter)."""
    with np.errstate(over="ignore"):
        state = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        state += np.uint64(salt) * np.uint64(0xD1B54A32D192ED03)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))


def signs(count: int, salt: int) -> Array:
    """A reproducible vector of +1 and -1."""
    return np.where(_hashed(count, salt) >> np.uint64(63), 1.0, -1.0)


def sample_indices(count: int, samples: int) -> Array:
    """`samples` different positions spread over the tensor, all of them if it is no larger."""
    if count <= samples:
        return np.arange(count, dtype=np.int64)
    return np.sort(np.argsort(_hashed(count, 0), kind="stable")[:samples]).astype(np.int64)


def _project(flat: Array) -> Array:
    return np.array([float(flat @ signs(flat.size, salt)) for salt in range(1, PROJECTIONS + 1)])


def sketch(tensor: Array, samples: int) -> Sketch:
    flat = np.asarray(tensor, dtype=np.float64).ravel()
    indices = sample_indices(flat.size, samples)
    return Sketch(flat.size, float(np.linalg.norm(flat)), _project(flat), indices, flat[indices])


def sketch_error(measured: Array, reference: Sketch, largest: float = 0.0) -> float:
    """The relative error the sketch shows: the largest of what norm, coordinates and projections say."""
    flat = np.asarray(measured, dtype=np.float64).ravel()
    if flat.size != reference.size:
        raise UserError(
            "a tensor and its golden differ in size", stage="verify", expected=str(reference.size), got=str(flat.size)
        )
    if not np.isfinite(flat).all() or not np.isfinite(reference.norm):
        return 0.0 if np.isnan(np.linalg.norm(flat)) and np.isnan(reference.norm) else float("inf")
    distance = max(
        abs(float(np.linalg.norm(flat)) - reference.norm),
        float(np.linalg.norm(flat[reference.indices] - reference.values)),
        float(np.sqrt(np.mean(np.square(_project(flat) - reference.projections)))),
    )
    return distance / tensor_scale(reference.norm, largest)
