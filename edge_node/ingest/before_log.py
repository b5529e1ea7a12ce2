"""Contract of what works on messages before they are in the log (``raw: discard``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from weft.protocols.batch import HeaderPairs


class StreamRecords(NamedTuple):
    """Records for one stream, made of messages."""

    stream: int
    keys: list[bytes]
    payloads: list[bytes]
    headers: dict[int, HeaderPairs]
    origin: int
    """Number of what made them, in the log."""


class BeforeLog(Protocol):
    """Something that takes messages in place of a stream. The messages themselves are not stored for it."""

    def runs(
        self, keys: list[bytes], payloads: list[bytes], headers: dict[int, HeaderPairs], now: int
    ) -> list[StreamRecords]:
        """Return what is to be stored of some messages, the same for the same messages. Raises nothing.

        Args:
            headers: index -> headers, of the messages that have any.
            now: time of the messages, ns since 1970.
        """
        ...

    def stored(self, payloads: list[bytes], runs: Sequence[StreamRecords]) -> None:
        """Take note that the runs made of some messages were appended."""
        ...
