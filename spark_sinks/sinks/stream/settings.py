"""Settings of a producer: the hub, the lanes, and their bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from spark_sinks.source.options import ReadOptions
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind

EDGE_PREFIX = "spark-"
"""Prefix of a producer's edge name, before the query's name."""
LOG_ID_BYTES = 8


@dataclass(frozen=True)
class ProducerSettings:
    """All settings of a sending task. It is pickled to executors; its text leaves out credentials."""

    urls: tuple[str, ...]
    """Nodes of one hub, ``http(s)://host:port``; tried in turn."""
    stream: str
    query: str
    store: str
    """Root of the hub's store, from which the last record of a lane is read."""
    tenant: str = "default"
    source: str = ""
    """Name of the source stream of the positions; part of the lanes' identity."""
    version: str = ""
    """Version of the query, shown in ``_origin``."""
    topics: tuple[str, ...] = ()
    payload: PayloadKind = PayloadKind.BYTES
    counts: bool = False
    """True when the sink sends marks. Otherwise its lanes do not count for the stream's completeness."""
    patience_s: float = 60.0
    """Longest time without any progress before a task fails."""
    store_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    source_log: ReadOptions | None = None
    """Source stream of the positions, to compare them with; None if it is not given."""
    token: str | None = field(default=None, repr=False)
    ca: str | None = field(default=None, repr=False)
    """Certificate authorities in PEM; None trusts the system's."""

    @property
    def edge(self) -> str:
        """Return the edge name of the producer."""
        return EDGE_PREFIX + self.query

    def lane(self, shard: int) -> Lane:
        """Return the lane of a source shard."""
        return Lane(self.tenant, self.edge, log_id(self.query, self.source, shard), self.stream)


def log_id(query: str, source: str, shard: int) -> int:
    """Return the log id of a query's lane for one source shard, the same on every machine and in every release."""
    named = "\0".join(("weft-producer", query, source, str(shard)))
    return int.from_bytes(blake2b(named.encode(), digest_size=LOG_ID_BYTES).digest(), "big")
