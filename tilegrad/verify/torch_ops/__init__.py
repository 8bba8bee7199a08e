"""ONNX operators as PyTorch functions, one small function each; autograd differentiates them, so they hold no gradient.

`TABLE` maps an operator's name to its function `(call, *inputs) -> tensor or tuple`, an absent optional input being
None. `MODAL` holds the two operators whose meaning depends on the run: they also take its `Mode`.
"""

from __future__ import annotations

from tilegrad.verify.torch_ops import elementwise, movement, normalization, reduction, windows
from tilegrad.verify.torch_ops.base import INFERENCE, Call, Function, ModalFunction, Mode

TABLE: dict[str, Function] = {
    **elementwise.TABLE,
    **movement.TABLE,
    **normalization.TABLE,
    **reduction.TABLE,
    **windows.TABLE,
}
MODAL: dict[str, ModalFunction] = dict(normalization.MODAL)

__all__ = ["INFERENCE", "MODAL", "TABLE", "Call", "Function", "ModalFunction", "Mode"]
