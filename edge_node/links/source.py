"""The node's log as a source for a link's sender, with the clocks of its boots, and the lanes of a link with that of
a pull."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from weft.edge_node.links.high_watermarks import HubHighWatermarks
from weft.protocols.batch import ClockReading, ClockState, decode_header
from weft.protocols.chunk_index import GapRange, Mark
from weft.protocols.errors import CodecError
from weft.protocols.lane import Origin
from weft.protocols.link import Clock
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import ClockNotice, GapReason
from weft.replication.runner.progress import Acknowledged
from weft.replication.source import LaneSnapshot, OfferedLane, intersection, nothing_acknowledged
from weft.storage.segment_log import LogError, SegmentLog

# Clocks of the log's boots, as far as the node learned them: hubs correct the stamps of an unset one.
#
# A machine without a battery clock stamps records with a wrong time until the network sets it. As soon as a link has
# received the time from a hub, or a time source has set the clock, the node can relate the boot's monotonic clock to
# it, and so knows the time of every record of the boot. The log keeps this relation, as the records may wait for
# their hub longer than the boot lasts.
#
# One answer of a hub may be wrong, so a relation is learned from two that agree. It then stays, since two answers
# that differ by a millisecond would step the clock; but two later ones that agree and are minutes away correct it,
# for the records that no hub has yet.

logger = logging.getLogger(__name__)

# The finding goes into the log and not into a file beside it, which would not go where the log goes. The machine's
# clock is not set: that is no business of a service, and records that are stamped would not change.
AGREE_NS = 1_000_000_000
"""Difference up to which two answers agree, besides the bounds on their errors."""
DIFFERS_NS = 120_000_000_000
"""Difference from which on later answers correct a relation. Two hub nodes that take links differ by less: each is off
by a minute at most."""
FRESH_NS = 600_000_000_000
"""Age up to which the last answer of another hub node speaks for the learned relation. A linked one answers each
minute."""
SOURCES_MAX = 16
"""Maximum number of hub nodes whose last answer is kept; the one that was silent for longest is forgotten first."""


class _Answer(NamedTuple):
    boot_id: int
    offset: int
    """Time minus the boot's monotonic clock, ns."""
    error: int
    monotonic: int
    """Reading of that clock when the answer came."""

    def agrees(self, offset: int, error: int, within: int = AGREE_NS) -> bool:
        """Return whether an offset with such an error says the same time."""
        return abs(self.offset - offset) <= within + self.error + error


