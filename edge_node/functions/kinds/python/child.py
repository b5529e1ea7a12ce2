"""The process of a user's code, on the node's side: start, requests, end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

import msgspec

from weft.edge_node.functions.kinds.python.fair_time import waited_s
from weft.edge_node.functions.kinds.python.snapshots import MARK
from weft.edge_node.functions.kinds.python.wire import (
    EXIT_NO_MEMORY,
    FRAME_BYTES_MAX,
    LENGTH,
    Answer,
    Ask,
    Begin,
    Broken,
    FromProcess,
    Put,
    Ready,
    framed,
)

WORKER = "weft.edge_node.functions.kinds.python.worker"
PASSED_ON = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ")
"""Variables of the node's environment that the process gets. Others may hold secrets."""
SET = {
    # Otherwise numeric libraries start a thread for each processor, each with memory of its own.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # From version 1.29 on, onnxruntime sends telemetry to its maker, unless this is set before it is imported.
    "ORT_DISABLE_TELEMETRY": "1",
}
"""Further variables of the process."""
PRINTED_BYTES = 64 << 10
PRINT_PAUSE_S = 0.05
"""Pause after reading what the code printed. A pipe holds 64 KiB: code that prints without end blocks, not the node."""
PRINTED_SHOWN = 300
STARVED_FACTOR = 10
"""Maximum factor by which a limit grows while the process waits for a processor."""
GRACE_S = 0.25
"""Time over the limit of a call in which the process may end the call itself."""
_REAP_PAUSE_S = 0.005
_REAP_TRIES = 400


class ChildEnded(Exception):
    """The process has ended, or was ended because it took too long. The text has the reason."""

    def __init__(self, why: str, *, is_by_limit: bool) -> None:
        super().__init__(why)
        self.is_by_limit = is_by_limit
        """True where a limit ended it; another end may have an external cause, such as a signal of the kernel."""


class LoadFailed(Exception):
    """The user's code cannot be loaded. The text has the reason."""


