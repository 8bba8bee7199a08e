"""ports.h: lets the harness call the entries without knowing their signatures."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.codegen.c import Comment, Function, Item, Line, Return, SourceFile, print_file
from tilegrad.codegen.interface import Port, entry_inputs, entry_outputs
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import ENTRIES

PORT_ALIGNMENT_BYTES = 64


def port_offsets(ports: Sequence[Port]) -> tuple[tuple[int, ...], int]:
    """Where each port lies in the packed payload, and the payload's size."""
    offsets = []
    position = 0
    for port in ports:
        offsets.append(position)
        position += -(-port.type.size_bytes // PORT_ALIGNMENT_BYTES) * PORT_ALIGNMENT_BYTES
    return tuple(offsets), position


def _adapter(plan: Plan, entry: str) -> Function:
    arguments = ["m"]
    inputs, outputs = entry_inputs(plan, entry), entry_outputs(plan, entry)
    for port, offset in zip(inputs, port_offsets(inputs)[0], strict=True):
        arguments.append(f"(const {port.type.dtype.c_name} *)(const void *)(in + {offset})")
    for port, offset in zip(outputs, port_offsets(outputs)[0], strict=True):
        arguments.append(f"({port.type.dtype.c_name} *)(void *)(out + {offset})")
    body: list[Line | Return] = []
    body += [Line("    (void)in;")] if not inputs else []
    body += [Line("    (void)out;")] if not outputs else []
    return Function(
        "static int",
        f"tg_port_{entry}",
        ("tg_model *m", "const unsigned char *in", "unsigned char *out"),
        (*body, Return(f"tg_{entry}({', '.join(arguments)})")),
    )


def _sizes(plan: Plan) -> dict[str, tuple[int, int]]:
    """Packed bytes of each entry's inputs and outputs."""
    return {
        entry: (port_offsets(entry_inputs(plan, entry))[1], port_offsets(entry_outputs(plan, entry))[1])
        for entry in ENTRIES
    }


def _largest(plan: Plan) -> tuple[int, int]:
    """The harness's two buffers: inputs and outputs of the entry that has most."""
    inputs, outputs = zip(*_sizes(plan).values(), strict=True)
    return max(*inputs, 1), max(*outputs, 1)


def buffer_bytes(plan: Plan) -> int:
    """RAM that the harness takes for inputs and outputs."""
    return sum(_largest(plan))


def ports_header(plan: Plan) -> str:
    sizes = _sizes(plan)
    items: list[Item] = [Comment("How the harness packs inputs and outputs of each entry.")]
    for entry, (read, written) in sizes.items():
        items += [
            Line(f"#define TG_PORT_{entry.upper()}_IN {read}"),
            Line(f"#define TG_PORT_{entry.upper()}_OUT {written}"),
        ]
    items += [
        Line(f"#define TG_PORT_INPUT_BYTES {_largest(plan)[0]}"),
        Line(f"#define TG_PORT_OUTPUT_BYTES {_largest(plan)[1]}"),
    ]
    for entry in ENTRIES:
        items += [Line(), _adapter(plan, entry)]
    return print_file(SourceFile(tuple(items), guard="TG_PORTS_H"))
