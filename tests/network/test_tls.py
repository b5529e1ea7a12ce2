"""A client whose TLS handshake fails gets an alert, and not a bare reset. With clients as they are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from tests.network.echo import EchoListener, echoing
from tests.support.certificates import Authority, Pem, RecordClient
from tests.support.speed import slowness, uncollected
from tests.support.waiting import PATIENCE_S, until
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node import preflight
from weft.edge_node.check.rules import check
from weft.network.tls import (
    AT_ONCE,
    HANDSHAKE_RECORDS_MAX,
    WITHOUT_DATA_BURST,
    CertificateName,
    TlsFiles,
    TlsUnusable,
    certificate_name,
    read_lists,
    revoked_by,
    server_context,
)

FIRST_PACKET = b"\x10\x0c\x00\x04MQTT\x04\x02\x00<\x00\x00" * 1000
"""Clients send CONNECT before they know whether their certificate is good: with TLS 1.3 the server answers later."""
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
MISSING = {"1.2": "SSLV3_ALERT_HANDSHAKE_FAILURE", "1.3": "TLSV13_ALERT_CERTIFICATE_REQUIRED"}

Certificate = Callable[[Authority, Path], Pem | None]
BAD: dict[str, tuple[Certificate, str]] = {
    "unknown": (lambda _, folder: Authority(folder, "stranger").sign("press-7"), "TLSV1_ALERT_UNKNOWN_CA"),
    "expired": (lambda ours, _: ours.sign("press-7", "expired", expired=True), "SSLV3_ALERT_CERTIFICATE_EXPIRED"),
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> ssl.SSLContext:
    server = authority.sign("node")
    return server_context(TlsFiles(certificate=server.certificate, key=server.key, client_ca=authority.path))


def reason(listener: EchoListener, authority: Authority, version: str, client: Pem | None) -> str:
    """Return the error that a blocking client of Python's ``ssl`` gets."""
    context = ssl.create_default_context(cafile=authority.path)
    context.minimum_version = context.maximum_version = VERSIONS[version]
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    with socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE_S) as connection:
        try:
            with context.wrap_socket(connection, server_hostname="127.0.0.1") as secured:
                secured.sendall(FIRST_PACKET)
                return f"read {secured.recv(100)!r}"
        except ssl.SSLError as error:
            return error.reason
        except OSError as error:
            return repr(error)


async def ask(listener: EchoListener, authority: Authority, version: str, client: Pem | None) -> list[str]:
    """Several at a time, so that a reset which overtakes an alert would show."""
    said = await asyncio.gather(*(asyncio.to_thread(reason, listener, authority, version, client) for _ in range(8)))
    await until(lambda: listener.counters.connections == 0)
    return list(set(said))


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_client_without_a_certificate(authority: Authority, tls: ssl.SSLContext, version: str) -> None:
    async with echoing(tls=tls) as listener:
        assert await ask(listener, authority, version, None) == [MISSING[version]]
        assert listener.listener_counters.handshakes_failed == 8
        assert await listener.works(ssl=good(authority)), "others are let in"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("bad", BAD)
async def test_a_client_with_a_bad_certificate(
    authority: Authority, tls: ssl.SSLContext, tmp_path: Path, bad: str, version: str
) -> None:
    make, expected = BAD[bad]
    async with echoing(tls=tls) as listener:
        assert await ask(listener, authority, version, make(authority, tmp_path)) == [expected]


def good(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.path)
    client = authority.sign("good")
    context.load_cert_chain(client.certificate, client.key)
    return context


@pytest.mark.parametrize(("version", "alert"), [("1_2", "alert number 40"), ("1_3", "alert number 116")])
async def test_openssl(authority: Authority, tls: ssl.SSLContext, version: str, alert: str) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    async with echoing(tls=tls) as listener:
        address, version = f"127.0.0.1:{listener.port}", f"-tls{version}"
        command = [openssl, "s_client", "-connect", address, version, "-CAfile", authority.path, "-quiet"]
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert alert in done.stderr


