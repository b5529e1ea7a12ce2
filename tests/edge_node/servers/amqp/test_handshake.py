"""Class connection, from the protocol header to connection.close (AMQP 0-9-1 section 1.4)."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, ConnectionClosedByBroker

from tests.edge_node.servers.amqp.harness import AmqpNode, RawClient, serving
from tests.edge_node.servers.mqtt.test_listeners import running
from tests.support.certificates import Authority, Pem
from weft.edge_node.access import users
from weft.edge_node.access.identity import AccessDenied, Denial
from weft.edge_node.node import EdgeNode
from weft.edge_node.servers.amqp.client import AmqpSettings
from weft.protocols.amqp.frames import FRAME_BYTES_MIN, PROTOCOL_HEADER, ReplyCode
from weft.protocols.amqp.methods import Method, commands, write_method, write_table

Connection = commands.Connection


async def started(node: AmqpNode) -> RawClient:
    client = await RawClient.open(node.port)
    client.send(PROTOCOL_HEADER)
    client.server = await client.expect(Connection.Start)
    return client


def start_ok(mechanism: str = "PLAIN", response: str = "\0guest\0guest", **capabilities: bool) -> Method:
    properties: Any = {"capabilities": capabilities}
    return Connection.StartOk(properties, mechanism, response)


async def tuned(node: AmqpNode) -> RawClient:
    client = await started(node)
    client.send(start_ok())
    client.terms = await client.expect(Connection.Tune)
    return client


async def test_start_says_what_the_node_is(tmp_path: Path) -> None:
    """connection.start: version-major, version-minor, server-properties, mechanisms, locales."""
    async with serving(tmp_path) as node:
        start = (await started(node)).server
        assert (start.version_major, start.version_minor) == (0, 9)
        assert start.server_properties["product"] == "Weft"
        assert start.server_properties["capabilities"]["publisher_confirms"] is True
        assert start.mechanisms.split() == ["PLAIN", "AMQPLAIN", "ANONYMOUS"]
        assert start.locales == "en_US"


async def test_tune_says_the_bounds(tmp_path: Path) -> None:
    """connection.tune: channel-max, frame-max, heartbeat."""
    settings = AmqpSettings(channels_max=100, frame_bytes_max=8192, heartbeat_s=17)
    async with serving(tmp_path, settings=settings) as node:
        tune = (await tuned(node)).terms
        assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (100, 8192, 17)


@pytest.mark.parametrize(
    "header", [b"AMQP\x00\x00\x09\x00", b"AMQP\x01\x01\x08\x00", b"AMQP\x00\x01\x00\x00", b"GET / HT"]
)
async def test_another_header_is_answered_with_the_one_that_is_served(tmp_path: Path, header: bytes) -> None:
    """Protocol header, section 4.2.2."""
    async with serving(tmp_path) as node:
        client = await RawClient.open(node.port)
        client.send(header)
        assert await client.octets(8) == PROTOCOL_HEADER
        assert await client.closed()


async def test_a_header_may_come_in_pieces(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = await RawClient.open(node.port)
        for octet in PROTOCOL_HEADER:
            client.send(bytes((octet,)))
            await asyncio.sleep(0.001)
        await client.expect(Connection.Start)


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0ann\0secret"),
        ("PLAIN", b"as\0ann\0secret"),
        ("AMQPLAIN", write_table({"LOGIN": "ann", "PASSWORD": "secret"})[4:]),
        ("ANONYMOUS", b"whoever"),
    ],
)
async def test_mechanisms(tmp_path: Path, mechanism: str, response: bytes) -> None:
    """connection.start-ok: client-properties, mechanism, response, locale."""
    async with serving(tmp_path) as node:
        seen: list[Any] = []
        authenticate = node.authenticator.authenticate

        async def noted(credentials: Any, *more: Any) -> Any:
            seen.append(credentials)
            return await authenticate(credentials, *more)

        node.authenticator.authenticate = noted
        client = await started(node)
        client.send(start_ok(mechanism, response.decode("latin-1")))
        await client.expect(Connection.Tune)
        expected = (None, None) if mechanism == "ANONYMOUS" else ("ann", b"secret")
        assert (seen[0].username, seen[0].password) == expected


@pytest.mark.parametrize(
    ("mechanism", "response"), [("PLAIN", "no zeros"), ("AMQPLAIN", "no table"), ("SCRAM", ""), ("EXTERNAL", "")]
)
async def test_what_is_no_response_ends_the_connection_without_a_word(
    tmp_path: Path, mechanism: str, response: str
) -> None:
    async with serving(tmp_path) as node:
        client = await started(node)
        client.send(start_ok(mechanism, response))
        assert await client.closed()


async def test_who_is_refused_is_told_if_the_client_wants_to_know(tmp_path: Path) -> None:
    """403 access-refused at connection.start-ok, where the client announces `authentication_failure_close`."""
    async with serving(tmp_path) as node:
        node.authenticator.refuse = AccessDenied(Denial.WRONG, "wrong password")
        client = await started(node)
        client.send(start_ok())
        assert await client.closed()
        client = await started(node)
        client.send(start_ok(authentication_failure_close=True))
        assert (await client.connection_error()).reply_code == ReplyCode.ACCESS_REFUSED


async def test_a_mechanism_that_is_not_offered_is_refused_with_those_that_are(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = await started(node)
        client.send(start_ok("SCRAM-SHA-256", "n,,n=ann,r=x", authentication_failure_close=True))
        error = await client.connection_error()
        assert error.reply_code == ReplyCode.ACCESS_REFUSED
        assert "'SCRAM-SHA-256' is not offered; use one of PLAIN" in error.reply_text


async def test_a_user_that_is_removed_before_connection_open_stays_outside(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = await tuned(node)
        node.authenticator.removed.add("guest")
        node.amqp.permissions_changed()
        client.send(Connection.TuneOk(0, 0, 0), Connection.Open("/"))
        assert (await client.connection_error()).reply_code == ReplyCode.ACCESS_REFUSED


async def test_a_user_that_is_removed_is_expelled_once(tmp_path: Path) -> None:
    """However often the users file is read while the client has not answered connection.close."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        node.authenticator.removed.add("guest")
        for _ in range(3):
            node.amqp.permissions_changed()
        assert (await client.connection_error()).reply_code == ReplyCode.CONNECTION_FORCED
        assert node.counters_of_node.clients_expelled == 1


