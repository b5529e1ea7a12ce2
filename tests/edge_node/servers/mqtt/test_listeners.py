"""A whole node and paho-mqtt over every kind of listener: who comes in, as whom, and what changes while they stay."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.certificates import Authority, Pem
from tests.support.live_node import configuration
from tests.support.mqtt_client import PahoClient
from tests.support.waiting import PATIENCE_S, until
from weft.config.limits import EdgeLimits
from weft.config.units import Address, UnixSocket
from weft.edge_node.access import users
from weft.edge_node.node import EdgeNode
from weft.edge_node.servers.clients.context import ClientSettings
from weft.edge_node.servers.listeners.listeners import with_files_for
from weft.network.admission import AdmissionLimits
from weft.service.serving import Signals

PASSWORD = "a secret of press-7"


@pytest.fixture
def _look_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.edge_node.node.LOG_CHECK_INTERVAL_S", 0.1)
    monkeypatch.setattr("weft.network.admission.SWEEP_INTERVAL_S", 0.05)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def running(directory: Path, text: str) -> AsyncIterator[EdgeNode]:
    """A node that reads its files again as it does in its own process."""
    text = f"node: a\ndata_dir: data\nhttp: null\nstreams: {{t: {{from: 't/#'}}}}\n{text}"
    node = EdgeNode(configuration(directory, text))
    stop = asyncio.Event()
    await node.start()
    run = asyncio.create_task(node.run(stop))
    try:
        async with Signals().reloading(node.reload):
            yield node
    finally:
        stop.set()
        await run
        await node.close()


class ListenerClient(PahoClient):
    """A client of one listener."""

    def __init__(self, node: EdgeNode, listener: str, **options: Any) -> None:
        self.address = node.addresses[listener]
        transport = {"ws": "websockets", "wss": "websockets"}.get(listener, "tcp")
        if isinstance(self.address, UnixSocket):
            transport = "unix"
        super().__init__(transport=transport, **options)

    def trust(self, authority: Authority, pem: Pem | None = None) -> ListenerClient:
        self.paho.tls_set(authority.path, pem and pem.certificate, pem and pem.key)
        return self

    def login(self, name: str, password: str = PASSWORD) -> ListenerClient:
        self.paho.username_pw_set(name, password)
        return self

    async def enter(self) -> str:
        """What CONNACK says; ``"lost"`` when there is none."""
        if isinstance(self.address, UnixSocket):
            return await self.connect(1883, self.address.path)
        return await self.connect(self.address.port)

    async def may_subscribe(self, topic_filter: str) -> int:
        """The code of SUBACK at QoS 1."""
        return (await self.subscribe((topic_filter, 1)))[0]

    async def works(self) -> bool:
        """Whether what it publishes comes back."""
        assert await self.may_subscribe("t/echo") == 1
        await self.publish("t/echo", "hello")
        return bool((await self.message()).payload == b"hello")


def stored(node: EdgeNode) -> int:
    return node.log.next_seq(node.log.streams()["t"])


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_every_kind_of_listener_at_once(tmp_path: Path, authority: Authority) -> None:
    authority.sign("node")
    text = """
listeners:
  mqtt: {bind: "127.0.0.1:0"}
  second: {bind: "127.0.0.1:0"}
  mqtts: {bind: "127.0.0.1:0", tls: {certificate: node.crt, key: node.key}}
  ws: {bind: "127.0.0.1:0"}
  wss: {bind: "127.0.0.1:0", tls: {certificate: node.crt, key: node.key}}
  local: {bind: "unix:mqtt.sock"}
  off: null
