"""The month's budget of the links to a region, which all processes of all hosts use together."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.regions.fabric import LANE, NODE, has, held, to
from tests.support.epochs import MemoryEpochs
from tests.support.processes import weft
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.regions.budget import FIRST_PARTS, PARTS, BudgetUse, RegionBudget, read_use
from weft.cloud_hub.settings import RegionSettings
from weft.commands.common import load_hub
from weft.commands.hub_settings import settings_of
from weft.output import Refused
from weft.protocols.batch import ClockReading, ClockState, columns_from_lists, encode, verify
from weft.replication.flow_control import SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.policy import BudgetRule
from weft.replication.runner import LinkSettings
from weft.storage.cluster import open_cluster
from weft.storage.hub_keys import region_budget_key
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.object_store.directory import MemoryStore

MEGABYTE = 1_000_000
RULE = BudgetRule(MEGABYTE, 1, ZoneInfo("UTC"))
IDLE_FOR_NOTHING = SenderSettings(ping_interval=1 << 60)
SETTINGS = RegionSettings(LinkSettings(("http://east",), sender=IDLE_FOR_NOTHING), budget=RULE)
MESSAGE = 100
"""Bytes that a link sends between two looks."""


class Clock:
    """A wall clock that only the test moves."""

    def __init__(self) -> None:
        self.set("2026-11-15")

    def set(self, day: str) -> None:
        self.now = int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * SECOND


def budget_of(store: ObjectStore, clock: Clock) -> RegionBudget:
    return RegionBudget(store, "east", SETTINGS, links=lambda: 2, wall_clock=lambda: clock.now)


@asynccontextmanager
async def process(store: ObjectStore, clock: Clock, *, is_killed: bool = False) -> AsyncIterator[RegionBudget]:
    """The budget of one process of the hub."""
    before, budget = asyncio.all_tasks(), budget_of(store, clock)
    budget.start()
    try:
        yield budget
    finally:
        if is_killed:
            for task in asyncio.all_tasks() - before:
                task.cancel()
        else:
            await budget.close()


def waits(budget: RegionBudget, clock: Clock) -> bool:
    """A link's look before a message: whether it has to wait."""
    budget.look(RULE, clock.now)
    return budget.is_spent(RULE, clock.now, 0.0)


async def spend(budget: RegionBudget, clock: Clock, most: int = 10 * MEGABYTE) -> int:
    """Send messages until ``most``, or until the month has nothing left; the bytes."""
    sent = 0
    while sent < most:
        if not waits(budget, clock):
            budget.add(MESSAGE)
            sent += MESSAGE
        elif "used up" in budget.why_spent(RULE):
            break
        await asyncio.sleep(0)
    return sent


async def counted(store: ObjectStore, month: str = "2026-11-01") -> int:
    return (await read_use(store, "east"))[0].of(month)


async def test_processes_use_one_budget_together_and_give_back_what_they_did_not_use() -> None:
    store, clock = MemoryStore(), Clock()
    async with process(store, clock) as first, process(store, clock) as second:
        await asyncio.gather(spend(first, clock, 200 * MESSAGE), spend(second, clock, 30 * MESSAGE))
    assert await counted(store) == 230 * MESSAGE
    async with process(store, clock) as first, process(store, clock) as second:
        sent = sum(await asyncio.gather(spend(first, clock), spend(second, clock)))
        assert waits(first, clock)
        assert waits(second, clock)
        assert first.why_spent(RULE).endswith("data waits until 2026-12-01 00:00 UTC")
    total = 230 * MESSAGE + sent
    assert MEGABYTE - 2 * MEGABYTE // PARTS <= total <= MEGABYTE + 2 * MESSAGE
    assert await counted(store) == total


async def test_what_killed_processes_had_taken_counts_as_used_and_is_little() -> None:
    store, clock, sent, kills = MemoryStore(), Clock(), 0, 50
    for _ in range(kills):
        async with process(store, clock, is_killed=True) as budget:
            sent += await spend(budget, clock, MESSAGE)
    first = MEGABYTE // PARTS // FIRST_PARTS
    assert sent - kills * MESSAGE <= await counted(store) <= sent + kills * 8 * first
    async with process(store, clock) as budget:
        sent += await spend(budget, clock)
    assert sent <= MEGABYTE + (kills + 1) * MESSAGE


