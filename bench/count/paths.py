"""The hot paths, each over a load that is the same in every run: messages go in, and what answers them is awaited.

A path works in rounds, one after the other, and a round is over when everything of it is acknowledged. So the round
decides what shares a sync, a chunk or a read, and not the clock. What timers do, on links above all, is counted too.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench import payloads
from bench.common import encode_batch
from bench.hub.followers import FleetLog
from bench.hub.large import stamp
from bench.log_writer import Delivery, LogWriter
from bench.tables import FIVE, Case, make_section, step
from spark_sinks.source.data_source import WeftSource
from weft.bounds import scheduling
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import HubSettings, SequencerSettings
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.config.units import Address
from weft.edge_node.check.rules import check
from weft.edge_node.ingest import ingest
from weft.edge_node.node import EdgeNode
from weft.edge_node.queues import delivery
from weft.edge_node.servers.clients import context
from weft.protocols import amqp1
from weft.protocols.amqp.content import write_content
from weft.protocols.amqp.frames import PROTOCOL_HEADER
from weft.protocols.amqp.methods import commands, write_method
from weft.protocols.amqp1 import described, fields, ubyte, uint
from weft.protocols.chunk_index import Mark
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect, Publish, Subscribe, Subscription
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.replication.events import LinkStatus
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.replication.source import Epochs, LaneSnapshot, OfferedLane

CLIENTS, WINDOW = 100, 100
READ_BYTES = 64 << 10
NEVER_S = 86_400.0
START_NS = 1_700_000_000_000_000_000
NODE = """\
node: counted
data_dir: {folder}/data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}, amqp: {{bind: "127.0.0.1:0"}}, http: {{bind: "127.0.0.1:0"}}}}
http: null
disk: {{budget: 1GiB}}
streams:
  telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry", payload: json}}
{more}
"""
DERIVED = """\
  derived:
    from_stream: telemetry
    functions: [{where: "temp >= 0 and humidity <= 100"}, {deadband: {field: temp, delta: 0.2, max_silence: 60s}}]
"""
PUBACK_BYTES, TAG_AT = 4, 11
"""Bytes of a PUBACK, and where the delivery tag is in the frame of a Basic.Ack."""
CONSUMERS, ACKED_AT_ONCE = 4, 50
KEPT_ROUNDS = 12
"""Rounds of messages that wait in a queue: more than are made, so that the last one delivers, too."""
OPEN, BEGIN, ATTACH, TRANSFER, DISPOSITION = 0x10, 0x11, 0x12, 0x14, 0x15


Rounds = Iterable[int]
"""The numbers of the rounds to make. What is done between them is counted from some round on."""


class HotPath(NamedTuple):
    """A path, and what is counted of it."""

    unit: str
    units: int
    """Number of units in a round."""
    run: Callable[[Path, Rounds], None]
    """Set up in an empty folder, and make the rounds."""


class Client:
    """A client's connection. Its instructions are counted with the node's: so it makes few, with a future only where it
    waits."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket, self._loop = peer, asyncio.get_running_loop()

    @classmethod
    async def connect(cls, address: object) -> Client:
        """Connect to a listener of the node."""
        assert isinstance(address, Address)
        peer = socket.socket()
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = cls(peer)
        await client._loop.sock_connect(peer, (address.host, address.port))
        return client

    def send(self, data: bytes) -> None:
        """Send everything; raise ``BlockingIOError`` if it is more than the socket has room for."""
        self._socket.sendall(data)

    async def receive(self) -> bytes:
        """Return what comes next."""
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            data = await self._loop.sock_recv(self._socket, READ_BYTES)
        if not data:
            raise ConnectionError("the node closed the connection")
        return data

    def drop(self, count: int) -> int:
        """Drop what has come, at most so many bytes; return their number."""
        try:
            return len(self._socket.recv(count))
        except BlockingIOError:
            return 0

    async def take(self, count: int) -> None:
        """Wait for so many bytes."""
        while count > 0:
            count -= len(await self.receive())

    async def ask(self, *requests: bytes) -> None:
        """Send requests of a greeting one by one, each after the answer to the one before."""
        for request in requests:
            self.send(request)
            await self.receive()


