"""Stored messages, read page by page for subscribers that fell behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from weft.protocols.batch import HeaderPairs


class LogRecord(NamedTuple):
    """A stored message."""

    seq: int
    """Number in its stream."""
    topic: bytes
    payload: bytes
    flags: int
    """``protocols.batch.Flag`` bits."""
    headers: HeaderPairs
    """Headers as stored. They include the node's own (``weft.queues``): skip unknown ones."""
    time: int = 0
    """Nanoseconds since 1970."""


class Page(NamedTuple):
    """A piece of one stream."""

    records: list[LogRecord]
    next_seq: int
    """First seq of the next page. It is past unwanted records and records that the log no longer has."""
    lost: int
    """Number of deleted records between the requested seq and ``next_seq``."""


Turn = Callable[[], Awaitable[None]]
"""Returns at a reader's turn."""
ReadPage = Callable[[int, int, Callable[[bytes], bool], Turn], Awaitable[Page]]
"""(stream, seq, wants, turn) -> the wanted durable records from ``seq`` on, a page of them; ``wants`` is called once
for each distinct topic. ``next_seq == seq`` only at the durable end. ``turn`` is awaited after a page was loaded:
thousands of readers may have waited for it. Raises OSError and LogFailed."""
