"""The load generator sends what real fleets send, and its latencies hide no stall."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.brokers import certificate
from bench.generator import NO_TLS, Generator, build
from tests.bench.broker import Broker, running


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
    return build(tmp_path_factory.mktemp("generator"))


async def load(generator: Generator, broker: Broker, seconds: float = 0.3, **options: object) -> dict[str, Any]:
    """Run the generator without warm-up; its figures."""
    return await asyncio.to_thread(generator.run, broker.port, None, seconds, {"W": 0, **options})


def by_client(broker: Broker) -> dict[str, list[bytes]]:
    found = defaultdict(list)
    for message in broker.messages:
        found[message.client].append(message.payload)
    return found


async def test_neighbours_differ_in_length_on_every_connection(generator: Generator) -> None:
    async with running(Broker()) as broker:
        await load(generator, broker, c=5, w=10)
    sent = by_client(broker)
    assert len(sent) == 5
    for payloads in sent.values():
        assert all(len(one) != len(other) for one, other in pairwise(payloads))
    assert len({payloads[0] for payloads in sent.values()}) == 5, "each connection begins somewhere else"
    lines = set(generator.payloads.read_bytes().splitlines())
    assert {message.payload for message in broker.messages} <= lines


async def test_each_connection_has_a_topic_of_its_own(generator: Generator) -> None:
    async with running(Broker()) as broker:
        await load(generator, broker, c=10, w=1)
    topics = defaultdict(set)
    for message in broker.messages:
        topics[message.client].add(message.topic)
    assert len(topics) == 10
    assert {len(found) for found in topics.values()} == {1}
    assert set.union(*topics.values()) == {f"plant/line-{n % 8}/m-{n:05}/telemetry" for n in range(10)}


async def test_topics_are_shared_when_asked(generator: Generator) -> None:
    async with running(Broker()) as broker:
        await load(generator, broker, c=10, w=1, N=2)
    assert {message.topic for message in broker.messages} == {f"plant/line-{n}/m-{n:05}/telemetry" for n in range(2)}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("shape", [{"c": 3, "w": 4}, {"c": 20, "r": 1000}], ids=["closed", "open"])
async def test_every_quality_of_service_is_counted(
    generator: Generator, qos: int, version: int, shape: dict[str, float]
) -> None:
    async with running(Broker()) as broker:
        figures = await load(generator, broker, q=qos, V=version, **shape)
    assert figures["errors"] == 0
    assert 0 < figures["messages"] <= len(broker.messages)
    assert figures["sent_payload_bytes"] >= sum(len(message.payload) for message in broker.messages)
    assert figures["ack_ms"]["p99"] > 0


async def test_an_open_loop_sends_all_that_was_due_from_every_connection(generator: Generator) -> None:
    async with running(Broker()) as broker:
        figures = await load(generator, broker, seconds=0.5, c=50, r=400)
    counts = {client: len(payloads) for client, payloads in by_client(broker).items()}
    assert len(counts) == 50
    assert sum(counts.values()) >= 200
    assert max(counts.values()) - min(counts.values()) <= 1, "each publishes at equal intervals"
    assert figures["unacked"] == 0


async def test_a_stall_counts_for_every_message_that_was_due_in_it(generator: Generator) -> None:
    # At 200 a second it takes half a second until 100 have come and the first is acknowledged.
    async with running(Broker(hold_until=100)) as broker:
        figures = await load(generator, broker, seconds=0.6, c=10, r=200)
    assert figures["ack_ms"]["max"] > 400
    assert figures["ack_ms"]["p50"] > 150


async def test_a_closed_loop_keeps_no_more_than_the_window_in_flight(generator: Generator) -> None:
    async with running(Broker(hold_until=1_000_000)) as broker:
        await load(generator, broker, c=4, w=7)
    assert {len(payloads) for payloads in by_client(broker).values()} == {7}


async def test_tls(generator: Generator, tmp_path: Path) -> None:
    made = certificate(tmp_path)
    if made is None or not generator.has_tls:
        pytest.skip(NO_TLS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    async with running(Broker(), context) as broker:
        figures = await load(generator, broker, c=20, w=10, X=True)
    assert len(broker.clients) == 20
    assert 0 < figures["messages"] <= len(broker.messages)


async def test_a_lost_connection_fails_the_run(generator: Generator) -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x20\x02\x00\x05")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SystemExit, match="the load generator failed with status 1"):
            await asyncio.to_thread(generator.run, port, None, 0.2, {"c": 1})
