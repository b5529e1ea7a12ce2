"""``/delta-sharing``: tables for clients of Delta Sharing, by its protocol (docs/reference/sharing.md).

A client gets URLs of a table's files: signed ones of the bucket, or of this hub, which sends files of a folder by them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from aiohttp import web

from weft.bounds import Owner, OwnerKind, Rates, Refusals, address_owner
from weft.cloud_hub.auth.access import Access, Charged, headers_of, readable
from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.declarations import Declarations
from weft.cloud_hub.facts.tokens import Credentials
from weft.cloud_hub.http.exchange import PIECE_S, Answers, LongAnswer, read_body
from weft.cloud_hub.part import Part
from weft.cloud_hub.reads import shares
from weft.cloud_hub.reads.history import Readers
from weft.cloud_hub.reads.summaries import ShardSummaries
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard.sequencer import public_reason
from weft.cloud_hub.store import HubStore
from weft.config.metrics.exposition import Sample
from weft.hub_api.answers import ApiError
from weft.hub_api.rights import Right
from weft.network.http_server import Handler
from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, NotFound, StoreError
from weft.storage.object_store.protocol import valid_key
from weft.storage.table.actions import AddedFile, DeltaState, TableError
from weft.storage.table.delta_log import TableLog

PREFIX = "/delta-sharing"
STREAMS, LATEST = "streams", "latest"
"""Schemas of each share: the tables of streams, and their latest tables."""
PAGE_MAX = 500
FIRST = " "
"""Token of the first page, for a client that asks for none of its members: it sorts before all names."""
URL_S = 3600
"""Time for which URLs of files are valid: a client that reads slowly asks again."""
BODY_BYTES_MAX = 256 << 10
SECOND = 1_000_000_000
SECRET_BYTES = 32
BURST_S = 0.25
"""Time whose bytes may go at once."""
PIECE_BYTES = 1 << 20
"""Bytes of a file that are read and sent at a time."""
DOWNLOAD_BYTES = 4 * PIECE_BYTES
"""Room that a download waits for; it then holds one piece. Together they hold ``AT_ONCE`` times as much."""
ANSWER_S = 60.0
"""Longest time for what an answer says, with the wait for others that read tables."""
FILES_AT_ONCE = 200
"""Number of files whose lines are made in one step, some milliseconds."""
SIGNED = {"sp": "r"}
"""Parameter of URLs by which delta-kernel-rs, in the client for pandas, takes them for signed ones of single files, as
Azure's have it. It would look for a local file otherwise."""
PARQUET, LINES = "application/vnd.apache.parquet", "application/x-ndjson"
VERSION_HEADER, CAPABILITIES_HEADER = "Delta-Table-Version", "Delta-Sharing-Capabilities"
_EVERYBODY = Owner(OwnerKind.ADDRESS, "")
_CODES = {
    400: "INVALID_PARAMETER_VALUE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "RESOURCE_DOES_NOT_EXIST",
}


_Natural = Annotated[int, msgspec.Meta(ge=0)]


class _Query(msgspec.Struct):
    """Body of a query; fields of later releases of the protocol are passed over."""

    predicateHints: list[str] | None = None  # noqa: N815  (the protocol's names)
    jsonPredicateHints: str | None = None  # noqa: N815
    limitHint: _Natural | None = None  # noqa: N815
    version: _Natural | None = None
    timestamp: str | None = None
    startingVersion: int | None = None  # noqa: N815


class _Table(NamedTuple):
    share: str
    schema: str
    name: str

    @property
    def key(self) -> str:
        """Return the folder of the table in the store."""
        of_schema = hub_keys.table_key if self.schema == STREAMS else hub_keys.latest_key
        return of_schema(self.share, self.name)


class _Terms(NamedTuple):
    """Terms of the URL of a file, which its signature covers."""

    until: str
    """End, seconds since 1970."""
    by: str
    """Name of the declared token that it was made for; empty for none."""
    version: str
    """Number of the entry that declared the token, or changed it last; empty for none."""
    size: str
    """Bytes of the file."""


class _Download(NamedTuple):
    """The part of a file that a request gets."""

    key: str
    start: int
    stop: int
    reader: Charged
    terms: _Terms


