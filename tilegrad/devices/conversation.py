"""The harness protocol (see runtime/main.c) as a conversation: requests go out in order, answers come back in order.

Several requests are one exchange: all are sent before the first answer is taken. A round trip costs more than a small
tensor, so the program answers all of them at once. The next exchange may begin before the answers to the last one are
taken: the program goes on without waiting for us. The bytes of tensors go through a window where one is free
(transport.py): whoever reads them reads them there.
"""

from __future__ import annotations

import contextlib
import signal
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType

import numpy as np

from tilegrad.build.workspace import Workspace
from tilegrad.devices.packed import Packed, total_bytes
from tilegrad.devices.table import Table, Wanted
from tilegrad.devices.transport import Transport, TransportError, Window
from tilegrad.devices.values import Array
from tilegrad.errors import DeviceError

INFER, STEP, UPDATE, GET, PUT, MEASURE, QUIT, PLACE, FETCH, BLOCKS = range(1, 11)
COMMANDS = {"infer": INFER, "step": STEP, "update": UPDATE}
REPLY_LATER = 0x200
BAD_LABEL = 1
HEAD_BYTES = 8
REPLY_TIMEOUT_SECONDS = 600.0
QUIT_SECONDS = 1.0
MALFORMED = "gave a malformed answer"

Request = tuple[int, bytes]
Reply = tuple[int, bytes]
"""A command and its payload, a status and its content."""


class Exchange:
    """Requests that were sent. `calls` of them are the caller's own, and if tensors are `wanted`, they come last."""

    def __init__(self, requests: int, calls: int, wanted: Wanted, window: Window | None) -> None:
        self.requests = requests
        self.wanted = wanted
        self.window = window
        self.replies: list[Reply] | None = None
        self.made = Packed(wanted.layout, np.empty(0, np.uint8))
        end = requests - bool(wanted.indices)
        self._own = slice(end - calls, end)

    @property
    def answers(self) -> list[Reply]:
        """To the calls."""
        assert self.replies is not None
        return self.replies[self._own]


