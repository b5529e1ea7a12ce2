"""Declarations of edges about a stream: topic levels, topic patterns and the payload kind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from weft.protocols.chunk import LaneUpdate
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind, strictest
from weft.storage.table_maker.shards import ShardView

_logger = logging.getLogger(__name__)


class Declared:
    """A reader of the declarations in the states of the shards, which the caller refreshes."""

    def __init__(self, tenant: str, stream: str, views: Sequence[ShardView]) -> None:
        self._tenant, self._stream = tenant, stream
        self._views = views
        self._warned: set[PayloadKind] = set()

    def levels(self) -> list[str]:
        """Return the named topic levels, in the order of their first appearance in the log."""
        return [name for view in self._views for name in view.state.stream_fields(self._tenant, self._stream)]

    def payload(self) -> PayloadKind:
        """Return the payload kind that a new table would get: the strictest kind that an edge declares."""
        lanes = (view.state.stream_lanes(self._tenant, self._stream).values() for view in self._views)
        return strictest(held.payload for shard in lanes for held in shard)

    def topics(self, view: ShardView) -> Callable[[Lane], Sequence[str]]:
        """Return a look-up of topic patterns as last declared for the lane.

        Args:
            view: the shard of the records. A split may have moved the lane to another shard since.
        """

        def topics(lane: Lane) -> Sequence[str]:
            for each in (view, *self._views):
                held = each.state.lanes.get(lane)
                if held is not None:
                    return held.topics
            return ()

        return topics

    def all_topics(self) -> dict[Lane, Sequence[str]]:
        """Return the topic patterns of all lanes that have some."""
        lanes = (view.state.stream_lanes(self._tenant, self._stream).items() for view in self._views)
        return {lane: held.topics for found in lanes for lane, held in found if held.topics}

    def compare(self, lanes: Iterable[LaneUpdate], made_for: PayloadKind) -> None:
        """Warn once about each payload kind that differs from the table's.

        An edge declares its kind in the chunk that opens its session, so the lanes of the state need not be checked
        here.

        Args:
            lanes: those of a chunk's lanes of the stream that declare one.
        """
        for lane in lanes:
            if lane.payload is None:
                continue
            named = strictest([lane.payload])
            if named is not made_for and named not in self._warned:
                self._warned.add(named)
                _logger.warning(
                    "the table of %s/%s has payloads as %s and keeps them; edge %s has payload: %s. To change "
                    "the table, move it away: the hub makes it again from the log",
                    self._tenant, self._stream, made_for.label, lane.edge, named.label,
                )  # fmt: skip
