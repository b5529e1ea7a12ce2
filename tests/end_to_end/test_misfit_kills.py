"""SIGKILL an edge node while clients publish what fits a schema and what does not: each message is in the stream or
among its dead letters, whichever moment the node died at; and once, where the stream suppresses what is sent again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pika
import pika.exceptions
import pytest

from examples.demo.fabric import free_port
from tests.edge_node.servers.mqtt.harness import RawClient
from tests.storage.segment_log.helpers import open_log
from tests.support.outcomes import outcome
from tests.support.processes import EdgeProcess
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S
from weft.protocols.batch import records
from weft.protocols.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogSettings

pytestmark = [pytest.mark.processes, pytest.mark.slow]
KILLS = SLICE.amount(ci=4, night=40)
ANSWERS = 60
"""Answers between two kills."""
TOPIC = "plant/a"
SETTINGS = LogSettings(segment_bytes=4 << 20, budget_bytes=64 << 20, tail_bytes=0)
CONFIG = """\
node: press-1
data_dir: data
listeners:
  mqtt: {{bind: "127.0.0.1:{mqtt}"}}
  http: {{bind: "127.0.0.1:{http}"}}
  amqp: {{bind: "127.0.0.1:{amqp}"}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams:
  readings:
    from: "plant/#"
    resent: {resent}
    schema: {{fields: {{n: {{type: int, required: true}}}}}}
    on_misfit: dead_letter
"""


class KilledEdge(EdgeProcess):
    def __init__(self, folder: Path, resent: str) -> None:
        self.mqtt, self.http, self.amqp = free_port(), free_port(), free_port()
        super().__init__(folder, CONFIG.format(mqtt=self.mqtt, http=self.http, amqp=self.amqp, resent=resent))
        self.start()

    def stored(self, stream: str) -> list[bytes]:
        """The payloads of a stream, of a node that is dead."""
        log = open_log(OSFileSystem(), SETTINGS, directory=str(self.folder / "data"))
        found: list[bytes] = []
        while batches := log.read(log.streams()[stream], len(found), 1 << 22):
            found += [record.payload for data in batches for record in records(data)]
        log.close()
        return found


@pytest.fixture
def edge(tmp_path: Path, resent: str) -> Iterator[KilledEdge]:
    with KilledEdge(tmp_path, resent) as edge:
        yield edge


class MisfitSender:
    """Publishes one message after the other, every other one a misfit, each until it is answered."""

    def __init__(self, edge: KilledEdge, name: str, answered: asyncio.Event) -> None:
        self.edge, self.name = edge, name
        self.acknowledged: list[bytes] = []
        self.again = 0
        self._answered = answered

    def payload(self, number: int) -> bytes:
        return json.dumps({"n": number if number % 2 else "x", "of": f"{self.name}-{number}"}).encode()

    def took(self, payload: bytes) -> None:
        self.acknowledged.append(payload)
        self._answered.set()

    async def run(self) -> None:
        raise NotImplementedError


class Device(MisfitSender):
    """A session of MQTT that lasts, at QoS 1 or 2."""

    def __init__(self, edge: KilledEdge, name: str, answered: asyncio.Event, qos: int) -> None:
        super().__init__(edge, name, answered)
        self._qos = qos
        self._is_received = False
        """True while PUBREC has come and PUBCOMP has not."""

    async def run(self) -> None:
        is_first = True
        while True:
            try:
                device = await RawClient.connect5(
                    self.edge.mqtt, self.name, clean_start=False, session_expiry_interval=3600
                )
                self.again += not is_first
                await self._publish(device, dup=not is_first)
            except (OSError, AssertionError, EOFError):
                is_first = False
                await asyncio.sleep(0.02)  # it is being started again

    async def _publish(self, device: RawClient, *, dup: bool) -> None:
        while True:
            number = len(self.acknowledged) + 1
            payload, packet_id = self.payload(number), number % 60_000 + 1
            if not self._is_received:
                device.send(Publish(TOPIC.encode(), payload, self._qos, packet_id, dup=dup))
                await self._answer(device, PubAck if self._qos == 1 else PubRec)
            if self._qos == 2:
                self._is_received = True
                device.send(PubRel(packet_id))
                await self._answer(device, PubComp)
                self._is_received = False
            dup = False
            self.took(payload)

    async def _answer(self, device: RawClient, kind: type) -> None:
        answer = await device.receive()
        if answer is None:
            raise EOFError
        assert isinstance(answer, kind), answer


class Poster(MisfitSender):
    """Requests with an idempotency key."""

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                number = len(self.acknowledged) + 1
                try:
                    url, key = f"http://127.0.0.1:{self.edge.http}/v1/topics/{TOPIC}", f"{self.name}-{number}"
                    headers = {"Idempotency-Key": key}
                    async with session.post(url, data=self.payload(number), headers=headers) as answer:
                        assert answer.status == 200, await answer.text()
                        self.again += "Idempotency-Replayed" in answer.headers
                    self.took(self.payload(number))
                except aiohttp.ClientError:
                    await asyncio.sleep(0.02)


class Confirmed(MisfitSender):
    """A client of AMQP 0-9-1 that waits for each confirm. It has no way to say that it sends a message again."""

    async def run(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._connect)
                while True:
                    payload = self.payload(len(self.acknowledged) + 1)
                    await asyncio.to_thread(self._channel.basic_publish, "amq.topic", TOPIC.replace("/", "."), payload)
                    self.took(payload)
            except (OSError, pika.exceptions.AMQPError):
                self.again += 1
                await asyncio.sleep(0.02)

    def _connect(self) -> None:
        parameters = pika.ConnectionParameters("127.0.0.1", self.edge.amqp, socket_timeout=PATIENCE_S)
        self._channel = pika.BlockingConnection(parameters).channel()
        self._channel.confirm_delivery()


@pytest.mark.parametrize("resent", ["suppress", "flag"])
async def test_each_message_is_in_one_of_both_places(edge: KilledEdge, resent: str) -> None:
    """Records are stored in one step where a repetition is looked for, and stream by stream elsewhere."""
    answered = asyncio.Event()
    clients: list[MisfitSender] = [Device(edge, f"d{number}", answered, 1 + number % 2) for number in range(6)]
    clients += [Poster(edge, f"p{number}", answered) for number in range(2)]
    if resent == "flag":
        clients.append(Confirmed(edge, "c0", answered))
    tasks = [asyncio.create_task(client.run()) for client in clients]
    for round_number in range(KILLS + 1):
        async with asyncio.timeout(PATIENCE_S):
            while sum(len(client.acknowledged) for client in clients) < ANSWERS * (round_number + 1):
                answered.clear()
                waiting = asyncio.create_task(answered.wait())
                done, _ = await asyncio.wait([*tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
                for task in done & set(tasks):
                    task.result()
        edge.kill()
        if round_number < KILLS:
            await asyncio.to_thread(edge.start)
    for task in tasks:
        task.cancel()
    stored, letters = edge.stored("readings"), edge.stored("readings-errors")
    copies = Counter([*stored, *letters])
    with outcome():
        if resent == "suppress":
            assert set(copies.values()) == {1}, [payload for payload, count in copies.items() if count > 1][:3]
        assert all(type(json.loads(payload)["n"]) is int for payload in stored)
        assert all(type(json.loads(payload)["n"]) is str for payload in letters)
        for client in clients:
            assert set(client.acknowledged) <= set(copies), client.name
    assert sum(client.again for client in clients) >= KILLS, "the kills were felt"
