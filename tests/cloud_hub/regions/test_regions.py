"""Two regions: what one hub takes is in the other's log under the same lane, once, with nothing missing."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from examples.demo.fabric import free_port
from tests.cloud_hub.facts.test_hub import declare
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.regions.fabric import LANE, NODE, has, held, log_of, stored, to
from tests.cloud_hub.tables.logs import START, TOPICS, LogWriter, Run
from tests.edge_node.links.test_links import Life
from tests.support.epochs import MemoryEpochs
from tests.support.tokens import create_token
from tests.support.waiting import until
from weft.cloud_hub.auth.tokens import TokensUnusable, read_tokens
from weft.cloud_hub.facts.fact import CannotDeclare, Decision
from weft.cloud_hub.facts.hub import compare_region, pause_region
from weft.cloud_hub.facts.tenants import Quotas, set_tenant
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.regions import source
from weft.cloud_hub.regions.regions import PAUSED
from weft.commands.common import load_hub
from weft.commands.hub_settings import settings_of
from weft.config.links import Link
from weft.hub_api.rights import Scope
from weft.proofs.audit.report import compare_regions
from weft.protocols.chunk_index import GapRange, LaneFlag
from weft.protocols.lane import AUDIT_STREAM, AUDIT_TENANT, DOWN_STREAM, Lane
from weft.protocols.link import (
    CONFIG,
    PROTOCOL_VERSION,
    PULL,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Hello,
    LaneClosed,
    LaneOpen,
    LaneOpened,
    Refuse,
    RefuseCode,
    Welcome,
)
from weft.protocols.segment import GapReason
from weft.protocols.shard.placement import shard_of
from weft.replication.events import LinkState
from weft.replication.liveness import SECOND
from weft.replication.runner import LINK_PATH, LinkIdentity
from weft.storage.chunk_log import RegionPositions, ShardLog
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store.directory import MemoryStore

OTHER = Lane("default", "press-2", 8, "telemetry")
OTHER_NODE = LinkIdentity("default", "press-2", 8, "weft")


async def test_records_of_one_region_are_in_the_other_once_and_complete_up_to_the_same_moment() -> None:
    async with running_hub(MemoryStore()) as east, running_hub(MemoryStore(), regions=to(east.url)) as west:
        log = log_of(0, 10)
        async with running_link(west, log, NODE, epochs=MemoryEpochs(1)):
            await until(lambda: has(east, 10))
            log.append(*log_of(10, 20, batch=10).batches[0])
            await until(lambda: has(east, 20))
        there, here = held(east), held(west)
        assert (stored(east), stored(west)) == (20, 20)
        assert (there.topics, there.payload, there.partial) == (here.topics, here.payload, False)
        await until(lambda: held(west).whole_mark is not None and held(east).whole_mark == held(west).whole_mark)


async def test_an_edge_that_deleted_what_one_region_took_and_goes_to_the_other_leaves_both_whole() -> None:
    east_store, west_store = MemoryStore(), MemoryStore()
    async with running_hub(west_store) as west, running_link(west, log_of(0, 9), NODE, epochs=MemoryEpochs(1)) as link:
        await until(lambda: link.records_acked >= 9)
    async with running_hub(east_store, peers=True) as east:
        log = log_of(9, 15)
        log.gaps = [GapRange(0, 9, GapReason.ABSENT)]
        async with running_link(east, log, NODE, epochs=MemoryEpochs(5)):
            await log.until_released(15)
        assert held(east).whole_end() == 0, "completeness waits for the other region"
        async with running_hub(west_store, regions=to(east.url)):
            await until(lambda: has(east, 15) and not held(east).gaps)
    async with running_hub(west_store) as west, running_hub(east_store, regions=to(west.url)):
        await until(lambda: has(west, 15) and not held(west).gaps)
        assert stored(west) == 15


async def test_regions_that_relay_to_each_other_converge_although_both_are_killed() -> None:
    """Each sends on what the other sent, too: a loop, in which every record arrives once."""
    stores, ports = (MemoryStore(), MemoryStore()), (free_port(), free_port())
    urls = [f"http://127.0.0.1:{port}" for port in ports]

    async def run(stack: AsyncExitStack, at: int) -> Hub:
        regions = to(urls[1 - at], forwards=True)
        return await stack.enter_async_context(running_hub(stores[at], port=ports[at], regions=regions))

    async with AsyncExitStack() as first, AsyncExitStack() as second, AsyncExitStack() as edges:
        hubs = [await run(first, 0), await run(second, 1)]
        logs: list[EdgeLog] = []
        for hub, node, lane in ((hubs[0], NODE, LANE), (hubs[1], OTHER_NODE, OTHER)):
            logs.append(log_of(0, 6, lane=lane))
            await edges.enter_async_context(running_link(hub, logs[-1], node, epochs=MemoryEpochs(1)))
        for at, stack in ((0, first), (1, second)):
            for lane, log in zip((LANE, OTHER), logs, strict=True):
                log.append(*log_of(6 + 3 * at, 9 + 3 * at, lane=lane).batches[0])
            await stack.aclose()
            hubs[at] = await run(stack, at)
        await until(lambda: all(has(hub, 12, lane) for hub in hubs for lane in (LANE, OTHER)))
        # A loop would continue: each region takes a mark and passes it on, and no record a second time.
        await until(lambda: all(held(hub, lane).whole_mark is not None for hub in hubs for lane in (LANE, OTHER)))
        assert [stored(hub) for hub in hubs] == [24, 24]


async def test_the_position_in_the_store_follows_and_a_new_owner_goes_on_from_it() -> None:
    store = MemoryStore()
    shard = shard_of(LANE.tenant, LANE.edge, 2)
    async with running_hub(MemoryStore()) as east:
        async with running_hub(store, regions=to(east.url)) as west:
            async with running_link(west, log_of(0, 6), NODE, epochs=MemoryEpochs(1)):
                await until(lambda: has(east, 6))
            positions = RegionPositions(store, west.cluster)

            async def follows() -> bool:
                found, _ = await positions.read("east", shard)
                if found is None or found.report is None:
                    return False
                return found.records == 6 and found.next > 0 and found.report.state == "connected"

            await until(follows)
            found, _ = await positions.read("east", shard)
        assert found is not None
        assert found.peer == east.cluster.cluster_id.hex()
        assert found.report is not None
        assert found.report.error == ""
        async with running_hub(store, regions=to(east.url)) as west:
            log = log_of(0, 9)
            async with running_link(west, log, NODE, epochs=MemoryEpochs(5)):
                await until(lambda: has(east, 9))
        assert stored(east) == 9


async def test_times_of_a_clock_that_was_not_set_are_corrected_in_the_other_region_too() -> None:
    store, east_store, offset = MemoryStore(), MemoryStore(), START
    writer = await LogWriter.open(store, 2)
    shard = shard_of(LANE.tenant, LANE.edge, 2)
    await writer.append(shard, Run(LANE, 0, 3, topics=TOPICS, boot_offset=offset))
    async with running_hub(east_store) as east, running_hub(store, regions=to(east.url)):
        await until(lambda: has(east, 3))
        log = ShardLog(east_store, east.cluster, shard)
        chunks = [chunk async for chunk in log.indexes(0)]
        sections = [(chunk.footer, section) for chunk in chunks for section in chunk.footer.streams]
        assert [[clock.offset for clock in footer.clocks_of(section)] for footer, section in sections] == [[offset]]


async def test_a_region_at_another_cluster_is_refused_and_the_status_says_so() -> None:
    store, port = MemoryStore(), free_port()
    async with running_hub(store, regions=to(f"http://127.0.0.1:{port}")) as west:
        async with (
            running_hub(MemoryStore(), port=port) as east,
            running_link(west, log_of(0, 3), NODE, epochs=MemoryEpochs(1)),
        ):
            await until(lambda: has(east, 3))
        async with running_hub(MemoryStore(), port=port) as other:
            await until(lambda: any("and this link is for" in link.report().error for link in west.regions))
            assert stored(other) == 0


async def test_an_edge_goes_over_to_the_region_that_has_its_records_from_the_other_one(tmp_path: Path) -> None:
    """The hub has more than this log ever sent to it, and the log is no old copy."""
    async with running_hub(MemoryStore(), peers=True) as east, AsyncExitStack() as stack:
        west = await stack.enter_async_context(running_hub(MemoryStore(), regions=to(east.url), peers=True))
        link = Link(to=(west.url, east.url), retry_min_s=0.01, retry_max_s=0.05)
        async with Life(tmp_path / "node", cloud=link) as life:
            await life.append(5)
            await until(lambda: stored(east) == 5)
            await stack.aclose()
            await life.append(3)
            await until(lambda: stored(east) == 8 or life.state() is LinkState.CONFLICT)
            assert life.state() is LinkState.CONNECTED, life.links.statuses[0].last_error


async def order(hub: Hub, store: MemoryStore, decision: Decision) -> None:
    """Declare an operator's order in the cluster log of a hub."""
    await ClusterLog(store, hub.cluster.cluster_id).append(decision, Author(0, "mara", ""))


