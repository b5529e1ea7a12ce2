"""What a hub's log says of its edges, however often they connect."""

from __future__ import annotations

import asyncio
import logging
import time
import tracemalloc

import pytest

from tests.cloud_hub.api.test_application import records
from tests.cloud_hub.live import EdgeLog, get, running_hub
from tests.support.clocks import Clock
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.cloud_hub.links.edge_link import EDGES_MAX, HubLinkLog
from weft.protocols.link import Clock as ClockNotice
from weft.replication.events import LinkStatus
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.storage.object_store.directory import MemoryStore
from weft.text.status import clock_trouble

CONFLICT = "refused: a connection with epoch 4 has taken over; this one has 3"


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def log(clock: Clock, caplog: pytest.LogCaptureFixture) -> HubLinkLog:
    caplog.set_level(logging.INFO)
    return HubLinkLog(clock)


def test_an_edge_that_comes_goes_and_comes_is_three_lines(
    log: HubLinkLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log.connected("default/press-7", "10.0.0.7", "abc", "weft 0.1.0")
    clock.now += 7200
    log.disconnected("default/press-7", "10.0.0.7", "nothing came for 20 s")
    clock.now += 600
    log.connected("default/press-7", "10.0.0.9", "abc", "weft 0.1.0")
    assert caplog.messages == [
        "edge default/press-7 at 10.0.0.7: connected, log abc, weft 0.1.0",
        "edge default/press-7 at 10.0.0.7: disconnected after 2.0 hours: nothing came for 20 s",
        "edge default/press-7 at 10.0.0.9: connected again, log abc, weft 0.1.0, after 10.0 minutes away",
    ]


def test_a_refused_edge_is_told_rarely_and_once_when_it_is_taken(
    log: HubLinkLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(120):
        log.refused("default/press-7", "10.0.0.7", "refused: the hub holds as many lanes as it may")
        clock.now += 30
    assert len(caplog.messages) <= 8
    log.connected("default/press-7", "10.0.0.7", "abc", "weft 0.1.0")
    assert caplog.messages[-1].endswith("after 60.0 minutes away, refused 120 times")


def test_an_edge_back_before_its_old_link_is_given_up_stays_connected(
    log: HubLinkLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log.connected("default/press-7", "10.0.0.7", "abc", "weft 0.1.0")
    log.connected("default/press-7", "10.0.0.7", "abc", "weft 0.1.0")
    log.disconnected("default/press-7", "10.0.0.7", CONFLICT)
    assert caplog.messages[1:] == [f"edge default/press-7 at 10.0.0.7: {CONFLICT} (another link of this edge is open)"]
    clock.now += 10
    log.disconnected("default/press-7", "10.0.0.7", "closed")
    assert "disconnected after 10 seconds: closed" in caplog.messages[-1]


def test_two_nodes_of_one_identity_are_told_of_with_both_addresses_and_fill_no_disk(
    log: HubLinkLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log.connected("default/press-7", "10.0.0.7", "abc", "weft 0.1.0")
    for _ in range(288):
        clock.now += 300
        log.refused("default/press-7", "10.0.0.8", CONFLICT)
    assert "edge default/press-7 at 10.0.0.8: refused: a connection with epoch" in caplog.messages[1]
    assert len(caplog.messages) < 40


def test_strangers_are_told_of_by_address_and_reason(
    log: HubLinkLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        log.turned_away("10.0.0.8", "refused (401): no valid token; send a token")
    log.turned_away("10.0.0.8", "timed out waiting for HELLO")
    log.turned_away("10.0.0.9", "refused (401): no valid token; send a token")
    assert len(caplog.messages) == 3


def test_memory_is_bounded_when_ever_new_names_come(log: HubLinkLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    tracemalloc.start()
    try:
        for number in range(EDGES_MAX + 2000):
            log.refused(f"default/edge-{number}", "10.0.0.8", CONFLICT)
        assert tracemalloc.get_traced_memory()[0] < EDGES_MAX * 2048
    finally:
        tracemalloc.stop()


async def test_an_edge_whose_clock_is_off_by_years_is_told_so_by_its_log_and_its_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, status, years = EdgeLog(), LinkStatus("cloud"), 20 * 365 * 86_400 * 10**9
    log.append(*records(0, [b"x"]))
    async with running_hub(MemoryStore()) as hub:
        link = asyncio.create_task(
            run_link(
                log,
                LinkIdentity("default", "press-1", 1, "test"),
                LinkSettings((hub.url,), token=lambda: None),
                MemoryEpochs(),
                status,
                wall_clock=lambda: time.time_ns() - years,
            )
        )
        await log.until_released(1)
        await until(lambda: any("clock is 20.0 years behind the hub's" in each.getMessage() for each in caplog.records))
        link.cancel()
        await asyncio.gather(link, return_exceptions=True)
    assert status.clock_offset_ns is not None
    facts = {"links": {"cloud": {"clock_offset_seconds": status.clock_offset_ns / 1e9}, "other": {}}}
    assert clock_trouble(facts) == "20.0 years behind the hub's"


class _SynchronisedClocks:
    """Those of a machine whose time source is wrong."""

    is_synchronised, is_unknown = True, False

    def note_time(self, hub: str, time: int, error: int) -> None:
        """Its clock counts as right."""

    def notices(self) -> list[ClockNotice]:
        return []


@pytest.mark.parametrize("vouched", [False, True])
async def test_a_hub_counts_edges_whose_synchronised_clocks_are_not_its_own(
    caplog: pytest.LogCaptureFixture, vouched: bool
) -> None:
    """It continues by its own: what an edge says of the time decides nothing."""
    log, status, ahead = EdgeLog(), LinkStatus("cloud"), 120 * 10**9
    log.append(*records(0, [b"x"]))
    async with running_hub(MemoryStore()) as hub:
        link = asyncio.create_task(
            run_link(
                log,
                LinkIdentity("default", "press-1", 1, "test"),
                LinkSettings((hub.url,), token=lambda: None),
                MemoryEpochs(),
                status,
                wall_clock=lambda: time.time_ns() + ahead,
                clocks=_SynchronisedClocks() if vouched else None,
            )
        )
        await log.until_released(1)
        _, metrics = await get(hub, "/metrics")
        _, answer = await get(hub, "/v1/status")
        _, edges = await get(hub, "/v1/edges")
        link.cancel()
        await asyncio.gather(link, return_exceptions=True)
    assert edges["edges"][0]["clock_off_seconds"] == answer["links"][0]["clock_off_seconds"]
    assert f"weft_hub_links_clock_differs {int(vouched)}.0" in metrics
    [seen] = answer["links"]
    assert (seen["clock_off_seconds"] == pytest.approx(120, abs=20)) is vouched
    assert answer["clock"]["trouble"] is None
    said = [each for each in caplog.messages if "its clock, which a time source keeps right, is" in each]
    assert len(said) == vouched
