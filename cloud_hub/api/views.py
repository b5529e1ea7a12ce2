"""JSON views of shard states. Times are RFC 3339 text, UTC, with nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from weft.cloud_hub.api.streams.summary import StreamPart, StreamSummary
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.config.units import parse_duration_ns
from weft.protocols.chunk import GapRange, Mark
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.payloads import PayloadKind, label_of
from weft.protocols.segment import GapReason
from weft.protocols.shard.completeness import OPEN_GAPS_MAX, Completeness, HeldBack, severity
from weft.protocols.shard.forgotten import Forgotten
from weft.protocols.shard.lane_state import RetiredBy
from weft.protocols.shard.open_gaps import OpenGap, open_gap
from weft.protocols.shard.shard_state import LaneState, ShardState, StreamKey
from weft.storage.hub_keys import latest_key, table_key

if TYPE_CHECKING:
    from weft.storage.table_maker.service import TableService
    from weft.storage.table_maker.status import TableStatus

_NS = 1_000_000_000

TABLES_LISTED_MAX = 1000
"""Maximum number of tables in the status; failing ones come first."""
LOST_LISTED_MAX = 1000
"""Maximum number of lanes with lost records in a status."""
View = dict[str, Any]

RETIRED_LOOKED_AT_MAX = 2_000
"""Maximum number of retired lanes that one answer checks for open gaps, the last retired ones."""


def moment(time: int | None) -> str | None:
    """Return nanoseconds since 1970 as text. None remains None; a time outside the calendar remains a number."""
    if time is None:
        return None
    seconds, rest = divmod(time, _NS)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
    except (ValueError, OverflowError, OSError):
        return str(time)


def parse_moment(text: str) -> int:
    """Return nanoseconds since 1970 from RFC 3339 text (without an offset: UTC) or from the number itself.

    Raises:
        ValueError: it is neither.
    """
    if text.isascii() and text.lstrip("-").isdigit():
        return int(text)
    time = datetime.fromisoformat(text)
    whole = time.replace(tzinfo=time.tzinfo or UTC, microsecond=0)
    return int(whole.timestamp()) * _NS + time.microsecond * 1000


def moment_after(text: str, now: int) -> int:
    """Return the moment that a text gives as a duration from now on, such as ``90d``, or as ``parse_moment`` reads it.

    Args:
        now: nanoseconds since 1970.

    Raises:
        ValueError: it is neither, in the past, or too far away.
    """
    try:
        until = now + parse_duration_ns(text)
    except ValueError:
        try:
            until = parse_moment(text)
        except ValueError:
            raise ValueError(f"expected a duration such as 90d, or a date such as 2030-06-30, got {text!r}") from None
    if not now <= until < 1 << 63:
        raise ValueError(f"{text} is in the past, or too far away")
    return until


def _ranges(ranges: Iterable[tuple[int, int]]) -> list[View]:
    return [{"first": first, "end": end} for first, end in ranges]


def gap_views(gaps: Iterable[GapRange]) -> list[View]:
    """Return ranges of numbers whose records never come, with the reasons."""
    reasons = {reason.value: reason.name.lower() for reason in GapReason}
    return [{"first": gap.first, "end": gap.end, "reason": reasons.get(gap.reason, str(gap.reason))} for gap in gaps]


def _mark(mark: Mark | None) -> View | None:
    return None if mark is None else {"time": moment(mark.time), "seq": mark.seq}


def _who(lane: Lane, shard: int) -> View:
    return {"edge": lane.edge, "log": format_log_id(lane.log_id), "shard": shard}


LaneOf = tuple[int, Lane, LaneState]
"""(shard, lane, state of the lane)."""


def lane_view(lane: Lane, held: LaneState, shard: int) -> View:
    """Return the hub's knowledge of a lane."""
    return {
        **_who(lane, shard),
        "epoch": held.epoch,
        "ranges": _ranges(held.ranges),
        "gaps": gap_views(held.gaps),
        "mark": _mark(held.mark),
        "newest_mark": _mark(held.newest_mark),
        "last_word": _mark(held.last_word),
        "retired": _retired(held),
        "open_gap": open_gap_view(open_gap(lane, held)),
        "topics": held.topics,
        "payload": label_of(held.payload),
    }


def _retired(held: LaneState) -> View | None:
    retired = held.retired
    if retired is None:
        return None
    by = RetiredBy(retired.by).name.lower() if retired.by in RetiredBy._value2member_map_ else str(retired.by)
    return {"since": moment(retired.time), "by": by, "reason": retired.reason}


