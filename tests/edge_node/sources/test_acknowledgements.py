"""What a broker is answered, and when: seen from a broker's end that looks at the log at each answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.edge_node.sources.nodes import SourceNode, mqtt_source, running
from tests.support.waiting import until
from weft.protocols.batch import Flag
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import (
    ConnAck,
    Connect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Version,
)


class BrokersEnd:
    """The other end of each connection: welcomes, grants, and notes every packet."""

    def __init__(self) -> None:
        self.port = 0
        self.packets: list[Packet] = []
        self.seen: Callable[[Packet], None] = lambda _: None
        self.session_present = False
        self.code = 0
        self._writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer, held = writer, b""
        while data := await reader.read(1 << 16):
            held += data
            while decoded := decode(held, 0, 1 << 20, Version.V5):
                packet, end = decoded
                held = held[end:]
                self.packets.append(packet)
                self.seen(packet)
                if isinstance(packet, Connect):
                    self.send(ConnAck(self.session_present, self.code))
                elif isinstance(packet, Subscribe):
                    self.send(SubAck(packet.packet_id, tuple(each.qos for each in packet.filters)))
        writer.close()  # since Python 3.12 a server waits for its connections

    def send(self, *packets: Packet) -> None:
        assert self._writer is not None
        self._writer.write(b"".join(encode(packet, Version.V5) for packet in packets))

    def cut(self) -> None:
        assert self._writer is not None
        self._writer.transport.abort()

    def of(self, kind: type[Packet]) -> list[int]:
        return [packet.packet_id for packet in self.packets if isinstance(packet, kind)]  # type: ignore[attr-defined]


@asynccontextmanager
async def connected(
    folder: Path, more: str = "", keep_alive: str = "5s"
) -> AsyncIterator[tuple[SourceNode, BrokersEnd]]:
    end = BrokersEnd()
    server = await asyncio.start_server(end.serve, "127.0.0.1", 0)
    end.port = server.sockets[0].getsockname()[1]
    async with server, running(folder, mqtt_source(end.port, more, keep_alive)) as node:
        await until(lambda: node.source().connections)
        yield node, end
        server.close()


def publishes(qos: int, numbers: range, *, dup: bool = False) -> list[Publish]:
    return [Publish(b"plant/a", b"%d" % number, qos, number, dup=dup) for number in numbers]


@pytest.mark.parametrize(("qos", "answer"), [(1, PubAck), (2, PubRec)])
async def test_nothing_is_acknowledged_that_is_not_on_disk(tmp_path: Path, qos: int, answer: type[Packet]) -> None:
    async with connected(tmp_path) as (node, end):
        early = []

        def look(packet: Packet) -> None:
            if isinstance(packet, answer) and len(end.of(answer)) > node.durable():
                early.append(packet)

        end.seen = look
        for first in range(1, 1000, 100):
            end.send(*publishes(qos, range(first, first + 100)))
            await asyncio.sleep(0)
        await until(lambda: len(end.of(answer)) == 1000)
        assert early == []
        assert end.of(answer) == list(range(1, 1001)), "in the order of the messages [MQTT-4.6.0-2]"
        assert node.durable() == 1000


async def test_a_message_at_qos_2_that_is_sent_again_is_stored_once(tmp_path: Path) -> None:
    async with connected(tmp_path, "      qos: 2\n") as (node, end):
        end.send(*publishes(2, range(1, 4)))
        await until(lambda: len(end.of(PubRec)) == 3)
        end.session_present = True
        end.send(PubRel(1))
        await until(lambda: end.of(PubComp) == [1])
        end.cut()
        await until(lambda: node.source().connections == 2)
        end.send(*publishes(2, range(2, 4), dup=True))  # the PUBRECs were lost
        await until(lambda: len(end.of(PubRec)) == 5)
        end.send(PubRel(2), PubRel(3))
        await until(lambda: end.of(PubComp) == [1, 2, 3])
        end.send(*publishes(2, range(2, 4)))  # the identifiers are free again
        await until(lambda: len(end.of(PubRec)) == 7)
        assert node.durable() == 5


async def test_what_is_sent_again_is_flagged(tmp_path: Path) -> None:
    async with connected(tmp_path) as (node, end):
        end.send(*publishes(1, range(1, 4)))
        await until(lambda: len(end.of(PubAck)) == 3)
        end.session_present = True
        end.cut()
        await until(lambda: node.source().connections == 2)
        end.send(Publish(b"plant/a", b"4", 1, 1, dup=True))
        end.send(*publishes(1, range(2, 4)))  # a broker that was killed does not know that it sent them
        end.send(Publish(b"plant/a", b"5", 1, 9))
        await until(lambda: len(end.of(PubAck)) == 7)
        found = [(record.payload, bool(record.flags & Flag.DUPLICATE_SUSPECTED)) for record in await node.stored()]
        assert found[3:] == [(b"4", True), (b"2", True), (b"3", True), (b"5", False)]
        assert node.source().duplicates == 3


async def test_a_connect_asks_for_the_session_and_its_bounds(tmp_path: Path) -> None:
    more = "      receive_maximum: 20\n      session_expiry: 1h\n      share: us\n      qos: 2\n"
    async with connected(tmp_path, more) as (_, end):
        connect, subscribe = end.packets[:2]
        assert isinstance(connect, Connect)
        assert isinstance(subscribe, Subscribe)
        assert (connect.client_id, connect.clean_start) == ("weft-default-a-plant", False)
        assert connect.properties == Properties(
            session_expiry_interval=3600, receive_maximum=20, maximum_packet_size=4 << 20
        )
        assert [(each.filter, each.qos) for each in subscribe.filters] == [("$share/us/plant/#", 2)]


async def test_a_silent_broker_is_left(tmp_path: Path) -> None:
    async with connected(tmp_path, keep_alive="1s") as (node, _):  # which answers no PINGREQ
        await until(lambda: node.source().connections >= 2)
        assert "silent" in node.source().last_error


async def test_a_broker_that_sends_no_mqtt_is_left(tmp_path: Path) -> None:
    async with connected(tmp_path) as (node, end):
        assert end._writer is not None
        end._writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await until(lambda: "not MQTT" in node.source().last_error)


async def test_a_refused_client_is_told_what_to_do(tmp_path: Path) -> None:
    async with connected(tmp_path) as (node, end):
        end.code = 0x86
        end.cut()
        await until(lambda: "Check `username`" in node.source().last_error)
        assert node.source().attempts_failed
