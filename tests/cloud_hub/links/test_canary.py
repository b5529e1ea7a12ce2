"""The canary of a real link: a round trip to a real hub's store, and an alarm where only the hub's process answers."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from functools import partial
from zoneinfo import ZoneInfo

import pytest

from tests.cloud_hub.faulty_store import CALM, FULL, Faults, FaultyStore
from tests.cloud_hub.links.test_conflicts import NODE, log_of
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import SequencerSettings
from weft.replication.events import CanaryState, LinkState, LinkStatus
from weft.replication.flow_control import SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.policy import BudgetRule, PolicyRules, StreamWindows
from weft.replication.runner.control import LinkControl
from weft.storage.object_store.directory import MemoryStore

pytestmark = pytest.mark.slow

SOON = SenderSettings(
    ping_interval=SECOND // 20, mark_interval=SECOND // 20, canary_interval=SECOND // 10, canary_patience=SECOND // 2
)
"""Canaries of a link that is idle for a tenth of a second."""
PATIENT = SequencerSettings(
    commit_interval_s=0.01, mark_interval_s=0.05, follow_interval_s=0.05, retry_max_s=0.1, unavailable_after_s=1e9
)
"""A hub that keeps links although its store fails."""
UTC = ZoneInfo("UTC")


def store_with(faults: Faults = CALM) -> FaultyStore:
    return FaultyStore(MemoryStore(), random.Random(1), faults)


def control(rules: PolicyRules, *, is_paused: bool = False) -> LinkControl:
    return LinkControl(rules, wall_clock=time.time_ns, is_paused=is_paused)


async def until_proven(link: LinkStatus, times: int = 2) -> None:
    """Wait for so many proofs, one after the other: the last one began after this call."""
    for _ in range(times):
        await until(partial(_is_proven_since, link, link.canary_time or 0))


def _is_proven_since(link: LinkStatus, time: int) -> bool:
    return link.canary is CanaryState.PROVEN and (link.canary_time or 0) > time


def written(hub: Hub) -> int:
    return sum(sum(sequencer.state.next_offset.values()) for sequencer in hub.sequencers)


async def test_an_idle_link_proves_again_and_again_that_the_hubs_store_takes_what_it_says() -> None:
    async with running_hub(store_with()) as hub, running_link(hub, EdgeLog(), NODE, sender=SOON) as link:
        await until_proven(link, 3)
        assert link.canary_alarm == ""
        assert link.canary_seconds is not None
        assert 0 < link.canary_seconds < PATIENCE_S
        assert time.time_ns() - (link.canary_time or 0) < PATIENCE_S * SECOND
        assert written(hub) == 0, "readers see nothing of it"


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_store_that_takes_nothing_alarms_although_the_hub_answers_pings(hangs: bool) -> None:
    store = store_with()
    async with running_hub(store, sequencer=PATIENT) as hub, running_link(hub, EdgeLog(), NODE, sender=SOON) as link:
        await until_proven(link)
        store.faults = FULL if not hangs else CALM
        if hangs:
            store.running.clear()
        try:
            await until(lambda: link.canary is CanaryState.OVERDUE)
            last, pinged = link.canary_time, link.ping_seconds
            await until(lambda: link.ping_seconds != pinged)
            assert (link.state, link.canary_time) == (LinkState.CONNECTED, last)
            assert "the hub answers, and its store has accepted nothing that was sent" in link.canary_alarm
            assert "look at the hub's store" in link.canary_alarm
        finally:
            store.faults = CALM
            store.running.set()
        await until(lambda: not link.canary_alarm)
        await until_proven(link)
        assert link.connections == 1


async def test_a_hub_that_sends_links_away_leaves_no_alarm_and_an_unknown_canary() -> None:
    store, hasty = store_with(), replace(PATIENT, unavailable_after_s=0.3)
    async with running_hub(store, sequencer=hasty) as hub, running_link(hub, EdgeLog(), NODE, sender=SOON) as link:
        await until_proven(link)
        store.faults = FULL
        await until(lambda: link.state is LinkState.WAITING)
        await until(lambda: link.canary is CanaryState.UNKNOWN and not link.canary_alarm)
        assert "trouble with its store" in link.last_error
        assert link.canary_seconds is not None, "the last one stays, with its time"
        store.faults = CALM
        await until_proven(link)


SHUT = PolicyRules(schedule=(StreamWindows(("*",), (), UTC),))
NOTHING_LEFT = PolicyRules(budget=BudgetRule(1, 1, UTC))


@pytest.mark.parametrize(("rules", "is_paused"), [(PolicyRules(), True), (SHUT, False), (NOTHING_LEFT, False)])
async def test_a_link_whose_data_waits_has_a_canary_that_takes_no_data_along(
    rules: PolicyRules, is_paused: bool
) -> None:
    orders = control(rules, is_paused=is_paused)
    async with (
        running_hub(store_with()) as hub,
        running_link(hub, log_of(9), NODE, sender=SOON, control=orders) as link,
    ):
        await until(lambda: link.pending_records == 9)
        await until_proven(link, 3)
        assert link.hold
        assert (link.records_acked, written(hub)) == (0, 0)
        await orders.pause(False)
        orders.adopt(PolicyRules())
        await until(lambda: link.pending_records == 0)
        assert written(hub) == 9


async def test_data_proves_the_store_without_a_canary() -> None:
    never = SenderSettings(ping_interval=SECOND // 20, canary_interval=3600 * SECOND)
    async with running_hub(store_with()) as hub, running_link(hub, log := EdgeLog(), NODE, sender=never) as link:
        await until(lambda: link.canary is CanaryState.PROVEN)
        opened = link.canary_time or 0
        for header, data in log_of(3).batches:
            log.append(header, data)
        await until(lambda: (link.canary_time or 0) > opened)
        assert link.records_acked == 3