class BootClocks:
    """The clocks of one log's boots. Event loop's thread; making one blocks on the disk.

    Args:
        reading: the machine's clocks now; None when they are unknown; no relation is then learned.
        clock_error: bound of the wall clock's error while a time source keeps it right, ns.
    """

    def __init__(
        self,
        log: SegmentLog,
        reading: Callable[[], ClockReading] | None,
        wall_clock: Callable[[], int],
        clock_error: Callable[[], int],
    ) -> None:
        self._log = log
        self._reading = reading
        self._wall_clock = wall_clock
        self._clock_error = clock_error
        self._boots = {notice.boot_id: notice for notice in log.clocks()}
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        """The last answer of each hub node, the newest at the end."""
        self._was_unset = reading is not None and self._may_have_been_unset(reading())

    def _may_have_been_unset(self, now: ClockReading) -> bool:
        """Return whether records of this boot may have stamps of an unset clock."""
        if now.state is ClockState.UNSYNCED:
            return True
        # An earlier process of this boot may have written before the clock was set: the last records are this boot's.
        return now.boot_id not in self._boots and now.boot_id in self._last_boots()

    def _last_boots(self) -> Iterable[int]:
        for stream in self._log.streams().values():
            try:
                batches = self._log.read(stream, max(0, self._log.durable_end(stream) - 1), 1)
                yield from (decode_header(batch).boot_id for batch in batches)
            except (OSError, LogError, CodecError) as error:
                logger.info("the last records of stream %d do not name their boot: %s", stream, error)

    def look(self) -> None:
        """Record the time once a time source has set the clock of a boot that began without."""
        if self._reading is None:
            return
        now = self._reading()
        if now.state is ClockState.UNSYNCED:
            self._was_unset = True
        elif self._was_unset and now.boot_id not in self._boots:
            self._learn(now, self._wall_clock(), self._clock_error())

    @property
    def is_synchronised(self) -> bool:
        """Return whether a time source keeps the wall clock right."""
        return self._reading is not None and self._reading().state is ClockState.SYNCED

    @property
    def is_unknown(self) -> bool:
        """Return whether the records that arrive now have a time that nothing corrects yet."""
        now = None if self._reading is None else self._reading()
        return now is not None and now.state is ClockState.UNSYNCED and now.boot_id not in self._boots

    def note_time(self, hub: str, time: int, error: int) -> None:
        """Note the time that a hub node reports, unless the clock is right. With one more that agrees, it is the time.

        Args:
            hub: the node.
            time: nanoseconds since 1970, now.
            error: bound on its error, ns.
        """
        self.look()
        now = None if self._reading is None else self._reading()
        if now is None or now.state is ClockState.SYNCED:
            return
        answer = _Answer(now.boot_id, time - now.monotonic, error, now.monotonic)
        others = [each for each in self._answers.values() if each.boot_id == now.boot_id]
        last = self._answers.pop(hub, None)
        self._answers[hub] = answer
        if len(self._answers) > SOURCES_MAX:
            self._answers.popitem(last=False)
        if not any(each.agrees(answer.offset, error) for each in others):
            return
        known = self._boots.get(now.boot_id)
        if known is None:
            self._learn(now, time, error)
        elif not any(
            each.agrees(known.offset, known.error, DIFFERS_NS)
            for each in (answer, *others)
            if each is not last and now.monotonic - each.monotonic < FRESH_NS
        ):
            # No other node says now what was learned: of two that differ, the first one learned would stay.
            seconds = (answer.offset - known.offset) / 1e9
            logger.warning(
                "hubs now report a time that is %+.0f s away from the one that this boot learned. Records that no hub "
                "has yet get the new one",
                seconds,
            )
            self._learn(now, time, error)

    def notices(self) -> list[Clock]:
        """Return the clocks that hubs need, for the beginning of each connection."""
        log_id = self._log.log_id
        return [Clock(log_id, boot.boot_id, boot.monotonic, boot.offset, boot.error) for boot in self._boots.values()]

    def correction(self) -> int:
        """Return the nanoseconds to add to the wall clock now, as hubs correct the records that arrive now."""
        if self._reading is None:
            return 0
        now = self._reading()
        boot = self._boots.get(now.boot_id)
        if boot is None or now.state is ClockState.SYNCED:
            return 0
        return boot.offset + now.monotonic - self._wall_clock()

    def _learn(self, now: ClockReading, time: int, error: int) -> None:
        notice = self._boots[now.boot_id] = ClockNotice(now.boot_id, now.monotonic, time - now.monotonic, error)
        try:
            self._log.note_clock(notice)
        except LogError as problem:
            logger.warning(
                "the log has no room for the record of this boot's clock (%s). Records of this boot keep the "
                "stamps of the unset clock if they reach their hub after a restart of the machine",
                problem,
            )


# The node's log as a source for a link's sender.

MARGIN_NS = 1_000_000
"""Margin by which marks of an unset clock lag: that clock and the monotonic clock, by which the hub corrects the
records, do not run exactly alike."""


class OfferedStream(NamedTuple):
    """The declaration of a stream to a hub."""

    topics: tuple[str, ...]
    payload: PayloadKind = PayloadKind.BYTES