async def test_a_paused_region_gets_nothing_until_an_operator_lets_its_links_go_on() -> None:
    store, settings = MemoryStore(), {"cluster_log_interval_s": 0.02}
    async with running_hub(MemoryStore()) as east:
        async with running_hub(store, regions=to(east.url), **settings) as west:
            log = log_of(0, 3)
            async with running_link(west, log, NODE, epochs=MemoryEpochs(1)):
                await until(lambda: has(east, 3))
                await order(west, store, pause_region("east", paused=True))
                await until(lambda: {link.report().state for link in west.regions} == {PAUSED})
                log.append(*log_of(3, 6).batches[0])
                await log.until_released(6)
        async with running_hub(store, regions=to(east.url), **settings) as west:
            await until(lambda: any(link.report().lag_records == 3 for link in west.regions))
            assert {link.report().state for link in west.regions} == {PAUSED}, "a pause outlives a process"
            assert stored(east) == 3
            await order(west, store, pause_region("east", paused=False))
            await until(lambda: has(east, 6))
            with pytest.raises(CannotDeclare, match="is not paused"):
                await order(west, store, pause_region("east", paused=False))


async def test_a_region_that_was_restored_to_an_earlier_state_gets_what_it_lost_by_a_comparison() -> None:
    store, there, port = MemoryStore(), MemoryStore(), free_port()
    regions = to(f"http://127.0.0.1:{port}")
    async with running_hub(store, regions=regions, cluster_log_interval_s=0.02) as west:
        log = log_of(0, 6)
        async with running_link(west, log, NODE, epochs=MemoryEpochs(1)):
            async with running_hub(there, port=port) as east:
                await until(lambda: has(east, 6))
            earlier = copy.deepcopy(there)
            log.append(*log_of(6, 9).batches[0])
            async with running_hub(there, port=port) as east:
                await until(lambda: has(east, 9))
        async with running_hub(earlier, port=port) as east:
            await until(lambda: all(link.status.state is LinkState.CONNECTED for link in west.regions))
            assert stored(east) == 6
            await order(west, store, compare_region("east"))
            await until(lambda: has(east, 9))
            assert stored(east) == 9


