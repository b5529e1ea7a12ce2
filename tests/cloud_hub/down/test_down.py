"""Messages to edges: hubs over one store, real links and the edge's own taker, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.cloud_hub.live import EdgeLog, running_hub
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.cloud_hub import cluster as membership
from weft.cloud_hub import splits
from weft.cloud_hub.down.edge_queue import lane_of
from weft.cloud_hub.down.hub_down import HubDown
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.shard.collector import spared_from, waiting_lanes
from weft.protocols.batch import Buffer
from weft.protocols.link import DownMessage, DownOpen, MessageOutcome, OutcomeKind, Outcomes
from weft.protocols.shard.placement import digest_of
from weft.replication.events import LinkStatus
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.replication.runner.settings import Answer
from weft.storage.cluster import open_cluster
from weft.storage.object_store.directory import MemoryStore

EDGE = LinkIdentity("default", "press-1", 7, "test")
EPOCHS = MemoryEpochs()
"""Of all edges here: it only grows."""


class Taker:
    """An edge that keeps what it gets in memory."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.known: dict[tuple[int, int], MessageOutcome] = {}
        self.frames = 0
        self.outcome = OutcomeKind.PUBLISHED
        self.answers = True

    def opening(self, _hub: str) -> DownOpen:
        return DownOpen(1 + max((number for number, _ in self.known), default=-1))

    def take(self, _hub: str, messages: list[DownMessage], answer: Answer) -> None:
        self.frames += 1
        reports = []
        for each in messages:
            name = each.number, each.accepted
            if name not in self.known:
                outcome = OutcomeKind.EXPIRED if not each.left else self.outcome
                if outcome == OutcomeKind.PUBLISHED:
                    self.stored.append(each.payload.decode())
                self.known[name] = MessageOutcome(each.number, each.accepted, outcome)
            reports.append(self.known[name])
        if self.answers:
            answer(Outcomes(reports))


@contextlib.asynccontextmanager
async def linked(hub: Hub, taker: Taker | None, identity: LinkIdentity = EDGE) -> AsyncIterator[LinkStatus]:
    status = LinkStatus("hub")
    settings = LinkSettings((hub.url,), retry_min_s=0.02)
    task = asyncio.create_task(run_link(EdgeLog(), identity, settings, EPOCHS, status, taker=taker))
    try:
        await until(lambda: status.is_taken)
        yield status
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def down_of(hub: Hub) -> HubDown:
    return hub._down


async def post(hub: Hub, payload: str, key: str = "", **fields: Any) -> tuple[int, Any]:
    body = {"edge": "press-1", "topic": "down/x", "payload": payload, **fields}
    headers = {"Idempotency-Key": key} if key else {}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{hub.url}/v1/messages", json=body, headers=headers) as answer:
            return answer.status, await answer.json()


async def messages(hub: Hub) -> Any:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{hub.url}/v1/messages?edge=press-1") as answer:
            return await answer.json()


async def is_empty(hub: Hub) -> bool:
    return not (await messages(hub))["waiting"]


async def settled(hub: Hub, count: int) -> list[str]:
    """Wait for outcomes; return them, the oldest first."""
    while True:
        found = await messages(hub)
        if len(found["outcomes"]) >= count and not found["waiting"]:
            return [each["outcome"] for each in reversed(found["outcomes"])]
        await asyncio.sleep(0.01)


async def test_a_message_reaches_the_edge_and_is_reported() -> None:
    taker = Taker()
    async with running_hub(MemoryStore()) as hub, linked(hub, taker):
        status, answer = await post(hub, "one", key="k")
        assert (status, answer["messages"][0]["number"]) == (200, 0)
        assert (await post(hub, "one", key="k"))[1] == answer
        assert (await post(hub, "two", key="k"))[0] == 409
        assert await settled(hub, 1) == ["published"]
    assert taker.stored == ["one"]


