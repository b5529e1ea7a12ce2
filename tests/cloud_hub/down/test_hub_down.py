"""Messages to edges: hubs over one store, real links and the edge's own taker, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.cloud_hub.fabric import SETTINGS, SequencerNode, read_chunks
from tests.cloud_hub.faulty_store import CALM, Faults
from tests.cloud_hub.live import EdgeLog, running_hub
from tests.cloud_hub.virtual_time import NS, VirtualLoop
from tests.support.epochs import MemoryEpochs
from tests.support.outcomes import outcome
from tests.support.waiting import until
from weft.cloud_hub import cluster as membership
from weft.cloud_hub import splits
from weft.cloud_hub.down import edge_queue, hub_down
from weft.cloud_hub.down.edge_queue import (
    DownContext,
    Draft,
    EdgeQueue,
    QueueFull,
    Settled,
    TenantMemory,
    Waiting,
    lane_of,
)
from weft.cloud_hub.down.hub_down import HubDown, LinkDown, OutcomeUnknown, ShardDown, read_chunk
from weft.cloud_hub.down.lane_writer import CannotWrite
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.shard.collector import spared_from, waiting_lanes
from weft.protocols.batch import Buffer
from weft.protocols.chunk_index import Mark
from weft.protocols.link import DownMessage, DownOpen, Frame, MessageOutcome, Messages, OutcomeKind, Outcomes
from weft.protocols.shard.placement import digest_of, shard_of
from weft.replication.events import LinkStatus
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.replication.runner.settings import Answer
from weft.replication.source import OfferedLane
from weft.storage.cluster import open_cluster
from weft.storage.object_store import Object, StoreError
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.protocol import Listing

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


# --- Messages to edges when something else goes wrong: a shard that is not loaded, a writer that lost its lane


async def test_a_bug_that_shows_with_one_shard_does_not_end_the_looks_for_old_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_down, "SWEEP_S", 0.01)
    swept: list[str] = []

    class Part(NamedTuple):
        name: str

        async def sweep(self) -> None:
            swept.append(self.name)
            if self.name == "broken":
                raise ValueError("a message that nobody thought of")

    def sequencer(shard: int) -> SimpleNamespace:
        return SimpleNamespace(loaded=True, log=SimpleNamespace(shard=shard))

    shards: Any = SimpleNamespace(own=[sequencer(0), sequencer(1)])
    down = HubDown(shards, lambda: 0)
    monkeypatch.setattr(down, "_part", lambda sequencer: Part(("broken", "sound")[sequencer.log.shard]))
    down.start()
    await until(lambda: len(swept) >= 4)
    await down.close()
    assert swept[:4] == ["broken", "sound"] * 2


class NoLanes(EdgeLog):
    """A log of an edge that sends nothing."""

    def lanes(self) -> list[OfferedLane]:
        return []


class ShardGone(MemoryStore):
    """A store that does not read what is gone, from its next write on: a hub looks at all shards before that."""

    def __init__(self) -> None:
        super().__init__()
        self.goes: tuple[str, ...] = ()
        self.gone: tuple[str, ...] = ()

    async def create(self, key: str, data: Buffer) -> str:
        self.gone = self.goes
        return await super().create(key, data)

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        if prefix.startswith(self.gone):
            raise StoreError(f"{prefix} is gone")
        return await super().list(prefix, after, limit)

    async def get(self, key: str) -> Object:
        if key.startswith(self.gone):
            raise StoreError(f"{key} is gone")
        return await super().get(key)


async def test_a_link_stays_while_the_shard_with_its_messages_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a relay's: lanes of other edges are in other shards."""
    monkeypatch.setattr(hub_down, "LINK_RETRY_S", 0.02)
    store, taker = ShardGone(), Taker()
    async with running_hub(store) as hub:
        async with linked(hub, None):
            pass
        assert (await post(hub, "one"))[0] == 200
    store.goes = (f"shard-{shard_of('default', 'press-1', 2)}/chunk/",)
    async with running_hub(store) as hub:
        status, settings = LinkStatus("hub"), LinkSettings((hub.url,), retry_min_s=0.02)
        task = asyncio.create_task(run_link(NoLanes(), EDGE, settings, EPOCHS, status, taker=taker))
        try:
            await until(lambda: status.connections == 1)
            await asyncio.sleep(0.2)
            assert (status.connections, taker.stored) == (1, [])
            store.goes = store.gone = ()
            await until(lambda: taker.stored == ["one"])
            assert status.connections == 1
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_an_outcome_passes_over_no_message_that_another_process_wrote_meanwhile() -> None:
    """The lane's mark would be behind that message, and the next process would not look for it."""
    store, taker = MemoryStore(), Taker()
    async with running_hub(store, shards=1) as first, running_hub(store, shards=1) as second:
        taker.answers = False
        async with linked(first, taker):
            await post(second, "one")
            await until(lambda: taker.stored == ["one"])
            (shard,), lane = first._down._of.values(), lane_of("default", "press-1")
            (message,) = [message for _, message in shard._queues[lane].waiting.values()]
            async with shard._lock:  # it is busy with another edge's messages
                await post(second, "two")
                await until(lambda: shard._noted)
                shard.settle(lane, [MessageOutcome(message.number, message.accepted, OutcomeKind.PUBLISHED)])
                await until(lambda: lane in shard._writers and shard._writers[lane].is_open)
            await until(lambda: outcomes(second))
    assert taker.stored == ["one", "two"]
    async with running_hub(store, shards=1) as again:
        assert [each["number"] for each in (await messages(again))["waiting"]] == [1]


