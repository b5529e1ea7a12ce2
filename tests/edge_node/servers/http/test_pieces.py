"""A request of which very much is to be delivered is stored in pieces, and others are served between them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.edge_node.servers.http.harness import CONFIG, HttpNode, running
from tests.edge_node.servers.mqtt.harness import RawClient
from tests.support import live_node
from tests.support.waiting import until
from weft.bounds.rounds import TurnBudget
from weft.config.units import Address
from weft.edge_node.ingest import ingest
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.servers.http import idempotency, storing
from weft.edge_node.servers.http.connection import HttpConnection, Steps
from weft.edge_node.servers.http.idempotency import IdempotencyKeys
from weft.edge_node.servers.http.settings import HttpCounters, HttpSettings
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.mqtt.packets import PubAck, Publish
from weft.storage.segment_log import LogFull

PATH = "/v1/streams/telemetry/plant/a"
JSON = {"Content_Type": "application/json"}
MESSAGES = list(range(40))
BODY = json.dumps(MESSAGES).encode()
MANY = list(range(2000))
COST_MAX = 90
"""Four subscribers get five messages in one piece."""


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ingest, storing):
        monkeypatch.setattr(module, "COST_MAX", COST_MAX)
    monkeypatch.setattr(storing, "PIECE_COST_MAX", COST_MAX)
    monkeypatch.setattr(storing, "ONCE_COST_MAX", 2 * COST_MAX)


@pytest_asyncio.fixture
async def readers(http: HttpNode) -> AsyncIterator[list[RawClient]]:
    clients = [await subscriber(http, f"reader-{number}") for number in range(4)]
    yield clients
    for client in clients:
        await client.close()


async def subscriber(http: HttpNode, client_id: str) -> RawClient:
    address = http.node.addresses["mqtt"]
    assert isinstance(address, Address)
    client = await RawClient.connect(address.port, client_id)
    await client.subscribe(("plant/#", 1))
    return client


async def received(client: RawClient, count: int) -> list[int]:
    found = []
    for _ in range(count):
        packet = await client.receive()
        assert isinstance(packet, Publish)
        client.send(PubAck(packet.packet_id))
        found.append(int(packet.payload))
    return found


async def stored(http: HttpNode) -> list[int]:
    await http.node.log.durable()
    return [int(record.payload) for record in http.stored()]


def count_stores(monkeypatch: pytest.MonkeyPatch, refuse: Callable[[int], bool] = lambda _: False) -> list[int]:
    """Return a list that gets the records of each store; refuse those whose number fits, from 0 on."""
    counts: list[int] = []

    def counted(name: str) -> None:
        store = getattr(Ingest, name)

        def wrapped(self: Ingest, gathered: Any, **options: Any) -> Any:
            counts.append(sum(len(run.keys) for run in gathered.groups.values()))
            if refuse(len(counts) - 1):
                if name == "store":
                    raise LogFull("no room")
                return {source: LogFull("no room") for run in gathered.groups.values() for source in run.sources}
            return store(self, gathered, **options)

        monkeypatch.setattr(Ingest, name, wrapped)

    counted("store")
    counted("store_each")
    return counts


@pytest.mark.parametrize("fields", [{}, {"Idempotency_Key": "k"}])
async def test_all_of_it_is_stored_and_delivered_once_and_in_order(
    http: HttpNode, readers: list[RawClient], fields: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_stores(monkeypatch)
    status, answer, _ = await http.post(PATH, BODY, **JSON, **fields)
    assert (status, answer["first_seq"], answer["count"]) == (200, 0, len(MESSAGES))
    assert await stored(http) == MESSAGES
    assert [await received(reader, len(MESSAGES)) for reader in readers] == [MESSAGES] * len(readers)
    assert max(counts) == 5, "more than a step may deliver"


async def test_points_are_stored_in_pieces_too(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_stores(monkeypatch)
    lines = "".join(f"plant,line=a value={number} {number}\n" for number in MESSAGES)
    status, _, _ = await http.post("/api/v2/write?bucket=plant/a&precision=s", lines.encode())
    assert status == 204
    assert len(http.stored()) == len(MESSAGES)
    assert max(counts) == 5
    for reader in readers:
        assert b'"value"' in (await reader.receive()).payload


async def test_a_request_that_few_get_is_one_piece(http: HttpNode, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_stores(monkeypatch)
    await http.post(PATH, BODY, **JSON)
    await http.post(PATH, BODY, **JSON, Idempotency_Key="k")
    assert [count for count in counts if count] == [len(MESSAGES)] * 2


async def test_what_others_store_between_the_pieces_has_numbers_of_its_own(
    http: HttpNode, readers: list[RawClient]
) -> None:
    body = json.dumps(MANY).encode()
    both = await asyncio.gather(*(http.post(PATH, body, **JSON) for _ in range(2)))
    assert all("runs" in answer for _, answer, _ in both)
    rows = [
        answer.get("runs") or [{"first_seq": answer["first_seq"], "count": answer["count"]}] for _, answer, _ in both
    ]
    seqs = [[row["first_seq"] + index for row in each for index in range(row["count"])] for each in rows]
    assert sorted(seqs[0] + seqs[1]) == list(range(2 * len(MANY)))
    found = await stored(http)
    assert [[found[seq] for seq in each] for each in seqs] == [MANY, MANY]
    assert len(readers) == 4


async def test_one_who_subscribes_between_the_pieces_misses_nothing_after_it(
    http: HttpNode, readers: list[RawClient]
) -> None:
    asked = asyncio.create_task(http.post(PATH, json.dumps(MANY).encode(), **JSON))
    first = await readers[0].receive()
    assert int(first.payload) == 0
    late = await subscriber(http, "late")
    packet = await late.receive()
    began = int(packet.payload)
    late.send(PubAck(packet.packet_id))
    assert 0 < began < len(MANY) - 1
    assert await received(late, len(MANY) - 1 - began) == MANY[began + 1 :]
    assert (await asked)[0] == 200


async def test_a_request_that_was_refused_midway_goes_on_when_it_is_sent_again(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        count_stores(patch, refuse=lambda number: number == 3)
        status, answer, _ = await http.post(PATH, BODY, **JSON, Idempotency_Key="k")
    assert status == 503, answer
    assert await stored(http) == MESSAGES[: 3 * 5]
    status, answer, fields = await http.post(PATH, BODY, **JSON, Idempotency_Key="k")
    assert (status, answer["first_seq"], answer["count"]) == (200, 0, len(MESSAGES))
    assert "Idempotency-Replayed" not in fields
    again = await http.post(PATH, BODY, **JSON, Idempotency_Key="k")
    assert again[1] == answer
    assert again[2]["Idempotency-Replayed"] == "true"
    assert await stored(http) == MESSAGES
    assert [await received(reader, len(MESSAGES)) for reader in readers] == [MESSAGES] * len(readers)


async def test_it_goes_on_after_a_restart_without_its_subscribers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as http:
        readers = [await subscriber(http, f"reader-{number}") for number in range(4)]
        with monkeypatch.context() as patch:
            count_stores(patch, refuse=lambda number: number == 2)
            assert (await http.post(PATH, BODY, **JSON, Idempotency_Key="k"))[0] == 503
        await http.post(PATH, b"-1")
        assert [await received(reader, 11) for reader in readers] == [[*MESSAGES[:10], -1]] * len(readers)
    async with running(tmp_path) as http:
        assert (await http.post(PATH, b"[1]", **JSON, Idempotency_Key="k"))[0] == 422
        _, answer, _ = await http.post(PATH, BODY, **JSON, Idempotency_Key="k")
        assert await stored(http) == [*MESSAGES[:10], -1, *MESSAGES[10:]]
        assert answer["count"] == len(MESSAGES)
        assert answer["runs"] == [{"first_seq": 0, "count": 10}, {"first_seq": 11, "count": 30}]
    async with running(tmp_path) as http:
        assert (await http.post(PATH, BODY, **JSON, Idempotency_Key="k"))[1] == answer
        assert len(http.stored()) == len(MESSAGES) + 1


async def test_a_piece_that_is_refused_is_the_last_one(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key; what follows what was refused would come before it when it is sent again."""
    with monkeypatch.context() as patch:
        counts = count_stores(patch, refuse=lambda number: number == 2)
        assert (await http.post(PATH, BODY, **JSON))[0] == 503
    assert await stored(http) == MESSAGES[: 2 * 5]
    assert sum(counts) == 3 * 5
    assert await received(readers[0], 10) == MESSAGES[:10]


