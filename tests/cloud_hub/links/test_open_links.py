"""Open links of a process: what continues after an error in the midst of it, and who makes room where it is full."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import cast

import aiohttp
import msgspec
import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import make_batch
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.virtual_time import now_ns
from tests.support.epochs import MemoryEpochs
from tests.support.silence import silent_logs
from tests.support.waiting import until
from weft.bounds import Refusals
from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.facts.tokens import Credentials
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.links.edge_link import EdgeLink
from weft.cloud_hub.links.open_links import (
    CLEAN_LOOKS,
    LOOK_INTERVAL_S,
    OBJECT_BYTES_MAX,
    READ_AGE_S,
    REPORT_LOOKS,
    REWRITE_LOOKS,
    SEND_ON_INTERVAL_S,
    LinkedEdges,
    OpenLinks,
)
from weft.cloud_hub.reads.edge_reports import EdgeReport
from weft.cloud_hub.reads.summaries import Linked
from weft.cloud_hub.shard.lane_ends import conflicts, note_conflicts
from weft.hub_api.answers import ApiError
from weft.hub_api.rights import Scope
from weft.hub_api.status import LostOfLane
from weft.protocols.chunk import encode_header
from weft.protocols.chunk_index import Chunk, ChunkHeader, Control, ControlKind, StreamBlock, encode_footer, index_of
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link import (
    PROTOCOL_VERSION,
    FrameDecoder,
    FrameEncoder,
    FunctionReport,
    Hello,
    LaneOpen,
    NodeReport,
    Refuse,
    RefuseCode,
)
from weft.protocols.shard.fold import fold
from weft.protocols.shard.lane_state import ConflictBody
from weft.protocols.shard.placement import shard_of
from weft.replication.events import LinkState
from weft.replication.runner import LINK_PATH, LinkIdentity
from weft.replication.source import OfferedLane
from weft.storage import hub_keys
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import StoreError
from weft.storage.object_store.directory import MemoryStore
from weft.storage.presence import NodeEntry


class Failing(OpenLinks):
    """Links whose two tasks meet an error at every step."""

    sent_on = ended = 0

    async def send_on(self, within_s: float | None = None) -> None:
        self.sent_on += 1
        raise ValueError(within_s)

    def end_revoked(self) -> None:
        self.ended += 1
        raise ValueError


def test_after_an_error_edges_are_still_sent_on_and_links_of_revoked_tokens_ended() -> None:
    async def main() -> None:
        links = Failing(10, 10, Refusals(lambda: 0.0), now_ns, Credentials(False, now_ns))
        with silent_logs():
            links.start()
            await asyncio.sleep(3.5 * SEND_ON_INTERVAL_S)
            await links.close()
        assert (links.sent_on, links.ended) == (3, int(3.5 * SEND_ON_INTERVAL_S / LOOK_INTERVAL_S))

    virtual_time.run(main())


class Link:
    """A link that says why it ended."""

    hello = None

    def __init__(self) -> None:
        self.why = ""

    @property
    def is_over(self) -> bool:
        return bool(self.why)

    def end(self, code: RefuseCode, message: str, advice: str) -> None:
        self.why = message


class Full:
    """A process whose total can be used up."""

    def __init__(self, total: int) -> None:
        self.refusals = Refusals(lambda: 0.0)
        self.links = OpenLinks(total, 8, self.refusals, lambda: 0, Credentials(False, lambda: 0))
        self._held = contextlib.ExitStack()

    def come(self, tenant: str, edge: int) -> Link:
        """An edge connects with a token of its own.

        Raises:
            ApiError: the hub is full.
        """
        identity = TokenIdentity(f"{tenant}-{edge}", "00", Scope.EDGE, tenant, f"edge-{edge}")
        self.links.check_room(identity)
        link = Link()
        self._held.enter_context(self.links.opened(cast(EdgeLink, link), identity))
        return link


def test_a_tenant_with_many_tokens_makes_room_for_another_tenants_edge() -> None:
    hub = Full(16)
    evil = [hub.come("evil", number) for number in range(16)]
    with pytest.raises(ApiError, match="16 links, its limit"):
        hub.come("evil", 16)
    good = [hub.come("good", number) for number in range(4)]
    assert [bool(link.why) for link in evil] == [True] * 4 + [False] * 12, "its oldest go"
    assert not any(link.why for link in good)
    assert "tenant evil has most of them" in evil[0].why
    assert [(found.bound, str(found.owner), found.times) for found in hub.refusals] == [
        ("limits.links", "tenant evil", 5)
    ]


def test_the_total_is_passed_by_some_that_are_ending_only() -> None:
    hub = Full(64)
    for number in range(64):
        hub.come("evil", number)
    come = 0
    with contextlib.suppress(ApiError):
        while come < 64:
            hub.come("good", come)
            come += 1
    assert 0 < come < 64
    assert len(hub.links) <= 64 + 16


# --- Every process of a hub tells which edges are linked to which, at a cost that does not grow with how often it is
# asked nor, while nothing changes, with the edges


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.reads = self.writes = 0

    async def get(self, key: str):  # type: ignore[no-untyped-def]
        self.reads += 1
        return await super().get(key)

    async def create(self, key: str, data):  # type: ignore[no-untyped-def]
        self.writes += 1
        return await super().create(key, data)

    async def swap(self, key: str, data, expected_etag: str):  # type: ignore[no-untyped-def]
        self.writes += 1
        return await super().swap(key, data, expected_etag)


class Process:
    """A process as the others see it."""

    def __init__(self, store: MemoryStore, name: str, others: list[str]) -> None:
        self.linked: dict[NodeName, Linked] = {}
        self.others = [NodeEntry(f"id-{each}", "", "weft", 1, 0, name=each) for each in others]
        self.now = 0.0
        self.lost: list[LostOfLane] = []
        self.reports: dict[NodeName, EdgeReport] = {}
        self.node_id = f"id-{name}"
        self.directory = LinkedEdges(
            store,
            self.node_id,
            lambda: self.linked,
            lambda: self.lost,
            lambda: self.others,
            reports=lambda: self.reports,
            monotonic=lambda: self.now,
        )

    def link(self, edge: str, since: int = 1) -> None:
        self.linked[NodeName("default", edge)] = Linked(since, "weft 9", 5, "")

    async def sees(self) -> dict[str, str]:
        self.now += READ_AGE_S
        return {name.edge: link.at for name, link in (await self.directory.elsewhere()).edges.items()}


async def test_a_process_sees_the_links_of_the_others_and_when_they_end() -> None:
    store = CountingStore()
    one, two = Process(store, "one", ["two"]), Process(store, "two", ["one"])
    assert (await one.directory.elsewhere()).unknown_at == ["two"]
    two.link("press-1")
    await two.directory.look()
    assert await one.sees() == {"press-1": "two"}
    assert (await one.directory.elsewhere()).unknown_at == []
    reads = store.reads
    for _ in range(50):
        await one.directory.elsewhere()
    assert store.reads == reads, "who asks again within seconds reads nothing"
    two.linked.clear()
    await two.directory.look()
    assert await one.sees() == {}


async def test_a_process_knows_the_lost_records_of_shards_of_others_whether_their_edge_is_linked_or_not() -> None:
    store = CountingStore()
    one, two = Process(store, "one", ["two"]), Process(store, "two", ["one"])
    two.link("press-1")
    two.lost = [LostOfLane("default", edge, "0" * 16, 3, "telemetry", 7, 5) for edge in ("press-1", "press-2")]
    await two.directory.look()
    assert await one.sees() == {"press-1": "two"}
    assert (await one.directory.elsewhere()).lost == two.lost
    two.lost = []
    await two.directory.look()
    assert await one.sees() == {"press-1": "two"}
    assert (await one.directory.elsewhere()).lost == []


def report(reported: int, functions: int = 0, text: str = "") -> EdgeReport:
    each = FunctionReport("hot", "where", 1, 1, 1, text)
    return EdgeReport(reported, NodeReport(reported, 1 << 30, 0, 1, 3600, [each] * functions, 0))


async def test_what_edges_say_of_themselves_is_known_everywhere_also_of_those_that_are_gone() -> None:
    store = CountingStore()
    one, two, three = (Process(store, name, ["one", "two", "three"]) for name in ("one", "two", "three"))
    press, saw = NodeName("default", "press-1"), NodeName("default", "saw-2")
    two.link("press-1")
    two.reports = {press: report(5, 3), saw: report(9)}
    three.reports = {press: report(4), saw: report(10)}  # the press was linked there before
    for each in (two, three):
        await store.create(hub_keys.node_key(each.node_id), b"x")
        await each.directory.look()
    assert await one.sees() == {"press-1": "two"}
    found = (await one.directory.elsewhere()).reports
    assert found == {press: report(5, 3), saw: report(10)}


async def test_reports_alone_are_written_once_a_minute() -> None:
    store = CountingStore()
    one = Process(store, "one", ["two"])
    one.link("press-1")
    for now in range(5 * REPORT_LOOKS):
        one.reports = {NodeName("default", "press-1"): report(now)}
        await one.directory.look()
    assert store.writes == 5
    one.link("press-2")
    await one.directory.look()
    assert store.writes == 6, "who comes is told at once"


async def test_the_functions_of_a_fleet_have_a_bound_and_no_edge_takes_the_room_of_another() -> None:
    store = CountingStore()
    one, two = Process(store, "one", ["two"]), Process(store, "two", ["one"])
    rng = random.Random(1)
    for n in range(2000):
        text = "".join(map(chr, rng.choices(range(0x10000, 0x10FFFF), k=160)))
        two.reports[NodeName("default", f"long-{n}")] = report(1, 32, text)
    modest = NodeName("default", "modest")
    two.reports[modest] = report(1, 2)
    await two.directory.look()
    (written,) = await store.list(hub_keys.LINKED)
    assert written.size <= OBJECT_BYTES_MAX
    found = (await one.directory.elsewhere()).reports
    assert len(found) == 2001
    assert found[modest] == report(1, 2)
    long = found[NodeName("default", "long-0")].report
    assert (len(long.functions) + long.functions_more, long.functions_more > 0) == (32, True)


async def test_an_edge_that_moved_is_where_it_came_to_last() -> None:
    store = CountingStore()
    one, two, three = (Process(store, name, ["one", "two", "three"]) for name in ("one", "two", "three"))
    two.link("press-1", since=10)
    three.link("press-1", since=20)
    for each in (two, three):
        await each.directory.look()
    assert await one.sees() == {"press-1": "three"}


async def test_nothing_is_written_while_no_edge_comes_or_goes_and_none_is_asked() -> None:
    store = CountingStore()
    alone, one = Process(store, "alone", []), Process(store, "one", ["two"])
    for n in range(10_000):
        alone.link(f"press-{n}")
        one.link(f"press-{n}")
    for _ in range(REWRITE_LOOKS):
        await alone.directory.look()
        await one.directory.look()
    assert store.writes == 1
    (written,) = await store.list(hub_keys.LINKED)
    assert written.size < 200_000, "ten thousand edges are an object of some hundred kilobytes"


async def test_what_killed_processes_left_is_removed() -> None:
    store = MemoryStore()
    one = Process(store, "one", ["two"])
    await store.create(hub_keys.linked_key("dead"), b"x")
    await store.create(hub_keys.linked_key("id-two"), b"x")
    await store.create(hub_keys.node_key("id-two"), b"x")
    for _ in range(CLEAN_LOOKS + 1):
        await one.directory.look()
    assert [each.key for each in await store.list(hub_keys.LINKED)] == ["linked/id-one", "linked/id-two"]


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x78\x01" + b"\0" * 40])
async def test_an_object_that_cannot_be_read_is_a_process_whose_links_are_unknown(data: bytes) -> None:
    store = MemoryStore()
    one = Process(store, "one", ["two"])
    await store.create(hub_keys.linked_key("id-two"), data)
    found = await one.directory.elsewhere()
    assert (dict(found.edges), found.unknown_at) == ({}, ["two"])


async def test_a_removed_object_comes_again() -> None:
    store = MemoryStore()
    one, two = Process(store, "one", ["two"]), Process(store, "two", ["one"])
    two.link("press-1")
    await two.directory.look()
    await store.delete(hub_keys.linked_key("id-two"))
    for _ in range(REWRITE_LOOKS):
        await two.directory.look()
    assert await one.sees() == {"press-1": "two"}


async def test_a_store_that_does_not_answer_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    one, two = Process(store, "one", ["two"]), Process(store, "two", ["one"])
    two.link("press-1")
    with monkeypatch.context() as broken:

        async def fails(*_: object) -> str:
            raise StoreError("the network is cut")

        broken.setattr(store, "create", fails)
        with pytest.raises(StoreError):
            await two.directory.look()
    await two.directory.look()
    assert await one.sees() == {"press-1": "two"}


# --- Two nodes with one log: the hub notes the refused one, and completeness stands still until an operator decides


LANE = Lane("default", "press-1", 7, "telemetry")
NODE = LinkIdentity("default", "press-1", 7, "weft")
COMPLETENESS = "/v1/streams/telemetry/completeness"


def log_of(count: int) -> EdgeLog:
    log = EdgeLog()
    log.append(*make_batch(LANE, 0, count))
    return log


class WithoutLanes(EdgeLog):
    """The log of an edge that has no record yet."""

    def lanes(self) -> list[OfferedLane]:
        return []


async def test_a_hub_that_stops_says_so_to_an_edge_that_has_no_record_yet(caplog: pytest.LogCaptureFixture) -> None:
    """Else its link ends some seconds later, with the hub's connections, and the edge tells of a broken network."""
    caplog.set_level(logging.INFO)
    async with contextlib.AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running_hub(MemoryStore()))
        async with running_link(hub, WithoutLanes(), NODE, epochs=MemoryEpochs()) as link:
            await until(lambda: link.state is LinkState.CONNECTED)
            await stack.aclose()
            await until(lambda: link.state is not LinkState.CONNECTED)
    (ended,) = [each.getMessage() for each in caplog.records if each.getMessage().startswith("link hub: disconnected")]
    assert "the hub is shutting down; connect to another node, or try again" in ended


