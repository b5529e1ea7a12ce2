"""Windows by number: the windows that are due, and the state of a window query between two steps.

A grid numbers the windows. Nothing here knows Spark or the log.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec
from pyspark.sql import DataFrame

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.replaced import Replaced, ReplacesRanges
from weft.config.functions.windows import Grid
from weft.protocols.ranges import Range, RangeSet
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreUnfit, open_store

# Distances between windows of event time and the times at which their records were taken in.
#
# A query of windows reads a window's records by the time at which edges took them in. Most come within a usual
# distance of their window; devices that buffer and clocks that are wrong bring others. The reach keeps the larger
# distances, by window, so that a window that is computed again has all its records. It can be computed again from the
# log.

PARTS_MAX = 500
"""Maximum number of parts of a reach. Beyond it, the most similar neighbours are joined: more is read, and nothing is
missed."""
STEP_US = 60_000_000
"""Smallest distance that is kept; others are powers of two of it, so that neighbouring windows have the same."""


class Stretch(NamedTuple):
    """Windows with distances beyond the usual ones."""

    first: int
    end: int
    before_us: int
    """Longest time by which a record was taken in before its window began."""
    after_us: int
    """Longest time by which a record was taken in after its window had ended."""


class TakenIn(NamedTuple):
    """Records of one window."""

    number: int
    earliest_us: int
    """First time at which one of them was taken in."""
    latest_us: int
    last_us: int = 0
    """Last time by which one of them belongs to the window."""


@dataclass(slots=True)
class Reach:
    """Distances of windows, with bounded memory."""

    grid: Grid
    before_us: int
    """Usual distance before a window, which has no part."""
    after_us: int
    """Usual distance after a window."""
    parts: list[Stretch] = field(default_factory=list)
    """Ascending, and never overlapping."""

    def see(self, seen: Iterable[TakenIn]) -> None:
        """Add records, each window once."""
        found = []
        for number, earliest, latest, _ in seen:
            before, after = self.grid.start(number) - earliest, latest - self.grid.start(number + 1)
            if before > self.before_us or after >= self.after_us:
                found.append(Stretch(number, number + 1, _rounded(before), _rounded(after)))
        if found:
            self.parts = _bounded(_with(self.parts, sorted(found)))

    def taken_in(self, first: int, end: int) -> tuple[int, int]:
        """Return the first time, and the time after the last, at which records of the windows ``[first, end)`` were
        taken in."""
        before, after = self.before_us, self.after_us
        low = bisect_right(self.parts, first, key=_end)
        for part in self.parts[low : bisect_left(self.parts, end, key=_first)]:
            before, after = max(before, part.before_us), max(after, part.after_us)
        return self.grid.start(first) - before, self.grid.start(end) + after


def _first(part: Stretch) -> int:
    return part.first


def _end(part: Stretch) -> int:
    return part.end


def _rounded(distance_us: int) -> int:
    """Return the distance, rounded up; 0 for none."""
    if distance_us < 0:
        return 0
    steps = distance_us // STEP_US
    return STEP_US << steps.bit_length()


def _with(parts: list[Stretch], found: list[Stretch]) -> list[Stretch]:
    """Return parts with single windows among them, which get the larger distances of the two."""
    result: list[Stretch] = []
    at = 0
    for part in parts:
        while at < len(found) and found[at].first < part.first:
            _add(result, found[at])
            at += 1
        rest = part
        while at < len(found) and found[at].first < part.end:
            one = found[at]
            at += 1
            both = _both(one, rest._replace(first=one.first, end=one.end))
            if both[2:] == part[2:]:
                continue
            if rest.first < one.first:
                _add(result, rest._replace(end=one.first))
            _add(result, both)
            rest = rest._replace(first=one.end)
        if rest.first < rest.end:
            _add(result, rest)
    for one in found[at:]:
        _add(result, one)
    return result


def _add(parts: list[Stretch], part: Stretch) -> None:
    """Append a part, or join it with the last one where the two differ in nothing."""
    if parts and parts[-1].end == part.first and parts[-1][2:] == part[2:]:
        parts[-1] = _both(parts[-1], part)
    else:
        parts.append(part)


def _both(one: Stretch, other: Stretch) -> Stretch:
    return Stretch(
        min(one.first, other.first),
        max(one.end, other.end),
        max(one.before_us, other.before_us),
        max(one.after_us, other.after_us),
    )


def _bounded(parts: list[Stretch]) -> list[Stretch]:
    excess = len(parts) - PARTS_MAX
    if excess <= 0:
        return parts
    costs = sorted((_cost(one, other), at) for at, (one, other) in enumerate(pairwise(parts)))
    joins = {at for _, at in costs[:excess]}
    found: list[Stretch] = []
    for at, part in enumerate(parts):
        if at - 1 in joins:
            found[-1] = _both(found[-1], part)
        else:
            found.append(part)
    return found


def _cost(one: Stretch, other: Stretch) -> int:
    """Return about how much time more is read for two parts that are joined."""
    joined = _both(one, other)
    most = joined.before_us + joined.after_us
    extra = (most - each.before_us - each.after_us for each in (one, other))
    counts = (one.end - one.first, other.end - other.first)
    return most * (other.first - one.end) + sum(each * count for each, count in zip(extra, counts, strict=True))


# Due windows, cut into commits of a bounded size, and the reads that bring the records of each.
#
# A read costs a plan, however few records it brings. So windows with few records between them are read together, and
# the records between are dropped after the read. A stream of few records over many windows takes as many commits as
# it has windows with records, not as many as there are hours.

IsCheap = Callable[[int, int], bool]
"""Predicate: reading the records of windows ``[first, end)`` without need costs less than another read."""


@dataclass(slots=True)
class Portion:
    """The windows of one commit."""

    ranges: list[Range] = field(default_factory=list)
    """Windows to emit, including windows without records; ascending."""
    filled: list[Range] = field(default_factory=list)
    """Windows of the portion that can have records."""
    reads: list[Range] = field(default_factory=list)
    """Windows to read, which cover ``filled``."""

    @property
    def count(self) -> int:
        """Return the number of windows that can have records."""
        return sum(end - first for first, end in self.filled)

    @property
    def reads_more(self) -> bool:
        """Return whether the reads bring windows that must not be emitted."""
        return sum(end - first for first, end in self.reads) > self.count

    def fill(self, first: int, end: int, *, together: bool) -> None:
        """Add windows that can have records, and read them with the previous ones or on their own."""
        self.filled.append((first, end))
        if together and self.reads:
            self.reads[-1] = (self.reads[-1][0], end)
        else:
            self.reads.append((first, end))


def portions(
    windows: RangeSet, windows_max: int, reads_max: int, is_cheap: IsCheap, filled: RangeSet | None = None
) -> list[Portion]:
    """Return the windows in portions for one commit each, ascending.

    Args:
        windows_max: maximum number of windows of a portion that can have records.
        reads_max: maximum number of reads of a portion.
        filled: windows that have records; None means all.
    """
    held = None if filled is None else list(filled)
    found = [Portion()]
    for first, end in windows:
        at = first
        for start, stop in [(first, end)] if held is None else _parts(held, first, end):
            begin = start
            while begin < stop:
                last = found[-1]
                room = windows_max - last.count
                together = bool(last.reads) and (last.reads[-1][1] == begin or is_cheap(last.reads[-1][1], begin))
                if room <= 0 or (not together and len(last.reads) == reads_max):
                    if at < begin:
                        last.ranges.append((at, begin))
                    found.append(Portion())
                    at = begin
                    continue
                taken = min(room, stop - begin)
                last.fill(begin, begin + taken, together=together)
                begin += taken
        found[-1].ranges.append((at, end))
    return [portion for portion in found if portion.ranges]


def _parts(ranges: list[Range], first: int, end: int) -> Iterator[Range]:
    """Yield the parts of ascending ranges that lie in ``[first, end)``."""
    low = bisect_right(ranges, first, key=lambda each: each[1])
    for start, stop in ranges[low : bisect_left(ranges, end, key=lambda each: each[0])]:
        yield max(start, first), min(stop, end)


# The definition of a query's windows, by parts: a query detects by it that the sink's windows have another one.

IfChanged = Literal["refuse", "recompute", "keep"]
IF_CHANGED: tuple[IfChanged, ...] = ("refuse", "recompute", "keep")
Definition = dict[str, str]
"""Part of the definition, such as ``by`` -> a digest of it."""
_DIGEST_BYTES = 8
LATER_FIELDS = frozenset({"definition", "message", "framing", "personal"})
"""Fields of a schema and its columns that releases before do not know: one that is not set counts for nothing, so that
windows of such a release are not taken for others."""


def definition_of(parts: Mapping[str, object]) -> Definition:
    """Return the digests of a definition's parts. For functions, only the name counts."""
    return {name: _digest(_canonical(value)) for name, value in parts.items()}


