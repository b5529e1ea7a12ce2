"""The moment up to which a stream is complete, for Spark code that needs to know when a window is closed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, cast

import msgspec
from pyspark.sql import DataFrame, SparkSession

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.source.hub import HubClient, client_of
from spark_sinks.source.options import (
    CHUNKS,
    READ,
    Offsets,
    ReadOptions,
    check_offsets,
    parse_names,
    parse_options,
    source_options,
)
from spark_sinks.source.stream_log import StreamLog
from weft.config.units import parse_duration_ns
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane, format_log_id, matches
from weft.protocols.segment import GapReason
from weft.protocols.shard import completeness as rule
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import LaneState, OpenGap, RetiredBy, Retirement, gap_until, renamed
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast, ShardLog, named_open_gap
from weft.storage.object_store import NotFound

# Knowledge about a stream's lanes at a position: shard states folded up to certain record offsets.
#
# A mark in a later chunk may be about records that a batch does not have. So the completeness of a batch is computed
# from the state below the batch's end offsets, never from the state at the head of the log.


class LanesAt(NamedTuple):
    """A stream's lanes as known below certain offsets."""

    offsets: Offsets
    lanes: dict[Lane, LaneState]
    shards: dict[Lane, int]
    clock: int
    """The fabric's clock there, nanoseconds since 1970: the time at which the hub made the newest folded chunk. A shard
    that was not folded to its end holds the clock back, since its following chunks may be older than that. 0 before the
    first chunk."""
    left: tuple[OpenGap, ...] = ()
    """Open gaps of lanes that have left the state."""
    unknown_shards: tuple[int, ...] = ()
    """Shards whose state at the offset is no longer kept: chunks of that time were deleted after tiering."""
    expected: tuple[str, ...] = ()
    """Names and patterns of edges that operators have declared up to now, whatever the offsets are."""


async def at_head(log: StreamLog) -> LanesAt:
    """Read a log on, and return the lanes at its end. Offsets and states belong together.

    Raises:
        ReadError: as ``StreamLog.extend`` and ``StreamLog.expected``.
    """
    await log.extend()
    return _at_head(log, await log.expected())


def _at_head(log: StreamLog, expected: tuple[str, ...]) -> LanesAt:
    clock = max((state.created for state in log.states), default=0)
    found = _merged(log.options, log.heads, {state.shard: state for state in log.states}, clock)
    return found._replace(expected=expected)


async def open_at_head(options: ReadOptions) -> LanesAt:
    """Return the lanes at the end of the log.

    Raises:
        ReadError: as ``StreamLog.open`` and ``at_head``.
    """
    return await at_head(await StreamLog.open(options))


async def open_at(options: ReadOptions, offsets: Mapping[int, int]) -> LanesAt:
    """Return the lanes as known below ``offsets``: for each shard, from the longest run of chunks without a record
    behind its offset. The fold begins at the nearest kept snapshot.

    Raises:
        ReadError: as ``StreamLog.open`` and ``at_head``; the offsets name other shards than the log's, or are past its
            end.
    """
    log = await StreamLog.open(options)
    await log.extend()
    wanted = with_new_shards(offsets, log)
    check_offsets("at", wanted, log.heads)
    expected = await log.expected()
    if wanted == log.heads:
        return _at_head(log, expected)
    found = await asyncio.gather(
        *(_below(log.log_of(shard), log.state(shard), options, offset) for shard, offset in sorted(wanted.items()))
    )
    states = {shard: state for shard, state in zip(sorted(wanted), found, strict=True) if state is not None}
    behind = [state.created for shard, state in states.items() if state.n < log.state(shard).n]
    clock = min(behind, default=max((state.created for state in states.values()), default=0))
    unknown = wanted.keys() - states.keys()
    known = in_force(states, log.cluster.tree.firsts)
    return _merged(options, wanted, known, clock, tuple(sorted(unknown)))._replace(expected=expected)