async def test_a_lane_that_a_region_refuses_waits_by_itself_and_comes_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "CHUNKS_MAX", 2)
    monkeypatch.setattr(source, "AGAIN_S", 0.05)
    monkeypatch.setattr(source, "AGAIN_MAX_S", 0.05)
    there, cluster_log = MemoryStore(), {"cluster_log_interval_s": 0.02}

    async def set_quota(lanes: int, *, is_new: bool) -> None:
        await declare(east, there, set_tenant("default", Quotas(lanes=lanes), is_new=is_new))

    async with (
        running_hub(there, shards=1, **cluster_log) as east,
        running_hub(MemoryStore(), shards=1, regions=to(east.url)) as west,
    ):
        await set_quota(1, is_new=True)
        (link,) = west.regions
        log, waiting = log_of(0, 3), log_of(0, 6, lane=OTHER)
        async with running_link(west, log, NODE, epochs=MemoryEpochs(1)):
            await until(lambda: has(east, 3))
            async with running_link(west, waiting, OTHER_NODE, epochs=MemoryEpochs(1)):
                for end in range(6, 24, 3):  # each a chunk of its own, and more than the window has
                    log.append(*log_of(end - 3, end).batches[0])
                    await until(lambda end=end: has(east, end))  # type: ignore[misc]
                await waiting.until_released(6)
            assert not has(east, 6, OTHER)
            await until(lambda: link.report().lag_records == 6)
            assert "the others continue: stream telemetry of press-2" in link.report().error
            assert "1 lanes, its quota" in link.report().error
            await set_quota(2, is_new=False)
            await until(lambda: has(east, 6, OTHER))
            await until(lambda: (link.report().error, link.report().lag_records) == ("", 0))
        assert stored(east) == 27


