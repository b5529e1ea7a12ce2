"""Quotas of tenants: at a rate links are slowed, at a number a new one waits; others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from examples.demo.fabric import free_port
from tests.cloud_hub.facts.test_hub import SOON, declare
from tests.cloud_hub.http.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.hostile.good_client import MEASURED_AGAIN, at_most
from tests.support.processes import Node, weft
from tests.support.speed import Stopwatch
from tests.support.waiting import until
from weft.bounds import NestedShares, Owner, OwnerKind, Refusals, Shares
from weft.cloud_hub import quotas as link_quota
from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.down.edge_queue import DownContext
from weft.cloud_hub.facts.fact import CannotDeclare
from weft.cloud_hub.facts.tenants import DeclaredQuotas, Quotas, set_tenant
from weft.cloud_hub.http.exchange import ReaderPlaces
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.links.open_links import OpenLinks
from weft.cloud_hub.quotas import SECOND, WAIT_MAX, LinkQuota, TenantCounts, TenantRate, Tenants
from weft.hub_api.answers import ApiError
from weft.hub_api.rights import Scope
from weft.protocols.lane import Lane
from weft.replication.events import LinkState
from weft.replication.runner import LinkIdentity
from weft.replication.runner import connection as runner
from weft.storage.object_store.directory import MemoryStore
from weft.storage.presence import NodeEntry

OTHER = LinkIdentity("default", "press-2", 0xDEF, "test")


def backlog(count: int, size: int, stream: str = "telemetry") -> EdgeLog:
    """A log of ``count`` batches, whose one record cannot be compressed."""
    log = EdgeLog(stream)
    for at in range(count):
        log.append(*records(at, [os.urandom(size)]))
    return log


def drained(links: int, size: int, rate: TenantRate, until_s: int, rtt: int = SECOND // 10) -> float:
    """Bytes a second of links that always have data. Each sends a message every 5 ms, until it is asked to wait."""
    free, total, now = [0] * links, 0, 0
    while now < until_s * SECOND:
        now = max(now, heapq.heappop(free))
        rate.take(size, 1, now)
        total += size
        wait = rate.wait(now)
        heapq.heappush(free, now + (wait + rtt if wait >= link_quota.SLACK_NS else SECOND // 200))
    return total / until_s


@pytest.mark.parametrize(
    ("links", "size", "per_second"), [(1, 65_536, 1 << 20), (7, 262_144, 1 << 20), (10_000, 4_096, 1 << 20)]
)
def test_a_backlog_of_any_number_of_links_drains_at_the_quota(links: int, size: int, per_second: int) -> None:
    rate = TenantRate(0)
    rate.set(per_second, None, 1.0, 0)
    seconds = 120
    # What the links send before they have heard of the quota counts too: the debt is paid in the time after.
    burst = per_second + links * size
    assert per_second * 0.9 <= drained(links, size, rate, seconds) <= per_second * 1.02 + burst / seconds


def test_records_bound_a_tenant_as_bytes_do_and_a_higher_quota_counts_at_once() -> None:
    rate = TenantRate(0)
    rate.set(None, 100, 1.0, 0)
    rate.take(10**9, 100, 0)
    assert rate.wait(0) == 0, "the quota of a second may come at once"
    rate.take(0, 500, 0)
    assert rate.wait(0) == 5 * SECOND
    rate.set(None, 1000, 1.0, SECOND)
    assert rate.wait(SECOND) == 4 * SECOND // 10
    rate.set(None, None, 1.0, SECOND)
    assert rate.wait(SECOND) == 0
    rate.set(0, None, 1.0, SECOND)
    rate.take(10**12, 1, SECOND)
    assert rate.wait(SECOND) == WAIT_MAX


class Processes:
    """Two processes of a hub that see each other's entries."""

    def __init__(self, quotas: Quotas) -> None:
        self.now = 0
        declared = DeclaredQuotas()
        declared._of = {"default": quotas}
        self.entries: list[dict[str, tuple[int, int]]] = [{}, {}]
        counts = TenantCounts(None, lambda: 0.0)
        self.tenants = [
            Tenants(declared, counts, Refusals(lambda: 0.0), lambda: self.now, others=partial(self.other, 1 - number))
            for number in range(2)
        ]

    def other(self, number: int) -> list[NodeEntry]:
        return [NodeEntry("id", "url", "weft", 1, 0, tenants=self.entries[number])]

    def exchange(self) -> None:
        self.entries = [each.entry() for each in self.tenants]
        for each in self.tenants:
            each.look()


