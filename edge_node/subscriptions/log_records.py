"""Messages as the log has them, read page by page for those that fell behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from weft.protocols.batch import HeaderPairs


class LogRecord(NamedTuple):
    """A message as the log has it."""

    seq: int
    """Number in its stream."""
    topic: bytes
    payload: bytes
    flags: int
    """``protocols.batch.Flag`` bits."""
    headers: HeaderPairs
    """Headers as stored. Those of the node's own (``weft.queues``) are among them: skip what you do not know."""
    time: int = 0
    """Nanoseconds since 1970."""


class Page(NamedTuple):
    """A piece of one stream."""

    records: list[LogRecord]
    next_seq: int
    """First seq of the next page. It is past unwanted records and records that the log no longer has."""
    lost: int
    """Records between the seq asked for and ``next_seq`` that the log no longer has."""


Turn = Callable[[], Awaitable[None]]
"""Returns when it is a reader's turn."""
ReadPage = Callable[[int, int, Callable[[bytes], bool], Turn], Awaitable[Page]]
"""(stream, seq, wants, turn) -> the wanted durable records from ``seq`` on, a page of them; ``wants`` is asked once for
each distinct topic. ``next_seq == seq`` only at the durable end. ``turn`` is awaited where the page had to be loaded:
thousands of readers may have waited for it. Raises OSError and LogFailed."""
