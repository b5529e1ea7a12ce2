"""Batch and streaming reads through a hub. Tasks ask it for ranges of offsets; the store stays closed to them."""

from __future__ import annotations

import http.client
import json
import random
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from spark_sinks.errors import ReadError
from spark_sinks.source.options import HubAccess, Offsets, Position, ReadOptions, from_json, limited, to_json
from spark_sinks.source.partitions import Mask, masks
from spark_sinks.source.typed import typed_arrays, with_typed
from spark_sinks.source.workers import keep_broken_pipes_quiet
from weft.storage.table.rows import FIXED_COLUMNS
from weft.storage.table.typed_columns import OWN_COLUMNS, SCHEMA_COLUMN, SINCE, typed_part

# Requests to a hub for the rows of one stream, each bounded in bytes and time.

T = TypeVar("T")
TIMEOUT_S = 60.0
ANSWER_BYTES_MAX = 256 << 20
"""Maximum size of an answer: the hub's bound, which a setting may raise, and a row of 128 MiB."""
ERROR_BYTES_MAX = 64 << 10
TRIES_MAX = 8
"""Maximum number of attempts of a request, over all nodes."""
RETRY_MIN_S, RETRY_MAX_S = 0.2, 10.0
BEHIND_S_MAX = 15.0
"""Time for which a node may know less than another one did: it reads the log on within some seconds. A store that was
restored knows less for good."""
LOOK_MIN_S, LOOK_MAX_S = 0.1, 2.0
DENIED = frozenset({401, 403})
BUSY = frozenset({429, 500, 502, 503, 504})
"""Answers after which another attempt may succeed."""
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST"})
"""Reasons of OpenSSL where the other side answers in plain text."""
_PERHAPS_TLS = ". If the hub has certificates, write https://"
_NEXT_OFFSET, _NEXT_CHUNK, _END_OFFSET = "Weft-Next-Offset", "Weft-Next-Chunk", "Weft-End-Offset"


class RowsPage(NamedTuple):
    """Rows of one request, and where to continue."""

    schema: pa.Schema
    batches: list[pa.RecordBatch]
    next_offset: int | None
    """None while the search for the first row continues."""
    next_chunk: int | None
    end: int


class Declared(NamedTuple):
    """The declared schema that a read began with."""

    version: int
    columns: tuple[str, ...]
    """Its columns with their types: a topic level that edges have named since takes a column's name."""

    @classmethod
    def of(cls, schema: pa.Schema) -> Declared | None:
        """Return that of an answer; None if it has none."""
        if SCHEMA_COLUMN not in schema.names:
            return None
        version = (schema.metadata or {}).get(SINCE.encode(), b"0")
        return cls(int(version), tuple(f"{field.name} {field.type}" for field in typed_part(schema)))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: a token is for the hub that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


