"""A stream's lanes as a DataFrame: held ranges, gaps with their reasons, and the moment of completeness of each
lane."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_sinks.completeness.moment import ALL, Complete, in_datetime, lanes_at, open_gaps, waited_for
from spark_sinks.completeness.states import LanesAt
from spark_sinks.source.options import parse_options, source_options
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.segment import GapReason
from weft.protocols.shard import completeness as rule
from weft.protocols.shard.lane_state import LaneState, RetiredBy
from weft.protocols.shard.open_gaps import OpenGap, renamed

RANGE = "first: bigint, last: bigint"
COLUMNS = {
    "edge": "string",
    "log": "string",
    "shard": "int",
    "records": "bigint",
    "ranges": f"array<struct<{RANGE}>>",
    "gaps": f"array<struct<{RANGE}, reason: string>>",
    "missing": "bigint",
    "complete_until": "timestamp",
    "newest_mark": "struct<time: timestamp, seq: bigint>",
    "last_seen": "timestamp",
    "counts": "boolean",
    "held_back_by": "struct<reason: string, since: timestamp, why: string, advice: string>",
    "retired": "struct<at: timestamp, by: string, reason: string>",
    "conflict": "struct<at: timestamp, reason: string>",
    "open_gap": "struct<first: bigint, since: timestamp, until: timestamp, why: string>",
    "last_word": "struct<time: timestamp, seq: bigint>",
}
"""Columns of ``lanes``; docs/reference/spark.md explains each."""


def lanes(
    spark: SparkSession,
    stream: str,
    *,
    store: str | os.PathLike[str],
    tenant: str = "default",
    edges: str | Collection[str] = ALL,
    retired_after: str | timedelta | None = None,
    peers: bool = False,
    at: Mapping[int, int] | Mapping[str, int] | str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return one row per lane of a stream, by edge and log, as known at this moment or below offsets.

    Sequence numbers are inclusive at both ends, as in ``_from``. A lane that left the hub's state, long after its edge
    was retired, has no row.

    Args:
        edges: edges that count, as ``Complete.edges``; the others have rows, too.
        retired_after: as ``Complete.retired_after``.
        peers: as ``Complete.peers``.
        at: offsets below which to ask, as in ``complete_until``.

    Raises:
        ReadError: the store holds no hub, the hub has no such stream, or an argument is not valid.
    """
    complete = Complete(edges=edges, retired_after=retired_after, peers=peers)
    found = lanes_at(parse_options(source_options(stream, tenant, store, store_options)), at)
    return spark.createDataFrame(_rows(found, complete), ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))


def _rows(at: LanesAt, complete: Complete) -> list[tuple[Any, ...]]:
    counted, _ = waited_for(at, complete)
    ended = renamed(counted, peers=complete.peers)
    gaps = {(gap.edge, gap.log_id): gap for gap in open_gaps(at, complete) if not gap.others}
    rows = []
    for lane in sorted(at.lanes):
        held = at.lanes[lane]
        alone = rule.completeness({lane: held}, (), at.clock, peers=complete.peers)
        counts = lane in counted and held.counts and lane not in ended
        gap = gaps.get((lane.edge, lane.log_id))
        rows.append((*_row(lane, held, at.shards[lane], alone, complete, counts=counts), *_end(held, gap)))
    return rows


def _row(
    lane: Lane, held: LaneState, shard: int, alone: rule.Completeness, complete: Complete, *, counts: bool
) -> tuple[Any, ...]:
    records = held.records
    mark, retired, conflict = held.newest_mark, held.retired, held.conflict
    end = max(held.ranges.end, mark.seq if mark else 0)
    moment = rule.moment_of(held, peers=complete.peers)
    reason = alone.held_back_by[0] if counts and alone.held_back_by else None
    return (
        lane.edge,
        format_log_id(lane.log_id),
        shard,
        records.count(),
        [(first, end - 1) for first, end in records],
        [(gap.first, gap.end - 1, _reason(gap.reason)) for gap in held.gaps],
        sum(end - first for first, end in held.ranges.missing(0, end)),
        None if moment is None else in_datetime(moment),
        None if mark is None else (in_datetime(mark.time), mark.seq),
        in_datetime(held.last_seen) if held.last_seen else None,
        counts,
        reason and (reason.reason.value, reason.since and in_datetime(reason.since), reason.why, reason.advice),
        retired and (in_datetime(retired.time), _retired_by(retired.by), retired.reason),
        conflict and (in_datetime(conflict.time), conflict.reason),
    )


def _end(held: LaneState, gap: OpenGap | None) -> tuple[Any, Any]:
    word = held.last_word
    since = None if gap is None or gap.since is None else in_datetime(gap.since)
    return (
        None if gap is None else (gap.first, since, in_datetime(gap.until), gap.why),
        None if word is None else (in_datetime(word.time), word.seq),
    )


def _reason(number: int) -> str:
    """Return the name of a gap's reason, as in the hub's API."""
    return GapReason(number).name.lower() if number in GapReason._value2member_map_ else f"reason {number}"


def _retired_by(number: int) -> str:
    return RetiredBy(number).name.lower() if number in RetiredBy._value2member_map_ else f"party {number}"