async def test_the_store_is_written_a_thousand_times_a_budget_and_not_once_a_message() -> None:
    store, clock = MemoryStore(), Clock()
    async with process(store, clock) as budget:
        await spend(budget, clock, 5 * MEGABYTE // PARTS)
        before = budget.version
        await spend(budget, clock, 100 * MEGABYTE // PARTS)
        assert 90 <= budget.version - before <= 110


async def test_a_new_month_lets_data_go_on_and_a_restart_does_not() -> None:
    store, clock = MemoryStore(), Clock()
    async with process(store, clock) as budget:
        await spend(budget, clock)
    async with process(store, clock) as budget:
        assert await spend(budget, clock) == 0
        clock.set("2026-12-02")
        assert await spend(budget, clock, 10 * MESSAGE) == 10 * MESSAGE
    assert await counted(store, "2026-12-01") == 10 * MESSAGE
    assert await counted(store) >= MEGABYTE - MEGABYTE // PARTS


async def test_a_count_that_nobody_can_read_holds_data_back_and_says_what_to_do() -> None:
    store, clock = MemoryStore(), Clock()
    await store.create(region_budget_key("east"), b"damaged")
    async with process(store, clock) as budget:
        while "cannot be changed" not in budget.why_spent(RULE):
            assert waits(budget, clock)
            await asyncio.sleep(0)
        assert "Delete the object" in budget.why_spent(RULE)


async def test_links_that_do_not_wait_count_all_the_same() -> None:
    store, clock = MemoryStore(), Clock()
    budget = RegionBudget(store, "east", SETTINGS, links=lambda: 1, wall_clock=lambda: clock.now, holds=False)
    assert not waits(budget, clock)
    budget.add(700)
    await budget.settle()
    assert await counted(store) == 700


# -- real hubs

RECORD_BYTES, RECORDS = 50_000, 30


def noise() -> EdgeLog:
    """A log of more than a megabyte that does not compress, a record a batch."""
    log, rng = EdgeLog(LANE.stream), random.Random(1)
    for seq in range(RECORDS):
        columns = columns_from_lists(seq.to_bytes(8, "little"), [b"key"], [rng.randbytes(RECORD_BYTES)])
        data = encode(1, seq, columns, ClockReading(1, 1, ClockState.SYNCED))
        log.append(verify(data), data)
    return log


async def region(hub: Hub) -> dict[str, Any]:
    _, answer = await get(hub, "/v1/regions")
    (found,) = answer["configured"]
    return {"links": answer["regions"], **found}


@pytest.mark.timeout(120)
async def test_a_link_whose_budget_is_used_up_holds_its_records_and_says_until_when(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weft.cloud_hub.administration.READ_AGE_S", 0.0)
    today = datetime.now(UTC).day
    rule = BudgetRule(MEGABYTE, 1 + (today + 13) % 28, ZoneInfo("UTC"))  # no month ends meanwhile
    store, kept = MemoryStore(), {"retain_log_s": 86_400.0}

    async with running_hub(MemoryStore()) as east:

        async def is_held(west: Hub) -> bool:
            found = await region(west)
            return found["budget"]["used_up"] and any("is used up" in each["hold"] for each in found["links"])

        async with running_hub(store, regions=to(east.url, budget=rule), **kept) as west:
            log = noise()
            async with running_link(west, log, NODE, epochs=MemoryEpochs(1)):
                await log.until_released(RECORDS)
            await until(lambda: is_held(west))
            found = await region(west)
            (link,) = [each for each in found["links"] if each["hold"]]
            (stream,) = link["streams"]
            assert (stream["stream"], link["streams_behind"]) == ("telemetry", 1)
            assert 0 < stream["lag_records"] < RECORDS
            assert 6 * 86_400 < link["left_seconds"] <= 7 * 86_400
            assert MEGABYTE // 2 <= found["budget"]["used_bytes"] <= MEGABYTE
            _, metrics = await get(west, "/metrics")
            assert 'weft_hub_region_budget_used_up{region="east"} 1' in metrics
        before = held(east).records.end
        assert 0 < before < RECORDS
        async with running_hub(store, regions=to(east.url, budget=rule), **kept) as west:
            await until(lambda: is_held(west))
            assert held(east).records.end <= before + 1, "a restart does not begin to count anew"
        larger = rule._replace(size=100 * MEGABYTE)
        async with running_hub(store, regions=to(east.url, budget=larger), **kept):
            await until(lambda: has(east, RECORDS))


def test_a_budget_is_written_as_that_of_an_edge_s_link_and_the_status_says_it(tmp_path: Path) -> None:
    config, text = tmp_path / "hub.yaml", "store: store\nregions: {east: {to: [https://e.example.com], budget: %s}}\n"
    for budget, rule in (
        ("50GB", BudgetRule(50 * 10**9, 1, ZoneInfo("UTC"))),
        ("{size: 2MB, day: 15, zone: Europe/Berlin}", BudgetRule(2 * MEGABYTE, 15, ZoneInfo("Europe/Berlin"))),
    ):
        config.write_text(text % budget)
        assert settings_of(load_hub(str(config))).regions["east"].budget == rule
    config.write_text(text % "10kB")
    with pytest.raises(Refused, match="at least 1000000"):
        load_hub(str(config))

    config.write_text(text % "2MB")
    store = open_store(str(tmp_path / "store"))
    asyncio.run(open_cluster(store, 2))

    async def use() -> None:
        now = datetime.now(UTC)
        months = {f"{now:%Y-%m}-01": 3 * MEGABYTE}
        await store.create(region_budget_key("east"), json.dumps({"taken": months}).encode())

    asyncio.run(use())
    found = json.loads(weft("hub", "region", "status", config, "--json").output)["budgets"]["east"]
    assert (found["bytes"], found["used_bytes"], found["used_up"]) == (2 * MEGABYTE, 3 * MEGABYTE, True)
    assert "USED UP: records wait until then" in weft("hub", "region", "status", config).output
    assert BudgetUse({}).of("2026-11-01") == 0