@asynccontextmanager
async def node(folder: Path, more: str = "") -> AsyncIterator[EdgeNode]:
    """Run a whole edge node in this process, in which no turn of a client ends by the clock."""
    # Under Valgrind a turn takes fifty times as long, and longer beside other work: reads would be put off into later
    # turns and commits, some more in each round than in another.
    context.READS_S_MAX = context.TURN_S_MAX = scheduling.ROUND_S = ingest.ANSWERS_S_MAX = delivery.DUE_S = NEVER_S
    text = NODE.format(folder=folder, more=more)
    running = EdgeNode(parse(text, str(folder / "edge.yaml"), EdgeConfig, check).config)
    await running.start()
    try:
        yield running
    finally:
        await running.close()


def messages() -> list[bytes]:
    """Return the payloads of a round."""
    return payloads.telemetry()[:WINDOW]


def topic(number: int) -> bytes:
    """Return a device's topic."""
    return b"plant/l%d/m%02d/telemetry" % (number % 4, number)


async def _greet(client: Client, name: str) -> Client:
    await client.ask(encode(Connect(name)))
    return client


async def _mqtt_each(folder: Path, rounds: Rounds) -> None:
    """Publish as 1,000 x 1 of ``bench.mqtt`` does, with a hundred clients: each has one message on its way."""
    async with node(folder) as running:
        clients = [await _greet(await Client.connect(running.addresses["mqtt"]), f"d{n}") for n in range(CLIENTS)]
        packets = [encode(Publish(topic(n), payload, 1, 1)) for n, payload in enumerate(messages())]
        for _ in rounds:
            for client, packet in zip(clients, packets, strict=True):
                client.send(packet)
            for client in clients:
                if lacking := PUBACK_BYTES - client.drop(PUBACK_BYTES):
                    await client.take(lacking)


async def _mqtt_window(folder: Path, rounds: Rounds) -> None:
    """Publish from one client with a hundred messages on their way."""
    async with node(folder) as running:
        client = await _greet(await Client.connect(running.addresses["mqtt"]), "d")
        data = b"".join(encode(Publish(topic(1), payload, 1, n + 1)) for n, payload in enumerate(messages()))
        for _ in rounds:
            client.send(data)
            await client.take(WINDOW * PUBACK_BYTES)


async def _mqtt_delivery(folder: Path, rounds: Rounds) -> None:
    """Publish likewise, with a subscriber at QoS 0 to all of it."""
    async with node(folder) as running:
        device = await _greet(await Client.connect(running.addresses["mqtt"]), "d")
        reader = await _greet(await Client.connect(running.addresses["mqtt"]), "s")
        await reader.ask(encode(Subscribe(1, (Subscription("plant/+/+/telemetry", 0),))))
        sent = [(topic(n % 10), payload) for n, payload in enumerate(messages())]
        data = b"".join(encode(Publish(name, payload, 1, n + 1)) for n, (name, payload) in enumerate(sent))
        received = sum(len(encode(Publish(name, payload, 0))) for name, payload in sent)
        for _ in rounds:
            device.send(data)
            await device.take(WINDOW * PUBACK_BYTES)
            await reader.take(received)


async def _amqp(address: object) -> Client:
    client = await Client.connect(address)
    await client.ask(PROTOCOL_HEADER, write_method(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), 0))
    client.send(write_method(commands.Connection.TuneOk(0, 0, 0), 0))
    await client.ask(
        write_method(commands.Connection.Open("/"), 0),
        write_method(commands.Channel.Open(), 1),
        write_method(commands.Confirm.Select(), 1),
    )
    return client


async def _confirmed(client: Client, tag: int) -> None:
    """Wait for the acknowledgement of a tag, of those before it too."""
    frame = b""
    while int.from_bytes(frame[-10:-2] if len(frame) > TAG_AT else b"", "big") < tag:
        frame = (frame + await client.receive())[-21:]


def _published(exchange: str, routing_key: str, payload: bytes) -> bytes:
    method = write_method(commands.Basic.Publish(exchange=exchange, routing_key=routing_key), 1)
    return method + write_content(1, b"\x10\x00\x02", payload, 1 << 17)


async def _amqp_window(folder: Path, rounds: Rounds) -> None:
    """Publish a hundred messages to a stream between confirms, on one channel."""
    async with node(folder) as running:
        client = await _amqp(running.addresses["amqp"])
        data = b"".join(_published("amq.topic", "plant.l1.m01.telemetry", payload) for payload in messages())
        for number in rounds:
            client.send(data)
            await _confirmed(client, (number + 1) * WINDOW)