class HubClient:
    """A reader of one stream through a hub.

    Args:
        columns: columns to ask for, as ``/rows`` has them; None for those without a schema.
        declared: the declared schema that answers must have. A process that does not know it yet is asked again; a
            later one ends the read. Nulls in place of its columns would be read as values that are missing.
        sleep: instead of ``time.sleep``.
    """

    def __init__(
        self,
        access: HubAccess,
        tenant: str,
        stream: str,
        *,
        columns: str | None = None,
        declared: Declared | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._access, self._tenant, self._stream, self._sleep = access, tenant, stream, sleep
        self._columns, self._declared = columns, declared
        context = ssl.create_default_context(cadata=access.ca)
        self._open = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context)).open

    def heads(self, known: Offsets | None = None) -> Offsets:
        """Return the end of the log in each shard that has the stream.

        Args:
            known: offsets that are in the log by what another node said. While a node's answer ends before them, it is
                asked again, for ``BEHIND_S_MAX`` at most; then its answer counts.

        Raises:
            ReadError: the hub does not answer, lacks the stream, or cannot read a shard for some time; or the token
                does not open it.
        """
        for found in self._while_behind(self._heads):
            if all(offset <= found.get(shard, 0) for shard, offset in (known or {}).items()):
                break
        return found

    def _heads(self) -> Offsets:
        body, _ = self._get(f"/v1/streams/{self._stream}", {}, lacks=_missing_shard)
        return {int(shard): int(offset) for shard, offset in json.loads(body)["next_offset"].items()}

    def completeness(self) -> tuple[dict[str, Any], str | None]:
        """Return the hub's answer about up to when the stream is complete, and its time, as HTTP writes it.

        Raises:
            ReadError: as ``heads``.
        """
        body, headers = self._get(f"/v1/streams/{self._stream}/completeness", {"limit": 1}, lacks=_missing_shard)
        return json.loads(body), headers["Date"]

    def _while_behind(self, ask: Callable[[], T]) -> Iterator[T]:
        """Yield answers, the first at once and the last after ``BEHIND_S_MAX``, for a caller that takes one."""
        waited, pause = 0.0, LOOK_MIN_S
        yield ask()
        while waited < BEHIND_S_MAX:
            self._sleep(pause)
            waited, pause = waited + pause, min(2 * pause, LOOK_MAX_S)
            yield ask()

    def page(self, shard: int, offset: int | None, chunk: int | None, limit: int) -> RowsPage:
        """Return rows of a shard from an offset on.

        Raises:
            ReadError: as ``heads``; or the log no longer has the rows.
        """
        asked = {"shard": shard, "offset": offset, "chunk": chunk, "limit": limit, "columns": self._columns}
        given = {name: value for name, value in asked.items() if value is not None}
        body, headers = self._get(f"/v1/streams/{self._stream}/rows", given, lacks=self._lacks_schema)
        try:
            with pa.ipc.open_stream(body) as reader:
                schema, batches = reader.schema, list(reader)
            offset, chunk = (
                None if headers[name] is None else int(headers[name]) for name in (_NEXT_OFFSET, _NEXT_CHUNK)
            )
            return RowsPage(schema, batches, offset, chunk, int(headers[_END_OFFSET]))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ReadError(f"the hub's answer is not a stream of rows: {error}; is a hub at that address?") from None

    def declared(self, *, is_known: bool) -> Declared | None:
        """Return the schema that the hub knows as declared; None if it has none.

        Args:
            is_known: another process knew one: a process that does not is asked again.

        Raises:
            ReadError: as ``page``; or it is known, and no longer.
        """
        shard = min(self.heads(), default=0)
        for page in self._while_behind(partial(self.page, shard, 0, None, 0)):
            if (found := Declared.of(page.schema)) is not None or not is_known:
                return found
        raise ReadError("the hub does not know the declared schema that this read began with; start the read again")

    def _lacks_schema(self, body: bytes) -> str | None:
        if self._declared is None:
            return None
        try:
            with pa.ipc.open_stream(body) as reader:
                found = Declared.of(reader.schema)
        except pa.ArrowException:
            return None  # the caller says what is wrong
        if found == self._declared:
            return None
        if found is None or found.version < self._declared.version:
            return "does not know the declared schema that this read began with; start the read again"
        raise ReadError(_OTHER_COLUMNS)

    def rows(self, shard: int, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``[first, end)`` of a shard.

        Raises:
            ReadError: as ``page``; or the log ends before, so its store was restored to an earlier state.
        """
        offset, chunk = first, None
        while offset < end:
            ask = partial(self.page, shard, offset, chunk, min(end - offset, 1 << 16))
            for page in self._while_behind(ask):
                if page.end >= end:
                    break
            yield from page.batches
            if page.end < end:
                raise ReadError(
                    f"shard {shard} ends at offset {page.end}, and this read was planned to {end}: the hub's store was "
                    "restored to an earlier state. Start again, with a new checkpoint"
                )
            if page.next_offset is None or (page.next_offset <= offset and page.next_chunk == chunk):
                raise ReadError(
                    f"the hub did not continue at offset {offset} of shard {shard}; is a hub at that address?"
                )
            offset, chunk = page.next_offset, page.next_chunk

    def first_offset(self, shard: int) -> int:
        """Return the first offset of a shard that the hub's log still has.

        Raises:
            ReadError: as ``page``.
        """
        chunk: int | None = None
        while True:
            page = self.page(shard, None, chunk, 0)
            if page.next_offset is not None:
                return page.next_offset
            if page.next_chunk is None or page.next_chunk == chunk:
                raise ReadError(f"the hub did not find the first row of shard {shard}; is a hub at that address?")
            chunk = page.next_chunk

    def _get(
        self, path: str, given: dict[str, Any], *, lacks: Callable[[bytes], str | None] = lambda _: None
    ) -> tuple[bytes, Any]:
        """Return the body and the headers of an answer.

        Args:
            lacks: returns what an answer lacks that another attempt may bring; None if it is whole.
        """
        query = urlencode({**given, "tenant": self._tenant})
        why = ""
        for attempt in range(TRIES_MAX):
            url = self._access.urls[attempt % len(self._access.urls)]
            if attempt >= len(self._access.urls):
                longest = min(RETRY_MAX_S, RETRY_MIN_S * 2 ** (attempt - len(self._access.urls)))
                self._sleep(longest * (0.5 + random.random() / 2))
            request = urllib.request.Request(f"{url}{path}?{query}")  # noqa: S310  (the option takes http and https)
            if self._access.token is not None:
                request.add_header("Authorization", f"Bearer {self._access.token}")
            try:
                with self._open(request, timeout=TIMEOUT_S) as answer:
                    body = answer.read(ANSWER_BYTES_MAX + 1)
                    if len(body) > ANSWER_BYTES_MAX:
                        raise ReadError(f"{url} answered with more than {ANSWER_BYTES_MAX >> 20} MiB; lower its limit")
                    if answer.length:  # http.client does not tell a cut answer that is read up to a length
                        why = f"{url} ended {answer.length} bytes before its answer's end"
                    elif (missing := lacks(body)) is None:
                        return body, answer.headers
                    else:
                        why = f"{url} {missing}"
            except urllib.error.HTTPError as error:
                why = f"{url} answered {error.code}: {_reason_of(error)}"
                if error.code in DENIED:
                    why += ". The option token_file names the file of a token of scope reader for the tenant"
                if error.code not in BUSY:
                    raise ReadError(why) from None
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                if (of_tls := _of_tls(url, reason)) is not None:
                    raise ReadError(f"hub: {of_tls}") from None
                why = f"{url} does not answer: {reason}{_PERHAPS_TLS if _is_cut(url, reason) else ''}"
        raise ReadError(f"hub: {why}")


def _of_tls(url: str, reason: object) -> str | None:
    """Return a fault of TLS that no other attempt mends, in plain words; None for other faults."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"{url} has a certificate that is refused: {reason.verify_message}. Name the hub as its certificate does, "
            "and give the file of its authority with the option ca_file"
        )
    if isinstance(reason, ssl.SSLError) and reason.reason in _NO_TLS:
        return f"{url} does not speak TLS. Write http:// for a hub without certificates"
    return None


