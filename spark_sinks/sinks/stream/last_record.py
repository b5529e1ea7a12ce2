"""The last record of a producer lane, found in the hub's store: its position is the query's progress.

It is searched only when the position is otherwise unknown, at a query's start and after a fault: first in the log from
its end, then in the stream's table, which has the records of deleted chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pyarrow.compute as pc
from deltalake import DeltaTable

from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.positions import Position, parse_ends, parse_position, parse_witness
from spark_sinks.sinks.stream.settings import ProducerSettings
from spark_sinks.source.history import Witness
from weft.protocols import batch
from weft.protocols.chunk import Chunk, section_entries
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.message_headers import POSITION, POSITION_BEHIND, POSITION_CHUNK
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState, lane_of
from weft.storage.chunk_log import ShardLog, table_key
from weft.storage.cluster import Cluster, ClusterUnusable, open_cluster
from weft.storage.every_shard import log_of_edge
from weft.storage.object_store import ObjectStore, StoreError, StoreUnfit, open_store

Headers = Mapping[str, object]
AHEAD = 16
"""Number of chunk indexes requested at once."""


async def open_hub_store(settings: ProducerSettings, cluster_id: str) -> tuple[ObjectStore, Cluster]:
    """Return the hub's store.

    Args:
        cluster_id: the hub's own, from WELCOME; empty when it is not known.

    Raises:
        SinkError: it cannot be opened, holds no hub, or another one.
    """
    where = f"store {settings.store!r}"
    try:
        store = open_store(settings.store, dict(settings.store_options))
        cluster = await open_cluster(store, None)
    except (ValueError, StoreUnfit, ClusterUnusable) as error:
        raise SinkError(f"{where}: {error}") from error
    except StoreError as error:
        raise SinkError(f"{where} does not answer; check its address and credentials: {error}") from error
    if cluster_id not in ("", cluster.cluster_id.hex()):
        raise SinkError(
            f"{where} is that of hub {cluster.cluster_id.hex()}, and the hub at {settings.urls[0]} is {cluster_id}; "
            "name the store of this hub"
        )
    return store, cluster


async def lane_state(settings: ProducerSettings, cluster_id: str, lane: Lane) -> tuple[ShardLog, ShardState]:
    """Return the log and the state of a lane's shard at the log's end. Raises as ``open_hub_store``."""
    store, cluster = await open_hub_store(settings, cluster_id)
    try:
        log = await log_of_edge(store, cluster, lane.tenant, lane.edge)
        return log, await log.load(frozenset({(lane.tenant, lane.stream)}))
    except StoreError as error:
        raise SinkError(f"store {settings.store!r} does not answer: {error}") from error


async def kept_lane(settings: ProducerSettings, cluster_id: str, lane: Lane) -> LaneState | None:
    """Return a lane's state at the end of the hub's log, also of one that was idle for long and has left it; None
    without any. Raises as ``open_hub_store``."""
    log, state = await lane_state(settings, cluster_id, lane)
    held = state.lanes.get(lane)
    if held is not None or not state.drops:
        return held
    try:
        kept = await log.ended(lane, state.n)
    except StoreError as error:
        raise SinkError(f"store {settings.store!r} does not answer: {error}") from error
    return None if kept is None else snapshots.lane_state(snapshots.decode_lane(kept))


async def held_epoch(settings: ProducerSettings, cluster_id: str, lane: Lane) -> int:
    """Return the lane's epoch in the hub's log; 0 when there is none. Raises as ``open_hub_store``."""
    held = await kept_lane(settings, cluster_id, lane)
    return held.epoch if held is not None else 0


class LastRecord(NamedTuple):
    """Place of a lane's last record in the query and in its source."""

    position: Position
    witness: Witness | None
    """Chunk of the source's log with the position; None in records of earlier releases."""
    behind: Mapping[int, int] = MappingProxyType({})
    """Log id -> end of lanes of other spreads: their rows below come before this one."""


async def find_last(settings: ProducerSettings, cluster_id: str, lane: Lane, shard: int, seq: int) -> LastRecord:
    """Return the place of record ``seq`` of a lane, which the hub has acknowledged.

    Args:
        shard: the source shard.

    Raises:
        SinkError: neither log nor table has the record, or a sink did not write it. As ``open_hub_store``.
    """
    log, state = await lane_state(settings, cluster_id, lane)
    headers = await _in_logs(log, state, lane, seq)
    if headers is None:
        headers = await asyncio.to_thread(_in_table, log.store, lane, seq)
    text = (headers or {}).get(POSITION)
    found = parse_position(text)
    if found is None or found[0] != shard:
        raise SinkError(
            f"record {seq} of lane {lane}, the last one, says as its position {text!r}: it is not in the store, or no "
            "sink wrote it. Give the query another name, and start it behind the rows that the stream has"
        )
    of_record = headers or {}
    witness, behind = parse_witness(of_record.get(POSITION_CHUNK)), parse_ends(of_record.get(POSITION_BEHIND))
    return LastRecord(found[1], witness, behind)


async def _in_logs(log: ShardLog, state: ShardState, lane: Lane, seq: int) -> Headers | None:
    """Search the log of the lane's shard, then those of the shards that had the lane before."""
    found = await _in_log(log, state.n + 1, lane, seq)
    while found is None and log.split is not None and log.halved is not None:
        end, log = log.split.n, log.halved
        found = await _in_log(log, end, lane, seq)
    return found


async def _in_log(log: ShardLog, end: int, lane: Lane, seq: int) -> Headers | None:
    """Search the log from chunk ``end`` back to the first deleted chunk."""
    only = frozenset([(lane.tenant, lane.stream)])
    while end > log.watermark:
        first = max(log.watermark, end - AHEAD)
        indexes = (log.index(n, only) for n in range(first, end))
        for chunk in reversed(await asyncio.gather(*indexes)):
            if chunk is None:
                return None  # deleted meanwhile, so the record is in the table
            if any(
                lane_of(update) == lane and any(low <= seq < high for low, high in update.ranges)
                for update in chunk.footer.lanes
            ):
                return await _in_chunk(log, chunk, lane, seq)
        end = first
    return None


async def _in_chunk(log: ShardLog, chunk: Chunk, lane: Lane, seq: int) -> Headers | None:
    for section in chunk.footer.streams:
        if (section.tenant, section.stream) != (lane.tenant, lane.stream):
            continue
        lanes, data = chunk.footer.lanes_of(section), await log.section(chunk.header.n, section)
        for entry in section_entries(section, data, lanes):
            header = batch.decode_header(entry.batch)
            first = header.base_seq + entry.skip
            if lane_of(lanes[entry.lane]) == lane and first <= seq < first + entry.take:
                index = seq - header.base_seq
                record = next(batch.records(entry.batch, first=index, end=index + 1))
                return dict(record.headers)
    return None


def _in_table(store: ObjectStore, lane: Lane, seq: int) -> Headers | None:
    uri, options = store.location(table_key(lane.tenant, lane.stream))
    if not DeltaTable.is_deltatable(uri, options or None):
        return None
    rows = (
        DeltaTable(uri, storage_options=options or None)
        .to_pyarrow_dataset()
        .to_table(
            ["_headers"],
            (pc.field("_seq") == seq)
            & (pc.field("_edge") == lane.edge)
            & (pc.field("_log") == format_log_id(lane.log_id)),
        )
    )
    for pairs in rows.column("_headers").to_pylist():
        return dict(pairs or ())
    return None
