"""Requests of a hub on a bucket, counted at the bucket: the bills of a busy and of an idle month.

Runs the sequencers of sixteen shards, as a new store has them, the table step, and what a process reads of its cluster,
against a local S3 server, for two and a half minutes each, and counts the requests that arrive there. Busy: 20 streams
of each edge get records in every commit. Idle: each edge is linked, and sends a mark of each of 1,000 streams every ten
seconds, so all of them stay complete; 20 of them have a table, and none gets records. An edge per shard is enough,
since 1,000 edges share the same chunks. All intervals are divided by the speed, and the counts are scaled to a month,
by commits and table steps that the machine really made. Compaction and checkpoints come four times as often as in
truth, so that they happen within the run: the sum errs on the expensive side. Bytes are not counted: storage and
traffic cost what they cost anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

from bench.common import encode_batch
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster import READ_INTERVAL_S
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.lane_session import LaneClaim, LaneSession
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.commands.hub_settings import COMMIT_INTERVAL_BUCKET_S as COMMIT_INTERVAL_S
from weft.commands.hub_settings import TABLE_INTERVAL_BUCKET_S
from weft.protocols import batch
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import Lane
from weft.protocols.shard.placement import shard_of
from weft.storage.chunk_log import BOOT_CLOCK, ShardLog
from weft.storage.cluster import open_cluster, read_cluster
from weft.storage.cluster_log import INTERVAL_S, ClusterLog, ClusterLogFollower
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings

SHARDS = 16
MONTH_S = 30 * 86_400
SECONDS, SPEED = 150.0, 6.0
"""Length of the run, and how much faster than in truth everything happens."""
PRICES = {"write": 0.005 / 1000, "list": 0.005 / 1000, "read": 0.0004 / 1000, "delete": 0.0}
"""US dollars per request, S3 Standard in us-east-1: PUT, POST and LIST; GET and HEAD; DELETE."""
TABLES = 20
MARK_INTERVAL_S = 10.0
"""Interval at which an idle link sends its marks."""
TARGET_USD = 300.0
_LINE = re.compile(r'"(?:\x1b\[[\d;]*m)*(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP')
"""A line of the server's log. That of an answer 404 is coloured: most looks for the next chunk or entry are such."""
_URL = re.compile(r"http://127\.0\.0\.1:(\d+)")
_PARTS = (
    ("/cluster/", "cluster log"),
    ("cluster.json", "cluster"),
    ("prefix=weft%2Fcluster", "cluster log"),
    ("/chunk/", "chunks"),
    ("/snapshot/", "snapshots"),
    ("manifest", "manifests"),
    ("_delta_log", "tables: log"),
    (".parquet", "tables: files"),
    ("prefix=weft%2Ftables", "tables: log"),
)


class Kind(NamedTuple):
    """A kind of request, as the bill has it."""

    part: str
    price: str


