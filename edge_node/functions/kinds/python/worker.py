"""Program of the process that runs a user's code: ``python -I -m weft.edge_node.functions.kinds.python.worker``.

It imports little, so that it starts fast: from the project, only the modules that its messages need.
"""

from __future__ import annotations

import os

import msgspec

from weft.edge_node.functions.kinds.python.calls import UserCode, reason
from weft.edge_node.functions.kinds.python.confinement import confine, limit_cpu, take_over_pipes
from weft.edge_node.functions.kinds.python.wire import (
    EXIT_NO_MEMORY,
    LENGTH,
    Asked,
    Begin,
    Broken,
    Put,
    Ready,
    ToProcess,
    framed,
)

CPU_MORE_S = 30.0
"""Processor time beyond the limit of a call after which the kernel ends the process."""


class Pipes:
    """The pipes from and to the node."""

    def __init__(self, from_node: int, to_node: int) -> None:
        self._from_node = from_node
        self._to_node = to_node
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToProcess)

    def receive(self) -> Begin | Put | Asked | None:
        """Return the next message; None when the node has closed its pipe."""
        head = self._read(LENGTH.size)
        if head is None:
            return None
        body = self._read(LENGTH.unpack(head)[0])
        return None if body is None else self._decoder.decode(body)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message."""
        rest = memoryview(framed(message, self._encoder))
        while rest:
            rest = rest[os.write(self._to_node, rest) :]

    def _read(self, count: int) -> bytearray | None:
        found = bytearray()
        while len(found) < count:
            part = os.read(self._from_node, min(count - len(found), 1 << 20))
            if not part:
                return None
            found += part
        return found


def main() -> None:
    """Load the code, and answer until the node closes the pipe."""
    pipes = Pipes(*take_over_pipes())
    begin = pipes.receive()
    if not isinstance(begin, Begin):
        return
    confine(begin.memory_bytes, begin.parent)
    limit_cpu(10 * CPU_MORE_S)  # loading a model may take a while
    try:
        code = UserCode(begin)
    except MemoryError:
        pipes.send(Broken(f"{begin.shown_as}: needs more memory than {begin.memory_bytes >> 20} MiB to load"))
        return
    except BaseException as error:
        pipes.send(Broken(reason(error, begin.shown_as, begin.file)))
        return
    pipes.send(Ready())
    while (message := pipes.receive()) is not None:
        if isinstance(message, Put):
            code.state.put(message.state)
        elif isinstance(message, Asked):
            limit_cpu(4 * begin.timeout_s + CPU_MORE_S)
            pipes.send(code.answer(message.records))


if __name__ == "__main__":
    status = 0
    try:
        main()
    except MemoryError:
        status = EXIT_NO_MEMORY
    except (OSError, msgspec.MsgspecError, KeyboardInterrupt):
        status = 1  # the pipe is gone: the node has ended, or the code has closed the pipe
    # At once: threads of the code may still run, and its exit handlers serve no purpose now.
    os._exit(status)