def _is_cut(url: str, reason: object) -> bool:
    """Return whether a plain request was cut off as a server with TLS does it."""
    return url.startswith("http:") and isinstance(reason, http.client.BadStatusLine | ConnectionResetError)


def _missing_shard(body: bytes) -> str | None:
    # A shard is missing for some seconds after a split, a start or a take-over, which must not end a query.
    try:
        missing = json.loads(body).get("missing_shards")
        return f"cannot read shard {missing[0]['shard']}: {missing[0]['trouble']}" if missing else None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise ReadError("the hub's answer is not about a stream; is a hub at that address?") from None


def _reason_of(error: urllib.error.HTTPError) -> str:
    try:
        answer = json.loads(error.read(ERROR_BYTES_MAX))
        return f"{answer['detail']}; {answer['advice']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError, http.client.HTTPException):
        return f"{error.reason}; is a hub at that address?"


TASK_ROWS = 200_000
"""Rows of a task: some requests."""
TASKS_MAX = 1024
"""Maximum number of tasks of one read; a longer read gets larger tasks."""
_OTHER_COLUMNS = (
    "the stream's declared schema is later than this read, or a topic level has the name of a field. "
    "Start the read again for its columns of today"
)
_OF_DECLARED = frozenset(field.name for field in OWN_COLUMNS)
THROUGH = "hub"
"""Key beside the shards of a checkpoint's offsets that says that they were read through a hub."""


