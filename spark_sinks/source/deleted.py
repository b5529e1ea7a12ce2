"""Streams that an operator of the hub deleted (``weft hub stream delete``)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from spark_sinks.errors import ReadError
from weft.protocols.shard.forgotten import Forgotten
from weft.protocols.shard.shard_state import ShardState, StreamKey


class Deletions:
    """The deletions of one stream, as a reader of its log sees them.

    Args:
        stream: (tenant, stream).
        table: address of its table.
    """

    def __init__(self, stream: StreamKey, table: str) -> None:
        self._stream = stream
        self._table = table
        self._known: set[int] = set()

    def begin(self, states: Iterable[ShardState]) -> None:
        """Note the deletions before a read: the stream has begun again in other shards."""
        self._known = set(self._found(states))

    def check(self, states: Iterable[ShardState]) -> None:
        """Refuse a stream that was deleted since ``begin``.

        Without its lanes, the rows of its last records would lack their topic levels. The table has them.

        Args:
            states: of all shards, after the log was read on.

        Raises:
            ReadError: it is deleted.
        """
        found = self._found(states)
        if not found.keys() <= self._known:
            newest = max(found.values(), key=lambda told: told.time)
            at = datetime.fromtimestamp(newest.time // 1_000_000_000, UTC).isoformat()
            raise ReadError(
                f"stream {self._stream[1]!r} of tenant {self._stream[0]!r} was deleted at {at}: {newest.reason}. Its "
                f"table stays, at {self._table}: read that as any Delta table. When an edge sends to the stream again, "
                "a query goes on from its checkpoint"
            )
        self._known &= found.keys()

    def _found(self, states: Iterable[ShardState]) -> dict[int, Forgotten]:
        return {state.shard: told for state in states if (told := state.forgotten.get(self._stream)) is not None}