def test_a_schedule_shuts_the_link_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "hub.yaml").write_text(
        "store: store\nregions: {east: {to: [https://east.example.com], schedule: {between: 01:00-05:00}}}\n"
    )
    (windows,) = settings_of(load_hub(str(tmp_path / "hub.yaml"))).regions["east"].schedule
    noon = 12 * 3600 * SECOND
    assert windows.has("any stream")
    assert windows.state(noon)[0] is False
    assert windows.opens_at(noon) == (24 + 1) * 3600 * SECOND


@pytest.mark.parametrize(("pin_s", "kept_s"), [(600, 600), (60, 300)])
async def test_metrics_say_for_how_long_the_log_waits_for_a_region(pin_s: int, kept_s: int) -> None:
    regions = to(f"http://127.0.0.1:{free_port()}", pin_s=pin_s)
    async with running_hub(MemoryStore(), regions=regions, retain_log_s=300) as west:

        async def are_told() -> bool:
            _, text = await get(west, "/metrics")
            return all(
                f'weft_hub_region_kept_seconds{{region="east",shard="{shard}"}} {kept_s}' in text for shard in (0, 1)
            )

        await until(are_told)


# --- docs/how-to/lose-a-region.md: one of two regions is lost, its edges go to the other, and it comes back


@dataclass
class TwoRegions:
    """A west and an east, which relay to each other, and an edge at each."""

    stack: AsyncExitStack
    stores: dict[str, MemoryStore] = field(default_factory=lambda: {"west": MemoryStore(), "east": MemoryStore()})
    ports: dict[str, int] = field(default_factory=lambda: {"west": free_port(), "east": free_port()})
    backup: MemoryStore = field(default_factory=MemoryStore)
    """The west's store after three records of its edge."""
    east_log: EdgeLog = field(default_factory=lambda: log_of(0, 3, lane=OTHER))

    async def hub(self, name: str, stack: AsyncExitStack, *, peer: str | None = None, forwards: bool = False) -> Hub:
        """Start the hub of a region, which names the other one ``peer``."""
        (other,) = self.ports.keys() - {name}
        (link,) = to(f"http://127.0.0.1:{self.ports[other]}", forwards=forwards).values()
        return await stack.enter_async_context(
            running_hub(
                self.stores[name],
                port=self.ports[name],
                regions={peer or other: link},
                peers=True,
                cluster_log_interval_s=0.02,
            )
        )

    async def lose_the_west(self) -> Hub:
        """Take records in both regions, lose the west, and have its edge go over. Return the east's hub."""
        async with AsyncExitStack() as lost, AsyncExitStack() as former:
            west, east = await self.hub("west", lost), await self.hub("east", former)
            log = log_of(0, 3)
            async with (
                running_link(west, log, NODE, epochs=MemoryEpochs(1)),
                running_link(east, self.east_log, OTHER_NODE, epochs=MemoryEpochs(1)),
            ):
                await until(lambda: all(has(hub, 3, lane) for hub in (west, east) for lane in (LANE, OTHER)))
                self.backup = copy.deepcopy(self.stores["west"])
                log.append(*log_of(3, 6).batches[0])
                await until(lambda: has(east, 6) and has(west, 6))
                await until(lambda: self._is_written(east))
        east = await self.hub("east", self.stack)
        log = log_of(6, 9)
        log.gaps = [GapRange(0, 6, GapReason.ABSENT)]  # the edge deleted what the west had acknowledged
        await self.stack.enter_async_context(running_link(east, log, NODE, epochs=MemoryEpochs(5)))
        await until(lambda: has(east, 9))
        assert not held(east).gaps, "the east has what the west had relayed"
        return east

    async def _is_written(self, east: Hub) -> bool:
        """Whether the east's store knows by now which cluster has what."""
        positions = RegionPositions(self.stores["east"], east.cluster)
        found = [(await positions.read("west", each.log.shard))[0] for each in east.sequencers]
        return any(each is not None and each.peer for each in found)

    async def agree(self) -> bool:
        stores = self.stores["west"], self.stores["east"]
        return (await compare_regions(stores, LANE.tenant, LANE.stream)).agree


