"""`GET /v1/streams/{stream}/rows`: rows of the log as Arrow, in bounded pieces, for a token of their tenant."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pyarrow as pa
import pytest

from tests.cloud_hub.http.test_application import EDGE, STREAM, deliver, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.hub_api.answers import check_answer
from tests.support.tokens import create_token
from weft.cloud_hub.http.application import END_OFFSET, NEXT_CHUNK, NEXT_OFFSET
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.reads import rows as api_rows
from weft.cloud_hub.reads.records import RecordReader
from weft.cloud_hub.reads.rows import RowsRequest, rows_answer
from weft.cloud_hub.reads.views import Search
from weft.hub_api.records import ARROW
from weft.hub_api.rights import Scope
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.placement import shard_of
from weft.replication.runner import LinkIdentity
from weft.storage import chunk_log as manifests
from weft.storage import hub_keys
from weft.storage.object_store.directory import MemoryStore

SHARD = shard_of("default", "press-1", 2)


class Page(NamedTuple):
    table: pa.Table
    next_offset: int | None
    next_chunk: int | None
    end: int
    size: int


async def rows(hub: Hub, query: str = "", token: str | None = None, shard: int = SHARD) -> Page:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{hub.url}{STREAM}/rows?shard={shard}{query}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == ARROW
        body = await answer.read()
        reported = {
            name: int(answer.headers[name]) for name in (NEXT_OFFSET, NEXT_CHUNK, END_OFFSET) if name in answer.headers
        }
    table = pa.ipc.open_stream(body).read_all()
    return Page(table, reported.get(NEXT_OFFSET), reported.get(NEXT_CHUNK), reported[END_OFFSET], len(body))


async def filled(hub: Hub, count: int = 60, payload: int = 20) -> list[bytes]:
    """Records in several chunks."""
    log, sent = EdgeLog(), [b"%d." % i + b"x" * payload for i in range(count)]
    async with running_link(hub, log, EDGE):
        for first in range(0, count, 20):
            log.append(*records(first, sent[first : first + 20]))
            await log.until_released(min(count, first + 20))
    return sent


async def test_rows_are_the_records_whatever_the_pieces(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub:
        sent = await filled(hub)
        whole = await rows(hub)
        assert whole.table["payload"].to_pylist() == sent
        assert whole.table["_offset"].to_pylist() == list(range(60))
        assert set(whole.table["line"].to_pylist()) == {"a"}
        assert (whole.next_offset, whole.end) == (60, 60)
        _, looked = await get(hub, f"{STREAM}/records?shard={SHARD}&limit=100")
        assert [each["seq"] for each in looked["records"]] == whole.table["_seq"].to_pylist()
        for limit, names_chunk in itertools.product((1, 7, 20, 33), (False, True)):
            tables, offset, chunk = [], 0, None
            while offset < whole.end:
                hint = f"&chunk={chunk}" if names_chunk and chunk is not None else ""
                page = await rows(hub, f"&offset={offset}&limit={limit}{hint}")
                assert 0 < page.table.num_rows <= limit
                tables.append(page.table)
                assert page.next_offset is not None
                offset, chunk = page.next_offset, page.next_chunk
            assert pa.concat_tables(tables).equals(whole.table)


async def test_a_person_gets_rows_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    log, sent = EdgeLog(), [b'{"t": 61}', b"\xff\x00", b"high"]
    log.append(*records(0, sent, {0: (("content_type", "application/json"),)}))
    path = f"{STREAM}/rows?shard={SHARD}&format=json"
    async with running_hub(MemoryStore()) as hub:
        await deliver(hub, log, 3)
        whole = await rows(hub)
        status, answer = await get(hub, path)
        check_answer("GET", "/v1/streams/{stream}/rows", answer)
        assert (status, answer["next_offset"], answer["end_offset"]) == (200, 3, 3)
        first, second, third = answer["rows"]
        assert (first["payload"], second["payload_base64"], third["payload"]) == ('{"t": 61}', "/wA=", "high")
        assert (first["_offset"], first["line"], first["_edge"]) == (0, "a", "press-1")
        assert first["_headers"] == [["content_type", "application/json"]], "and no column that is null"
        assert first.keys() <= set(whole.table.column_names)
        assert "_headers" not in second
        _, looked = await get(hub, f"{STREAM}/records?shard={SHARD}")
        assert [each["_time"][:26] for each in answer["rows"]] == [each["time"][:26] for each in looked["records"]]
        for bound, value in (("JSON_ROWS_MAX", 2), ("JSON_BYTES_MAX", 1)):
            monkeypatch.setattr(api_rows, bound, value)
            _, some = await get(hub, path)
            _, rest = await get(hub, f"{path}&offset={some['next_offset']}&chunk={some['next_chunk']}")
            assert 0 < len(some["rows"]) <= 2, bound
            assert (some["rows"] + rest["rows"])[:2] == answer["rows"][:2]


async def test_no_row_is_lost_or_doubled_whatever_the_bounds() -> None:
    rng = random.Random(7)
    async with running_hub(MemoryStore()) as hub:
        sent = await filled(hub, 100, 30)
        state = next(each.state for each in hub.sequencers if each.state.shard == SHARD)
        log = next(each.log for each in hub.sequencers if each.state.shard == SHARD)
        for _ in range(25):
            bytes_max, limit = rng.randrange(300, 9000), rng.choice((7, 19, 1 << 16))
            offset, found = 0, list[bytes]()
            hint: int | None = None
            while offset < 100 and len(found) < 100:
                wanted = RowsRequest(("default", "telemetry"), PayloadKind.BYTES, offset, hint, limit)
                answer = await rows_answer(RecordReader(log, bytes_max), [state], wanted, bytes_max)
                table = pa.ipc.open_stream(answer.parts[0]).read_all()
                assert table["_offset"].to_pylist() == list(range(offset, offset + table.num_rows))
                found += table["payload"].to_pylist()
                assert answer.next_offset is not None
                offset, hint = answer.next_offset, rng.choice((None, answer.next_chunk, rng.randrange(8)))
            assert found == sent


async def test_a_wrong_chunk_costs_a_search_and_loses_nothing() -> None:
    async with running_hub(MemoryStore()) as hub:
        await filled(hub)
        for chunk in (0, 1, 2, 3, 1000):
            page = await rows(hub, f"&offset=5&limit=3&chunk={chunk}")
            assert page.table["_offset"].to_pylist() == [5, 6, 7]


async def test_an_answer_has_a_bound_and_at_least_a_row() -> None:
    for payload in (2000, 400, 33):  # rows that are longer than an answer, and answers that end amid a chunk
        async with running_hub(MemoryStore(), response_bytes_max=1500) as hub:
            sent = await filled(hub, 60, payload)
            found, offset = [], 0
            while offset < 60:
                page = await rows(hub, f"&offset={offset}")
                assert page.size < 8000, "the bound, a row, and what Arrow adds"
                assert page.next_offset is not None
                assert page.next_offset == offset + page.table.num_rows > offset
                found += page.table["payload"].to_pylist()
                offset = page.next_offset
            assert found == sent


async def test_long_rows_before_many_short_ones_do_not_exceed_the_bound() -> None:
    async with running_hub(MemoryStore(), response_bytes_max=16_000) as hub:
        log, sent = EdgeLog(), [b"x" * 2000] * 40 + [b""] * 1000
        async with running_link(hub, log, EDGE):
            log.append(*records(0, sent))
            await log.until_released(len(sent))
        found, offset = [], 0
        while offset < len(sent):
            page = await rows(hub, f"&offset={offset}")
            assert page.table.nbytes <= 16_000
            assert page.size < 24_000, "the bound, and what Arrow adds"
            found += page.table["payload"].to_pylist()
            assert page.next_offset is not None
            offset = page.next_offset
        assert found == sent


async def test_no_rows_are_an_answer_with_the_columns() -> None:
    async with running_hub(MemoryStore()) as hub:
        await filled(hub, count=20)
        empty = await rows(hub, "&limit=0")
        assert (empty.table.num_rows, empty.next_offset, empty.end) == (0, 0, 20)
        assert {"_offset", "line", "machine", "payload"} <= set(empty.table.column_names)
        beyond = await rows(hub, "&offset=20")
        assert (beyond.table.num_rows, beyond.next_offset) == (0, 20)
        other = await rows(hub, shard=1 - SHARD)
        assert (other.table.num_rows, other.end) == (0, 0)


async def test_a_search_that_reaches_its_bound_says_where_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(Search):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            self.left = 2

    monkeypatch.setattr(api_rows, "Search", Short)
    async with running_hub(MemoryStore()) as hub:
        log, other = EdgeLog(), EdgeLog("other")
        async with running_link(hub, other, LinkIdentity("default", "press-1", 0xDEF, "test")):
            for first in range(0, 40, 4):  # one chunk each, of another stream
                other.append(*records(first, [b"o"] * 4))
                await other.until_released(first + 4)
        log.append(*records(0, [b"a"]))
        await deliver(hub, log, 1)
        found: list[bytes] = []
        offset = chunk = requests = 0
        while not found:
            page = await rows(hub, f"&offset={offset}&chunk={chunk}")
            found, requests = page.table["payload"].to_pylist(), requests + 1
            assert page.next_offset is not None
            assert page.next_chunk is not None
            offset, chunk = page.next_offset, page.next_chunk
            assert requests < 20
        assert found == [b"a"]
        assert requests > 2


async def test_rows_that_were_collected_are_gone_and_later_ones_are_not() -> None:
    async with running_hub(MemoryStore()) as hub:
        sent = await filled(hub)
        log = next(each.log for each in hub.sequencers if each.log.shard == SHARD)
        manifest, etag = await log.manifest()
        state = await log.load()
        key = hub_keys.snapshot_key(SHARD, state.n, 1)
        await log.store.create(key, state.encode())
        first = await anext(chunk.header.n async for chunk in log.indexes(0) if chunk.footer.streams)
        collected = manifests.changed(manifest, snapshot_n=state.n, snapshot=key, watermark=first + 1)
        assert await log.swap_manifest(collected, etag)
        for n in range(first + 1):
            await log.store.delete(hub_keys.chunk_key(SHARD, n))
        status, answer = await get(hub, f"{STREAM}/rows?shard={SHARD}&offset=0")
        assert status == 410, answer
        assert "read its table, if that has all rows" in answer["advice"]
        page = await rows(hub)
        assert page.table["payload"].to_pylist() == sent[page.table["_offset"][0].as_py() :]
        assert 0 < page.table.num_rows < 60


async def test_rows_need_a_token_of_their_tenant(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    edge = create_token(path, "press", Scope.EDGE, "default", "press-1")
    reader = create_token(path, "anna", Scope.READER)
    stranger = create_token(path, "eve", Scope.READER, "acme")
    async with running_hub(MemoryStore(), tokens=path) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE, edge):
            await log.until_released(1)
        assert (await rows(hub, token=reader)).table["payload"].to_pylist() == [b"a"]
        for token, status in ((None, 401), (edge, 403), (stranger, 404)):
            assert (await get(hub, f"{STREAM}/rows?shard={SHARD}", token))[0] == status
        assert (await get(hub, f"{STREAM}/rows?shard={SHARD}&tenant=default", stranger))[0] == 403
        assert (await get(hub, f"{STREAM}/rows", reader))[0] == 400
        assert (await get(hub, f"{STREAM}/rows?shard={SHARD}&limit=65537", reader))[0] == 400
