"""Contract of the log that ingest appends to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from weft.edge_node.ingest.back_pressure import PendingLog
from weft.protocols.batch import HeaderPairs


class Log(PendingLog, Protocol):
    """Part of the segment log that ingest needs. Every call belongs to the event loop's thread."""

    def append(  # noqa: PLR0917
        self,
        stream: int,
        time: int,
        keys: list[bytes],
        payloads: list[bytes],
        headers: dict[int, HeaderPairs] | None = None,
        flags: dict[int, int] | None = None,
        payload_bytes: int | None = None,
        origin: int = 0,
    ) -> int:
        """Take a run of records, which is not durable yet; it may keep the lists.

        Raises:
            LogFull, LogFailed: nothing of the run was taken.
        """
        ...

    def listen(self, callback: Callable[[], None]) -> object:
        """Call back after each commit and its callbacks."""
        ...

    def next_seq(self, stream: int) -> int:
        """Return the number that the next record will get."""
        ...

    def together(self, reserve_bytes: int) -> AbstractContextManager[None]:
        """Return a context in which all appends go into one commit."""
        ...

    def appended_together(self) -> object | None:
        """Return the appends of that context so far; None outside of it."""
        ...

    def ask_room(
        self, runs: Iterable[tuple[int, list[bytes], list[bytes], dict[int, HeaderPairs] | None]], time: int
    ) -> None:
        """Make sure, within that context, that full streams take the runs. Raises LogFull: append none of them."""