async def test_the_same_request_beside_itself_is_stored_once(http: HttpNode, readers: list[RawClient]) -> None:
    body = json.dumps(MANY).encode()
    answers = await asyncio.gather(*(http.post(PATH, body, **JSON, Idempotency_Key="k") for _ in range(5)))
    assert sorted(status for status, _, _ in answers) == [200, 409, 409, 409, 409]
    for status, answer, fields in answers:
        if status == 409:
            assert "send it again later" in answer["detail"]
            assert int(fields["Retry-After"]) > 0
    assert (await http.post(PATH, BODY, **JSON, Idempotency_Key="k"))[0] == 422
    assert (await http.post(PATH, body, **JSON, Idempotency_Key="k"))[2]["Idempotency-Replayed"] == "true"
    assert await stored(http) == MANY
    assert len(readers) == 4


@pytest.mark.parametrize("grows", [True, False])
async def test_points_go_on_behind_the_line_that_was_stored_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    """Lines that no stream takes are left out. Which they are has changed since some points were stored."""
    few = CONFIG.replace("{more}", "unrouted: refuse")
    both = few.replace("streams:\n", "streams:\n  other: {{from: 'other/#'}}\n")
    first, second = ((few, both) if grows else (both, few)) if both != few else ("", "")
    lines = "".join(f"{'other' if each % 2 else 'plant,line=a'} value={each} {each}\n" for each in MESSAGES)
    path = "/api/v2/write?bucket={measurement}/a&precision=s"

    async def post(http: HttpNode) -> tuple[int, str]:
        async with http.session.post(http.url + path, data=lines, headers={"Idempotency-Key": "k"}) as answer:
            return answer.status, json.loads(await answer.text())["error"]

    def values(http: HttpNode, stream: str) -> list[int]:
        if stream not in http.node.log.streams():
            return []
        return [json.loads(record.payload)["value"] for record in http.stored(stream)]

    for text in (first, second):
        async with (
            live_node.running(tmp_path, text.format(folder=tmp_path, listener="")) as node,
            aiohttp.ClientSession() as session,
        ):
            http = HttpNode(node, session)
            readers = [await subscriber(http, f"reader-{number}") for number in range(4)]
            for reader in readers:
                await reader.subscribe(("other/#", 0))
            if text is first:
                with monkeypatch.context() as patch:
                    count_stores(patch, refuse=lambda number: number == 2)
                    assert (await post(http))[0] == 503
                await node.log.durable()
                before = values(http, "telemetry"), values(http, "other")
                continue
            status, answer = await post(http)
            assert status == 400
            await node.log.durable()
            last = max(before[0] + before[1])
            assert values(http, "telemetry") == [
                *before[0],
                *(each for each in MESSAGES if each > last and not each % 2),
            ]
            others = (each for each in MESSAGES if each > last and each % 2 and grows)
            assert values(http, "other") == [*before[1], *others]
            count = len(values(http, "telemetry")) + len(values(http, "other"))
            assert answer.endswith(f"dropped={len(MESSAGES) - count}")
            assert await post(http) == (status, answer)


