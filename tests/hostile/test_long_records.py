"""The longest record, with the content that costs most: for tables, readers and the loop it is a little work at a time,
and a longer one is refused at the door."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator

import aiohttp
import msgspec
import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.hub import HOSTILE, GuardedHub
from tests.hostile.link_client import GoodLink, encoded, link_to, records
from tests.hostile.test_steps import answers
from tests.support.steps import CALLS
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols import batch
from weft.protocols.batch import HeaderPairs
from weft.protocols.link import Ack, LaneClosed
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect, Publish, Subscribe, Subscription
from weft.protocols.payloads import PAYLOAD_BYTES_MAX, PayloadKind

pytestmark = [pytest.mark.processes, pytest.mark.slow]
MIB = 1 << 20
RECORD_BYTES = 8 * MIB
ROOM = 1024
"""Bytes of a record for its key, and of a payload for what is around it."""
SINCE = "since=2020-01-01T00:00:00Z"


def brackets(size: int) -> bytes:
    return b"[" + b"[]," * ((size - 4) // 3) + b"[]]"


def members(size: int) -> bytes:
    return b'{"a":1,' + b",".join(b'"%07x":[]' % at for at in range(size // 14)) + b"}"


def one_of(payload: bytes, headers: HeaderPairs = ()) -> bytes:
    return records(0, payload=payload, headers={0: headers} if headers else None, level=3)


def many_of(payload: bytes, count: int) -> bytes:
    columns = batch.columns_from_lists(struct.pack("<q", 10**18) * count, [b"k"] * count, [payload] * count)
    return encoded(0, columns, level=3)


LONGEST = RECORD_BYTES - ROOM
CONTROL = "\x01"
CASES: dict[str, tuple[PayloadKind, Callable[[], bytes]]] = {
    "json-brackets": (PayloadKind.JSON, lambda: one_of(brackets(LONGEST))),
    "json-strings": (PayloadKind.JSON, lambda: one_of(b"[" + b'"",' * (LONGEST // 3 - 2) + b'""]')),
    "json-escapes": (PayloadKind.JSON, lambda: one_of(b'["' + b'\\"' * (LONGEST // 2 - 4) + b'"]')),
    "json-members": (PayloadKind.JSON, lambda: one_of(members(LONGEST))),
    "text-control": (PayloadKind.TEXT, lambda: one_of(CONTROL.encode() * LONGEST)),
    "bytes": (PayloadKind.BYTES, lambda: one_of(b"\xff" * LONGEST)),
    "json-none": (PayloadKind.JSON, lambda: one_of(b"\xff" * LONGEST)),
    "headers-long": (PayloadKind.BYTES, lambda: one_of(b"{}", (("h", CONTROL * LONGEST),))),
    "headers-many": (PayloadKind.BYTES, lambda: one_of(b"{}", tuple(("", CONTROL * 8000) for _ in range(1000)))),
    "many-brackets": (PayloadKind.JSON, lambda: many_of(brackets(PAYLOAD_BYTES_MAX), 32)),
    "many-members": (PayloadKind.JSON, lambda: many_of(members(PAYLOAD_BYTES_MAX - ROOM), 32)),
}


@pytest.fixture(scope="module")
def one_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedHub]:
    """One hub for all of them."""
    hub = GuardedHub(tmp_path_factory.mktemp("records"))
    hub.environment[CALLS] = "1"
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()


async def by_events(hub: GuardedHub, path: str, token: str) -> bytes:
    """The first event with records of a tail."""

    def read() -> bytes:
        request = urllib.request.Request(
            f"{hub.url}{path}/tail?position=0:0", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            lines: Iterator[bytes] = iter(answer)
            return next(line[6:] for line in lines if line.startswith(b'data: {"records":[{'))

    return await asyncio.to_thread(read)


async def by_messages(hub: GuardedHub, path: str, token: str) -> bytes:
    """The first message with records of a tail by WebSocket."""
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as client,
        client.ws_connect(f"{hub.url}{path}/tail?position=0:0", max_msg_size=0) as tail,
    ):
        while True:
            told = await tail.receive_str(timeout=PATIENCE_S)
            if told.startswith('{"records":[{'):
                return told.encode()


@pytest.mark.parametrize("name", CASES)
async def test_the_longest_record_is_a_little_work_at_a_time(one_hub: GuardedHub, name: str) -> None:
    kind, made = CASES[name]
    data = made()
    stream = f"{name}-{time.monotonic_ns()}"
    hub, token, path = one_hub, one_hub.token("evil"), f"/v1/streams/{stream}"

    def get(what: str) -> bytes:
        status, body = hub.get(path + what, token, 120)
        assert status == 200, body
        return body

    with GoodLink(hub) as good:
        async with link_to(hub, HOSTILE) as link:
            await link.greet()
            await link.open(msgspec.structs.replace(link.opening(stream=stream), payload=kind))
            assert isinstance(await link.deliver(data), Ack)
        count = batch.decode_header(data).count
        wait_until(lambda: hub.json(path, token)["table_rows"] == count, PATIENCE_S, "the rows of its table")
        [sent] = batch.records(data, end=1)
        for what in ("/records?limit=1&offset=0&shard=0", "/rows?shard=0&format=json&limit=1", "/rows?shard=0&limit=1"):
            body = await asyncio.to_thread(get, what)
            if what.startswith("/records"):
                [record] = json.loads(body)["records"]
                text = record.get("payload")
                payload = base64.b64decode(record["payload_base64"]) if text is None else text.encode()
                is_the_same = (payload, [*map(tuple, record.get("headers", []))]) == (sent.payload, [*sent.headers])
                assert is_the_same
            else:
                assert len(body) > MIB // 2
        for told in await asyncio.gather(by_events(hub, path, token), by_messages(hub, path, token)):
            assert msgspec.json.decode(told)["records"][0] == record | {"shard": 0}
        is_charted = text is None or len(payload) <= PAYLOAD_BYTES_MAX
        charts = json.loads(await asyncio.to_thread(get, f"/series?{SINCE}&fields=,a,a.b"))
        assert charts["is_whole"] is is_charted
        assert json.loads(await asyncio.to_thread(get, "/trace?shard=0&offset=0"))["standing"] == "here"
        good.take()


async def test_a_record_beyond_the_bound_closes_its_stream_and_nothing_else(one_hub: GuardedHub) -> None:
    hub = one_hub
    with GoodLink(hub) as good:
        async with link_to(hub, HOSTILE) as link:
            await link.greet()
            await link.open(*(link.opening(lane, f"long-{lane}") for lane in (1, 2)))
            assert isinstance(await link.deliver(records(0)), Ack)
            # A whole batch of one record: 6 kB on the wire, which stopped the hub for two seconds.
            closed = await link.deliver(records(1, payload=brackets(60 * MIB), level=3))
            assert isinstance(closed, LaneClosed)
            assert "the record at seq 1 has" in closed.message
            assert closed.advice == "raise the hub's limits.record"
            assert isinstance(await link.deliver(records(0, lane=2), lane=2), Ack)
        good.take()
    assert hub.metrics()['weft_hub_refusals_total{bound="limits.record",owner="edge evil/mallory"}'] == 1


# --- The longest message of an edge, for all that looks at messages there.

STREAMS = """,
  public: {from: "public/#", payload: json, schema: {fields: {value: float}}},
  hot: {from_stream: public, functions: [{where: value > 0}]},
  all: {from_stream: public, functions: [{sql: {every: 1s, by: none, select: "SELECT count(*) AS n FROM input"}}]}"""
MESSAGE_BYTES = 4 * MIB - ROOM
MESSAGES: dict[str, Callable[[], bytes]] = {
    "brackets": lambda: brackets(MESSAGE_BYTES),
    "strings": lambda: b"[" + b'"",' * (MESSAGE_BYTES // 3 - 2) + b'""]',
    "members": lambda: members(MESSAGE_BYTES),
    "control": lambda: CONTROL.encode() * MESSAGE_BYTES,
    "decoded": lambda: brackets(256 * 1024),
    "checked": lambda: b'{"value":1,"x":' + brackets(24 * 1024 - 20) + b"}",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedEdge]:
    """One node for all of them."""
    edge = GuardedEdge(tmp_path_factory.mktemp("messages"), streams=STREAMS)
    edge.environment[CALLS] = "1"
    edge.start()
    try:
        yield edge
    finally:
        edge.stop()


@pytest.mark.parametrize("name", MESSAGES)
def test_the_longest_message_is_a_little_work_at_a_time(node: GuardedEdge, name: str) -> None:
    payload = MESSAGES[name]()
    before = node.function_figures()["hot"]["rows_in"]
    with GoodClient(node, "device") as good:
        packets = (
            Connect(f"many-{name}", username="mallory", password=b"mallory"),
            Subscribe(1, (Subscription(f"public/{name}", 0),)),
            *(
                Publish(f"public/{name}".encode(), payload, 1, packet_id=number, retain=number == 2)
                for number in (1, 2)
            ),
        )
        data = b"".join(encode(each, 4) for each in packets)
        assert len(answers(node.mqtt_port, data, lambda said: len(said) > 2 * len(payload))) > 2 * len(payload)
        login = base64.b64encode(b"mallory:mallory").decode()
        posted = urllib.request.Request(
            f"http://127.0.0.1:{node.posts_port}/v1/topics/public/y",
            gzip.compress(payload),
            {"Authorization": f"Basic {login}", "Content-Encoding": "gzip", "Weft-Batch": "no"},
        )
        with urllib.request.urlopen(posted, timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        node.wait_for_functions(lambda figures: figures["hot"]["rows_in"] >= before + 3, PATIENCE_S)
        for page in ("topics", "status", "metrics"):
            asked = urllib.request.Request(
                f"http://127.0.0.1:{node.http_port}/{page}", headers={"Authorization": f"Basic {login}"}
            )
            with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
                assert answer.status == 200
        good.take()