def in_force(states: Mapping[int, ShardState], firsts: Collection[int]) -> dict[int, ShardState]:
    """Return the states without those of shards whose splits are not in the state of the halved shard: there, the lanes
    are known from the halved shard, and the new one knows more of them than what lies below the offsets.

    Args:
        firsts: the shards that no split made.
    """
    made = {split.shard for state in states.values() for split in state.splits}
    kept = {shard: state for shard, state in states.items() if shard in firsts or shard in made}
    return kept if len(kept) == len(states) else in_force(kept, firsts)


def with_new_shards(offsets: Mapping[int, int], log: StreamLog) -> Offsets:
    """Return offsets for every shard that a split has made, too: 0 for one that is not named, since the offsets are
    from before the split."""
    return {shard: 0 for shard in log.heads if not log.cluster.tree.is_first(shard)} | dict(offsets)


async def _below(log: ShardLog, head: ShardState, options: ReadOptions, offset: int) -> ShardState | None:
    """Return the shard's state below an offset, or None when the chunks of that time are gone."""
    key = (options.tenant, options.stream)
    if head.next_offset.get(key, 0) <= offset:
        return head
    try:
        state = await _snapshot_before(log, options, offset)
        if state is None:
            return None
        async for chunk in log.indexes(state.n + 1, only=state.only):
            sections = (each for each in chunk.footer.streams if (each.tenant, each.stream) == key)
            if any(section.base_offset + section.count > offset for section in sections):
                break
            apply(state, chunk)
    except CollectedPast:
        return None
    return state


async def _snapshot_before(log: ShardLog, options: ReadOptions, offset: int) -> ShardState | None:
    """Return a state from which the kept chunks lead to the offset."""
    n = await log.locate(options.tenant, options.stream, offset)
    only = frozenset({(options.tenant, options.stream)})
    for at, key in reversed(await log.snapshots()):
        if at >= n:
            continue
        try:
            state = await log.snapshot(key, only)
        except (NotFound, CodecError):
            continue  # Deleted meanwhile, or damaged: an older snapshot only makes the fold longer.
        if state.n == at and state.next_offset.get((options.tenant, options.stream), 0) <= offset:
            return state
    # From the start of the log, if that is still there.
    return ShardState(log.cluster.cluster_id, log.shard, log.rules, only) if log.watermark == 0 else None


def _merged(
    options: ReadOptions, offsets: Offsets, states: Mapping[int, ShardState], clock: int, unknown: Iterable[int] = ()
) -> LanesAt:
    lanes: dict[Lane, LaneState] = {}
    shards: dict[Lane, int] = {}
    for shard, state in states.items():
        for lane, held in state.stream_lanes(options.tenant, options.stream).items():
            lanes[lane], shards[lane] = held, shard
    key = options.tenant, options.stream
    left = tuple(gap for state in states.values() for gap in state.open_gaps.get(key, ()))
    return LanesAt(dict(offsets), lanes, shards, clock, left, tuple(unknown))


def checked_offsets(at: Mapping[Any, Any]) -> Offsets:
    """Return offsets by shard from a mapping, as ``{"0": 1200}`` of a checkpoint or with whole numbers as keys.

    Raises:
        ReadError: it has another form.
    """
    try:
        found = {int(shard): offset for shard, offset in at.items() if shard not in (CHUNKS, READ)}
        if all(type(offset) is int and offset >= 0 for offset in found.values()):
            return found
    except (AttributeError, TypeError, ValueError):
        pass
    raise ReadError(f'at: expected an offset for each shard, such as {{"0": 1200, "1": 0}}; got {at!r}')