"""
    async with running(tmp_path, text) as node:
        assert list(node.addresses) == ["mqtt", "second", "mqtts", "ws", "wss", "local"]
        for name in node.addresses:
            for version in (paho.MQTTv31, paho.MQTTv311, paho.MQTTv5):
                client = ListenerClient(node, name, protocol=version, client_id=f"{name}-{int(version)}")
                if name in ("mqtts", "wss"):
                    client.trust(authority)
                assert await client.enter() == "Success", name
                assert await client.works(), name
                await client.close()
        assert stored(node) == 18
        await until(lambda: node.counters.connections == node.listener_counters.connections_half_open == 0)


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_large_messages_pass_websockets_and_tls(tmp_path: Path, authority: Authority) -> None:
    authority.sign("node")
    text = """
listeners:
  wss: {bind: "127.0.0.1:0", tls: {certificate: node.crt, key: node.key}}
"""
    async with running(tmp_path, text) as node:
        client = ListenerClient(node, "wss").trust(authority)
        await client.enter()
        await client.may_subscribe("t/#")
        payload = os.urandom(300_000).hex()
        await client.publish("t/large", payload)
        assert (await client.message()).payload == payload.encode()
        await client.close()


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_names_and_passwords(tmp_path: Path) -> None:
    users.add(str(tmp_path / "users"), "press-7", PASSWORD.encode())
    text = """
listeners:
  mqtt: {bind: "127.0.0.1:0", anonymous: never}
  open: {bind: "127.0.0.1:0"}
auth: {users_file: users}
"""
    async with running(tmp_path, text) as node:
        good = ListenerClient(node, "mqtt").login("press-7")
        assert await good.enter() == "Success"
        assert await good.works()
        await good.close()
        for listener, name in (("mqtt", None), ("mqtt", "press-7"), ("open", "press-8")):
            for version in (paho.MQTTv311, paho.MQTTv5):
                bad = ListenerClient(node, listener, protocol=version)
                if name is not None:
                    bad.login(name, "not the secret")
                assert await bad.enter() == "Bad user name or password"
                await bad.close()
        anonymous = ListenerClient(node, "open")
        assert await anonymous.enter() == "Success"
        await anonymous.close()
        assert node.listener_counters.authentications_refused == 6


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_enhanced_authentication_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, 'listeners: {mqtt: {bind: "127.0.0.1:0"}}') as node:
        client = ListenerClient(node, "mqtt", protocol=paho.MQTTv5)
        properties = Properties(PacketTypes.CONNECT)
        properties.AuthenticationMethod = "SCRAM-SHA-256"
        address = node.addresses["mqtt"]
        assert isinstance(address, Address)
        await asyncio.to_thread(client.paho.connect, "127.0.0.1", address.port, properties=properties)
        client.paho.loop_start()
        assert await client.code() == "Bad authentication method"
        await client.close()


MUTUAL = """
listeners:
  mqtts: {bind: "127.0.0.1:0", anonymous: never, tls: {certificate: node.crt, key: node.key, client_ca: authority.pem}}