def changed_parts(held: Definition, given: Definition) -> list[str]:
    """Return the parts that differ; none when the definition of one side is not known."""
    if not held or not given:
        return []
    return sorted(name for name in {*held, *given} if held.get(name) != given.get(name))


def changed_sentence(parts: list[str]) -> str:
    """Return the message for changed parts, with advice."""
    return (
        f"{' and '.join(parts)} changed since the sink's windows were written, and windows of both kinds would be "
        "side by side. Start once with if_changed='recompute' (--if-changed recompute) to compute all windows again. "
        "With 'keep', windows stay as they are until their records change"
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _canonical(value: object) -> str:
    if isinstance(value, Mapping):
        return msgspec.json.encode(
            {str(name): _canonical(each) for name, each in value.items()}, order="sorted"
        ).decode()
    if isinstance(value, frozenset | set | tuple | list):
        return msgspec.json.encode(sorted(map(_canonical, value))).decode()
    if isinstance(value, msgspec.Struct):
        return _shown(value)
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return value.strip() if isinstance(value, str) else str(value)


def _shown(value: object) -> str:
    """Return ``repr``, without later fields that are not set."""
    if isinstance(value, msgspec.Struct):
        fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
        texts = [
            f"{name}={_shown(each)}"
            for name, each in fields
            if not (each is None or each is False) or name not in LATER_FIELDS
        ]
        return f"{type(value).__name__}({', '.join(texts)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {_shown(each)}' for name, each in value.items())}}}"
    return repr(value)


OPEN_MAX = 200
"""Maximum number of ranges of windows over open gaps. Beyond it, the nearest ranges are joined, and windows between
them count as incomplete, too."""
RANGES_MAX = 1000
"""Maximum number of ranges of windows that a state keeps. Beyond it, the nearest ranges are joined: windows between
them are computed without need, and none is lost."""
UNFINISHED_MAX = 1000
"""Maximum number of windows whose last row is remembered."""
FORMAT = 2
"""Format of states. Builds before the first release wrote format 1, too."""
_LOWEST = -(1 << 62)
_PLAIN = "no offset, zone UTC, time _time"


class _PersistedWindows(msgspec.Struct, frozen=True):
    """State of a window query as it is stored."""

    format: int
    source: str
    every_us: int
    offsets: dict[str, int]
    pending: list[tuple[int, int]]
    fresh: list[tuple[int, int]]
    complete_end: int
    given_end: int
    definition: Definition
    chunks: dict[str, tuple[int, int, int]]
    given: bool
    grid: str
    reach: list[Stretch]
    broken: list[tuple[int, int]]
    rejected: dict[str, int]
    unfinished: list[tuple[int, int]]
    usual: tuple[int, int]


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
    """Definition of the emitted windows; empty before the first."""
    chunks: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Number, footer CRC and time (ns since 1970) of the chunk with the last record below an offset, if known: it
    distinguishes the log from one that was restored to an earlier state."""
    given: bool = False
    """True after windows were emitted, so that the sink has rows."""
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
            self,
            offsets=dict(self.offsets),
            pending=self.pending.copy(),
            fresh=self.fresh.copy(),
            reach=list(self.reach),
            broken=self.broken.copy(),
            rejected=dict(self.rejected),
            unfinished=dict(self.unfinished),
        )

    def encode(self) -> str:
        """Return the state as JSON, at most about 100 kB."""
        return msgspec.json.encode(
            _PersistedWindows(
                FORMAT,
                self.source,
                self.every_us,
                {str(k): self.offsets[k] for k in sorted(self.offsets)},
                list(self.pending),
                list(self.fresh),
                self.complete_end,
                self.given_end,
                self.definition,
                {str(shard): self.chunks[shard] for shard in sorted(self.chunks)},
                self.given,
                self.grid,
                self.reach,
                list(self.broken),
                self.rejected,
                sorted(self.unfinished.items()),
                self.usual,
            )
        ).decode()

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
            if found < FORMAT:
                raise ReadError(
                    "the state of the windows was written by a pre-release build and cannot be opened: delete it to "
                    "compute all again"
                )
            kept = msgspec.json.decode(text, type=_PersistedWindows)
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
            source,
            every_us,
            offsets,
            pending,
            fresh,
            *ends,
            kept.definition,
            chunks,
            kept.given,
            grid,
            kept.reach,
            RangeSet(kept.broken),
            kept.rejected,
            dict(kept.unfinished),
            kept.usual,
        )


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


# The checkpoint of a query of windows: its place, and its contents that may not fit the query.


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Place of a query's position and of its pending windows.

    Without it every start computes all windows again, to the same result.
    """

    folder: str | os.PathLike[str]
    """Folder or ``s3://`` URI."""
    options: Mapping[str, str] | None = field(default=None, repr=False)
    """Options of its object store, as ``store_options``. None takes those of the hub's store."""
    definition: Mapping[str, object] | None = None
    """Texts or numbers that change with the definition of the windows, such as ``{"version": 2}``. None takes the
    query's ``aggregate``, ``by``, ``prepare``, ``schema``, ``edges`` and ``keys``; for functions only their names."""
    if_changed: IfChanged = "refuse"
    """Action when the windows in the checkpoint have another definition: ``refuse`` to start, ``recompute`` all windows
    that have records in log or table, or ``keep`` the written windows until their records change."""

    def __post_init__(self) -> None:
        """Check the action.

        Raises:
            ReadError: it is not one of these words.
        """
        if self.if_changed not in IF_CHANGED:
            raise ReadError(f"if_changed: expected {', '.join(IF_CHANGED)}; got {self.if_changed!r}")


# The place of windows and of a query's state: a sink and a file.

Sink = Callable[[DataFrame, int], None]
"""Called with rows and a number that grows; it upserts them by ``window_start`` and the keys. A sink with
``ReplacesRanges`` also removes its other rows of these windows."""
STATE_KEY = "windows/state.json"


class WindowStore:
    """A sink of windows, and a file with the query's state.

    Rows are written first, then the state: after a crash between the two, the windows are computed and replaced again,
    with the same rows. So the table is right without the state, and the sink need not store it.

    Args:
        file: None stores no state, so that each start computes all windows again.
    """

    def __init__(self, sink: Sink, file: StateFile | None) -> None:
        self._sink = sink
        self._file = file
        self._step = 0

    def load(self) -> str | None:
        """Return the last state; None before the first."""
        return self._file.load() if self._file else None

    def write(self, frame: DataFrame, replaced: Replaced) -> None:
        """Replace windows. Durable when this returns, as far as the sink promises it."""
        if isinstance(self._sink, ReplacesRanges):
            self._sink.replace(frame, self._step, replaced)
        else:
            self._sink(frame, self._step)
        self._step += 1

    def keep(self, state: str) -> None:
        """Store the state. Durable when this returns.

        Raises:
            ReadError: another query has stored one since this one loaded or stored it.
        """
        if self._file:
            self._file.save(state)


def stored_state(folder: str) -> str | None:
    """Return the state of a query of windows in a folder; None when there is none yet.

    Raises:
        ReadError: it is no folder of a store.
        StoreError: the store does not answer.
    """
    return StateFile(folder).load()


class StateFile:
    """A text in a folder.

    Args:
        folder: path or URI of an object store.
        options: for the object store; what is missing comes from the environment.

    Raises:
        ReadError: it is no folder of a store.
    """

    def __init__(self, folder: str, options: Mapping[str, str] | None = None) -> None:
        try:
            self._store: ObjectStore = open_store(
                folder, {name.upper(): value for name, value in (options or {}).items()}
            )
        except (ValueError, StoreUnfit) as error:
            raise ReadError(f"checkpoint: {error}") from error
        self._etag: str | None = None

    def load(self) -> str | None:
        """Return the text; None before there is one."""
        try:
            found = run(self._store.get(STATE_KEY))
        except NotFound:
            self._etag = None
            return None
        self._etag = found.etag
        return bytes(found.data).decode(errors="replace")

    def save(self, state: str) -> None:
        """Replace the text that this object loaded or saved.

        Raises:
            ReadError: another writer has replaced it meanwhile.
        """
        data = state.encode()
        try:
            if self._etag is None:
                self._etag = run(self._store.create(STATE_KEY, data))
            else:
                self._etag = run(self._store.swap(STATE_KEY, data, self._etag))
        except (AlreadyExists, PreconditionFailed):
            raise ReadError(
                "checkpoint: another query has written the state of these windows; run one of them, or give each a "
                "checkpoint and a sink of its own"
            ) from None