class _Listed(NamedTuple):
    """Files of an answer, with the version of the table that it shows."""

    state: DeltaState
    files: Sequence[shares.SharedFile]
    first: int | None = None
    """First version of changes; None for the files of a version."""


class FileUrls:
    """URLs of files: those of the bucket, or of this hub, which are signed with a secret in the store.

    Args:
        credentials: the tokens: a URL of the hub ends with the one that it was made for, or with a change of it.
    """

    def __init__(self, store: HubStore, credentials: Credentials, clock: HubClock) -> None:
        self._store, self._credentials, self._clock = store, credentials, clock
        self._secret = b""

    def until(self, by: TokenIdentity | None, end: int | None) -> int:
        """Return the end of URLs that are made now, seconds since 1970.

        Args:
            by: who asks for them.
            end: end of its token, nanoseconds since 1970.
        """
        latest = self._clock.now() // SECOND + URL_S
        return latest if by is None or end is None else min(latest, end // SECOND)

    async def sign(
        self, origin: str, table: _Table, files: Sequence[AddedFile], by: TokenIdentity | None, until: int
    ) -> Sequence[str]:
        """Return the URLs of some hundred files.

        Args:
            origin: scheme and host by which the client reaches the hub.
            until: end, seconds since 1970.

        Raises:
            ApiError: 400: a file is not in the table's folder.
            StoreError: the secret cannot be read.
        """
        keys = [f"{table.key}/{file.path}" for file in files]
        if not all(map(valid_key, keys)):
            raise ApiError(
                400, "a file of the table is outside of its folder, and not shared", "copy it into the table"
            )
        seconds = max(1, until - self._clock.now() // SECOND)
        if (signed := await self._store.signed_urls(keys, seconds)) is not None:
            return signed
        await self._know_secret()
        version = None if by is None else self._credentials.version(by.name)
        name, number = ("", "") if by is None or version is None else (by.name, str(version))
        found = []
        for file in files:
            terms = _Terms(str(until), name, number, str(file.size))
            query = terms._asdict() | {"signature": self._signature(table, file.path, terms)} | SIGNED
            found.append(f"{origin}{PREFIX}/files/{quote('/'.join((*table, file.path)))}?{urlencode(query)}")
        return found

    async def check(self, table: _Table, file: str, query: Mapping[str, str]) -> _Terms:
        """Return the terms of a URL that the hub made.

        Raises:
            ApiError: 403: it did not, or as ``check_terms``.
        """
        terms = _Terms(*(query.get(name, "") for name in _Terms._fields))
        await self._know_secret()
        given, made = query.get("signature", ""), self._signature(table, file, terms)
        if not hmac.compare_digest(made.encode(), given.encode()):
            raise ApiError(403, "the URL of a file was not made by this hub, or was changed", "query the table again")
        self.check_terms(terms)
        return terms

    def check_terms(self, terms: _Terms) -> None:
        """Check that a URL is in force.

        Raises:
            ApiError: 403: it has ended, or its token was withdrawn or changed.
        """
        if int(terms.until) <= self._clock.now() // SECOND:
            raise ApiError(403, "the URL of a file has ended", "query the table again")
        if terms.by and str(self._credentials.version(terms.by)) != terms.version:
            raise ApiError(403, "the token of the URL was withdrawn or changed", "query the table again")

    def _signature(self, table: _Table, file: str, terms: _Terms) -> str:
        return hmac.new(self._secret, msgspec.json.encode((table, file, terms)), sha256).hexdigest()

    async def _know_secret(self) -> None:
        """Read the secret of all processes of the hub, which the first one makes.

        Raises:
            StoreError: it cannot be read, or is damaged.
        """
        store = self._store.store
        while not self._secret:
            try:
                found = (await store.get(hub_keys.SHARING_SECRET)).data
            except NotFound:
                with contextlib.suppress(AlreadyExists):
                    await store.create(hub_keys.SHARING_SECRET, secrets.token_bytes(SECRET_BYTES))
                continue
            if len(found) != SECRET_BYTES:
                raise StoreError(f"{hub_keys.SHARING_SECRET} has {len(found)} bytes and not {SECRET_BYTES}: remove it")
            self._secret = found


class Sharing(Part):
    """Handlers of the requests.

    Args:
        refusals: counter of readers that do not read what they asked for.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: HubStore,
        access: Access,
        declared: Declarations,
        summaries: ShardSummaries,
        clock: HubClock,
        *,
        refusals: Refusals,
        settings: HubSettings,
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._access, self._declared, self._summaries = store, access, declared, summaries
        self._response_bytes_max, bytes_per_s = settings.response_bytes_max, settings.sharing_bytes_per_s
        self._advertised = settings.advertise[settings.process] if settings.advertise else ""
        # Apart from those of the API, whose readers do not wait for who reads tables or files.
        self._answers, self._downloads = Answers(self._response_bytes_max, refusals), Answers(DOWNLOAD_BYTES, refusals)
        self._urls = FileUrls(store, declared.credentials, clock)
        self._reading = Readers()
        self._of_all: Rates[Owner] = Rates(bytes_per_s, bytes_per_s * BURST_S, monotonic)
        self._of_tenant: Rates[Owner] = Rates(bytes_per_s / 2, bytes_per_s / 2 * BURST_S, monotonic)
        self._queries = self._bytes = 0

    def samples(self) -> Iterator[Sample]:
        """Yield the figures for Prometheus."""
        yield Sample("weft_hub_shared_queries_total", self._queries)
        yield Sample("weft_hub_shared_bytes_total", self._bytes)

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        share, table = f"{PREFIX}/shares/{{share}}", f"{PREFIX}/shares/{{share}}/schemas/{{schema}}/tables/{{table}}"
        for path, handler in (
            (f"{PREFIX}/shares", self._get_shares),
            (share, self._get_share),
            (f"{share}/schemas", self._get_schemas),
            (f"{share}/schemas/{{schema}}/tables", self._get_tables),
            (f"{share}/all-tables", self._get_all_tables),
            (f"{table}/version", self._get_version),
            (f"{table}/metadata", self._get_metadata),
        ):
            application.router.add_get(path, self._in_protocol(self._bounded(handler)))
        application.router.add_post(f"{table}/query", self._in_protocol(self._bounded(self._query)))
        application.router.add_get(f"{table}/changes", self._in_protocol(self._bounded(self._get_changes)))
        application.router.add_get(
            f"{PREFIX}/files/{{share}}/{{schema}}/{{table}}/{{file:.+}}", self._in_protocol(self._get_file)
        )

    def _bounded(self, handler: Callable[[web.Request], Awaitable[web.Response | LongAnswer]]) -> Handler:
        async def bounded(request: web.Request) -> web.StreamResponse:
            async with self._answers.room(self._access.charged(request)) as room:
                try:
                    async with asyncio.timeout(ANSWER_S):
                        answer = await handler(request)
                except TimeoutError:
                    error = f"the answer was not ready within {ANSWER_S:g} s"
                    raise ApiError(503, error, "ask again later, and for fewer files", retry_s=30) from None
                return await self._answers.send(request, answer, room)

        return bounded

    def _in_protocol(self, handler: Handler) -> Handler:
        """Return the handler with the protocol's form of errors."""

        async def answered(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except ApiError as error:
                self._access.note_refusal(request, error)
                return _refusal(error.status, f"{error.error}; {error.advice}", headers_of(error))
            except (StoreError, TableError, NotFound) as error:
                return _refusal(503, f"the table cannot be read at present: {public_reason(error)}; try again later")

        return answered

    # -- shares, schemas and tables

    async def _get_shares(self, request: web.Request) -> web.Response:
        tenant, _ = self._access.tables(request, Right.READ, Right.SHARE)
        names = [tenant] if tenant is not None else await (await self._summaries.every()).tenants()
        return await _page(request, names, lambda name: {"name": name})

    async def _get_share(self, request: web.Request) -> web.Response:
        await self._streams(request)
        return _json({"share": {"name": request.match_info["share"]}})

    async def _get_schemas(self, request: web.Request) -> web.Response:
        await self._streams(request)
        share = request.match_info["share"]
        return await _page(request, [LATEST, STREAMS], lambda name: {"name": name, "share": share})

    async def _get_tables(self, request: web.Request) -> web.Response:
        return await self._tables(request, [_schema(request)])

    async def _get_all_tables(self, request: web.Request) -> web.Response:
        return await self._tables(request, [LATEST, STREAMS])

    async def _tables(self, request: web.Request, schemas: Sequence[str]) -> web.Response:
        """Return a page of tables, as ``SCHEMA/STREAM`` in their order."""
        names, (share, may_read), tables = await self._streams(request), self._share(request), self._declared.tables
        found = [f"{LATEST}/{name}" for name in names if LATEST in schemas and tables.has_latest((share, name))]
        found += [f"{STREAMS}/{name}" for name in names if STREAMS in schemas and not tables.is_instead((share, name))]

        def shown(table: str) -> Mapping[str, str]:
            schema, _, name = table.partition("/")
            return {"name": name, "schema": schema, "share": share}

        return await _page(request, found, shown, lambda table: may_read(table.partition("/")[2]))

    async def _streams(self, request: web.Request) -> list[str]:
        """Return the streams of the share that a request names, by name.

        Raises:
            ApiError: as ``_share``; 404: no tenant with streams has the name.
        """
        share, _ = self._share(request)
        names = [*await (await self._summaries.every()).streams(share)]
        if not names and self._access.tables(request, Right.READ, Right.SHARE)[0] is None:
            raise ApiError(404, f"there is no share {share[:80]!r}", "GET .../shares lists them")
        return names

    def _share(self, request: web.Request) -> tuple[str, Callable[[str], bool]]:
        """Return the tenant that a request names, and which of its streams' tables it may read.

        Raises:
            ApiError: 401, 403, 421.
        """
        tenant, may_read = self._access.tables(request, Right.READ, Right.SHARE)
        share = request.match_info["share"]
        if tenant not in (None, share):
            raise ApiError(403, f"the token is not for the share {share[:80]!r}", f"it is for {tenant}")
        return share, may_read

    def _table(self, request: web.Request) -> _Table:
        """Return the table that a request names, and may read.

        Raises:
            ApiError: 401, 403, 404, 421.
        """
        share, may_read = self._share(request)
        table = _Table(share, _schema(request), request.match_info["table"])
        if not may_read(table.name):
            raise ApiError(403, f"the token is not for the table {table.name[:80]!r}", "get one that has it")
        if not valid_key(table.key):
            raise shares.no_table()
        return table

    # -- versions and files

    async def _get_version(self, request: web.Request) -> LongAnswer:
        table = self._table(request)
        if "startingTimestamp" in request.query:
            raise ApiError(400, "versions are not found by times", "leave out startingTimestamp")
        state = await self._state(table)
        return LongAnswer([], headers={VERSION_HEADER: str(state.version)})

    async def _get_metadata(self, request: web.Request) -> LongAnswer:
        table, version = self._table(request), request.query.get("version")
        if "timestamp" in request.query:
            raise ApiError(400, "versions are not found by times", "name a version, or none")
        state = await (self._state(table) if version is None else self._state_of(table, version))
        form = shares.answer_format(request.headers.get(CAPABILITIES_HEADER, ""), state)
        return _lines(shares.head_lines(state, form), state.version, form)

    async def _get_changes(self, request: web.Request) -> LongAnswer:
        table = self._table(request)
        if "startingTimestamp" in request.query or "endingTimestamp" in request.query:
            raise ApiError(400, "versions are not found by times", "give startingVersion and endingVersion")
        if (given := request.query.get("startingVersion")) is None:
            raise ApiError(400, "startingVersion is missing", "give the first version whose changes are wanted")
        first, until = _version(given), request.query.get("endingVersion")
        last, origin = None if until is None else _version(until), self._origin(request)
        async with self._reading.place(table.share):
            stream = table.share, table.name
            state, files = await shares.read_changes(self._store.store, table.key, stream, first, last)
            self._queries += 1
            return await self._listed(request, origin, table, _Listed(state, files, first))

    async def _query(self, request: web.Request) -> LongAnswer:
        table = self._table(request)
        body = await read_body(request, BODY_BYTES_MAX, "give shorter predicates")
        try:
            query = msgspec.json.decode(body or b"{}", type=_Query)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(400, f"the body is not as expected: {error}", "see PROTOCOL.md of Delta Sharing") from None
        if query.timestamp is not None or query.startingVersion is not None:
            raise ApiError(400, "timestamp and startingVersion are not supported", "name a version, or none")
        hints = shares.Hints(query.predicateHints or (), query.jsonPredicateHints, query.limitHint)
        origin = self._origin(request)
        # Until its lines are made, an answer has the files that were read.
        async with self._reading.place(table.share):
            found = await shares.read_version(self._log(table), query.version, hints)
            self._queries += 1
            files = [*map(shares.SharedFile, found.wanted())]
            return await self._listed(request, origin, table, _Listed(found.state(), files))

    async def _listed(self, request: web.Request, origin: str, table: _Table, found: _Listed) -> LongAnswer:
        """Return the answer that lists the files of a version, or of changes.

        Raises:
            ApiError: 400, 413.
            StoreError: as ``FileUrls.sign``.
        """
        state, files, first = found
        form = shares.answer_format(request.headers.get(CAPABILITIES_HEADER, ""), state)
        by = self._access.reader(request)
        until = self._urls.until(by, None if by is None else self._access.until(by))
        urls = list[str]()
        for with_stats in (True, False):
            lines = shares.head_lines(state, form, first)
            size = sum(map(len, lines))
            for at in range(0, len(files), FILES_AT_ONCE):
                some = files[at : at + FILES_AT_ONCE]
                if at == len(urls):
                    urls += await self._urls.sign(origin, table, [each.file for each in some], by, until)
                for file, url in zip(some, urls[at : at + FILES_AT_ONCE], strict=True):
                    lines.append(shares.file_line(file, url, until * 1000, form, with_stats=with_stats))
                    size += len(lines[-1])
                if size > self._response_bytes_max:
                    break
                await asyncio.sleep(0)
            if size <= self._response_bytes_max:
                return _lines(lines, state.version if first is None else first, form)
        advice = "give predicates, or raise limits.response"
        raise ApiError(413, f"the list of {len(files)} files is longer than an answer may be", advice)

    async def _state(self, table: _Table) -> DeltaState:
        """Return the newest version of a table, without its files.

        Raises:
            ApiError: 404.
            TableError, StoreError: it cannot be read.
        """
        async with self._reading.place(table.share):
            state = await self._log(table).read()
        if state is None:
            raise shares.no_table()
        return state

    async def _state_of(self, table: _Table, given: str) -> DeltaState:
        """Return a version of a table, without its files.

        Raises:
            As ``shares.read_version``.
        """
        version = _version(given)
        async with self._reading.place(table.share):
            return (await shares.read_version(self._log(table), version, shares.Hints(limit=0))).state()

    def _log(self, table: _Table) -> TableLog:
        return TableLog(self._store.store, table.key)

    def _origin(self, request: web.Request) -> str:
        """Return scheme and host of URLs of the hub: those that are advertised, else those by which the client came,
        also to a proxy with TLS before the hub. Only the client that claims others gets URLs with them.

        Raises:
            ApiError: 400.
        """
        if self._advertised:
            return self._advertised.rstrip("/")
        if not (host := request.headers.get("Host")):
            raise ApiError(400, "the request has no header Host", "send it, or set `advertise` at the hub")
        proxied = request.headers.get("X-Forwarded-Proto", "").partition(",")[0].strip().lower()
        return f"{'https' if request.secure or proxied == 'https' else 'http'}://{host}"

    # -- files of a folder

    async def _get_file(self, request: web.Request) -> web.StreamResponse:
        """Send a file, or a part of it, to who has its URL."""
        given = request.match_info
        table = _Table(given["share"], given["schema"], given["table"])
        terms = await self._urls.check(table, given["file"], request.query)
        owner = Owner(OwnerKind.TOKEN, terms.by) if terms.by else address_owner(request.remote or "")
        charged = Charged(owner, Owner(OwnerKind.TENANT, table.share))
        size = int(terms.size)
        try:
            start, stop, _ = request.http_range.indices(size)
        except ValueError:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{size}"})
        if "Range" in request.headers and start >= stop:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{size}"})
        headers = {"Content-Type": PARQUET, "Accept-Ranges": "bytes", "Cache-Control": "private, no-store"}
        if is_part := "Range" in request.headers:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        response = web.StreamResponse(status=206 if is_part else 200, headers=headers)
        response.content_length = stop - start
        if request.method == "HEAD":
            await response.prepare(request)
            return response
        asked = _Download(f"{table.key}/{given['file']}", start, stop, charged, terms)
        async with self._downloads.room(charged) as room:
            room.holds(PIECE_BYTES)
            try:
                await self._send(response, request, asked)
            except TimeoutError:
                self._downloads.note_slow(request, owner)
            except (ApiError, StoreError):
                if not response.prepared:
                    raise
                if request.transport is not None:
                    request.transport.abort()  # the client sees that the file is not whole
        return response

    async def _send(self, response: web.StreamResponse, request: web.Request, asked: _Download) -> None:
        at = asked.start
        while at < asked.stop:
            # Links share the loop and the disk. Who waits holds no piece of the file.
            if wait_s := max(self._of_all.debt_s(_EVERYBODY), self._of_tenant.debt_s(asked.reader.tenant)):
                await asyncio.sleep(wait_s)
            self._urls.check_terms(asked.terms)
            try:
                piece = await self._store.store.get_range(asked.key, at, min(PIECE_BYTES, asked.stop - at))
            except NotFound:
                piece = b""
            if not piece:
                # Erasures, retention and joins remove files some time after the version that had them.
                raise ApiError(404, "the file was removed from the store", "query the table again")
            self._of_all.charge(_EVERYBODY, len(piece))
            self._of_tenant.charge(asked.reader.tenant, len(piece))
            self._bytes += len(piece)
            at += len(piece)
            async with asyncio.timeout(self._downloads.longest_s(len(piece))):  # without the waits for the rates
                if not response.prepared:
                    await response.prepare(request)
                await response.write(piece)
        async with asyncio.timeout(PIECE_S):
            await response.write_eof()


def _version(given: str) -> int:
    try:
        return msgspec.convert(given, _Natural, strict=False)
    except msgspec.ValidationError:
        raise ApiError(400, f"{given[:80]!r} is not a version", "give a number from 0 on, or none") from None


def _schema(request: web.Request) -> str:
    if (schema := request.match_info["schema"]) in (STREAMS, LATEST):
        return schema
    raise ApiError(404, f"there is no schema {schema[:80]!r}", f"the schemas of a share are {STREAMS} and {LATEST}")


async def _page(
    request: web.Request,
    names: Sequence[str],
    shown: Callable[[str], Mapping[str, str]],
    may_read: Callable[[str], bool] = lambda _: True,
) -> web.Response:
    """Return a page of a list.

    Args:
        names: sorted names of its members.
        shown: makes the member of a name.
    """
    try:
        most = min(int(request.query.get("maxResults", PAGE_MAX)), PAGE_MAX)
    except ValueError:
        most = -1
    if most < 0:
        raise ApiError(400, "maxResults is not a number of results", "give one from 0 on, or leave it out")
    after = request.query.get("pageToken", "")
    found = await readable(names[bisect_right(names, after) :], may_read, most + 1)
    body: dict[str, object] = {"items": [shown(name) for name in found[:most]]}
    if len(found) > most:
        body["nextPageToken"] = found[most - 1] if most else after or FIRST
    return _json(body)


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body) + b"\n", content_type="application/json")


def _lines(lines: list[bytes], version: int, form: str) -> LongAnswer:
    headers = {VERSION_HEADER: str(version), CAPABILITIES_HEADER: f"responseformat={form}"}
    return LongAnswer([*lines], LINES, headers)


def _refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode({"errorCode": _CODES.get(status, "INTERNAL_ERROR"), "message": message})
    return web.Response(body=body + b"\n", status=status, content_type="application/json", headers=headers)
