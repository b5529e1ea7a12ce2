"""What every listener promises, for every protocol alike: who comes in, as whom, from where, and until when."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.edge_node.servers.clients import PROTOCOLS, Amqp1, Mqtt, ProtocolClient, Refused, Way, proxy
from tests.edge_node.servers.mqtt.test_listeners import changed, running, stored, write
from tests.support.certificates import Authority, Pem
from tests.support.waiting import PATIENCE_S, until
from weft.config.units import Address
from weft.edge_node.access import users
from weft.edge_node.ingest.routing import Routing
from weft.edge_node.node import EdgeNode
from weft.edge_node.servers.clients.context import ReadPacing

PASSWORD = "hunter2 of press-7"
TLS = ", tls: {certificate: node.crt, key: node.key%s}"
MUTUAL = ", anonymous: never" + TLS % ", client_ca: authority.pem%s"
RULES = "user press-7\ntopic readwrite t/press-7/#\n"

pytestmark = pytest.mark.parametrize("make", PROTOCOLS)
Make = type[ProtocolClient]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.edge_node.node.LOG_CHECK_INTERVAL_S", 0.1)
    monkeypatch.setattr("weft.network.admission.SWEEP_INTERVAL_S", 0.05)
    monkeypatch.setattr("weft.network.admission.WAIT_S", 0.1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    found = Authority(tmp_path)
    found.sign("node")
    return found


@asynccontextmanager
async def node_for(make: Make, folder: Path, listener: str = "", more: str = "") -> AsyncIterator[tuple[EdgeNode, Way]]:
    """A node with one listener of the protocol."""
    text = f'listeners: {{door: {{bind: "127.0.0.1:0", protocol: {make.protocol}{listener}}}}}\n{more}'
    async with running(folder, text) as node:
        address = node.addresses["door"]
        assert isinstance(address, Address)
        yield node, Way(address.port)


def trusting(way: Way, authority: Authority, pem: Pem | None = None) -> Way:
    context = ssl.create_default_context(cafile=authority.path)
    if pem is not None:
        context.load_cert_chain(pem.certificate, pem.key)
    files = (authority.path, *((None, None) if pem is None else (pem.certificate, pem.key)))
    return replace(way, tls=context, files=files, shows_certificate=pem is not None)


async def entered(make: Make, way: Way) -> ProtocolClient:
    client = make(way)
    await asyncio.to_thread(client.connect)
    return client


async def refusal(make: Make, way: Way) -> str:
    """The words that a client gets that is not let in."""
    client = make(way)
    try:
        with pytest.raises(Refused) as refused:
            await asyncio.to_thread(client.connect)
        return str(refused.value)
    finally:
        await left(client)


async def left(*clients: ProtocolClient) -> None:
    for client in clients:
        await asyncio.to_thread(client.close)


async def publishes(client: ProtocolClient, topic: str, body: bytes = b"x") -> bool:
    return await asyncio.to_thread(client.publish, topic, body)


async def subscribes(client: ProtocolClient, topic: str) -> bool:
    return await asyncio.to_thread(client.subscribe, topic)


async def is_closed(client: ProtocolClient) -> bool:
    return await asyncio.to_thread(client.is_closed)


# --- TLS and certificates


async def test_tls(make: Make, tmp_path: Path, authority: Authority) -> None:
    async with node_for(make, tmp_path, TLS % "") as (node, way):
        client = await entered(make, trusting(way, authority))
        assert await publishes(client, "t/x")
        assert stored(node) == 1
        await left(client)


async def test_a_certificate_says_who_a_client_is(make: Make, tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "acl").write_text(RULES)
    own = authority.sign("press-7")
    async with node_for(make, tmp_path, MUTUAL % "", "auth: {acl_file: acl}") as (node, way):
        for user in (None, "office"):  # what a client says itself does not count against a certificate
            way_in = replace(trusting(way, authority, own), user=user, password="x")
            client = await entered(make, way_in)
            assert await publishes(client, "t/press-7/x")
            assert not await publishes(client, "t/press-8/x")
            assert await subscribes(client, "t/press-7/x")
            assert not await subscribes(client, "t/press-8/x")
            await left(client)
        assert stored(node) == 2


async def test_who_has_no_good_certificate_stays_outside(make: Make, tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").sign("press-7")
    async with node_for(make, tmp_path, MUTUAL % "") as (node, way):
        for pem in (None, stranger):
            await refusal(make, trusting(way, authority, pem))
        said = await refusal(make, trusting(way, authority, authority.sign("", "nameless")))
        assert make is not Mqtt or said == "Not authorized"
        await until(lambda: node.counters.connections == 0)


@pytest.mark.slow
async def test_a_certificate_that_was_revoked_opens_nothing(make: Make, tmp_path: Path, authority: Authority) -> None:
    stolen, sold, good = (authority.sign(name) for name in ("stolen", "sold", "good"))
    authority.revoke(stolen)
    async with node_for(make, tmp_path, MUTUAL % ", crl_file: revoked.crl") as (node, way):
        await refusal(make, trusting(way, authority, stolen))
        clients = [await entered(make, trusting(way, authority, pem)) for pem in (sold, good)]
        await changed(node, lambda: authority.revoke(stolen, sold))
        assert await is_closed(clients[0]), "an open connection ends as well"
        assert await publishes(clients[1], "t/x")
        await refusal(make, trusting(way, authority, sold))
        assert node.counters.clients_expelled == 1
        await left(*clients)


# --- where a client is


async def test_a_proxy_says_where_a_client_is(
    make: Make, tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Who may come in without a name, and what is logged, go by the client's own address."""
    behind = ', proxy_protocol: {trusted: ["127.0.0.1"]}' + TLS % ""
    caplog.set_level(logging.INFO)
    async with node_for(make, tmp_path, behind) as (node, way):
        async with proxy(way.port, "192.0.2.7") as far, proxy(way.port, "127.0.0.1") as near:
            await refusal(make, trusting(replace(way, port=far), authority))
            client = await entered(make, trusting(replace(way, port=near), authority))
            assert await publishes(client, "t/x")
            await left(client)
        await refusal(make, trusting(way, authority))  # a proxy that does not say it
        assert node.listener_counters.authentications_refused == 1
        assert node.listener_counters.proxy_headers_refused == 1
    assert "192.0.2.7:" in caplog.text


