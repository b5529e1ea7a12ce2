"""New records as they come: each once over disconnections, by both forms, with rights and bounds."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cloud_hub.api.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.tokens import create_token, withdraw_token
from tests.support.waiting import PATIENCE_S, until
from weft.bounds import Owner, OwnerKind, Refusals
from weft.client import Client
from weft.cloud_hub.api import tail
from weft.cloud_hub.api.access import ApiError
from weft.cloud_hub.api.answers import ReaderPlaces
from weft.cloud_hub.api.records import Helping, RecordReader
from weft.cloud_hub.api.tail import parse_position, position_text
from weft.cloud_hub.api.tokens import Scope
from weft.cloud_hub.hub import Hub
from weft.storage.object_store.directory import MemoryStore

PATH = "/v1/streams/telemetry/tail"
Events = AsyncIterator[dict[str, Any]]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "LOOK_INTERVAL_S", 0.02)


def numbered(log: EdgeLog, first: int, count: int) -> None:
    log.append(*records(first, [b"%d" % number for number in range(first, first + count)]))


async def sent(answer: aiohttp.ClientResponse) -> Events:
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


async def messages(socket: aiohttp.ClientWebSocketResponse) -> Events:
    async for message in socket:
        yield json.loads(message.data)


@asynccontextmanager
async def tailed(hub: Hub, form: str, query: str = "", token: str | None = None) -> AsyncIterator[Events]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(hub.url, headers=headers) as session:
        if form == "events":
            async with session.get(f"{PATH}?{query}") as answer:
                assert (answer.status, answer.content_type) == (200, "text/event-stream")
                yield sent(answer)
        else:
            async with session.ws_connect(f"{PATH}?{query}") as socket:
                yield messages(socket)


async def taken(events: Events, count: int) -> tuple[list[int], str]:
    """Numbers of the next records, and the position behind them."""
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            event = await anext(events)
            found += [each["seq"] for each in event["records"]]
            if len(found) >= count:
                return found, event["position"]


@pytest.mark.parametrize("form", ["events", "socket"])
async def test_each_record_comes_once_though_reader_and_hub_end_between(form: str) -> None:
    store, log, epochs = MemoryStore(), EdgeLog(), MemoryEpochs()
    numbered(log, 0, 10)
    async with running_hub(store) as hub, running_link(hub, log, EDGE, epochs=epochs):
        await log.until_released(10)
        async with tailed(hub, form) as events:
            assert (await anext(events))["records"] == []
            numbered(log, 10, 5)
            seen, position = await taken(events, 5)
            assert seen == [10, 11, 12, 13, 14]
        numbered(log, 15, 5)
        await log.until_released(20)
    numbered(log, 20, 300)
    async with running_hub(store) as hub, running_link(hub, log, EDGE, epochs=epochs):
        async with tailed(hub, form, f"position={position}") as events:
            seen, position = await taken(events, 305)
            assert seen == list(range(15, 320))
            await hub.close()
            async with asyncio.timeout(PATIENCE_S):
                assert [event async for event in events if event["records"]] == []
    async with running_hub(store) as hub, tailed(hub, form, "position=0:0,1:0&key=plant/%23&edge=press-1") as events:
        assert (await taken(events, 320))[0] == list(range(320))
    async with running_hub(store) as hub, tailed(hub, form, "position=0:0,1:0&key=office/%23") as events:
        async with asyncio.timeout(PATIENCE_S):
            assert await anext(events) == {"records": [], "position": "0:0,1:0"}


async def test_the_client_goes_on_after_the_hub_has_ended_and_each_record_comes_once() -> None:
    store, log, epochs, seen = MemoryStore(), EdgeLog(), MemoryEpochs(), list[int]()
    numbered(log, 0, 10)

    def follow(url: str) -> None:
        for event in Client(url).tail("telemetry", position="0:0,1:0", wait_s=0.05):
            seen.extend(each.seq for each in event.records)
            if len(seen) >= 30:
                return

    async with running_hub(store) as hub, running_link(hub, log, EDGE, epochs=epochs):
        await log.until_released(10)
        following = asyncio.create_task(asyncio.to_thread(follow, hub.url))
        await until(lambda: len(seen) == 10)
        port = int(hub.url.rpartition(":")[2])
    numbered(log, 10, 20)
    async with running_hub(store, port=port) as hub, running_link(hub, log, EDGE, epochs=epochs):
        async with asyncio.timeout(PATIENCE_S):
            await following
    assert seen == list(range(30))


async def test_a_browser_goes_on_by_the_identifier_of_the_last_event() -> None:
    log = EdgeLog()
    numbered(log, 0, 3)
    async with running_hub(MemoryStore()) as hub, running_link(hub, log, EDGE):
        await log.until_released(3)
        async with aiohttp.ClientSession(hub.url, headers={"Last-Event-ID": "0:1,1:1"}) as session:
            async with session.get(PATH) as answer:
                assert (await taken(sent(answer), 2))[0] == [1, 2]


@pytest.mark.parametrize("form", ["events", "socket"])
async def test_a_tail_ends_with_the_token_and_says_why(form: str, tmp_path: Path) -> None:
    tokens = str(tmp_path / "tokens")
    edge = create_token(tokens, "press", Scope.EDGE, "default", "press-1")
    reader = create_token(tokens, "reader", Scope.READER, "default")
    foreign = create_token(tokens, "other", Scope.READER, "acme")
    log = EdgeLog()
    numbered(log, 0, 3)
    store = MemoryStore()
    settings: dict[str, Any] = {"tokens": tokens, "cluster_log_interval_s": 0.05}
    async with running_hub(store, **settings) as hub, running_link(hub, log, EDGE, edge):
        await log.until_released(3)
        for token, status in ((None, 401), (foreign, 404), (edge, 403)):
            assert (await get(hub, PATH, token))[0] == status
        async with tailed(hub, form, "", reader) as events:
            await anext(events)
            await withdraw_token(store, "reader")
            async with asyncio.timeout(PATIENCE_S):
                last = [event async for event in events][-1]
            assert (set(last), last["position"]) == ({"error", "advice", "position"}, "0:3,1:0") or last["error"]


async def test_a_page_of_strangers_opens_no_socket_and_a_client_has_nothing_to_say() -> None:
    log = EdgeLog()
    numbered(log, 0, 1)
    async with running_hub(MemoryStore()) as hub, running_link(hub, log, EDGE):
        await log.until_released(1)
        async with aiohttp.ClientSession(hub.url) as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(PATH, headers={"Origin": "https://stranger.example"})
            assert refused.value.status == 403
            async with session.ws_connect(PATH, headers={"Origin": hub.url}) as socket:
                await socket.send_str("hello")
                async with asyncio.timeout(PATIENCE_S):
                    assert [event async for event in messages(socket) if event["records"]] == []
                assert socket.close_code == aiohttp.WSCloseCode.UNSUPPORTED_DATA
        for query in ("position=x", "position=0:1,0:2", "position=0:99999999999999999999", "position=", "key=%23/a"):
            assert (await get(hub, f"{PATH}?{query}"))[0] == 400


async def test_one_owner_and_one_tenant_leave_places_to_others() -> None:
    places = ReaderPlaces(Refusals(lambda: 0.0), 16, "follow")
    owner = [Owner(OwnerKind.TOKEN, f"t{number}") for number in range(20)]
    from contextlib import ExitStack

    with ExitStack() as stack:
        for each in (owner[0], owner[0], *owner[1:7]):
            stack.enter_context(places.taken(each, "acme"))
        for each, tenant in ((owner[0], "other"), (owner[8], "acme")):
            with pytest.raises(ApiError) as refused, places.taken(each, tenant):
                pass
            assert refused.value.status == 429
        for each in owner[8:16]:
            stack.enter_context(places.taken(each, "other"))
        with pytest.raises(ApiError), places.taken(owner[17], "third"):
            pass
    assert not places.owners
    with places.taken(owner[0], "acme"):
        pass


async def test_many_readers_of_a_stream_cost_the_hub_the_stream_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they came at different times, have filters of their own, and some leave meanwhile."""
    read = RecordReader.read
    asked = Counter[int]()

    async def counted(reader: RecordReader, stream: Any, offset: int, *rest: Any, **options: Any) -> Helping:
        asked[offset] += 1
        return await read(reader, stream, offset, *rest, **options)

    monkeypatch.setattr(RecordReader, "read", counted)
    monkeypatch.setattr(tail, "READ_AGE_S", 3600.0)  # a busy machine may take longer to tell a hundred readers
    log = EdgeLog()
    numbered(log, 0, 5)
    async with running_hub(MemoryStore(), shards=1) as hub, running_link(hub, log, EDGE), AsyncExitStack() as stack:
        await log.until_released(5)
        queries = ["", f"edge={EDGE.edge}", "key=plant/%23", "edge=none"]
        readers = [
            await stack.enter_async_context(tailed(hub, ("events", "socket")[at % 2], queries[at % 4]))
            for at in range(100)
        ]
        for each in readers:
            assert (await anext(each))["records"] == []
        for leaving in readers[::10]:
            await leaving.aclose()  # type: ignore[attr-defined]
        for first in range(5, 65, 15):
            numbered(log, first, 15)
            await log.until_released(first + 15)
        stay = [each for at, each in enumerate(readers) if at % 10 and queries[at % 4] != "edge=none"]
        found = await asyncio.gather(*(taken(each, 60) for each in stay))
        assert all(numbers == list(range(5, 65)) for numbers, _ in found)
        assert set(asked.values()) == {1}, "no place is read twice"


async def test_a_reader_that_leaves_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "TAILS_MAX", 64)
    log = EdgeLog()
    numbered(log, 0, 1)
    async with running_hub(MemoryStore()) as hub, running_link(hub, log, EDGE):
        await log.until_released(1)
        async with aiohttp.ClientSession(hub.url) as session:
            held = [await session.get(PATH) for _ in range(tail.TAILS_MAX // 8)]
            async with session.get(PATH) as answer:
                assert answer.status == 429
            for each in held:
                each.close()

            async def is_free() -> bool:
                async with session.get(PATH) as answer:
                    return answer.status == 200

            await until(is_free)


def test_positions_are_text_and_back() -> None:
    assert position_text({2: 7, 0: 120}) == "0:120,2:7"
    assert parse_position("0:120,2:7") == {0: 120, 2: 7}
