"""How far a model may grow while it is read. Every bound is here, each with what it counts; a model that would exceed
one is refused, or a constant left to run time, before the growth and not after it.

Bounds count nodes, bytes and operations, never seconds: what one machine accepts, any other does too.
"""

from __future__ import annotations

MAX_MODEL_BYTES = 2**31 - 1
"""Of a model with its external data. Protocol buffers end there; so does any target tilegrad knows."""

MAX_ELEMENTS = 2**31 - 1
"""Of one tensor. Kernels count in 32 bits; a larger tensor would not fit any target anyway."""

MAX_INLINED_NODES = 50_000
"""Made of functions, of operators that are defined by others and of the branches of constant Ifs, each call and each
branch counted with all that it becomes. Nodes that are in the file as they are do not count."""

MAX_INLINED_BYTES = 256 * 2**20
"""Of those nodes, as ONNX writes them, tensors in their attributes included."""

MAX_FOLDED_BYTES = 64 * 2**20
"""Of one constant that is computed at import, eight bytes an element. A larger one is left to run time."""

MAX_FOLDED_TOTAL_BYTES = 256 * 2**20
"""Of all such constants together."""

MAX_FOLDED_WORK = 5 * 10**8
"""Operations that computing constants may take, all of them together. A node is 10,000, and each element it reads or
writes one, if its operator goes through its operands once; in any other, each way to combine an element of every
operand is one, and an element is 1000."""

MAX_NAME_CHARACTERS = 8192
"""Of a node, a value or an operator: names are made of names, and each is in the C several times."""

MAX_TRIPS = 10_000
"""Of a constant Loop; a longer one is not run at import."""
