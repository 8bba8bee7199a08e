"""tilegrad: an ONNX model and a chip in, C that trains the model on that chip out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tilegrad.api import (
        SGD,
        Adam,
        AdamW,
        CoreCosts,
        DmaEngine,
        DmaTiming,
        Guard,
        Keeping,
        Memory,
        Momentum,
        Operator,
        Rate,
        Recipe,
        Residency,
        RMSprop,
        Storage,
        Stored,
        Target,
        compile,
        export_checkpoint,
        load,
        loss,
        open_device,
        register,
        register_target,
        train,
    )

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "CoreCosts",
    "DmaEngine",
    "DmaTiming",
    "Guard",
    "Keeping",
    "Memory",
    "Momentum",
    "Operator",
    "RMSprop",
    "Rate",
    "Recipe",
    "Residency",
    "Storage",
    "Stored",
    "Target",
    "compile",
    "export_checkpoint",
    "load",
    "loss",
    "open_device",
    "register",
    "register_target",
    "train",
]


def __dir__() -> list[str]:
    """The API, which is imported on first use and so is not among the module's own names."""
    return sorted({*__all__, "__version__", "__doc__", "__all__", "__name__", "__file__", "__path__"})


def __getattr__(name: str) -> Any:
    """The API is imported on first use, so that `import tilegrad` costs nothing."""
    if name in __all__:
        import tilegrad.api

        return getattr(tilegrad.api, name)
    raise AttributeError(f"module 'tilegrad' has no attribute '{name}'")