@dataclass(frozen=True)
class HubTask(InputPartition):
    """Offsets ``[first, end)`` of a shard."""

    options: ReadOptions
    shard: int
    first: int
    end: int
    declared: Declared | None = None
    """The declared schema whose columns the read has."""


def client_of(options: ReadOptions, declared: Declared | None = None) -> HubClient:
    """Return a client for the hub of a read.

    Args:
        declared: as in ``HubClient``.
    """
    assert options.hub is not None, "the read is through a hub"
    # With a schema of its own, a read makes its typed columns itself.
    typed = "typed" if options.schema is None and options.is_typed else None
    return HubClient(options.hub, options.tenant, options.stream, columns=typed, declared=declared)


def columns_of(options: ReadOptions) -> pa.Schema:
    """Return the stream's columns, followed by those of the payload schema in the options.

    Raises:
        ReadError: the hub does not answer, or lacks the stream.
    """
    client = client_of(options)
    shard = min(client.heads(), default=0)
    return with_typed(client.page(shard, 0, None, 0).schema, options.schema)


class HubReader(DataSourceReader):
    """A batch read through a hub. The plan is made once per DataFrame: load again to see later records."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> list[InputPartition]:
        """Return the tasks between ``starting`` and ``ending``.

        Raises:
            ReadError: the hub does not answer, or its log lacks the offsets.
        """
        client = client_of(self._options)
        heads = client.heads(_given(self._options.starting) | _given(self._options.ending))
        start = _resolved("starting", self._options.starting, client, heads)
        end = _resolved("ending", self._options.ending, client, heads)
        return _tasks(self._options, start, end, _declared(self._options, self._schema))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_task(partition, self._schema)


class HubStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read through a hub. Its offsets are the log's by shard, which never change."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        keep_broken_pipes_quiet()
        self._options, self._schema = options, schema
        self._target: Offsets | None = None
        self._heads: Offsets = {}
        self._made: HubClient | None = None
        self._declared: tuple[Declared | None] | None = None
        """The declared schema of the query, if any; None before its first plan."""

    @property
    def _client(self) -> HubClient:
        """Return a client with the token of the present: one of an issuer ends long before the query."""
        assert self._options.hub is not None, "the read is through a hub"
        renewed = self._options.hub.renewed()
        if self._made is None or renewed != self._options.hub:
            self._options = replace(self._options, hub=renewed)
            self._made = client_of(self._options)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offsets at which a new query starts."""
        return _encoded(
            _resolved("starting", self._options.starting, self._client, self._seen(_given(self._options.starting)))
        )

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offsets at which the next micro-batch ends: at most ``limit`` records later, and not past the
        target of availableNow.

        Raises:
            ReadError: the checkpoint is not of this hub, or the hub's store was restored to an earlier state.
        """
        at = _decoded(start)
        heads = self._seen(at)  # another node may have said where the query is, and this one read less of the log yet
        before = dict.fromkeys(heads, 0) | at
        for shard, offset in before.items():
            if offset > heads.get(shard, 0):
                raise ReadError(
                    f"checkpoint: it is at offset {offset} of shard {shard}, and the stream ends at "
                    f"{heads.get(shard, 0)}. It is of another hub, or the hub's store was restored to an earlier state"
                )
        end = heads if self._target is None else dict.fromkeys(heads, 0) | self._target
        end = {shard: max(before[shard], offset) for shard, offset in end.items()}
        return _encoded(limited(before, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of ``max_records_per_trigger``."""
        records = self._options.max_records_per_trigger
        return ReadAllAvailable() if records is None else ReadMaxRows(records)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the end of the log as last seen, for the lag that Spark reports."""
        return to_json(self._heads)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the present end of the log."""
        self._target = self._seen()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of one micro-batch."""
        last = _decoded(end)
        _ = self._client  # after a restart, a batch is planned before any look at the hub
        if self._declared is None:
            self._declared = (_declared(self._options, self._schema),)
        return _tasks(self._options, dict.fromkeys(last, 0) | _decoded(start), last, *self._declared)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_task(partition, self._schema)

    def _seen(self, known: Offsets | None = None) -> Offsets:
        self._heads = self._client.heads(known)
        return self._heads

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors, without the connection."""
        return {**self.__dict__, "_made": None}


