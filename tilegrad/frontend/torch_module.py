"""A torch.nn.Module as an ONNX model. PyTorch is an optional extra, imported here and only here."""

from __future__ import annotations

import io
import warnings
from typing import Any

import onnx

from tilegrad.build.torch_cache import settle_torch
from tilegrad.errors import UserError

OPSET = 17


def export_module(module: Any, example: Any) -> onnx.ModelProto:
    """Through PyTorch's own exporter, with a free batch dimension.

    The model is to be trained, so nothing is folded: parameters keep their names, BatchNorm stays apart from the
    convolution before it, and Dropout, which the exporter drops in evaluation mode, is exported in training mode.
    """
    settle_torch()
    try:
        import torch
    except ImportError as error:
        raise UserError(
            "a torch.nn.Module needs PyTorch to be exported", stage="import", hint="pip install 'tilegrad[torch]'"
        ) from error
    if example is None:
        raise UserError(
            "a torch.nn.Module needs an example input",
            stage="import",
            expected="example=TENSOR, or a tuple of tensors, the batch first",
            hint="tg.load(module, example=torch.randn(1, 3, 32, 32))",
        )
    inputs = example if isinstance(example, tuple) else (example,)
    if not inputs or not all(isinstance(value, torch.Tensor) for value in inputs):
        raise UserError(
            "the example input of a torch.nn.Module must be made of tensors",
            stage="import",
            expected="a tensor or a tuple of tensors",
            got=", ".join(type(value).__name__ for value in inputs) or "an empty tuple",
        )
    names = [f"input{i}" if i else "input" for i in range(len(inputs))]
    axes = {name: {0: "batch"} for name, value in zip(names, inputs, strict=True) if value.dim()}
    buffer: Any = io.BytesIO()
    modes = [(part, part.training) for part in module.modules()]
    try:
        for part, _ in modes:
            part.training = isinstance(part, torch.nn.modules.dropout._DropoutNd)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                inputs,
                buffer,
                dynamo=False,
                opset_version=OPSET,
                training=torch.onnx.TrainingMode.PRESERVE,
                do_constant_folding=False,
                input_names=names,
                output_names=["output"],
                dynamic_axes={**axes, "output": {0: "batch"}},
            )
    except Exception as error:  # the exporter runs the user's own forward: anything may come out of it
        raise UserError(
            f"PyTorch could not export {type(module).__name__}", stage="import", got=str(error).strip().split("\n")[0]
        ) from error
    finally:
        for part, was_training in modes:
            part.training = was_training
    return onnx.load_from_string(buffer.getvalue())
