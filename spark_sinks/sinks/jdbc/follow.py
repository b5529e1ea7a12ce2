"""The hub's log behind the positions of a query in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError, SinkError
from spark_sinks.source.history import History, Kept, WentBack, Witness
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.stream_log import open_hub

LOGS_OPEN_MAX = 8
"""Maximum number of logs that a process remembers between batches."""


@dataclass(frozen=True)
class FollowedLog:
    """One stream of one hub's store."""

    options: ReadOptions

    @property
    def source(self) -> str:
        """Return cluster, tenant and stream as one text. Raises as ``check``."""
        return _opened(self.options)[0]

    def check(self, positions: Mapping[int, Kept]) -> None:
        """Compare positions, by shard, with the log.

        Raises:
            SinkError: the log is not the one that they were taken from, or the store does not answer.
        """
        history = _opened(self.options)[1]
        try:
            run(history.check({(self.options.stream, shard): kept for shard, kept in positions.items()}))
        except WentBack as error:
            raise SinkError(
                f"the table has rows up to {error}: the hub's store was restored to an earlier state, and gives these "
                "offsets to other records. Rename the table and move the query's checkpoint away; the query makes both "
                "again from the log. Rows of lost records stay in the renamed table"
            ) from None
        except ReadError as error:
            raise SinkError(str(error)) from None

    def witnesses(self, ends: Mapping[int, int]) -> dict[int, Witness]:
        """Return what to keep beside positions, by shard; none for chunks that the hub has deleted. Raises as
        ``check``."""
        history = _opened(self.options)[1]
        try:
            found = run(history.witnesses({(self.options.stream, shard): end for shard, end in ends.items()}))
        except ReadError as error:
            raise SinkError(str(error)) from None
        return {shard: witness for (_, shard), witness in found.items()}


@lru_cache(LOGS_OPEN_MAX)
def _opened(options: ReadOptions) -> tuple[str, History]:
    try:
        store, cluster = run(open_hub(options))
    except ReadError as error:
        raise SinkError(str(error)) from None
    source = f"{cluster.cluster_id.hex()}/{options.tenant}/{options.stream}"
    return source, History(store, cluster, options.tenant)
