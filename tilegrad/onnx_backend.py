"""ONNX's backend interface (`onnx.backend.base`) on generated C, so that ONNX's own node tests run against it.

Inputs that shape the graph (Reshape's second, say) must be constants for us: a model is compiled when it is run, with
those inputs baked in. `python -m tilegrad.report.onnx_cases --report` lists every node case and what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper, version_converter
from onnx.backend.base import Backend, BackendRep

from tilegrad.build.toolchain import Toolchain, host_toolchain
from tilegrad.compiled import Compiled
from tilegrad.devices.host import HostDevice
from tilegrad.errors import UserError
from tilegrad.frontend import ImportedModel, load
from tilegrad.frontend.check import OLDEST_OPSET, opset_of
from tilegrad.ops import registry
from tilegrad.pipeline import compile_inference
from tilegrad.recipe import Recipe
from tilegrad.targets import base as targets

Array = npt.NDArray[Any]


def _inputs(model: onnx.ModelProto) -> list[str]:
    stored = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in stored]


def static_inputs(model: onnx.ModelProto) -> set[str]:
    """The model's inputs that some node needs at compile time."""
    inputs = set(_inputs(model))
    found = set()
    for node in model.graph.node:
        operator = registry.find(node.op_type)
        for position in operator.static_inputs if operator is not None else ():
            if position < len(node.input) and node.input[position] in inputs:
                found.add(node.input[position])
    return found


def specialise(model: onnx.ModelProto, arrays: Mapping[str, Array], baked: set[str]) -> onnx.ModelProto:
    """The model for these very inputs: some of them constants, the others with their shapes."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = [value for value in model.graph.input if value.name not in baked]
    del result.graph.input[:]
    for value in kept:
        if value.name in arrays and value.type.HasField("tensor_type"):
            element_type = value.type.tensor_type.elem_type
            value = helper.make_tensor_value_info(value.name, element_type, arrays[value.name].shape)
        result.graph.input.append(value)
    result.graph.initializer.extend(numpy_helper.from_array(arrays[name], name) for name in sorted(baked))
    return result


def _as_arrays(model: onnx.ModelProto, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Array]:
    given = inputs if isinstance(inputs, Mapping) else dict(zip(_inputs(model), inputs, strict=False))
    arrays = {}
    for name, value in given.items():
        if isinstance(value, onnx.TensorProto):
            value = numpy_helper.to_array(value)
        if not isinstance(value, np.ndarray | np.generic):
            raise UserError(
                f"input '{name}' is no tensor", stage="import", expected="a tensor", got=type(value).__name__
            )
        arrays[name] = np.asarray(value)
    return arrays


def _refuse_random(model: onnx.ModelProto, arrays: Mapping[str, Array]) -> None:
    """Dropout draws its own random numbers in training, and in a training step only."""
    for node in model.graph.node:
        if node.op_type == "Dropout" and len(node.input) > 2:
            ratio, training = arrays.get(node.input[1]), arrays.get(node.input[2])
            if training is not None and training.any() and (ratio is None or ratio != 0.0):
                raise UserError(
                    "Dropout in training mode is a part of tg_step, with random numbers of our own",
                    stage="import",
                    node=node.name or node.output[0],
                    expected="training_mode false, or ratio 0",
                    got="training_mode true",
                )


def import_for(model: onnx.ModelProto, arrays: Mapping[str, Array]) -> ImportedModel:
    """Imports a model for given inputs. Those that must be constants are; if that is not enough, all integers are."""
    _refuse_random(model, arrays)
    if opset_of(model) < OLDEST_OPSET:
        try:
            model = version_converter.convert_version(model, OLDEST_OPSET)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"the model is of ONNX opset {opset_of(model)}", stage="import", got=str(error)) from error
    baked = {name for name in static_inputs(model) if name in arrays}
    integers = {name for name, array in arrays.items() if array.dtype.kind in "iu"}
    try:
        return load(specialise(model, arrays, baked))
    except UserError as error:
        if integers <= baked:
            raise
        refusal = error
    imported = load(specialise(model, arrays, baked | integers))
    if not imported.graph.nodes:  # ONNX's own code would compute it all
        raise refusal
    return imported


def quick_toolchain() -> Toolchain:
    """For programs that run once: most of the time goes into compiling them."""
    toolchain = host_toolchain()
    return replace(toolchain, flags=tuple("-O1" if flag.startswith("-O") else flag for flag in toolchain.flags))


class TilegradRep(BackendRep):
    """A model to run; compiled for the inputs it gets. `compiled` is what ran last."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.compiled: Compiled | None = None

    def run(self, inputs: Any, **_: Any) -> tuple[Array, ...]:
        arrays = _as_arrays(self.model, inputs)
        self.compiled = compile_inference(import_for(self.model, arrays), Recipe(), targets.get("host"))
        names = self.compiled.program.entries["infer"].inputs
        with HostDevice(toolchain=quick_toolchain()) as device, device.load(self.compiled) as session:
            return tuple(session.run("infer", [arrays[name] for name in names]))


class TilegradBackend(Backend):
    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:
        """A model whose shapes come with its inputs is judged only when it is run."""
        try:
            load(model)
        except UserError:
            return bool(static_inputs(model))
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> TilegradRep:
        super().prepare(model, device, **kwargs)
        return TilegradRep(model)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Array, ...]:
        super().run_node(node, inputs, device, outputs_info, **kwargs)
        names = list(dict.fromkeys(filter(None, node.input)))
        described = [
            helper.make_tensor_value_info(name, int(helper.np_dtype_to_tensor_dtype(array.dtype)), array.shape)
            for name, array in zip(names, map(np.asarray, inputs), strict=True)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in filter(None, node.output)]
        model = helper.make_model(helper.make_graph([node], "node", described, outputs))
        inferred = onnx.shape_inference.infer_shapes(model)
        return TilegradRep(inferred).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


is_compatible = TilegradBackend.is_compatible
prepare = TilegradBackend.prepare
run_model = TilegradBackend.run_model
run_node = TilegradBackend.run_node
supports_device = TilegradBackend.supports_device
