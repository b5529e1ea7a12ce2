"""Interface of the parts of a hub process, by which the hub starts, shows and closes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from weft.config.metrics.exposition import AnySample


class Part:
    """Base of the parts. Each overrides the members that it needs. Called on the event loop's thread only."""

    def start(self) -> Awaitable[None] | None:
        """Begin to work."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Stop. Called also if the start failed or was never made, after all parts that were started later."""
        return None

    async def refresh(self) -> None:
        """Update what ``samples`` yields, if it is old and costs more than reading counters."""

    def samples(self) -> Iterable[AnySample]:
        """Yield the values of the part's metrics."""
        return ()

    def views(self) -> Mapping[str, Any]:
        """Return the members of ``StatusAnswer`` that are about the part."""
        return {}


def _nothing() -> None:
    """Do nothing."""


class Step(Part):
    """A part that is only a start or a close."""

    def __init__(
        self,
        start: Callable[[], Awaitable[None] | None] = _nothing,
        close: Callable[[], Awaitable[None] | None] = _nothing,
    ) -> None:
        self._start, self._close = start, close

    def start(self) -> Awaitable[None] | None:
        """Run the start."""
        return self._start()

    def close(self) -> Awaitable[None] | None:
        """Run the close."""
        return self._close()
