"""Records of queues that a later release wrote: passed over where they may be, refused where they must be."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from tests.edge_node.queues.room import OWNER, Room
from tests.support import forked
from tests.support.slices import SLICE
from weft.edge_node.queues import contents
from weft.edge_node.queues.definitions import QueueDefinition, queue_arguments
from weft.edge_node.queues.state import VERSION, Changes
from weft.protocols.errors import UnsupportedVersion
from weft.storage.segment_log import LogSettings


def write(room: Room, elements: list[object]) -> None:
    stream = room.log.streams()["weft-queues-state"]
    room.log.append(stream, room.clock.wall(), [b""], [msgspec.msgpack.encode(elements)])


async def room_with_a_message() -> Room:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    room.publish(b"1")
    await room.settle_down()
    return room


async def test_elements_of_a_later_release_are_passed_over() -> None:
    room = await room_with_a_message()
    known = msgspec.to_builtins(Changes(exchanges_gone=["gone"]))
    write(room, [*known, "a later element", {"and": "another"}])
    room.commit()
    room.power_cut()
    assert await room.drain() == [b"1"]


async def test_a_later_version_is_refused_with_what_to_do() -> None:
    room = await room_with_a_message()
    write(room, [VERSION + 1])
    room.commit()
    with pytest.raises(UnsupportedVersion, match="install that again"):
        room.power_cut()


# --- Commits of which a power cut leaves the beginning: the state of queues stands first in them


async def test_a_queue_whose_declaration_outlived_messages_before_it_keeps_what_comes_later() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "first", durable=True)
    room.publish(b"a", key="first")
    await room.settle_down()
    # What a torn commit leaves: it was declared behind 40 messages of the same commit, of which the log has none.
    definition = QueueDefinition(
        2, "q", True, False, False, queue_arguments({}, durable=True, exclusive=False), *OWNER, since=41
    )
    room.log.append(
        room.log.streams()["weft-queues-state"], 0, [b""], [msgspec.msgpack.encode(Changes(queues=[definition]))]
    )
    room.commit()
    room.power_cut()
    room.publish(b"b", b"c")
    await room.settle_down()
    assert room.confirmed() == [b"b", b"c"]
    room.power_cut()
    assert await room.drain() == [b"b", b"c"]
    assert await room.drain("first") == [b"a"]


# --- Memory and disk: idle queues and long ones stay small, and a log that is full of messages gets empty again


IDLE_BYTES_MAX = 4_000
"""Memory of a queue that has nothing, with a binding: ten thousand are 40 MB at most."""


async def test_idle_queues_are_small() -> None:
    room = Room(settings=LogSettings(segment_bytes=1 << 20, budget_bytes=64 << 20))
    count = 500
    room.queues.declarations.declare_queue(room.client, "warm", durable=True)
    await room.settle_down()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            room.queues.declarations.declare_queue(room.client, f"queue-{number}", durable=True)
            room.queues.declarations.bind(room.client, f"queue-{number}", "amq.topic", f"plant.{number}.#")
        await room.settle_down()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / count < IDLE_BYTES_MAX


async def test_a_long_queue_is_in_the_log_and_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "LOADED_BYTES_MAX", 10_000)
    room = Room(settings=LogSettings(segment_bytes=1 << 20, budget_bytes=64 << 20, tail_bytes=50_000))
    for name in ("a", "b"):
        room.queues.declarations.declare_queue(room.client, name, durable=True)
    payloads = [b"%06d" % number + b"x" * 500 for number in range(3_000)]
    for at in range(0, 3_000, 500):
        for payload in payloads[at : at + 500]:
            room.publish(payload, key="ab"[payload[5] % 2])
        await room.settle_down()
        assert room.queues.contents.loaded_bytes <= 10_000 + 506
    room.queues.writer.copy()
    await room.settle_down()
    room.power_cut()
    assert room.queues.contents.loaded_bytes == 0
    assert room.queues.figures.facts()["messages"] == 3_000
    assert await room.drain("a") == payloads[::2]
    assert await room.drain("b") == payloads[1::2]
    assert room.queues.figures.facts()["bytes"] == 0


async def test_a_consumer_that_keeps_up_does_not_wait_for_the_disk() -> None:
    """What it gets next is read, and marked as perhaps delivered, before it has acknowledged what it got."""
    room = Room(settings=LogSettings(segment_bytes=1 << 20, budget_bytes=64 << 20, tail_bytes=50_000))
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    for number in range(80):
        room.publish(*[b"%06d" % each for each in range(number * 100, number * 100 + 100)])
        await room.settle_down()
    await room.restart()
    taker = room.consume(prefetch=100)
    await room.settle_down()
    while len(taker.got) < 5_000:
        taker.settle()
        await room.settle_down()
    for number in range(20):
        taker.settle()
        await asyncio.sleep(0)
        assert len(taker.got) == 5_000 + 100 * (number + 1), "it waits for a read or a commit"
        while room.queues.deliveries._loading:
            await asyncio.wait(room.queues.deliveries._loading)
        room.commit()
    assert taker.payloads == [b"%06d" % number for number in range(7_000)]


async def test_a_full_log_gets_empty_by_acknowledgements() -> None:
    room = Room(settings=LogSettings(segment_bytes=16_384, budget_bytes=8 * 16_384, pending_bytes_max=1 << 20))
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    sent = 0
    while not room.publisher.refused:
        room.publish(b"%06d" % sent + b"x" * 1000)
        sent += 1
        await room.settle_down()
        assert sent < 500
    confirmed = [int(payload[:6]) for payload in room.confirmed()]
    taker = room.consume(prefetch=3)
    for _ in range(sent):
        await room.settle_down()
        taker.settle()
    await room.settle_down()
    assert [int(payload[:6]) for payload in taker.payloads] == confirmed
    room.publisher.refused.clear()
    room.publish(b"there is room again")
    await room.settle_down()
    assert room.confirmed()[-4:] == [b"there", b"is", b"room", b"again"]
    assert not room.publisher.refused


# --- A real node on a real disk, killed at any moment: what it confirmed is in its queue, and what was acknowledged
# for certain is not


ROOT = Path(__file__).parents[3]
KILLS = SLICE.amount(ci=3, night=12)
CONFIG = """
node: n
data_dir: {folder}/data
http: null
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}, amqp: {{bind: "127.0.0.1:0"}}}}
disk: {{budget: 64MiB}}
"""


def run(config: Path, life: int, seconds: float, chance: random.Random) -> list[list[str]]:
    """Run the node, and kill it after a while; without a while it empties its queue and ends."""
    command = [sys.executable, "-m", "tests.edge_node.queues.killed_node", str(config), str(life)]
    with forked.Popen([*command, "work" if seconds else "drain"], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines: list[bytes] = []
        if seconds:
            while process.stdout.readline() not in {b"started\n", b""}:
                pass
            until = time.monotonic() + seconds
            while time.monotonic() < until or sum(line.startswith(b"confirmed") for line in lines) <= 50:
                lines.append(process.stdout.readline())
                assert lines[-1], "it must not end by itself"
            process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    return [line.decode().split() for line in lines if line.endswith(b"\n")]


@pytest.mark.search
@pytest.mark.processes
def test_nothing_confirmed_is_lost_and_what_comes_again_is_flagged(tmp_path: Path) -> None:
    config, chance = tmp_path / "edge.yaml", random.Random(SLICE.seed)
    config.write_text(CONFIG.format(folder=tmp_path))
    confirmed, got, acknowledged, done = set[str](), set[str](), set[str](), set[str]()
    for life in range(1, KILLS + 2):
        reported = run(config, life, chance.uniform(0.1, 0.5) if life <= KILLS else 0, chance)
        newest: tuple[int, ...] = (0, 0)
        for words in reported:
            if words[0] == "got":
                name, flagged = words[1], words[2] == "1"
                assert name not in done, "it was acknowledged, and the log knew it"
                assert flagged or name not in got, f"{name} came before"
                if not flagged:
                    place = tuple(map(int, name.split("/")))
                    assert place > newest, "in order of receipt"
                    newest = place
                got.add(name)
            elif words[0] == "confirmed":
                confirmed.add(words[1])
            elif words[0] == "acknowledged":
                acknowledged.add(words[1])
            elif words[0] == "done":
                done.add(words[1])
    assert len(confirmed) > 50 * KILLS
    assert done
    assert confirmed <= acknowledged, "the last run has taken all that was left"