@pytest.fixture
async def regions() -> AsyncIterator[TwoRegions]:
    async with AsyncExitStack() as stack:
        yield TwoRegions(stack)


async def resume(regions: TwoRegions, east: Hub, west: Hub) -> None:
    """Both take records again, and end with the same."""
    regions.east_log.append(*log_of(3, 6, lane=OTHER).batches[0])
    async with running_link(east, regions.east_log, OTHER_NODE, epochs=MemoryEpochs(5)):
        await until(lambda: has(west, 9) and has(west, 6, OTHER))
    await until(regions.agree)
    assert (stored(west), stored(east)) == (15, 15)


async def test_a_region_that_comes_back_from_a_backup_gets_what_it_lost_of_its_own_too(regions: TwoRegions) -> None:
    await regions.lose_the_west()
    await regions.stack.aclose()
    regions.stores["west"] = regions.backup
    east = await regions.hub("east", regions.stack, forwards=True)
    west = await regions.hub("west", regions.stack)
    assert stored(west) == 6
    await order(east, regions.stores["east"], compare_region("west"))
    await resume(regions, east, west)


async def test_a_region_that_comes_back_empty_is_another_cluster_and_gets_everything(regions: TwoRegions) -> None:
    east = await regions.lose_the_west()
    regions.stores["west"] = MemoryStore()
    async with AsyncExitStack() as first:
        west = await regions.hub("west", first)
        await until(lambda: any("and this link is for" in link.report().error for link in east.regions))
        assert stored(west) == 0
    await regions.stack.aclose()
    east = await regions.hub("east", regions.stack, peer="west-2", forwards=True)
    west = await regions.hub("west", regions.stack)
    await resume(regions, east, west)


# --- What a token of a region opens at the other hub, and what it does not


RELAY = int(LaneFlag.RELAY)
_ANSWERS = Welcome, Refuse, LaneClosed, LaneOpened


async def said(hub: Hub, token: str, hello: Hello, *openings: LaneOpen) -> list[Frame]:
    """What the hub answers to a HELLO, and to each lane."""
    found: list[Frame] = []
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.ws_connect(hub.url + LINK_PATH, headers=headers) as socket:
        await socket.send_bytes(FrameEncoder().encode([hello, *openings]))
        decoder = FrameDecoder()
        while len(found) < 1 + len(openings) and not any(isinstance(each, Refuse) for each in found):
            message = await socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                break
            found += [each for each in decoder.decode(message.data) if isinstance(each, _ANSWERS)]
    return found


def hello(tenant: str = "default", features: tuple[str, ...] = ()) -> Hello:
    return Hello(PROTOCOL_VERSION, tenant, "region-east-0", 1, 1, 0, "weft", list(features))


