"""One unit in the last place beside the weights: what float32's own noise makes of a training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def jitter(parameters: Iterable[Tensor], number: int) -> None:
    """Moves each element by one float32 unit in the last place, up or down as a counter-based generator says."""
    import torch  # this module is imported where PyTorch is not, too

    draw = np.random.Generator(np.random.Philox(key=number))
    with torch.no_grad():
        for tensor in parameters:
            value = tensor.numpy().astype(np.float32)
            towards = np.where(draw.integers(0, 2, value.shape) == 0, -np.inf, np.inf).astype(np.float32)
            tensor.copy_(torch.tensor(np.nextafter(value, towards)))