async def test_a_hub_that_stops_says_so_to_an_edge_that_has_not_greeted_it_yet() -> None:
    async with contextlib.AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running_hub(MemoryStore()))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with session.ws_connect(hub.url + LINK_PATH) as socket:
            stopping = asyncio.create_task(hub.close())
            message = await socket.receive()
            assert message.type is aiohttp.WSMsgType.BINARY
            (refused,) = FrameDecoder().decode(message.data)
            assert isinstance(refused, Refuse)
            assert (refused.code, refused.message) == (RefuseCode.UNAVAILABLE, "the hub is shutting down")
            await socket.receive()
        await stopping


async def held_back(hub: Hub) -> list[str]:
    status, answer = await get(hub, COMPLETENESS)
    return [each["reason"] for each in answer["held_back_by"] if each["reason"] != "late"] if status == 200 else []


async def moment(hub: Hub) -> str | None:
    found: str | None = (await get(hub, COMPLETENESS))[1]["complete_up_to"]
    return found


async def decide(store: MemoryStore, hub: Hub) -> None:
    """What `weft hub adopt` writes."""
    log = ShardLog(store, hub.cluster, shard_of(LANE.tenant, LANE.edge, 2))
    state = await log.load()
    header = ChunkHeader(state.cluster_id, state.n + 1, state.created, state.shard, state.footer_crc, 99)
    reported = StreamBlock([], [Control(ControlKind.ADOPT, *LANE, b"")], [])
    footer = index_of(header, state.fold_level, [], reported)
    tail, crc = encode_footer(footer)
    fold(state, Chunk(header, footer, crc))
    await log.create(header.n, encode_header(header) + tail)