class _Failures:
    """What ends the program while it is talked to. An object, not a generator: it is entered for every share."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def __enter__(self) -> None:
        if self._conversation.failed is not None:
            raise self._conversation.failed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, TransportError):
            raise self._conversation.failure(str(error)) from error
        if error is not None:
            # Half a request has no meaning to the program, and half an answer none to us.
            self._conversation.transport.kill()
            ended = f"{self._conversation.name} was ended: a call was interrupted"
            self._conversation.failed = DeviceError(ended, stage="run")


class Conversation:
    """A running program, which has a table. What ends it is what every request after that is told.

    A workspace, if given, goes with it, and is kept when the program fails. One thread at a time: whoever has it sees
    to that.
    """

    def __init__(
        self,
        table: Table,
        transport: Transport,
        *,
        name: str = "the program",
        workspace: Workspace | None = None,
        timeout_seconds: float = REPLY_TIMEOUT_SECONDS,
    ) -> None:
        self.table = table
        self.transport = transport
        self.timeout_seconds = timeout_seconds
        self.is_closed = False
        self.name = name
        self._workspace = workspace
        self.failed: DeviceError | None = None
        self._failures = _Failures(self)
        self._under_way: deque[Exchange] = deque()
        self._deadline = 0.0  # of what was begun first

    # ---- exchanges

    def begin(self, calls: Sequence[Request], writes: Mapping[str, Array], reads: Sequence[str]) -> Exchange:
        """Sends what writes tensors, the calls, and what reads tensors."""
        wanted = self.table.wanted(tuple(reads))
        window = self._window(max(wanted.size, total_bytes(writes)))
        requests = [*self._puts(window, writes), *calls]
        if wanted.indices:
            requests.append((GET, wanted.indices) if window is None else window.request(GET, wanted.indices))
        made = Exchange(len(requests), len(calls), wanted, window)
        with self._failures:
            if not self._under_way:
                self._deadline = time.monotonic() + self.timeout_seconds
            self.transport.send(_framed(requests), self._deadline)
            if window is not None:
                window.is_taken = True
            self._under_way.append(made)
        return made

    def finish(self, exchange: Exchange) -> tuple[list[Reply], Packed]:
        """The answers to the calls, and the tensors. Those to whatever was asked before are taken first, and kept."""
        while exchange.replies is None:
            with self._failures:
                self._take(self._under_way[0], self._deadline)
                self._under_way.popleft()
                self._deadline = time.monotonic() + self.timeout_seconds
        return exchange.answers, exchange.made

    def calls(self, requests: Sequence[Request]) -> list[Reply]:
        """Requests in a row, as one exchange."""
        return self.finish(self.begin(requests, {}, ()))[0]

    @property
    def waits_on(self) -> int | None:
        """A descriptor that can be read when there is an answer; None where one is here."""
        return self.transport.waits_on

    @property
    def is_lost(self) -> bool:
        """Whether no answer will come."""
        return self.failed is not None or self.transport.has_ended or time.monotonic() >= self._deadline

    def _take(self, exchange: Exchange, deadline: float) -> None:
        receive = self.transport.receive
        replies = []
        wanted, window = exchange.wanted, exchange.window
        for i in range(exchange.requests):
            status, size = struct.unpack("<II", receive(HEAD_BYTES, deadline))
            is_content = wanted.indices and i == exchange.requests - 1
            if is_content and size != (wanted.size if window is None else 0):
                raise TransportError(MALFORMED)
            replies.append((status, receive(size, deadline) if size else b""))
        if wanted.indices:
            content = np.frombuffer(replies[-1][1], np.uint8) if window is None else window.memory[: wanted.size]
            exchange.made = Packed(wanted.layout, content)
        if window is not None:
            window.is_taken = False
            if self._window(0) is None:  # the next exchange needs one
                exchange.made = Packed(wanted.layout, exchange.made.whole.copy())
        exchange.replies = replies

    def _window(self, size_bytes: int) -> Window | None:
        """One that nobody looks at any more, and that is large enough."""
        windows = self.transport.windows
        return next((each for each in windows if each.size_bytes >= size_bytes and each.is_free), None)

    def _puts(self, window: Window | None, writes: Mapping[str, Array]) -> list[Request]:
        if not writes:
            return []
        indices = [self.table.indices[name] for name in writes]
        if window is None:
            values = zip(indices, writes.values(), strict=True)
            return [(PUT, struct.pack("<I", index) + value.tobytes()) for index, value in values]
        window.fill((writes.whole,) if isinstance(writes, Packed) else writes.values())
        return [window.request(PUT, struct.pack(f"<{len(indices)}I", *indices))]

    # ---- the end

    def close(self, is_alone: bool = True) -> None:
        """Ends the program: at once, unless we are alone with it. Closing twice is no error."""
        if self.is_closed:
            return
        self.is_closed = True
        if not is_alone:
            self.transport.kill()
        elif self.failed is None:
            with contextlib.suppress(TransportError):
                self.transport.send(_framed([(QUIT, b"")]), time.monotonic() + QUIT_SECONDS)
        self.transport.close()
        if self._workspace is not None:
            self._workspace.close()

    def failure(self, what: str) -> DeviceError:
        """Ends the program, keeps its folder, and says what is known."""
        if self.is_closed:
            self.failed = DeviceError(f"{self.name} is not running: its session is closed", stage="run")
            return self.failed
        status = self.transport.kill()
        ended = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        message = f"{self.name} {what} ({ended})"
        command, said = " ".join(self.transport.command), self.transport.last_words()
        ran = command + "".join(f"\n    {line}" for line in said.splitlines())
        if self._workspace is not None:
            self._workspace.keep(f"{message}\n{ran}")
        self.failed = DeviceError(message, stage="run", got=ran, hint=f"the folder is '{self.transport.folder}'")
        return self.failed


def _framed(requests: Sequence[Request]) -> bytes:
    """All of them; the program answers when it has done the last."""
    later = [REPLY_LATER] * (len(requests) - 1) + [0]
    return b"".join(
        [
            part
            for (command, payload), wait in zip(requests, later, strict=False)
            for part in (struct.pack("<II", command | wait, len(payload)), payload)
        ]
    )
