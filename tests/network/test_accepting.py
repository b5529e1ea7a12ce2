"""Accepting: every kind of socket, proxies, TLS, and what those do who mean harm."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import os
import resource
import socket
import ssl
import struct
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.network.echo import EchoListener, echoing
from tests.support.certificates import Authority, Pem
from tests.support.speed import Stopwatch
from tests.support.waiting import PATIENCE_S, until
from weft.config.units import UnixSocket
from weft.network.accepting import (
    PREFIX_BYTES,
    SIGNATURE,
    BadProxyHeader,
    ProxiedAddress,
    body_length,
    source,
    source_of_line,
)
from weft.network.admission import AdmissionLimits
from weft.network.tls import TlsFiles, TlsUnusable, common_name, server_context

# --- PROXY headers of both versions: what haproxy sends, and what must never pass


INET = bytes([192, 0, 2, 7, 198, 51, 100, 1]) + struct.pack("!HH", 50_312, 1883)
INET6 = bytes.fromhex("20010db8" + "00" * 11 + "07" + "20010db8" + "00" * 11 + "01") + struct.pack("!HH", 1, 8883)
TLV = b"\x20\x00\x05\x01\0\0\0\0"


def header(body: bytes = INET, command: int = 0x21, family: int = 0x11, length: int | None = None) -> bytes:
    """A header, which is right unless an argument makes it wrong."""
    return SIGNATURE + struct.pack("!BBH", command, family, len(body) if length is None else length) + body


def parse(data: bytes) -> ProxiedAddress | None:
    length = body_length(data[:PREFIX_BYTES])
    return source(data[:PREFIX_BYTES], data[PREFIX_BYTES : PREFIX_BYTES + length])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (header(), ProxiedAddress("192.0.2.7", 50_312)),
        (header(INET + TLV), ProxiedAddress("192.0.2.7", 50_312)),
        (header(INET6, family=0x21), ProxiedAddress("2001:db8::7", 1)),
        (header(b"", command=0x20, family=0), None),
        (header(INET, command=0x20), None),
    ],
)
def test_vectors(data: bytes, expected: ProxiedAddress | None) -> None:
    assert parse(data) == expected


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x10\x0e\x00\x04MQTT\x04\x02\x00<\x00\x02ab", "expected a PROXY header of version 1 or 2"),
        (header()[:15], "expected a PROXY header of version 1 or 2"),
        (header(command=0x11), "expected version 2 and the command"),
        (header(command=0x22), "expected version 2 and the command"),
        (header(family=0x12), "expected TCP over IPv4 or IPv6, got 0x12"),
        (header(family=0x31), "expected TCP over IPv4 or IPv6, got 0x31"),
        (header(b"", family=0), "expected TCP over IPv4 or IPv6, got 0x00"),
        (header(INET[:11]), "the addresses are cut short"),
        (header(INET6[:35], family=0x21), "the addresses are cut short"),
        (header(INET, length=13), "the header is cut short"),
        (header(length=65_535), "at most 2048 are read"),
    ],
)
def test_rejects(data: bytes, error: str) -> None:
    with pytest.raises(BadProxyHeader, match=error):
        parse(data)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 50312 1883\r\n", ProxiedAddress("192.0.2.7", 50_312)),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 0 8883\r\n", ProxiedAddress("2001:db8::7", 0)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    ],
)
def test_lines_of_version_1(line: bytes, expected: ProxiedAddress | None) -> None:
    assert source_of_line(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        b"PROXY TCP4 192.0.2.7 198.51.100.1 5\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 5 6 7\r\n",
        b"PROXY TCP4  192.0.2.7 198.51.100.1 5 6\r\n",
        b"PROXY UDP4 192.0.2.7 198.51.100.1 5 6\r\n",
        b"PROXY TCP4 2001:db8::7 2001:db8::1 5 6\r\n",
        b"PROXY TCP6 192.0.2.7 198.51.100.1 5 6\r\n",
        b"PROXY TCP6 fe80::1%eth0 fe80::2 5 6\r\n",
        b"PROXY TCP4 192.0.2.007 198.51.100.1 5 6\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 6\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 05 6\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 -5 6\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 5 \xb26\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 5 6\n",
        b"PROXY UNKNOWNS\r\n",
        b"PROXY \r\n",
    ],
)
def test_a_line_is_taken_as_the_specification_writes_it_alone(line: bytes) -> None:
    with pytest.raises(BadProxyHeader, match=r"PROXY|version 1"):
        source_of_line(line)


@given(st.binary(max_size=107))
def test_any_line_is_a_source_or_an_error(line: bytes) -> None:
    for data in (line, b"PROXY TCP4 " + line + b"\r\n"):
        with contextlib.suppress(BadProxyHeader):
            assert isinstance(source_of_line(data), ProxiedAddress | None)


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_any_bytes_are_a_source_or_an_error(prefix: bytes, body: bytes) -> None:
    for data in (prefix + body, SIGNATURE + prefix + body):
        with contextlib.suppress(BadProxyHeader):
            assert isinstance(parse(data), ProxiedAddress | None)


# --- accepting


LOOPBACK = (ip_network("127.0.0.0/8"),)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pem:
    return authority.sign("node")


def client_context(authority: Authority, client: Pem | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.path)
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


def proxied_from(host: str, port: int = 1) -> bytes:
    return header(socket.inet_aton(host) * 2 + struct.pack("!HH", port, 1883))


async def proxied(listener: EchoListener, host: str) -> bool:
    """Whether a client that a proxy says is at ``host`` is let in, where it stays."""
    reader, writer = await listener.open()
    writer.write(proxied_from(host) + b"hello")
    listener.clients.append(writer)
    try:
        return await reader.read(5) == b"hello"
    except ConnectionError:
        return False


# --- the kinds of sockets


async def test_tcp() -> None:
    async with echoing() as listener:
        assert await listener.works()
        await until(lambda: listener.counters.connections == 0)
        assert listener.counters.connections_accepted == 1


async def test_a_host_name_is_bound_at_every_address_of_it_on_one_port() -> None:
    from weft.config.units import Address

    async with echoing(bind=Address("localhost", 0)) as listener:
        assert await listener.works()


async def test_an_address_that_is_taken_is_named() -> None:
    async with echoing() as listener:
        with pytest.raises(OSError, match=r"cannot listen at 127\.0\.0\.1:\d+: address already in use"):
            async with echoing(bind=listener.acceptor.bound):
                pass


async def test_a_unix_socket_is_for_its_group_and_goes_with_the_listener(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    for _ in range(2):  # the second time, in place of one that was left behind
        async with echoing(bind=UnixSocket(str(path))) as listener:
            assert path.stat().st_mode & 0o777 == 0o660
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            assert listener.echoes[0].connection.is_local
            writer.close()
            with pytest.raises(OSError, match="address already in use"):
                async with echoing(bind=UnixSocket(str(path))):
                    pass
        assert not path.exists()
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(path))


async def test_a_file_that_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    path.write_text("precious")
    with pytest.raises(OSError, match="address already in use"):
        async with echoing(bind=UnixSocket(str(path))):
            pass
    assert path.read_text() == "precious"


# --- TLS


async def test_tls(authority: Authority, server: Pem) -> None:
    async with echoing(tls=server_context(TlsFiles(certificate=server.certificate, key=server.key))) as listener:
        assert await listener.works(ssl=client_context(authority))
        assert common_name(listener.echoes[0].transport.get_extra_info("peercert")) is None


async def test_much_over_tls_on_many_connections_at_once(authority: Authority, server: Pem) -> None:
    """They share a buffer, and nothing of one comes to another."""

    async def echoed(listener: EchoListener, fill: bytes) -> bool:
        reader, writer = await listener.open(ssl=client_context(authority))
        sent = fill * 300_000
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_S):
            received = await reader.readexactly(len(sent))
        writer.close()
        return received == sent

    async with echoing(tls=server_context(TlsFiles(certificate=server.certificate, key=server.key))) as listener:
        assert all(await asyncio.gather(*(echoed(listener, bytes([n])) for n in range(8))))


async def test_client_certificates(authority: Authority, server: Pem, tmp_path: Path) -> None:
    files = TlsFiles(certificate=server.certificate, key=server.key, client_ca=authority.path)
    async with echoing(tls=server_context(files)) as listener:
        assert await listener.works(ssl=client_context(authority, authority.sign("press-7")))
        assert common_name(listener.echoes[0].transport.get_extra_info("peercert")) == "press-7"
        stranger = Authority(tmp_path, "stranger").sign("press-7")
        for context in (client_context(authority), client_context(authority, stranger)):
            assert not await works_after_all(listener, context)
        await until(lambda: listener.listener_counters.handshakes_failed == 2)
        await until(lambda: listener.counters.connections == 0)


async def works_after_all(listener: EchoListener, context: ssl.SSLContext) -> bool:
    """With TLS 1.3 a client learns of its refusal only when it reads."""
    try:
        return await listener.works(ssl=context)
    except (ssl.SSLError, ConnectionError):
        return False


async def test_a_certificate_without_one_common_name_names_nobody(authority: Authority, server: Pem) -> None:
    files = TlsFiles(certificate=server.certificate, key=server.key, client_ca=authority.path)
    async with echoing(tls=server_context(files)) as listener:
        assert await listener.works(ssl=client_context(authority, authority.sign("", "nameless")))
        assert common_name(listener.echoes[0].transport.get_extra_info("peercert")) is None


@pytest.mark.parametrize("broken", ["certificate", "key", "client_ca"])
def test_files_that_cannot_be_used_are_named(authority: Authority, server: Pem, tmp_path: Path, broken: str) -> None:
    files: dict[str, Any] = {"certificate": server.certificate, "key": server.key, "client_ca": authority.path}
    for path in (str(tmp_path / "missing.pem"), str(tmp_path / "bad.pem")):
        (tmp_path / "bad.pem").write_text("no PEM")
        with pytest.raises(TlsUnusable, match=path):
            server_context(TlsFiles(**files | {broken: path}))
    with pytest.raises(TlsUnusable, match="do not belong together"):
        server_context(TlsFiles(**files | {"key": authority.sign("another").key}))


async def test_a_new_certificate_is_for_new_connections(authority: Authority, server: Pem) -> None:
    def serial(writer: asyncio.StreamWriter) -> Any:
        return writer.get_extra_info("peercert")["serialNumber"]

    async with echoing(tls=server_context(TlsFiles(certificate=server.certificate, key=server.key))) as listener:
        reader, writer = await listener.open(ssl=client_context(authority))
        renewed = authority.sign("renewed")
        listener.acceptor.tls = server_context(TlsFiles(certificate=renewed.certificate, key=renewed.key))
        _, new_writer = await listener.open(ssl=client_context(authority))
        assert serial(writer) != serial(new_writer)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        for each in (writer, new_writer):
            each.transport.abort()


# --- proxies


HEADERS = pytest.mark.parametrize(
    "from_proxy",
    [proxied_from("192.0.2.7", 50_312), b"PROXY TCP4 192.0.2.7 127.0.0.1 50312 1883\r\n"],
    ids=["version 2", "version 1"],
)


@HEADERS
@pytest.mark.parametrize("piece", [1, 1000])
async def test_a_trusted_proxy_says_where_a_client_is(from_proxy: bytes, piece: int) -> None:
    async with echoing(proxies=LOOPBACK) as listener:
        reader, writer = await listener.open()
        data = from_proxy + b"hello"
        for at in range(0, len(data), piece):
            writer.write(data[at : at + piece])
            await writer.drain()
        assert await reader.readexactly(5) == b"hello"
        (echo,) = listener.echoes
        assert echo.transport.get_extra_info("peername") == ("192.0.2.7", 50_312)
        assert echo.connection.name == "192.0.2.7:50312"
        assert not echo.connection.is_local
        writer.close()


@HEADERS
async def test_tls_may_follow_the_proxy_header(authority: Authority, server: Pem, from_proxy: bytes) -> None:
    tls = server_context(TlsFiles(certificate=server.certificate, key=server.key))
    async with echoing(tls=tls, proxies=LOOPBACK) as listener:
        connection = socket.create_connection(("127.0.0.1", listener.port))
        connection.sendall(from_proxy)
        options: dict[str, Any] = {"sock": connection, "ssl": client_context(authority), "server_hostname": "127.0.0.1"}
        reader, writer = await asyncio.open_connection(**options)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert listener.echoes[0].transport.get_extra_info("peername")[0] == "192.0.2.7"
        writer.transport.abort()


@pytest.mark.parametrize("from_proxy", [header(b"", command=0x20, family=0), b"PROXY UNKNOWN\r\n"])
async def test_a_proxy_may_speak_for_itself(from_proxy: bytes) -> None:
    async with echoing(proxies=LOOPBACK) as listener:
        reader, writer = await listener.open()
        writer.write(from_proxy + b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert listener.echoes[0].connection.is_local
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00<\x00\x00....",
        header(b"short"),
        header()[:20],
        b"PROXY TCP4 192.0.2.7 127.0.0.1 5 1883",
        b"PROXY TCP4 192.0.2.7\r\n",
        b"PROXY UNKNOWN ".ljust(106) + b"\r\n",
    ],
)
async def test_what_is_no_proxy_header_goes_no_further(data: bytes) -> None:
    async with echoing(proxies=LOOPBACK) as listener:
        reader, writer = await listener.open()
        writer.write(data)
        writer.write_eof()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        await until(lambda: listener.counters.connections == 0)
        assert (listener.listener_counters.proxy_headers_refused, listener.echoes) == (1, [])
        writer.close()


async def test_who_is_no_trusted_proxy_goes_no_further() -> None:
    async with echoing(proxies=(ip_network("192.0.2.0/24"),)) as listener:
        assert not await proxied(listener, "127.0.0.1")
        assert (listener.listener_counters.proxy_headers_refused, listener.echoes) == (1, [])


# --- bounds


async def test_an_address_that_floods_is_refused_and_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    limits = AdmissionLimits(connection_rate_per_address=1, connection_burst_per_address=5)
    async with echoing(limits=limits, proxies=LOOPBACK) as listener:
        let_in = [await proxied(listener, "192.0.2.7") for _ in range(20)]
        assert let_in == [True] * 5 + [False] * 15
        assert await proxied(listener, "192.0.2.8")
        assert listener.listener_counters.connections_rate_limited == 15
        assert caplog.text.count("refused 192.0.2.7") == 1


async def test_one_address_has_only_so_many_connections() -> None:
    async with echoing(limits=AdmissionLimits(connections_per_address_max=3), proxies=LOOPBACK) as listener:
        assert [await proxied(listener, "192.0.2.7") for _ in range(4)] == [True, True, True, False]
        assert await proxied(listener, "192.0.2.8")
        listener.echoes[0].transport.abort()
        await until(lambda: "lost" in listener.echoes[0].calls)
        assert await proxied(listener, "192.0.2.7")


async def test_who_says_nothing_is_closed_in_time(authority: Authority, server: Pem) -> None:
    tls = server_context(TlsFiles(certificate=server.certificate, key=server.key))
    for options in ({}, {"tls": tls}, {"proxies": LOOPBACK}):
        async with echoing(limits=AdmissionLimits(connect_timeout_s=0.2), **options) as listener:
            stopwatch = Stopwatch()
            silent = [await listener.open() for _ in range(20)]
            for reader, writer in silent:
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
                writer.close()
            assert stopwatch.seconds() < 5
            await until(lambda: listener.counters.connections == 0)
            assert listener.counters.connect_timeouts + listener.listener_counters.handshakes_failed == 20
            assert listener.listener_counters.connections_half_open == 0


async def test_who_gives_way_as_soon_as_accepted_is_closed_without_a_garbage_collection() -> None:
    """The loop comes to none of them before the next ones are there."""
    clients: list[socket.socket] = []
    gc.collect()
    gc.disable()
    try:
        async with echoing(limits=AdmissionLimits(half_open_max=10)) as listener:
            port = listener.port
            clients += [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
            await until(lambda: listener.counters.connections_accepted == 60)
            for each in clients[:50]:
                each.settimeout(PATIENCE_S)
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.to_thread(each.recv, 1) == b""
            assert listener.listener_counters.connections_half_open == 10
    finally:
        gc.enable()
        for each in clients:
            each.close()


async def test_who_leaves_within_the_handshake_is_logged_with_that_reason(
    server: Pem, caplog: pytest.LogCaptureFixture
) -> None:
    tls = server_context(TlsFiles(certificate=server.certificate, key=server.key))
    async with echoing(tls=tls) as listener:
        _, writer = await listener.open()
        writer.close()
        await until(lambda: "no connection with" in caplog.text)
        assert [each.getMessage() for each in caplog.records if each.getMessage().rstrip().endswith(":")] == []


async def test_half_open_connections_give_way_to_newer_ones(
    authority: Authority, server: Pem, caplog: pytest.LogCaptureFixture
) -> None:
    tls = server_context(TlsFiles(certificate=server.certificate, key=server.key))
    async with echoing(tls=tls, limits=AdmissionLimits(half_open_max=10)) as listener:
        reader, writer = await listener.open(ssl=client_context(authority))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        never_finished = [await listener.open() for _ in range(200)]
        await until(lambda: listener.counters.connections_accepted == 201)
        assert listener.listener_counters.connections_half_open <= 10
        assert listener.listener_counters.half_open_evicted >= 190
        assert caplog.text.count("limits.half_open") == 1
        assert await listener.works(ssl=client_context(authority)), "a good client is let in meanwhile"
        writer.write(b"still")
        assert await reader.readexactly(5) == b"still"
        for _, each in (*never_finished, (reader, writer)):
            each.transport.abort()


@contextlib.contextmanager
def only_so_many_files(more: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    # The limit is on numbers, and what other tests have closed left free ones among those in use.
    free = (number for number in itertools.count() if number not in used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, more, None)), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_without_file_descriptors_accepting_pauses_and_resumes(caplog: pytest.LogCaptureFixture) -> None:
    async with echoing() as listener:
        reader, writer = await listener.open()
        clients = [socket.socket() for _ in range(20)]
        for client in clients:
            client.setblocking(False)
        with only_so_many_files(5):
            for client in clients:
                client.connect_ex(("127.0.0.1", listener.port))
            await until(lambda: listener.listener_counters.accept_pauses > 0)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello", "who is connected is not harmed"
        assert caplog.text.count("has stopped accepting for now") == 1
        await until(lambda: listener.counters.connections_accepted == 21)
        for client in clients:
            client.close()
        assert await listener.works()
        writer.close()


async def test_addresses_of_one_ipv6_network_are_one() -> None:
    async with echoing(limits=AdmissionLimits(connections_per_address_max=1)) as listener:
        first = listener.admission.arrive("2001:db8::1", "a")
        assert first is not None
        assert listener.admission.arrive("2001:db8::2", "b") is None
        other = listener.admission.arrive("2001:db8:0:1::1", "c")
        assert other is not None
        for connection in (first, other):
            listener.admission.leave(connection)
        mapped = listener.admission.arrive("::ffff:127.0.0.1", "d")
        assert mapped is not None
        assert mapped.is_local
        listener.admission.leave(mapped)


async def test_rates_of_many_addresses_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.network.admission.ADDRESSES_MAX", 100)
    async with echoing() as listener:
        for number in range(1000):
            connection = listener.admission.arrive(f"10.0.{number >> 8}.{number & 255}", "x")
            assert connection is not None
            listener.admission.leave(connection)
        assert len(listener.admission._due) <= 100


async def test_nothing_secret_is_logged(authority: Authority, server: Pem, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with echoing(proxies=LOOPBACK) as listener:
        reader, writer = await listener.open()
        writer.write(b"\x10\x1d\x00\x04MQTT\x04\xc2\x00<\x00\x00\x00\x04user\x00\x07hunter2")
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
    assert "hunter2" not in caplog.text
