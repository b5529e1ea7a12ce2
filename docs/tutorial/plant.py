"""A day of three edge nodes in the store of a hub, for the tutorial: real messages, at their own times.

An edge node stamps what it takes in with its own clock, so a day of records takes a day. Here the chunks are written as
the hub writes them, each with the time at which it would have been made; from there on everything is Weft's own code.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from bench.log_writer import Delivery, LogWriter
from examples.demo.devices import payloads
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.chunk_index import GapRange, Mark
from weft.protocols.segment import GapReason
from weft.storage.table_writer.settings import TableSettings
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer

# Not real nodes under a library that fakes the clock: monotonic clocks and TLS suffer.
STREAM = "telemetry"
EDGES = {"press-shop": "iot-device-01", "greenhouse": "iot-device-02", "warehouse": "iot-device-03"}
"""Edge node -> its device, one of the three Raspberry Pis of examples/demo/data."""
DAY = datetime(2020, 7, 13, tzinfo=UTC)
MINUTE = 60_000_000_000
EVERY = 10 * MINUTE
"""Time between two chunks. A hub makes one a second; the tutorial has no use for 86,400."""
FAULT = ("press-shop", 9 * 60, 9 * 60 + 10)
"""Edge whose device sends text in place of numbers, and between which minutes of the day."""
Value = TypeVar("Value")
_START = int(DAY.timestamp()) * 1_000_000_000


class Message(NamedTuple):
    """Message of a device, and when its edge took it in."""

    time: int
    """Nanoseconds since 1970."""
    payload: bytes


class Plant:
    """Three edge nodes and the store of their hub, at a moment of the day."""

    def __init__(self, store: str) -> None:
        """Make the store.

        Args:
            store: an empty folder, or one to be made.
        """
        self.now = _START
        self._writer = _aside(lambda: LogWriter(store, shards=2, stream=STREAM))
        self._messages = {edge: _messages(edge, device) for edge, device in EDGES.items()}
        self._delivered = dict.fromkeys(EDGES, 0)
        self._gaps: dict[str, list[GapRange]] = {edge: [] for edge in EDGES}
        self._offline: set[str] = set()

    def run_until(self, time: str) -> None:
        """Let the day continue until ``HH:MM``: edges take in messages, and those that are online deliver them."""
        end = _of_day(time)
        while self.now < end:
            self.now = min(self.now + EVERY, end)
            deliveries = [self._delivery(edge) for edge in EDGES if edge not in self._offline]
            self._write(deliveries)

    def _write(self, deliveries: list[Delivery]) -> None:
        _aside(lambda: self._writer.write(*deliveries, received=self.now))

    def cut(self, edge: str) -> None:
        """Cut the edge's link. It continues taking in messages."""
        self._offline.add(edge)

    def restore(self, edge: str, *, lost_before: str) -> None:
        """Bring the link back. The edge's disk is small: of what it took in meanwhile, it had to give up the oldest.

        Args:
            lost_before: time of the day of the oldest message that the edge still has.
        """
        self._offline.remove(edge)
        first, end = self._delivered[edge], self._taken_in(edge, _of_day(lost_before))
        self._gaps[edge] = [GapRange(first, end, GapReason.BUDGET)]
        self._delivered[edge] = end

    def make_table(self) -> int:
        """Move the log into the Delta table, as the hub does by itself every minute; return the number of new rows."""
        return _aside(lambda: asyncio.run(self._make_table()))

    async def _make_table(self) -> int:
        store, cluster = self._writer.store, self._writer.cluster
        views = await load_shards(store, cluster)
        tierer = Tierer(store, cluster, self._writer.tenant, STREAM, views, settings=TableSettings())
        rows = 0
        while moved := await tierer.step():
            rows += moved
        return rows

    def _delivery(self, edge: str) -> Delivery:
        """Return what the edge sends now: records, what it gave up, and its word that this is all."""
        first, end = self._delivered[edge], self._taken_in(edge, self.now)
        self._delivered[edge] = end
        gaps, self._gaps[edge] = self._gaps[edge], []
        batches = [_encoded(edge, first, self._messages[edge][first:end])] if first < end else []
        log_id = list(EDGES).index(edge) + 1
        topics = ["sensors/{device}/telemetry"]
        return Delivery(edge, batches, log_id, topics, mark=Mark(self.now, end), gaps=gaps)

    def _taken_in(self, edge: str, time: int) -> int:
        """Return how many messages the edge has taken in before a time."""
        return sum(message.time < time for message in self._messages[edge])


def _aside(work: Callable[[], Value]) -> Value:
    """Run what starts an event loop of its own: the cells of a notebook run in one already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def _of_day(time: str) -> int:
    hours, minutes = map(int, time.split(":"))
    return _START + (hours * 60 + minutes) * MINUTE


def _messages(edge: str, device: str) -> list[Message]:
    readings = sorted((json.loads(payload) for payload in payloads(device)), key=lambda reading: reading["ts"])
    return [_message(edge, reading) for reading in readings]


def _message(edge: str, reading: dict[str, object]) -> Message:
    time = int(float(str(reading["ts"])) * 1e6) * 1000
    data = reading["data"]
    assert isinstance(data, dict)
    if edge == FAULT[0] and FAULT[1] * MINUTE <= time - _START < FAULT[2] * MINUTE:
        data["temp"] = "ERR"
    return Message(time, json.dumps(reading, separators=(",", ":")).encode())


def _encoded(edge: str, first: int, messages: list[Message]) -> bytes:
    times = struct.pack(f"<{len(messages)}q", *(message.time for message in messages))
    keys = [f"sensors/{EDGES[edge]}/telemetry".encode()] * len(messages)
    columns = batch.columns_from_lists(times, keys, [message.payload for message in messages])
    return batch.encode(1, first, columns, ClockReading(1, messages[0].time - _START, ClockState.SYNCED))
