"""A client without a login may send TLS records without data, such as KeyUpdates, but not without end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.network.echo import EchoListener, echoing
from tests.support.certificates import Authority
from tests.support.speed import slowness, uncollected
from tests.support.tls_records import RecordClient
from tests.support.waiting import PATIENCE_S
from weft.network.tls import AT_ONCE, HANDSHAKE_RECORDS_MAX, WITHOUT_DATA_BURST, TlsFiles, server_context

FLOOD = 4_000
"""KeyUpdates of 108 kB, which OpenSSL alone works through in one read."""
ANSWER_BYTES = 27


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def tls(authority: Authority) -> ssl.SSLContext:
    server = authority.sign("node")
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
def pair(tls: ssl.SSLContext, authority: Authority, tmp_path: Path) -> Pair:
    return Pair(tls, authority, tmp_path)


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


def test_a_handshake_in_crumbs_ends(tls: ssl.SSLContext) -> None:
    greeting = b"\1\0\xff\xff" + bytes(2 * HANDSHAKE_RECORDS_MAX)  # a ClientHello of 64 KiB begins
    crumbs = b"".join(b"\x16\3\1\0\1" + greeting[at : at + 1] for at in range(len(greeting)))
    incoming = ssl.MemoryBIO()
    incoming.write(crumbs)
    with pytest.raises(ssl.SSLError, match="its handshake has more than"):
        tls.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()


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
    tls: ssl.SSLContext, authority: Authority, tmp_path: Path, flood: Callable[[RecordClient], bytes]
) -> None:
    best = float("inf")
    with uncollected():
        for number in range(5):
            pair = Pair(tls, authority, tmp_path, str(number))
            pair.incoming.write(sent := flood(pair.client))
            began = time.thread_time()
            with contextlib.suppress(ssl.SSLError):
                pair.read()
            best = min(best, (time.thread_time() - began) / slowness() / (len(sent) / 1024))
            if best < WIRE_S_MAX:
                return
    raise AssertionError(f"{best * 1e3:.2f} ms for each KiB on the wire")


async def test_a_listener_ends_such_a_connection_and_serves_others(
    tls: ssl.SSLContext, authority: Authority, tmp_path: Path
) -> None:
    async with echoing(tls=tls) as listener:
        await flooded(listener, RecordClient(authority.path, tmp_path / "keys"))
        good = ssl.create_default_context(cafile=authority.path)
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
