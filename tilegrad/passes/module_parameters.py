"""What a torch module's tensors are: PyTorch knows, so the rule for files only says where each of them is used."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilegrad.errors import UserError
from tilegrad.passes.parameters import ParameterInfo

NOT_REACHED = "a parameter that the module's output does not depend on: no gradient, as in PyTorch"
NO_GRADIENT = "a parameter that no gradient reaches in PyTorch (detach() or no_grad())"


def as_module_says(
    infos: Mapping[str, ParameterInfo],
    trains: Mapping[str, bool],
    buffers: Collection[str],
    unused: Collection[str],
    without_gradient: Collection[str] = (),
) -> dict[str, ParameterInfo]:
    """`trains` has every parameter and whether it requires a gradient. The order is the module's, others last."""
    other_types = [name for name in trains if name not in infos]
    if other_types:
        raise UserError(
            f"parameters of the module are not float32: {', '.join(other_types[:8])}",
            stage="import",
            hint="convert the module first: module.float()",
        )
    result = {}
    for name, requires_grad in trains.items():
        info = infos[name]
        if name in unused:
            reason = NOT_REACHED
        elif name in without_gradient:
            reason = f"{NO_GRADIENT}; {info.reason}"
        elif requires_grad:
            reason = f"requires a gradient in the module; {info.reason}"
        else:
            reason = f"frozen in the module (requires_grad is False); {info.reason}"
        is_frozen = not requires_grad or name in without_gradient
        result[name] = replace(info, role="parameter", reason=reason, is_frozen=is_frozen)
    for name in (name for name in buffers if name in infos):
        info = infos[name]
        if info.role != "statistic":
            info = replace(info, role="constant", reason=f"a buffer of the module; {info.reason}", is_frozen=True)
        result[name] = info
    for name, info in infos.items():
        if name not in result:
            result[name] = replace(
                info, role="constant", reason=f"no tensor of the module's; {info.reason}", is_frozen=True
            )
    return result
