"""Stores whose audit says something: good ones, and ones with damage that was planted."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pyarrow as pa
from deltalake import write_deltalake

from tests.cloud_hub.tables.logs import LANE, OTHER, START, LogWriter, Run, rows, table
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from weft.cloud_hub.shard import lane_ends
from weft.cloud_hub.shard.lane_ends import Ending
from weft.proofs.audit.audit import Rows, find_rows, stored
from weft.protocols.chunk_index import GapRange
from weft.protocols.lane import Origin, OriginKind
from weft.protocols.segment import GapReason
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog, changed
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import ObjectStore
from weft.storage.table.deletions import FORMAT, Deletion, declare

KEY = ("default", "telemetry")
RENAMED = LANE._replace(edge="press-9")
CALM = Origin(7, OriginKind.FUNCTION, "calm", "1", b"\x8a\x1f\x03\xc4")


async def written(store: ObjectStore) -> LogWriter:
    """Shard 0: two lanes with gaps, holes and a function's records; shard 1: a log that was renamed. All in the
    table."""
    log = await LogWriter.open(store)
    for n in range(8):
        gaps = [GapRange(80, 82, GapReason.BUDGET), GapRange(90, 95, 99)] if n == 1 else ()
        await log.append(0, Run(LANE, 10 * n, 10, gaps=gaps), Run(OTHER, 7 * n, 5, origin=CALM))
    renamed = [GapRange(0, 200, GapReason.RENAMED)]
    await log.append(1, Run(RENAMED, 200, 6, gaps=renamed, resent=True))
    await log.append(1, Run(RENAMED, 206, 6))
    await log.append(1, Run(RENAMED._replace(stream="alarms"), 0, 3))
    await drain(await new_tierer(store, log))
    return log


async def collect(log: LogWriter, watermark: int, shard: int = 0) -> None:
    """Publish a watermark and delete what is below it."""
    shard_log = ShardLog(log.store, log.cluster, shard)
    manifest, etag = await shard_log.manifest()
    assert await shard_log.swap_manifest(changed(manifest, watermark=watermark), etag)
    for n in range(watermark):
        await log.store.delete(chunk_key(shard, n))


async def collected_chunks(log: LogWriter) -> None:
    await log.snapshot(0)
    await collect(log, 3)


async def waiting_records(log: LogWriter) -> None:
    await log.append(0, Run(LANE, 82, 8))


async def skipped_range(log: LogWriter) -> None:
    shard_log = ShardLog(log.store, log.cluster, 1)
    await log.append(1, Run(RENAMED, 212, 4))
    end = log.states[1].next_offset[KEY]

    async def plan(state: ShardState) -> Ending:
        return await lane_ends.skip(state, shard_log, KEY, end - 4, end - 1, "a bomb")

    bits = random.Random(7).getrandbits
    await lane_ends.write_ending(shard_log, plan, wall_clock=lambda: START, random_bits=bits)
    await shard_log.extend(log.states[1])
    await drain(await new_tierer(log.store, log))


async def declared_deletion(log: LogWriter) -> None:
    rows_there = Rows(edge="press-1", first=30, end=40)
    version, lanes, offsets = await find_rows(log.store, *KEY, rows_there, None)
    shards = [(shard, list(held)) for shard, held in sorted(offsets.held.items())]
    deletion = Deletion(FORMAT, START, "an operator", "a request", rows_there.text, version, stored(lanes), shards)
    await declare(log.store, *KEY, deletion)
    table(log.store).delete("_seq in (31, 32) and _edge = 'press-1'")  # not all of what was declared


async def missing_row(log: LogWriter) -> None:
    table(log.store).delete("_seq in (13, 14, 71) and _edge = 'press-1'")


async def doubled_row(log: LogWriter) -> None:
    write_deltalake(table(log.store), rows(log.store).slice(3, 4), mode="append")


async def strange_row(log: LogWriter) -> None:
    strange = rows(log.store).slice(0, 1)
    for name, value in (("_seq", 777), ("_offset", 900)):
        index = strange.schema.get_field_index(name)
        strange = strange.set_column(index, strange.schema.field(index), pa.array([value], pa.int64()))
    write_deltalake(table(log.store), strange, mode="append")


async def other_payload(log: LogWriter) -> None:
    found = rows(log.store).to_pylist()
    next(row for row in found if (row["_edge"], row["_seq"]) == (LANE.edge, 45))["payload"] = b"something else"
    uri, _ = log.store.location("tables/default/telemetry")
    write_deltalake(uri, pa.Table.from_pylist(found, rows(log.store).schema), mode="overwrite")


async def other_time(log: LogWriter) -> None:
    table(log.store).update({"_time": "_time + INTERVAL '1 hour'"}, predicate="_edge = 'press-9' and _seq = 203")


async def removed_chunk(log: LogWriter) -> None:
    await log.store.delete(chunk_key(0, 5))


async def corrupted_section(log: LogWriter) -> None:
    await _flip(log.store, chunk_key(0, 6), 100)


async def corrupted_index(log: LogWriter) -> None:
    await _flip(log.store, chunk_key(0, 7), -30)


async def corrupted_manifest(log: LogWriter) -> None:
    await log.store.create("shard-1/manifest", b"{")


async def _flip(store: ObjectStore, key: str, position: int) -> None:
    damaged = bytearray((await store.get(key)).data)
    damaged[position] ^= 1
    await store.delete(key)
    await store.create(key, bytes(damaged))


async def name_twice(log: LogWriter) -> None:
    await log.append(1, Run(LANE._replace(edge="press-8"), 15, 10))


Planting = Callable[[LogWriter], Awaitable[None]]
HARMLESS: tuple[Planting, ...] = (waiting_records, skipped_range, declared_deletion, collected_chunks)
"""What an audit calls good, in this order."""
DAMAGE: tuple[Planting, ...] = (
    name_twice,
    other_payload,
    other_time,
    missing_row,
    doubled_row,
    strange_row,
    removed_chunk,
    corrupted_section,
    corrupted_index,
)
"""What it does not, in any combination, in this order."""