async def _amqp_queue(folder: Path, rounds: Rounds) -> None:
    """Put a hundred persistent messages into a durable queue, confirmed, and take them out, acknowledged."""
    async with node(folder) as running:
        producer, consumer = [await _amqp(running.addresses["amqp"]) for _ in range(2)]
        await producer.ask(write_method(commands.Queue.Declare(queue="q", durable=True), 1))
        await consumer.ask(
            write_method(commands.Basic.Qos(prefetch_count=2 * WINDOW), 1),
            write_method(commands.Basic.Consume(queue="q", consumer_tag="c"), 1),
        )
        sent = messages()
        data = b"".join(_published("", "q", payload) for payload in sent)
        deliver = len(write_method(commands.Basic.Deliver("c", 1, False, "", "q"), 1))
        received = sum(deliver + len(write_content(1, b"\x10\x00\x02", payload, 1 << 17)) for payload in sent)
        for number in rounds:
            producer.send(data)
            await _confirmed(producer, (number + 1) * WINDOW)
            await consumer.take(received)
            consumer.send(write_method(commands.Basic.Ack((number + 1) * WINDOW, True), 1))


async def _amqp_delivery(folder: Path, rounds: Rounds) -> None:
    """Empty a durable queue that is in the log, with four consumers and a prefetch of a hundred each."""
    payload = messages()[0]
    data = _published("", "q", payload) * WINDOW
    async with node(folder) as running:
        producer = await _amqp(running.addresses["amqp"])
        await producer.ask(write_method(commands.Queue.Declare(queue="q", durable=True), 1))
        for number in range(CONSUMERS * KEPT_ROUNDS):
            producer.send(data)
            await _confirmed(producer, (number + 1) * WINDOW)
    async with node(folder) as running:
        clients = [await _amqp(running.addresses["amqp"]) for _ in range(CONSUMERS)]
        for client in clients:
            client.send(write_method(commands.Basic.Qos(prefetch_count=WINDOW), 1))
            await client.ask(write_method(commands.Basic.Consume(queue="q", consumer_tag="c", nowait=True), 1))
        deliver = len(write_method(commands.Basic.Deliver("c", 1, False, "", "q"), 1))
        received = ACKED_AT_ONCE * (deliver + len(write_content(1, b"\x10\x00\x02", payload, 1 << 17)))
        for number in rounds:
            for tag in range(number * WINDOW + ACKED_AT_ONCE, (number + 1) * WINDOW + 1, ACKED_AT_ONCE):
                for client in clients:
                    await client.take(received)
                    client.send(write_method(commands.Basic.Ack(tag, True), 1))


def _frame(performative: int, *values: bytes, payload: bytes = b"") -> bytes:
    body = described(performative, fields(list(values))) + payload
    return (len(body) + 8).to_bytes(4, "big") + b"\2\0\0\0" + body


def _transfer(number: int, message: bytes) -> bytes:
    values = uint(0), uint(number), amqp1.encode(b"%04d" % number), uint(0), amqp1.encode(False)
    return _frame(TRANSFER, *values, payload=message)


async def _settled(client: Client, last: int) -> None:
    """Wait until the node has settled a delivery of AMQP 1.0, and those before it."""
    data, settled = b"", -1
    while settled < last:
        data += await client.receive()
        while len(data) >= 8 and len(data) >= (size := int.from_bytes(data[:4], "big")):
            if data[10] == DISPOSITION:
                settled = amqp1.decode(data, 8)[0].value[2]
            data = data[size:]


async def _amqp1(address: object, target: str) -> Client:
    """Return a client of AMQP 1.0 with a link to an address."""
    client, none, own = await Client.connect(address), amqp1.encode(None), amqp1.encode("c")
    modes = [amqp1.encode(False), ubyte(0), ubyte(0)]
    ends = [described(0x28, fields([])), described(0x29, fields([amqp1.encode(target)]))]
    await client.ask(
        amqp1.AMQP,
        _frame(OPEN, own, none, uint(1 << 16))
        + _frame(BEGIN, none, uint(0), uint(1 << 20), uint(1 << 20))
        + _frame(ATTACH, own, uint(0), *modes, *ends, none, none, uint(0)),
    )
    return client


