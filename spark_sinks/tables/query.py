"""The running pipeline ``tables``: rounds of the table step on a driver, as a query that can be waited for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_sinks.errors import SinkError
from spark_sinks.runtime.session import register
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.stream_log import open_hub
from spark_sinks.tables.clock import LOOK_S, DriverClock
from spark_sinks.tables.work import StoreAccess
from spark_sinks.tables.writer import SparkWriter
from weft.storage.cluster import ClusterUnusable, read_cluster
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.presence.keepers import Claim
from weft.storage.table.followed import FollowedDeclarations
from weft.storage.table_maker.service import TableService
from weft.storage.table_maker.settings import TableSettings, TableTerms

PROGRESS_S = 1.0
"""Interval at which progress is noted."""
ROUNDS_KEPT = 100
SLOTS_UNKNOWN = 8
"""Number of tasks at a time that is assumed where the session does not say it: Spark Connect."""
ERRORS_SHOWN = 5


class Round(NamedTuple):
    """Progress of the tables since the one before."""

    number: int
    records: int
    """Records that became rows."""
    seconds: float
    behind: int
    """Records of the log that are not rows yet."""


@dataclass(frozen=True)
class TablesJob:
    """The tables that a pipeline makes, and their place."""

    name: str
    access: ReadOptions
    """The store; stream and tenant of it are not used."""
    tenants: str
    streams: str
    """Patterns of names, in which ``*`` stands for any characters."""
    interval_s: float | None
    """Time between rounds; None makes one, with all records that there are."""
    joined_bytes: int = TableSettings.compact_bytes_max
    streams_at_once: int = 8

    def settings(self) -> TableSettings:
        """Return the bounds of the table step on a driver."""
        return TableSettings(
            interval_s=self.interval_s or TableSettings.interval_s,
            compact_bytes_max=self.joined_bytes,
            compact_file_bytes_max=self.joined_bytes // 4,
            retention_hours=None,
            streams_at_once=self.streams_at_once,
            step_seconds_max=600.0,
            join_seconds_max=600.0,
        )


class TablesQuery:
    """Rounds of the table step in a thread, with the methods of Spark's ``StreamingQuery`` that callers use.

    Args:
        clock: nanoseconds since 1970.
        monotonic: seconds.
    """

    def __init__(
        self,
        job: TablesJob,
        spark: SparkSession,
        *,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = job.name
        self._clock, self._monotonic = clock, monotonic
        self._job, self._spark = job, spark
        self._over, self._stopping = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._rounds: list[Round] = []
        self._noted_rows, self._noted_at = 0, monotonic()
        self._end: Callable[[], None] = lambda: None
        """Ends the rounds; called from another thread."""
        self._thread = threading.Thread(target=self._run, name=f"weft-tables-{job.name}", daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802  (Spark's name)
        """Return whether the query runs."""
        return not self._over.is_set()

    @property
    def rounds(self) -> list[Round]:
        """Return the last rounds with progress, oldest first."""
        return list(self._rounds)

    def exception(self) -> BaseException | None:
        """Return the error with which the query ended; None while it runs and after a clean end."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait until the query ends, at most ``timeout`` seconds; return whether it has ended.

        Raises:
            BaseException: the error with which it ended.
        """
        ended = self._over.wait(timeout)
        if self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """End the query, hand the tables back to the hub, and wait for that. What was not committed is made again."""
        self._stopping.set()
        self._end()
        self._over.wait()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    async def _main(self) -> None:
        job, settings = self._job, self._job.settings()
        register(self._spark)
        store, cluster = await open_hub(job.access)
        access = StoreAccess(job.access.store, job.access.store_options, cluster)
        tag = f"weft-tables-{job.name}-{id(self):x}"
        writer = SparkWriter(self._spark, access, settings, lambda: _slots(self._spark), tag)
        clock = DriverClock(
            store, lambda: max((state.created for state in service.states), default=0), clock=self._clock
        )
        declared = FollowedDeclarations(store, cluster.cluster_id)
        service = TableService(
            store, cluster, settings=settings, writer=writer, is_sound=clock.is_sound,
            claim=Claim(f"spark pipeline {job.name}", self._clock(), job.tenants, job.streams),
            terms=TableTerms(declared.schemas.of, declared.quality.of, declared.sort_of, declared.is_instead),
        )  # fmt: skip
        await clock.look()
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(stopping.set)

        self._end = end
        if self._stopping.is_set():
            return
        await declared.start()
        others = [asyncio.create_task(self._note(service)), asyncio.create_task(_looking(clock, store, service))]
        try:
            if job.interval_s is None:
                rounds = asyncio.create_task(service.catch_up())
                await asyncio.wait({rounds, waiting := asyncio.create_task(stopping.wait())},
                                   return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
                waiting.cancel()
                rounds.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await rounds
                if not stopping.is_set():
                    _check(service)
            else:
                service.start()
                await stopping.wait()
        finally:
            for task in others:
                task.cancel()
            await service.close()
            await declared.close()
            self._noted(service)

    async def _note(self, service: TableService) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            self._noted(service)

    def _noted(self, service: TableService) -> None:
        statuses = service.status()
        done, now = sum(each.rows_moved for each in statuses), self._monotonic()
        if done > self._noted_rows:
            number = self._rounds[-1].number + 1 if self._rounds else 0
            behind = sum(each.lag_records for each in statuses)
            self._rounds = [*self._rounds, Round(number, done - self._noted_rows, now - self._noted_at, behind)]
            self._rounds = self._rounds[-ROUNDS_KEPT:]
        self._noted_rows, self._noted_at = done, now


async def _looking(clock: DriverClock, store: ObjectStore, service: TableService) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        await clock.look()
        with contextlib.suppress(StoreError, ClusterUnusable):  # the rounds tell of a store that does not answer
            service.grow(await read_cluster(store))


def _check(service: TableService) -> None:
    """Check that a round left nothing behind.

    Raises:
        SinkError: a table was not made.
    """
    failed = [f"{each.tenant}/{each.stream}: {each.error}" for each in service.status() if each.error is not None]
    if service.error is not None:
        failed.insert(0, service.error)
    if failed:
        more = f", and {len(failed) - ERRORS_SHOWN} more" if len(failed) > ERRORS_SHOWN else ""
        raise SinkError(f"tables were not made: {'; '.join(failed[:ERRORS_SHOWN])}{more}")


def _slots(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:
        return SLOTS_UNKNOWN
