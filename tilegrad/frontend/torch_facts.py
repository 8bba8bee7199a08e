"""What is known about a torch module that was loaded. PyTorch is an optional extra, and not imported from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Exporter = Literal["torchscript", "dynamo"]
EXPORTERS: tuple[Exporter, ...] = ("torchscript", "dynamo")


@dataclass(frozen=True)
class Padding:
    """An embedding's row that its lookups do not train (`padding_idx`), and how many lookups a forward makes."""

    row: int
    lookups: int


@dataclass(frozen=True)
class GradientFacts:
    """Names of parameters that no gradient reaches, of those whose gradient lacks a part, and of parts of the module.

    `cutting` says where a gradient is cut, `deciding` where values become Python's numbers or decisions (those that
    depend on parameters, if `has_lost_parameters`, so that a gradient is lost, whoever exports it), `changing` which
    tensors of its own a forward changes as it evaluates, `own` which `torch.autograd.Function`s have a backward of
    their own. `padding` has the tables with a row that no lookup trains.
    """

    unreached: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    cutting: tuple[str, ...] = ()
    deciding: tuple[str, ...] = ()
    has_lost_parameters: bool = False
    changing: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    padding: Mapping[str, Padding] = field(default_factory=dict)


@dataclass(frozen=True)
class TorchModule:
    """What PyTorch knows about a module, as it was when it was loaded.

    `module` is a private copy on the CPU, every part in the mode in which it was exported. `trains` has every
    parameter by its first name, and whether it requires a gradient; `aliases` are further names of the same tensors.
    `inputs` are the graph's names of forward's arguments, `unused` the parameters that no output depends on,
    `not_random` the parts that are random in PyTorch's training and not here, and `odd_statistics` the layers whose
    running statistics cannot be kept. `gradients` is what PyTorch's gradient has that the exported graph cannot say.
    """

    module: Any
    exporter: str
    trains: Mapping[str, bool]
    buffers: tuple[str, ...]
    aliases: Mapping[str, str]
    inputs: tuple[str, ...]
    unused: tuple[str, ...]
    not_random: tuple[str, ...] = ()
    odd_statistics: tuple[str, ...] = ()
    gradients: GradientFacts = GradientFacts()

    @property
    def without_gradient(self) -> frozenset[str]:
        """Parameters that PyTorch would not train, though the graph reads them."""
        return frozenset(name for name in self.gradients.unreached if self.trains.get(name, False))

    def notes(self) -> tuple[str, ...]:
        """What a user should know about this module."""
        parts = dict(self.module.named_modules())
        return (
            *(f"'{other}' and '{name}' are one tensor in PyTorch: tied" for other, name in self.aliases.items()),
            *(f"'{name}' does not reach the module's output: no gradient, as in PyTorch" for name in self.unused),
            *(
                f"'{name}' ({type(parts[name]).__name__}) draws random numbers in training that ONNX has no word for: "
                "it is trained as it evaluates"
                for name in self.not_random
            ),
            *(f"'{name}' gets no gradient in PyTorch: it does not train" for name in sorted(self.without_gradient)),
            *(
                f"'{name}' has a backward of its own, which ONNX does not know: what it computes is differentiated"
                for name in self.gradients.own
            ),
        )
