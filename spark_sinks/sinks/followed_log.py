"""The hub's log of the positions that a sink's target stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError, SinkError
from spark_sinks.source.history import History, KeptPosition, WentBack, Witness
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.stream_log import open_hub
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore

LOGS_OPEN_MAX = 8
"""Maximum number of logs that a process remembers between batches."""


@dataclass(frozen=True)
class FollowedLog:
    """One stream of one hub's store."""

    options: ReadOptions

    @property
    def shards(self) -> int:
        """Return the number of the hub's shards by now. Raises as ``check``."""
        return _read(self.options)[1].tree.count

    @property
    def source(self) -> str:
        """Return cluster, tenant and stream as one text. Raises as ``check``."""
        return _opened(self.options).source

    def check(self, positions: Mapping[int, KeptPosition]) -> None:
        """Compare positions, by shard, with the log.

        Raises:
            WentBack: the positions were not taken from this log.
            SinkError: the store does not answer, or holds no hub.
        """
        history = _opened(self.options).history
        try:
            run(history.check({(self.options.stream, shard): kept for shard, kept in positions.items()}))
        except WentBack:
            raise
        except ReadError as error:
            raise SinkError(str(error)) from None

    def witnesses(self, ends: Mapping[int, int]) -> dict[int, Witness]:
        """Return the witnesses to store beside positions, by shard; none for chunks that the hub has deleted. Raises as
        ``check``."""
        history = _opened(self.options).history
        try:
            found = run(history.witnesses({(self.options.stream, shard): end for shard, end in ends.items()}))
        except ReadError as error:
            raise SinkError(str(error)) from None
        return {shard: witness for (_, shard), witness in found.items()}


class _Opened(NamedTuple):
    source: str
    history: History


@lru_cache(LOGS_OPEN_MAX)
def _opened(options: ReadOptions) -> _Opened:
    store, cluster = _read(options)
    source = f"{cluster.cluster_id.hex()}/{options.tenant}/{options.stream}"
    return _Opened(source, History.of(store, cluster, options.tenant))


def _read(options: ReadOptions) -> tuple[ObjectStore, Cluster]:
    try:
        return run(open_hub(options))
    except ReadError as error:
        raise SinkError(str(error)) from None
