"""A pipeline ``tables`` that dies at every step: what it leaves is whole, and the hub finishes the work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_sinks.errors import SinkError
from spark_sinks.source.stream_log import open_hub
from spark_sinks.tables import query
from spark_sinks.tables.query import TablesJob
from spark_sinks.tables.work import StoreAccess
from tests.cloud_hub.tables.logs import LANE, OTHER, TOPICS, LogWriter, Run, contents, expected, table
from tests.cloud_hub.tables.test_crashes import Boundaries, Crash, WatchedStore, watch_delta
from tests.cloud_hub.tables.test_tierer import drain, new_tierer
from tests.spark_sinks.tables.test_query import query as started
from tests.support.slices import SLICE
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store
from weft.storage.presence import KEEPER_BEAT_S, MISSED_MAX
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BOUNDS = TableSettings(compact_files_min=2, checkpoint_versions=2, vacuum_interval_s=0.0)
"""A round writes rows, joins files, writes a checkpoint and vacuums."""
Runs = dict[int, list[Run]]


class Death(Boundaries):
    """Boundaries behind which nothing happens any more."""

    dead = False

    def crossing(self, name: str) -> bool:
        if self.dead:
            raise Crash(name)
        self.dead = self.fatal == len(self.calls)
        return super().crossing(name)


async def fill(root: Path) -> Runs:
    """A log of which a table with small files has the first part."""
    store = open_store(str(root))
    log = await LogWriter.open(store)
    runs: Runs = {0: [], 1: []}

    async def append(first: int) -> None:
        for shard, lane in ((0, LANE), (1, OTHER)):
            runs[shard].append(Run(lane, first, 3, topics=TOPICS))
            await log.append(shard, runs[shard][-1])

    for first in (0, 3):
        await append(first)
        await drain(await new_tierer(store, log))
    for first in (6, 9):
        await append(first)
    return runs


class HubAfter:
    """A hub node that looks twice: at once, and when a dead pipeline has missed its beats."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 100.0

    async def take_over(self, runs: Runs) -> None:
        store = open_store(str(self.root))
        rows = contents(store)
        assert len(rows) == len(set(rows))
        assert set(rows) <= set(expected(runs))
        assert set(expected({shard: each[:2] for shard, each in runs.items()})) <= set(rows), "a row is gone"
        service = TableService(
            store, await open_cluster(store, None), settings=TableSettings(), monotonic=lambda: self.now
        )
        await service._owners.start(waits=False)
        if service._owners.alive > 1:
            await service.run_once()
            assert contents(store) == rows, "the pipeline still counts as alive, and the hub left the table to it"
            self.now += MISSED_MAX * KEEPER_BEAT_S + 1
            await service._owners.look()
        await service.run_once()
        await service._owners.close()
        assert contents(store) == expected(runs)


def die(root: Path, spark: SparkSession, boundaries: Boundaries) -> BaseException | None:
    """Run the pipeline once over what there is."""

    async def opened(options: Any) -> Any:
        store, cluster = await open_hub(options)
        return WatchedStore(store, boundaries), cluster

    run = query.SparkWriter._run

    async def job(self: Any, *arguments: Any) -> Any:
        fatal = boundaries.crossing("job")
        result = await run(self, *arguments)
        if fatal:
            raise Crash("job")
        return result

    with pytest.MonkeyPatch.context() as patch:
        watch_delta(patch, boundaries)
        patch.setattr(query, "open_hub", opened)
        patch.setattr(query.SparkWriter, "_run", job)
        patch.setattr(TablesJob, "settings", lambda _: BOUNDS)
        try:
            started(str(root), spark).awaitTermination()
        except Crash as crash:
            return crash
    return None


def die_at(root: Path, spark: SparkSession, fatal: int | None, after: bool) -> list[str]:
    runs = asyncio.run(fill(root))
    boundaries = Death(fatal, after)
    crash = die(root, spark, boundaries)
    # The calls of shards run beside each other: the last ones may be one fewer than in the run that counted them.
    assert (crash is None) == (fatal is None or len(boundaries.calls) <= fatal)
    if fatal is None:
        assert contents(open_store(str(root))) == expected(runs)
        assert len(table(open_store(str(root))).file_uris()) == 2
    asyncio.run(HubAfter(root).take_over(runs))
    return boundaries.calls


@pytest.mark.search
@pytest.mark.timeout(1800)
def test_dying_at_any_step_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    calls = die_at(tmp_path / "whole", spark, None, False)
    assert calls.count("job") == 2, "one that writes rows, and one that joins files"
    assert {"create", "delta.checkpoint", "delta.vacuum", "delete"} <= set(calls)
    steps = [(fatal, after) for fatal in range(len(calls)) for after in (False, True)]
    for fatal, after in SLICE.some(steps, ci=10):
        die_at(tmp_path / f"{fatal}-{after}", spark, fatal, after)


def test_dying_around_its_jobs_and_commits_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    calls = die_at(tmp_path / "whole", spark, None, False)
    jobs = [at for at, name in enumerate(calls) if name == "job"]
    commits = [calls.index("create", at) for at in jobs]
    for fatal, after in [(jobs[0], True), (commits[0], False), (commits[0], True), (jobs[1], True), (commits[1], True)]:
        die_at(tmp_path / f"{fatal}-{after}", spark, fatal, after)


class KillingStore(WatchedStore):
    """A store that kills its process before or after the first file that it writes."""

    def __init__(self, store: Any, after: bool, marker: Path) -> None:
        super().__init__(store, Boundaries())
        self._after, self._marker = after, marker

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)
        if name not in {"create", "create_from"} or self._marker.exists():
            return call

        async def killed(*arguments: Any) -> Any:
            if self._after:
                await call(*arguments)
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

        return killed


@dataclass(frozen=True)
class KillingAccess(StoreAccess):
    """Access of executors that kill themselves once."""

    after: bool = False
    marker: Path = field(default=Path())

    def open(self) -> Any:
        return KillingStore(super().open(), self.after, self.marker)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["rows before", "rows after", "joined before", "joined after"])
def test_an_executor_that_dies_costs_a_job_and_no_record(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    root, marker, after = tmp_path / "store", tmp_path / "killed", what.endswith("after")
    runs = asyncio.run(fill(root))
    if what.startswith("joined"):
        # Only a join is left.
        asyncio.run(_drained(root))
    monkeypatch.setattr(TablesJob, "settings", lambda _: BOUNDS)
    monkeypatch.setattr(
        query, "StoreAccess", lambda uri, options, cluster: KillingAccess(uri, options, cluster, after, marker)
    )
    # Without a cluster, Spark repeats no task: the job fails, and this run or the next one makes it again.
    with contextlib.suppress(SinkError):
        started(str(root), spark).awaitTermination()
    assert marker.exists()
    assert "Python worker exited unexpectedly" in caplog.text
    started(str(root), spark).awaitTermination()
    assert contents(open_store(str(root))) == expected(runs)
    assert len(table(open_store(str(root))).file_uris()) == 2


async def _drained(root: Path) -> None:
    store = open_store(str(root))
    await drain(await new_tierer(store, await LogWriter.open(store)))