@pytest.mark.parametrize(
    ("tune_ok", "is_good"),
    [
        (Connection.TuneOk(0, 0, 0), True),
        (Connection.TuneOk(10, FRAME_BYTES_MIN, 5), True),
        (Connection.TuneOk(0, FRAME_BYTES_MIN - 1, 0), False),
        (Connection.TuneOk(0, 1 << 20, 0), False),
        (Connection.TuneOk(60_000, 0, 0), False),
    ],
)
async def test_terms_that_the_client_chooses(tmp_path: Path, tune_ok: Method, is_good: bool) -> None:
    """connection.tune-ok: channel-max, frame-max, heartbeat; 530 not-allowed for more than was offered.
    connection.open-ok."""
    async with serving(tmp_path) as node:
        client = await tuned(node)
        client.send(tune_ok, Connection.Open("/"))
        if is_good:
            await client.expect(Connection.OpenOk)
        else:
            assert (await client.connection_error()).reply_code == ReplyCode.NOT_ALLOWED


async def test_frame_max_and_channel_max_hold(tmp_path: Path) -> None:
    """501 frame-error for a longer frame, 530 not-allowed for a higher channel."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port, frame_max=FRAME_BYTES_MIN)
        client.send(b"\x03\0\x01" + (FRAME_BYTES_MIN - 7).to_bytes(4, "big"))
        assert (await client.connection_error()).reply_code == ReplyCode.FRAME_ERROR
        client = await tuned(node)
        client.send(Connection.TuneOk(3, 0, 0), Connection.Open("/"))
        await client.expect(Connection.OpenOk)
        client.send(commands.Channel.Open(), channel=4)
        assert (await client.connection_error()).reply_code == ReplyCode.NOT_ALLOWED


@pytest.mark.parametrize("sent", [b"", write_method(Connection.TuneOk(0, 0, 0), 0)])
async def test_who_never_says_connection_open_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    monkeypatch.setattr("weft.edge_node.servers.amqp.handshake.TERMS_S_MAX", 0.05)
    async with serving(tmp_path) as node:
        client = await tuned(node)
        client.send(sent)
        assert await client.closed()
        assert "connection.open did not come" in caplog.text
        client = await RawClient.connect(node.port)
        await asyncio.sleep(0.1)
        await client.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)


async def test_virtual_hosts(tmp_path: Path) -> None:
    """connection.open: virtual-host; 402 invalid-path for one that there is not."""
    settings = AmqpSettings(vhosts={"anyone": {"/": "", "factory": "plant/7"}})
    async with serving(tmp_path, settings=settings) as node:
        client = await RawClient.connect(node.port, vhost="factory")
        await client.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
        client.publish("line.3", b"21")
        await client.expect(commands.Basic.Ack)
        assert [record.key for record in await node.stored()] == [b"plant/7/line/3"]
        client = await tuned(node)
        client.send(Connection.TuneOk(0, 0, 0), Connection.Open("other"))
        assert (await client.connection_error()).reply_code == ReplyCode.INVALID_PATH


async def test_methods_out_of_order(tmp_path: Path) -> None:
    """503 command-invalid; before the client is known, the connection ends without a word (2.2.4).
    connection.secure-ok: response.
    connection.close: reply-code, reply-text, class-id, method-id."""
    async with serving(tmp_path) as node:
        client = await started(node)
        client.send(Connection.Open("/"))
        assert await client.closed()
        client = await tuned(node)
        client.send(Connection.Open("/"))
        assert (await client.connection_error()).reply_code == ReplyCode.COMMAND_INVALID
        client = await RawClient.connect(node.port)
        client.send(Connection.Open("/"))
        error = await client.connection_error()
        assert error.reply_code == ReplyCode.COMMAND_INVALID
        assert (error.class_id, error.method_id) == (10, 40)
        assert error.reply_text.startswith("COMMAND_INVALID - ")
        client = await RawClient.connect(node.port)
        client.send(Connection.SecureOk("x"))
        assert (await client.connection_error()).reply_code == ReplyCode.COMMAND_INVALID


async def test_frames_where_they_do_not_belong(tmp_path: Path) -> None:
    """501 frame-error, 503 command-invalid, 504 channel-error (sections 2.3.5 and 4.2.3)."""
    bad = {
        b"\x08\0\x01\0\0\0\0\xce": ReplyCode.FRAME_ERROR,
        b"\x08\0\0\0\0\0\x01x\xce": ReplyCode.FRAME_ERROR,
        b"\x05\0\x01\0\0\0\x01x\xce": ReplyCode.FRAME_ERROR,
        b"\x03\0\x00\0\0\0\x01x\xce": ReplyCode.CHANNEL_ERROR,
        b"\x03\0\x09\0\0\0\x01x\xce": ReplyCode.CHANNEL_ERROR,
        b"\x01\0\x01\0\0\0\x01x\x00": ReplyCode.FRAME_ERROR,
        write_method(commands.Channel.Open(), 0): ReplyCode.COMMAND_INVALID,
        write_method(Connection.Close(200, "", 0, 0), 1): ReplyCode.COMMAND_INVALID,
        write_method(commands.Basic.Ack(1), 9): ReplyCode.CHANNEL_ERROR,
        write_method(commands.Channel.Open(), 1): ReplyCode.CHANNEL_ERROR,
        write_method(commands.Basic.Deliver("t", 1, False, "", ""), 1): ReplyCode.COMMAND_INVALID,
        b"\x01\0\x01\0\0\0\x04\0\x99\0\x01\xce": ReplyCode.COMMAND_INVALID,
        b"\x01\0\x01\0\0\0\x04\0\x3c\0\xff\xce": ReplyCode.NOT_IMPLEMENTED,
        b"\x01\0\x01\0\0\0\x05\0\x3c\0\x50x\xce": ReplyCode.SYNTAX_ERROR,
    }
    async with serving(tmp_path) as node:
        for data, code in bad.items():
            client = await RawClient.connect(node.port)
            client.send(data)
            assert (await client.connection_error()).reply_code == code, data
        assert node.counters.amqp_connection_errors == len(bad)


async def test_close_is_answered_when_what_came_before_is_durable(tmp_path: Path) -> None:
    """connection.close, connection.close-ok: a publisher without confirms knows then that it is stored."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        client.publish("plant.1.a", b"21")
        client.send(Connection.Close(200, "bye", 0, 0))
        await client.expect(Connection.CloseOk)
        assert node.log.durable_end(node.log.streams()["telemetry"]) == 1


