"""The way of one record: from a number of a lane to its chunk and its row, before and after the log was collected."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.cloud_hub.api.test_history import FUNCTION, collect, tabled
from tests.cloud_hub.live import get, running_hub
from tests.cloud_hub.tables.logs import LANE, OTHER, LogWriter, Run
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.reads import records
from weft.cloud_hub.reads.history import LaneFiles
from weft.cloud_hub.reads.views import Search
from weft.protocols.chunk_index import GapRange
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.segment import GapReason
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store

TRACE = "/v1/streams/telemetry/trace"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def of(lane: Lane, seq: int) -> str:
    return f"{TRACE}?edge={lane.edge}&log={format_log_id(lane.log_id)}&seq={seq}"


async def traced(hub: Hub, path: str) -> tuple[dict[str, Any], int]:
    """The answer at the end of a search, and the number of requests."""
    status, answer = await get(hub, path)
    requests = 1
    while answer["next_shard"] is not None:
        assert requests < 100
        name = "shard" if "offset=" in path else "from_shard"
        more = f"&{name}={answer['next_shard']}" if name == "from_shard" else ""
        if answer["next_chunk"] is not None:
            more += f"&chunk={answer['next_chunk']}"
        status, answer = await get(hub, path + more)
        requests += 1
    assert status == 200, answer
    return answer, requests


def row_at(store: ObjectStore, place: dict[str, Any]) -> dict[str, Any]:
    uri, _ = store.location(table_key("default", "telemetry"))
    rows: list[dict[str, Any]] = pq.read_table(f"{uri}/{place['file']}").slice(place["number"], 1).to_pylist()
    return rows[0]


@pytest.mark.slow
async def test_a_message_is_followed_to_its_row_and_back_before_and_after_the_collector(store: ObjectStore) -> None:
    log = await tabled(store, 4, origin=lambda n: FUNCTION if n % 2 else None)
    found: list[list[dict[str, Any]]] = []
    for collected in (False, True):
        if collected:
            assert await collect(log) == [20, 20]
        found.append([])
        async with running_hub(store) as hub:
            for lane, shard in ((LANE, 0), (OTHER, 1)):
                for seq in (0, 15, 199, 200, 399):
                    answer, _ = await traced(hub, of(lane, seq))
                    record = answer["record"]
                    assert (record["edge"], record["seq"], record["shard"]) == (lane.edge, seq, shard)
                    assert record.get("origin", "") == ("clean@1#68617368" if seq // 10 % 2 else "")
                    row = row_at(store, answer["row"])
                    assert (row["_edge"], row["_seq"], row["_offset"]) == (lane.edge, seq, record["offset"])
                    back, _ = await traced(hub, f"{TRACE}?shard={shard}&offset={record['offset']}")
                    assert {**back, "gap": None} == {**answer, "gap": None}
                    found[-1].append(answer)
    before, after = found
    for one, other in zip(before, after, strict=True):
        number = one["record"]["seq"] // 10
        assert one["chunk"] == {"shard": one["record"]["shard"], "n": number, "key": one["chunk"]["key"]}
        assert await store.get(one["chunk"]["key"]) if number >= 20 else other["chunk"] is None
        assert (one["standing"], one["row"], one["record"]["offset"]) == (
            "here",
            other["row"],
            other["record"]["offset"],
        )
    uri, options = store.location(table_key("default", "telemetry"))
    DeltaTable(uri, storage_options=options).delete("_edge = 'press-1' and _seq = 15")
    async with running_hub(store) as hub:
        for path in (of(LANE, 15), f"{TRACE}?shard=0&offset={before[1]['record']['offset']}"):
            answer, _ = await traced(hub, path)
            assert (answer["standing"], answer["record"], answer["row"]) == ("gone", None, None), (path, answer)


@pytest.mark.slow
async def test_a_search_in_the_log_goes_on_where_it_ended(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "Search", partial(Search, 4))
    log = await LogWriter.open(store, 2)
    for n in range(30):
        await log.append(0, Run(LANE, 10 * n, 10), Run(LANE._replace(edge="press-3"), 10 * n, 10))
        await log.append(1, Run(OTHER, 10 * n, 10))
    async with running_hub(store) as hub:
        for lane, seq, chunk in ((LANE, 5, 0), (LANE, 299, 29), (OTHER, 123, 12)):
            answer, requests = await traced(hub, of(lane, seq))
            assert (answer["record"]["seq"], answer["chunk"]["n"], answer["row"]) == (seq, chunk, None)
            assert requests <= 2 + chunk // 3
        # The place of an edge is the word of its lane: what is behind it is still to come.
        answer, requests = await traced(hub, of(LANE, 300))
        assert (answer["standing"], answer["record"]) == ("to_come", None)
        back, _ = await traced(hub, f"{TRACE}?shard=0&offset=255")
        assert (back["record"]["edge"], back["record"]["seq"]) == ("press-3", 125)


@pytest.mark.slow
async def test_what_never_comes_and_what_nobody_knows_is_said(store: ObjectStore) -> None:
    log = await LogWriter.open(store, 2)
    await log.append(0, Run(LANE, 0, 5))
    await log.append(0, Run(LANE, 9, 1, gaps=[GapRange(5, 9, GapReason.BUDGET)]))
    async with running_hub(store) as hub:
        answer, _ = await traced(hub, of(LANE, 7))
        assert (answer["standing"], answer["record"], answer["chunk"], answer["row"]) == (
            "never_comes",
            None,
            None,
            None,
        )
        assert answer["gap"] == {"first": 5, "end": 9, "reason": "budget"}
        assert (await traced(hub, of(LANE, 9)))[0]["standing"] == "here"
        assert (await traced(hub, of(LANE._replace(edge="nobody"), 7)))[0]["standing"] == "unknown"
        assert (await traced(hub, f"{TRACE}?shard=0&offset=6"))[0]["standing"] == "unknown"
        for path, word in (
            (TRACE, "edge= is missing"),
            (f"{TRACE}?offset=1", "shard= is missing"),
            (of(LANE, 1) + "&offset=1", "offset"),
            (f"{TRACE}?edge=press-1&log=x&seq=1", "log"),
            (f"{TRACE}?edge=press-1&log={7:016x}", "seq= is missing"),
        ):
            status, answer = await get(hub, path)
            assert (status, word in answer["detail"]) == (400, True), answer


def test_files_are_chosen_by_edge_and_number() -> None:
    import pyarrow as pa

    bounds = {
        "min._edge": ["a", "c", None, "c"],
        "max._edge": ["b", "c", None, "e"],
        "min._seq": [0, 0, None, 100],
        "max._seq": [9, 9, None, 200],
    }
    files = LaneFiles.of(pa.table(bounds))
    chosen = {(edge, seq): [*map(bool, files.may_have(edge, seq))] for edge in "abbdz" for seq in (5, 150)}
    assert chosen["a", 5] == [True, False, True, False]
    assert chosen["b", 150] == [False, False, True, False]
    assert chosen["d", 150] == [False, False, True, True]
    assert chosen["z", 5] == [False, False, True, False]
    assert [*map(bool, files.may_have("c", 5))] == [False, True, True, False]
    assert [*map(bool, LaneFiles.of(pa.table({"path": ["x"]})).may_have("a", 5))] == [True]
