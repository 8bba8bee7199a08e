"""ports.h: lets the harness call the entries without knowing their signatures."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.codegen.c import Comment, Function, Item, Line, Return, SourceFile, print_file
from tilegrad.codegen.interface import Port, entry_inputs, entry_outputs
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import ENTRIES
from tilegrad.place.board import buffer_bytes, packed_offsets


def port_offsets(ports: Sequence[Port]) -> tuple[tuple[int, ...], int]:
    """Where each port lies in the packed payload, and the payload's size."""
    return packed_offsets([port.type for port in ports])


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


def ports_header(plan: Plan) -> str:
    sizes = {
        entry: (port_offsets(entry_inputs(plan, entry))[1], port_offsets(entry_outputs(plan, entry))[1])
        for entry in ENTRIES
    }
    input_bytes, output_bytes = buffer_bytes(plan.schedule)
    items: list[Item] = [Comment("How the harness packs inputs and outputs of each entry.")]
    for entry, (read, written) in sizes.items():
        items += [
            Line(f"#define TG_PORT_{entry.upper()}_IN {read}"),
            Line(f"#define TG_PORT_{entry.upper()}_OUT {written}"),
        ]
    items += [
        Line(f"#define TG_PORT_INPUT_BYTES {input_bytes}"),
        Line(f"#define TG_PORT_OUTPUT_BYTES {output_bytes}"),
    ]
    for entry in ENTRIES:
        items += [Line(), _adapter(plan, entry)]
    return print_file(SourceFile(tuple(items), guard="TG_PORTS_H"))