def opening(lane: Lane, flags: int = RELAY, number: int = 1) -> LaneOpen:
    return LaneOpen(number, *lane, 0 if flags & RELAY else 5, [], [], flags=flags)


async def test_a_link_with_a_token_of_a_region_relays_and_is_no_edge(tmp_path: Path) -> None:
    tokens, token_file = str(tmp_path / "tokens.yaml"), tmp_path / "token"
    token_file.write_text(create_token(tokens, "west", Scope.REGION, "*"))
    reader = create_token(tokens, "reader", Scope.READER)
    async with (
        running_hub(MemoryStore(), tokens=tokens) as east,
        running_hub(MemoryStore(), regions=to(east.url, token_file=str(token_file))) as west,
        running_link(west, log_of(0, 6), NODE, epochs=MemoryEpochs(1)),
    ):
        await until(lambda: has(east, 6))
        edges = (await get(east, "/v1/edges", reader))[1]["edges"]
        assert [each["edge"] for each in edges] == ["press-1"], "the region itself is none"
        assert (await get(east, "/v1/streams", token_file.read_text()))[0] == 403, "it reads nothing"


async def test_a_region_relays_lanes_of_its_tenant_and_does_nothing_else(tmp_path: Path) -> None:
    tokens = str(tmp_path / "tokens.yaml")
    of_one = create_token(tokens, "one", Scope.REGION, "default")
    of_all = create_token(tokens, "all", Scope.REGION, "*")
    edge = create_token(tokens, "edge", Scope.EDGE, "default", "press-2")
    other = LANE._replace(tenant="other")
    async with running_hub(MemoryStore(), tokens=tokens) as hub:
        _, opened, own, foreign, down, acts, beside = await said(
            hub,
            of_all,
            hello(),
            opening(LANE),
            opening(LANE._replace(stream="own"), 0, 2),
            opening(other, RELAY, 3),
            opening(LANE._replace(stream=DOWN_STREAM), RELAY, 4),
            opening(Lane(AUDIT_TENANT, "e", 1, AUDIT_STREAM), RELAY, 5),
            opening(Lane(AUDIT_TENANT, "e", 1, "telemetry"), RELAY, 6),
        )
        answers = {each.lane: each for each in (opened, own, foreign, down, acts, beside)}  # type: ignore[union-attr]
        assert isinstance(answers[1], LaneOpened)
        assert isinstance(answers[3], LaneOpened)
        refusals = {2: RefuseCode.UNAUTHORISED} | dict.fromkeys((4, 5, 6), RefuseCode.BAD_HELLO)
        for number, code in refusals.items():
            closed = answers[number]
            assert isinstance(closed, LaneClosed)
            assert closed.code == code
        _, refused = await said(hub, of_one, hello(), opening(other))
        assert isinstance(refused, LaneClosed)
        assert "does not allow to relay lanes of stream telemetry of tenant other" in refused.message
        for denied, greeting in (
            (of_one, hello("other")),
            (of_all, hello(features=(CONFIG,))),
            (of_all, hello(features=(PULL,))),
            (edge, hello()),
        ):
            [refusal] = await said(hub, denied, greeting)
            assert isinstance(refusal, Refuse)
            assert refusal.code == RefuseCode.UNAUTHORISED
        greeting = Hello(PROTOCOL_VERSION, "default", "press-2", 1, 1, 0, "weft")
        _, by_edge = await said(hub, edge, greeting, opening(LANE))
        assert isinstance(by_edge, LaneClosed)
        assert by_edge.code == RefuseCode.UNAUTHORISED, "an edge relays for no other"


def test_all_tenants_is_for_regions_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.yaml")
    create_token(path, "west", Scope.REGION, "*")
    with pytest.raises(TokensUnusable, match="tenant and edge need"):
        create_token(path, "reader", Scope.READER, "*")
    with pytest.raises(TokensUnusable, match="must not have one"):
        create_token(path, "east", Scope.REGION, "default", "press-1")
    [identity] = read_tokens(Path(path).read_bytes(), path)
    assert identity.rights.texts == ["relay:*"]