async def test_messages_go_over_the_earlier_link_of_an_edge_when_the_last_one_leaves() -> None:
    taker, other = Taker(), Taker()
    other.known = taker.known
    async with running_hub(MemoryStore()) as hub, linked(hub, taker):
        status, settings = LinkStatus("other"), LinkSettings((hub.url,), retry_min_s=0.02)
        task = asyncio.create_task(run_link(NoLanes(), EDGE, settings, EPOCHS, status, taker=other))
        await until(lambda: status.connections == 1)
        await post(hub, "one")
        await until(lambda: other.stored == ["one"])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await post(hub, "two")
        await until(lambda: taker.stored == ["two"])


async def outcomes(hub: Hub) -> list[str]:
    return [each["outcome"] for each in (await messages(hub))["outcomes"]]


# --- Keys and outcomes that a process remembers, shared by tenants, whatever one of them sends. Pure


PUTS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30)), max_size=200)


@given(PUTS, st.integers(1, 20))
def test_a_tenant_with_less_than_an_equal_part_loses_nothing(puts: list[tuple[str, int]], total: int) -> None:
    memory, before = TenantMemory[int, int](total), Counter[str]()
    for at, (tenant, key) in enumerate(puts):
        memory.put(tenant, key, at)
        held = Counter({each: sum(1 for _ in memory.newest(each)) for each in "abcd"})
        assert len(memory) == held.total() <= total
        tenants = sum(count > 0 for count in (before | Counter([tenant])).values())
        for each, count in before.items():
            if count * tenants < total:
                assert held[each] >= count
        before = held


def test_a_tenants_oldest_are_forgotten_first() -> None:
    memory = TenantMemory[int, str](3)
    for key in (1, 2, 3, 4):
        memory.put("a", key, str(key))
    assert [key for key, _ in memory.newest("a")] == [4, 3, 2]
    memory.forget("a", 3)
    assert [memory.get("a", 3), memory.get("b", 2), memory.get("a", 2)] == [None, None, "2"]
    assert len(memory) == 2


def test_keys_and_outcomes_of_a_tenant_survive_the_flood_of_another() -> None:
    shared = DownContext()
    shared.keys, shared.recent = TenantMemory(10), TenantMemory(10)
    small, large = (EdgeQueue(lane_of(tenant, "press-1"), 0, 0, shared) for tenant in ("acme", "flood"))
    draft = Draft("down/x", b"one", 10**9, key="k")
    small.apply(0, Waiting(0, 1, 10**9, "down/x", b"one", key="k"))
    small.apply(1, Settled(0, 1, 2, "down/x", "published"))
    for seq in range(0, 100, 2):
        large.apply(seq, Waiting(seq, 1 + seq, 10**9, "down/x", b"", key=f"k{seq}"))
        large.apply(seq + 1, Settled(seq, 1 + seq, 2 + seq, "down/x", "published"))
    found = small.known(draft)
    assert found is not None
    assert found.number == 0
    assert [each.outcome for each in small.outcomes()] == ["published"]
    assert len(large.outcomes()) == 9


