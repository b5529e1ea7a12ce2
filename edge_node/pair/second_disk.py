"""A node's own side of its pair: what the peer has, acknowledgements that wait for it, and times with one disk."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec

from weft.config.units import approximate_duration
from weft.edge_node.links.high_watermarks import PEER
from weft.edge_node.links.links import Links
from weft.edge_node.links.source import BootClocks, OfferedStream, SegmentLogSource
from weft.protocols.chunk_index import GapRange, LaneFlag
from weft.protocols.link import Clock
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.replication.events import LaneEnded, LaneTaken
from weft.replication.source import LaneSnapshot
from weft.storage.filesystem import FileSystem, write_atomically
from weft.storage.segment_log import SegmentLog

logger = logging.getLogger(__name__)

Durable = Callable[[BaseException | None], None]

# Times in which records had one disk.
#
# ``<data_dir>/pair/alone`` has them, written before the first acknowledgement of such a time. The last one has no end
# while it lasts, also over restarts.

ALONE_FILE: Final = "alone"
TIMES_MAX: Final = 64
"""Maximum number of times that are kept; the two oldest are joined into one, which speaks of more time and never of
less."""
FILE_BYTES_MAX: Final = 1 << 16


class TimesAlone:
    """The times of one node. Blocks on the disk.

    Args:
        path: of their file.
    """

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self.times: list[tuple[int, int | None]] = self._read()
        """(from, until) in ns since 1970, ascending; the last one's end is None while it lasts."""

    @property
    def since(self) -> int | None:
        """Return the beginning of the time that lasts; None if there is none."""
        return self.times[-1][0] if self.times and self.times[-1][1] is None else None

    def begin(self, now: int) -> None:
        """Note that records have one disk from now on, durably when this returns.

        Raises:
            OSError: it cannot be stored.
        """
        if self.since is None:
            self._write([*self.times, (now, None)])

    def end(self, now: int, lasted: int = 0) -> None:
        """Note that all records have two disks again.

        Args:
            lasted: ns that have passed at least: a clock that was set back shortens no time.

        Raises:
            OSError: it cannot be stored.
        """
        if (since := self.since) is not None:
            self._write([*self.times[:-1], (since, max(since + lasted, now))])

    def _write(self, times: list[tuple[int, int | None]]) -> None:
        while len(times) > TIMES_MAX:
            times = [(times[0][0], times[1][1]), *times[2:]]
        self._filesystem.make_directory(os.path.dirname(self._path))
        write_atomically(self._filesystem, self._path, msgspec.json.encode(times))
        self.times = times

    def _read(self) -> list[tuple[int, int | None]]:
        try:
            if self._filesystem.size(self._path) <= FILE_BYTES_MAX:
                return msgspec.json.decode(self._filesystem.read(self._path), type=list[tuple[int, int | None]])
            reason = f"longer than {FILE_BYTES_MAX} bytes"
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as error:
            reason = str(error)
        logger.error(
            "%s cannot be read (%s): when records had one disk is unknown from before this start", self._path, reason
        )
        # Not "never": the file may have said that a time alone lasts.
        return [(0, None)]


# What the peer has, and acknowledgements that wait for it.


class _Waiting(NamedTuple):
    since: float
    """Time at which its records were durable here, by the loop's clock."""
    wants: list[tuple[int, int, int]]
    """(stream, first, end) that the peer must have, or every link."""
    callback: Durable


