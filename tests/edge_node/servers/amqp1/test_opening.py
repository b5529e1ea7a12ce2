"""Who is let in: SASL, and what is said to those who are not."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.edge_node.servers.amqp1.fuzz_frames import FRAMES
from tests.edge_node.servers.amqp1.harness import (
    AMQP,
    SASL,
    ConnectionException,
    Delivery,
    Message,
    Raw,
    SendException,
    amqp,
    in_thread,
)
from tests.support.certificates import Authority
from tests.support.waiting import PATIENCE_S
from weft.edge_node.access.identity import AccessDenied, Denial
from weft.edge_node.servers.amqp1 import connection as opening
from weft.edge_node.servers.amqp1 import context as parts
from weft.network.tls import TlsFiles, server_context
from weft.protocols import amqp1
from weft.protocols.amqp.typed_values import Symbol
from weft.protocols.amqp1 import encode


def sasl_init(mechanism: str, response: bytes) -> bytes:
    body = amqp1.described(0x41, amqp1.fields([encode(Symbol(mechanism)), encode(response)]))
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\0\0" + body


async def test_plain_gives_the_user(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client(mechanisms="PLAIN", user="ada", password="secret", allow_insecure_mechs=True)
        await in_thread(client.send, "plant/1/x", Message(body=b"1", user_id=b"ada"))
        (connection,) = node.parts.connections
        assert connection.identity.username == "ada"  # type: ignore[attr-defined]
        with pytest.raises(SendException) as refused:
            await in_thread(client.send, "plant/1/x", Message(body=b"1", user_id=b"another"))
        assert refused.value.state == Delivery.REJECTED
        await client.close()


async def test_wrong_passwords_are_refused(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        node.node.authenticator.refuse = AccessDenied(Denial.WRONG, "wrong password or no such user: 'ada'")
        with pytest.raises(ConnectionException, match=r"(?i)auth"):
            await node.client(mechanisms="PLAIN", user="ada", password="wrong", allow_insecure_mechs=True)


@pytest.mark.parametrize(
    ("mechanism", "response", "logged"),
    [
        ("SCRAM-SHA-256", b"n,,n=ada,r=x", "'SCRAM-SHA-256' was not offered; use one of PLAIN, ANONYMOUS"),
        ("EXTERNAL", b"", "'EXTERNAL' was not offered"),
        ("PLAIN", b"no zeros", "a response of PLAIN has a user name and a password"),
        ("PLAIN", b"another\0ada\0secret", "no user may act for another"),
    ],
)
async def test_what_is_no_login_has_an_outcome_and_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mechanism: str, response: bytes, logged: str
) -> None:
    async with amqp(tmp_path) as node:
        raw = await Raw.open(node.port)
        raw.writer.write(SASL + sasl_init(mechanism, response))
        assert (await raw.all()).endswith(b"\0\x53\x44\xc0\x03\x01\x50\x01")  # outcome 1: not authenticated
        assert logged in caplog.text
        assert "secret" not in caplog.text


async def test_a_client_without_sasl_that_is_refused_hears_why(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        node.node.authenticator.refuse = AccessDenied(Denial.NOT_ALLOWED, "clients without a user name are refused")
        raw = await Raw.open(node.port)
        raw.writer.write(AMQP)
        answer = await raw.all()
        assert answer.startswith(AMQP)
        assert b"amqp:unauthorized-access" in answer
        assert b"clients without a user name are refused" in answer


async def test_a_client_without_sasl_is_served_where_nobody_has_to_log_in(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client(sasl_enabled=False)
        await in_thread(client.send, "plant/1/x", Message(body=b"1"))
        assert len(await node.node.stored()) == 1
        await client.close()


async def test_passwords_are_checked_while_others_are_served(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        resume, authenticate = asyncio.Event(), node.node.authenticator.authenticate

        async def slow(credentials, transport, address):  # type: ignore[no-untyped-def]
            if credentials.username == "ada":
                await resume.wait()
            return await authenticate(credentials, transport, address)

        node.node.authenticator.authenticate = slow  # type: ignore[method-assign]
        raw = await Raw.open(node.port)
        raw.writer.write(SASL + sasl_init("PLAIN", b"\0ada\0secret"))
        client = await node.client()
        await in_thread(client.send, "plant/1/x", Message(body=b"1"))
        resume.set()
        async with asyncio.timeout(PATIENCE_S):
            answer = await raw.reader.readuntil(b"\0\x53\x44")
        assert answer.startswith(SASL)
        await client.close()
        raw.writer.close()


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "PLAIN"])
async def test_where_the_engine_is_missing_client_and_log_are_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mechanism: str
) -> None:
    monkeypatch.setattr(opening, "is_installed", lambda: False)
    async with amqp(tmp_path) as node:
        with pytest.raises(ConnectionException, match=r"not-implemented.*weft-fabric\[amqp1\]"):
            await node.client(mechanisms=mechanism, user="ada", password="secret", allow_insecure_mechs=True)
        raw = await Raw.open(node.port)
        raw.writer.write(AMQP)
        answer = await raw.all()
        assert answer.startswith(AMQP)
        assert b"weft-fabric[amqp1]" in answer
        assert caplog.text.count("weft-fabric[amqp1]") == 1, "attempts alike are one line"


async def test_a_certificate_is_offered_as_external(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.sign("node"), authority.sign("press-7")
    context = ssl.create_default_context(cafile=authority.path)
    context.load_cert_chain(client.certificate, client.key)
    files = TlsFiles(certificate=server.certificate, key=server.key, client_ca=authority.path)
    async with amqp(tmp_path / "log", tls=server_context(files)) as node:
        raw = await Raw.open(node.port, context)
        raw.writer.write(SASL)
        await raw.until(b"EXTERNAL")
        raw.writer.write(sasl_init("EXTERNAL", b"") + AMQP)
        await raw.until(b"\0\x53\x44\xc0\x03\x01\x50\0" + AMQP)  # outcome 0, and then AMQP
        raw.writer.close()


async def test_a_client_that_falls_silent_is_taken_for_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "IDLE_S", 0.4)
    async with amqp(tmp_path) as node:
        raw = await Raw.open(node.port)
        raw.writer.write(AMQP + FRAMES[0])
        assert b"local-idle-timeout" in await raw.all()