async def test_a_refused_copy_holds_back_its_streams_until_an_operator_decides() -> None:
    store, log, epochs = MemoryStore(), log_of(3), MemoryEpochs()
    async with running_hub(store) as hub:
        async with running_link(hub, log, NODE, epochs=epochs) as taken:
            await log.until_released(3)
            await until(lambda: moment_is_known(hub))
            async with running_link(hub, log_of(3), NODE, epochs=MemoryEpochs(epochs.proposed[-1] - 1)) as copy:
                await until(lambda: copy.state is LinkState.CONFLICT)
                await until(lambda: is_held_back(hub, ["conflict"]))
            stands_at = await moment(hub)
            assert stands_at is not None
            await asyncio.sleep(0.3)  # marks of the node that was taken continue
            assert await moment(hub) == stands_at
            status = (await get(hub, "/v1/status"))[1]
            [reported] = status["conflicts"]
            assert (reported["edge"], reported["stream"], reported["refused_epoch"]) == (
                "press-1",
                "telemetry",
                epochs.proposed[-1],
            )
            assert "the hub accepted this log before with epoch 1, and it now connects with 1" in reported["why"]
            assert b"weft_hub_conflicts 1" in (await text(hub, "/metrics"))

            connections = taken.connections
            await decide(store, hub)
            await until(lambda: taken.connections > connections)  # with an epoch of its own
            await until(lambda: is_held_back(hub, []))
            await until(lambda: has_moved_on(hub, stands_at))


