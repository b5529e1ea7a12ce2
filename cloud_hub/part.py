"""A part of a hub process: the hub starts, shows and ends it without knowing what it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from weft.config.metrics.exposition import AnySample


class Part:
    """Base of the parts; each overrides the members that it needs. Belongs to the event loop's thread."""

    def start(self) -> Awaitable[None] | None:
        """Begin to work."""
        return None

    def close(self) -> Awaitable[None] | None:
        """End, also if the start failed or never was. Parts that were started later have ended by then."""
        return None

    async def refresh(self) -> None:
        """Gather again what ``samples`` yields, if that is old and takes more than a look at counters."""

    def samples(self) -> Iterable[AnySample]:
        """Yield the values of the part's metrics."""
        return ()

    def views(self) -> Mapping[str, Any]:
        """Return the members of ``StatusAnswer`` that are about the part."""
        return {}


def _nothing() -> None:
    """Do nothing."""


class Step(Part):
    """A part of which the hub only has the start, or the end."""

    def __init__(
        self,
        start: Callable[[], Awaitable[None] | None] = _nothing,
        close: Callable[[], Awaitable[None] | None] = _nothing,
    ) -> None:
        self._start, self._close = start, close

    def start(self) -> Awaitable[None] | None:
        """Make the step."""
        return self._start()

    def close(self) -> Awaitable[None] | None:
        """Undo it."""
        return self._close()
