"""A hub node believes its clock only as far as others agree: what is permanent never has the time of a wrong one."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sinks.completeness.window_state import Limits
from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER, TRUE_START, SequencerNode, Session, make_batch
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.simulation import OFF_S, simulate_clocks, simulate_set_back
from tests.cloud_hub.virtual_time import NS, now_ns
from tests.support.silence import silent_logs
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub import hub as hubs
from weft.cloud_hub.clock import (
    DOUBTED_NS,
    PRECISION_NS,
    SECOND,
    TOOK_MAX_NS,
    WRONG_NS,
    ClockWrong,
    HubClock,
    OtherNodes,
)
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard.collector import GRACE_S, ShardCollector
from weft.cloud_hub.shard.lane_ends import LaneKeeper
from weft.config.functions.windows import Grid
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import Lane
from weft.protocols.shard import fold
from weft.protocols.shard.completeness import completeness
from weft.replication.runner import LinkIdentity
from weft.storage.chunk_log import ShardLog
from weft.storage.hub_keys import chunk_prefix
from weft.storage.object_store import Written, open_store
from weft.storage.object_store.directory import MemoryStore

NOW = 1_800_000_000 * SECOND
DAY = 86_400 * SECOND


class Machine:
    """A machine whose true time is known, and whose clock may be wrong."""

    def __init__(self, *, by_store: bool = True, is_synchronised: bool = False) -> None:
        self.boot = 77 * SECOND
        self.off = 0
        self.store_off = 0
        self.by_store = by_store
        self.is_synchronised = is_synchronised
        self.clock = HubClock(lambda: self.true + self.off, lambda: self.boot, lambda: self.is_synchronised)

    @property
    def true(self) -> int:
        return NOW + self.boot

    def look(self, after_s: float = 60.0, took_s: float = 0.1) -> None:
        """A minute passes, and an object is written, as the store sees it in the middle."""
        self.boot += int(after_s * SECOND)
        before = self.boot
        self.boot += int(took_s * SECOND)
        off = self.store_off if self.by_store else self.off
        time = self.true - int(took_s * SECOND) // 2 + off
        self.clock.wrote(before, self.boot, Written(time // SECOND * SECOND, self.by_store))


@pytest.mark.parametrize(
    ("off_s", "is_doubted", "is_wrong"),
    [(0, 0, 0), (4, 0, 0), (-4, 0, 0), (10, 1, 0), (-10, 1, 0), (120, 1, 1), (-120, 1, 1), *((s, 1, 1) for s in OFF_S)],
)
def test_a_clock_is_doubted_by_seconds_and_wrong_by_a_minute(off_s: float, is_doubted: int, is_wrong: int) -> None:
    machine = Machine()
    machine.off = int(off_s * SECOND)
    machine.look()
    assert (machine.clock.doubted() is not None, machine.clock.wrong() is not None) == (is_doubted, is_wrong)
    if is_wrong:
        with pytest.raises(ClockWrong, match="or let a time source do it"):
            machine.clock.sound()


def test_it_says_by_how_much_and_against_what() -> None:
    machine = Machine()
    machine.look()
    machine.off = 91 * DAY
    assert machine.clock.wrong() == "this machine's clock is 91.0 days ahead of the store's"
    machine.off = -3 * 3600 * SECOND
    assert machine.clock.wrong() == "this machine's clock is 3.0 hours behind the store's"


def test_a_clock_that_is_set_is_found_out_before_the_next_look() -> None:
    machine = Machine()
    machine.look()
    assert machine.clock.sound() == machine.true
    machine.off = 3600 * SECOND
    assert machine.clock.wrong() is not None
    machine.off = 0
    assert machine.clock.wrong() is None


@pytest.mark.parametrize("by_store", [True, False])
def test_one_odd_answer_of_a_store_stops_no_node(*, by_store: bool) -> None:
    machine = Machine(by_store=by_store, is_synchronised=True)
    for _ in range(3):
        machine.look()
    machine.store_off = 14 * 365 * DAY
    machine.look()
    assert machine.clock.doubted() is None
    machine.store_off = 0
    machine.look()
    assert machine.clock.doubted() is None


def test_a_store_whose_clock_was_set_is_believed_after_some_looks() -> None:
    machine = Machine()
    machine.off = machine.store_off = -3600 * SECOND
    machine.look()
    machine.off = machine.store_off = 0
    for _ in range(5):
        machine.look()
    assert machine.clock.doubted() is None


@pytest.mark.parametrize("is_synchronised", [True, False])
def test_a_folder_follows_the_clock_which_is_believed_if_a_time_source_set_it(*, is_synchronised: bool) -> None:
    machine = Machine(by_store=False, is_synchronised=is_synchronised)
    machine.look()
    machine.off = 14 * 365 * DAY
    for _ in range(9):
        machine.look()
    assert (machine.clock.wrong() is None) is is_synchronised


def test_a_folder_follows_small_steps() -> None:
    machine = Machine(by_store=False)
    for _ in range(100):
        machine.look()
        machine.off += 3 * SECOND
    machine.look()
    assert machine.clock.wrong() is None


@pytest.mark.parametrize("by_store", [True, False])
def test_a_clock_that_a_time_source_set_right_is_believed_at_the_next_look(*, by_store: bool) -> None:
    """A virtual machine that stood still for two minutes, and then learned the time."""
    machine = Machine(by_store=by_store, is_synchronised=True)
    for _ in range(5):
        machine.look()
    stood_still = 120 * SECOND
    machine.boot += SECOND
    machine.off += stood_still
    machine.store_off += stood_still
    assert machine.clock.wrong() is not None
    machine.look()
    assert machine.clock.doubted() is None


def test_a_file_server_whose_clock_was_set_right_is_followed() -> None:
    machine = Machine(by_store=False)
    machine.by_store = True  # times of a server, in a folder
    machine.store_off = 300 * SECOND

    def look() -> None:
        machine.boot += 60 * SECOND
        time = (machine.true + machine.store_off) // SECOND * SECOND
        machine.clock.wrote(machine.boot, machine.boot, Written(time, by_store=False))

    look()
    assert machine.clock.wrong() is not None
    machine.store_off = 0
    for _ in range(3):
        look()
    assert machine.clock.doubted() is None


def test_a_store_that_is_slow_tells_years_all_the_same() -> None:
    machine = Machine()
    machine.off = 14 * 365 * DAY
    machine.look(took_s=11)
    assert machine.clock.wrong() is not None
    machine.off = 0
    assert machine.clock.doubted() is None
    machine.look()
    machine.look(took_s=100)
    machine.off = 90 * SECOND
    assert machine.clock.wrong() is not None, "a precise look counts before one that took long"


async def test_measuring_leaves_nothing_behind_and_repeats_what_is_slow_once() -> None:
    store = MemoryStore(lambda: NOW)
    seconds = iter(range(0, 10**6, 11))
    clock = HubClock(lambda: NOW + 14 * 365 * DAY, lambda: next(seconds) * SECOND)
    await clock.measure(store)
    assert next(seconds) == 4 * 11, "two writes, each between two readings"
    assert clock.wrong() is not None
    assert await store.list("") == []


def test_without_any_word_a_clock_is_believed() -> None:
    machine = Machine()
    machine.off = 14 * 365 * DAY
    assert machine.clock.doubted() is None
    assert machine.clock.sound() == machine.true + machine.off


@pytest.mark.parametrize("off_s", OFF_S)
def test_chunks_of_other_nodes_count_where_neither_store_nor_kernel_decides(off_s: float) -> None:
    machine = Machine(by_store=False)
    others = OtherNodes(machine.clock)
    machine.off = int(off_s * SECOND)
    machine.look()
    before = 0
    for _ in range(3):
        assert machine.clock.wrong() is None, "one word is not enough"
        others.look()
        others.looked()
        created = machine.true + SECOND
        machine.boot += 20 * SECOND
        others.look()
        others.wrote(created, before)
        others.wrote(created, created)  # a node whose clock is behind the log repeats the log's
        others.looked()
        before = created
    assert "those of other nodes" in (machine.clock.wrong() or "")
    machine.boot += 301 * SECOND
    assert machine.clock.wrong() is None, "the others are gone"
    machine.boot -= 301 * SECOND
    machine.is_synchronised = True
    assert machine.clock.doubted() is None
    machine.is_synchronised, machine.by_store = False, True
    machine.off = 0
    machine.look()
    assert machine.clock.doubted() is None


offsets = st.integers(-20 * 365 * DAY, 20 * 365 * DAY) | st.integers(-90 * SECOND, 90 * SECOND)
looks = st.tuples(st.floats(0.1, 600), st.floats(0, 9) | st.floats(11, 100))


@given(offsets, st.lists(looks, min_size=1, max_size=7))
def test_what_is_claimed_of_a_clock_is_never_more_than_its_error(off: int, steps: list[tuple[float, float]]) -> None:
    """However long writes take: a slow store makes it less certain, never wrong."""
    machine = Machine()
    machine.off = off
    for after, took in steps:
        machine.look(after, took)
    found = machine.clock.off_ns
    assert found == 0 or (found > 0) == (off > 0)
    assert abs(found) <= abs(off)
    assert (machine.clock.wrong() is None) or abs(off) > WRONG_NS
    counted = [int(took * SECOND) for _, took in steps if took * SECOND <= TOOK_MAX_NS]
    longest = max(counted or [int(steps[-1][1] * SECOND)])
    if abs(off) > WRONG_NS + longest + 2 * PRECISION_NS:
        assert machine.clock.wrong() is not None
    if abs(off) > DOUBTED_NS + longest + 2 * PRECISION_NS:
        assert machine.clock.doubted() is not None


# --- a hub


async def until_answered(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():  # noqa: ASYNC110 - what a hub answers
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", ["bucket", "folder"])
async def test_a_hub_whose_clock_is_wrong_takes_no_links_and_claims_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    off = 0

    class SetClock(HubClock):
        def __init__(self, wall: Callable[[], int], boot: Callable[[], int]) -> None:
            super().__init__(lambda: wall() + off, boot, lambda: False)

    monkeypatch.setattr(hubs, "HubClock", SetClock)
    store = MemoryStore(time.time_ns) if kind == "bucket" else open_store(str(tmp_path))
    log = EdgeLog()

    async def chunks() -> int:
        return sum([len(await store.list(chunk_prefix(shard))) for shard in range(2)])

    async def completeness() -> dict[str, object]:
        answer = (await get(hub, "/v1/streams/telemetry/completeness"))[1]
        assert isinstance(answer, dict)
        return answer

    async with running_hub(store) as hub, running_link(hub, log, LinkIdentity("default", "edge", 7, "weft 0.1.0")):

        async def complete() -> bool:
            return (await completeness()).get("complete_up_to") is not None

        async def continues() -> bool:
            return await chunks() > before

        await until_answered(complete)
        off = 14 * 365 * DAY
        status, text = await get(hub, "/readyz")
        assert status == 503
        assert "this machine's clock is 14.0 years ahead of the store's" in str(text)
        answer = await completeness()
        assert answer["complete_up_to"] is None
        assert "hub_clock_wrong" in str(answer["held_back_by"])
        await asyncio.sleep(0.2)  # marks were due several times
        before = await chunks()
        await asyncio.sleep(0.3)
        assert await chunks() == before
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"{hub.url}/v1/link")
        assert refused.value.status == 503
        assert (await get(hub, "/v1/status"))[1]["clock"]["trouble"].startswith("this machine's clock is 14")
        assert caplog.text.count("accepts no links, writes no chunks, and retires and collects nothing") == 1
        off = 0
        assert (await get(hub, "/readyz"))[0] == 200
        await until(lambda: bool(hub.status().links))
        await until_answered(complete)
        log.append(*make_batch(Lane("default", "edge", 7, "telemetry"), 0, 5))
        await until_answered(continues)


# --- histories


def some(history: Callable[[int], object]) -> None:
    for seed in range(20):
        history(seed)


@pytest.mark.parametrize("seed", range(8))
def test_no_chunk_has_the_time_of_a_wrong_clock_in_histories(seed: int) -> None:
    simulate_clocks(seed)


@pytest.mark.search
def test_no_chunk_has_the_time_of_a_wrong_clock_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=60, night=800):
        simulate_clocks(seed)


def test_a_node_that_believes_its_clock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HubClock, "wrong", lambda *_: None)
    with pytest.raises(BaseException, match="is off by"):
        some(simulate_clocks)


@pytest.mark.parametrize("seed", range(6))
def test_a_time_of_the_future_is_lowered_for_good_in_histories(seed: int) -> None:
    simulate_set_back(seed)


@pytest.mark.search
def test_a_time_of_the_future_is_lowered_for_good_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=40, night=800):
        simulate_set_back(seed)


def test_a_fold_that_lowers_the_shards_time_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "lowered_lane", lambda held, _: held)
    with pytest.raises(BaseException, match="unhandled errors") as found:
        some(simulate_set_back)
    assert "was seen after" in repr(found.value)


# --- An hour with a node whose clock is wrong, beside a sound one and alone: it does nothing that it should not


MINUTE, DAY_S = 60 * NS, 86_400.0
WRONG_CLOCKS_OFF_S = {"14 years ahead": 14 * 365.25 * DAY_S, "91 days ahead": 91 * DAY_S, "in 1970": -TRUE_START / NS}
ALIVE = [Lane("default", f"edge-{number}", number, "telemetry") for number in (1, 2)]
AWAY = Lane("default", "edge-3", 3, "telemetry")
"""An edge that goes offline after three minutes. Few edges, so that no share of a fleet is too large to be retired."""
WRONG_MINUTES = 75
"""An hour and what the keepers' rounds need to see a lane twice in it."""
SOUND_NS = 60 * NS
"""Error of a clock that is believed."""


