"""Contract of functions that process messages before they are in the log (``raw: discard``)."""

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
    """Number of their origin in the log."""


class BeforeLog(Protocol):
    """Receiver of messages in place of a stream. The messages themselves are not stored for it."""

    def runs(
        self, keys: list[bytes], payloads: list[bytes], headers: dict[int, HeaderPairs], now: int
    ) -> list[StreamRecords]:
        """Return what is to be stored of some messages, the same for the same messages. Raises nothing.

        Args:
            headers: index -> headers, for messages with headers.
            now: time of the messages, ns since 1970.
        """
        ...

    def stored(self, payloads: list[bytes], runs: Sequence[StreamRecords]) -> None:
        """Count the runs made of some messages, which were appended."""
        ...
