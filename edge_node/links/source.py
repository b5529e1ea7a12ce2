"""The node's log as a source for a link's sender."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from weft.edge_node.links.boot_clocks import BootClocks
from weft.edge_node.links.hub_high_watermarks import HubHighWatermarks
from weft.protocols.chunk import GapRange, Mark
from weft.protocols.origin import Origin
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import GapReason
from weft.replication.runner.acknowledged import Acknowledged
from weft.replication.source import LaneSnapshot, OfferedLane, nothing_acknowledged
from weft.storage.segment_log import LogError, SegmentLog

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
                acknowledged=nothing_acknowledged if acknowledged is None else partial(self._told, acknowledged, name),
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

    def _told(self, acknowledged: Acknowledged, stream: str) -> list[tuple[str, list[Range]]]:
        """Return the hubs' acknowledgements of a stream under the node's present name: they have the rest under
        another."""
        begin = self._begins.get(self._log.stream(stream), 0)
        found = [
            (hub, [(max(first, begin), end) for first, end in ranges if end > begin])
            for hub, ranges in acknowledged.told(stream)
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
