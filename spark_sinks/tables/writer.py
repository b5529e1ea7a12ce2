"""The writer of tables on a cluster of Spark: it plans parts of the log by its indexes, and executors write them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_sinks.tables.work import (
    COLUMNS,
    Failure,
    JoinWork,
    LogPart,
    RowsWork,
    StoreAccess,
    prefix_of,
    running,
)
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane
from weft.storage.chunk_log import table_key
from weft.storage.object_store import NotFound
from weft.storage.table.delta.entries import DataFile
from weft.storage.table.erased import of_shards
from weft.storage.table.errors import TableError
from weft.storage.table_maker.columns import levels_of
from weft.storage.table_maker.gather import lacking
from weft.storage.table_maker.joining import Joined
from weft.storage.table_maker.settings import TableSettings
from weft.storage.table_maker.writers import OF_ONE_SHARD, Made, StreamRows, WantedRows

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

    async def write(self, rows: StreamRows, wanted: Sequence[WantedRows]) -> list[Made | Exception]:
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

    async def _sections(self, rows: StreamRows, wanted: WantedRows) -> list[_Section] | Exception:
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

    def _cut(self, wanted: WantedRows, sections: Sequence[_Section], size: int) -> list[LogPart]:
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
