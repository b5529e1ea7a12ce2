"""Who is let in: SASL, and what is said to those who are not."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.amqp1.fuzz_frames import FRAMES, attach, transfer
from tests.edge_node.servers.amqp1.harness import (
    AMQP,
    SASL,
    Amqp,
    ConnectionException,
    Delivery,
    LinkDetached,
    Message,
    ProtonClient,
    Raw,
    SendException,
    amqp,
    in_thread,
)
from tests.support.certificates import Authority
from tests.support.waiting import PATIENCE_S, until
from weft.bounds import Owner, OwnerKind
from weft.edge_node.access.authentication import Accounts
from weft.edge_node.access.identity import AccessDenied, Denial, parse
from weft.edge_node.queues.queue import QueueClient
from weft.edge_node.servers.amqp1 import connection as opening
from weft.edge_node.servers.amqp1 import context as parts
from weft.edge_node.servers.amqp1.context import SESSION_LINKS
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


# --- Clients that send what they should not: they harm no one but themselves


def fuzz(seed: int, count: int) -> None:
    command = [sys.executable, "-m", "tests.edge_node.servers.amqp1.fuzz_frames", str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "survived"
    assert "Traceback" not in done.stderr, done.stderr[-3000:]


def test_broken_frames_end_their_connection_and_nothing_else() -> None:
    fuzz(0, 200)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [10_000, 20_000, 30_000])
def test_many_broken_frames_do_no_harm(seed: int) -> None:
    fuzz(seed, 3000)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\0\x01\0\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        SASL + b"\xff\xff\xff\xff\x02\x01\0\0",
        SASL + b"\0\0\0\x07\x02\x01\0\0",
        SASL + b"\0\0\0\x0b\x02\x01\0\0\0\x53\x41",
        SASL + b"\0\0\0\x0c\x02\x01\0\0\0\x53\x40\x45",
        AMQP + b"\xff\xff\xff\xff\x02\0\0\0",
        AMQP + b"\0\0\0\0\x02\0\0\0",
        AMQP + b"\0\0\0\x08\xff\0\0\0",
    ],
)
async def test_what_is_no_amqp_is_closed_with_a_line_in_the_log(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with amqp(tmp_path) as node:
        raw = await Raw.open(node.port)
        raw.writer.write(data)
        await raw.all()
        assert "closed" in caplog.text
        assert "Traceback" not in caplog.text


async def test_unfinished_messages_are_charged_and_bounded(tmp_path: Path) -> None:
    async with amqp(tmp_path, unfinished_bytes=400_000, user_share=0.5) as node:
        raw = await Raw.open(node.port)
        raw.writer.write(AMQP + b"".join(FRAMES[:2]))
        for handle in range(10):
            raw.writer.write(attach(f"link {handle}", handle, "plant/1/x", receives=False))
        await raw.until(b"link 9")
        for handle in range(10):
            raw.writer.write(transfer(handle, handle, bytes(40_000), more=True))
        answer = await raw.all()
        assert b"limits.unfinished" in answer
        client = await node.client()
        await in_thread(client.send, "plant/1/x", Message(body=b"x"))
        await client.close()
        await asyncio.sleep(0.01)
        assert node.node.context.unfinished.used == 0


async def test_links_and_refused_links_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with amqp(tmp_path) as node:
        raw = await Raw.open(node.port)
        raw.writer.write(AMQP + b"".join(FRAMES[:2]))
        for handle in range(2000):
            raw.writer.write(attach(f"link {handle}", handle, "plant/1/x", receives=False))
        await raw.all()
        assert "links were refused" in caplog.text
        assert node.parts.links.used == 0


async def test_sessions_count_against_the_share_of_links(tmp_path: Path) -> None:
    """One that is open and has no link takes memory as well."""
    async with amqp(tmp_path) as node:
        bound = node.parts.links
        held = [await Raw.open(node.port) for _ in range(2)]
        for raw in held:
            raw.writer.write(AMQP + b"".join(FRAMES[:2]))
        await until(lambda: bound.used == 2 * SESSION_LINKS)
        bound.share = 2 * SESSION_LINKS
        refused = await Raw.open(node.port)
        refused.writer.write(AMQP + b"".join(FRAMES[:2]))
        assert b"too many sessions" in await refused.all()
        for raw in held:
            raw.writer.close()
        await until(lambda: not bound.used)


async def test_a_client_that_floods_does_not_keep_others_waiting(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        sender = await in_thread(client.sender, "plant/1/x")
        raw = await Raw.open(node.port)
        raw.writer.write(AMQP + b"".join(FRAMES[:2]) + b"\0\0\0\x08\x02\0\0\0" * 200_000)
        for _ in range(5):
            await in_thread(sender.send, Message(body=b"x"))
        assert len(await node.node.stored()) == 5
        raw.writer.close()
        await client.close()


# --- A user without any right to the topics of another neither takes, blocks nor sees that user's queues by AMQP 1.0


RULES = """\
user alice
topic readwrite secret/#
user mallory
topic readwrite public/#
"""
ALICE = QueueClient(Owner(OwnerKind.USER, "alice"))
FORBIDDEN = "amqp:unauthorized-access"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Amqp]:
    async with amqp(tmp_path) as serves:
        assert serves.parts.queues is not None
        serves.node.authenticator.accounts = Accounts(acl=parse(RULES, "acl"))
        serves.node.authenticator.accounts.watch(serves.parts.queues.revocation.begin)
        serves.node.authenticator.accounts.watch(serves.parts.permissions_changed)
        yield serves


def rules(node: Amqp, text: str) -> None:
    accounts = node.node.authenticator.accounts
    assert accounts is not None
    accounts.replace(acl=parse(text, "acl"))


def declare(node: Amqp, **options: Any) -> None:
    assert node.parts.queues is not None
    node.parts.queues.declarations.declare_queue(ALICE, "secret.jobs", **options)


def waiting(node: Amqp) -> int:
    assert node.parts.queues is not None
    return node.parts.queues.declarations.find_queue(ALICE, "secret.jobs").messages


async def entered(node: Amqp, user: str) -> ProtonClient:
    return await node.client(user, mechanisms="PLAIN", user=user, password="x", allow_insecure_mechs=True)


async def refusal(attach: Callable[..., object], *arguments: Any, **options: Any) -> LinkDetached:
    with pytest.raises(LinkDetached) as refused:
        await in_thread(attach, *arguments, **options)
    assert refused.value.condition == FORBIDDEN
    return refused.value


@pytest.mark.parametrize(
    "options", [{"auto_delete": True}, {"arguments": {"x-single-active-consumer": True}}], ids=["auto-delete", "single"]
)
async def test_a_queue_is_neither_read_nor_destroyed_nor_blocked(node: Amqp, options: dict[str, Any]) -> None:
    declare(node, **options)
    alice, mallory = await entered(node, "alice"), await entered(node, "mallory")
    await in_thread(alice.send, "queue/secret.jobs", Message(body=b"job", inferred=True))
    refused = await refusal(mallory.receiver, "queue/secret.jobs")
    assert "`queue read secret.jobs`" in str(refused)
    await mallory.close()
    assert waiting(node) == 1
    receiver = await in_thread(alice.receiver, "queue/secret.jobs")
    (found,) = await in_thread(alice.receive, receiver, 1)
    assert bytes(found.body) == b"job"
    await alice.close()


async def test_a_sender_does_not_learn_which_queues_there_are(node: Amqp) -> None:
    declare(node)
    mallory = await entered(node, "mallory")
    seen = await refusal(mallory.sender, "queue/secret.jobs")
    missing = await refusal(mallory.sender, "queue/secret.none")
    said = [str(each).partition(FORBIDDEN)[2] for each in (seen, missing)]  # behind the name of the link
    assert "`queue read secret.jobs`" in said[0]
    assert said[0].replace("jobs", "none") == said[1]

    def send() -> None:
        sender = mallory.sender(None)
        delivery = sender.link.send(Message(body=b"x", address="queue/secret.jobs"))
        mallory.connection.wait(lambda: delivery.settled, timeout=PATIENCE_S)
        assert delivery.remote_state == Delivery.REJECTED
        assert delivery.remote.condition.name == FORBIDDEN

    await in_thread(send)
    await mallory.close()


async def test_who_may_publish_to_the_topic_of_a_queue_may_send_to_it(node: Amqp) -> None:
    declare(node)
    rules(node, RULES + "user bob\ntopic write secret/jobs\n")
    bob = await entered(node, "bob")
    await in_thread(bob.send, "queue/secret.jobs", Message(body=b"job", inferred=True))
    await refusal(bob.receiver, "queue/secret.jobs")
    assert waiting(node) == 1
    await bob.close()


async def test_a_receiver_that_loses_the_right_is_closed(node: Amqp) -> None:
    declare(node, auto_delete=True)
    rules(node, RULES + "topic read secret/jobs\n")
    alice, mallory = await entered(node, "alice"), await entered(node, "mallory")
    receiver = await in_thread(mallory.receiver, "queue/secret.jobs")
    await in_thread(alice.send, "queue/secret.jobs", Message(body=b"job", inferred=True))
    held = await in_thread(receiver.receive, timeout=PATIENCE_S)
    assert bytes(held.body) == b"job"
    rules(node, RULES)
    await refusal(mallory.connection.wait, lambda: False, timeout=PATIENCE_S)
    assert waiting(node) == 1, "what it had and did not settle"
    receiver = await in_thread(alice.receiver, "queue/secret.jobs")
    (found,) = await in_thread(alice.receive, receiver, 1)
    assert bytes(found.body) == b"job"
    await mallory.close()
    await alice.close()
