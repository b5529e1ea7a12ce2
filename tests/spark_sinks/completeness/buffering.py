"""A fleet in which some devices buffer for hours: what edges take in, and what of it a hub's log has."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from bench.log_writer import Delivery, LogWriter
from tests.spark_sinks.completeness.conftest import EDGES, HOUR, SECOND, STREAM
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.chunk_index import Mark
from weft.protocols.payloads import PayloadKind

TOPIC = "plant/{line}/{machine}/telemetry"
STEP = HOUR // 6
"""Time between two events of a device."""
BUFFER_HOURS = 6


class Taken(NamedTuple):
    """A record as an edge takes it in."""

    at: int
    machine: str
    payload: bytes


class Buffering:
    """Devices at edges, a tenth of which deliver in bursts that are up to six hours apart.

    Args:
        start: first time of an event, ns since 1970.
        devices: of each edge.
        only: edges with devices; the others have none and are not there.
    """

    def __init__(
        self, root: str, start: int, hours: int, *, devices: int = 10, seed: int = 1, only: Iterable[str] = EDGES
    ) -> None:
        self.root, self.start = root, start
        self._random = random.Random(seed)
        self._writer = LogWriter(root, shards=2, stream=STREAM)
        self._waiting = {
            edge: sorted(self._of_edge(number, devices, hours))
            for number, edge in enumerate(EDGES)
            if edge in set(only)
        }
        self._next = dict.fromkeys(self._waiting, 0)

    def _of_edge(self, edge: int, devices: int, hours: int) -> Iterable[Taken]:
        for device in range(devices):
            buffers = device == edge % devices
            flush = self.start
            for number in range(hours * (HOUR // STEP)):
                event = self.start + number * STEP
                while flush < event:
                    # A device that flushes after this time at most holds nothing that is older.
                    flush += self._random.randrange(HOUR // 2, BUFFER_HOURS * HOUR - STEP)
                at = flush if buffers else event + self._random.randrange(5 * SECOND)
                value = self._random.randrange(1000)
                payload = msgspec.json.encode({"ts": event // 1_000_000, "v": value})
                yield Taken(at, f"e{edge}m{device}", payload)

    def add(self, edge: str, at: int, payload: bytes, machine: str = "odd") -> None:
        """Let an edge take in one more record, later than those that it has delivered."""
        self._waiting[edge] = sorted([*self._waiting[edge], Taken(at, machine, payload)])

    def until(self, hour: float, edges: Iterable[str] | None = None) -> None:
        """Edges deliver all that they took in before a time in hours since the start."""
        end = self.start + int(hour * HOUR)
        deliveries = [self._delivery(edge, end) for edge in (self._waiting if edges is None else edges)]
        self._writer.write(*deliveries, received=end)

    def _delivery(self, edge: str, end: int) -> Delivery:
        taken = [each for each in self._waiting[edge] if each.at < end]
        self._waiting[edge] = self._waiting[edge][len(taken) :]
        first = self._next[edge]
        self._next[edge] = first + len(taken)
        encoded = [] if not taken else [_encoded(first, taken)]
        mark = Mark(end, self._next[edge])
        return Delivery(edge, encoded, EDGES.index(edge) + 1, [TOPIC], PayloadKind.JSON, mark=mark)


def _encoded(first: int, taken: list[Taken]) -> bytes:
    times = struct.pack(f"<{len(taken)}q", *(each.at for each in taken))
    keys = [f"plant/a/{each.machine}/telemetry".encode() for each in taken]
    columns = batch.columns_from_lists(times, keys, [each.payload for each in taken])
    return batch.encode(1, first, columns, ClockReading(1, first, ClockState.SYNCED))