def open_gap_view(gap: OpenGap | None) -> View | None:
    """Return a loss without a number: from a number on, between two moments."""
    if gap is None:
        return None
    return {
        "edge": gap.edge,
        "log": format_log_id(gap.log_id),
        "first": gap.first,
        "records": None,
        "since": moment(gap.since),
        "until": moment(gap.until),
        "other_lanes": gap.others,
        "why": gap.why,
    }


def skipped_views(states: Iterable[ShardState], tenant: str, stream: str) -> list[View]:
    """Return the offsets of a stream that operators skipped in its table."""
    return [
        {
            "shard": state.shard,
            "first_offset": skip.first,
            "end_offset": skip.end,
            "since": moment(skip.time),
            "reason": skip.reason,
            "records": [
                {"edge": run.edge, "log": format_log_id(run.log_id), "first": run.first, "end": run.end}
                for run in skip.runs
            ],
        }
        for state in states
        for skip in state.skips.get((tenant, stream), ())
    ]


def completeness_view(lane: Lane, held: LaneState, shard: int, *, peers: bool = False) -> View:
    """Return the moment up to which a lane is complete, its gaps with reasons, and its missing records.

    Args:
        peers: whether ABSENT gaps, which another cluster's records may fill, hold the lane back.
    """
    newest = held.newest_mark
    told = max(held.ranges.end, newest.seq if newest else 0)
    return {
        **_who(lane, shard),
        "complete_up_to": moment(held.whole_up_to if peers else held.complete_up_to),
        "complete_below_seq": held.whole_end() if peers else held.ranges.contiguous_end(),
        "newest_mark": _mark(newest),
        "gaps": gap_views(held.gaps),
        "open_gap": open_gap_view(open_gap(lane, held, peers=peers)),
        "last_word": _mark(held.last_word),
        "retired": _retired(held),
        "holes": _ranges(held.ranges.missing(0, told)),
    }


def held_back_view(each: HeldBack, now: int) -> View:
    """Return one reason why a stream's moment does not advance.

    Args:
        now: nanoseconds since 1970 by the hub's clock.
    """
    return {
        "edge": each.edge,
        "log": None if each.log_id is None else format_log_id(each.log_id),
        "reason": each.reason.value,
        "severity": severity(each, now).value,
        "since": moment(each.since),
        "complete_up_to": moment(each.up_to),
        "why": each.why,
        "what_to_do": each.advice,
    }


def stream_completeness_view(
    tenant: str,
    stream: str,
    answer: Completeness,
    lanes: Sequence[LaneOf],
    *,
    now: int,
    skipped: Sequence[View] = (),
    renamed: Set[Lane] = frozenset(),
) -> View:
    """Return a stream's moment, its lanes, the reasons that hold it back, and the skipped offsets of its table.

    Args:
        lanes: some of the stream's lanes; the moment covers all lanes that count.
        now: nanoseconds since 1970 by the hub's clock.
        renamed: lanes that ended by a rename, which do not count.
    """
    return {
        "tenant": tenant,
        "stream": stream,
        "complete_up_to": moment(answer.complete_up_to),
        "covers": [
            {"edge": lane.edge, "log": format_log_id(lane.log_id)}
            for _, lane, held in lanes
            if held.counts and lane not in renamed
        ],
        "held_back_by": [held_back_view(each, now) for each in answer.held_back_by],
        "held_back_by_more": answer.more,
        "open_gaps": [open_gap_view(gap) for gap in answer.open_gaps],
        "open_gaps_more": answer.open_gaps_more,
        "skipped": list(skipped),
    }


def table_status_view(table: TableStatus) -> View:
    """Return the work on a table, for operators."""
    made_by = table.made_by
    return {
        **msgspec.to_builtins(table),
        "committed_at": moment(table.committed_at),
        "vacuumed_at": moment(table.vacuumed_at),
        "made_by": None if made_by is None else {"name": made_by.name, "since": moment(made_by.since)},
    }


def tables_views(tables: TableService | None) -> View:
    """Return the work on all tables, for operators."""
    return {
        "tables": [table_status_view(table) for table in tables.status(TABLES_LISTED_MAX)] if tables else [],
        "tables_more": max(0, tables.count - TABLES_LISTED_MAX) if tables else 0,
        "tables_trouble": tables.error if tables else None,
    }


def removed_view(table: View | None) -> View:
    """Return the members of an answer that say what no table has: up to when retention removed rows, and that there is
    no table of all rows; none if neither is so.

    Args:
        table: of ``table_view``.
    """
    if table is None:
        return {}
    removed = {"removed_until": table["removed_until"]} if table["removed_until"] else {}
    return removed | ({"only_latest": True} if table["kind"] == "latest" else {})


