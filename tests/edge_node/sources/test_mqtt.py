"""A node subscribes to a real Mosquitto: what that sends is stored, and acknowledged once it is on disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiomqtt
import pytest

from tests.edge_node.sources.nodes import FULL, NODE, SourceNode, assert_whole, mqtt_source, publish, running
from tests.support.brokers import SAVES_OFTEN, Mosquitto, mosquitto, needs_mosquitto, proxy
from tests.support.certificates import Authority
from tests.support.waiting import until
from weft.config.metrics.edge import SOURCE_METRICS
from weft.edge_node.sources.status import SourceState
from weft.edge_node.status.facts import render
from weft.edge_node.status.pages import tables
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
from weft.text.edge_status import show_running


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@pytest.mark.parametrize("version", ["v5", "v3.1.1"])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_of_each_qos_are_stored(tmp_path: Path, broker: Mosquitto, version: str, qos: int) -> None:
    async with running(tmp_path, mqtt_source(broker.port, f"      qos: {qos}\n      version: {version}\n")) as node:
        await until(lambda: node.source().state is SourceState.CONNECTED and node.source().connections)
        await publish(broker.port, numbered(50), qos=2)
        await until(lambda: node.durable() >= 50)
        found = await node.stored()
        flag = {0: Flag.PUBLISHED_QOS0, 1: Flag(0), 2: Flag.PUBLISHED_QOS2}[qos]
        assert [(record.payload, record.flags) for record in found] == [(each, flag) for each in numbered(50)]
        assert {record.key for record in found} == {b"plant/a"}
        if qos:
            await until(lambda: node.source().acknowledged == 50)
            assert node.source().unacknowledged == 0


async def test_properties_and_the_retain_flag_are_kept(tmp_path: Path, broker: Mosquitto) -> None:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "text/plain"
    properties.CorrelationData = b"7"
    properties.UserProperty = ("unit", "mm/s")
    async with aiomqtt.Client("127.0.0.1", broker.port, protocol=aiomqtt.ProtocolVersion.V5) as client:
        await client.publish("plant/a", b"1", 1, retain=True, properties=properties)
        async with running(tmp_path, mqtt_source(broker.port)) as node:
            await until(lambda: node.durable() == 1)
            (record,) = await node.stored()
    assert record.flags == Flag.RETAINED
    assert dict(record.headers) == {"unit": "mm/s", "weft.content-type": "text/plain", "weft.correlation-id": b"7"}


async def test_local_subscribers_get_the_messages_too(tmp_path: Path, broker: Mosquitto) -> None:
    async with running(tmp_path, mqtt_source(broker.port)) as node, aiomqtt.Client("127.0.0.1", node.port) as client:
        await client.subscribe("plant/#", 1)
        await until(lambda: node.source().connections)
        await publish(broker.port, numbered(3))
        messages = aiter(client.messages)
        assert [(await anext(messages)).payload for _ in range(3)] == numbered(3)


async def test_topics_are_rewritten_and_get_a_prefix(tmp_path: Path, broker: Mosquitto) -> None:
    more = '      prefix: "plant/"\n      rewrite: [{from: "plant/{line}/#", to: "line-{line}/#"}]\n'
    async with running(tmp_path, mqtt_source(broker.port, more)) as node:
        await until(lambda: node.source().connections)
        await publish(broker.port, [b"1"], "plant/4/press/rms")
        await until(lambda: node.durable() == 1)
        assert (await node.stored())[0].key == b"plant/line-4/press/rms"


async def test_what_came_while_the_node_was_away_comes_when_it_is_back(tmp_path: Path, broker: Mosquitto) -> None:
    async with running(tmp_path, mqtt_source(broker.port)) as node:
        await until(lambda: node.source().connections)
        await publish(broker.port, numbered(10))
        await until(lambda: node.durable() == 10)
    await publish(broker.port, numbered(100, 10))
    async with running(tmp_path, mqtt_source(broker.port)) as node:
        await until(lambda: node.durable() == 110)
        found = await node.stored()
    assert [record.payload for record in found] == numbered(110)
    assert not any(record.flags & Flag.DUPLICATE_SUSPECTED for record in found), "a stop leaves nothing unanswered"


async def test_connections_that_are_cut_lose_nothing(tmp_path: Path, broker: Mosquitto) -> None:
    messages = numbered(800)
    async with (
        proxy(broker.port) as between,
        running(tmp_path, mqtt_source(between.port, "      qos: 2\n", keep_alive="30s")) as node,
    ):
        await until(lambda: node.source().connections)
        sending = asyncio.create_task(publish(broker.port, messages, qos=2))
        for cuts in range(3):
            await until(lambda cuts=cuts: node.source().connections == cuts + 1)  # type: ignore[misc]
            await node.takes(20, sending)
            between.cut()
        await sending
        assert_whole(await node.whole(len(messages)), messages)
        await until(lambda: between.accepted == 4)


@needs_mosquitto
async def test_a_killed_broker_loses_nothing_that_it_has_not_lost_itself(tmp_path: Path) -> None:
    with mosquitto(tmp_path / "mosquitto", f"allow_anonymous true\n{SAVES_OFTEN}") as broker:
        async with running(tmp_path, mqtt_source(broker.port)) as node:
            await until(lambda: node.source().connections)
            await publish(broker.port, numbered(300))
            await until(lambda: node.durable() >= 300)
            broker.kill()
            await until(lambda: node.source().state is SourceState.WAITING)
            broker.start()
            await until(lambda: node.source().connections == 2)
            await publish(broker.port, numbered(300, 300))
            # What it sends again, as it has forgotten our acknowledgements, it may send without DUP.
            assert_whole(await node.whole(600), numbered(600))


async def test_a_full_stream_is_not_acknowledged_and_others_go_on(tmp_path: Path, broker: Mosquitto) -> None:
    source = mqtt_source(broker.port)
    payloads = [noise(20_000, number) for number in range(100)]
    async with running(tmp_path, source, FULL) as node:
        await until(lambda: node.source().connections)
        await publish(broker.port, payloads)
        await until(lambda: "could not be stored" in node.source().last_error)
        before = node.durable()
        assert node.source().acknowledged <= before < len(payloads)
        await publish(node.port, [b"1"], "other/a")  # a client of the node's own
        assert len(await node.stored("other")) == 1
        node.apply((FULL.format(name="data") + source).replace("1MiB", "32MiB"))
        assert_whole(await node.whole(len(payloads)), payloads)
        await until(lambda: node.source().state is SourceState.CONNECTED and not node.source().unacknowledged)


def noise(size: int, seed: int) -> bytes:
    import random

    return random.Random(seed).randbytes(size)


async def test_two_nodes_share_a_subscription(tmp_path: Path, broker: Mosquitto) -> None:
    source = mqtt_source(broker.port, "      share: gateways\n")
    other = NODE.replace("node: a", "node: b")
    async with running(tmp_path, source) as one, running(tmp_path, source, other, "other") as two:
        await until(lambda: one.source().connections and two.source().connections)
        await publish(broker.port, numbered(200))
        await until(lambda: one.durable() + two.durable() == 200)
        halves = [[record.payload for record in await node.stored()] for node in (one, two)]
    assert sorted(halves[0] + halves[1]) == sorted(numbered(200))
    assert all(halves)


@needs_mosquitto
async def test_tls_client_certificate_and_password(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.sign("server"), authority.sign("node")
    more = (
        f"allow_anonymous false\npassword_file {tmp_path}/passwords\ncafile {authority.path}\n"
        f"certfile {server.certificate}\nkeyfile {server.key}\nrequire_certificate true\n"
    )
    passwords = tmp_path / "passwords"
    passwords.write_text("weft:secret\n")
    import shutil
    import subprocess

    if (program := shutil.which("mosquitto_passwd")) is None:
        pytest.skip("mosquitto_passwd is not installed: apt install mosquitto")
    subprocess.run([program, "-U", str(passwords)], check=True)
    (tmp_path / "password").write_text("wrong\n")
    (tmp_path / "password").chmod(0o600)
    tls = (
        f"      username: weft\n      password_file: password\n      tls:\n        ca_file: {authority.path}\n"
        f"        certificate: {client.certificate}\n        key: {client.key}\n"
    )
    with mosquitto(tmp_path / "mosquitto", more) as broker:
        async with running(tmp_path, mqtt_source(broker.port, tls).replace("mqtt://", "mqtts://")) as node:
            await until(lambda: "Check `username`" in node.source().last_error)
            (tmp_path / "password").write_text("secret\n")  # read again at each attempt
            await until(lambda: node.source().state is SourceState.CONNECTED)
        untrusted = tls.replace(f"        ca_file: {authority.path}\n", "")
        async with running(tmp_path, mqtt_source(broker.port, untrusted).replace("mqtt://", "mqtts://")) as node:
            await until(lambda: "not trusted" in node.source().last_error)


async def test_sources_change_while_the_node_runs(tmp_path: Path, broker: Mosquitto) -> None:
    base = NODE.replace("plant/#", "#").format(name="data")
    async with running(tmp_path, "", NODE.replace("plant/#", "#")) as node:
        node.apply(base + mqtt_source(broker.port))
        await until(lambda: node.source().state is SourceState.CONNECTED)
        await publish(broker.port, [b"1"])
        await until(lambda: node.durable() == 1)
        node.apply(base + mqtt_source(broker.port).replace("plant/#", "lab/#"))
        await until(lambda: node.source().connections)
        await publish(broker.port, [b"2"])  # no filter of the session any more
        await publish(broker.port, [b"3"], "lab/a")
        await until(lambda: node.durable() == 2)
        assert [record.payload for record in await node.stored()] == [b"1", b"3"]
        stayed = node.source()
        node.apply(base + mqtt_source(broker.port).replace("plant/#", "lab/#") + "  # nothing has changed\n")
        assert node.source() is stayed
        node.apply(base)
        assert node.node.status.facts()["sources"] == {}
        await publish(broker.port, [b"4"], "lab/a")
        await asyncio.sleep(0.1)
        assert node.durable() == 2


async def test_filters_that_the_configuration_has_no_more_are_given_up_at_the_next_start(
    tmp_path: Path, broker: Mosquitto
) -> None:
    both = mqtt_source(broker.port).replace('"plant/#"', '["plant/#", "lab/#"]')
    everything = NODE.replace("plant/#", "#")
    async with running(tmp_path, both, everything) as node:
        await until(lambda: (tmp_path / "data/sources/plant.json").exists() and node.source().connections)
        await publish(broker.port, [b"1"], "lab/a")
        await until(lambda: node.durable() == 1)
    async with running(tmp_path, mqtt_source(broker.port), everything) as node:
        await until(lambda: node.source().connections and "lab" not in subscribed(tmp_path))
        await publish(broker.port, [b"2"], "lab/a")
        await publish(broker.port, [b"3"])
        await until(lambda: node.durable() == 2)
        assert [record.payload for record in await node.stored()] == [b"1", b"3"]


def subscribed(folder: Path) -> str:
    return (folder / "data/sources/plant.json").read_text()


async def test_unrouted_messages_follow_the_policy(tmp_path: Path, broker: Mosquitto) -> None:
    source = mqtt_source(broker.port).replace('"plant/#"', '"#"')
    async with running(tmp_path, source + "unrouted: refuse\n") as node:
        await until(lambda: node.source().connections)
        await publish(broker.port, numbered(5), "elsewhere/a")
        await publish(broker.port, [b"1"])
        await until(lambda: node.source().acknowledged == 6)
        assert node.source().refused == 5
        assert node.node.status.facts()["unrouted"]["messages"] == 5
        assert len(await node.stored()) == 1
    async with running(tmp_path, source, NODE, "other") as node:
        await until(lambda: node.source().connections)
        await publish(broker.port, numbered(5), "elsewhere/a")
        await until(lambda: len(node.node.log.streams()) and node.durable("unrouted") == 5)


async def test_trouble_is_said_once_and_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from examples.demo.fabric import free_port

    caplog.set_level(logging.INFO)
    async with running(tmp_path, mqtt_source(free_port()).replace("200ms", "20ms")) as node:
        await until(lambda: node.source().attempts_failed > 5)
        facts = node.node.status.facts()["sources"]["plant"]
    assert facts["state"] == "waiting"
    assert facts["last_error"] == "connection refused"
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("source plant")]
    assert len(lines) == 1
    assert "not connected" in lines[0]


OF_VALUES = tuple(
    f"weft_edge_source_{each}"
    for each in (
        "values",
        "lag",
        "requests",
        "exceptions",
        "timeouts",
        "bad_",
        "missed_",
        "open_",
        "gaps",
        "overflows",
        "nodes",
    )
)


async def test_status_page_and_metrics_tell_of_a_source(
    tmp_path: Path, broker: Mosquitto, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, mqtt_source(broker.port)) as node:
        await until(lambda: node.source().connections)
        await publish(broker.port, numbered(3))
        await until(lambda: node.source().acknowledged == 3)
        metrics, facts = render(node.node.status).decode(), node.node.status.facts()
        broker.kill()
        await until(lambda: node.source().state is SourceState.WAITING)
        down = node.node.status.facts()
    reported = {metric.name for metric in SOURCE_METRICS if f'{metric.name}{{source="plant"}}' in metrics}
    of_values = {each.name for each in SOURCE_METRICS if each.name.startswith(OF_VALUES)}
    only_by_amqp = {"weft_edge_source_waiting_messages"}
    assert reported == {each.name for each in SOURCE_METRICS} - only_by_amqp - of_values, "all others are exported"
    assert 'weft_edge_source_connected{source="plant"} 1.0' in metrics
    assert 'weft_edge_source_acknowledged_total{source="plant"} 3.0' in metrics
    assert facts["sources"]["plant"]["messages"] == 3
    assert "<td>plant</td>" in tables(facts)
    assert "connection" in tables(down)
    show_running(down, 0)
    assert "waiting at the broker" in capsys.readouterr().out


# --- What a broker is answered, and when: seen from a broker's end that looks at the log at each answer


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
