"""The log that the cases read: messages of a mixed plant as devices sent them, nothing alike in a row."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from bench import payloads
from bench.common import encode_batch
from bench.log_writer import Delivery, LogWriter
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer

STREAM = "telemetry"
TOPIC = "plant/{line}/{machine}/telemetry"
EDGES = ("press-1", "press-2", "press-3", "paint-1")
BATCH_RECORDS = 5_000
BATCHES_PER_CHUNK = 4
"""Batches of each edge node in a chunk."""
MACHINES = 200
START_S = 1_700_006_400
DAYS = 5


class Log(NamedTuple):
    """A log in a directory store, and what is in it."""

    root: str
    records: int
    bytes: int


def make_log(root: str, records: int) -> Log:
    """Write a log of several edge nodes in one shard, whose records spread evenly over five days."""
    pool = payloads.telemetry()
    writer = LogWriter(root, stream=STREAM)
    keys = [f"plant/{i % 4}/m{i * 7 % MACHINES}/telemetry".encode() for i in range(BATCH_RECORDS)]
    of_each = records // len(EDGES)
    interval_ns = DAYS * 86_400 * 10**9 // of_each
    size = 0
    for first in range(0, of_each, BATCH_RECORDS * BATCHES_PER_CHUNK):
        end = min(of_each, first + BATCH_RECORDS * BATCHES_PER_CHUNK)
        deliveries = []
        for at, edge in enumerate(EDGES, 1):
            batches = []
            for seq in range(first, end, BATCH_RECORDS):
                readings = [pool[(seq + i + 1_250 * at) % len(pool)] for i in range(min(BATCH_RECORDS, end - seq))]
                time = START_S * 10**9 + seq * interval_ns
                batches.append(encode_batch(seq, time, interval_ns, keys[: len(readings)], readings))
            size += sum(map(len, batches))
            deliveries.append(Delivery(edge, batches, at, topics=[TOPIC]))
        writer.write(*deliveries, received=START_S * 10**9 + end * interval_ns)
    return Log(root, of_each * len(EDGES), size)


async def tier(root: str) -> int:
    """Fold the whole log into the table; returns the rows."""
    store = open_store(root)
    cluster = await open_cluster(store, None)
    tierer = Tierer(store, cluster, "default", STREAM, await load_shards(store, cluster))
    rows = 0
    while moved := await tierer.step():
        rows += moved
    return rows


def tiered(root: str) -> int:
    """Fold the whole log into the table; returns the rows."""
    return asyncio.run(tier(root))