async def test_a_process_that_owns_no_shard_tells_of_the_conflicts_of_all() -> None:
    store, log, epochs = MemoryStore(), log_of(3), MemoryEpochs()
    async with running_hub(store) as hub, running_link(hub, log, NODE, epochs=epochs):
        await log.until_released(3)
        async with running_link(hub, log_of(3), NODE, epochs=MemoryEpochs(epochs.proposed[-1] - 1)) as copy:
            await until(lambda: copy.state is LinkState.CONFLICT)
            await until(lambda: is_held_back(hub, ["conflict"]))
        async with running_hub(store) as other:  # it has just come, and owns nothing for half a minute
            assert (await get(other, "/v1/status"))[1]["conflicts"] == []
            reported = (await get(other, "/v1/troubles"))[1]
            assert reported["conflicts"] == (await get(hub, "/v1/status"))[1]["conflicts"] != []
            nodes = (await get(other, "/v1/nodes"))[1]["nodes"]
            assert sorted((each["state"], bool(each["owns"])) for each in nodes) == [
                ("joining", False),
                ("ready", True),
            ]


@pytest.mark.slow
async def test_after_the_decision_the_refused_node_may_be_the_one() -> None:
    store, log = MemoryStore(), log_of(3)
    async with running_hub(store) as hub:
        async with running_link(hub, log, NODE, epochs=MemoryEpochs(4)):
            await log.until_released(3)
        right = log_of(3)
        async with running_link(hub, right, NODE, epochs=MemoryEpochs(1)) as refused:
            await until(lambda: refused.state is LinkState.CONFLICT)
            await until(lambda: is_held_back(hub, ["conflict"]))
        await decide(store, hub)
        await until(lambda: is_held_back(hub, []))
        async with running_link(hub, right, NODE, epochs=MemoryEpochs(1)) as now_taken:
            await right.until_released(3)
            assert now_taken.state is LinkState.CONNECTED


