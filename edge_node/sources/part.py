"""Sources as a part of the node. Their code is loaded once a configuration has some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.config.models import EdgeConfig
from weft.edge_node.sources.status import SourceStatus

if TYPE_CHECKING:
    from weft.edge_node.sources.sources import Sources


class SourcesPart:
    """The sources of a node that may have none."""

    name = "sources"

    def __init__(self, make: Callable[[EdgeConfig], Sources]) -> None:
        """Start with no sources.

        Args:
            make: makes those of a configuration.
        """
        self._make = make
        self._sources: Sources | None = None
        self._is_started = False

    def make(self, config: EdgeConfig) -> None:
        """Make the sources of a configuration.

        Raises:
            ValueError: a source cannot work.
        """
        if config.sources:
            self._sources = self._make(config)

    def start(self) -> None:
        """Connect them."""
        self._is_started = True
        if self._sources is not None:
            self._sources.start()

    def statuses(self) -> Sequence[SourceStatus]:
        """Return the status of each source."""
        return self._sources.statuses if self._sources is not None else ()

    async def close(self) -> None:
        """Stop them."""
        if self._sources is not None:
            await self._sources.close()

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Callable[[], None]:
        """Run the sources of ``now``.

        Raises:
            ValueError: as ``Sources.adopt``; nothing has changed.
        """
        if self._sources is None:
            if not now.sources:
                return lambda: None
            self.make(now)
            if self._is_started:
                self.start()
        else:
            self._sources.adopt(now)
        return lambda: self._sources.adopt(before) if self._sources is not None else None
