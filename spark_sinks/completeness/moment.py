"""The moment up to which a stream is complete, for Spark code that needs to know when a window is closed."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, cast

import msgspec
from pyspark.sql import SparkSession

from spark_sinks.blocking import run
from spark_sinks.completeness.states import LanesAt, checked_offsets, open_at, open_at_head
from spark_sinks.errors import ReadError
from spark_sinks.source.hub.client import HubClient
from spark_sinks.source.hub.readers import client_of
from spark_sinks.source.options import ReadOptions, parse_names, parse_options, source_options
from weft.config.units import parse_duration_ns
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.shard import completeness as rule
from weft.protocols.shard.lane_state import LaneState, RetiredBy, Retirement
from weft.protocols.shard.open_gaps import OpenGap, gap_until
from weft.storage.chunks.open_gaps import named

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
    nothing is complete before the hub has heard from each of them, and other edges hold nothing back."""
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
        moment = self.moment.isoformat() if self.moment else "no moment that is known"
        lines = [f"complete until {moment}, at {self.clock.isoformat()} by the hub's clock"]
        for each in self.held_back_by:
            log = "" if each.log_id is None else f" log {format_log_id(each.log_id)}"
            lines.append(f"  {each.edge}{log}: {each.why}; {each.advice}")
        lines += [f"  and {self.more} more"] if self.more else []
        return "\n".join([*lines, *(f"  open gap: {named(gap).sentence}" for gap in self.open_gaps)])


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
                    each["edge"], _log_id(each["log"]), _reason(each["reason"]), _nanoseconds(each["since"]),
                    _nanoseconds(each["complete_up_to"]), each["why"], each["what_to_do"],
                )
                for each in answer["held_back_by"]
            ],
            answer["held_back_by_more"],
            moment_ns,
            [
                OpenGap(
                    each["edge"], int(each["log"], 16), each["first"], _nanoseconds(each["since"]),
                    _nanoseconds(each["until"]) or 0, each["other_lanes"], each["why"].startswith("a second node"),
                )
                for each in answer["open_gaps"]
            ],
        )  # fmt: skip
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
                "*", None, rule.Reason.NO_MARK, None, None,
                f"the log of shard {shards} at these offsets is in the table only, without what was known of its lanes",
                "ask at later offsets",
            ),
            *held_back,
        ]  # fmt: skip
    at_moment = None if moment is None else in_datetime(moment)
    return CompleteUntil(at_moment, in_datetime(at.clock), at.offsets, held_back, found.more, moment, gaps)


def open_gaps(at: LanesAt, complete: Complete) -> list[OpenGap]:
    """Return the open gaps of the edges that count, by their ends.

    An edge that is no longer waited for, after ``retired_after``, has one as if the hub had retired it at that time.
    """
    expected, silent = complete.expected, complete.retired_after_ns
    found = [gap for gap in at.left if not expected or any(rule.matches(each, gap.edge) for each in expected)]
    for lane, held in at.lanes.items():
        if expected and not any(rule.matches(pattern, lane.edge) for pattern in expected):
            continue
        retired = held.retired
        if retired is None and silent is not None and at.clock - held.last_seen >= silent:
            retired = Retirement(held.last_seen + silent, RetiredBy.AGE, "retired_after of the query")
        gap = None if retired is None else gap_until(lane, held, retired, peers=complete.peers)
        found += [] if gap is None else [gap]
    return sorted(found, key=lambda gap: (gap.until, gap.edge, gap.log_id))


def waited_for(at: LanesAt, complete: Complete) -> tuple[dict[Lane, LaneState], list[str]]:
    """Return the lanes that count, and the names and patterns of edges that the hub must hear from before anything is
    complete.

    An edge that was silent for ``retired_after`` is in neither, as if an operator had retired it.
    """
    expected, silent = complete.expected, complete.retired_after_ns
    counted, left = {}, set()
    for lane, held in at.lanes.items():
        if expected and not any(rule.matches(pattern, lane.edge) for pattern in expected):
            continue
        if silent is not None and at.clock - held.last_seen >= silent:
            if rule.has_spoken(held):
                left.add(lane.edge)
        else:
            counted[lane] = held
    heard = {lane.edge for lane in counted}
    return counted, [each for each in expected if rule.is_heard(each, heard) or not rule.is_heard(each, left)]


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
