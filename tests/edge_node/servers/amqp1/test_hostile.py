"""Clients that send what they should not: they harm no one but themselves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.edge_node.servers.amqp1.fuzz_frames import FRAMES, attach, transfer
from tests.edge_node.servers.amqp1.harness import AMQP, SASL, Message, Raw, amqp, in_thread
from tests.support.waiting import until
from weft.edge_node.servers.amqp1.context import SESSION_LINKS


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