async def test_an_address_has_only_so_many_connections(make: Make, tmp_path: Path) -> None:
    behind = ', anonymous: allowed_beyond_loopback, proxy_protocol: {trusted: ["127.0.0.1"]}'
    async with node_for(make, tmp_path, behind, "limits: {connections_per_address: 2}") as (node, way):
        async with proxy(way.port, "192.0.2.7") as one, proxy(way.port, "192.0.2.8") as another:
            clients = [await entered(make, replace(way, port=one)) for _ in range(2)]
            await refusal(make, replace(way, port=one))
            assert node.listener_counters.connections_rate_limited == 1
            clients.append(await entered(make, replace(way, port=another)))
            await left(clients.pop(0))
            await until(lambda: node.counters.connections == 2)
            clients.append(await entered(make, replace(way, port=one)))
            await left(*clients)


# --- how many


async def test_one_client_more_than_there_may_be_has_to_try_later(make: Make, tmp_path: Path) -> None:
    async with node_for(make, tmp_path, "", "limits: {connections: 2, user_share: 100%}") as (node, way):
        clients = [await entered(make, way) for _ in range(2)]
        said = await refusal(make, way)
        if make is not Amqp1:  # SASL has no words, and Proton makes the same of all outcomes
            assert "Quota exceeded" in said or "limits.connections " in said, said
        assert node.counters.connections_refused == 1
        await left(clients.pop())
        await until(lambda: node.counters.connections == 1)
        clients.append(await entered(make, way))
        await left(*clients)


async def test_a_user_has_a_share_of_the_connections(make: Make, tmp_path: Path) -> None:
    for name in ("alice", "mallory"):
        users.add(str(tmp_path / "users"), name, PASSWORD.encode())
    limits = "limits: {connections: 10, user_share: 20%}\nauth: {users_file: users}"
    async with node_for(make, tmp_path, "", limits) as (node, way):
        mallory = replace(way, user="mallory", password=PASSWORD)
        clients = [await entered(make, mallory) for _ in range(2)]
        await refusal(make, mallory)
        assert node.counters.connections_refused == 1
        clients.append(await entered(make, replace(mallory, user="alice")))
        await left(clients.pop(0))
        await until(lambda: node.counters.connections == 2)
        clients.append(await entered(make, mallory))
        await left(*clients)


@pytest.mark.slow
async def test_who_stops_before_it_is_let_in_is_closed_in_time(make: Make, tmp_path: Path) -> None:
    async with node_for(make, tmp_path, "", "limits: {connect_timeout: 2s}") as (node, way):
        client = await entered(make, way)
        slow = []
        for data in (b"", make.BEGINNING[:3], make.BEGINNING):  # type: ignore[attr-defined]
            reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
            writer.write(data)
            slow.append((reader, writer))
        async with asyncio.timeout(PATIENCE_S):
            for reader, writer in slow:
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
                writer.close()
        await until(lambda: node.counters.connections == 1)
        assert node.counters.connect_timeouts == 3
        assert await publishes(client, "t/x")
        await left(client)


