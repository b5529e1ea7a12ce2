"""Windows by number: the windows that are due, and the state of a window query between two steps.

A grid numbers the windows. Nothing here knows Spark or the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from spark_sinks.completeness.definition import Definition
from spark_sinks.completeness.window_reach import Stretch
from spark_sinks.errors import ReadError
from weft.config.functions.window_grid import Grid
from weft.protocols.ranges import RangeSet

OPEN_MAX = 200
"""Maximum number of ranges of windows over open gaps. Beyond it, the nearest ranges are joined, and windows between
them count as incomplete, too."""
RANGES_MAX = 1000
"""Maximum number of ranges of windows that a state keeps. Beyond it, the nearest ranges are joined: windows between
them are computed without need, and none is lost."""
UNFINISHED_MAX = 1000
"""Maximum number of windows whose last row is remembered."""
FORMAT, FORMAT_OF_PLAIN_WINDOWS = 2, 1
"""Formats of states. Windows of ``_time`` without offset and zone have the one that earlier releases read."""
_LOWEST = -(1 << 62)
_PLAIN = "no offset, zone UTC, time _time"


class _Kept(msgspec.Struct, frozen=True):
    """State of a window query as it is stored."""

    format: int
    source: str
    every_us: int
    offsets: dict[str, int]
    pending: list[tuple[int, int]]
    fresh: list[tuple[int, int]]
    complete_end: int
    given_end: int
    definition: Definition = {}
    chunks: dict[str, tuple[int, int, int]] = {}
    given: bool = False
    grid: str = ""
    reach: list[Stretch] = []
    broken: list[tuple[int, int]] = []
    rejected: dict[str, int] = {}
    unfinished: list[tuple[int, int]] = []
    usual: tuple[int, int] = (0, 0)


class _StoredFormat(msgspec.Struct):
    """Stretch of a stored state that every release can read."""

    format: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Ends of the windows that may be emitted at a position."""

    complete_end: int
    """Number below which every window has ended before the stream's moment."""
    given_end: int
    """Number below which every window has ended longer ago than the grace, by the fabric's clock."""
    open: RangeSet = field(default_factory=RangeSet)
    """Windows over the time of an open gap: they are not complete, whatever the moment is."""
    quiet_us: int | None = None
    """For sessions, the time up to which those that have ended are complete: no row can come that would continue them.
    None where there is no such time."""

    @classmethod
    def at(
        cls,
        moment_us: int | None,
        clock_us: int,
        grid: Grid,
        grace_us: int,
        gaps_us: Iterable[tuple[int | None, int]] = (),
        *,
        bound_us: int = 0,
        ahead_us: int = 0,
        gap_us: int | None = None,
    ) -> Limits:
        """Return the limits at a moment and the fabric's clock; no moment means that no window is complete.

        Args:
            gaps_us: first moment of each open gap, None where it is unknown, and the moment after its last.
            bound_us: time after the end of a window until which its records are taken in.
            ahead_us: time before the start of a window from which on its records are taken in.
            gap_us: silence that ends a session; None for windows. Sessions are emitted before their window has ended.
        """
        complete = _LOWEST if moment_us is None else grid.number(moment_us - bound_us)
        opened = RangeSet()
        for first, last in gaps_us:
            start = _LOWEST if first is None else grid.number(first - bound_us)
            opened.add(start, max(start + 1, grid.ceiling(last + ahead_us)))
        given, quiet = grid.number(clock_us - grace_us), None
        if gap_us is not None:
            given = grid.number(clock_us) + 1
            quiet = None if moment_us is None else moment_us - bound_us - gap_us
        return cls(complete, given, bounded(opened, OPEN_MAX), quiet)

    def opened(self, windows: RangeSet) -> RangeSet:
        """Return the windows among these that lie over open gaps."""
        return RangeSet(part for first, end in self.open for part in windows.within(first, end))