class SegmentLogSource:
    """Streams of the segment log as lanes of one link (``replication.source.LogSource``)."""

    def __init__(  # noqa: PLR0917
        self,
        log: SegmentLog,
        streams: Mapping[str, OfferedStream],
        released: Callable[[int, RangeSet], None],
        wall_clock: Callable[[], int],
        watermarks: HubHighWatermarks,
        clocks: BootClocks | None = None,
        acknowledged: Acknowledged | None = None,
    ) -> None:
        """Offer ``streams`` by their names.

        Args:
            watermarks: shared by all links of the log.
            clocks: likewise; None when the wall clock is right.
            acknowledged: likewise; None when it is unknown.
        """
        self._clocks = clocks
        self._log = log
        self._watermarks = watermarks
        self._pages = log.page_reader()
        self._lanes = [
            OfferedLane(
                log.stream(name),
                name,
                *offered,
                origin=self._origin,
                acknowledged=nothing_acknowledged
                if acknowledged is None
                else partial(self._acknowledged_of, acknowledged, name),
            )
            for name, offered in streams.items()
        ]
        self._begins = log.begins()
        self._streams = {lane.lane: lane.stream for lane in self._lanes}
        self._wall_clock = wall_clock
        self.released = released

    def lanes(self) -> list[OfferedLane]:
        """Return the link's streams."""
        return self._lanes

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        """Return the log's present state."""
        # A record may still come with the time that the clock shows now, but none with an earlier one.
        time = self._wall_clock() - 1
        correction = self._clocks.correction() if self._clocks is not None else 0
        if correction:
            correction -= MARGIN_NS
        return {lane: self._state(lane, time, correction) for lane in lanes}

    def _state(self, lane: int, time: int, correction: int) -> LaneSnapshot:
        now = self._log.snapshot(lane)
        gaps = [GapRange(gap.first, gap.end, gap.reason) for gap in now.gaps]
        # The log released these because every hub that it knew had them: another hub, or one whose store was restored
        # to an earlier state, may get them from such a hub. Records that retention deleted unreplicated have a notice
        # in the log.
        gaps += [GapRange(first, end, GapReason.ABSENT) for first, end in now.gone]
        said, seq = self._log.mark(lane, time)
        mark = Mark(said + correction, seq)
        settled = said == time  # otherwise a function has rows to compute, or records are not durable yet
        return _from(self._begins.get(lane, 0), LaneSnapshot(now.held, now.next_seq, gaps, mark, settled))

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        """Return batches, from memory at once, or from the disk in a thread.

        Raises:
            OSError: the log cannot be read.
        """
        try:
            return (await self._pages.read(lane, seq, bytes_max)).batches
        except LogError as error:
            raise OSError(str(error)) from error

    def _acknowledged_of(self, acknowledged: Acknowledged, stream: str) -> list[tuple[str, list[Range]]]:
        """Return the hubs' acknowledgements of a stream under the node's present name: they have the rest under
        another."""
        begin = self._begins.get(self._log.stream(stream), 0)
        found = [
            (hub, [(max(first, begin), end) for first, end in ranges if end > begin])
            for hub, ranges in acknowledged.ranges_of(stream)
        ]
        return [(hub, ranges) for hub, ranges in found if ranges]

    def _origin(self, number: int) -> Origin | None:
        return self._log.origins().get(number)

    def high_watermark(self, hub: str, lane: int) -> int:
        """Return the end of the lane's records ever sent to the hub by any link of this log; to any hub without one."""
        stream = self._streams[lane]
        return self._watermarks.get(hub, stream) if hub else self._watermarks.of_any(stream)

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        """Return at once, except for the first time after a start: that call writes to the disk, in a thread.

        Raises:
            OSError: the write failed.
        """
        await self.prepare(hub, {self._streams[lane]: end for lane, end in ends.items()})

    async def prepare(self, hub: str, named: Mapping[str, int]) -> None:
        """Prepare to send records of streams, also of others than the link's; as ``prepare_to_send``, by names."""
        if self._watermarks.is_unsent and any(named.values()):
            await asyncio.to_thread(self._watermarks.record_first_send)
        if self._watermarks.blocks(hub, named):
            await asyncio.to_thread(self._watermarks.record_passed, hub, named)
        self._watermarks.raise_to(hub, named)

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        """Call ``callback`` after each commit, with the streams that it touched."""
        return self._log.listen_to_streams(callback)


def _from(begin: int, state: LaneSnapshot) -> LaneSnapshot:
    """Return the state of a lane that begins at a number: earlier ones belong to the lane of the node's earlier name.

    Hubs have them there. Offered under this name too, they would be in the table twice.
    """
    if not begin:
        return state
    state.held.remove(0, begin)
    gaps = [GapRange(max(gap.first, begin), gap.end, gap.reason) for gap in state.gaps if gap.end > begin]
    return state._replace(gaps=[GapRange(0, begin, GapReason.RENAMED), *gaps])