async def test_half_open_connections_keep_no_one_out(make: Make, tmp_path: Path) -> None:
    async with node_for(make, tmp_path, "", "limits: {half_open: 5, connections: 10}") as (node, way):
        before = await entered(make, way)
        silent = [await asyncio.open_connection("127.0.0.1", way.port) for _ in range(30)]
        for _, writer in silent:
            writer.write(make.BEGINNING)  # type: ignore[attr-defined]
        await until(lambda: node.listener_counters.half_open_evicted >= 25)
        after = await entered(make, way)
        for client in (before, after):
            assert await publishes(client, "t/x")
        for _, writer in silent:
            writer.transport.abort()
        await left(before, after)


# --- users and rules


async def test_names_and_passwords(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    users.add(str(tmp_path / "users"), "press-7", PASSWORD.encode())
    async with node_for(make, tmp_path, ", anonymous: never", "auth: {users_file: users}") as (node, way):
        for user, password in (("press-8", PASSWORD), ("press-7", "hunter3"), (None, "")):
            await refusal(make, replace(way, user=user, password=password))
        assert node.listener_counters.authentications_refused == 3
        client = await entered(make, replace(way, user="press-7", password=PASSWORD))
        assert await publishes(client, "t/x")
        await left(client)
        assert stored(node) == 1
    logged = caplog.text.replace(str(tmp_path), "")
    assert "press-8" in logged
    assert "without a user name" in logged or "is missing" in logged
    for secret in ("hunter", "$argon2id$", "aHVudGVy"):
        assert secret not in logged


@pytest.mark.slow
async def test_who_is_taken_out_of_the_users_file_is_closed(make: Make, tmp_path: Path) -> None:
    file, names = str(tmp_path / "users"), ("removed", "changed", "stays")
    for name in names:
        users.add(file, name, PASSWORD.encode())
    async with node_for(make, tmp_path, "", "auth: {users_file: users}") as (node, way):
        clients = {name: await entered(make, replace(way, user=name, password=PASSWORD)) for name in names}
        clients["anonymous"] = await entered(make, way)
        await changed(node, lambda: users.remove(file, "removed"))
        await changed(node, lambda: users.add(file, "changed", b"another"))
        for name in ("removed", "changed"):
            assert await is_closed(clients[name]), name
            await refusal(make, clients[name].way)
        for name in ("stays", "anonymous"):
            assert await publishes(clients[name], "t/x"), name
        assert node.counters.clients_expelled == 2
        await left(*clients.values())


async def test_rules_hold_and_change_while_clients_stay(make: Make, tmp_path: Path) -> None:
    users.add(str(tmp_path / "users"), "press-7", PASSWORD.encode())
    rules = tmp_path / "acl"
    rules.write_text(RULES)
    auth = "auth: {users_file: users, acl_file: acl}"
    async with node_for(make, tmp_path, "", auth) as (node, way):
        client = await entered(make, replace(way, user="press-7", password=PASSWORD))
        assert await publishes(client, "t/press-7/x")
        assert not await publishes(client, "t/press-8/x")
        assert await subscribes(client, "t/press-7/x")
        assert not await subscribes(client, "t/press-8/x")
        await changed(node, lambda: write(rules, "user press-7\ntopic write t/press-8/#\n"))
        assert not await publishes(client, "t/press-7/x")
        assert await publishes(client, "t/press-8/x")
        assert not await subscribes(client, "t/press-7/x")
        assert stored(node) == 2
        nobody = await entered(make, way)
        assert not await publishes(nobody, "t/press-8/x")
        await left(client, nobody)


async def test_a_message_has_a_longest_size(make: Make, tmp_path: Path) -> None:
    longest, rest = 64 << 10, 512  # for topic and headers, which some protocols count
    async with node_for(make, tmp_path, "", "limits: {message: 64KiB}") as (node, way):
        client = await entered(make, way)
        assert await publishes(client, "t/x", bytes(longest - rest))
        assert not await publishes(client, "t/x", bytes(longest + 1))
        assert stored(node) == 1
        await left(client)


async def test_who_waits_for_a_turn_that_fails_is_told(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP has an answer for it, other connections end: no client waits for an answer that never comes."""

    def failing(self: Routing, topic: bytes, *_: object) -> None:
        raise RuntimeError("a fault of the node")

    async with node_for(make, tmp_path) as (node, way):
        first, second = await entered(make, way), await entered(make, way)
        with monkeypatch.context() as fault:
            fault.setattr(ReadPacing, "admits", lambda self, now: False)  # what comes waits for its turn
            fault.setattr(Routing, "route_to", failing)
            begun = time.monotonic()
            is_stored = False
            with contextlib.suppress(Exception):
                is_stored = await publishes(first, "t/x")
            assert not is_stored
            assert time.monotonic() < begun + PATIENCE_S
        assert await publishes(second, "t/x")
        assert stored(node) == 1
        await left(first, second)