async def _amqp1_queue(folder: Path, rounds: Rounds) -> None:
    """Send a hundred messages of AMQP 1.0 at a time to a topic that a stream takes, and a durable queue besides."""
    async with node(folder) as running:
        binder = await _amqp(running.addresses["amqp"])
        await binder.ask(
            write_method(commands.Queue.Declare(queue="q", durable=True), 1),
            write_method(commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="plant.#"), 1),
        )
        client = await _amqp1(running.addresses["amqp"], "topic/plant/l1/m01/telemetry")
        properties = [amqp1.encode(None)] * 6 + [amqp1.encode(amqp1.Symbol("application/json"))]
        head = described(amqp1.HEADER, fields([amqp1.encode(True)])) + described(amqp1.PROPERTIES, fields(properties))
        bodies = [head + described(amqp1.DATA, amqp1.encode(payload)) for payload in messages()]
        sent = [
            b"".join(_transfer(n, body) for n, body in enumerate(bodies, number * WINDOW))
            for number in range(KEPT_ROUNDS)
        ]
        for number in rounds:
            client.send(sent[number])
            await _settled(client, (number + 1) * WINDOW - 1)


async def _http_each(folder: Path, rounds: Rounds) -> None:
    """Post one message a request, from ten clients."""
    async with node(folder) as running:
        requests = [
            b"POST /v1/streams/telemetry/%b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (topic(n), len(payload), payload)
            for n, payload in enumerate(messages())
        ]
        clients = []
        for request in requests[:10]:
            clients.append(await Client.connect(running.addresses["http"]))
            await clients[-1].ask(request)  # a connection that asks for nothing is closed after a while
        for _ in rounds:
            for first in range(0, len(requests), len(clients)):
                for client, request in zip(clients, requests[first:], strict=False):
                    client.send(request)
                for client in clients:
                    answer = await client.receive()
                    assert answer.startswith(b"HTTP/1.1 200"), answer


async def _functions(folder: Path, rounds: Rounds) -> None:
    """Publish to a filter and a deadband, which all messages pass."""
    async with node(folder, DERIVED) as running:
        client = await _greet(await Client.connect(running.addresses["mqtt"]), "d")
        derived, passed, woken = running.log.stream("derived"), 0, asyncio.Event()
        running.log.listen_to_streams(lambda _: woken.set())
        readings = [b'{"temp": %d.25, "humidity": %d.5, "co": 0.004956}' % (20 + n % 2, n) for n in range(WINDOW)]
        data = b"".join(encode(Publish(topic(1), payload, 1, n + 1)) for n, payload in enumerate(readings))
        for _ in rounds:
            client.send(data)
            await client.take(WINDOW * PUBACK_BYTES)
            passed += WINDOW
            while running.log.snapshot(derived).next_seq < passed:
                woken.clear()
                await woken.wait()


class RoundsLog:
    """A log whose records come in rounds (``replication.source.LogSource``)."""

    def __init__(self, lanes: int, records: int) -> None:
        keys = [topic(n % 50) for n in range(records)]
        lines = payloads.telemetry()
        self._batch = encode_batch(0, START_NS, 1000, keys, [lines[n % len(lines)] for n in range(records)])
        self._lanes, self._records = lanes, records
        self.round_bytes = lanes * len(self._batch)
        self._end = 0
        self._acked = dict.fromkeys(range(lanes), 0)
        self._changed: Callable[[Collection[int] | None], None] = lambda _: None
        self._whole = asyncio.Event()

    async def round(self) -> None:
        """Add a batch to each lane, and wait until the hub has them."""
        self._end += self._records
        self._whole.clear()
        self._changed(None)
        await self._whole.wait()

    def lanes(self) -> list[OfferedLane]:
        """Return the lanes, each of a stream of its own."""
        return [OfferedLane(n, f"stream-{n}", ("plant/{line}/{machine}/telemetry",)) for n in range(self._lanes)]

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        """Return what the rounds so far have brought."""
        held, mark = RangeSet([(0, self._end)] if self._end else []), Mark(START_NS + self._end, self._end)
        return {lane: LaneSnapshot(RangeSet(held), self._end, [], mark) for lane in lanes}

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:  # noqa: ARG002
        """Return the batch with a number."""
        return [stamp(self._batch, seq - seq % self._records)]

    def high_watermark(self, hub: str, lane: int) -> int:  # noqa: ARG002
        """Return the highest number there is: the hub is of this log alone."""
        return SEQ_END

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        """Do nothing: this log is not opened again."""

    def released(self, lane: int, ranges: RangeSet) -> None:
        """Note what the hub has."""
        self._acked[lane] = max(self._acked[lane], ranges.end if ranges else 0)
        if min(self._acked.values()) >= self._end:
            self._whole.set()

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        """Call back at each round."""
        self._changed = callback
        return lambda: None