async def test_who_fails_and_stays_is_closed_and_leaves_nothing(
    authority: Authority, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of failing handshakes holds connections for a moment and not longer."""
    monkeypatch.setattr("weft.network.tls.LINGER_S", 0.2)
    files = len(os.listdir("/proc/self/fd"))
    async with echoing(tls=tls) as listener:
        context = ssl.create_default_context(cafile=authority.path)

        def stay() -> ssl.SSLSocket:  # with TLS 1.3 its handshake is done before the server has said no
            return context.wrap_socket(
                socket.create_connection(("127.0.0.1", listener.port)), server_hostname="127.0.0.1"
            )

        clients = [await asyncio.to_thread(stay) for _ in range(20)]
        assert await listener.works(ssl=good(authority))
        await until(lambda: listener.counters.connections == 0)
        assert listener.listener_counters.handshakes_failed == 20
        for client in clients:
            client.close()
    await until(lambda: len(os.listdir("/proc/self/fd")) <= files + 1)


async def test_what_is_no_tls_at_all(tls: ssl.SSLContext) -> None:
    async with echoing(tls=tls) as listener:
        assert not await listener.works()
        await until(lambda: listener.counters.connections == 0)


# --- A client without a login may send TLS records without data, such as KeyUpdates, but not without end


FLOOD = 4_000
"""KeyUpdates of 108 kB, which OpenSSL alone works through in one read."""
ANSWER_BYTES = 27


@pytest.fixture
def records_authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def records_tls(records_authority: Authority) -> ssl.SSLContext:
    server = records_authority.sign("node")
    return server_context(TlsFiles(certificate=server.certificate, key=server.key))


class Pair:
    """A client and a server's end that has shaken hands with it, without a socket."""

    def __init__(self, tls: ssl.SSLContext, authority: Authority, tmp_path: Path, name: str = "keys") -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = tls.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.client = RecordClient(authority.path, tmp_path / name)
        done = False
        while not done:
            done = self.client.shake_hands()
            self.incoming.write(self.client.out.read())
            try:
                self.server.do_handshake()
            except ssl.SSLWantReadError:
                pass
            self.client.received.write(self.outgoing.read())

    def read(self) -> bytes:
        """Everything that the server's end can read, as asyncio and uvloop read it."""
        got, buffer = b"", memoryview(bytearray(1 << 10))
        try:
            while size := int(self.server.read(len(buffer), buffer)):  # type: ignore[call-overload,unused-ignore]
                got += bytes(buffer[:size])
        except ssl.SSLWantReadError:
            pass
        return got


@pytest.fixture
def pair(records_tls: ssl.SSLContext, records_authority: Authority, tmp_path: Path) -> Pair:
    return Pair(records_tls, records_authority, tmp_path)


def test_a_flood_of_key_updates_ends_at_once(pair: Pair) -> None:
    pair.incoming.write(pair.client.key_updates(FLOOD, answered=True))
    with pytest.raises(ssl.SSLError, match="carry no data"):
        pair.read()
    assert pair.outgoing.pending <= (WITHOUT_DATA_BURST + AT_ONCE) * ANSWER_BYTES, "no more of them were looked at"


def test_a_little_data_between_them_does_not_help(pair: Pair) -> None:
    for _ in range(20):
        pair.incoming.write(pair.client.key_updates(WITHOUT_DATA_BURST // 4) + pair.client.data(b"x"))
    with pytest.raises(ssl.SSLError, match="carry no data"):
        pair.read()


def test_some_of_them_are_taken(pair: Pair) -> None:
    pair.incoming.write(pair.client.key_updates(WITHOUT_DATA_BURST // 2))
    pair.incoming.write(pair.client.data(b"before") + pair.client.key_updates(1) + pair.client.data(b" and after"))
    assert pair.read() == b"before and after"


def test_records_come_whole_however_they_are_cut(pair: Pair) -> None:
    random = Random(7)
    parts = [random.randbytes(random.choice((1, 30, 1_500, 1 << 14))) for _ in range(400)]
    sent, got = b"".join(pair.client.data(part) for part in parts), b""
    while sent:
        cut = random.choice((1, 4, 5, 6, 100, 20_000, 200_000))
        pair.incoming.write(sent[:cut])
        sent = sent[cut:]
        got += pair.read()
    assert got == b"".join(parts)


def test_a_handshake_in_crumbs_ends(records_tls: ssl.SSLContext) -> None:
    greeting = b"\1\0\xff\xff" + bytes(2 * HANDSHAKE_RECORDS_MAX)  # a ClientHello of 64 KiB begins
    crumbs = b"".join(b"\x16\3\1\0\1" + greeting[at : at + 1] for at in range(len(greeting)))
    incoming = ssl.MemoryBIO()
    incoming.write(crumbs)
    with pytest.raises(ssl.SSLError, match="its handshake has more than"):
        records_tls.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()


WIRE_S_MAX = 0.000_25
"""Longest processor time for each KiB of ciphertext, on the machine of the budgets. One-byte records take a third."""
FLOODS: dict[str, Callable[[RecordClient], bytes]] = {
    "key updates": lambda client: client.key_updates(FLOOD),
    "key updates that ask for an answer": lambda client: client.key_updates(FLOOD, answered=True),
    "key updates among data": lambda client: b"".join(
        client.key_updates(9) + client.data(b"x") for _ in range(FLOOD // 10)
    ),
    "data of one byte": lambda client: b"".join(client.data(b"x") for _ in range(FLOOD)),
    "data of no byte": lambda client: b"".join(client.data(b"") for _ in range(FLOOD)),
    "long data": lambda client: b"".join(client.data(bytes(1 << 14)) for _ in range(16)),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_records_of_every_kind_cost_little_for_their_bytes(
    records_tls: ssl.SSLContext, records_authority: Authority, tmp_path: Path, flood: Callable[[RecordClient], bytes]
) -> None:
    best = float("inf")
    with uncollected():
        for number in range(5):
            pair = Pair(records_tls, records_authority, tmp_path, str(number))
            pair.incoming.write(sent := flood(pair.client))
            began = time.thread_time()
            with contextlib.suppress(ssl.SSLError):
                pair.read()
            best = min(best, (time.thread_time() - began) / slowness() / (len(sent) / 1024))
            if best < WIRE_S_MAX:
                return
    raise AssertionError(f"{best * 1e3:.2f} ms for each KiB on the wire")


async def test_a_listener_ends_such_a_connection_and_serves_others(
    records_tls: ssl.SSLContext, records_authority: Authority, tmp_path: Path
) -> None:
    async with echoing(tls=records_tls) as listener:
        await flooded(listener, RecordClient(records_authority.path, tmp_path / "keys"))
        good = ssl.create_default_context(cafile=records_authority.path)
        assert await listener.works(ssl=good)


async def flooded(listener: EchoListener, client: RecordClient) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    async with asyncio.timeout(PATIENCE_S):
        while not client.shake_hands():
            writer.write(client.out.read())
            client.received.write(await reader.read(1 << 16))
        writer.write(client.out.read() + client.data(b"a"))
        await reader.readexactly(1)
        writer.write(client.key_updates(100))
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):  # until it ends
                pass
    writer.close()


# --- Revocation lists: which certificates they name, and until when they count


def name_of(pem: Pem) -> CertificateName:
    certificate = x509.load_pem_x509_certificate(Path(pem.certificate).read_bytes())
    return certificate_name(certificate.public_bytes(Encoding.DER))


def test_a_list_names_certificates_of_its_own_authority(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ours, theirs = Authority(tmp_path), Authority(tmp_path / "other", "another")
    pems = [ours.sign(f"device-{number}") for number in range(100)]
    path = Path(ours.revoke(*pems[:80]))
    path.write_bytes(path.read_bytes() + Path(theirs.revoke()).read_bytes())
    first, second = read_lists(str(path))
    assert revoked_by([first, second]) == {name_of(pem) for pem in pems[:80]}
    assert not second.revoked
    assert name_of(theirs.sign("device-0")) not in first.revoked
    assert first.next_update is not None
    assert abs(first.next_update - datetime.now(UTC) - timedelta(days=1)) < timedelta(minutes=5)


def test_a_file_without_lists_is_an_error(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with pytest.raises(TlsUnusable, match="holds no revocation list in PEM"):
        read_lists(authority.path)
    with pytest.raises(TlsUnusable, match="there is no such file"):
        read_lists(str(tmp_path / "missing"))


@given(changes=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_damage_is_an_error_or_another_list(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[float, int]]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged lists"
    if not folder.exists():
        folder.mkdir()
        authority = Authority(folder)
        authority.revoke(authority.sign("device"))
    whole = bytearray((folder / "revoked.crl").read_bytes())
    for place, value in changes:
        whole[int(place * len(whole))] = value
    damaged = folder / "damaged.crl"
    damaged.write_bytes(bytes(whole))
    with contextlib.suppress(TlsUnusable):
        read_lists(str(damaged))


def test_a_check_says_that_a_list_is_out_of_date(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign("node")
    text = (
        "node: a\ndata_dir: data\nhttp: null\ndisk: {budget: 16MiB}\nstreams: {t: {from: t}}\n"
        "listeners:\n  mqtts:\n    bind: 127.0.0.1:0\n"
        "    tls: {certificate: node.crt, key: node.key, client_ca: authority.pem, crl_file: revoked.crl}\n"
    )
    config = parse(text, str(tmp_path / "edge.yaml"), EdgeConfig, check).config
    for expired in (False, True):
        authority.revoke(expired=expired)
        said = [finding.message for finding in preflight.look(config, (), datetime.now(UTC)).unfit]
        assert len(said) == expired
        assert all("every certificate of its authority is refused. Fetch the newest one" in each for each in said)
