"""No tenant's streams hold up another tenant's table by more than one bounded step."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest

from tests.cloud_hub.tables.logs import LANE, LogWriter, Run, contents, expected
from tests.cloud_hub.tables.test_tierer import drain, new_tierer
from weft.protocols.chunk_index import StreamKey
from weft.storage.object_store import ObjectStore
from weft.storage.table import rows
from weft.storage.table_writer.service import FairScheduler, TableService
from weft.storage.table_writer.settings import TableSettings
from weft.storage.table_writer.tiering import Tierer

HOSTILE = [("crowd", f"s{number}") for number in range(1000)]
OTHERS = [("other", "alarms"), ("other", "telemetry")]


class Worker:
    """Turns that take a second each on a clock of their own.

    Args:
        needed: turns that a stream needs; one, unless it is named.
    """

    def __init__(self, needed: dict[StreamKey, int] | None = None) -> None:
        self.now = 0.0
        self.order: list[StreamKey] = []
        self.at_once: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._needed = needed or {}

    async def turn(self, key: StreamKey) -> bool:
        self.order.append(key)
        self.at_once[key[0]] += 1
        self.most[key[0]] = max(self.most[key[0]], self.at_once[key[0]])
        await asyncio.sleep(0)
        self.now += 1
        self.at_once[key[0]] -= 1
        return self.order.count(key) < self._needed.get(key, 1)


def turns(worker: Worker, places: int = 4, seconds: float = 10_000) -> FairScheduler:
    return FairScheduler(places, seconds, lambda: worker.now)


async def test_a_tenant_with_a_thousand_streams_does_not_go_first() -> None:
    worker = Worker()
    assert not await turns(worker).run([*HOSTILE, *OTHERS], worker.turn)
    assert sorted(worker.order) == sorted([*HOSTILE, *OTHERS])
    assert max(worker.order.index(key) for key in OTHERS) < 10


async def test_one_long_stream_leaves_the_other_tenants_their_turns() -> None:
    worker = Worker({HOSTILE[0]: 100, OTHERS[0]: 3})
    await turns(worker, places=1).run([HOSTILE[0], *OTHERS], worker.turn)
    assert worker.order[:8].count(HOSTILE[0]) <= 5
    assert worker.order.count(HOSTILE[0]) == 100


async def test_the_last_place_is_left_to_another_tenant() -> None:
    worker = Worker()
    await turns(worker).run([*HOSTILE[:50], *OTHERS], worker.turn)
    assert worker.most["other"] >= 1
    alone = Worker()
    await turns(alone).run(HOSTILE[:50], alone.turn)
    assert alone.most["crowd"] == 4


async def test_what_a_pass_leaves_over_comes_first_in_the_next() -> None:
    worker = Worker()
    plan = turns(worker, places=1, seconds=10)
    keys = HOSTILE[:25]
    passes = 1
    while await plan.run([*keys, *OTHERS] if passes == 1 else keys, worker.turn):
        keys = [key for key in HOSTILE[:25] if key not in worker.order]
        passes += 1
        assert passes < 10
    assert sorted(worker.order) == sorted([*HOSTILE[:25], *OTHERS])


async def test_a_tenant_that_rested_has_saved_up_nothing() -> None:
    worker = Worker({HOSTILE[0]: 1000, OTHERS[0]: 1000})
    plan = turns(worker, places=1, seconds=100)
    await plan.run([HOSTILE[0]], worker.turn)
    await plan.run([HOSTILE[0], OTHERS[0]], worker.turn)
    late = worker.order[101:201]
    assert 45 <= late.count(OTHERS[0]) <= 55


async def test_rows_of_a_long_key_are_counted_before_they_are_made(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch says its key once. As rows, it is a thousand times as long."""
    for module in (rows, rows):
        monkeypatch.setattr(module, "BYTES_MAX", 1 << 20)
    log = await LogWriter.open(directory)
    run = Run(LANE, 0, 1000, key=b"k" * 60_000)
    await log.append(0, run)
    tierer = await new_tierer(directory, log, step_bytes_max=4 << 20)
    moved = [await tierer.step() for _ in range(3)]
    assert all(0 < count <= 90 for count in moved)
    assert await drain(tierer) == 1000 - sum(moved)
    assert contents(directory) == expected({0: [run]})


async def test_a_step_ends_when_its_time_is_over(directory: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rows, rows):
        monkeypatch.setattr(module, "ROWS_MAX", 10)
    log = await LogWriter.open(directory)
    await log.append(0, Run(LANE, 0, 100))
    slow = itertools.count()
    views = (await new_tierer(directory, log))._views
    tierer = Tierer(
        directory,
        log.cluster,
        "default",
        "telemetry",
        views,
        settings=TableSettings(step_seconds_max=3),
        monotonic=lambda: next(slow),
    )
    assert await tierer.step() == 30
    assert await drain(tierer) == 70
    assert contents(directory) == expected({0: [Run(LANE, 0, 100)]})


async def test_other_tenants_tables_are_made_while_one_has_a_thousand_streams(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    crowd = [Run(LANE._replace(tenant="crowd", stream=f"s{number}"), 0, 1) for number in range(30)]
    await log.append(0, *crowd, Run(LANE._replace(tenant="other"), 0, 5))
    service = TableService(directory, log.cluster)
    order: list[StreamKey] = []
    turn = service._turn

    async def watched(key: StreamKey) -> bool:
        order.append(key)
        return await turn(key)

    service._turn = watched  # type: ignore[method-assign]
    assert await service.run_once() == 35
    assert order.index(("other", "telemetry")) <= 4