def read_task(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task in exactly ``schema``. For an empty plan, Spark passes a plain partition.

    Raises:
        ReadError: the hub does not answer, or its log no longer has the rows.
    """
    if not isinstance(partition, HubTask):
        return
    keep_broken_pipes_quiet()
    options = partition.options
    wanted = [mask for found in masks(options, timed=True).values() for mask in found] + _edges_mask(options)
    client = client_of(options, partition.declared)
    for batch in client.rows(partition.shard, partition.first, partition.end):
        kept = batch
        for mask in wanted:
            kept = kept.filter(mask(kept))
        if not kept.num_rows:
            continue
        typed = typed_arrays(kept, options.schema, None, schema.names)
        arrays = [_column(kept, typed, field) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(batch: pa.RecordBatch, typed: dict[str, pa.Array], field: pa.Field) -> pa.Array:
    if field.name in typed:
        return typed[field.name].cast(field.type)
    if field.name not in batch.schema.names:  # a topic level that no edge of this shard has named
        if not pa.types.is_string(field.type):
            raise ReadError(_OTHER_COLUMNS)
        return pa.nulls(batch.num_rows, field.type)
    return batch.column(field.name).cast(field.type)


def _edges_mask(options: ReadOptions) -> list[Mask]:
    if options.edges is None:
        return []
    names = pa.array(sorted(options.edges))
    return [lambda batch: pc.is_in(batch.column("_edge"), names)]


def _given(position: Position) -> Offsets:
    """Return the offsets that an option names; none if it names none."""
    return position if isinstance(position, dict) else {}


def _resolved(option: str, position: Position, client: HubClient, heads: Offsets) -> Offsets:
    if position == "latest":
        return heads
    if position == "earliest":
        return {shard: client.first_offset(shard) for shard in heads}
    if isinstance(position, datetime):
        raise ReadError(f"{option}: a read through a hub begins and ends at offsets; filter times with since and until")
    assert isinstance(position, dict)
    beyond = [shard for shard, offset in position.items() if offset > heads.get(shard, 0)]
    if beyond:
        raise ReadError(f"{option}: the offset of shard {beyond[0]} is past the end of the log")
    return dict.fromkeys(heads, 0) | position


def _declared(options: ReadOptions, schema: pa.Schema) -> Declared | None:
    """Return the declared schema that a read has columns of; None if it has none of any."""
    if options.schema is not None or not options.is_typed or FIXED_COLUMNS.issuperset(schema.names):
        return None
    is_known = not _OF_DECLARED.isdisjoint(schema.names)
    found = client_of(options).declared(is_known=is_known)
    names = {column.partition(" ")[0] for column in found.columns} if found is not None else set()
    return found if is_known or not names.isdisjoint(schema.names) else None


def _tasks(options: ReadOptions, start: Offsets, end: Offsets, declared: Declared | None) -> list[InputPartition]:
    rows = sum(max(0, end[shard] - start.get(shard, 0)) for shard in end)
    size = max(TASK_ROWS, -(-rows // TASKS_MAX))
    return [
        HubTask(options, shard, at, min(at + size, end[shard]), declared)
        for shard in sorted(end)
        for at in range(start.get(shard, 0), end[shard], size)
    ]


def _encoded(offsets: Offsets) -> dict[str, Any]:
    return {**to_json(offsets), THROUGH: True}


def _decoded(value: Any) -> Offsets:
    if not isinstance(value, dict) or THROUGH not in value:
        raise ReadError("checkpoint: it is of a read of the store. A read through a hub needs a checkpoint of its own")
    try:
        return from_json({shard: offset for shard, offset in value.items() if shard != THROUGH})
    except ValueError as error:
        raise ReadError(f"checkpoint: {error}") from None