def test_the_rate_of_a_process_is_that_of_its_last_ninety_seconds() -> None:
    processes = Processes(Quotas())
    tenants = processes.tenants[0]
    link = LinkQuota(tenants)
    link.lane_opened(1, Lane("default", "press-1", 1, "telemetry"))
    header, data = records(0, [b"a"] * 50)
    assert tenants.intake() is None
    for _ in range(1000):
        processes.now += SECOND
        link.data(1, [(header, memoryview(data))])
        rate = tenants.intake()
    assert rate is not None
    assert (rate.records_per_s, rate.bytes_per_s) == (50, len(data))
    assert 1 < rate.seconds <= 91
    processes.now += 60 * SECOND
    slower = tenants.intake()
    assert slower is not None
    assert 0 < slower.records_per_s < 50
    processes.now += 91 * SECOND
    still = tenants.intake()
    assert still is not None
    assert (still.records_per_s, still.bytes_per_s) == (0, 0)


class Active:
    def is_active(self, now: int) -> bool:
        return True

    def report_again(self, use: object) -> None:
        pass


def test_processes_share_a_quota_by_their_links_that_send() -> None:
    processes = Processes(Quotas(bytes_per_second=1_000_000, links=5))
    first, second = (each.of("default") for each in processes.tenants)
    assert first.share == second.share == 0.5, "a process that names no tenant yet counts as one like this"
    for at in range(4):
        (first if at < 3 else second).links[Active()] = None
    first.edges.update(["a", "b", "c"])
    second.edges["d"] = 1
    processes.exchange()
    assert (first.share, second.share) == (0.75, 0.25)
    assert first.rate.bytes.rate == 750_000
    assert processes.tenants[0].links("default") == 4
    second.links.clear()
    processes.now = 60 * SECOND
    processes.exchange()
    assert first.share == 1.0


async def test_a_link_at_the_quota_is_slowed_and_says_so_and_a_higher_quota_frees_it() -> None:
    store = MemoryStore()
    async with running_hub(store, **SOON) as hub:
        await declare(hub, store, set_tenant("default", Quotas(bytes_per_second=50_000), is_new=True))
        log = backlog(120, 10_000)
        async with running_link(hub, log, EDGE) as link:
            await until(lambda: "tenant default has" in link.hold)
            assert "throttled by the hub's quota" in link.hold
            assert link.state is LinkState.CONNECTED
            [at] = (await get(hub, "/v1/troubles"))[1]["at_quota"]
            assert (at["tenant"], at["quota"], at["limit"], at["edges"]) == ("default", "bytes_per_second", 50_000, 1)
            assert at["wait_seconds"] > 0
            await declare(hub, store, set_tenant("default", Quotas(bytes_per_second=10**9), is_new=False))
            await log.until_released(120)
        use = hub._tenants.of("default")
        assert use.streams["telemetry"].records >= 120
        assert use.streams["telemetry"].bytes >= 1_200_000
        await until(lambda: not use.links)
        assert use.waited_ns


