"""A request of which very much is to be delivered is stored in pieces, and others are served between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.edge_node.servers.http.harness import HttpNode
from tests.edge_node.servers.mqtt.harness import RawClient
from tests.support.waiting import until
from weft.bounds.scheduling import TurnBudget
from weft.config.units import Address
from weft.edge_node.ingest import ingest
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.servers.http import storing
from weft.edge_node.servers.http.connection import HttpConnection
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


async def test_all_of_it_is_stored_and_delivered_once_and_in_order(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_stores(monkeypatch)
    status, answer, _ = await http.post(PATH, BODY, **JSON)
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


async def test_with_a_key_what_is_too_much_for_one_commit_is_refused(http: HttpNode, readers: list[RawClient]) -> None:
    """Its halves are stored, each whole, and the key of what was refused is free."""
    status, answer, _ = await http.post(PATH, BODY, **JSON, Idempotency_Key="k")
    assert status == 413
    assert "send less at once" in answer["detail"]
    assert f"at most {storing.ONCE_COST_MAX} deliveries" in answer["detail"]
    assert not http.stored()
    for key, part in (("k", MESSAGES[:9]), ("k-2", MESSAGES[9:18])):
        for is_again in (False, True):
            status, answer, fields = await http.post(PATH, json.dumps(part).encode(), **JSON, Idempotency_Key=key)
            assert (status, answer["first_seq"], answer["count"]) == (200, part[0], len(part))
            assert ("Idempotency-Replayed" in fields) is is_again
    assert await stored(http) == MESSAGES[:18]
    assert [await received(reader, 18) for reader in readers] == [MESSAGES[:18]] * len(readers)


async def test_with_a_key_too_many_points_are_refused_too(http: HttpNode, readers: list[RawClient]) -> None:
    lines = "".join(f"plant,line=a value={number} {number}\n" for number in MESSAGES)
    path = "/api/v2/write?bucket=plant/a&precision=s"
    status, answer, _ = await http.post(path, lines.encode(), Idempotency_Key="k")
    assert (status, "send less at once" in json.dumps(answer)) == (413, True)
    assert not http.stored()
    assert len(readers) == 4


async def test_with_a_key_one_message_is_stored_for_any_number_of_subscribers(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "ONCE_COST_MAX", 1)
    assert (await http.post(PATH, b"7", Idempotency_Key="k"))[0] == 200, "it cannot be sent in parts"
    assert [await received(reader, 1) for reader in readers] == [[7]] * len(readers)


async def test_with_a_key_what_the_log_refuses_is_stored_when_it_is_sent_again(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(MESSAGES[:8]).encode()
    with monkeypatch.context() as patch:
        counts = count_stores(patch, refuse=lambda _: True)
        assert (await http.post(PATH, body, **JSON, Idempotency_Key="k"))[0] == 503
    assert counts == [8], "all of it at once"
    assert not http.stored()
    _, answer, fields = await http.post(PATH, body, **JSON, Idempotency_Key="k")
    assert (answer["first_seq"], answer["count"], "Idempotency-Replayed" in fields) == (0, 8, False)
    assert await stored(http) == MESSAGES[:8]
    assert len(readers) == 4


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


async def test_a_request_whose_client_is_gone_is_left(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is held, nor continues with routes that do not learn of new subscribers."""
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
