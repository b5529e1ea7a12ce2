"""``/v1/sql``: queries in SQL of readers, which run in processes of their own (``reads/sql.py``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
from aiohttp import web

from weft.bounds import Refusals
from weft.cloud_hub.auth.access import Access, readable
from weft.cloud_hub.facts.streams import DeclaredTables
from weft.cloud_hub.http.exchange import Answers, LongAnswer, read_body, routes
from weft.cloud_hub.part import Part
from weft.cloud_hub.reads.history import READERS_MAX, Readers
from weft.cloud_hub.reads.sql import (
    COMPLETENESS,
    LATEST,
    STREAMS,
    WORKER,
    Outcome,
    SqlTask,
    StreamMoment,
    TablePlace,
    possible_names,
)
from weft.cloud_hub.reads.summaries import Listed, ShardSummaries, StreamCompleteness
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.tables.hub_tables import HubTables
from weft.config.metrics.exposition import Sample
from weft.hub_api.answers import ApiError
from weft.hub_api.operation import decoded
from weft.hub_api.operations import OF_NAME
from weft.hub_api.records import SQL_S, SQL_WAIT_S, SqlQuery
from weft.storage import hub_keys
from weft.storage.object_store.opening import PlacedStore

_logger = logging.getLogger(__name__)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS, WAIT_S = SQL_S, SQL_WAIT_S
HEADER_BYTES_MAX = 64 << 10
"""Longest first line of a process, and what an answer has beside columns and rows."""
LOOK_S = 1.0
"""Interval of looks whether the client is still there."""
COUNTED_AT_ONCE = 100
"""Number of streams whose moments are taken in one step."""


class QueryProcess:
    """The process of one query."""

    def __init__(self, task: SqlTask) -> None:
        self._task = task
        self._is_late = False
        # Not asyncio's: uvloop copies the hub's page tables with fork, and Popen does not (vfork).
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-X", "utf8", "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def run(self) -> bytes:
        """Return its answer in JSON, and end it. Blocks for as long as the task says.

        Raises:
            ApiError: as ``answer``; 413: the process has ended without one, or needs too long.
        """
        late = threading.Timer(self._task.seconds, self._end_late)
        late.start()
        process, outcome, data = self._process, Outcome(), b""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(self._task) + b"\n")
                process.stdin.flush()  # and stays open: its end ends the process
                header = process.stdout.readline(HEADER_BYTES_MAX)
                with contextlib.suppress(msgspec.DecodeError):
                    outcome = msgspec.json.decode(header, type=Outcome)
                if 0 < outcome.size <= self._task.bytes_max + HEADER_BYTES_MAX:
                    data = process.stdout.read(outcome.size)
        finally:
            late.cancel()
            process.kill()
            ended = process.wait()
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if outcome.why:
            _logger.warning("a query in SQL: %s: %s", outcome.error, outcome.why)
        if outcome.status:
            raise ApiError(outcome.status, outcome.error, outcome.advice)
        if data and len(data) == outcome.size:
            return data
        is_late = self._is_late or ended == -signal.SIGXCPU
        why = f"takes longer than {self._task.seconds:g} s" if is_late else "needs more memory than it may have"
        raise ApiError(
            413, f"the query {why}", "narrow it, by _time or _offset first, or read the table with an engine"
        )

    def _end_late(self) -> None:
        self._is_late = True
        self._process.kill()


class SqlRequests(Part):
    """The handler, and the processes of the queries that run."""

    def __init__(
        self,
        store: PlacedStore,
        access: Access,
        declared: DeclaredTables,
        *,
        summaries: ShardSummaries,
        moments: StreamCompleteness,
        tables: HubTables,
        refusals: Refusals,
        settings: HubSettings,
    ) -> None:
        self._store, self._access, self._declared = store, access, declared
        self._summaries, self._moments, self._tables = summaries, moments, tables
        self._is_on, self._memory_bytes = settings.sql, settings.sql_bytes
        self._bytes_max = settings.response_bytes_max
        # Apart from those of the API, whose readers do not wait for queries.
        self._answers, self._places = Answers(self._bytes_max, refusals), Readers()
        # Not the threads in which chunks are encoded, which are few: one waits for as long as its query takes.
        self._threads = ThreadPoolExecutor(READERS_MAX, "weft-queries")
        self._running: set[QueryProcess] = set()
        self._queries = 0

    def close(self) -> None:
        """End the queries that run."""
        for each in self._running:
            each.kill()
        self._threads.shutdown(wait=False)

    def samples(self) -> Iterator[Sample]:
        """Yield the figures for Prometheus."""
        yield Sample("weft_hub_sql_queries_total", self._queries)

    def add_to(self, application: web.Application) -> None:
        """Add the request to the application of the API."""
        application.add_routes(routes(sql=self._sql))

    async def _sql(self, request: web.Request) -> web.StreamResponse:
        async with self._answers.room(self._access.charged(request)) as room:
            return await self._answers.send(request, LongAnswer([await self._answer(request), b"\n"]), room)

    async def _answer(self, request: web.Request) -> bytes:
        tenant, may_read = self._access.streams(request)
        if not self._is_on:
            raise ApiError(404, "this hub answers no queries in SQL", "set `sql: true` in its configuration")
        body = await read_body(request, OF_NAME["sql"].body_bytes_max, "ask with a shorter query")
        asked = decoded(body, SqlQuery)
        words = possible_names(asked.query)
        shards = await self._summaries.every()
        streams = await shards.streams(tenant)
        tables = self._reachable(tenant, await readable(words & streams.keys(), may_read))
        rows = (
            await self._completeness(tenant, shards, await readable(streams, may_read)) if COMPLETENESS in words else ()
        )
        task = SqlTask(
            query=asked.query,
            tables=tables,
            streams=rows,
            rows_max=asked.limit,
            bytes_max=self._bytes_max,
            memory_bytes=self._memory_bytes,
            seconds=SECONDS,
        )
        try:
            async with asyncio.timeout(WAIT_S) as waiting, self._places.place(tenant):
                waiting.reschedule(None)
                return await self._run(request, task)
        except TimeoutError:
            error = f"other queries run, and this one had no turn within {WAIT_S:g} s"
            raise ApiError(503, error, "ask again later", retry_s=WAIT_S) from None

    async def _run(self, request: web.Request, task: SqlTask) -> bytes:
        if _is_gone(request):
            raise ApiError(408, "the client has left", "ask again")
        self._queries += 1
        loop = asyncio.get_running_loop()
        process = await loop.run_in_executor(self._threads, QueryProcess, task)
        self._running.add(process)
        answer = loop.run_in_executor(self._threads, process.run)
        try:
            while not (await asyncio.wait([answer], timeout=LOOK_S))[0]:
                if _is_gone(request):
                    process.kill()
            return await answer
        finally:
            answer.cancel()
            process.kill()  # which a thread still waits for, if this was cancelled
            self._running.discard(process)

    def _reachable(self, tenant: str, names: Collection[str]) -> Mapping[str, TablePlace]:
        """Return the tables of streams.

        Raises:
            StoreError: the store has no tables.
        """
        found = dict[str, TablePlace]()
        for name in names:
            if not self._declared.is_instead((tenant, name)):
                found[f"{STREAMS}.{name}"] = TablePlace(*self._store.location(hub_keys.table_key(tenant, name)))
            if self._declared.has_latest((tenant, name)):
                found[f"{LATEST}.{name}"] = TablePlace(*self._store.location(hub_keys.latest_key(tenant, name)))
        return found

    async def _completeness(self, tenant: str, shards: Listed, names: Sequence[str]) -> list[StreamMoment]:
        """Return up to when streams are complete, and what their tables lack.

        Both are of the same summary, and the query opens the tables later: one that lacks nothing has all rows up to
        the moment. What the maker of tables says it lacks is of its own last round, which may be before the moment.
        """
        streams, found = await shards.streams(tenant), list[StreamMoment]()

        def as_time(known: int | None) -> datetime | None:
            with contextlib.suppress(OverflowError):  # an edge's clock may say any time
                return None if known is None or shards.missing else EPOCH + timedelta(microseconds=known // 1000)
            return None

        for at, name in enumerate(names, 1):
            up_to = as_time(self._moments.summary(streams[name], (tenant, name)).complete_up_to)
            rows, lag = self._tables.positions(tenant, name), None
            if rows is not None:
                lag = sum(max(0, (part.end or 0) - rows.get(part.shard, 0)) for part in streams[name])
            found.append(StreamMoment(name, up_to, lag))
            if at % COUNTED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return found


def _is_gone(request: web.Request) -> bool:
    """Return whether a client has closed its connection: the place of its query is another's then."""
    return request.transport is None or request.transport.is_closing()
