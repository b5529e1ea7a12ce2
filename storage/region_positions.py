"""The position up to which another region has a shard's log, and the last report of its link: one object for each.

The process that owns the shard writes it. The collector of the log reads it, and so does every process that is asked
about regions.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from weft.storage import hub_keys
from weft.storage.cluster import Cluster
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed

LOST_MAX = 64
"""Maximum number of runs of lost chunks that are kept; the first ones are joined."""
_Count = Annotated[int, Meta(ge=0)]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a link as its process last wrote it, for people."""

    at: int
    """Time of the report, nanoseconds since 1970."""
    state: str
    error: str = ""
    """Last error, with advice; empty while none lasts."""
    error_at: int | None = None
    lag_records: int | None = None
    """Records that the region is not known to have; None while it is unknown, before the link has caught up once."""
    lag_bytes: int | None = None
    """Approximate bytes of these records as they are stored; None likewise."""
    lag_seconds: float = 0.0
    """Age of the oldest chunk with such records."""
    host: str = ""
    """Name of the process."""


class RegionPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The position of one region in the log of one shard."""

    next: _Count
    """The region has all that the chunks below this number have to be relayed, but for ``lost``."""
    peer: str = ""
    """Cluster id of the region, 32 hexadecimal digits; empty before the first connection."""
    restored: int = 0
    """``Cluster.restored`` of the log's own store: the position means nothing in another history."""
    comparison: int = 0
    """Number of the comparison to which the position belongs (``RegionDocument.comparison``)."""
    records: int | None = None
    """Number of records below ``next`` in the streams that are relayed; None while it is unknown."""
    lost: tuple[tuple[int, int], ...] = ()
    """Chunks that were collected before the region had their records: [first, end), ascending."""
    report: Report | None = None


def with_lost(lost: tuple[tuple[int, int], ...], first: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return runs of lost chunks with a further one, which joins the last one unless it is behind it, at most
    ``LOST_MAX``."""
    if lost and lost[-1][1] >= first:
        return (*lost[:-1], (min(lost[-1][0], first), max(lost[-1][1], end)))
    more = (*lost, (first, end))
    return more if len(more) <= LOST_MAX else ((more[0][0], more[1][1]), *more[2:])


class RegionPositions:
    """The positions in one store. Every method may raise ``StoreError``."""

    def __init__(self, store: ObjectStore, cluster: Cluster) -> None:
        self._store, self._restored = store, cluster.restored

    async def read(self, name: str, shard: int) -> tuple[RegionPosition | None, str | None]:
        """Return a region's position with the object's etag. No position if there is none, or it is of a history that
        the store was restored from: the region then has what it says it holds."""
        try:
            found = await self._store.get(hub_keys.region_key(name, shard))
        except NotFound:
            return None, None
        try:
            position = msgspec.json.decode(found.data, type=RegionPosition)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None, found.etag  # it is replaced: starting at the log's beginning only costs time
        return (position if position.restored == self._restored else None), found.etag

    async def write(self, name: str, shard: int, position: RegionPosition, etag: str | None) -> str | None:
        """Store a position in place of the one with ``etag``. Return the new etag; None if another process was
        first."""
        key = hub_keys.region_key(name, shard)
        data = msgspec.json.encode(msgspec.structs.replace(position, restored=self._restored))
        try:
            if etag is None:
                return await self._store.create(key, data)
            return await self._store.swap(key, data, etag)
        except (AlreadyExists, PreconditionFailed, NotFound):
            return None