async def test_messages_wait_for_an_edge_and_survive_the_hub() -> None:
    store, taker = MemoryStore(), Taker()
    async with running_hub(store) as hub:
        async with linked(hub, None):  # it takes no messages
            pass
        for payload in ("one", "two"):
            assert (await post(hub, payload))[0] == 200
    async with running_hub(store) as hub:
        assert [each["number"] for each in (await messages(hub))["waiting"]] == [0, 1]
        async with linked(hub, taker):
            assert await settled(hub, 2) == ["published", "published"]
    async with running_hub(store) as hub, linked(hub, taker):
        assert (await messages(hub))["waiting"] == []
        assert (await post(hub, "three"))[0] == 200
        await settled(hub, 1)
    assert taker.stored == ["one", "two", "three"]


async def test_an_outcome_that_was_lost_is_asked_for_again() -> None:
    store, taker = MemoryStore(), Taker()
    async with running_hub(store) as hub:
        taker.answers = False
        async with linked(hub, taker):
            await post(hub, "one")
            await until(lambda: taker.stored == ["one"])
        taker.answers = True
        async with linked(hub, taker):
            assert await settled(hub, 1) == ["published"]
    assert taker.stored == ["one"]


async def test_two_hub_processes_write_to_one_edge() -> None:
    """Each takes the lane from the other: no number has two messages, and none is lost."""
    store, taker = MemoryStore(), Taker()
    async with running_hub(store) as first, running_hub(store) as second, linked(first, taker):
        sent = [f"{turn}-{at}" for turn in range(3) for at in range(2)]
        for payload in sent:
            hub = (first, second)[int(payload[-1])]
            while (answer := await post(hub, payload, key=payload))[0] != 200:
                assert answer[0] == 503, answer
        await until(lambda: len(taker.stored) >= len(sent))
        await until(lambda: is_empty(first))
    assert sorted(taker.stored) == sorted(sent)


async def test_a_message_of_another_process_is_found_by_one_that_knows_other_edges() -> None:
    """The copy of the log was made for an edge, and another edge's message came behind it."""
    store, taker = MemoryStore(), Taker()
    other = LinkIdentity("default", "press-2", 8, "test")
    async with running_hub(store, shards=1) as first, running_hub(store, shards=1) as second:
        for identity in (EDGE, other):
            async with linked(first, None, identity):
                pass
        await post(first, "for press-1")
        assert len((await messages(second))["waiting"]) == 1  # it has read the log
        await post(first, "for press-2", edge="press-2")
        async with linked(second, taker, other):
            await until(lambda: taker.stored == ["for press-2"])


@pytest.mark.parametrize("at", [0, 1])
async def test_messages_that_wait_when_a_shard_splits(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "READ_INTERVAL_S", 0.05)
    store, taker = MemoryStore(), Taker()
    names = [next(f"press-{n}" for n in range(99) if digest_of("default", f"press-{n}") & 1 == bit) for bit in (0, 1)]
    identities = [LinkIdentity("default", name, number, "test") for number, name in enumerate(names, 1)]
    async with running_hub(store, shards=1) as hub:
        for identity in identities:
            async with linked(hub, None, identity):
                pass
        await post(hub, "before", edge=names[at])
        cluster = await open_cluster(store, None)
        bits = random.Random(1).getrandbits
        await splits.split(store, cluster, 0, wall_clock=time.time_ns, random_bits=bits)
        await until(lambda: len(hub.sequencers) == 2 and hub.sequencers[1].loaded)
        while (await post(hub, "after", key="k", edge=names[at]))[0] != 200:
            pass
    async with running_hub(store, shards=1) as hub, linked(hub, taker, identities[at]):
        await until(lambda: taker.stored == ["before", "after"])


async def test_a_message_whose_time_is_over_is_not_published() -> None:
    taker = Taker()
    async with running_hub(MemoryStore()) as hub:
        async with linked(hub, None):
            pass
        await post(hub, "late", expires_s=0.001)
        await asyncio.sleep(0.002)
        assert [each["expired"] for each in (await messages(hub))["waiting"]] == [True]
        async with linked(hub, taker):
            assert await settled(hub, 1) == ["expired"]
            await post(hub, "next")
            assert await settled(hub, 2) == ["expired", "published"]
    assert taker.stored == ["next"]


