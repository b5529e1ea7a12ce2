"""Schemas and quality rules of a store, for a process that makes tables and is no hub node."""

from __future__ import annotations

from typing import Final

import msgspec

from weft.protocols.shard.shard_state import StreamKey
from weft.storage.cluster_log.follower import ClusterLogFollower
from weft.storage.cluster_log.log import ClusterLog
from weft.storage.object_store import ObjectStore
from weft.storage.table.quality.declared import DeclaredQuality
from weft.storage.table.schemas import Schemas

TABLE: Final = "table"
"""Kind of the facts about tables of streams."""


class _Latest(msgspec.Struct):
    instead: bool = False


class _TablesOfStream(msgspec.Struct):
    latest: _Latest | None = None
    sort: tuple[str, ...] = ()


_UNDECLARED = _TablesOfStream()


class FollowedDeclarations:
    """The declarations of a store that rows are made by. Of the cluster log, nothing else is followed."""

    def __init__(self, store: ObjectStore, cluster_id: bytes) -> None:
        self.schemas, self.quality = Schemas(), DeclaredQuality()
        self._tables: dict[str, _TablesOfStream] = {}
        self._follower = ClusterLogFollower(ClusterLog(store, cluster_id), self._changed)

    async def start(self) -> None:
        """Read the cluster log, and follow it. Raises as ``ClusterLogFollower.start``."""
        await self._follower.start()
        self._changed()

    async def close(self) -> None:
        """Stop following."""
        await self._follower.close()

    def is_instead(self, key: StreamKey) -> bool:
        """Return whether a stream's latest table stands instead of a table of all rows."""
        latest = self._of(key).latest
        return latest is not None and latest.instead

    def sort_of(self, key: StreamKey) -> tuple[str, ...]:
        """Return the columns by which the rows of a stream's files are sorted first."""
        return self._of(key).sort

    def _of(self, key: StreamKey) -> _TablesOfStream:
        return self._tables.get("/".join(key), _UNDECLARED)

    def _changed(self) -> None:
        self.schemas.refresh(self._follower.state)
        self.quality.refresh(self._follower.state)
        facts = self._follower.state.facts(TABLE)
        self._tables = {name: _read(fact.document) for name, fact in facts.items()}


def _read(document: bytes) -> _TablesOfStream:
    try:
        return msgspec.json.decode(document, type=_TablesOfStream)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _UNDECLARED