ALL = "all"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_NS = 1_000_000_000
_MOMENTS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""First and last microsecond of Python's datetime."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Rule for when a window counts as complete, and when it is emitted as incomplete."""

    edges: str | Collection[str] = ALL
    """Edges to wait for: ``all`` that the hub knows, or names and patterns (``press-*``). Named edges are expected:
    nothing is complete before the hub has heard from each of them, and other edges hold nothing back. So are, of those
    that an operator has declared for the stream (``weft hub stream expect``), the ones that ``edges`` covers."""
    grace: str | timedelta = "10m"
    """Time after a window's end, by the hub's clock, after which the window is emitted as incomplete."""
    retired_after: str | timedelta | None = None
    """Time of silence after which an edge is not waited for, until it is back. None applies the hub's rule."""
    peers: bool = False
    """True when another cluster may have records that this one lacks, as in the hub's configuration."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ReadError: one is not valid.
        """
        self.expected  # noqa: B018
        self.grace_ns  # noqa: B018
        self.retired_after_ns  # noqa: B018

    @property
    def expected(self) -> tuple[str, ...]:
        """Return the names and patterns of expected edges; none for all."""
        if self.edges == ALL:
            return ()
        return parse_names("edges", self.edges) if isinstance(self.edges, str) else _checked_names(self.edges)

    @property
    def grace_ns(self) -> int:
        """Return the grace in nanoseconds."""
        return duration_ns("grace", self.grace)

    @property
    def retired_after_ns(self) -> int | None:
        """Return the time of silence after which an edge is not waited for, in nanoseconds."""
        return None if self.retired_after is None else duration_ns("retired_after", self.retired_after)


@dataclass(frozen=True, slots=True)
class CompleteUntil:
    """Answer of ``complete_until``."""

    moment: datetime | None
    """UTC: no further row with an earlier ``_time`` comes, except rows that close a named gap. None: nothing is
    known."""
    clock: datetime
    """The fabric's clock at the position: when the hub made the newest chunk below it."""
    offsets: dict[int, int]
    """Offset per shard up to which the answer holds."""
    held_back_by: list[rule.HeldBack] = field(default_factory=list)
    """Lanes and expected edges that hold the moment back, ordered by how far they hold it back, the farthest first."""
    more: int = 0
    """Number of further reasons that are left out."""
    moment_ns: int | None = None
    """``moment`` in nanoseconds since 1970."""
    open_gaps: list[OpenGap] = field(default_factory=list)
    """Losses without a number, of lanes that ended without a last word: no window over their time is complete."""

    def __str__(self) -> str:
        """Return the moment and the reasons as text."""
        moment = self.moment.isoformat() if self.moment else "no known time"
        lines = [f"complete until {moment}, at {self.clock.isoformat()} by the hub's clock"]
        for each in self.held_back_by:
            log = "" if each.log_id is None else f" log {format_log_id(each.log_id)}"
            lines.append(f"  {each.edge}{log}: {each.why}; {each.advice}")
        lines += [f"  and {self.more} more"] if self.more else []
        return "\n".join([*lines, *(f"  open gap: {named_open_gap(gap).sentence}" for gap in self.open_gaps)])