auth: {acl_file: acl}
"""


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_a_client_certificate_says_who_a_client_is(tmp_path: Path, authority: Authority) -> None:
    authority.sign("node")
    (tmp_path / "acl").write_text("pattern readwrite t/%u/#\nuser office\ntopic read t/#\ntopic deny t/press-7/key\n")
    async with running(tmp_path, MUTUAL) as node:
        clients = {}
        for name in ("press-7", "press-8", "office"):
            clients[name] = ListenerClient(node, "mqtts", protocol=paho.MQTTv5).trust(authority, authority.sign(name))
            # What CONNECT says does not count against a certificate.
            assert await clients[name].login("office", "x").enter() == "Success"
        assert await clients["press-7"].may_subscribe("t/press-7/#") == 1
        assert await clients["press-7"].may_subscribe("t/press-8/#") == 0x87
        assert await clients["press-7"].may_subscribe("t/#") == 0x87
        assert await clients["press-7"].may_subscribe("$share/group/t/press-8/#") == 0x87
        assert await clients["office"].may_subscribe("t/#") == 1
        assert await clients["office"].may_subscribe("t/press-7/key") == 0x87
        await clients["press-7"].publish("t/press-7/key", "denied to the office")
        await clients["press-7"].publish("t/press-8/x", "not stored")
        await clients["office"].publish("t/press-7/x", "not stored")
        await clients["press-7"].publish("t/press-7/x", "seen")
        assert [(await clients["press-7"].message()).topic for _ in range(2)] == ["t/press-7/key", "t/press-7/x"]
        assert (await clients["office"].message()).payload == b"seen"
        assert stored(node) == 2
        for client in clients.values():
            await client.close()


async def answer(node: EdgeNode, authority: Authority, pem: Pem) -> str:
    """What a client with that certificate gets: an answer to CONNECT, or "lost"."""
    client = ListenerClient(node, "mqtts").trust(authority, pem)
    try:
        return await client.enter()
    except (ssl.SSLError, ConnectionError):
        return "lost"
    finally:
        await client.close()


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_a_certificate_that_was_revoked_opens_nothing(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    authority.sign("node")
    (tmp_path / "acl").write_text("")
    stolen, sold, good = (authority.sign(name) for name in ("stolen", "sold", "good"))
    authority.revoke(stolen)
    text = MUTUAL.replace("client_ca: authority.pem", "client_ca: authority.pem, crl_file: revoked.crl")
    async with running(tmp_path, text) as node:
        assert [await answer(node, authority, pem) for pem in (stolen, sold, good)] == ["lost", "Success", "Success"]
        assert "certificate revoked" in caplog.text
        clients = [ListenerClient(node, "mqtts").trust(authority, pem) for pem in (sold, good)]
        assert [await client.enter() for client in clients] == ["Success", "Success"]
        await changed(node, lambda: authority.revoke(stolen, sold))
        assert await asyncio.to_thread(clients[0].lost.wait, PATIENCE_S), "an open connection ends as well"
        assert not clients[1].lost.is_set()
        for client in clients:
            await client.close()
        assert [await answer(node, authority, pem) for pem in (stolen, sold, good)] == ["lost", "lost", "Success"]
        write(tmp_path / "revoked.crl", "no list\n")
        await until(lambda: node.listener_counters.reload_failures == 1)
        assert "holds no revocation list in PEM" in caplog.text
        assert [await answer(node, authority, pem) for pem in (stolen, sold, good)] == ["lost", "lost", "Success"]
        before = node.listener_counters.reloads
        authority.revoke(expired=True)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: node.listener_counters.reloads > before)
        # A list that is out of date may lack what was revoked since.
        assert await answer(node, authority, good) == "lost"


def write(path: Path, text: str) -> None:
    """As editors do: the node never reads half a file."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    os.replace(new, path)