async def test_who_does_not_answer_connection_close_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.edge_node.servers.amqp.connection.CLOSE_S_MAX", 0.1)
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        client.send(b"\x03\0\x00\0\0\0\x01x\xce")
        await client.expect(Connection.Close)
        assert await client.closed()


@pytest.mark.slow  # intervals are whole seconds
async def test_heartbeats_are_sent_and_expected(tmp_path: Path) -> None:
    """Heartbeat frames, section 4.2.7: sent at half the interval, and the client is given up after two of them."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port, heartbeat=1)
        beats = 0
        while (frame := await client.frame(heartbeats=True)) is not None:
            assert frame.kind == 8
            beats += 1
        assert beats
        assert node.node.counters.keep_alive_timeouts == 1


async def test_the_node_says_so_when_it_stops(tmp_path: Path) -> None:
    """320 connection-forced."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        node.close()
        assert (await client.expect(Connection.Close)).reply_code == ReplyCode.CONNECTION_FORCED


async def test_a_user_that_is_removed_is_sent_away(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port, user=b"ann")
        other = await RawClient.connect(node.port, user=b"bob")
        node.authenticator.removed.add("ann")
        node.amqp.permissions_changed()
        assert (await client.connection_error()).reply_code == ReplyCode.CONNECTION_FORCED
        await other.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)


# --- A whole node and pika over TLS: users, certificates, access rules, and users that are removed


PASSWORD = "a secret of press-7"


@pytest.fixture
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


@pytest.mark.usefixtures("_look_soon")
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


@pytest.mark.usefixtures("_look_soon")
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