@pytest.mark.parametrize("is_collected", [False, True])
async def test_a_message_to_an_edge_that_is_gone_keeps_no_chunks_for_ever(is_collected: bool) -> None:
    async with running_hub(MemoryStore(), shards=1) as hub:
        async with linked(hub, None):
            pass
        await post(hub, "for nobody")
        (shard,) = down_of(hub)._of.values()
        state, now = shard.sequencer.state, time.time_ns()
        await shard.sweep()
        assert len(waiting_lanes(state)) == 1, "its time is not over"
        if is_collected:
            await shard.queue(lane_of("default", "press-1"))
            for queue in shard._queues.values():
                queue.waiting.clear()
        shard._wall_clock = lambda: now + 9 * 86_400 * 10**9
        await shard.sweep()
        await until(lambda: not waiting_lanes(shard.sequencer.state))
        assert spared_from(shard.sequencer.state, now) == now
        if not is_collected:
            assert [each["outcome"] for each in (await messages(hub))["outcomes"]] == ["unknown"]


async def test_many_messages_keep_their_order() -> None:
    taker = Taker()
    async with running_hub(MemoryStore()) as hub, linked(hub, taker):
        for at in range(150):
            await post(hub, str(at))
        await settled(hub, 150)
    assert taker.stored == [str(at) for at in range(150)]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"topic": "down/#"}, 400),
        ({"topic": "$SYS/x"}, 400),
        ({"topic": ""}, 400),
        ({"edge": "Press"}, 400),
        ({"edge": "press-2"}, 404),
        ({"payload": "x" * (300 << 10)}, 413),
        ({"payload": "x" * (600 << 10)}, 413),
        ({"payload_base64": "AA=="}, 400),
        ({"expires_s": 8 * 86_400}, 400),
        ({"expires_s": 0}, 400),
        ({"qos": 2}, 400),
        ({"key": "\u00e9"}, 400),
        ({"key": "k" * 256}, 400),
        ({"retain": True}, 400),
        ({"edges": ["press-1"]}, 400),
    ],
)
async def test_requests_that_are_refused(fields: dict[str, Any], status: int) -> None:
    async with running_hub(MemoryStore()) as hub, linked(hub, None):
        answer = await post(hub, **{"payload": "x", **fields})
        assert (answer[0], sorted(answer[1])) == (status, ["advice", "detail", "status", "title", "type"]), answer


async def test_no_more_wait_than_may() -> None:
    async with running_hub(MemoryStore()) as hub, linked(hub, None):
        for at in range(16):
            assert (await post(hub, "x" * (256 << 10)))[0] == 200, at
        status, answer = await post(hub, "x")
        assert (status, "wait for the edge" in answer["detail"]) == (429, True)


async def test_a_page_in_a_browser_cannot_publish() -> None:
    async with running_hub(MemoryStore()) as hub, aiohttp.ClientSession() as session:
        headers = {"Origin": "http://evil.example"}
        async with session.post(f"{hub.url}/v1/messages", data=b"{}", headers=headers) as answer:
            assert answer.status == 403


async def test_an_edge_cannot_send_the_stream_of_messages(caplog: pytest.LogCaptureFixture) -> None:
    async with running_hub(MemoryStore()) as hub:
        status, settings = LinkStatus("hub"), LinkSettings((hub.url,), retry_min_s=0.02)
        log = EdgeLog("weft-down")
        task = asyncio.create_task(run_link(log, EDGE, settings, EPOCHS, status))
        try:
            await until(lambda: "is the hub's own" in status.last_error)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_an_edge_gets_no_messages_of_another() -> None:
    mine, other = Taker(), Taker()
    async with (
        running_hub(MemoryStore()) as hub,
        linked(hub, mine),
        linked(hub, other, LinkIdentity("default", "press-2", 8, "test")),
    ):
        await post(hub, "for press-1")
        await settled(hub, 1)
    assert (mine.stored, other.frames) == (["for press-1"], 0)