async def changed(node: EdgeNode, change: Callable[[], object]) -> None:
    """Change a file and wait until the node has taken it up."""
    before = node.listener_counters.reloads
    change()
    await until(lambda: node.listener_counters.reloads > before)


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_users_and_rules_change_while_clients_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, rules = str(tmp_path / "users"), tmp_path / "acl"
    users.add(file, "press-7", PASSWORD.encode())
    rules.write_text("pattern readwrite t/%u/#\n")
    text = """
listeners: {mqtt: {bind: "127.0.0.1:0", anonymous: never}}
auth: {users_file: users, acl_file: acl}
"""
    async with running(tmp_path, text) as node:
        client = ListenerClient(node, "mqtt", protocol=paho.MQTTv5).login("press-7")
        await client.enter()
        await client.may_subscribe("t/press-7/#")
        await client.publish("t/press-7/x", "1")
        assert (await client.message()).payload == b"1"

        await changed(node, lambda: users.add(file, "press-8", b"another secret"))
        other = ListenerClient(node, "mqtt", protocol=paho.MQTTv5).login("press-8", "another secret")
        assert await other.enter() == "Success"

        await changed(node, lambda: write(rules, "user press-7\ntopic write t/press-7/#\n"))
        await client.publish("t/press-7/x", "2: stored, and not read by who may not read any more")
        assert await client.may_subscribe("t/press-7/#") == 0x87
        assert client.messages.empty()
        assert stored(node) == 2

        write(rules, "nonsense\n")
        await until(lambda: node.listener_counters.reload_failures == 1)
        assert "the access rules cannot be used, the former ones stay in use" in caplog.text
        await client.publish("t/press-7/x", "3")
        assert stored(node) == 3

        before = node.listener_counters.reloads
        write(rules, "")
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: node.listener_counters.reloads >= before + 1)
        assert not client.lost.is_set()
        assert not other.lost.is_set()
        await client.close()
        await other.close()


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_certificates_change_while_clients_stay(tmp_path: Path, authority: Authority) -> None:
    authority.sign("node")
    text = 'listeners: {mqtts: {bind: "127.0.0.1:0", tls: {certificate: node.crt, key: node.key}}}'
    async with running(tmp_path, text) as node:
        client = ListenerClient(node, "mqtts").trust(authority)
        await client.enter()
        (tmp_path / "new").mkdir()
        successor = Authority(tmp_path / "new", "successor")
        pem = successor.sign("node")

        def replace() -> None:
            os.replace(pem.certificate, tmp_path / "node.crt")
            os.replace(pem.key, tmp_path / "node.key")

        await changed(node, replace)
        assert await client.works()
        with pytest.raises(ssl.SSLError):
            await ListenerClient(node, "mqtts").trust(authority).enter()
        new = ListenerClient(node, "mqtts").trust(successor)
        assert await new.enter() == "Success"
        await client.close()
        await new.close()


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_a_flood_of_connections_does_no_harm_to_others(tmp_path: Path) -> None:
    text = """
listeners: {mqtt: {bind: "127.0.0.1:0"}}
limits: {half_open: 50, connections: 200, connect_timeout: 5s}
"""
    async with running(tmp_path, text) as node:
        client = ListenerClient(node, "mqtt")
        await client.enter()
        address = node.addresses["mqtt"]
        assert isinstance(address, Address)
        # paho waits with select(), which knows no file descriptor from 1024 on.
        flood = [await asyncio.open_connection("127.0.0.1", address.port) for _ in range(400)]
        assert await client.works()
        late = ListenerClient(node, "mqtt")
        assert await late.enter() == "Success"
        await until(lambda: node.counters.connections_accepted >= 400)
        assert node.counters.connections <= 52
        assert node.listener_counters.half_open_evicted >= 350
        for reader, writer in flood:
            writer.transport.abort()
        await client.close()
        await late.close()


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_slow_connects_end_in_time(tmp_path: Path) -> None:
    text = """
listeners: {mqtt: {bind: "127.0.0.1:0"}, ws: {bind: "127.0.0.1:0"}}
limits: {connect_timeout: 2s}
"""
    async with running(tmp_path, text) as node:
        client = ListenerClient(node, "mqtt")
        assert await client.enter() == "Success"
        slow = []
        for name, data in (("mqtt", b"\x10\xff\x7f\x00\x04MQTT"), ("ws", b"GET /mqtt HTTP/1.1\r\nHost: a\r\nX: ")):
            address = node.addresses[name]
            assert isinstance(address, Address)
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
                writer.write(data)
                slow.append((reader, writer))
        async with asyncio.timeout(PATIENCE_S):
            for reader, writer in slow:
                try:
                    await reader.read()
                except ConnectionResetError:
                    pass
                writer.close()
        await until(lambda: node.counters.connections == 1)
        assert await client.works()
        await client.close()


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_secrets_are_never_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    users.add(str(tmp_path / "users"), "press-7", PASSWORD.encode())
    text = 'listeners: {mqtt: {bind: "127.0.0.1:0", anonymous: never}}\nauth: {users_file: users}'
    async with running(tmp_path, text) as node:
        for password in (PASSWORD, "wrong secret"):
            client = ListenerClient(node, "mqtt").login("press-7", password)
            await client.enter()
            await client.close()
        await changed(node, lambda: users.add(str(tmp_path / "users"), "press-8", b"third secret"))
        write(tmp_path / "users", "press-7:a secret in the clear\n")
        await until(lambda: node.listener_counters.reload_failures == 1)
        assert "press-7" in caplog.text
        logged = caplog.text.replace(str(tmp_path), "")
        assert "secret" not in logged
        assert "$argon2id$" not in logged


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_files_that_cannot_be_used_stop_the_start_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("press-7:in the clear\n")
    with pytest.raises(users.UsersUnusable, match="users:1: expected name:hash"):
        async with running(tmp_path, "auth: {users_file: users}"):
            pass
    text = 'listeners: {mqtts: {bind: "127.0.0.1:0", tls: {certificate: missing.pem, key: missing.key}}}'
    with pytest.raises(OSError, match=r"listeners.mqtts.tls: .*missing.pem: there is no such file"):
        async with running(tmp_path, text):
            pass


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
def test_no_more_connections_than_files_may_be_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1_048_576))
    assert with_files_for(AdmissionLimits(connections_max=10_000)).connections_max == 10_000
    assert asked == [(11_152, 1_048_576)], "systemd's 1,024 is only the soft limit"
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    taken = with_files_for(AdmissionLimits(connections_max=10_000))
    assert (taken.connections_max, taken.half_open_max) == (3472, 496)
    assert "accepts 3472 connections and not the 10000 of limits.connections, and 496 half open" in caplog.text
    taken = with_files_for(AdmissionLimits(connections_max=3000))
    assert (taken.connections_max, taken.half_open_max) == (3000, 968)
    taken = with_files_for(AdmissionLimits(connections_max=3000), other_connections=100)
    assert (taken.connections_max, taken.half_open_max) == (3000, 868)


