"""What the frontend hands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import onnx

from tilegrad.expectations import is_told
from tilegrad.frontend.channels import Parted
from tilegrad.frontend.given.files import GivenFiles
from tilegrad.frontend.lora import Adapted
from tilegrad.frontend.torch_facts import TorchModule
from tilegrad.ir.given import GivenTraining
from tilegrad.ir.graph import Graph
from tilegrad.passes.parameters import ParameterInfo


class SourceKind(Enum):
    """Where a model came from."""

    FILE = "file"
    PROTO = "proto"
    ZOO = "zoo"
    TORCH = "torch"
    GRAPHS = "training graphs"


@dataclass(frozen=True, repr=False)
class ImportedModel:
    """A model ready to be differentiated, and the very model that references execute.

    `graph` is verified and canonical. `proto` is the same computation as ONNX at the canonical opset: batch bound,
    constants folded, every initializer under its original name, so that weights and gradients compare by name.
    `original` is the model as it came, functions inlined and batch bound, but otherwise untouched.
    `unbound` is the model as it came, with its batch dimension still free if it was.
    `parameters` says of each initializer of the original model what it is. `notes` are things a user should know.
    `module` is the torch module that this came from, if it did: what PyTorch trains to judge us. `folded` are layers
    into which the exporter folded BatchNormalization. `training` is there where the source was a training graph:
    `graph` is then its evaluation. `given` are its files, and the seed of what they leave open.
    `adapted` is there where adapters were put in, or where layers were parted.
    """

    name: str
    kind: SourceKind
    graph: Graph
    proto: onnx.ModelProto
    original: onnx.ModelProto
    parameters: Mapping[str, ParameterInfo]
    batch: int
    unbound: onnx.ModelProto
    notes: tuple[str, ...] = ()
    module: TorchModule | None = None
    folded: tuple[str, ...] = ()
    training: GivenTraining | None = None
    given: tuple[GivenFiles, int] | None = None
    adapted: Adapted | Parted | None = None

    def with_batch(self, batch: int) -> ImportedModel:
        """The same model imported again for another batch size."""
        from tilegrad.frontend import import_source  # the frontend is made of this module
        from tilegrad.frontend.source import Source

        if batch == self.batch:
            return self
        if self.given is not None:
            from tilegrad.frontend.given import import_given

            return import_given(self.given[0], batch, self.given[1]) if is_told(batch) else self
        if self.adapted is not None:
            return self.adapted.again(self.adapted.base.with_batch(batch))
        return import_source(Source(self.name, self.kind, self.unbound, self.module), batch)

    def __repr__(self) -> str:
        """Short: a model may hold megabytes."""
        ports = [
            ", ".join(f"{name} {self.graph.types[name]}" for name in names[:3]) + (", …" if len(names) > 3 else "")
            for names in (self.graph.inputs, self.graph.outputs)
        ]
        trained = sum(info.type.size for info in self.parameters.values() if info.role == "parameter")
        return (
            f"<ImportedModel '{self.name}' ({self.kind.value}): {ports[0]} -> {ports[1]}, batch {self.batch}, "
            f"{len(self.graph.nodes):,} nodes, {trained:,} parameters>"
        )

    @property
    def roles(self) -> dict[str, str]:
        """Role of each initializer by name: `parameter`, `statistic` or `constant`."""
        return {name: info.role for name, info in self.parameters.items()}
