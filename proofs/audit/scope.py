"""The part of an audit that all its tasks share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.storage.cluster import Cluster


@dataclass(frozen=True)
class Scope:
    """One stream, and the state of its table when the audit began. It is sent to executors with each task."""

    cluster: Cluster
    tenant: str
    stream: str
    positions: Mapping[int, int] = field(default_factory=dict)
    """Shard -> position of the table; 0 for all shards without a table."""
    skips: Mapping[int, RangeSet] = field(default_factory=dict)
    """Shard -> offsets that an operator skipped."""
    unsummed: Mapping[int, RangeSet] = field(default_factory=dict)
    """Shard -> offsets whose payloads and times are not compared: those of ``skips`` and of declared deletions."""
    only_latest: bool = False
    """True if the table is a latest table that stands instead of the table of all rows."""
    payload: PayloadKind = PayloadKind.BYTES
    """Payload kind of the table."""
    payload_columns: tuple[str, ...] = ()
    """Columns of the table with the payloads; none if they are not compared."""

    def is_ours(self, tenant: str, stream: str) -> bool:
        """Return whether tenant and stream are those of the audit."""
        return (tenant, stream) == (self.tenant, self.stream)