class SecondDisk:
    """Records of this node's log that are on a second disk: the peer's, or those of all links' hubs.

    Acknowledgements that wait for it keep their order. Event loop's thread only.

    Args:
        alone_after_s: time after which they wait no longer.
        refuses: True if they wait for as long as it takes instead.
        times: notes the times in which they do not wait; None where none waits.
        wall_clock: ns since 1970.
        answered: sends what the callbacks have put together (``TickBatch.committed``).
    """

    def __init__(
        self,
        log: SegmentLog,
        alone_after_s: float,
        times: TimesAlone | None,
        *,
        wall_clock: Callable[[], int],
        answered: Callable[[], None],
        refuses: bool = False,
    ) -> None:
        self._refuses = refuses
        self._log, self._times, self._wall_clock, self._answered = log, times, wall_clock, answered
        self._alone_after_s = alone_after_s
        self._loop = asyncio.get_running_loop()
        self._has: dict[int, RangeSet] = {}
        """Stream -> numbers that are on a second disk."""
        self._asked: dict[int, int] = {}
        """Stream -> end of the numbers for which an acknowledgement was asked."""
        self._safe: dict[int, RangeSet] = {}
        """Stream -> numbers whose records every link had brought to its hub while the log had them too. Other numbers
        that hubs account for may be lost here under a notice, and be nowhere but in the copy."""
        self._presumed: dict[int, RangeSet] = {}
        """Stream -> numbers of the log at the start that the peer may have had, until it says what it has."""
        self._queue: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._waits = True
        """False while acknowledgements do not wait."""
        self._began = self._loop.time()
        """Time since which the present time alone lasts at least, by the loop's clock; before one, of the start."""
        self._wish: tuple[str, int] | None = None
        """Reason to be alone, and time from when on, which came while the file was written."""
        self._target: tuple[float, dict[int, int]] | None = None
        """Time, and ends of the streams then, up to which the peer has to catch up; streams of which it has leave."""
        self.is_closed = False
        log.take_released()

    def follow(self, streams: Iterable[int]) -> None:
        """Watch over these streams from now on, and no others. Records that are in the log already are not waited
        for."""
        known = self._asked
        self._asked = {stream: known.get(stream, self._log.next_seq(stream)) for stream in streams}
        for stream in self._asked.keys() - known.keys():
            # What was acknowledged before this start is not known: a peer that lacks some of it may have lost it.
            self._presumed[stream] = RangeSet([(0, self._asked[stream])])
        self._has = {stream: self._has.get(stream, RangeSet()) for stream in self._asked}
        self._safe = {stream: self._safe.get(stream, RangeSet()) for stream in self._asked}

    def kept(self, stream: int) -> tuple[RangeSet, RangeSet]:
        """Return the log's durable records that not every hub has, and the numbers of those that every hub has.

        The second set has what was seen since the start, and does not change afterwards.
        """
        kept, released = self._log.kept(stream)
        if stream in self._safe:
            self._safe[stream].update(released)
            released = self._safe[stream].copy()
        return kept, released

    @property
    def is_alone(self) -> bool:
        """Return whether records are acknowledged with one disk now."""
        return not self._waits

    @property
    def waits_always(self) -> bool:
        """Return whether nothing is ever acknowledged that neither the peer nor every hub has."""
        return self._times is not None and self._refuses

    @property
    def waiting(self) -> int:
        """Return the number of commits' callbacks that wait for the peer."""
        return len(self._queue)

    def lag(self) -> dict[int, int]:
        """Return stream -> number of durable records with one disk, for streams with any."""
        return {stream: count for stream in self._asked if (count := self._missing(stream).count())}

    def _missing(self, stream: int, end: int | None = None) -> RangeSet:
        kept, has = self._log.kept(stream)[0], self._has[stream]
        cut = ((first, last if end is None else min(last, end)) for first, last in kept)
        return RangeSet(part for first, last in cut for part in has.missing(first, last))

    # -- acknowledgements

    def after(self, callback: Durable) -> Durable:
        """Return the callback for the log of an acknowledgement about all records that were appended until now."""
        wants = []
        for stream, end in self._log.ends(self._asked).items():
            if end > (first := self._asked[stream]):
                wants.append((stream, first, end))
                self._asked[stream] = end
        return partial(self._durable, wants, callback)

    def _durable(self, wants: list[tuple[int, int, int]], callback: Durable, error: BaseException | None) -> None:
        """Acknowledge, or wait: the records are durable here."""
        if error is not None or (not self._queue and (not self._waits or self._are_there(wants))):
            callback(error)
            return
        self._queue.append(_Waiting(self._loop.time(), wants, callback))
        self._arm()

    def _are_there(self, wants: list[tuple[int, int, int]]) -> bool:
        return all(stream not in self._has or self._has[stream].covers(first, end) for stream, first, end in wants)

    def _arm(self) -> None:
        if self._timer is None and self._queue and self._writing is None and not (self.is_closed or self._refuses):
            self._timer = self._loop.call_at(self._queue[0].since + self._alone_after_s, self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        if self._queue and self._loop.time() >= self._queue[0].since + self._alone_after_s:
            waited_s = self._loop.time() - self._queue[0].since
            self.go_alone(f"the peer has not stored records for {approximate_duration(waited_s)}", waited_s)
        self._arm()

    def _flush(self) -> None:
        answered = False
        while self._queue and (not self._waits or self._are_there(self._queue[0].wants)):
            answered = True
            try:
                self._queue.popleft().callback(None)
            except Exception:
                logger.exception("an acknowledgement failed")
        if answered:
            self._answered()
        self._arm()

    # -- the peer

    def opened(self, stream: int, answer: LaneTaken | LaneEnded) -> None:
        """Note that the peer opens a lane: the ranges that it has follow, and what it had before counts no more."""
        if isinstance(answer, LaneTaken) and stream in self._has:
            before, self._has[stream] = self._has[stream], self._safe[stream].copy()
            before.update(self._presumed.pop(stream, ()))
            if self._target is not None:
                self._target[1][stream] = self._log.next_seq(stream)
            # The ranges come with the next event, in the same step.
            self._loop.call_soon(self._compare, stream, before)

    def _compare(self, stream: int, before: RangeSet) -> None:
        """Notice a peer that has lost records which had two disks."""
        if stream in self._has and any(before.within(*run) for run in self._missing(stream)):
            self.go_alone("the peer no longer has records that it had")

    def copied(self, stream: int, numbers: RangeSet) -> None:
        """Note what the peer has."""
        if stream in self._has:
            self._has[stream].update(numbers)
            self._flush()
            self._look_level()

    def look(self) -> set[int]:
        """Note what links have brought to hubs since, once in a while; return the streams of which they have more."""
        more = set()
        # From the account of releases: a full log may have deleted the records already.
        for stream, numbers in self._log.take_released().items():
            if numbers and stream in self._asked:
                self._safe[stream].update(numbers)
                self._has[stream].update(numbers)
                more.add(stream)
        if more:
            self._flush()
        times = self._times
        is_new = times is not None and times.since is None and self._waits
        if is_new and self._presumed and self._loop.time() - self._began >= self._alone_after_s:
            # Records of an earlier start: with `acks: own`, or without a pair, nothing waited for their second disk.
            had = {stream: numbers for stream, numbers in self._presumed.items() if stream in self._asked}
            if any(numbers.within(*run) for stream, numbers in had.items() for run in self._missing(stream)):
                self.go_alone("the peer has not said what it has of the log since this start")
        self._look_level()
        return more

    # -- alone

    def go_alone(self, why: str, waited_s: float = 0.0) -> None:
        """Acknowledge without the peer once it is durable that records have one disk from some time on."""
        self._target = None
        if self._times is None or not self._waits or self.is_closed:
            return
        self._wish = self._wish or (why, self._wall_clock() - int(waited_s * 1e9))
        self._follow_wish()

    def _follow_wish(self) -> None:
        if self._times is not None and self._wish is not None and self._writing is None and not self.is_closed:
            (why, began), self._wish = self._wish, None
            self._writing = asyncio.create_task(self._begin(self._times, why, began), name="pair-alone")

    async def _begin(self, times: TimesAlone, why: str, began: int) -> None:
        if times.since is None:
            self._began = self._loop.time()
        try:
            await asyncio.to_thread(times.begin, began)
        except OSError as error:
            # Acknowledged, and recorded nowhere, records would have two disks by what the node says.
            logger.error("acknowledgements wait: that records have one disk now cannot be stored: %s", error)
            self._wish = why, began
            await asyncio.sleep(1.0)
        else:
            # Records that were acknowledged have one disk; with ``refuses`` further ones wait all the same.
            self._waits, self._wish = self._refuses, None
            goes_on = "further ones wait" if self._refuses else "further ones are acknowledged"
            logger.warning("records have one disk from now on, and %s: %s", goes_on, why)
        self._written()

    def _written(self) -> None:
        self._writing = None
        self._follow_wish()
        self._flush()

    def _look_level(self) -> None:
        """Wait for the peer again once it has caught up, and end the time alone once all of it has two disks."""
        times = self._times
        if times is None or times.since is None or self._writing is not None or self.is_closed:
            return
        now = self._loop.time()
        if self._target is None:
            self._target = now, {stream: self._log.next_seq(stream) for stream in self._asked}
        since, ends = self._target
        # Up to the first that is behind, and those that are not leave: acknowledgements of all lanes come in one step.
        while ends:
            stream, end = next(iter(ends.items()))
            if self._is_behind(stream, end):
                return
            del ends[stream]
        self._target = None
        if not self._waits:
            if now - since <= self._alone_after_s:
                # From here on acknowledgements wait. The time alone ends when what was appended before has two disks.
                self._waits = True
            self._look_level()
            return
        self._writing = asyncio.create_task(self._end(times), name="pair-together")

    def _is_behind(self, stream: int, end: int) -> bool:
        """Return whether the peer, or this node's disk, lacks records below ``end`` of a stream that is watched."""
        if stream not in self._asked:
            return False
        return self._log.durable_end(stream) < end or bool(self._missing(stream, end))

    async def _end(self, times: TimesAlone) -> None:
        try:
            lasted = self._loop.time() - self._began
            await asyncio.to_thread(times.end, self._wall_clock(), int(lasted * 1e9))
            logger.info("all records have two disks again")
        except OSError as error:
            logger.error("that all records have two disks again cannot be stored: %s", error)
            await asyncio.sleep(1.0)
        self._written()

    async def close(self) -> None:
        """End: acknowledgements that wait are not sent, so devices send their messages again."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])


# The log as the source of the link to the peer.


_NEED_NO_COPY: Final = (GapReason.ABSENT, GapReason.BUDGET, GapReason.EXPIRED, GapReason.OPERATOR)
"""Reasons of gaps whose records the peer need not keep: the node dropped them by its rules, or an operator did."""


class PairSource(SegmentLogSource):
    """The streams that links carry, without what all of these links have brought to hubs."""

    def __init__(self, second_disk: SecondDisk, streams: Mapping[str, OfferedStream], links: Links) -> None:
        """Offer ``streams`` of a node's log by their names."""
        self._compared_hubs: set[str] = set()
        """Hubs with which the log was compared: the peer may bring them what it has by itself."""
        self._is_compared = False
        self._links = links
        super().__init__(links.log, streams, second_disk.copied, links.wall_clock, links.watermarks, links.clocks)
        self._tell: Callable[[Collection[int] | None], None] = lambda _: None
        self._second_disk = second_disk
        self._promise = LaneFlag.TWO_DISKS if second_disk.waits_always else LaneFlag(0)
        # Once: lanes that differ from those before are opened again.
        self._lanes = [
            lane._replace(tells_safe=True, answered=partial(second_disk.opened, lane.lane), flags=self._flags)
            for lane in self._lanes
        ]

    def high_watermark(self, hub: str, lane: int) -> int:  # noqa: ARG002 - whichever peer it is
        """Return the end of the lane's records ever sent to a peer."""
        return super().high_watermark(PEER, lane)

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:  # noqa: ARG002
        """Make durable that peers can have these numbers, and with them each hub with which the log was compared.

        Raises:
            OSError: the write failed.
        """
        for each in (PEER, *sorted(self._compared_hubs)):
            await super().prepare_to_send(each, ends)

    async def follow_hubs(self) -> None:
        """Let the peer bring to hubs by itself what it has, once the log was compared with all of them.

        A log that was restored from an old copy while its hubs are out of reach uses numbers again that they have for
        others. What its peer brought of these would hide that from the node for good.

        Raises:
            OSError: the write failed; the next call tries again.
        """
        hubs = self._links.compared_hubs
        if (hubs is not None) is self._is_compared and (hubs or set()) == self._compared_hubs:
            return
        for hub in sorted((hubs or set()) - self._compared_hubs):
            await super().prepare_to_send(hub, self._log.ends(self._streams))
        self._is_compared, self._compared_hubs = hubs is not None, hubs or set()
        if hubs:
            # Again for what was sent during the writes.
            await self.prepare_to_send("", self._log.ends(self._streams))
        self._lanes = [lane._replace(flags=self._flags) for lane in self._lanes]
        self._tell(None)

    @property
    def _flags(self) -> LaneFlag:
        return self._promise if self._is_compared else self._promise | LaneFlag.UNCOMPARED

    @property
    def is_compared(self) -> bool:
        """Return whether the peer may bring to hubs by itself what it has."""
        return self._is_compared

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        """Call ``callback`` after each commit, and by ``tell``."""
        self._tell, unlisten = callback, super().listen(callback)
        return unlisten

    def tell(self, lanes: Collection[int]) -> None:
        """Have the peer told what hubs have by now of lanes."""
        self._tell(lanes)

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        """Return the records that the peer should have, and as gaps the numbers that it need not keep."""
        return {lane: self._kept(lane, state) for lane, state in super().states(lanes).items()}

    def _kept(self, lane: int, state: LaneSnapshot) -> LaneSnapshot:
        kept, safe = self._second_disk.kept(lane)
        # Those, too, that hubs had before this start, and that the log does not have any more: the copy may have them.
        at_hubs = self._links.at_all_hubs(self._streams[lane])
        safe.update((first, min(end, state.end)) for first, end in at_hubs if first < state.end)
        gaps = [gap for gap in state.gaps if gap.reason not in _NEED_NO_COPY]
        dropped = [gap for gap in state.gaps if gap.reason in _NEED_NO_COPY and gap.reason != GapReason.ABSENT]
        gaps += [GapRange(gap.first, gap.end, GapReason.ABSENT) for gap in dropped]
        gaps += [GapRange(first, end, GapReason.ABSENT) for first, end in safe]
        held = RangeSet(part for first, end in kept for part in state.held.within(first, end))
        return state._replace(held=held, gaps=gaps)


class PeerClocks:
    """The clocks of the log's boots, for the peer, whose own time counts for nothing."""

    is_unknown = False

    def __init__(self, clocks: BootClocks) -> None:
        self._clocks = clocks

    @property
    def is_synchronised(self) -> bool:
        """Return whether a time source keeps the wall clock right."""
        return self._clocks.is_synchronised

    def note_time(self, hub: str, time: int, error: int) -> None:
        """Pass over the peer's time: it may be as wrong as this node's."""

    def notices(self) -> list[Clock]:
        """Return the clock notices about the log's boots."""
        return self._clocks.notices()