async def test_a_key_that_is_forgotten_meanwhile_costs_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's oldest keys are forgotten first, also that of a request under way."""
    async with running(tmp_path, more="state: {idempotency_keys: 8}") as http:
        readers = [await subscriber(http, f"reader-{number}") for number in range(4)]
        held: list[Steps] = []
        go_on = Steps._in_turn
        with monkeypatch.context() as patch:
            stores = count_stores(patch)
            patch.setattr(TurnBudget, "spend", lambda self, cost=1: False)
            patch.setattr(Steps, "_in_turn", lambda self: held.append(self) if any(stores) else go_on(self))
            asked = asyncio.create_task(http.post(PATH, json.dumps(MANY).encode(), **JSON, Idempotency_Key="k"))
            await readers[0].receive()
            for number in range(4):
                await http.post("/v1/topics/nowhere", b"1", Idempotency_Key=f"other-{number}")
        (steps,) = held
        steps._in_turn()
        _, answer, _ = await asked
        assert (answer["first_seq"], answer["count"]) == (0, len(MANY))


async def test_an_earlier_release_does_not_take_a_piece_for_the_whole(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = http.node.log
    with monkeypatch.context() as patch:
        count_stores(patch, refuse=lambda number: number == 1)
        await http.post(PATH, BODY, **JSON, Idempotency_Key="k")
    await keys.durable()
    monkeypatch.setattr(idempotency, "PIECES_VERSION", idempotency.VERSION)
    with pytest.raises(UnsupportedVersion, match="later release"):
        IdempotencyKeys(keys, keys.stream("weft-http"), HttpSettings(), HttpCounters(), time.time_ns)
    assert len(readers) == 4


async def test_a_request_whose_client_is_gone_is_left(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is held, nor goes on with routes that do not learn of new subscribers."""
    opened: list[asyncio.Transport] = []
    ended: list[Exception | None] = []
    made, lost = HttpConnection.connection_made, HttpConnection.connection_lost

    def note_begin(self: HttpConnection, transport: asyncio.Transport) -> None:
        made(self, transport)
        opened.append(transport)

    def note_end(self: HttpConnection, why: Exception | None) -> None:
        lost(self, why)
        ended.append(why)

    monkeypatch.setattr(HttpConnection, "connection_made", note_begin)
    monkeypatch.setattr(HttpConnection, "connection_lost", note_end)
    monkeypatch.setattr(TurnBudget, "spend", lambda self, cost=1: False)
    _, writer = await asyncio.open_connection("127.0.0.1", http.port)
    body = json.dumps(MANY).encode()
    head = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % (PATH.encode(), len(body)) + body)
    await readers[0].receive()
    opened[0].abort()  # a client that has gone is not seen for certain while it is not read
    await until(lambda: ended)
    writer.close()
    count = len(await stored(http))
    await http.post(PATH, b"-2")
    assert len(await stored(http)) == count + 1 < len(MANY)


async def test_requests_of_one_read_have_turns_also_before_what_cannot_be_read(
    http: HttpNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a read is no way around the turn's budget, whatever follows."""
    monkeypatch.setattr(TurnBudget, "spend", lambda self, cost=1: False)
    stores = count_stores(monkeypatch)
    one = b"POST /v1/streams/telemetry/plant/a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\r\n1"
    answers = await http.raw(one * 5 + b"no request\r\n\r\n")
    assert [answers.count(b"HTTP/1.1 200"), answers.count(b"HTTP/1.1 400")] == [5, 1]
    assert [count for count in stores if count] == [1] * 5


async def test_rows_of_numbers_have_a_bound(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "RUNS_MAX", 3)
    store = Ingest.store

    def and_another(self: Ingest, gathered: Any, **options: Any) -> Any:
        done = store(self, gathered, **options)
        http.node.log.append(http.node.log.stream("telemetry"), 1, [b"plant/a"], [b"-1"])
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Ingest, "store", and_another)
        _, answer, _ = await http.post(PATH, BODY, **JSON, Idempotency_Key="k")
    assert [row["count"] for row in answer["runs"]] == [5, 5, 5]
    assert answer["count"] == len(MESSAGES)
    assert (await http.post(PATH, BODY, **JSON, Idempotency_Key="k"))[1] == answer
    assert len(readers) == 4
