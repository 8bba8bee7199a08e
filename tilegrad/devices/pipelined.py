"""Several requests of the harness protocol as one exchange: all are sent before the first answer is taken.

A round trip costs more than a small tensor, so the program answers all of them at once. The bytes of tensors go through
the window where there is one (transport.py): a copy each, where a pipe takes two and waits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.devices.packed import Layout
from tilegrad.devices.transport import Transport, TransportError

GET, PUT = 4, 5
REPLY_LATER, THROUGH_WINDOW = 0x200, 0x400
HEAD_BYTES = 8

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Wanted:
    """Tensors to read: where they will lie, their indices as a request has them, and their bytes together."""

    layout: Layout
    indices: bytes
    size: int

    @staticmethod
    def of(layout: Layout, indices: Mapping[str, int]) -> Wanted:
        packed = struct.pack(f"<{len(layout.fields)}I", *(indices[field.name] for field in layout.fields))
        return Wanted(layout, packed, sum(field.size_bytes for field in layout.fields))


def framed(command: int, payload: bytes = b"") -> bytes:
    return struct.pack("<II", command, len(payload)) + payload


def pipelined(
    transport: Transport,
    deadline: float,
    writes: Sequence[tuple[int, Array]],
    calls: Sequence[tuple[int, bytes]],
    reads: Wanted,
) -> tuple[list[tuple[int, bytes]], Bytes]:
    """Writes tensors (index and content), makes calls (command and payload) and reads tensors.

    Returns status and content of each call's answer, and the tensors' bytes, one tensor after another.
    """
    given = sum(value.nbytes for _, value in writes)
    window = transport.window
    if window is not None and max(reads.size, given) > window.size:
        window = None
    requests = [*_put(window, writes), *calls]
    if reads.indices:
        requests.append((GET | (0 if window is None else THROUGH_WINDOW), reads.indices))
    later = (framed(command | REPLY_LATER, payload) for command, payload in requests[:-1])
    transport.send(b"".join((*later, *(framed(*request) for request in requests[-1:]))), deadline)
    replies = []
    for i in range(len(requests)):
        status, size = struct.unpack("<II", transport.receive(HEAD_BYTES, deadline))
        if i == len(requests) - 1 and reads.indices and size != (reads.size if window is None else 0):
            raise TransportError("gave a malformed answer")
        replies.append((status, transport.receive(size, deadline) if size else b""))
    made = np.frombuffer(replies[-1][1] if reads.indices else b"", np.uint8)
    if window is not None and reads.indices:
        made = transport.spare_bytes(reads.size)
        made[:] = window[: reads.size]
    first = len(requests) - len(calls) - bool(reads.indices)
    return replies[first : first + len(calls)], made


def _put(window: Bytes | None, writes: Sequence[tuple[int, Array]]) -> Iterator[tuple[int, bytes]]:
    if window is None:
        yield from ((PUT, struct.pack("<I", index) + value.tobytes()) for index, value in writes)
    elif writes:
        at = 0
        for _, value in writes:
            window[at : at + value.nbytes] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            at += value.nbytes
        yield PUT | THROUGH_WINDOW, struct.pack(f"<{len(writes)}I", *(index for index, _ in writes))