class Child:
    """One process, from its start to its end. One request at a time."""

    def __init__(self, begin: Begin, folder: str) -> None:
        self._begin = begin
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromProcess)
        self._why = ""
        self._is_by_limit = False
        self._printed = b""
        self.answers = 0
        """Number of answered requests."""
        # Not asyncio's: uvloop copies the node's page tables with fork, and Popen does not (vfork).
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-X", "utf8", "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ} | SET | {MARK: folder},
            start_new_session=True,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._transports: list[asyncio.BaseTransport] = []

    @classmethod
    async def start(cls, begin: Begin, folder: str, timeout_s: float) -> Child:
        """Return a process that has loaded its code.

        Raises:
            LoadFailed: it cannot be loaded.
            OSError: the system cannot start a process.
        """
        child = cls(begin, folder)
        try:
            await child._connect()
            answer = await child._asked(framed(begin, child._encoder), timeout_s, timeout_s)
        except ChildEnded as error:
            raise LoadFailed(f"{begin.shown_as}: while it was loaded, {error}") from None
        except BaseException:
            child.kill()
            raise
        if isinstance(answer, Broken):
            await child.end()
            raise LoadFailed(answer.reason)
        return child

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._answers = asyncio.StreamReader(limit=1 << 20)
        printed = asyncio.StreamReader(limit=PRINTED_BYTES)
        for reader, pipe in ((self._answers, process.stdout), (printed, process.stderr)):
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await loop.connect_read_pipe(lambda protocol=protocol: protocol, pipe)  # type: ignore[misc]
            self._transports.append(transport)
        writing, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
        self._transports.append(writing)
        self._writer = asyncio.StreamWriter(writing, flow, None, loop)
        self._tasks.append(asyncio.create_task(self._collect(printed)))

    async def _collect(self, printed: asyncio.StreamReader) -> None:
        while part := await printed.read(PRINTED_BYTES):
            self._printed = (self._printed + part)[-2 * PRINTED_SHOWN :]
            await asyncio.sleep(PRINT_PAUSE_S)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    async def put(self, state: dict[str, Any]) -> None:
        """Replace the state of the process.

        Raises:
            ChildEnded: the process has ended.
        """
        await self._send(framed(Put(state), self._encoder))

    async def ask(self, records: list[msgspec.Raw], timeout_s: float) -> Answer:
        """Return the results of some records.

        Args:
            timeout_s: limit of one call. The process ends a call that takes longer, and answers before many calls add
                up to a quarter of it; so a process that is silent beyond that is ended.

        Raises:
            ChildEnded: the process has ended.
        """
        limit_s = timeout_s * 1.25 + GRACE_S
        answer = await self._asked(framed(Ask(records), self._encoder), limit_s, timeout_s)
        if not isinstance(answer, Answer) or len(answer.results) > len(records):
            await self._stop("sent what is no answer")
            raise self._ended()
        if not answer.results and not answer.failed:
            await self._stop("sent an empty answer")
            raise self._ended()
        self.answers += 1
        return answer

    async def _send(self, frame: bytes) -> None:
        try:
            self._writer.write(frame)
            await self._writer.drain()
        except (OSError, RuntimeError):
            await self._stop("")
            raise self._ended() from None

    async def _asked(self, frame: bytes, limit_s: float, call_s: float) -> Ready | Broken | Answer:
        exchange = asyncio.create_task(self._exchange(frame))
        try:
            if not await self._in_time(exchange, limit_s):
                exchange.cancel()
                await self._stop(f"took longer than {call_s:g} s")
                raise self._ended()
            return exchange.result()
        except asyncio.CancelledError:
            # The unread answer would be treated as the answer to the next request.
            exchange.cancel()
            self.kill()
            raise

    async def _in_time(self, exchange: asyncio.Task[Any], limit_s: float) -> bool:
        loop = asyncio.get_running_loop()
        began, waited = loop.time(), waited_s(str(self.pid))
        left_s = limit_s
        while True:
            await asyncio.wait({exchange}, timeout=left_s)
            if exchange.done():
                return True
            elapsed_s = loop.time() - began
            starved_s = max(waited_s(str(self.pid)) - waited, 0.0)
            left_s = limit_s - (elapsed_s - starved_s)
            if left_s <= 0.01 or elapsed_s > STARVED_FACTOR * limit_s:
                return False

    async def _exchange(self, frame: bytes) -> Ready | Broken | Answer:
        await self._send(frame)
        try:
            (length,) = LENGTH.unpack(await self._answers.readexactly(LENGTH.size))
            if length > FRAME_BYTES_MAX:
                raise msgspec.DecodeError(f"{length:,} bytes")
            answer: Ready | Broken | Answer = self._decoder.decode(await self._answers.readexactly(length))
            return answer
        except (asyncio.IncompleteReadError, OSError):
            await self._stop("")
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            await self._stop(f"sent what is no answer ({error})")
        raise self._ended()

    def _ended(self) -> ChildEnded:
        return ChildEnded(self._why, is_by_limit=self._is_by_limit)

    async def _stop(self, why: str) -> None:
        """End the process, and note why."""
        if not why:
            # Its pipe is closed: it is about to end, with a status that explains more than a signal of the node would.
            await self._reap()
        self.kill()
        status = await self._reap()
        self._is_by_limit = bool(why) or status == EXIT_NO_MEMORY
        self._why = self._why or why or _meaning(status, self._begin.memory_bytes) + self._said()
        await self.end()

    def _said(self) -> str:
        lines = self._printed.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; its last words: {last[:PRINTED_SHOWN]}" if last else ""

    def kill(self) -> None:
        """End the process and those that it started, at once. Idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _reap(self) -> int | None:
        """Return the exit status; None when the process has not ended in time. The wait polls: a wait in a thread would
        delay the node's end when the kernel cannot end the process."""
        for _ in range(_REAP_TRIES):
            if (status := self._process.poll()) is not None:
                return status
            await asyncio.sleep(_REAP_PAUSE_S)
        return None

    async def end(self) -> None:
        """End the process and forget it."""
        self.kill()
        for task in self._tasks:
            task.cancel()
        for transport in self._transports:
            if not transport.is_closing():
                # Data that the process has not read is lost anyway, and close() would wait for it.
                transport.abort() if isinstance(transport, asyncio.WriteTransport) else transport.close()
        await self._reap()


def _meaning(status: int | None, memory_bytes: int) -> str:
    if status == EXIT_NO_MEMORY:
        return f"needed more memory than {memory_bytes >> 20} MiB"
    if status is None:
        return "closed its pipe"
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = str(-status)
        return f"its process was ended by {name}"
    return f"ended its process with status {status}"
