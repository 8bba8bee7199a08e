"""What a sample looks like, as JSON: a program of a folder makes or reads its mini-batches without the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tilegrad.data.batches import Drawn, PortSpec, SampleSpec
from tilegrad.ir.types import DType

_DTYPES = {dtype.short: dtype for dtype in DType}


def spec_json(spec: SampleSpec) -> dict[str, Any]:
    """Every field, enumerations by their names."""
    document = {field.name: getattr(spec, field.name) for field in fields(SampleSpec)}
    document["input_dtype"] = spec.input_dtype.short
    for name in ("given", "named"):
        document[name] = [_port_json(port) for port in getattr(spec, name)]
    return document


def spec_from_json(document: Mapping[str, Any]) -> SampleSpec:
    told = dict(document)
    told["input_dtype"] = _DTYPES[told["input_dtype"]]
    for name in ("input_shape", "target_shape"):
        told[name] = tuple(told[name])
    for name in ("given", "named"):
        told[name] = tuple(_port(port) for port in told[name])
    return SampleSpec(**told)


def _port_json(port: PortSpec) -> dict[str, Any]:
    document = {field.name: getattr(port, field.name) for field in fields(PortSpec)}
    return {**document, "dtype": port.dtype.short, "drawn": port.drawn.value}


def _port(document: Mapping[str, Any]) -> PortSpec:
    told = dict(document)
    told |= {"dtype": _DTYPES[told["dtype"]], "drawn": Drawn(told["drawn"])}
    told |= {"names": tuple(told["names"]), "shape": tuple(told["shape"])}
    return PortSpec(**told)
