"""ports.h: lets the harness call the entries without knowing their signatures."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.codegen.c import Call, Comment, Function, Item, Statement, print_file
from tilegrad.codegen.interface import Port, entry_ports
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import ENTRIES
from tilegrad.place.board import buffer_bytes, packed_offsets


def port_offsets(ports: Sequence[Port]) -> tuple[tuple[int, ...], int]:
    """Where each port lies in the packed payload, and the payload's size."""
    return packed_offsets([port.type for port in ports])


def _adapter(plan: Plan, entry: str) -> Function:
    arguments = ["m"]
    inputs, outputs = entry_ports(plan, entry)
    for port, offset in zip(inputs, port_offsets(inputs)[0], strict=True):
        arguments.append(f"(const {port.type.dtype.c_name} *)(const void *)(in + {offset})")
    for port, offset in zip(outputs, port_offsets(outputs)[0], strict=True):
        arguments.append(f"({port.type.dtype.c_name} *)(void *)(out + {offset})")
    unused = [f"(void){name};" for name, ports in (("in", inputs), ("out", outputs)) if not ports]
    parameters = ("tg_model *m", "const unsigned char *in", "unsigned char *out")
    body: tuple[Statement, ...] = (*unused, Call(f"return tg_{entry}", tuple(arguments)))
    return Function("static int", f"tg_port_{entry}", parameters, body)


def ports_header(plan: Plan) -> str:
    items: list[Item] = [Comment("How the harness packs inputs and outputs of each entry.")]
    for entry in ENTRIES:
        for way, ports in zip(("IN", "OUT"), entry_ports(plan, entry), strict=True):
            items.append(f"#define TG_PORT_{entry.upper()}_{way} {port_offsets(ports)[1]}")
    for name, size_bytes in zip(("INPUT", "OUTPUT"), buffer_bytes(plan.schedule), strict=True):
        items.append(f"#define TG_PORT_{name}_BYTES {size_bytes}")
    for entry in ENTRIES:
        items += ["", _adapter(plan, entry)]
    return print_file(items, guard="TG_PORTS_H")