def complete_until(
    spark: SparkSession,  # noqa: ARG001  (its place for what needs a session later; read() begins likewise)
    stream: str,
    *,
    store: str | os.PathLike[str] | None = None,
    hub: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    tenant: str = "default",
    edges: str | Collection[str] = ALL,
    retired_after: str | timedelta | None = None,
    peers: bool = False,
    at: Mapping[int, int] | Mapping[str, int] | str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> CompleteUntil:
    """Return the moment up to which a stream is complete, and the lanes that hold it back.

    Args:
        store: root of the hub's store. Give this or ``hub``.
        hub: URL of a hub, or of several of its nodes separated by commas. It answers about the end of its log, by its
            own settings: ``edges``, ``retired_after``, ``peers`` and ``at`` need the store.
        token_file: as in ``read``, and so is ``ca_file``.
        edges: edges to wait for, as ``Complete.edges``.
        retired_after: as ``Complete.retired_after``.
        peers: as ``Complete.peers``.
        at: offsets below which to ask, a mapping by shard or the JSON text that Spark's progress has as ``endOffset``.
            The answer is then only about records below them: the right one for a batch that ends there. None asks at
            the end of the log. Chunks of old offsets may be deleted; the moment is then None, which claims nothing.

    Raises:
        ReadError: the store holds no hub, the hub does not answer or has no such stream, or an argument is not valid.
    """
    complete = Complete(edges=edges, retired_after=retired_after, peers=peers)
    place = source_options(stream, tenant, store, store_options, hub=hub, token_file=token_file, ca_file=ca_file)
    options = parse_options(place)
    if options.hub is None:
        return evaluate(lanes_at(options, at), complete)
    for name, asked in (("edges", edges != ALL), ("retired_after", retired_after), ("peers", peers), ("at", at)):
        if asked not in (None, False):
            raise ReadError(f"{name}: a hub answers by its own settings, about the end of its log; give store instead")
    return completeness_of(client_of(options))


def completeness_of(client: HubClient) -> CompleteUntil:
    """Return what a hub says of a stream.

    Raises:
        ReadError: the hub does not answer, or not about a stream.
    """
    answer, date = client.completeness()
    offsets = client.heads()  # taken afterwards: what the answer is about lies below them
    try:
        moment_ns = _nanoseconds(answer["complete_up_to"])
        return CompleteUntil(
            None if moment_ns is None else in_datetime(moment_ns),
            parsedate_to_datetime(date or ""),
            offsets,
            [
                rule.HeldBack(
                    each["edge"],
                    _log_id(each["log"]),
                    _reason(each["reason"]),
                    _nanoseconds(each["since"]),
                    _nanoseconds(each["complete_up_to"]),
                    each["why"],
                    each["what_to_do"],
                )
                for each in answer["held_back_by"]
            ],
            answer["held_back_by_more"],
            moment_ns,
            [
                OpenGap(
                    each["edge"],
                    int(each["log"], 16),
                    each["first"],
                    _nanoseconds(each["since"]),
                    _nanoseconds(each["until"]) or 0,
                    each["other_lanes"],
                    each["why"].startswith("a second node"),
                )
                for each in answer["open_gaps"]
            ],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ReadError(f"the hub's answer is not about a stream's completeness ({error!r}); is a hub there?") from None


def _nanoseconds(text: str | None) -> int | None:
    """Return nanoseconds since 1970 from a time of the API, which has nine digits of a second."""
    if text is None or text.lstrip("-").isdecimal():
        return None if text is None else int(text)
    whole, _, digits = text.removesuffix("Z").partition(".")
    return int((datetime.fromisoformat(whole).replace(tzinfo=UTC) - _EPOCH).total_seconds()) * _SECOND_NS + int(digits)


def _reason(text: str) -> rule.Reason:
    """Return a reason by its name. One of a later release, which has none here, remains its name."""
    return rule.Reason(text) if text in set(rule.Reason) else cast(rule.Reason, text)


def _log_id(text: str | None) -> int | None:
    return None if text is None else int(text, 16)


def lanes_at(options: ReadOptions, at: Mapping[int, int] | Mapping[str, int] | str | None) -> LanesAt:
    """Return the lanes as known below offsets; None asks at the end of the log.

    Raises:
        ReadError: the store holds no hub, the hub has no such stream, or the offsets are not the log's.
    """
    return run(open_at_head(options) if at is None else open_at(options, parse_at(at)))


def evaluate(at: LanesAt, complete: Complete) -> CompleteUntil:
    """Return the completeness of lanes at a position. Silence is measured by the fabric's clock."""
    counted, expected = waited_for(at, complete)
    found = rule.completeness(counted, expected, at.clock, peers=complete.peers)
    gaps = open_gaps(at, complete)
    moment, held_back = found.complete_up_to, found.held_back_by
    if at.unknown_shards:
        shards = ", ".join(map(str, at.unknown_shards))
        moment = None
        held_back = [
            rule.HeldBack(
                "*",
                None,
                rule.Reason.NO_MARK,
                None,
                None,
                f"the log of shard {shards} at these offsets is in the table only, without what was known of its lanes",
                "ask at later offsets",
            ),
            *held_back,
        ]
    at_moment = None if moment is None else in_datetime(moment)
    return CompleteUntil(at_moment, in_datetime(at.clock), at.offsets, held_back, found.more, moment, gaps)


def open_gaps(at: LanesAt, complete: Complete) -> list[OpenGap]:
    """Return the open gaps of the edges that count, by their ends.

    An edge that is no longer waited for, after ``retired_after``, has one as if the hub had retired it at that time.
    """
    expected, silent = complete.expected, complete.retired_after_ns
    found = [gap for gap in at.left if not expected or any(matches(each, gap.edge) for each in expected)]
    for lane, held in at.lanes.items():
        if expected and not any(matches(pattern, lane.edge) for pattern in expected):
            continue
        retired = held.retired
        if retired is None and silent is not None and at.clock - held.last_seen >= silent:
            retired = Retirement(held.last_seen + silent, RetiredBy.AGE, "retired_after of the query")
        gap = None if retired is None else gap_until(lane, held, retired, peers=complete.peers)
        found += [] if gap is None else [gap]
    return sorted(found, key=lambda gap: (gap.until, gap.edge, gap.log_id))


def waited_for(at: LanesAt, complete: Complete) -> tuple[dict[Lane, LaneState], list[str]]:
    """Return the lanes that count, and the names and patterns of edges that the hub must hear from before anything is
    complete: those of the question, and of the declared ones those that the question covers.

    An edge that was silent for ``retired_after`` is in neither, as if an operator had retired it.
    """
    expected, silent = complete.expected, complete.retired_after_ns
    counted, left = {}, set()
    for lane, held in at.lanes.items():
        if expected and not any(matches(pattern, lane.edge) for pattern in expected):
            continue
        if silent is not None and at.clock - held.last_seen >= silent:
            if rule.has_spoken(held):
                left.add(lane.edge)
        else:
            counted[lane] = held
    heard = {lane.edge for lane in counted}
    # A pattern is covered by one that matches its text: whatever edge it means is one of the question's.
    declared = (
        each
        for each in at.expected
        if not expected or each == rule.UNREADABLE or any(matches(pattern, each) for pattern in expected)
    )
    wanted = dict.fromkeys((*expected, *declared))
    return counted, [each for each in wanted if rule.is_heard(each, heard) or not rule.is_heard(each, left)]


def parse_at(at: Mapping[int, int] | Mapping[str, Any] | str) -> dict[int, int]:
    """Return offsets by shard from a mapping or its JSON text.

    Raises:
        ReadError: it is something else.
    """
    if isinstance(at, str):
        try:
            return checked_offsets(msgspec.json.decode(at, type=dict[str, Any]))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ReadError(f'at: expected offsets by shard such as {{"0": 1200, "1": 0}}; got {at!r}') from None
    return checked_offsets(at)


def duration_ns(name: str, given: str | timedelta) -> int:
    """Return a duration in nanoseconds.

    Raises:
        ReadError: it is not a duration, or negative.
    """
    try:
        if isinstance(given, timedelta):
            nanoseconds = given // timedelta(microseconds=1) * 1000
            if nanoseconds < 0:
                raise ValueError(f"expected a duration of 0 or more, got {given}")
            return nanoseconds
        return parse_duration_ns(given)
    except (ValueError, TypeError, AttributeError) as error:
        raise ReadError(f"{name}: {error}") from None


def in_datetime(nanoseconds: int) -> datetime:
    """Return nanoseconds since 1970 as a time in UTC, rounded down to microseconds."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def times_between(since_us: int, until_us: int) -> dict[str, datetime | None]:
    """Return a range of microseconds since 1970 as options of a read; None where it has no bound."""
    return {
        "since": in_datetime(since_us * 1000) if since_us > _MOMENTS_US[0] else None,
        "until": in_datetime(until_us * 1000) if until_us < _MOMENTS_US[1] else None,
    }


def _checked_names(edges: Collection[str]) -> tuple[str, ...]:
    names = tuple(edges)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ReadError(f"edges: expected all, or names and patterns of edges; got {edges!r}")
    return names


# A stream's lanes as a DataFrame: held ranges, gaps with their reasons, and the moment of completeness of each lane.

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
        [(gap.first, gap.end - 1, _gap_reason(gap.reason)) for gap in held.gaps],
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


def _gap_reason(number: int) -> str:
    """Return the name of a gap's reason, as in the hub's API."""
    return GapReason(number).name.lower() if number in GapReason._value2member_map_ else f"reason {number}"


def _retired_by(number: int) -> str:
    return RetiredBy(number).name.lower() if number in RetiredBy._value2member_map_ else f"party {number}"
