"""New records as they come: each once over disconnections, by both forms, with rights and bounds."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from tests.cloud_hub.http.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.tokens import create_token, withdraw_token
from tests.support.waiting import PATIENCE_S, until
from weft.bounds import Owner, OwnerKind, Refusals
from weft.client import Client
from weft.cloud_hub.http import exchange as bounds
from weft.cloud_hub.http import tail
from weft.cloud_hub.http.exchange import ReaderPlaces
from weft.cloud_hub.http.tail import TailRecord, parse_position, position_text
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.reads.records import Helping, RecordReader
from weft.cloud_hub.reads.views import FoundRecord
from weft.hub_api.answers import ApiError
from weft.hub_api.rights import Scope
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
    async with aiohttp.ClientSession(hub.url, headers=headers, read_bufsize=1 << 22) as session:
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


LONG = ('\x01"\u00e4\U0001f600x' * 70_000).encode()


@pytest.mark.parametrize("form", ["events", "socket"])
async def test_a_long_record_comes_whole_and_in_order(form: str) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"before", LONG, b"behind", LONG]))
    async with running_hub(MemoryStore(), shards=1) as hub, running_link(hub, log, EDGE):
        await log.until_released(4)
        answer = (await get(hub, "/v1/streams/telemetry/records"))[1]["records"]
        async with tailed(hub, form, "position=0:0") as events:
            found: list[dict[str, Any]] = []
            async with asyncio.timeout(PATIENCE_S):
                while len(found) < 4:
                    found += (await anext(events))["records"]
        assert found == answer
        assert found[1]["payload"] == LONG.decode()


@asynccontextmanager
async def deaf(hub: Hub, token: str, query: str, count: int) -> AsyncIterator[None]:
    """Tails that read nothing."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        for _ in range(count):
            asking = stack.enter_context(socket.socket())
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asking.setblocking(False)
            await loop.sock_connect(asking, ("127.0.0.1", int(hub.url.rpartition(":")[2])))
            head = f"GET {PATH}?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
            await loop.sock_sendall(asking, head.encode())
        yield


@pytest.fixture
def two_tenants(tmp_path: Path) -> TwoTenants:
    path = str(tmp_path / "tokens")
    return TwoTenants(
        path,
        *(
            create_token(path, f"{tenant}-{scope}", scope, tenant, "press-1" if scope is Scope.EDGE else None)
            for tenant in ("evil", "good")
            for scope in (Scope.EDGE, Scope.READER)
        ),
    )


class TwoTenants(NamedTuple):
    path: str
    evil_edge: str
    evil: str
    good_edge: str
    good: str


@asynccontextmanager
async def filled(tenants: TwoTenants, evil: list[bytes], good: list[bytes]) -> AsyncIterator[Hub]:
    """A hub with a stream of each tenant."""
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running_hub(MemoryStore(), shards=1, tokens=tenants.path))
        for tenant, token, payloads in (("evil", tenants.evil_edge, evil), ("good", tenants.good_edge, good)):
            log = EdgeLog()
            for at in range(0, len(payloads), 200):
                log.append(*records(at, payloads[at : at + 200]))
            edge = EDGE._replace(tenant=tenant)
            async with running_link(hub, log, edge, token):
                await log.until_released(len(payloads))
        yield hub


async def test_tails_that_do_not_read_hold_a_share_and_others_get_theirs(
    two_tenants: TwoTenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a record that is long, and many times as long as an event."""
    encoded = Counter[str]()
    of = TailRecord.of

    def counted(found: FoundRecord) -> TailRecord:
        encoded[found.record.edge] += 1
        return of(found)

    monkeypatch.setattr(TailRecord, "of", counted)
    monkeypatch.setattr(tail, "READ_AGE_S", 3600.0)  # as above
    long = b"\x01" * (1 << 20)  # six times as long in an answer; what is longer becomes base64
    async with filled(two_tenants, [b"1", long], [b"1", b"2"]) as hub:
        answers = hub._api.answers
        async with deaf(hub, two_tenants.evil, "position=0:0", 30):
            share = bounds.AT_ONCE_OF_OWNER * (6 * len(long) + (1 << 20))
            # Until an event is encoded, it counts with the longest answer.
            await until(lambda: 3 * 6 * len(long) < answers.bytes < share)
            most = 0
            for _ in range(20):
                assert (await get(hub, "/v1/streams/telemetry/records", two_tenants.good))[0] == 200
                async with tailed(hub, "events", "position=0:0", two_tenants.good) as events:
                    assert (await taken(events, 2))[0] == [0, 1]
                most = max(most, answers.bytes)
            assert most < share, "they wait for each other"
            assert encoded.total() == 4, "each record once"
        await until(lambda: not answers.bytes)


async def test_tails_that_search_pay_for_it_and_others_do_not(
    two_tenants: TwoTenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins elsewhere, and its filter matches nothing: none is slowed by what it reads."""
    read, asked = RecordReader.read, Counter[str]()

    async def counted(reader: RecordReader, stream: Any, offset: int, *rest: Any, **options: Any) -> Helping:
        asked[stream[0]] += 1
        return await read(reader, stream, offset, *rest, **options)

    monkeypatch.setattr(RecordReader, "read", counted)
    monkeypatch.setattr(tail, "SEARCH_S", 1e-9)
    monkeypatch.setattr(tail, "SEARCH_AT_ONCE_S", 0.02)
    payloads = [b"%d" % number for number in range(4_000)]
    async with filled(two_tenants, payloads, payloads[:600]) as hub, AsyncExitStack() as stack:
        for at in range(16):
            query = f"position=0:{at}&key=none"
            await anext(await stack.enter_async_context(tailed(hub, "events", query, two_tenants.evil)))
        await until(lambda: any(str(each.owner) == "token evil-reader" for each in hub._refusals))
        async with tailed(hub, "events", "position=0:0", two_tenants.good) as events:
            assert (await taken(events, 600))[0] == list(range(600))
        assert asked["evil"] <= 0.02 / tail.CHUNK_S + tail.READS_AT_ONCE, "of 16 times 20"
        last = await stack.enter_async_context(tailed(hub, "socket", "position=0:99&key=none", two_tenants.evil))
        await anext(last)
        await hub.close()
        async with asyncio.timeout(PATIENCE_S):
            assert not [event async for event in last if event["records"]], "it waits no longer than the process runs"


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