async def _link(folder: Path, rounds: Rounds, lanes: int, records: int) -> None:
    """Send over a link whose two ends are here, and commit into a folder.

    A chunk is full with a round, and no timer of the hub or the link comes due: so a round is one chunk.
    """
    log, stored = RoundsLog(lanes, records), [b"1\n"]
    sequencer = SequencerSettings(
        commit_interval_s=NEVER_S,
        chunk_bytes_max=log.round_bytes,
        mark_interval_s=NEVER_S,
        trailing_mark_s=NEVER_S,
        follow_interval_s=NEVER_S,
        snapshot_interval_s=NEVER_S,
    )
    hub = await Hub.open(
        HubSettings(
            store=str(folder / "store"),
            port=0,
            shards=1,
            table_interval_s=None,
            sequencer=sequencer,
            beat_interval_s=NEVER_S,
            cluster_log_interval_s=NEVER_S,
        )
    )
    epochs = Epochs("memory", lambda: stored[0], lambda data: stored.__setitem__(0, data))
    identity = LinkIdentity("default", "edge", 1, "bench")
    link = asyncio.create_task(run_link(log, identity, LinkSettings((hub.url,)), epochs, LinkStatus("hub")))
    for _ in rounds:
        await log.round()
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)
    await hub.close()


def _fold(_folder: Path, rounds: Rounds) -> None:
    """Read and fold chunks with 500 lanes of ten streams each."""

    async def follow() -> None:
        log = await FleetLog.make(edges=800, streams=10, chunks=4)
        for _ in rounds:
            await log.follow(None)

    asyncio.run(follow())


def _table(case: Case) -> Callable[[Path, Rounds], None]:
    def make(_folder: Path, rounds: Rounds) -> None:
        for _ in rounds:
            step(case)

    return make


def _spark(folder: Path, rounds: Rounds) -> None:
    """Read as a Spark worker does for a task: chunks of a folder to record batches, all columns."""
    log, lines = LogWriter(str(folder / "store")), payloads.telemetry()
    keys = [topic(n % 50) for n in range(2500)]
    for n in range(2):
        batches = [encode_batch(n * 2500, START_NS, 1000, keys, lines[:2500])]
        log.write(Delivery("press-1", batches, topics=["plant/{line}/{machine}/telemetry"]), received=START_NS)
    for _ in rounds:
        source = WeftSource({"store": log.root, "stream": log.stream})
        reader = source.reader(source.schema())
        for partition in reader.partitions():
            for _ in reader.read(partition):
                pass


def on_loop(path: Callable[[Path, Rounds], Coroutine[None, None, None]]) -> Callable[[Path, Rounds], None]:
    """Return a path that runs on an event loop of its own."""

    def run(folder: Path, rounds: Rounds) -> None:
        uvloop.run(path(folder, rounds))

    return run


def paths() -> Mapping[str, HotPath]:
    """Return the hot paths by name."""
    sections: Sequence[Case] = [
        Case("json", PayloadKind.JSON, make_section(1)),
        Case("typed", PayloadKind.BYTES, make_section(1), FIVE),
    ]
    return {
        "mqtt, 100 x 1": HotPath("message", CLIENTS, on_loop(_mqtt_each)),
        "mqtt, 1 x 100": HotPath("message", WINDOW, on_loop(_mqtt_window)),
        "mqtt, with a subscriber": HotPath("message", WINDOW, on_loop(_mqtt_delivery)),
        "amqp, 1 x 100": HotPath("message", WINDOW, on_loop(_amqp_window)),
        "amqp, through a queue": HotPath("message", WINDOW, on_loop(_amqp_queue)),
        "amqp, from a queue to 4": HotPath("message", CONSUMERS * WINDOW, on_loop(_amqp_delivery)),
        "amqp 1.0, into a queue": HotPath("message", WINDOW, on_loop(_amqp1_queue)),
        "http, one a POST": HotPath("message", WINDOW, on_loop(_http_each)),
        "functions, where + deadband": HotPath("message", WINDOW, on_loop(_functions)),
        "link and commit, 20 x 10": HotPath("record", 200, on_loop(lambda f, n: _link(f, n, 20, 10))),
        "link and commit, 1 x 5,000": HotPath("record", 5000, on_loop(lambda f, n: _link(f, n, 1, 5000))),
        "fold": HotPath("lane of a chunk", 2000, _fold),
        "table, JSON": HotPath("row", 5000, _table(sections[0])),
        "table, five typed columns": HotPath("row", 5000, _table(sections[1])),
        "spark, all columns": HotPath("row", 5000, _spark),
    }