def test_one_tenant_may_have_all_of_them() -> None:
    assert edge_queue.KEYS_MAX == 100_000
    memory = TenantMemory[int, int](100)
    for key in range(1000):
        memory.put("a", key, key)
    assert len(list(memory.newest("a"))) == 100


def test_a_message_of_a_chunk_that_is_read_late_is_sent_and_no_mark_passes_it() -> None:
    queue = EdgeQueue(lane_of("acme", "press-1"), 0, 0, DownContext())
    for number in (0, 2, 1):
        queue.apply(number, Waiting(number, 10 + number, 10**9, "down/x", b""))
    queue.apply(3, Settled(0, 10, 20, "down/x", "published"))
    assert [message.number for message in queue.after(-1)] == [1, 2]
    assert queue.position(4, 30) == Mark(10, 1)


# --- Two hub processes that write the messages of one edge by turns: each message has exactly one outcome


T = TypeVar("T")
LANE = lane_of("default", "press-1")
DRAIN_S = 150.0
UNSURE = Faults(unreported=0.2, misreported=0.2, late=0.1, latency_s=0.1)
SLOW = Faults(latency_s=0.6)


def _payload(number: int, size: int) -> bytes:
    """Return a payload that no compression makes smaller."""
    return b"%d %s" % (number, random.Random(number).randbytes(size))


def _number(payload: bytes) -> int:
    return int(payload.split(b" ", 1)[0])


class Process:
    """One hub process, with its part of the shard."""

    def __init__(self, node: SequencerNode) -> None:
        self.node = node

    async def start(self) -> None:
        await self.node.start()
        assert self.node.sequencer is not None
        sequencer = self.node.sequencer
        self.down = ShardDown(sequencer, lambda _: _never(), self.node.wall)

    async def stop(self) -> None:
        self.down.close()
        await self.node.kill()


async def _never() -> Any:
    raise AssertionError("the shard was not split")