@pytest.mark.usefixtures("_keep_sighup", "_look_soon")
async def test_deep_topics_are_refused(tmp_path: Path) -> None:
    limits = "{topic_levels: 4, subscriptions_total: 2, user_share: 100%}"
    text = f'listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}\nlimits: {limits}'
    async with running(tmp_path, text) as node:
        client = ListenerClient(node, "mqtt", protocol=paho.MQTTv5)
        await client.enter()
        assert await client.may_subscribe("t/2/3/4") == 1
        assert await client.may_subscribe("t/2/3/4/5") == 0x8F
        await client.publish("t/2/3/4")
        await client.publish("t/2/3/4/5")
        assert (stored(node), node.counters.publishes_denied) == (1, 1)
        assert await client.may_subscribe("second") == 1
        assert await client.may_subscribe("third") == 0x97
        await client.close()


@pytest.fixture
def _keep_sighup() -> Any:
    """The node's handler goes with its loop; pytest's own must be there again afterwards."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


# --- The end of a listener: connections are closed, and no client is blamed for it


async def test_the_end_of_the_node_ends_every_connection_and_publishes_no_will(tmp_path: Path) -> None:
    listeners = 'listeners: {mqtt: {bind: "127.0.0.1:0"}, ws: {bind: "127.0.0.1:0"}}'
    clients = []
    async with running(tmp_path, listeners) as node:
        for name in ("mqtt", "ws"):
            client = ListenerClient(node, name, client_id=name)
            client.paho.will_set("t/will", "gone")
            assert await client.enter() == "Success"
            clients.append(client)
        address = node.addresses["mqtt"]
    for client in clients:
        assert await asyncio.to_thread(client.lost.wait, PATIENCE_S)
        await client.close()
    assert stored(node) == 0
    assert isinstance(address, Address)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", address.port)


@pytest.mark.parametrize("message_bytes", [128, (17 << 20) + 1])
def test_packet_limits_that_cannot_work_are_refused(message_bytes: int) -> None:
    with pytest.raises(ValueError, match=r"limits\.message must be"):
        ClientSettings(patterns={}, limits=EdgeLimits(message_bytes=message_bytes))
