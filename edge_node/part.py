"""A part of the node: the node starts, changes, shows and ends it without knowing what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.config.metrics.exposition import AnySample
from weft.config.models import EdgeConfig

Undo = Callable[[], None]
"""Return to the former configuration. It must not fail."""


def unchanged() -> None:
    """Do nothing: the undo of a part that has changed nothing."""


class Part:
    """Base of the parts; each overrides the members that it needs. Belongs to the event loop's thread."""

    name: str
    counters: Any = None
    """Totals since the start: a dataclass, each field of which is a metric of its name. None for a part without."""

    def start(self) -> None:
        """Begin to work."""

    async def close(self) -> None:
        """End. Parts that were created later have ended by then."""

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:  # noqa: ARG002
        """Apply another configuration at once, without waiting for anything; or raise, and change nothing."""
        return unchanged

    def permissions_changed(self) -> None:
        """Check permissions again: users or access rules were read again."""

    def facts(self) -> Mapping[str, Any]:
        """Return the sections of the node's status that are about the part, as plain values."""
        return {}

    def samples(self) -> Iterable[AnySample]:
        """Yield the values of the part's metrics, except those of its counters."""
        return ()


class Shown(Part):
    """A part that others start and end, with its facts for the status."""

    def __init__(
        self, name: str, *, counters: Any = None, facts: Callable[[], Mapping[str, Any]] = dict[str, Any]
    ) -> None:
        self.name = name
        self.counters = counters
        self._facts = facts

    def facts(self) -> Mapping[str, Any]:
        """Return its sections of the status."""
        return self._facts()