async def test_a_connection_that_its_edge_gave_up_is_no_second_node() -> None:
    store, log = MemoryStore(), log_of(3)
    async with running_hub(store) as hub:
        async with running_link(hub, log, NODE, epochs=MemoryEpochs(4)):
            await log.until_released(3)
        hello = Hello(PROTOCOL_VERSION, LANE.tenant, LANE.edge, LANE.log_id, 1, 0, "weft")
        opening = LaneOpen(0, *LANE, 2, [])
        async with aiohttp.ClientSession() as session, session.ws_connect(hub.url + LINK_PATH) as socket:
            await socket.send_bytes(FrameEncoder().encode([hello, opening]))
            await socket.receive()
            assert socket._response.connection is not None
            transport = socket._response.connection.transport
            assert transport is not None
            transport.abort()  # the network drops what the edge gave up: no close frame comes
        await until(lambda: status_has_no_links(hub))
        assert await held_back(hub) == []


async def test_each_lane_is_noted_once_and_only_for_a_claim_that_is_not_higher() -> None:
    store, log = MemoryStore(), log_of(3)
    async with running_hub(store) as hub:
        async with running_link(hub, log, NODE, epochs=MemoryEpochs(4)):
            await log.until_released(3)
        shard = ShardLog(store, hub.cluster, shard_of(LANE.tenant, LANE.edge, 2))
        state = await shard.load()
        assert conflicts(state, {LANE: 6}, "why") == []
        assert conflicts(state, {LANE._replace(stream="other"): 5}, "why") == []
        await asyncio.gather(
            *(
                note_conflicts(shard, {LANE: 5}, f"why {each}", wall_clock=lambda: 0, random_bits=lambda _: each)
                for each in range(5)
            )
        )
        noted = await shard.load()
        assert noted.n == state.n + 1
        assert list(noted.conflicts) == [LANE]


async def moment_is_known(hub: Hub) -> bool:
    return await moment(hub) is not None


async def is_held_back(hub: Hub, by: list[str]) -> bool:
    return await held_back(hub) == by


async def has_moved_on(hub: Hub, stands_at: str) -> bool:
    now = await moment(hub)
    return now is not None and now > stands_at


async def status_has_no_links(hub: Hub) -> bool:
    links: list[object] = (await get(hub, "/v1/status"))[1]["links"]
    return not links


async def text(hub: Hub, path: str) -> bytes:
    async with aiohttp.ClientSession() as session, session.get(hub.url + path) as answer:
        return await answer.read()


def test_the_body_of_a_conflict_is_two_values() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ConflictBody(3, "why"))) == [3, "why"]