def table_view(table: TableStatus, columns: Sequence[tuple[str, str]], removed_until: int | None) -> View:
    """Return a stream's table, for readers."""
    return {
        "path": (table_key if table.kind == "all" else latest_key)(table.tenant, table.stream),
        "kind": table.kind,
        "version": table.version,
        "columns": [{"name": name, "type": kind} for name, kind in columns],
        "lag_records": table.lag_records,
        "committed_at": moment(table.committed_at),
        "error": table.error,
        "is_stopped": bool(table.stopped),
        "removed_until": moment(removed_until),
        "files": table.files,
        "bytes": table.bytes,
        "made_by": table.process if table.made_by is None else table.made_by.name,
        "vacuumed_at": moment(table.vacuumed_at),
    }


def conflict_views(states: Iterable[ShardState]) -> list[View]:
    """Return the lanes whose logs a second node claims to own."""
    found = []
    for state in states:
        for lane in state.conflicts:
            held = state.lanes[lane]
            assert held.conflict is not None
            found.append({
                "tenant": lane.tenant,
                **_who(lane, state.shard),
                "stream": lane.stream,
                "since": moment(held.conflict.time),
                "refused_epoch": held.conflict.epoch,
                "why": held.conflict.reason,
            })  # fmt: skip
    return found


def open_gap_views(states: Iterable[ShardState]) -> View:
    """Return the open gaps of retired lanes, the latest first, and a lower bound of the number of others."""
    retired = [(state, lane) for state in states for lane in islice(reversed(state.retired), RETIRED_LOOKED_AT_MAX)]
    found = [
        (gap, lane, state.shard)
        for state, lane in retired[:RETIRED_LOOKED_AT_MAX]
        if (gap := open_gap(lane, state.lanes[lane])) is not None
    ]
    found.sort(key=lambda each: (-each[0].until, each[1]))
    shown = [
        {"tenant": lane.tenant, "stream": lane.stream, "shard": shard, **(open_gap_view(gap) or {})}
        for gap, lane, shard in found[:OPEN_GAPS_MAX]
    ]
    return {"open_gaps": shown, "open_gaps_more": len(found) - len(shown)}


def lost_views(sequencers: Iterable[Sequencer]) -> list[View]:
    """Return the lanes with acknowledged records that the hub lacks, at most ``LOST_LISTED_MAX``."""
    found = (
        {
            "tenant": lane.tenant, **_who(lane, sequencer.log.shard), "stream": lane.stream, "records": lost.records,
            "first_seq": lost.first,
        }
        for sequencer in sequencers
        for lane in list(sequencer.sessions.lost)
        if (held := sequencer.state.lanes.get(lane)) is not None
        and (lost := sequencer.sessions.lost_of(lane, held)) is not None
    )  # fmt: skip
    return list(islice(found, LOST_LISTED_MAX))


def deletion_of(states: Sequence[ShardState], tenant: str, stream: str) -> Forgotten | None:
    """Return the newest deletion of a stream by an operator, if no shard has it any more; None otherwise."""
    if any(state.has_stream(tenant, stream) for state in states):
        return None
    found = (state.forgotten.get((tenant, stream)) for state in states)
    return max((each for each in found if each is not None), key=lambda each: each.time, default=None)


def stream_lanes(states: Sequence[ShardState], tenant: str, stream: str) -> list[LaneOf]:
    """Return (shard, lane, state of the lane) for a stream, by edge and log."""
    found = [(state.shard, lane, held) for state in states for lane, held in state.stream_lanes(tenant, stream).items()]
    return sorted(found, key=lambda item: item[1])


def stream_view(
    parts: Sequence[StreamPart],
    key: StreamKey,
    table_rows: int | None,
    *,
    payload: PayloadKind,
    summary: StreamSummary,
    now: int,
    rate: float | None = None,
    table: View | None = None,
) -> View:
    """Return a stream over all shards.

    Args:
        parts: of all shards, by number.
        table_rows: records that are table rows; None if unknown.
        payload: the payload kind.
        summary: facts about its lanes.
        now: nanoseconds since 1970 by the hub's clock.
        rate: records per second; None while unknown.
        table: the table; None if this node does not know it.
    """
    tenant, stream = key
    offsets = {str(part.shard): part.end for part in parts if part.end is not None}
    fields = dict.fromkeys(name for part in parts for name in part.fields)
    return {
        "tenant": tenant,
        "stream": stream,
        "records": sum(offsets.values()),
        "records_per_second": None if rate is None else round(rate, 3),
        "table_rows": table_rows,
        "next_offset": offsets,
        "lanes": summary.lanes,
        "edges": summary.edges,
        "fields": list(fields),
        "payload": payload.label,
        "complete_up_to": moment(summary.complete_up_to),
        "held_back_by": [held_back_view(each, now) for each in summary.held_back_by],
        "skipped": sum(part.skipped for part in parts),
        "table": table,
    }
