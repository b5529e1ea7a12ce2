"""A client whose TLS handshake fails gets an alert, and not a bare reset. With clients as they are."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.network.echo import EchoListener, echoing
from tests.support.certificates import Authority, Pem
from tests.support.waiting import PATIENCE_S, until
from weft.network.tls import TlsFiles, server_context

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
