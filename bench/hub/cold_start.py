"""The cold start of a large fleet's hub: four processes load the state of 10,000 edges with 20 streams each.

The store is a folder with the log of every shard: a snapshot, and the chunks of the minute behind it, in which each
lane has a batch and a mark every ten seconds. Each process is a whole hub node with its share of the shards; it has
started when these are loaded and its port is open. Sections are zeros: a start does not read them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from bench.hub.followers import EDGES, NOW, SHARDS, STREAMS, TENANT, name_of
from examples.demo.fabric import free_port
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import HubSettings
from weft.protocols.chunk import encode_header
from weft.protocols.chunk_index import (
    LEVEL_MAX,
    Chunk,
    ChunkHeader,
    LaneUpdate,
    Mark,
    StreamBlock,
    decode_footer,
    encode_footer,
    index_of,
)
from weft.protocols.shard.fold import apply
from weft.protocols.shard.shard_state import ShardState
from weft.service.serving import collect_garbage_rarely
from weft.storage.chunk_log import ShardLog, changed
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

PROCESSES = 4
TURNS = 10
"""Every lane has a batch in one chunk of so many."""
CHUNKS = 60
START_S_MAX = 120.0


class Written(NamedTuple):
    """The log of a fleet."""

    lanes: int
    """Lanes of a shard."""
    snapshot_bytes: int
    """Bytes of the largest snapshot."""


async def write(folder: str, edges: int, streams: int, chunks: int) -> Written:
    """Write the log of every shard: a snapshot after the chunks that opened all lanes, and the chunks behind it."""
    store = open_store(folder)
    cluster = await open_cluster(store, SHARDS)
    each = edges // SHARDS
    crcs = [0] * SHARDS
    states = [ShardState(cluster.cluster_id, shard) for shard in range(SHARDS)]
    largest = 0
    for n in range(TURNS + chunks):
        lanes = [_update(edge, stream, n) for stream in range(streams) for edge in range(n % TURNS, each, TURNS)]
        for shard, state in enumerate(states):
            log = ShardLog(store, cluster, shard)
            header = ChunkHeader(cluster.cluster_id, n, NOW + n, shard, crcs[shard], n)
            tail, crcs[shard] = encode_footer(index_of(header, LEVEL_MAX, [], StreamBlock(lanes, [], [])))
            if n < TURNS:
                apply(state, Chunk(header, decode_footer(tail)[0], crcs[shard]))
            await log.create(n, encode_header(header) + tail)
            if n == TURNS - 1:
                data = state.encode()
                largest = max(largest, len(data))
                manifest, etag = await log.manifest()
                key = await log.put_snapshot(n, 1, data)
                await log.swap_manifest(changed(manifest, snapshot=key, snapshot_n=n), etag)
    return Written(len(states[0].lanes), largest)


def _update(edge: int, stream: int, n: int) -> LaneUpdate:
    first = n // TURNS * 10
    mark, name = Mark(NOW + n * 10**9, first + 10), f"press-shop-{edge:05d}"
    topics = ["plant/{line}/{machine}/telemetry"] if n < TURNS else None
    return LaneUpdate(
        TENANT, name, 0xABCDEF0123456789 + edge, name_of(stream), 1, [(first, first + 10)], [], mark, topics
    )


def _start(folder: str, port: int, process: int, parent: Connection) -> None:
    """Run one of the hub's processes until it has started."""

    async def main() -> None:
        settings = HubSettings(
            store=folder, port=port + process, process=process, processes=PROCESSES, table_interval_s=None
        )
        parent.send("ready")
        await asyncio.to_thread(parent.recv)
        collect_garbage_rarely()  # as `weft hub run` does
        began, spent = time.perf_counter(), time.process_time()
        hub = await Hub.open(settings)
        # A start waits for a slow shard for some seconds only, and nothing tells of its end.
        while not hub.sequencers or not all(each.loaded for each in hub.sequencers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        loaded = {each.log.shard: len(each.state.lanes) for each in hub.sequencers if each.loaded}
        parent.send((time.perf_counter() - began, time.process_time() - spent, loaded))
        await asyncio.to_thread(parent.recv)
        await hub.close()

    asyncio.run(main())


class Start(NamedTuple):
    """Seconds that a process needed for its start, and the lanes of each shard that it loaded."""

    seconds: float
    cpu_s: float
    loaded: dict[int, int]


def start(folder: str) -> list[Start]:
    """Start all processes at once, and stop them."""
    context, port = multiprocessing.get_context("spawn"), free_port()
    pipes = [context.Pipe() for _ in range(PROCESSES)]
    processes = [
        context.Process(target=_start, args=(folder, port, number, theirs), daemon=True)
        for number, (_, theirs) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    ours = [each for each, _ in pipes]
    try:
        for each in ours:
            _answer(each)
        for each in ours:
            each.send("go")
        return [Start(*_answer(each)) for each in ours]
    finally:
        for each in ours:
            each.send("stop")
        for process in processes:
            process.join(30)
            process.kill()


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(START_S_MAX):
        raise SystemExit(f"a process of the hub did not start within {START_S_MAX:.0f} s")
    return pipe.recv()


def measure(edges: int = EDGES, streams: int = STREAMS, chunks: int = CHUNKS) -> tuple[Written, list[Start]]:
    """Write the log of a fleet, and start its hub."""
    with tempfile.TemporaryDirectory() as folder:
        written = asyncio.run(write(folder, edges, streams, chunks))
        return written, start(folder)


def cold_start() -> dict[str, Any]:
    """Start the hub of the large fleet."""
    written, starts = measure()
    return {
        "shards": SHARDS,
        "processes": PROCESSES,
        "lanes_per_shard": written.lanes,
        "chunks_behind_snapshot": CHUNKS,
        "snapshot_mb": round(written.snapshot_bytes / 1e6, 2),
        "start_s": round(max(each.seconds for each in starts), 2),
        "start_cpu_s_per_process": round(max(each.cpu_s for each in starts), 2),
        "shards_loaded": sum(len(each.loaded) for each in starts),
    }
