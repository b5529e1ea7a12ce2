"""Large batches: four edges send 5,000 records of 100 bytes in each, over the real link and its sending end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import random
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import psutil
import uvloop
from crc32c import crc32c

from bench.common import LOAD_CORE, PAYLOAD_BYTES, SERVER_CORE, encode_batch, pin
from tests.support.epochs import MemoryEpochs
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import HubSettings, SequencerSettings
from weft.commands.hub_settings import COMMIT_INTERVAL_CHEAP_S
from weft.protocols.chunk_index import Mark
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.protocols.shard.shard_state import ShardState
from weft.replication.events import LinkStatus
from weft.replication.flow_control import SenderSettings
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.replication.source import LaneSnapshot, OfferedLane
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

EDGES = 4
BATCH_RECORDS = 5000
TEMPLATES = 8
WARM_UP_S = 2.0


def json_payload(rng: random.Random, index: int) -> bytes:
    """Return a reading as a device would send it."""
    reading = {
        "device": f"press-{index % 50:02d}",
        "temperature": round(rng.gauss(60, 8), 2),
        "rms": round(rng.random(), 4),
        "state": rng.choice(["running", "idle", "setup"]),
        "count": index,
    }
    text = json.dumps(reading).encode()
    assert len(text) <= PAYLOAD_BYTES
    return text[:-1] + b" " * (PAYLOAD_BYTES - len(text)) + b"}"


def random_payload(rng: random.Random, index: int) -> bytes:
    """Return the worst case: nothing to compress."""
    return index.to_bytes(4, "little") + rng.randbytes(PAYLOAD_BYTES - 4)


PAYLOADS: dict[str, Callable[[random.Random, int], bytes]] = {"json": json_payload, "random": random_payload}


def make_templates(payload: Callable[[random.Random, int], bytes], seed: int) -> list[bytes]:
    """Return encoded batches whose sequence numbers are stamped later."""
    rng = random.Random(seed)
    keys = [b"plant/7/press-%02d/telemetry" % (index % 50) for index in range(BATCH_RECORDS)]
    return [
        encode_batch(0, time.time_ns(), 1000, keys, [payload(rng, index) for index in range(BATCH_RECORDS)])
        for _ in range(TEMPLATES)
    ]


def stamp(template: bytes, base_seq: int) -> bytes:
    """Return the batch with another base_seq and a checksum that matches."""
    data = bytearray(template)
    struct.pack_into("<Q", data, struct.calcsize("<4sIBBBBIIIII"), base_seq)
    struct.pack_into("<I", data, 4, crc32c(memoryview(data)[8:]))
    return bytes(data)


class EndlessLog:
    """A log that always holds more (``replication.source.LogSource``); it has one lane."""

    def __init__(self, payload: Callable[[random.Random, int], bytes], seed: int) -> None:
        self._templates = make_templates(payload, seed)
        self.acked = RangeSet()
        self._listeners: list[Callable[[Collection[int] | None], None]] = []
        self.batch_bytes = sum(map(len, self._templates)) / TEMPLATES

    def lanes(self) -> list[OfferedLane]:
        return [OfferedLane(1, "telemetry", ("plant/{line}/{machine}/telemetry",))]

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        end = self.acked.end + 1000 * BATCH_RECORDS
        return {lane: LaneSnapshot(RangeSet([(0, end)]), end, [], Mark(time.time_ns(), end)) for lane in lanes}

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:  # noqa: ARG002
        first = seq // BATCH_RECORDS
        count = max(1, int(bytes_max / self.batch_bytes))
        return [stamp(self._templates[n % TEMPLATES], n * BATCH_RECORDS) for n in range(first, first + count)]

    def high_watermark(self, hub: str, lane: int) -> int:  # noqa: ARG002
        return SEQ_END

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        pass

    def released(self, lane: int, ranges: RangeSet) -> None:
        self.acked.update(ranges)
        for listener in self._listeners:
            listener([lane])

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)


def serve(directory: str, parent: Connection) -> None:
    """Run the hub's process."""
    pin(SERVER_CORE)

    async def main() -> None:
        settings = HubSettings(
            store=directory,
            port=0,
            shards=1,
            table_interval_s=None,
            sequencer=SequencerSettings(commit_interval_min_s=COMMIT_INTERVAL_CHEAP_S),
        )
        hub = await Hub.open(settings)
        parent.send(hub.url)
        await asyncio.to_thread(parent.recv)
        await hub.close()

    uvloop.run(main())


async def measure(url: str, payloads: str, seconds: float, hub: psutil.Process) -> tuple[dict[str, Any], int]:
    """Send for a while and count what is acknowledged after the warm-up; also returns everything acknowledged."""
    logs = [EndlessLog(PAYLOADS[payloads], seed) for seed in range(EDGES)]
    settings = LinkSettings((url,), sender=SenderSettings(compression_level=1))
    links = [
        asyncio.create_task(
            run_link(log, LinkIdentity("default", f"edge-{i}", i, "bench"), settings, MemoryEpochs(), LinkStatus("hub"))
        )
        for i, log in enumerate(logs)
    ]
    await asyncio.sleep(WARM_UP_S)
    acked, cpu, started = sum(log.acked.count() for log in logs), sum(hub.cpu_times()[:2]), time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed = time.perf_counter() - started
    records = sum(log.acked.count() for log in logs) - acked
    cpu = sum(hub.cpu_times()[:2]) - cpu
    for link in links:
        link.cancel()
    await asyncio.gather(*links, return_exceptions=True)
    stored = sum(log.batch_bytes for log in logs) / EDGES / BATCH_RECORDS
    results = {
        "payloads": payloads,
        "edges": EDGES,
        "batch_records": BATCH_RECORDS,
        "payload_bytes": PAYLOAD_BYTES,
        "seconds": round(elapsed, 2),
        "records_per_s": round(records / elapsed),
        "payload_mb_per_s": round(records * PAYLOAD_BYTES / elapsed / 1e6, 1),
        "stored_mb_per_s": round(records * stored / elapsed / 1e6, 1),
        "hub_core_used": round(cpu / elapsed, 2),
        "hub_memory_mb": round(hub.memory_info().rss / 1e6),
    }
    return results, sum(log.acked.count() for log in logs)


async def records_in_log(directory: str) -> int:
    """Return what a fold from the first chunk to the last finds."""
    store = open_store(directory)
    log = ShardLog(store, await open_cluster(store, None), 0)
    state = ShardState(log.cluster.cluster_id, 0)
    await log.extend(state)
    return sum(state.next_offset.values())


def run(payloads: str, seconds: float, directory: str) -> dict[str, Any]:
    """Start the hub, measure, stop it, and look into its log."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(directory, theirs))
    process.start()
    theirs.close()  # or nothing would tell that a hub ended before it had an address
    try:
        url = ours.recv()
        pin(LOAD_CORE)
        measured: tuple[dict[str, Any], int] = uvloop.run(measure(url, payloads, seconds, psutil.Process(process.pid)))
    finally:
        with contextlib.suppress(BrokenPipeError):
            ours.send("stop")
        process.join(30)
    results, acked = measured
    stored = asyncio.run(records_in_log(directory))
    if stored < acked:
        raise SystemExit(f"{acked} records were acknowledged, the log holds {stored}")
    return results
