"""Settings of a producer: the hub, the lanes, and their bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from spark_sinks.source.options import ReadOptions
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.spread import edge_of_query, place_of, places_of

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
    spread: int = 1
    """Number of edges over which the lanes are spread, one of ``SPREADS``."""
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
        """Return the first edge of the query, after which it is called in messages."""
        return self.edge_at(0)

    def edge_at(self, place: int) -> str:
        """Return one of the query's edges."""
        return edge_of_query(self.tenant, self.query, place)

    def edge_of(self, shard: int) -> str:
        """Return the edge that has the lane of a source shard under this spread."""
        return self.edge_at(place_of(shard, self.spread))

    def lane(self, shard: int) -> Lane:
        """Return the first lane of a source shard. A query that was never spread has no other, and releases without
        spreads know no other."""
        return Lane(self.tenant, self.edge, log_id(self.query, self.source, shard), self.stream)

    def spread_lane(self, shard: int) -> Lane:
        """Return the lane of a source shard under this spread, once the first lane is sealed."""
        return self._lane_at(place_of(shard, self.spread), shard)

    def lanes_of_other_spreads(self, shard: int) -> list[Lane]:
        """Return the lanes that a source shard has under all other spreads."""
        own = place_of(shard, self.spread)
        return [self._lane_at(place, shard) for place in places_of(shard) if place != own]

    def _lane_at(self, place: int, shard: int) -> Lane:
        log = log_id(self.query, self.source, shard, place)
        return Lane(self.tenant, self.edge_at(place), log, self.stream)


def log_id(query: str, source: str, shard: int, place: int | None = None) -> int:
    """Return the log id of a query's lane for one source shard, the same on every machine and in every release.

    Args:
        place: number of the edge; None for the first lane of the shard. One log under two edges would pass for a copy.
    """
    named = "\0".join(("weft-producer", query, source, str(shard)))
    if place is not None:
        named += f"\0{place}"
    return int.from_bytes(blake2b(named.encode(), digest_size=LOG_ID_BYTES).digest(), "big")
