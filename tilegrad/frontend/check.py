"""Is it a well-formed ONNX model of an opset we read?"""

from __future__ import annotations

from math import isfinite
from typing import Any

import onnx
from onnx import checker, defs

from tilegrad.bounds import MAX_NAME_CHARACTERS
from tilegrad.errors import UserError
from tilegrad.frontend.unsupported import node_label, unsupported_error, unsupported_nodes

OLDEST_OPSET = 11
CANONICAL_OPSET = 23
ONNX_DOMAINS = ("", "ai.onnx")
_NAMES = ("name", "input", "output", "op_type", "domain", "overload", "dim_param")


def opset_of(model: onnx.ModelProto) -> int:
    """Version of the standard operator set that the model imports."""
    versions = [int(entry.version) for entry in model.opset_import if entry.domain in ONNX_DOMAINS]
    if not versions:
        raise UserError("the model imports no standard ONNX operator set", stage="import", expected="domain ''")
    return versions[0]


def check_opset(model: onnx.ModelProto) -> None:
    version = opset_of(model)
    if not OLDEST_OPSET <= version <= defs.onnx_opset_version():
        raise UserError(
            f"the model is of ONNX opset {version}",
            stage="import",
            expected=f"{OLDEST_OPSET} to {CANONICAL_OPSET}",
            hint="convert it with onnx.version_converter.convert_version, or export it again with opset_version=17",
        )


def check_text(message: Any) -> None:
    """Protocol buffers hand text that is not UTF-8 on as bytes; no such name can be written into C or JSON. Nor can
    one that is longer than any person would write."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            for text in (value,) if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    raise UserError(
                        "the model holds text that is not UTF-8",
                        stage="import",
                        got=f"{field.full_name.rpartition('onnx.')[2]} = {text[:40]!r}",
                        hint="is the file damaged?",
                    )
                if len(text) > MAX_NAME_CHARACTERS and field.name in _NAMES:
                    raise UserError(
                        f"a name in the model is {len(text):,} characters long",
                        stage="import",
                        expected=f"at most {MAX_NAME_CHARACTERS:,} characters",
                        got=f"{field.full_name.rpartition('onnx.')[2]} = {text[:40]!r}…",
                    )
        elif field.type == field.TYPE_MESSAGE:
            for inner in (value,) if hasattr(value, "ListFields") else value:
                check_text(inner)


def check_model(model: onnx.ModelProto) -> None:
    """ONNX's own checker; operators that ONNX does not know are reported as unsupported, all at once."""
    if not model.graph.output:
        raise UserError("the model has no outputs", stage="import")
    try:
        checker.check_model(_checkable(model))
    except (checker.ValidationError, ValueError, RuntimeError, UnicodeDecodeError) as error:
        if "Op registered" in str(error) and (found := unsupported_nodes(model)):
            raise unsupported_error(found, {}) from error
        raise UserError(
            "the model is not valid ONNX", stage="import", got=_first_lines(str(error)), hint="onnx.checker says so"
        ) from error


def check_attributes(model: onnx.ModelProto) -> None:
    """A coefficient that is no number (alpha = NaN) makes every result one. Clip's old bounds may be infinite."""
    for position, node in enumerate(model.graph.node):
        if node.op_type in ("Constant", "ConstantOfShape", "Clip"):
            continue
        for attribute in node.attribute:
            numbers = [attribute.f] if attribute.type == onnx.AttributeProto.FLOAT else list(attribute.floats)
            wrong = next((number for number in numbers if not isfinite(number)), None)
            if wrong is not None:
                raise UserError(
                    f"{node.op_type}: attribute '{attribute.name}' is not finite",
                    stage="import",
                    node=node_label(node, position),
                    expected="a finite number",
                    got=str(wrong),
                )


def _checkable(model: onnx.ModelProto) -> onnx.ModelProto:
    """What the checker minds and we do not: inputs and outputs without a shape, which we infer or refuse ourselves,
    and the GroupNormalization of opsets 18 to 20, deprecated for a mistake that the conversion puts right."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.op_type == "GroupNormalization" and node.domain in ONNX_DOMAINS:
            node.op_type = "InstanceNormalization"
            kept = [attribute for attribute in node.attribute if attribute.name == "epsilon"]
            del node.attribute[:]
            node.attribute.extend(kept)
    for value in (*copy.graph.input, *copy.graph.output):
        if _has_no_shape(value):
            value.type.tensor_type.shape.SetInParent()
            value.type.tensor_type.elem_type = value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
    return copy


def _has_no_shape(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is None or (kind == "tensor_type" and not value.type.tensor_type.HasField("shape"))


def _first_lines(text: str) -> str:
    """The checker adds a context dump; its first sentence and the node are what a person needs."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("==>")]
    marker = "==> Context: "
    context = [line.removeprefix(marker).strip() for line in text.splitlines() if line.startswith(marker)]
    return " ".join(lines[:2] + context[:1])
