"""Several makers of one table that do not know of each other: rows, joins and new columns at the same time.

Nodes divide the tables of a store only as far as they know of each other. Each history has three that all make the
table, with calls to the store in an order of its own, while the log and the declared schema grow.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.tables.logs import LANE, OTHER, TOPICS, LogWriter, Run, contents, expected
from tests.cloud_hub.tables.test_crashes import FIRST, SECOND, STORE_CALLS
from tests.support.slices import SLICE
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings, TableTerms

HISTORIES = SLICE.amount(ci=8, night=60)
ROUNDS, MAKERS = 5, 3
WAITS, WAIT_S_MAX = 0.15, 0.05
"""Share of the calls that wait, and their longest wait: as long as a step of another maker takes."""
BOUNDS = TableSettings(compact_files_min=2, checkpoint_versions=3, file_rows_max=4)


class SlowStore:
    """A store whose calls take a while, each another one."""

    def __init__(self, store: ObjectStore, chance: random.Random) -> None:
        self._store, self._chance = store, chance

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name not in STORE_CALLS:
            return call

        async def slow(*arguments: Any, **named: Any) -> Any:
            await self._wait()
            result = await call(*arguments, **named)
            await self._wait()
            return result

        return slow

    async def _wait(self) -> None:
        if self._chance.random() < WAITS:
            await asyncio.sleep(self._chance.random() * WAIT_S_MAX)


class Makers:
    """Makers of the tables of one store, and a log that grows."""

    def __init__(self, root: Path, log: LogWriter, chance: random.Random) -> None:
        self._log, self._chance = log, chance
        self.store = open_store(str(root))
        self.runs: dict[int, list[Run]] = {0: [], 1: []}
        self._schema = [None] * MAKERS
        self._makers = [
            TableService(
                SlowStore(self.store, random.Random(chance.random())),
                log.cluster,
                settings=BOUNDS,
                terms=TableTerms(schema=lambda _, number=number: self._schema[number]),  # type: ignore[misc]
            )
            for number in range(MAKERS)
        ]
        for each in self._makers:
            each._makes_all = True

    async def write(self) -> None:
        for shard, lane in ((0, LANE), (1, OTHER)):
            for _ in range(self._chance.randrange(3)):
                first = sum(run.count for run in self.runs[shard])
                run = Run(lane, first, self._chance.randint(1, 6), topics=None if first else TOPICS)
                self.runs[shard].append(run)
                await self._log.append(shard, run)

    async def make(self) -> None:
        """Let all of them make a round at once, each with the schema that it knows of by now."""
        for number in range(MAKERS):
            if self._chance.random() < 0.3:
                self._schema[number] = self._chance.choice([FIRST, SECOND])  # type: ignore[call-overload]
        await asyncio.gather(*(maker.run_once() for maker in self._makers))


@pytest.mark.search(turns=2)
@pytest.mark.timeout(1800)
async def test_makers_that_do_not_know_of_each_other_double_and_lose_nothing(tmp_path: Path) -> None:
    for number in range(HISTORIES):
        seed = SLICE.seed * 1000 + number
        root = tmp_path / str(number)
        makers = Makers(root, await LogWriter.open(open_store(str(root))), random.Random(seed))
        for _ in range(ROUNDS):
            await makers.write()
            await makers.make()
            found = contents(makers.store) if any(makers.runs.values()) else []
            assert len(found) == len(set(found)), f"history {seed}"
        await makers.make()
        await makers.make()
        assert contents(makers.store) == expected(makers.runs), f"history {seed}"
