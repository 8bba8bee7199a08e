"""The image of the initial state, weights.bin: a header that says whose it is, then the bytes.

The header is eight little-endian words: magic, version of the format, the model's hash (four), bytes that follow, and
their CRC-32. `tilegrad/runtime/tg_image.h` is the other end.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping

import numpy as np

from tilegrad.ir.graph import Attribute
from tilegrad.ir.plan import FLASH_REGION, Plan
from tilegrad.ir.program import Program, StateTensor
from tilegrad.ir.types import Constant

MAGIC = int.from_bytes(b"TGIM", "little")
VERSION = 1
HASH_WORDS = 4
HEADER = struct.Struct(f"<II{4 * HASH_WORDS}sII")


def model_hash(plan: Plan) -> bytes:
    """What the bytes of the state mean: each tensor with its place, and the model that it is for.

    Values that a program is given, names of nodes, batch and recipe are no part of it, as far as they change neither: a
    state goes with any program of this hash.
    """
    program = plan.schedule.program
    places = [plan.state_addresses[tensor.name] for tensor in program.state]
    tensors = [
        [tensor.name, tensor.role.value, str(tensor.type), place.region, place.offset]
        for tensor, place in zip(program.state, places, strict=True)
    ]
    meaning = {"version": VERSION, "tensors": tensors, "loss": program.loss}
    if plan.flash_bytes:  # part of the program: parameters that were trained beside other constants are of another one
        meaning["flash"] = hashlib.sha256(flash_image(plan)).hexdigest()
    return hash_of(program, meaning)


def hash_of(program: Program, meaning: Mapping[str, object]) -> bytes:
    """Of a model's nodes, and of what else its bytes mean."""
    nodes = [
        [node.op, node.inputs, node.outputs, sorted((key, attribute_text(v)) for key, v in node.attributes.items())]
        for node in program.entries["infer"].nodes
    ]
    text = json.dumps({**meaning, "nodes": nodes}, sort_keys=True)
    return hashlib.sha256(text.encode()).digest()[: 4 * HASH_WORDS]


def attribute_text(value: Attribute) -> str:
    if isinstance(value, Constant):
        return f"{value.type} {hashlib.sha256(np.ascontiguousarray(value.array).tobytes()).hexdigest()}"
    return repr(value)


def hash_text(digest: bytes) -> str:
    """A hash as words of C."""
    return ", ".join(f"0x{word:08x}u" for word in struct.unpack(f"<{HASH_WORDS}I", digest))


def initial_bytes(tensor: StateTensor) -> bytes:
    """What a tensor begins with, little endian: zeros, if nothing is said."""
    if tensor.initial is None:
        return bytes(tensor.type.size_bytes)
    return np.ascontiguousarray(tensor.initial.array).astype(tensor.type.dtype.numpy.newbyteorder("<")).tobytes()


def payload_bytes(plan: Plan) -> int:
    return plan.image_bytes + plan.l3_image_bytes


def state_image(plan: Plan) -> bytes:
    """The bytes of weights.bin: the header, the leading part of the state region, and what is initially in L3."""
    images = _images(plan)
    payload = bytes(images["state"] + images["l3"])
    return HEADER.pack(MAGIC, VERSION, model_hash(plan), len(payload), zlib.crc32(payload)) + payload


def flash_image(plan: Plan) -> bytes:
    """The bytes of the constants that are part of the program."""
    return bytes(_images(plan)[FLASH_REGION])


def _images(plan: Plan) -> dict[str, bytearray]:
    """By region: what it holds at first."""
    sizes = {"state": plan.image_bytes, "l3": plan.l3_image_bytes, FLASH_REGION: plan.flash_bytes}
    images = {region: bytearray(size) for region, size in sizes.items()}
    for tensor in plan.schedule.program.state:
        if tensor.initial is not None:
            address = plan.state_addresses[tensor.name]
            images[address.region][address.offset : address.offset + tensor.type.size_bytes] = initial_bytes(tensor)
    return images
