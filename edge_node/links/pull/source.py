"""The lanes of a link, and that of the pull that runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from weft.edge_node.links.source import SegmentLogSource
from weft.protocols.batch import decode_header
from weft.protocols.ranges import RangeSet
from weft.replication.release import intersection
from weft.replication.source import LaneSnapshot, OfferedLane
from weft.storage.segment_log import LogError, SegmentLog

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
        self._tell(None)

    def show(self, numbers: RangeSet) -> None:
        """Let these numbers be sent, and no others."""
        self._shown = numbers
        if self._lane is not None:
            self._tell([self._lane.lane])

    def _tell(self, lanes: Collection[int] | None) -> None:
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