@dataclass(slots=True)
class WindowState:
    """State of a window query: everything else is in the log."""

    source: str
    """Cluster, tenant and stream: a state belongs to one."""
    every_us: int
    offsets: dict[int, int] = field(default_factory=dict)
    """Offsets per shard up to which rows were seen; empty before the first step."""
    pending: RangeSet = field(default_factory=RangeSet)
    """Windows with rows that were not emitted as complete since their last row."""
    fresh: RangeSet = field(default_factory=RangeSet)
    """Pending windows with rows that were never emitted."""
    complete_end: int = _LOWEST
    """Number below which windows were emitted as complete, except pending ones."""
    given_end: int = _LOWEST
    """Number below which windows were emitted at least once, complete or not."""
    definition: Definition = field(default_factory=dict)
    """Definition of the emitted windows; empty in states of older releases."""
    chunks: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Number, footer CRC and time (ns since 1970) of the chunk with the last record below an offset, if known: it
    distinguishes the log from one that was restored to an earlier state. States of older releases have none."""
    given: bool = False
    """True after windows were emitted, so that the sink has rows. States of older releases lack it."""
    grid: str = ""
    """Offset, zone and field with the time of the windows; empty for those of ``_time`` without offset and zone."""
    reach: list[Stretch] = field(default_factory=list)
    """Windows of event time with records that were taken in far from them."""
    broken: RangeSet = field(default_factory=RangeSet)
    """Windows with records that were taken in after the declared bound."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Number of records that no window counts, by reason."""
    unfinished: dict[int, int] = field(default_factory=dict)
    """Windows with sessions that were not emitted as complete -> time of their last row."""
    usual: tuple[int, int] = (0, 0)
    """Distances of records that ``reach`` has no part for, before and after a window, in microseconds."""

    def see(self, offsets: dict[int, int], windows: RangeSet) -> None:
        """Record that rows up to ``offsets`` lie in ``windows``."""
        self.offsets = dict(offsets)
        self.fresh.update(windows)
        self.fresh = bounded(self.fresh)
        self.pending.update(self.fresh)
        self.pending = bounded(self.pending)

    def reject(self, rows: Mapping[str, int]) -> None:
        """Count records that no window counts."""
        for reason, count in rows.items():
            self.rejected[reason] = self.rejected.get(reason, 0) + count

    def continue_sessions(self, last_us: Iterable[tuple[int, int]]) -> None:
        """Record the time of the last new row of windows."""
        for number, last in last_us:
            self.unfinished[number] = max(last, self.unfinished.get(number, last))
        # A window that is not remembered is emitted when it is complete as a whole.
        for number in sorted(self.unfinished)[:-UNFINISHED_MAX]:
            del self.unfinished[number]

    def due(self, limits: Limits, *, healing: bool) -> RangeSet:
        """Return the windows to emit now.

        Args:
            healing: whether to emit changed windows again. A backlog that trickles in changes the same windows with
                each chunk, so a query does this less often than it reads the log.
        """
        complete = _below(self.pending, limits.complete_end).minus(limits.open)
        late = _within(self.fresh, limits.complete_end, limits.given_end)
        late.update(limits.opened(_below(self.fresh, min(limits.complete_end, limits.given_end))))
        if healing and limits.quiet_us is not None:
            finished = RangeSet((k, k + 1) for k, last in sorted(self.unfinished.items()) if last <= limits.quiet_us)
            late.update(_below(finished, max(limits.complete_end, limits.given_end)))
        if not healing:
            complete = _from(complete, self.complete_end)
            late = _from(late, self.given_end)
        complete.update(late)
        return complete

    def give(self, windows: RangeSet, limits: Limits) -> None:
        """Record that windows were emitted with all their rows, and as complete below ``limits.complete_end``."""
        self.given = True
        for first, end in windows:
            self.fresh.remove(first, end)
            self.pending.remove(first, min(end, limits.complete_end))
            # Between two due windows there may be one that was complete before the moment went back.
            self.pending.add(max(first, limits.complete_end), end)
        for number, last in list(self.unfinished.items()):
            is_finished = number < limits.complete_end or (limits.quiet_us is not None and last <= limits.quiet_us)
            if is_finished and number in windows:
                del self.unfinished[number]
        self.pending.update(limits.opened(windows))
        self.pending = bounded(self.pending)

    def close(self, limits: Limits) -> None:
        """Record that all windows due at ``limits`` were emitted. The ends never go back."""
        self.complete_end = max(self.complete_end, limits.complete_end)
        self.given_end = max(self.given_end, limits.given_end)

    def copy(self) -> WindowState:
        """Return an independent state."""
        return replace(
            self, offsets=dict(self.offsets), pending=self.pending.copy(), fresh=self.fresh.copy(),
            reach=list(self.reach), broken=self.broken.copy(), rejected=dict(self.rejected),
            unfinished=dict(self.unfinished),
        )  # fmt: skip

    def encode(self) -> str:
        """Return the state as JSON, at most about 100 kB."""
        is_plain = not (self.grid or self.reach or self.broken or self.rejected or self.unfinished)
        return msgspec.json.encode(
            _Kept(
                FORMAT_OF_PLAIN_WINDOWS if is_plain else FORMAT, self.source, self.every_us,
                {str(k): self.offsets[k] for k in sorted(self.offsets)},
                list(self.pending), list(self.fresh), self.complete_end, self.given_end,
                self.definition, {str(shard): self.chunks[shard] for shard in sorted(self.chunks)}, self.given,
                self.grid, self.reach, list(self.broken), self.rejected, sorted(self.unfinished.items()), self.usual,
            )
        ).decode()  # fmt: skip

    @classmethod
    def decode(cls, text: str | bytes, source: str, every_us: int, grid: str = "") -> WindowState:
        """Return a stored state.

        Args:
            grid: offset, zone and field with the time of the query's windows.

        Raises:
            ReadError: it is damaged, a later release's, or another stream's or window length's.
        """
        try:
            # Decoded alone first: a later release may have changed everything else.
            found = msgspec.json.decode(text, type=_StoredFormat).format
            if found > FORMAT:
                raise ReadError(
                    f"the state of the windows was written by a later release of Weft (format {found}; this one knows "
                    f"{FORMAT}): install that release again"
                )
            kept = msgspec.json.decode(text, type=_Kept)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ReadError(f"the state of the windows is damaged: {error}; delete it to compute all again") from None
        if kept.source != source:
            raise ReadError(
                f"the sink has windows of {kept.source}, and this query reads {source}: give this query a sink of its "
                "own"
            )
        if kept.every_us != every_us:
            raise ReadError(
                f"every: the sink has windows of {kept.every_us / 1e6:g} s, and this query makes windows of "
                f"{every_us / 1e6:g} s: give this query a sink of its own"
            )
        if kept.grid != grid:
            raise ReadError(
                f"the sink has windows with {kept.grid or _PLAIN}, and this query makes windows with "
                f"{grid or _PLAIN}: give this query a sink of its own"
            )
        offsets = {int(shard): offset for shard, offset in kept.offsets.items()}
        ends = kept.complete_end, kept.given_end
        chunks = {int(shard): chunk for shard, chunk in kept.chunks.items()}
        pending, fresh = RangeSet(kept.pending), RangeSet(kept.fresh)
        return cls(
            source, every_us, offsets, pending, fresh, *ends, kept.definition, chunks, kept.given,
            grid, kept.reach, RangeSet(kept.broken), kept.rejected, dict(kept.unfinished), kept.usual,
        )  # fmt: skip


def bounded(windows: RangeSet, ranges_max: int = RANGES_MAX) -> RangeSet:
    """Return the windows; if they have more than ``ranges_max`` ranges, the nearest ranges are joined."""
    excess = len(windows) - ranges_max
    if excess <= 0:
        return windows
    ranges = list(windows)
    gaps = sorted(range(len(ranges) - 1), key=lambda i: ranges[i + 1][0] - ranges[i][1])
    joined = windows.copy()
    for i in gaps[:excess]:
        joined.add(ranges[i][1], ranges[i + 1][0])
    return joined


def _below(windows: RangeSet, end: int) -> RangeSet:
    return RangeSet((a, min(b, end)) for a, b in windows if a < end)


def _from(windows: RangeSet, first: int) -> RangeSet:
    return RangeSet((max(a, first), b) for a, b in windows if b > first)


def _within(windows: RangeSet, first: int, end: int) -> RangeSet:
    return _from(_below(windows, end), first)
