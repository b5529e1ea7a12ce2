"""Latest tables as readers find them, and what the rows of a log say they must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltalake import DeltaTable

from tests.cloud_hub.tables.logs import LogWriter, Run
from weft.cloud_hub.tables.buckets import Key
from weft.cloud_hub.tables.latest import LatestTierer
from weft.storage.hub_keys import latest_key
from weft.storage.object_store import ObjectStore
from weft.storage.table_writer.shards import load_shards

Found = dict[str, tuple[str, int, bytes]]


async def new_latest(store: ObjectStore, log: LogWriter, parts: Sequence[str] = ("_key",), **more: Any) -> LatestTierer:
    """As a node that has just started has it."""
    views = await load_shards(store, log.cluster)
    return LatestTierer(store, log.cluster, "default", "telemetry", views, Key(parts), **more)


async def drain_latest(tierer: LatestTierer) -> None:
    while tierer.is_behind:
        await tierer.step()


def opened(store: ObjectStore) -> DeltaTable:
    uri, options = store.location(latest_key("default", "telemetry"))
    return DeltaTable(uri, storage_options=options)


def latest(store: ObjectStore) -> Found:
    """Key -> (edge, number, payload) of each row."""
    found = opened(store).to_pyarrow_table().to_pylist()
    rows = {row["_key"]: (row["_edge"], row["_seq"], row["payload"]) for row in found}
    assert len(rows) == len(found), "a key has one row"
    return rows


def recounted(runs: Mapping[int, Sequence[Run]]) -> Found:
    """The same, of all records of a log, whose runs the hub received in the order of their numbers."""
    lanes: dict[tuple[str, tuple[str, int]], tuple[tuple[int, int, int], int, bytes]] = {}
    for shard, appended in runs.items():
        offset = 0
        for at, run in enumerate(appended):
            for seq in range(run.first, run.first + run.count):
                lane = run.key.decode(), (run.lane.edge, run.lane.log_id)
                if lane not in lanes or lanes[lane][1] < seq:
                    lanes[lane] = (at, shard, offset), seq, run.payload(seq)
                offset += 1
    newest: dict[str, tuple[tuple[int, int, int], str, int, bytes]] = {}
    for (key, (edge, _)), (place, seq, payload) in lanes.items():
        if key not in newest or newest[key][0] < place:
            newest[key] = place, edge, seq, payload
    return {key: (edge, seq, payload) for key, (_, edge, seq, payload) in newest.items() if payload}
