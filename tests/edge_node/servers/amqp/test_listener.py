"""A whole node and pika over TLS: users, certificates, access rules, and users that are removed."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, ConnectionClosedByBroker

from tests.edge_node.servers.mqtt.test_listeners import running
from tests.support.certificates import Authority, Pem
from weft.edge_node.access import users
from weft.edge_node.node import EdgeNode

PASSWORD = "a secret of press-7"


@pytest.fixture(autouse=True)
def _look_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.edge_node.node.LOG_CHECK_INTERVAL_S", 0.1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def connected(
    node: EdgeNode,
    listener: str,
    *,
    credentials: Any = None,
    certificate: Pem | None = None,
    authority: Authority | None = None,
) -> pika.BlockingConnection:
    options: dict[str, Any] = {}
    if authority is not None:
        context = ssl.create_default_context(cafile=authority.path)
        context.check_hostname = False
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        options["ssl_options"] = pika.SSLOptions(context, "localhost")
    if credentials is not None:
        options["credentials"] = credentials
    address: Any = node.addresses[listener]
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", address.port, **options))


def publish(connection: pika.BlockingConnection, key: str) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", key, b"x", mandatory=True)


def wait(connection: pika.BlockingConnection) -> None:
    for _ in range(100):
        connection.process_data_events(0.1)


async def test_users_come_in_by_password_over_tls(tmp_path: Path, authority: Authority) -> None:
    server = authority.sign("localhost")
    (tmp_path / "users").write_text(f"press-7:{users.hasher().hash(PASSWORD)}\n")
    (tmp_path / "acl").write_text("user press-7\ntopic readwrite t/#\n")
    text = f"""
listeners:
  amqps: {{bind: "127.0.0.1:0", anonymous: never, tls: {{certificate: {server.certificate}, key: {server.key}}}}}
auth: {{users_file: users, acl_file: acl}}
"""
    async with running(tmp_path, text) as node:
        right = pika.PlainCredentials("press-7", PASSWORD)
        connection = await asyncio.to_thread(connected, node, "amqps", credentials=right, authority=authority)
        await asyncio.to_thread(publish, connection, "t.1")
        with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
            await asyncio.to_thread(publish, connection, "secret.1")
        for wrong in (pika.PlainCredentials("press-7", "guess"), pika.PlainCredentials("guest", "guest")):
            with pytest.raises(AMQPConnectionError):
                await asyncio.to_thread(connected, node, "amqps", credentials=wrong, authority=authority)
        (tmp_path / "users").write_text(f"other:{users.hasher().hash(PASSWORD)}\n")
        with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED"):
            await asyncio.to_thread(wait, connection)


async def test_a_certificate_is_who_the_client_is(tmp_path: Path, authority: Authority) -> None:
    """connection.start-ok: mechanism, response (`EXTERNAL`); with a certificate PLAIN cannot say otherwise."""
    server, device = authority.sign("localhost"), authority.sign("press-7")
    (tmp_path / "acl").write_text("user press-7\ntopic readwrite t/#\n")
    text = f"""
listeners:
  amqps:
    bind: "127.0.0.1:0"
    tls: {{certificate: {server.certificate}, key: {server.key}, client_ca: {authority.path}}}
auth: {{acl_file: acl}}
"""
    async with running(tmp_path, text) as node:
        for credentials in (pika.credentials.ExternalCredentials(), pika.PlainCredentials("root", "x")):
            connection = await asyncio.to_thread(
                connected, node, "amqps", credentials=credentials, certificate=device, authority=authority
            )
            await asyncio.to_thread(publish, connection, "t.1")
            with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
                await asyncio.to_thread(publish, connection, "other.1")
            await asyncio.to_thread(connection.close)
        with pytest.raises(AMQPConnectionError):
            await asyncio.to_thread(connected, node, "amqps", authority=authority)