async def test_an_idle_link_carries_nothing_for_messages() -> None:
    """Beside one DOWN_OPEN at its start, which goes with the frames that open its lanes."""
    async with running_hub(MemoryStore()) as hub:
        for identity, taker in ((EDGE, None), (LinkIdentity("default", "press-2", 8, "test"), Taker())):
            async with linked(hub, taker, identity) as status:
                await until(lambda: status.messages_sent >= 2)
                before = status.messages_sent
                await asyncio.sleep(0.3)
                assert status.messages_sent - before <= 1  # a mark
            assert taker is None or taker.frames == 0
        # No queue, no session and no lane came of it.
        assert not any(lane.stream == "weft-down" for each in hub.sequencers for lane in each.state.lanes)


@pytest.mark.parametrize("older", ["weft.replication.receiver", "weft.replication.runner.connection"])
async def test_a_peer_of_the_release_before_goes_on_without(older: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taker = Taker()
    async with running_hub(MemoryStore()) as hub:
        with monkeypatch.context() as patch:
            patch.setattr(f"{older}.FEATURES", ("last-words",))
            async with linked(hub, None if "runner" in older else taker) as status:
                assert (await post(hub, "one"))[0] == 200
                assert len((await messages(hub))["waiting"]) == 1
                assert (status.is_taken, taker.frames) == (True, 0)
        async with linked(hub, taker):
            await settled(hub, 1)
    assert taker.stored == ["one"]


class GatedStore(MemoryStore):
    """A store that keeps what would be created waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def create(self, key: str, data: Buffer) -> str:
        await self.is_open.wait()
        return await super().create(key, data)


@pytest.mark.parametrize("whole", [False, True], ids=["of one edge", "of the shard"])
async def test_messages_under_way_outlive_the_copy_of_the_log(whole: bool) -> None:
    """They keep their numbers to themselves, and a repeated request waits for the disk as the first one does."""
    store, taker = GatedStore(), Taker()
    async with running_hub(store, shards=1) as hub, linked(hub, taker):
        await post(hub, "zero")
        assert await settled(hub, 1) == ["published"]
        (shard,) = down_of(hub)._of.values()
        writing = shard._shared.writing[lane_of("default", "press-1")]
        store.is_open.clear()
        requests = [asyncio.create_task(post(hub, "one", key="k"))]
        await until(lambda: len(writing) == 1)
        if whole:
            shard._forget()
        else:
            shard._drop(lane_of("default", "press-1"))
        requests.append(asyncio.create_task(post(hub, "two", key="l")))
        await until(lambda: len(writing) == 2)
        requests += [asyncio.create_task(post(hub, "one", key="k")) for _ in range(3)]
        done, _ = await asyncio.wait(requests, timeout=0.1)
        assert not done, "nothing is durable"
        store.is_open.set()
        answers = await asyncio.gather(*requests)
        assert [status for status, _ in answers] == [200] * 5
        numbers = [answer["messages"][0]["number"] for _, answer in answers]
        assert numbers[0] != numbers[1]
        assert numbers[2:] == [numbers[0]] * 3
        assert await settled(hub, 3) == ["published"] * 3
        assert taker.stored == ["zero", "one", "two"]
        assert (shard._shared.bytes.used, writing) == (0, {})


async def test_a_message_that_another_process_fenced_leaves_no_bytes() -> None:
    """Otherwise the bound of a shard's messages would move with each of them."""
    store = MemoryStore()
    async with running_hub(store, shards=1) as first, running_hub(store, shards=1) as second:
        async with linked(first, None):
            pass
        await post(first, "before")
        for turn in range(3):
            await asyncio.gather(*(post(each, f"{turn}-{at}" * 100) for each in (first, second) for at in range(4)))
        for hub in (first, second):
            (shard,) = down_of(hub)._of.values()
            for queue in shard._queues.values():
                held = [message for _, message in queue.waiting.values()] + [each for each, _ in queue.writing.values()]
                assert queue.bytes == sum(len(message.payload) for message in held)
            assert shard._shared.bytes.used == sum(queue.bytes for queue in shard._queues.values())
