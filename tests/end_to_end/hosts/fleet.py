"""Edges in one process: real links over logs in memory, which remember when each record was acknowledged."""

from __future__ import annotations

import asyncio
import struct
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.chunk_index import Mark
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.replication.events import LinkStatus
from weft.replication.flow_control import SenderSettings
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.replication.source import LaneSnapshot, OfferedLane

STREAM = "telemetry"
READ_BATCHES = 64
KEY = b"plant/line/machine/telemetry"


class FleetLog:
    """The log of one edge (``replication.source.LogSource``): one lane, a batch for each record."""

    def __init__(self, edge: str) -> None:
        self.edge = edge
        self.made_at = array("d")
        """Monotonic seconds, of each record."""
        self.acked_at = array("d")
        self._batches: list[bytes] = []
        self._listeners: list[Callable[[Collection[int] | None], None]] = []

    def append(self) -> None:
        """Append one record, whose payload is its number."""
        seq = len(self._batches)
        times = struct.pack("<q", time.time_ns())
        columns = batch.columns_from_lists(times, [KEY], [b"%d" % seq])
        self._batches.append(bytes(batch.encode(1, seq, columns, ClockReading(1, 1, ClockState.SYNCED))))
        self.made_at.append(time.monotonic())
        for listener in self._listeners:
            listener([1])

    def lanes(self) -> list[OfferedLane]:
        return [OfferedLane(1, STREAM, ("plant/{line}/{machine}/telemetry",))]

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        end = len(self._batches)
        held = RangeSet([(0, end)] if end else [])
        return {lane: LaneSnapshot(held, end, [], Mark(time.time_ns(), end)) for lane in lanes}

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        return self._batches[seq : seq + READ_BATCHES]

    def high_watermark(self, hub: str, lane: int) -> int:
        return SEQ_END

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        pass

    def released(self, lane: int, ranges: RangeSet) -> None:
        now = time.monotonic()
        while ranges.covers(len(self.acked_at), len(self.acked_at) + 1):
            self.acked_at.append(now)

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)


class Fleet:
    """Edges, each of which publishes at a constant rate whatever becomes of its hub.

    Args:
        urls: of the hub's nodes; each edge has another one first.
        ack_timeout_s: as the setting of a link.
    """

    def __init__(self, edges: int, urls: Sequence[str], *, rate: float, ack_timeout_s: float) -> None:
        self.logs = [FleetLog(f"edge-{number}") for number in range(edges)]
        self.statuses = [LinkStatus("hub") for _ in range(edges)]
        self._rate = rate
        self._is_publishing = True
        sender = SenderSettings(ack_timeout=int(ack_timeout_s * 1e9))
        self._settings = [
            LinkSettings(
                tuple(urls[(number + at) % len(urls)] for at in range(len(urls))),
                retry_min_s=0.05,
                retry_max_s=0.5,
                connect_timeout_s=2.0,
                sender=sender,
            )
            for number in range(edges)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start links and devices."""
        for number, log in enumerate(self.logs):
            identity = LinkIdentity("default", log.edge, 1 + number, "weft test")
            link = run_link(log, identity, self._settings[number], MemoryEpochs(), self.statuses[number])
            self._tasks.append(asyncio.create_task(link))
            self._tasks.append(asyncio.create_task(self._publish(log, number / len(self.logs) / self._rate)))

    async def _publish(self, log: FleetLog, delay_s: float) -> None:
        due = time.monotonic() + delay_s
        while self._is_publishing:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            log.append()
            due += 1 / self._rate

    async def finish(self, timeout_s: float) -> None:
        """Publish no more, wait until the hub has everything, and close the links."""
        self._is_publishing = False
        await until(lambda: all(len(log.acked_at) == len(log.made_at) for log in self.logs), timeout_s)
        await self.close()

    async def close(self) -> None:
        """Close the links at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def at(self, urls: Collection[str]) -> list[int]:
        """Return the numbers of the edges whose link is at one of these URLs."""
        return [number for number, status in enumerate(self.statuses) if status.url.rstrip("/") in urls]

    def latencies(
        self, since: float = 0.0, leaving_out: Iterable[tuple[float, float, Collection[int]]] = ()
    ) -> list[float]:
        """Return the seconds from each record made since a moment to its acknowledgement, in order of length.

        Args:
            leaving_out: from when until when the records of which edges do not count, if any were on their way then.
        """
        hit: dict[int, list[tuple[float, float]]] = {}
        for begin, end, edges in leaving_out:
            for edge in edges:
                hit.setdefault(edge, []).append((begin, end))
        return sorted(
            acked - made
            for edge, log in enumerate(self.logs)
            for made, acked in zip(log.made_at, log.acked_at, strict=False)
            if made >= since and not any(made < end and begin < acked for begin, end in hit.get(edge, ()))
        )

    def served_again(self, edges: Iterable[int], since: float) -> list[float]:
        """Return for each edge the seconds from a moment to the first acknowledgement of a record made after it; of
        edges that have none yet, the seconds until now."""
        found = []
        for log in (self.logs[edge] for edge in edges):
            first = next((at for at, made in enumerate(log.made_at) if made >= since), len(log.made_at))
            end = log.acked_at[first] if first < len(log.acked_at) else time.monotonic()
            found.append(end - since)
        return found
