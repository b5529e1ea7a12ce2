"""Ready messages of one queue that are in memory, and the reading of more from the log."""

from __future__ import annotations

import asyncio

from weft.edge_node.subscriptions.log_records import LogRecord

LOADED_ENTRY_BYTES = 512
"""Memory that a message takes beside its payload, about."""


class LoadedMessages:
    """The next messages of a queue, as far as memory allows."""

    __slots__ = ("_gone", "_page", "_waits", "bytes", "messages")

    def __init__(self) -> None:
        self.messages: dict[int, LogRecord] = {}
        """Number -> message. Changed by the methods alone."""
        self.bytes = 0
        self._gone: dict[int, None] = {}
        self._page: asyncio.Task[None] | None = None
        self._waits = False

    def keep(self, message: LogRecord) -> None:
        """Keep a message in memory."""
        if message.seq not in self.messages:
            self.messages[message.seq] = message
            self.bytes += len(message.payload) + LOADED_ENTRY_BYTES

    def drop(self, seq: int) -> LogRecord | None:
        """Remove a message and return it."""
        message = self.messages.pop(seq, None)
        if message is not None:
            self.bytes -= len(message.payload) + LOADED_ENTRY_BYTES
        return message

    def clear(self) -> None:
        """Remove all."""
        self.messages.clear()
        self.bytes = 0

    # --- messages that the log has deleted

    def is_gone(self, seq: int) -> bool:
        """Return whether the log has deleted a ready message."""
        return seq in self._gone

    def gone(self, seq: int) -> None:
        """Note that the log has deleted a ready message."""
        self._gone[seq] = None

    def passed(self, seq: int) -> None:
        """Forget that a message is gone: it has left the queue."""
        del self._gone[seq]

    def forget_gone(self) -> None:
        """Forget all messages that are gone."""
        self._gone.clear()

    # --- reading

    @property
    def is_reading(self) -> bool:
        """Return whether a page is being read from the log."""
        return self._page is not None

    @property
    def may_read(self) -> bool:
        """Return whether the next page may be read: no read is under way, and none has to wait."""
        return self._page is None and not self._waits

    def read(self, page: asyncio.Task[None]) -> None:
        """Note that the read of a page began."""
        self._page = page

    def was_read(self) -> None:
        """Note that the read ended, with a page or an error."""
        self._page = None

    def wait(self) -> None:
        """Read nothing until ``go_on``: the next message is not durable, or the log cannot be read."""
        self._waits = True

    def go_on(self) -> None:
        """Allow reads again."""
        self._waits = False
