"""``weft_streams`` and ``weft_gaps``: the contents of a log, as tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from weft.edge_node.inspect.query.tables import GAPS, GAPS_TABLE, STREAMS, STREAMS_TABLE, insert
from weft.edge_node.inspect.query.times import time_text
from weft.edge_node.inspect.view import StreamSummary
from weft.edge_node.streams import STATE_STREAMS
from weft.storage.segment_log.state.gaps import reason_name


def fill(
    connection: sqlite3.Connection, patterns: Mapping[str, Sequence[str]], found: Mapping[str, StreamSummary]
) -> None:
    """Fill both tables.

    Args:
        patterns: the existing streams, with their topic patterns.
        found: the log's contents.
    """
    for name in [*patterns, *(found.keys() - patterns.keys() - STATE_STREAMS)]:
        stream, topics = found.get(name, StreamSummary(0)), patterns.get(name, ())
        connection.execute(insert(STREAMS_TABLE, STREAMS), _stream(name, stream, topics)).close()
        rows = [
            (name, gap.first, gap.end, gap.end - gap.first, reason_name(gap.reason), time_text(gap.time), gap.time)
            for gap in stream.gaps
        ]
        connection.executemany(insert(GAPS_TABLE, GAPS), rows).close()


def _stream(name: str, stream: StreamSummary, topics: Sequence[str]) -> list[Any]:
    first_seq = next(iter(stream.held), (None,))[0]
    lost = sum(gap.end - gap.first for gap in stream.gaps)
    times = [None if time is None else time_text(time) for time in (stream.first_time, stream.last_time)]
    return [name, stream.held.count(), first_seq, stream.next_seq, *times, len(stream.gaps), lost, " ".join(topics)]