class WritersModelTaker:
    """The edge, which keeps what it gets and answers at a step of its own."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.known: dict[tuple[int, int], MessageOutcome] = {}
        self.unanswered: list[MessageOutcome] = []
        self.link: LinkDown | None = None

    def takes(self, frame: Frame) -> None:
        assert isinstance(frame, Messages)
        for each in frame.messages:
            self._take(each)

    def _take(self, each: DownMessage) -> None:
        name = each.number, each.accepted
        if name not in self.known:
            if each.left:
                self.stored.append(_number(each.payload))
            kind = OutcomeKind.PUBLISHED if each.left else OutcomeKind.EXPIRED
            self.known[name] = MessageOutcome(each.number, each.accepted, kind)
        self.unanswered.append(self.known[name])

    def links(self, process: Process) -> None:
        self.leaves()
        first = 1 + max((number for number, _ in self.known), default=-1)
        self.link = LinkDown(process.down, LANE, first, self.takes, process.node.wall)

    def leaves(self) -> None:
        self.unanswered.clear()
        if self.link is not None:
            self.link.close()
            self.link = None

    def answers(self) -> None:
        told, self.unanswered = self.unanswered, []
        if self.link is not None and told:
            self.link.outcomes(told)


class Writers(RuleBasedStateMachine):
    """The edge's link is at one of the processes, and clients publish through both."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.taker = WritersModelTaker()
        self.processes: list[Process] = []
        self.count = 0
        self.accepted: set[int] = set()
        """Messages that are on the disk, by the word of the hub to their publisher."""
        self.requests: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize(seed=st.integers(0, 1 << 16), off_s=st.sampled_from([0.0, 0.01, 5.0]))
    def begins(self, seed: int, off_s: float) -> None:
        async def begun() -> None:
            self.store = MemoryStore()
            chunk = replace(SETTINGS, chunk_bytes_max=4000, pending_bytes_max=16_000)
            for number in range(2):
                process = Process(SequencerNode(self.store, random.Random(seed + number), chunk))
                process.node.off_s = number * off_s
                await process.start()
                self.processes.append(process)

        self.run(begun())

    @precondition(lambda self: self.processes)
    @rule(at=st.integers(0, 1), count=st.integers(1, 4), size=st.sampled_from([1, 900]), brief=st.booleans())
    def publishes(self, at: int, count: int, size: int, brief: bool) -> None:
        async def begun() -> None:
            for _ in range(count):
                self.count += 1
                left = 10_000_000 if brief else 86_400 * NS
                task = asyncio.create_task(self._publish(at, Draft("t", _payload(self.count, size), left)))
                self.requests.add(task)
                task.add_done_callback(self.requests.discard)

        self.run(begun())

    async def _publish(self, at: int, draft: Draft) -> None:
        with contextlib.suppress(CannotWrite, OutcomeUnknown, QueueFull):
            await self.processes[at].down.publish(LANE, draft)
            self.accepted.add(_number(draft.payload))

    @precondition(lambda self: self.processes)
    @rule(at=st.integers(0, 1))
    def links(self, at: int) -> None:
        async def linked() -> None:
            self.taker.links(self.processes[at])

        self.run(linked())

    @precondition(lambda self: self.taker.unanswered)
    @rule()
    def answers(self) -> None:
        async def answered() -> None:
            self.taker.answers()

        self.run(answered())

    @rule(seconds=st.sampled_from([0.02, 0.1, 0.3, 1.0, 3.0]))
    def waits(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @precondition(lambda self: self.processes)
    @rule(at=st.integers(0, 1), faults=st.sampled_from([CALM, UNSURE, SLOW]))
    def meets(self, at: int, faults: Faults) -> None:
        self.processes[at].node.store.faults = faults

    @precondition(lambda self: self.processes)
    @rule(at=st.integers(0, 1))
    def restarts(self, at: int) -> None:
        async def restarted() -> None:
            if self.taker.link is not None and self.taker.link._shard is self.processes[at].down:
                self.taker.leaves()
            await self.processes[at].stop()
            await self.processes[at].start()

        self.run(restarted())

    def teardown(self) -> None:
        try:
            if self.processes:
                self.run(self._drained())
        finally:
            with contextlib.suppress(Exception):
                self.runner.close()

    async def _drained(self) -> None:
        loop = asyncio.get_running_loop()
        for process in self.processes:
            process.node.store.faults = CALM
        if self.taker.link is None:
            self.taker.links(self.processes[0])
        end = loop.time() + DRAIN_S
        while loop.time() < end:
            await asyncio.sleep(1.0)
            self.taker.answers()
        with outcome():
            assert not self.requests
            for process in self.processes:
                assert process.node.sequencer is not None
                assert not waiting_lanes(process.node.sequencer.state)
                queue = await process.down.queue(LANE)
                assert (list(queue.waiting), queue.bytes, process.down._shared.bytes.used) == ([], 0, 0)
            await self._check_log()
        for process in self.processes:
            await process.stop()

    async def _check_log(self) -> None:
        sequencer = self.processes[0].node.sequencer
        assert sequencer is not None
        published, settled = dict[int, int](), Counter[int]()
        for chunk, _ in await read_chunks(self.store):
            async for _lane, _seq, record in read_chunk(sequencer.log, chunk):
                if isinstance(record, Waiting):
                    assert record.number not in published, "a number has two messages"
                    published[record.number] = _number(record.payload)
                elif isinstance(record, Settled):
                    settled[record.number] += 1
        assert self.accepted <= set(published.values())
        wrong = {number: settled[number] for number in {*published, *settled} if settled[number] != 1}
        assert not wrong, f"each message has one outcome: {wrong}"
        assert len(self.taker.stored) == len(set(self.taker.stored))


TestWriters = Writers.TestCase
TestWriters.settings = settings(
    max_examples=max(settings().max_examples // 5, 1),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
