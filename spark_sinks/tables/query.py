"""The running pipeline ``tables``: rounds of the table step on a driver, as a query that can be waited for."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_sinks.errors import SinkError
from spark_sinks.runtime.session import register
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.stream_log import open_hub
from spark_sinks.tables.work import COLUMNS, Failure, JoinWork, LogPart, RowsWork, StoreAccess, prefix_of, running
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane
from weft.storage.cluster import ClusterUnusable, read_cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, StoreError
from weft.storage.object_store.probe import PREFIX
from weft.storage.presence import Claim
from weft.storage.table.actions import DataFile, TableError
from weft.storage.table.rows import of_shards
from weft.storage.table.schemas import FollowedDeclarations
from weft.storage.table_writer.parquet_file import levels_of
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings, TableTerms
from weft.storage.table_writer.writers import OF_ONE_SHARD, Joined, Made, RowsRequest, StreamRows, lacking

# The writer of tables on a cluster of Spark: it plans parts of the log by its indexes, and executors write them.

PART_BYTES_MIN = 8 << 20
"""Bytes of log below which records of a shard are not cut: a file each costs more than it saves."""
PARTS_A_SLOT = 2
"""Parts of a job for each place of the cluster: a slow one then keeps fewer places waiting."""
SECTIONS_MAX = 50_000
"""Maximum number of sections of one shard in one job; what follows is for the next one."""
WHOLE_SHARE = 0.5
"""Share of the bytes of chunks from which on whole ones are read."""
REASON_CHARACTERS_MAX = 500


class _Section(NamedTuple):
    n: int
    end: int
    bytes: int
    chunk_bytes: int


class SparkWriter:
    """A writer of files by the executors of a session. See ``FileWriter``.

    Args:
        slots: returns the number of tasks that the cluster runs at a time, which may grow.
        tag: tag of the jobs, by which they are ended.
    """

    def __init__(
        self, spark: SparkSession, access: StoreAccess, settings: TableSettings, slots: Callable[[], int], tag: str
    ) -> None:
        self._spark, self._access, self._settings, self._tag = spark, access, settings, tag
        self._slots_now, self._slots = slots, 1

    async def write(self, rows: StreamRows, wanted: Sequence[RowsRequest]) -> list[Made | Exception]:
        """Write the rows of each shard in one job. See ``FileWriter``."""
        key = table_key(*rows.stream)
        planned: list[list[LogPart] | Exception] = []
        self._slots = max(1, self._slots_now())
        sections = [await self._sections(rows, each) for each in wanted]
        size = self._part_bytes(sections)
        for each, part in zip(wanted, sections, strict=True):
            planned.append(part if isinstance(part, Exception) else self._cut(each, part, size))
        parts = [part for found in planned if isinstance(found, list) for part in found]
        topics = self._topics(rows)
        erased = of_shards(rows.erased, {each.view.shard: (each.first, each.end) for each in wanted})
        work = RowsWork(
            self._access,
            self._settings,
            rows.stream,
            rows.schema,
            rows.payload,
            topics,
            parts,
            rows.typed,
            rows.checks,
            erased,
            rows.sort,
        )
        results = iter(await self._run(work, len(parts)) if parts else ())
        made: list[Made | Exception] = []
        for found in planned:
            if isinstance(found, Exception):
                made.append(found)
                continue
            done = prefix_of(found, [next(results) for _ in found])
            made.append(done.error(key, found[0].shard) if isinstance(done, Failure) else done)
        if severe := next((each for each in made if not isinstance(each, (Made, *OF_ONE_SHARD))), None):
            assert isinstance(severe, Exception)
            raise severe
        return made

    async def join(
        self, key: str, runs: Sequence[Sequence[DataFile]], schema: pa.Schema, sort: Sequence[str] = ()
    ) -> AsyncIterator[Joined]:
        """Join all runs in one job. See ``FileWriter``."""
        work = JoinWork(self._access, self._settings, key, schema, runs, sort)
        for result in await self._run(work, len(runs)):
            if isinstance(result, Failure):
                raise result.error(key, 0)
            yield Joined(*result)

    async def _sections(self, rows: StreamRows, wanted: RowsRequest) -> list[_Section] | Exception:
        """Return the sections with the wanted records, as many as one job takes; or the error of this shard."""
        found: list[_Section] = []
        room, end = self._slots * self._settings.file_bytes_max, wanted.first
        try:
            async for chunk, section, _ in wanted.view.chunks.of_stream(rows.stream, wanted.n, wanted.view.state.n):
                if section is None or section.base_offset + section.count <= end:
                    continue
                if section.base_offset > end:
                    is_first = end == wanted.first
                    return lacking(table_key(*rows.stream), wanted.view, end, section.base_offset, is_first=is_first)
                end, room = section.base_offset + section.count, room - section.length
                last = max((each.position + each.length for each in chunk.footer.streams), default=0)
                found.append(_Section(chunk.header.n, min(end, wanted.end), section.length, last))
                if end >= wanted.end or room <= 0 or len(found) >= SECTIONS_MAX:
                    return found
        except (CodecError, NotFound) as error:
            return error
        is_first = end == wanted.first
        return lacking(table_key(*rows.stream), wanted.view, end, wanted.end, is_first=is_first)

    def _part_bytes(self, sections: Sequence[list[_Section] | Exception]) -> int:
        total = sum(each.bytes for found in sections if isinstance(found, list) for each in found)
        return min(self._settings.file_bytes_max, max(PART_BYTES_MIN, total // (self._slots * PARTS_A_SLOT)))

    def _cut(self, wanted: RowsRequest, sections: Sequence[_Section], size: int) -> list[LogPart]:
        parts: list[LogPart] = []
        first, first_n, taken, chunks = wanted.first, wanted.n, 0, 0
        for at, section in enumerate(sections):
            taken, chunks = taken + section.bytes, chunks + section.chunk_bytes
            if taken < size and at + 1 < len(sections):
                continue
            whole = taken >= WHOLE_SHARE * chunks
            parts.append(LogPart(wanted.view.shard, first, section.end, first_n, section.n, whole))
            first, first_n, taken, chunks = section.end, section.n + 1, 0, 0
        return parts

    def _topics(self, rows: StreamRows) -> dict[Lane, Sequence[str]]:
        return rows.declared.all_topics() if levels_of(rows.schema) else {}

    async def _run(self, work: RowsWork | JoinWork, count: int) -> list[Any]:
        """Run a job with a task for each number. Return the results in their order.

        Raises:
            TableError: the job failed.
        """
        try:
            found = await asyncio.to_thread(self._collect, work, count)
        except asyncio.CancelledError:
            self._spark.interruptTag(self._tag)
            raise
        except (PySparkException, Py4JError) as error:
            raise TableError(f"the Spark job failed: {_reason(error)}") from error
        results = {row.number: pickle.loads(row.result) for row in found}  # noqa: S301
        return [results[number] for number in range(count)]

    def _collect(self, work: RowsWork | JoinWork, count: int) -> list[Any]:
        self._spark.addTag(self._tag)  # of this thread
        return self._spark.range(0, count, 1, count).mapInArrow(running(work), COLUMNS).collect()


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line.lstrip(": ") for line in lines if "Error: " in line or "Exception: " in line]
    return (python or lines or [type(error).__name__])[0][:REASON_CHARACTERS_MAX]


# A driver's clock compared with the store's, before files are removed by their age.

SECOND = 1_000_000_000
OFF_NS_MAX = 60 * SECOND
"""Difference from which on a clock is wrong."""
LOOK_S = 600.0
"""Interval of comparisons: each costs three requests."""


class DriverClock:
    """Tells whether the clock of this machine may decide about ages: a wrong one would delete files that are needed.

    The measure is the store's time of an object that was just written, and the hub's time of its newest chunks: a clock
    that is behind these is wrong as well.

    Args:
        newest: nanoseconds since 1970 of the newest chunk that the driver knows; 0 without one.
        clock: nanoseconds since 1970.
    """

    def __init__(
        self, store: ObjectStore, newest: Callable[[], int], *, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._store, self._newest, self._clock = store, newest, clock
        self._agrees = False

    def is_sound(self) -> bool:
        """Return whether the clock is known to be right, within a minute."""
        return self._agrees and self._newest() - self._clock() <= OFF_NS_MAX

    async def look(self) -> None:
        """Compare the clock with the store's. Without an answer, what was seen last holds."""
        key = f"{PREFIX}/clock-{secrets.token_hex(8)}"
        before = self._clock()
        with contextlib.suppress(StoreError, NotFound, AlreadyExists):
            await self._store.create(key, b"")
            after = self._clock()
            written = (await self._store.get(key)).written
            await self._store.delete(key)
            # The store's time has whole seconds. Without one, nothing says that the clock is right.
            self._agrees = (
                written is not None
                and before - OFF_NS_MAX <= written.time + SECOND
                and (written.time <= after + OFF_NS_MAX)
            )


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
    """Patterns of names, in which ``*`` matches any characters."""
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
            store,
            cluster,
            settings=settings,
            writer=writer,
            is_sound=clock.is_sound,
            claim=Claim(f"spark pipeline {job.name}", self._clock(), job.tenants, job.streams),
            terms=TableTerms(declared.schemas.of, declared.quality.of, declared.sort_of, declared.is_instead),
        )
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
                await asyncio.wait(
                    {rounds, waiting := asyncio.create_task(stopping.wait())}, return_when=asyncio.FIRST_COMPLETED
                )
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
