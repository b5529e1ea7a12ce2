"""Rows of traced messages among those that become a table's: their header ``weft.trace`` names the edge's span."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from weft.protocols.message_headers import TRACE

TRACED_MAX = 256
"""Maximum number of traced rows of one file; spans of further ones are left out, so that no edge uses up the rest."""
_US_NS = 1000


class TracedRow(NamedTuple):
    """A row of a traced message, or several with the same span. Times are nanoseconds since 1970."""

    trace: str
    """The edge's span, in the form of ``traceparent``."""
    rows: int
    edge: str
    log: str
    seq: int
    shard: int
    offset: int
    received: int
    """Time at which the hub received its batch."""
    chunk: int = 0
    created: int = 0
    """Time at which that chunk was made."""


OnTraced = Callable[[tuple[str, str], int, Sequence[TracedRow]], None]
"""Receiver of (tenant, stream), the table's version, and its traced rows, once they are durable."""


def traced_rows(batch: pa.RecordBatch, room: int) -> Iterator[TracedRow]:
    """Yield the traced rows of a batch in their order, without their chunks; the first of several with one span.

    A batch without a traced row costs one pass over its headers in C, and none if no row has headers.

    Args:
        room: maximum number.
    """
    headers = batch.column("_headers")
    if headers.null_count == len(headers):
        return
    traces = pc.map_lookup(headers, pa.scalar(TRACE), "first")
    if traces.null_count == len(traces):
        return
    firsts: dict[str, tuple[int, int]] = {}
    for index in pc.indices_nonzero(traces.is_valid()).to_pylist():
        trace = traces[index].as_py()
        first, count = firsts.get(trace, (index, 0))
        if count or len(firsts) < room:
            firsts[trace] = first, count + 1
    for trace, (index, count) in firsts.items():
        row = {name: batch.column(name)[index] for name in ("_edge", "_log", "_seq", "_shard", "_offset", "_received")}
        received = row.pop("_received").value * _US_NS
        edge, log, seq, shard, offset = (value.as_py() for value in row.values())
        yield TracedRow(trace, count, edge, log, seq, shard, offset, received)