async def test_an_edge_of_an_earlier_release_is_read_later_and_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "FEATURES", ("last-words", "config", "down", "pull", "canary"))
    monkeypatch.setattr(link_quota, "PAUSE_NS_MAX", SECOND // 2)
    store = MemoryStore()
    async with running_hub(store, **SOON) as hub:
        await declare(hub, store, set_tenant("default", Quotas(bytes_per_second=200_000), is_new=True))
        log = backlog(60, 10_000)
        began = time.monotonic()
        async with running_link(hub, log, EDGE) as link:
            await log.until_released(60)
            took = time.monotonic() - began
            assert (link.connections, link.attempts_failed, link.hold) == (1, 0, "")
        assert took >= (600_000 - 2 * 200_000) / 200_000


async def refused(quotas: Quotas, more: EdgeLog, identity: LinkIdentity, why: str) -> None:
    """One edge with one stream is there. ``more`` is refused, and taken once the quota is raised."""
    store = MemoryStore()
    async with running_hub(store, **SOON) as hub:
        await declare(hub, store, set_tenant("default", quotas, is_new=True))
        log = backlog(1, 10)
        async with running_link(hub, log, EDGE) as first:
            await log.until_released(1)
            async with running_link(hub, more, identity) as second:
                await until(lambda: why in second.last_error)
                assert "weft hub tenant set" in second.last_error
                assert second.state is not LinkState.REFUSED, "nobody has to change anything at the edge"
                [at] = (await get(hub, "/v1/troubles"))[1]["at_quota"]
                assert (getattr(quotas, at["quota"]), at["limit"], at["wait_seconds"]) == (1, 1, 0.0)
                log.append(*records(1, [b"x"]))
                await log.until_released(2)
                names = frozenset(name for name in Quotas.__struct_fields__ if getattr(quotas, name) is not None)
                await declare(hub, store, set_tenant("default", Quotas(), names, is_new=False))
                await more.until_released(1)
            assert first.connections == 1


@pytest.mark.parametrize(
    ("quotas", "make", "identity", "why"),
    [
        (Quotas(links=1), partial(backlog, 1, 10), OTHER, "tenant default has 1 linked edges, its quota"),
        (Quotas(lanes=1), partial(backlog, 1, 10), OTHER, "tenant default has 1 lanes, its quota"),
        (Quotas(streams=1), partial(backlog, 1, 10, "vibration"), OTHER, "tenant default has 1 streams, its quota"),
    ],
)
async def test_one_more_waits_for_room_and_what_is_there_goes_on(
    quotas: Quotas, make: Callable[[], EdgeLog], identity: LinkIdentity, why: str
) -> None:
    await refused(quotas, make(), identity, why)


async def test_an_edge_that_comes_back_is_no_further_link() -> None:
    store = MemoryStore()
    async with running_hub(store, **SOON) as hub:
        await declare(hub, store, set_tenant("default", Quotas(links=1), is_new=True))
        log = backlog(1, 10)
        async with running_link(hub, log, EDGE):
            await log.until_released(1)
            again = LinkIdentity(EDGE.tenant, EDGE.edge, 0x123, "test")
            async with running_link(hub, back := backlog(1, 10), again):
                await back.until_released(1)


class Lanes(dict[Lane, object]):
    """Lanes of a shard, which count how often it is asked for one."""

    asked = 0

    def __contains__(self, lane: object) -> bool:
        self.asked += 1
        return False


async def test_tenants_at_a_quota_are_found_in_one_walk_that_lets_others_run() -> None:
    lanes, tenants_max = Lanes(), 300
    state = SimpleNamespace(lanes=lanes, lane_count=lambda _: 0, tenant_streams=lambda _: ())
    shard = SimpleNamespace(loaded=True, state=state)
    shards = SimpleNamespace(own=[shard], count=1)
    counts = TenantCounts(cast(Any, shards), lambda: 0.0)
    declared, names = DeclaredQuotas(), [f"tenant-{number:03d}" for number in range(tenants_max)]
    declared._of = dict.fromkeys(names, Quotas(lanes=2))
    tenants = Tenants(declared, counts, Refusals(lambda: 0.0), lambda: 0)
    for number, name in enumerate(names):
        tenants.of(name)
        for stream in range(1 + number % 2):
            lane = Lane(name, "press-1", 1, f"s{stream}")
            counts._opening[lane] = cast(Any, shard)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    try:
        found = await tenants.at_quota()
    finally:
        beside.cancel()
    assert [(each.tenant, each.quota, each.limit) for each in found] == [(name, "lanes", 2) for name in names[1::2]]
    assert lanes.asked == tenants_max * 3 // 2, "each lane that opens is looked at once"
    assert turns > 1


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(CannotDeclare, match="at least 1"):
        set_tenant("acme", Quotas(bytes_per_second=0), is_new=True)


# --- Everything in a hub that has a total leaves room for other tenants, however many tokens one tenant has


EVIL, GOOD = "evil", "good"
TOKENS = 4_096
BY_TENANT = {"StreamFigures._named", "DownContext.bytes"}
"""Shares whose owners are tenants. One whose owners are tokens, edges or addresses is to be a ``NestedShares``."""
KNOWN = BY_TENANT | {
    "Answers._shares",
    "Answers._waiting",
    "Messages._under_way",
    "Messages._bytes",
    "StreamTails._places",
    "ChangeStreams._places",
    "Hub._links",
}
Bound = Shares[Any] | NestedShares[Any] | ReaderPlaces | OpenLinks


def bounds() -> Iterator[tuple[str, Bound]]:
    """Yield what has a total in the hubs of this process, with class and attribute that hold it."""
    for holder in gc.get_objects():
        kind = type(holder)
        if str(kind.__module__).startswith("weft.cloud_hub."):
            for name in {*getattr(holder, "__dict__", ()), *(name for each in kind.__mro__ for name in _slots(each))}:
                value = getattr(holder, name, None)
                if isinstance(value, Shares | NestedShares | ReaderPlaces | OpenLinks):
                    yield f"{kind.__name__}.{name}", value


def _slots(kind: type) -> tuple[str, ...]:
    slots = getattr(kind, "__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def leaves_room(bound: Bound, held: contextlib.ExitStack) -> bool:
    """Take all that one tenant can get with any number of tokens, and return whether another gets something."""
    if isinstance(bound, NestedShares):
        unit = max(1, bound._of_owners.share // 4)
        for token in range(TOKENS):
            while bound.take(EVIL, f"evil-{token}", unit):
                pass
        bound.hold(EVIL, "evil-0", 1 << 50)  # as an answer that is longer than it was expected to be
        return bound.take(GOOD, "good", unit)
    if isinstance(bound, Shares):
        unit = max(1, bound.share // 4)
        while bound.take(EVIL, unit):
            pass
        return bound.take(GOOD, unit)
    if isinstance(bound, ReaderPlaces):
        return (
            _takes_place(bound, GOOD, 0, held)
            if not all(_takes_place(bound, EVIL, token, held) for token in range(TOKENS))
            else False
        )
    for token in range(TOKENS):
        if not _links(bound, EVIL, token, held):
            break
    return _links(bound, GOOD, 0, held)


def _takes_place(places: ReaderPlaces, tenant: str, token: int, held: contextlib.ExitStack) -> bool:
    try:
        held.enter_context(places.taken(Owner(OwnerKind.TOKEN, f"{tenant}-{token}"), tenant))
    except ApiError:
        return False
    return True


class _Link:
    hello, is_over = None, False
    end: Callable[..., None]

    def __init__(self) -> None:
        self.end = lambda *_: setattr(self, "is_over", True)


def _links(links: OpenLinks, tenant: str, token: int, held: contextlib.ExitStack) -> bool:
    identity = TokenIdentity(f"{tenant}-{token}", "00", Scope.EDGE, tenant, f"edge-{token}")
    try:
        links.check_room(identity)
    except ApiError:
        return False
    link: Any = _Link()
    held.enter_context(links.opened(link, identity))
    return True


async def test_no_tenant_can_take_a_total() -> None:
    of_a_shard = DownContext()  # which a shard with messages to edges has
    async with running_hub(MemoryStore()):
        found = dict(bounds()) | {"DownContext.bytes": of_a_shard.bytes}
        assert {name for name in found if isinstance(found[name], Shares)} <= BY_TENANT, "make it a NestedShares"
        assert set(found) == KNOWN, "add it to the table; or say why the walk finds it no more"
        with contextlib.ExitStack() as held:
            taken = [name for name, bound in found.items() if not leaves_room(bound, held)]
        assert not taken, "one tenant can take all of it"


# --- A tenant that floods a hub at its quota leaves another's acknowledgements as they were


SAMPLES, PAUSE_S = 75, 0.03
FLOOR_S = 0.15
"""Noise of a busy machine, and of one commit more or less: a commit is due every 250 ms."""
FLOODING, BACKLOG, SIZE = 6, 400, 20_000


async def p99(hub: Hub, stopwatch: Stopwatch) -> float:
    """The 99th percentile of the time from a record's append to its acknowledgement, for one link of a tenant."""
    log, took = EdgeLog(), []
    identity = LinkIdentity("quiet", "press-1", time.monotonic_ns(), "test")
    async with running_link(hub, log, identity):
        for at in range(SAMPLES):
            stopwatch.start()
            log.append(*records(at, [b"x" * 100]))
            await log.until_released(at + 1)
            took.append(stopwatch.seconds())
            await asyncio.sleep(PAUSE_S)
    return sorted(took)[-max(1, SAMPLES // 100)]


async def measure(hub: Hub, stopwatch: Stopwatch) -> tuple[float, float, float]:
    """The quiet tenant's p99 alone and beside the flood, and the share of the flood that the hub took, bytes."""
    alone = await p99(hub, stopwatch)
    async with contextlib.AsyncExitStack() as links:
        logs = []
        for number in range(FLOODING):
            log = EdgeLog()
            for at in range(BACKLOG):
                log.append(*records(at, [os.urandom(SIZE)]))
            logs.append(log)
            await links.enter_async_context(running_link(hub, log, LinkIdentity("loud", f"e-{number}", 1, "test")))
        await asyncio.sleep(1)  # the burst of a second that a quota allows
        began, before = time.monotonic(), sum(log.released_ranges.count() for log in logs)
        beside = await p99(hub, stopwatch)
        taken = sum(log.released_ranges.count() for log in logs) - before
        return alone, beside, taken * SIZE / (time.monotonic() - began)


@pytest.mark.processes
@pytest.mark.slow
@MEASURED_AGAIN
def test_a_tenant_at_its_quota_does_not_delay_another(tmp_path: Path) -> None:
    config, port, quota = tmp_path / "hub.yaml", free_port(), 1_024_000
    config.write_text(f"listen: 127.0.0.1:{port}\nstore: store\nshards: 2\nprocesses: 1\ntables: null\n")
    node = Node("hub", config)
    try:
        done = weft("hub", "tenant", "add", str(config), "loud", "--bytes-per-second", "1000KiB")
        assert done.exit_code == 0, done.output
        time.sleep(3)  # a change counts two seconds later
        hub = cast(Hub, SimpleNamespace(url=node.url.rstrip("/")))
        alone, beside, rate = asyncio.run(measure(hub, Stopwatch(node.process.pid)))
    finally:
        node.stop()
    print(f"p99 alone {alone * 1000:.0f} ms, beside a flood at its quota {beside * 1000:.0f} ms; {rate:,.0f} B/s")
    at_most(1.5 * alone + FLOOR_S, beside)
    assert rate <= 1.2 * quota