class Server:
    """A local S3 server that counts what it is asked."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.url = url
        self.counts: Counter[Kind] = Counter()
        self._lines = process.stderr
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        assert self._lines is not None
        for line in self._lines:
            if found := _LINE.search(line):
                self.counts[kind_of(*found.groups())] += 1


def kind_of(method: str, path: str) -> Kind:
    """Return what a request is charged as, and for what it was."""
    part = next((name for text, name in _PARTS if text in path), "other")
    if "list-type" in path:
        return Kind(part, "list")
    if method == "DELETE" or (method == "POST" and "delete" in path):
        return Kind(part, "delete")
    return Kind(part, "read" if method in ("GET", "HEAD") else "write")


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Run the server on a free port."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := _URL.search(line):
                yield Server(process, f"http://127.0.0.1:{found[1]}")
                return
        raise RuntimeError("the S3 server did not start")
    finally:
        process.kill()
        process.wait()


class Month(NamedTuple):
    """Work of the edges in a month."""

    streams: int
    is_idle: bool

    @property
    def interval_s(self) -> float:
        """Return the seconds, in truth, between two messages of an edge."""
        return MARK_INTERVAL_S if self.is_idle else COMMIT_INTERVAL_S


BUSY, IDLE = Month(TABLES, is_idle=False), Month(1000, is_idle=True)


class Edge:
    """An edge whose streams all get a record, or a mark alone, in every interval."""

    def __init__(self, sequencer: Sequencer, name: str, streams: int) -> None:
        self._sequencer = sequencer
        self._sessions = [
            LaneSession(
                Lane("default", name, 1, f"stream-{i:04d}"),
                LaneClaim(1),
                ["plant/{line}/#"],
                lambda _: None,
                lambda *_: None,
            )
            for i in range(streams)
        ]
        self._seq = 0

    async def open(self) -> None:
        """Take the lanes."""
        for session in self._sessions:
            self._sequencer.open(session)
        await asyncio.gather(*(session.opened for session in self._sessions))

    def mark(self) -> None:
        """Send a mark of each stream."""
        now = time.time_ns()
        for number, session in enumerate(self._sessions):
            self._sequencer.put_mark(session, Mark(now, self._seq if number < TABLES else 0))

    async def send(self) -> None:
        """Send a record and a mark in each stream that has a table."""
        now = time.time_ns()
        data = encode_batch(self._seq, now, 1, [b"plant/7/press"], [b"x" * 100])
        item = batch.verify(data), memoryview(data)
        self._seq += 1
        for session in self._sessions[:TABLES]:
            if not self._sequencer.put(session, [item]):
                await self._sequencer.sessions.room(session)
            self._sequencer.put_mark(session, Mark(now, self._seq))


def edge_of(shard: int) -> str:
    """Return the name of an edge in a shard."""
    return next(name for name in map("edge-{}".format, range(1000)) if shard_of("default", name, SHARDS) == shard)


def make_bucket(server: Server) -> None:
    """Make the bucket."""
    with urlopen(Request(f"{server.url}/bucket", method="PUT"), timeout=30):
        pass


class Measured(NamedTuple):
    """The requests, and the share of the expected work that the machine did."""

    counts: Counter[Kind]
    commits: float
    """Share of the expected commits."""
    steps: float
    """Share of the expected table steps."""


async def measure(server: Server, month: Month, seconds: float, speed: float) -> Measured:
    """Run the hub."""
    options = {"AWS_ENDPOINT_URL": server.url, "AWS_REGION": "us-east-1"}
    store = open_store("s3://bucket/weft", {**options, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"})
    cluster = await open_cluster(store, SHARDS)
    plain = SequencerSettings(commit_interval_s=COMMIT_INTERVAL_S)
    fast = replace(
        plain,
        commit_interval_s=COMMIT_INTERVAL_S / speed,
        mark_interval_s=plain.mark_interval_s / speed,
        follow_interval_s=plain.follow_interval_s / speed,
        watermark_validity_s=plain.watermark_validity_s / speed,
        snapshot_interval_s=plain.snapshot_interval_s / speed,
    )
    sequencers = [
        Sequencer(
            ShardLog(store, cluster, shard),
            fast,
            clock=HubClock(time.time_ns, BOOT_CLOCK),
            random_bits=random.SystemRandom().getrandbits,
        )
        for shard in range(SHARDS)
    ]
    for sequencer in sequencers:
        await sequencer.start()
    edges = [Edge(sequencer, edge_of(shard), month.streams) for shard, sequencer in enumerate(sequencers)]
    for edge in edges:
        await edge.open()
    often = TableSettings(
        interval_s=TABLE_INTERVAL_BUCKET_S / speed, compact_files_min=8, checkpoint_versions=25, vacuum_interval_s=1e9
    )
    tables = TableService(store, cluster, settings=often)
    for edge in edges:
        await edge.send()
    await asyncio.sleep(1.0)  # they are committed
    await tables.run_once()
    await asyncio.sleep(1.0)  # the server's lines come late
    steps: list[float] = []
    keeping = asyncio.create_task(keep_tables(tables, TABLE_INTERVAL_BUCKET_S / speed, steps))
    follower = ClusterLogFollower(ClusterLog(store, cluster.cluster_id), lambda: None, INTERVAL_S / speed)
    await follower.start()
    reading = asyncio.create_task(read_clusters(store, READ_INTERVAL_S / speed))
    before, began, first = Counter(server.counts), time.monotonic(), sum(s.state.n for s in sequencers)
    while (now := time.monotonic()) - began < seconds:
        for edge in edges:
            if month.is_idle:
                edge.mark()
            else:
                await edge.send()
        await asyncio.sleep(max(0.0, month.interval_s / speed - (time.monotonic() - now)))
    chunks = sum(s.state.n for s in sequencers) - first
    counts = Counter(server.counts) - before
    keeping.cancel()
    reading.cancel()
    await follower.close()
    for sequencer in sequencers:
        await sequencer.close()
    simulated = seconds * speed
    commit_s = plain.mark_interval_s if month.is_idle else COMMIT_INTERVAL_S
    commits = chunks / (SHARDS * simulated / commit_s)
    return Measured(counts, commits, len(steps) / (simulated / TABLE_INTERVAL_BUCKET_S))


async def keep_tables(tables: TableService, interval_s: float, steps: list[float]) -> None:
    """Run the table step at fixed times, as far as the machine can, and note when each ended."""
    due = time.monotonic() + interval_s
    while True:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        due += interval_s
        await tables.run_once()
        steps.append(time.monotonic())


async def read_clusters(store: ObjectStore, interval_s: float) -> None:
    """Read what a process reads of its cluster, for its level and for new shards."""
    while True:
        await asyncio.sleep(interval_s)
        await read_cluster(store)


def bill(title: str, month: Month) -> dict[str, Any]:
    """Measure a month, print its bill, and return the sums.

    Raises:
        SystemExit: the month costs more than ``TARGET_USD``.
    """
    with serving() as server:
        make_bucket(server)
        measured = asyncio.run(measure(server, month, SECONDS, SPEED))
    scale = MONTH_S / (SECONDS * SPEED)
    found = {}
    print(f"{title:<28}{'number':>14}{'US dollars':>12}")
    for kind, count in sorted(measured.counts.items()):
        done = measured.steps if kind.part.startswith("tables") else measured.commits
        number = count * scale / (1.0 if kind.part.startswith("cluster") else done)
        found[f"usd_{kind.part}, {kind.price}"] = round(number * PRICES[kind.price], 2)
        print(f"{kind.part + ', ' + kind.price:<28}{number:>14,.0f}{number * PRICES[kind.price]:>12.2f}")
    total = round(sum(found.values()), 2)
    if total > TARGET_USD:
        sys.exit(f"a month costs {total} US dollars, more than {TARGET_USD:.0f}")
    return {
        "streams": month.streams,
        "share_of_commits_made": round(measured.commits, 3),
        "share_of_steps_made": round(measured.steps, 3),
        "usd_a_month": total,
        **found,
    }


def costs() -> dict[str, Any]:
    """Return the bills of both months."""
    return {
        "shards": SHARDS,
        "commit_interval_s": COMMIT_INTERVAL_S,
        "table_interval_s": TABLE_INTERVAL_BUCKET_S,
        "target_usd": TARGET_USD,
        "busy": bill("a busy month of requests", BUSY),
        "idle": bill("an idle month of requests", IDLE),
    }