# The lanes of a link, and that of the pull that runs.

Listener = Callable[[Collection[int] | None], None]


class PullingSource:
    """The streams of a link, and one lane with the shown numbers of a pull (``replication.source.LogSource``).

    Args:
        base: the link's own lanes.
        released: called with the numbers of the pull's lane that the hub has.
    """

    def __init__(self, base: SegmentLogSource, log: SegmentLog, released: Callable[[int, RangeSet], None]) -> None:
        self._base, self._log, self._released = base, log, released
        self._pages = log.page_reader()
        self._lane: OfferedLane | None = None
        self._own = {lane.lane for lane in base.lanes()}
        self._shown = RangeSet()
        self.skipped = RangeSet()
        """Shown numbers that the log holds and did not give: they are not read again."""
        self._listeners: list[Listener] = []

    def offer(self, lane: OfferedLane | None) -> None:
        """Offer the lane of a pull, without numbers, from now on; None to end it."""
        self._lane, self._shown, self.skipped = lane, RangeSet(), RangeSet()
        self._report(None)

    def show(self, numbers: RangeSet) -> None:
        """Let these numbers be sent, and no others."""
        self._shown = numbers
        if self._lane is not None:
            self._report([self._lane.lane])

    def _report(self, lanes: Collection[int] | None) -> None:
        for listener in list(self._listeners):
            listener(lanes)

    def lanes(self) -> list[OfferedLane]:
        """Return the link's streams, and that of the pull."""
        return self._base.lanes() if self._lane is None else [*self._base.lanes(), self._lane]

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        """Return the log's present state."""
        wanted = list(lanes)
        found = self._base.states([lane for lane in wanted if lane in self._own])
        for lane in wanted:
            if lane not in self._own:
                held = intersection(self._shown, self._log.ranges(lane))
                found[lane] = LaneSnapshot(held, self._log.next_seq(lane), [], None, is_settled=True)
        return found

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        """Return batches; of the pull's lane only those whose records are all shown.

        Raises:
            OSError: the log cannot be read.
        """
        if lane in self._own:
            return await self._base.read(lane, seq, bytes_max)
        try:
            batches = (await self._pages.read(lane, seq, bytes_max)).batches
        except LogError as error:
            raise OSError(str(error)) from error
        headers = [decode_header(batch) for batch in batches]
        found = [
            (header, batch)
            for header, batch in zip(headers, batches, strict=True)
            if self._shown.covers(header.base_seq, header.end_seq)
        ]
        start = min((header.base_seq for header, _ in found), default=self._shown.contiguous_end(seq))
        if start > seq:
            self.skipped.add(seq, start)
        return [batch for _, batch in found]

    def high_watermark(self, hub: str, lane: int) -> int:
        """Return the end of the lane's records ever sent to the hub by any link of this log."""
        return self._base.high_watermark(hub, lane)

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        """Make the ends durable, as the base does.

        Raises:
            OSError: a write failed.
        """
        own = {lane: end for lane, end in ends.items() if lane in self._own}
        if own:
            await self._base.prepare_to_send(hub, own)
        names = {number: name for name, number in self._log.streams().items()} if len(own) < len(ends) else {}
        others = {names[lane]: end for lane, end in ends.items() if lane not in self._own}
        if others:
            await self._base.prepare(hub, others)

    def released(self, lane: int, ranges: RangeSet) -> None:
        """Pass on what the hub has. Records of a pull's lane are not released: another link may carry the stream."""
        if lane in self._own:
            self._base.released(lane, ranges)
        else:
            self._released(lane, ranges)

    def listen(self, callback: Listener) -> Callable[[], None]:
        """Call ``callback`` after each commit, and after each change of the pull's lane."""
        self._listeners.append(callback)
        unlisten = self._base.listen(callback)

        def end() -> None:
            self._listeners.remove(callback)
            unlisten()

        return end
