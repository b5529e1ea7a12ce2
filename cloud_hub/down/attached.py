"""Links of the edges of one shard that take messages. An edge may have several; one of them gets its messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from weft.cloud_hub.down.edge_queue import EdgeQueue
from weft.protocols.lane import Lane


class Attached(Protocol):
    """The link of an edge that takes messages (``down.link_down.LinkDown``)."""

    def pump(self, queue: EdgeQueue) -> None:
        """Send what may be sent."""
        ...

    def restart(self) -> None:
        """Send everything again that waits: the copy of the log is another one, or another link had it."""
        ...


class AttachedLinks:
    """The links by their edges' lanes of messages. The last one of each gets the messages."""

    def __init__(self) -> None:
        self._of: dict[Lane, dict[Attached, None]] = {}

    def __contains__(self, lane: Lane) -> bool:
        """Return whether an edge has a link."""
        return lane in self._of

    def get(self, lane: Lane) -> Attached | None:
        """Return the link that gets an edge's messages; None without one."""
        links = self._of.get(lane)
        return None if links is None else next(reversed(links))

    def items(self) -> Iterator[tuple[Lane, Attached]]:
        """Yield the lanes, each with the link that gets the edge's messages."""
        return ((lane, next(reversed(links))) for lane, links in list(self._of.items()))

    def add(self, lane: Lane, link: Attached) -> None:
        """Add a link, the last one from now on."""
        self._of.setdefault(lane, {})[link] = None

    def remove(self, lane: Lane, link: Attached) -> Attached | None:
        """Remove a link. Return the one that gets its messages now; None if that is the same as before, or none."""
        links = self._of.get(lane, {})
        if link not in links:
            return None
        had_them = link is next(reversed(links))
        del links[link]
        if not links:
            del self._of[lane]
        return next(reversed(links)) if links and had_them else None
