"""Several requests of the harness protocol as one exchange: all are sent before the first answer is taken.

A round trip costs more than a small tensor. Requests for tensors are 12 bytes, so that those of `READS_AHEAD` fit into
what a pipe holds: the program may wait for us to take an answer, but never for a request that it needs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tilegrad.devices.transport import Transport, TransportError

GET, PUT = 4, 5
READS_AHEAD = 1024
HEAD_BYTES = 8


def framed(command: int, payload: bytes = b"") -> bytes:
    return struct.pack("<II", command, len(payload)) + payload


def pipelined(
    transport: Transport,
    deadline: float,
    writes: Sequence[tuple[int, bytes]],
    call: tuple[int, bytes] | None,
    reads: Sequence[tuple[int, int]],
) -> tuple[tuple[int, bytes] | None, list[memoryview]]:
    """Writes tensors (index and content), makes a call (command and payload) and reads tensors (index and size).

    Returns status and content of the call's answer, and the tensors' bytes.
    """
    sent = [framed(PUT, struct.pack("<I", index) + content) for index, content in writes]
    if call is not None:
        sent.append(framed(*call))
    sent += _asked(reads[:READS_AHEAD])
    transport.send(b"".join(sent), deadline)
    transport.receive(HEAD_BYTES * len(writes), deadline)
    reply: tuple[int, bytes] | None = None
    if call is not None:
        status, size = struct.unpack("<II", transport.receive(HEAD_BYTES, deadline))
        reply = status, transport.receive(size, deadline)
    made = _answers(transport, reads[:READS_AHEAD], deadline)
    for start in range(READS_AHEAD, len(reads), READS_AHEAD):
        transport.send(b"".join(_asked(reads[start : start + READS_AHEAD])), deadline)
        made += _answers(transport, reads[start : start + READS_AHEAD], deadline)
    return reply, made


def _asked(reads: Sequence[tuple[int, int]]) -> list[bytes]:
    return [framed(GET, struct.pack("<I", index)) for index, _ in reads]


def _answers(transport: Transport, reads: Sequence[tuple[int, int]], deadline: float) -> list[memoryview]:
    """Their sizes are known, so that they are taken as one."""
    received = memoryview(transport.receive(sum(HEAD_BYTES + size for _, size in reads), deadline))
    made = []
    at = 0
    for _, size in reads:
        if struct.unpack_from("<I", received, at + 4)[0] != size:
            raise TransportError("gave a malformed answer")
        made.append(received[at + HEAD_BYTES : at + HEAD_BYTES + size])
        at += HEAD_BYTES + size
    return made
