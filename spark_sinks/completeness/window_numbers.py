"""Windows by number: the windows that are due, and the state of a window query between two steps.

Window k holds the moments ``[k * every, (k + 1) * every)``, counted from 1970 in UTC as Spark's ``window`` does.
Nothing here knows Spark or the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from spark_sinks.completeness.definition import Definition
from spark_sinks.errors import ReadError
from weft.protocols.ranges import RangeSet

OPEN_MAX = 200
"""Maximum number of ranges of windows over open gaps. Beyond it, the nearest ranges are joined, and windows between
them count as incomplete, too."""
RANGES_MAX = 1000
"""Maximum number of ranges of windows that a state keeps. Beyond it, the nearest ranges are joined: windows between
them are computed without need, and none is lost."""
FORMAT = 1
_LOWEST = -(1 << 62)


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


class _StoredFormat(msgspec.Struct):
    """Part of a stored state that every release can read."""

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

    @classmethod
    def at(
        cls,
        moment_us: int | None,
        clock_us: int,
        every_us: int,
        grace_us: int,
        gaps_us: Iterable[tuple[int | None, int]] = (),
    ) -> Limits:
        """Return the limits at a moment and the fabric's clock; no moment means that no window is complete.

        Args:
            gaps_us: first moment of each open gap, None where it is unknown, and the moment after its last.
        """
        complete = _LOWEST if moment_us is None else moment_us // every_us
        opened = RangeSet()
        for first, last in gaps_us:
            start = _LOWEST if first is None else first // every_us
            opened.add(start, max(start + 1, -(-last // every_us)))
        return cls(complete, (clock_us - grace_us) // every_us, bounded(opened, OPEN_MAX))

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

    def see(self, offsets: dict[int, int], windows: RangeSet) -> None:
        """Record that rows up to ``offsets`` lie in ``windows``."""
        self.offsets = dict(offsets)
        self.fresh.update(windows)
        self.fresh = bounded(self.fresh)
        self.pending.update(self.fresh)
        self.pending = bounded(self.pending)

    def due(self, limits: Limits, *, healing: bool) -> RangeSet:
        """Return the windows to emit now.

        Args:
            healing: whether to emit changed windows again. A backlog that trickles in changes the same windows with
                each chunk, so a query does this less often than it reads the log.
        """
        complete = _below(self.pending, limits.complete_end).minus(limits.open)
        late = _within(self.fresh, limits.complete_end, limits.given_end)
        late.update(limits.opened(_below(self.fresh, min(limits.complete_end, limits.given_end))))
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
        self.pending.update(limits.opened(windows))
        self.pending = bounded(self.pending)

    def close(self, limits: Limits) -> None:
        """Record that all windows due at ``limits`` were emitted. The ends never go back."""
        self.complete_end = max(self.complete_end, limits.complete_end)
        self.given_end = max(self.given_end, limits.given_end)

    def copy(self) -> WindowState:
        """Return an independent state."""
        return replace(self, offsets=dict(self.offsets), pending=self.pending.copy(), fresh=self.fresh.copy())

    def encode(self) -> str:
        """Return the state as JSON, at most about 50 kB."""
        return msgspec.json.encode(
            _Kept(
                FORMAT, self.source, self.every_us, {str(k): self.offsets[k] for k in sorted(self.offsets)},
                list(self.pending), list(self.fresh), self.complete_end, self.given_end,
                self.definition, {str(shard): self.chunks[shard] for shard in sorted(self.chunks)}, self.given,
            )
        ).decode()  # fmt: skip

    @classmethod
    def decode(cls, text: str | bytes, source: str, every_us: int) -> WindowState:
        """Return a stored state.

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
        except msgspec.MsgspecError as error:
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
        offsets = {int(shard): offset for shard, offset in kept.offsets.items()}
        ends = kept.complete_end, kept.given_end
        chunks = {int(shard): chunk for shard, chunk in kept.chunks.items()}
        pending, fresh = RangeSet(kept.pending), RangeSet(kept.fresh)
        return cls(source, every_us, offsets, pending, fresh, *ends, kept.definition, chunks, kept.given)


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