class World:
    """A store with a right clock, nodes with all that acts by a clock, and edges that send a record a minute."""

    def __init__(self, *, alone: bool) -> None:
        self.store = MemoryStore(lambda: TRUE_START + now_ns())
        self.nodes = [SequencerNode(self.store, random.Random(number)) for number in range(1 if alone else 2)]
        for node in self.nodes:
            node.is_synchronised = False
        self.log = ShardLog(self.store, CLUSTER, 0, now_ns)
        self.sent = dict.fromkeys([*ALIVE, AWAY], 0)
        self.marked = dict.fromkeys(self.sent, 0)
        """The latest mark that the hub may have, of each edge."""
        self.epoch = 0
        self.acknowledged = 0
        self.broken: set[str] = set()
        self.keepers: list[LaneKeeper] = []
        self.collectors: list[ShardCollector] = []

    @property
    def wrong(self) -> SequencerNode:
        return self.nodes[-1]

    async def start(self) -> None:
        async def tabled(_: int) -> int:
            return (await self.log.load()).n + 1

        for node in self.nodes:
            await node.start()
            log = ShardLog(self.store, CLUSTER, 0, now_ns)
            bits = node.rng.getrandbits
            assert node.sequencer is not None
            held = node.sequencer
            self.keepers.append(
                LaneKeeper(
                    [log],
                    lambda _, held=held: held.state,  # type: ignore[misc]
                    lambda *_: 1 << 60,
                    HubSettings("memory"),
                    clock=node.clock,
                    random_bits=bits,
                )
            )
            self.collectors.append(ShardCollector(log, tabled, DAY_S, clock=node.clock))

    async def send(self, lane: Lane, node: SequencerNode) -> None:
        """An edge links, sends one record more and its mark, if it is taken. It never gives up what is not
        acknowledged."""
        assert node.sequencer is not None
        self.epoch += 1
        session = Session(node.sequencer, lane, self.epoch, ["plant/{line}"])
        if not await session.open():
            return
        seq, self.sent[lane] = self.sent[lane], self.sent[lane] + 1
        held = session.acked.contiguous_end()
        self.marked[lane] = TRUE_START + now_ns()
        await session.send(held, seq + 1)
        while not session.acked.covers(held, seq + 1) and session.refusal is None:
            session.news.clear()
            await session.news.wait()
        if session.refusal is None:
            self.acknowledged += 1
            # As a link does: no moment beyond the hub's own clock.
            time = min(self.marked[lane], node.wall())
            node.sequencer.put_mark(session.lane_session, Mark(time, seq + 1))
        node.sequencer.leave(session.lane_session)

    async def minute(self, number: int) -> None:
        """Every present edge sends through every node; every tenth minute the rounds of all nodes are due."""
        for lane in self.sent if number < 3 else ALIVE:
            for node in self.nodes:
                await self.send(lane, node)
        if number % 10 == 0:
            for keeper, collector in zip(self.keepers, self.collectors, strict=True):
                await keeper.look()
                try:
                    await collector.look()
                except ClockWrong:
                    pass
            await self.check()
        await asyncio.sleep(MINUTE / NS - now_ns() % MINUTE / NS)

    async def check(self) -> None:
        state, now = await self.log.load(), TRUE_START + now_ns()
        manifest, _ = await self.log.manifest()
        if any(held.retired is not None for held in state.lanes.values()) or len(state.lanes) < len(self.sent):
            self.broken.add("a lane was retired")
        if manifest.watermark > 0 or await self.log.index(0) is None:
            self.broken.add("a young chunk was collected")
        every, grace = 60_000_000, 600_000_000
        given = Limits.at(None, state.created // 1000, Grid(every), grace).given_end * every
        if given > (now + SOUND_NS) // 1000 - grace:
            self.broken.add("a window was given out early")
        found = completeness(state.lanes, (), now)
        missing = min(self.marked.values())
        if set(found.covers) != set(self.sent) or (found.complete_up_to or 0) > missing:
            self.broken.add("a false claim of completeness")


async def _hour(off_s: float, *, alone: bool) -> World:
    world = World(alone=alone)
    if not alone:
        world.wrong.off_s = off_s  # it starts so
    await world.start()
    for number in range(WRONG_MINUTES + 6):
        if alone and number == 4:
            world.wrong.off_s = off_s  # it is set while the node runs
        if number == WRONG_MINUTES:
            before = world.acknowledged
            world.wrong.off_s = 0.0
        await world.minute(number)
    await asyncio.sleep(GRACE_S)
    await world.check()
    assert world.acknowledged - before >= 6 * len(ALIVE), "the node continues once its clock is right"
    for node in world.nodes:
        await node.kill()
    return world


def hour(off_s: float, *, alone: bool) -> World:
    return virtual_time.run(_hour(off_s, alone=alone))


@pytest.fixture
def quiet() -> Iterator[None]:
    with silent_logs():
        yield


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("alone", [False, True], ids=["beside a sound node", "alone"])
@pytest.mark.parametrize("off", WRONG_CLOCKS_OFF_S)
def test_a_wrong_clock_does_nothing_for_an_hour(off: str, alone: bool) -> None:
    world = hour(WRONG_CLOCKS_OFF_S[off], alone=alone)
    assert world.broken == set()
    sound = WRONG_MINUTES * len(ALIVE) if not alone else 4 * len(ALIVE)
    assert world.acknowledged >= sound, "edges of the sound node continued"


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "alone", [pytest.param(False, marks=pytest.mark.slow), True], ids=["beside a sound node", "alone"]
)
@pytest.mark.parametrize("off", ["14 years ahead", "91 days ahead"])
def test_a_node_that_believes_a_wrong_clock_is_found(off: str, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HubClock, "wrong", lambda *_: None)
    monkeypatch.setattr(HubClock, "sound", lambda clock: clock.now())
    breaks = {"a window was given out early", "a young chunk was collected"}
    # Beside a sound node the edge that goes away was last seen "in three months", too.
    assert hour(WRONG_CLOCKS_OFF_S[off], alone=alone).broken >= (breaks | {"a lane was retired"} if alone else breaks)
