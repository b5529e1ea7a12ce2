"""``/v1/pipelines``: state reports of Spark queries, shown beside their streams.

Reports are not checked, and nothing depends on them. The last one of each pipeline is an object of the store, so that
any process can answer, also after a restart and after the query has died. It is written every 30 s; the process that
received a report has a newer one in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
from aiohttp import web

from weft.cloud_hub.http.exchange import Orders, answered, routes
from weft.cloud_hub.part import Part
from weft.config.metrics.exposition import Sample
from weft.hub_api.answers import ApiError, moment_of
from weft.hub_api.operation import decoded
from weft.hub_api.operations import OF_NAME
from weft.hub_api.pipelines import PipelineReport, PipelinesAnswer, Report, ReportedAnswer
from weft.hub_api.rights import Right
from weft.protocols.lane import NAME_RULE, valid_name
from weft.storage import hub_keys
from weft.storage.hub_keys import PIPELINES
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreError

# The last report is an object: the cluster log keeps each entry, and in memory a report and a question meet by chance.
PIPELINES_MAX = 200
"""Maximum number of pipelines of a tenant that have a report."""
WRITE_NS = 30 * 1_000_000_000
"""Shortest time between two writes of a report with unchanged state and error."""
READ_AGE_S = 5.0
"""Maximum age of reports to other processes."""
FIGURES_AGE_S = 60.0
"""The same for metrics, which are scraped often: each report that is read is a request to the store."""
FIGURES_READ_S = 2.0
"""Longest time for which metrics wait for the store. They have to be available while it fails."""
FIGURES_MAX = 500
"""Maximum number of pipelines with metrics, the first by tenant and name."""
KNOWN_MAX = 4096
"""Maximum number of reports that a process remembers."""
TRIES_MAX = 4
READS_AT_ONCE = 16
OBJECT_BYTES_MAX = 8 << 10


class _CachedReport(NamedTuple):
    report: Report
    seen: int
    """Moment of it, nanoseconds since 1970 by the clock of the process that got it."""


class _Stored(msgspec.Struct, frozen=True):
    """The object of a report."""

    seen: int
    report: Report


class _Read(NamedTuple):
    """Reports as the store had them."""

    at: float
    """Moment of the reading, seconds of the monotonic clock."""
    since: int
    """The same, nanoseconds since 1970."""
    reports: dict[str, _CachedReport]
    """Key -> report."""


class PipelineRequests(Part):
    """Handlers of the requests.

    Args:
        now: nanoseconds since 1970.
        monotonic: seconds.
    """

    def __init__(
        self, store: ObjectStore, orders: Orders, now: Callable[[], int], monotonic: Callable[[], float]
    ) -> None:
        self._store, self._orders, self._now, self._monotonic = store, orders, now, monotonic
        self._known: dict[str, _CachedReport] = {}
        """Key -> newest report of this process."""
        self._written: dict[str, tuple[str, int, Report]] = {}
        """Key -> tag, moment and content of its last write of this process."""
        self._listed: dict[str, _Read] = {}
        """Tenant -> its reports."""
        self._all: _Read | None = None
        """Those of all tenants, for metrics."""
        self._figures: list[Sample] = []
        self._locks = [asyncio.Lock() for _ in range(16)]

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(routes(pipelines=self._list, report_pipeline=self._put, forget_pipeline=self._forget))

    async def _list(self, request: web.Request) -> web.Response:
        """Return the last report of each pipeline of the tenant whose stream the token may read."""
        tenant, is_readable = self._orders.access.streams(request)
        found, now = await self._of_tenant(tenant), self._now()
        views = [
            _view(name, known, now)
            for name, known in sorted(found.items())
            if known.report.stream == "*" or is_readable(known.report.stream)
        ]
        return answered(PipelinesAnswer(pipelines=views))

    async def _put(self, request: web.Request) -> web.Response:
        """Take a report."""
        tenant, name = self._named(request)
        report = decoded(await self._orders.body(request, Right.REPORT), Report)
        if report.stream != "*" and not valid_name(report.stream):
            raise ApiError(400, f"stream: {report.stream[:80]!r} is not a name", f"expected {NAME_RULE}, or `*`")
        key, seen = hub_keys.pipeline_key(tenant, name), self._now()
        self._known.pop(key, None)
        self._known[key] = _CachedReport(report, seen)
        while len(self._known) > KNOWN_MAX:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._written.pop(oldest, None)
        before = self._written.get(key)
        if before is not None and seen - before[1] < WRITE_NS and _same(before[2], report):
            return answered(ReportedAnswer(pipeline=name))
        async with self._lock(key):
            try:
                await self._write(tenant, key, _Stored(seen, report))
            except StoreError as error:
                raise ApiError(503, f"the report cannot be stored: {error}", "report again later") from error
        return answered(ReportedAnswer(pipeline=name))

    async def _forget(self, request: web.Request) -> web.Response:
        """Forget a pipeline, until it reports again."""
        tenant, name = self._named(request)
        key = hub_keys.pipeline_key(tenant, name)
        async with self._lock(key):
            for each in (self._known, self._written):
                each.pop(key, None)
            self._listed.pop(tenant, None)
            try:
                await self._store.delete(key)
            except StoreError as error:
                raise ApiError(503, f"the report cannot be removed: {error}", "try again") from error
        return answered(ReportedAnswer(pipeline=name))

    def _named(self, request: web.Request) -> tuple[str, str]:
        tenant, identity = self._orders.access.reporter(request)
        name = request.match_info["pipeline"]
        if not valid_name(name):
            raise ApiError(400, f"{name[:80]!r} is not a name of a pipeline", f"expected {NAME_RULE}")
        self._orders.access.check(identity, Right.REPORT, name)
        return tenant, name

    def _lock(self, key: str) -> asyncio.Lock:
        return self._locks[hash(key) % len(self._locks)]

    async def _write(self, tenant: str, key: str, stored: _Stored) -> None:
        data = msgspec.json.encode(stored)
        known = self._written.get(key)
        etag = None if known is None else known[0]
        for _ in range(TRIES_MAX):
            try:
                if etag is None:
                    await self._check_room(tenant, key)
                    etag = await self._store.create(key, data)
                else:
                    etag = await self._store.swap(key, data, etag)
            except (AlreadyExists, PreconditionFailed):  # another process wrote it, or it was forgotten
                etag = await self._tag(key)
                continue
            self._written[key] = (etag, stored.seen, stored.report)
            return
        raise StoreError("other processes write it at the same time")

    async def _check_room(self, tenant: str, key: str) -> None:
        there = await self._store.list(hub_keys.pipelines_of(tenant), limit=PIPELINES_MAX)
        if len(there) >= PIPELINES_MAX and all(each.key != key for each in there):
            self._known.pop(key, None)
            raise ApiError(
                409,
                f"tenant {tenant} has reports of {PIPELINES_MAX} pipelines",
                f"forget those that are gone: DELETE {OF_NAME['forget_pipeline'].path}",
            )

    async def _tag(self, key: str) -> str | None:
        try:
            return (await self._store.get(key)).etag
        except NotFound:
            return None

    async def refresh(self) -> None:
        """Update the figures of all tenants' pipelines; those of reports to other processes are at most a minute old.
        While the store does not answer, only pipelines that reported to this process are included."""
        async with self._lock(PIPELINES):
            if self._all is None or self._monotonic() - self._all.at >= FIGURES_AGE_S:
                try:
                    async with asyncio.timeout(FIGURES_READ_S):
                        self._all = await self._read(PIPELINES, FIGURES_MAX)
                except (StoreError, TimeoutError):
                    self._all = _Read(self._monotonic(), 0, {})
            found, now = self._merged(PIPELINES, self._all), self._now()
        self._figures = [each for key in sorted(found)[:FIGURES_MAX] for each in _samples(key, found[key], now)]

    def samples(self) -> list[Sample]:
        """Return the figures as of the last ``refresh``."""
        return self._figures

    async def _of_tenant(self, tenant: str) -> dict[str, _CachedReport]:
        """Return the reports of a tenant by the name of the pipeline, those of other processes some seconds old."""
        prefix = hub_keys.pipelines_of(tenant)
        async with self._lock(tenant):
            read = self._listed.get(tenant)
            if read is None or self._monotonic() - read.at >= READ_AGE_S:
                try:
                    read = await self._read(prefix, PIPELINES_MAX)
                except StoreError as error:
                    raise ApiError(503, f"the reports cannot be read: {error}", "try again") from error
                if len(self._listed) >= KNOWN_MAX:
                    self._listed.clear()
                self._listed[tenant] = read
        return {key.rpartition("/")[2]: known for key, known in self._merged(prefix, read).items()}

    def _merged(self, prefix: str, read: _Read) -> dict[str, _CachedReport]:
        """Return the reports below a prefix by key, of those in the store and this process's own the newer ones."""
        found = dict(read.reports)
        for key, own in self._known.items():
            if not key.startswith(f"{prefix}/"):
                continue
            stored = read.reports.get(key)
            # One that came before the reading and is not in the store was forgotten, through another process.
            if own.seen > (read.since if stored is None else stored.seen):
                found[key] = own
        return found

    async def _read(self, prefix: str, limit: int) -> _Read:
        at, since = self._monotonic(), self._now()
        listed = await self._store.list(prefix, limit=limit)
        keys, found = [each.key for each in listed], dict[str, _CachedReport]()
        for start in range(0, len(keys), READS_AT_ONCE):
            part = keys[start : start + READS_AT_ONCE]
            for key, known in zip(part, await asyncio.gather(*map(self._read_one, part)), strict=True):
                if known is not None:
                    found[key] = known
        return _Read(at, since, found)

    async def _read_one(self, key: str) -> _CachedReport | None:
        """Return a report; None if it was removed meanwhile, or is of a later release."""
        try:
            data = (await self._store.get(key)).data
            stored = msgspec.json.decode(data, type=_Stored) if len(data) <= OBJECT_BYTES_MAX else None
        except (NotFound, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return None if stored is None else _CachedReport(stored.report, stored.seen)


def _same(before: Report, now: Report) -> bool:
    return (before.state, before.error, before.stream) == (now.state, now.error, now.stream)


def _state(known: _CachedReport, now: int) -> str:
    """Return the state of a pipeline, which is ``silent`` for one that should have reported since."""
    report, age = known.report, max(0, now - known.seen) / 1e9
    is_silent = report.state == "running" and age > 3 * max(report.every_seconds, WRITE_NS / 1e9)
    return "silent" if is_silent else report.state


def _view(name: str, known: _CachedReport, now: int) -> PipelineReport:
    report = known.report
    return PipelineReport(
        pipeline=name,
        stream=report.stream,
        state=_state(known, now),
        error=report.error,
        batch=report.batch,
        records=report.records,
        seconds=report.seconds,
        rate=report.rate,
        lag=report.lag,
        complete_until=report.complete_until,
        idle_seconds=report.idle_seconds,
        every_seconds=report.every_seconds,
        seen=moment_of(known.seen),
        seen_seconds_ago=max(0, now - known.seen) / 1e9,
    )


def _samples(key: str, known: _CachedReport, now: int) -> Iterator[Sample]:
    """Yield the figures of a pipeline. One that does not run has no rate, and no lag that is known."""
    labels, report, state = tuple(key.split("/")[1:]), known.report, _state(known, now)
    yield Sample("weft_hub_pipeline_trouble", state in ("failed", "silent"), labels)
    yield Sample("weft_hub_pipeline_seen_seconds", max(0, now - known.seen) / 1e9, labels)
    if state == "running":
        for name, value in (
            ("lag_records", report.lag),
            ("records_per_second", report.rate),
            ("batch_seconds", report.seconds),
            ("idle_seconds", report.idle_seconds),
        ):
            if value is not None:
                yield Sample(f"weft_hub_pipeline_{name}", value, labels)
