"""Facts about streams: expected edges, schemas, quality rules, and tables."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weft.cloud_hub.facts.fact import (
    TABLE,
    CannotDeclare,
    Decision,
    UnreadableDocument,
    decode,
    encode,
    known_fact,
    parse_stream_name,
    read_fact,
    stream_name,
)
from weft.cloud_hub.facts.tenants import check_tenant
from weft.config.payload_schema.documents import incompatible
from weft.config.payload_schema.model import Compatibility, PayloadSchema, QualityRules
from weft.hub_api.answers import ApiError, moment_of
from weft.hub_api.schemas import SchemaAnswer, SchemaOfStream
from weft.protocols.chunk_index import StreamKey
from weft.protocols.lane import NAME_RULE, valid_name
from weft.storage.chunk_log import first_logs, load_every_shard
from weft.storage.cluster import Cluster
from weft.storage.cluster_log import DOCUMENT_BYTES_MAX, Change, ClusterState, Declaration, Fact
from weft.storage.object_store import ObjectStore
from weft.storage.table.schemas import (
    OWN_KEYS,
    QUALITY,
    SCHEMA,
    STREAM,
    Schemas,
    StreamDocument,
    UnreadableSchema,
    decode_schema,
    encode_quality,
    encode_schema,
)

PARTS_MAX = SORT_COLUMNS_MAX = 8
PART = re.compile(r"payload(\.[A-Za-z_][A-Za-z0-9_-]{0,63}){1,8}|[A-Za-z_][A-Za-z0-9_-]{0,63}")
_CONTENT = ("payload", "_headers")
_FIXED = ("_key", "_edge", "_log")
"""Columns of every table that a key may have; others that begin with `_` are of one record alone."""


def wrong_part(parts: Sequence[str], what: str = "key") -> str | None:
    """Return what is wrong with the parts of a key, as a sentence; None if nothing is.

    Args:
        what: name of the whole.
    """
    if not 1 <= len(parts) <= PARTS_MAX:
        return f"a {what} has 1 to {PARTS_MAX} parts, and {len(parts)} are named"
    if len({part.replace(".", "_").casefold() for part in parts}) < len(parts):
        return f"two parts of the {what} are the same, or differ in case, or by `.` and `_`, alone"
    for part in parts:
        if not PART.fullmatch(part) or (part.startswith("_") and part not in _FIXED) or part == "payload":
            return (
                f"{part!r} cannot be part of a {what}: name `_key`, `_edge`, a topic level such as `machine`, or a "
                "field of JSON payloads such as `payload.order.id`"
            )
    return None


def wrong_columns(columns: Sequence[str]) -> str | None:
    """Return what is wrong with the columns of an order of rows, as a sentence; None if nothing is."""
    if len(columns) > SORT_COLUMNS_MAX:
        return f"rows are sorted by at most {SORT_COLUMNS_MAX} columns, and {len(columns)} are named"
    if len(set(columns)) < len(columns):
        return "rows are sorted by each column once"
    for column in columns:
        if not PART.fullmatch(column) or "." in column or column in _CONTENT:
            return (
                f"rows cannot be sorted by {column!r}: name `_key`, `_edge`, a topic level such as `machine`, or a "
                "typed column such as `order_id`"
            )
    return None


class LatestDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A latest table of a stream."""

    key: Annotated[tuple[str, ...], Meta(min_length=1, max_length=8)]
    """Columns and fields of payloads for whose values the table has the newest row."""
    every_s: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    """Interval of its commits, seconds."""
    feed: bool = False
    """True if a new table has a change feed."""
    instead: bool = False
    """True if it replaces the table of all rows, which then does not exist."""


class TableDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tables of a stream; the name of the fact is TENANT/STREAM."""

    latest: LatestDocument | None = None
    retain_s: Annotated[int, Meta(ge=3600)] | None = None
    """Age by the hub's time of receipt, in seconds, at which rows are removed from the table of all rows; None for
    never."""
    retain_bytes: Annotated[int, Meta(ge=1 << 20)] | None = None
    """Size of the table of all rows above which the oldest are removed; None for none."""
    # Longer than ``retain_log``, never shorter: hidden records would still be in the store, and a log with holes has
    # no collected end.
    log_s: Annotated[int, Meta(ge=3600)] | None = None
    """Seconds for which chunks with records of the stream are kept, if longer than the hub's ``retain_log``; None for
    the hub's."""
    sort: Annotated[tuple[str, ...], Meta(max_length=SORT_COLUMNS_MAX)] = ()
    """Columns by which rows within files of the table of all rows are sorted first."""
    formats: tuple[Literal["delta", "iceberg"], ...] | None = None
    """Formats in which engines find the stream's tables, always as Delta; None for those of the hub."""


def expect_edges(key: StreamKey, edges: tuple[str, ...] | None) -> Decision:
    """Declare the edges without which a stream is not complete.

    Args:
        edges: names and patterns; None to withdraw the declaration: then all known edges count.

    Raises:
        CannotDeclare: a name is not valid; from the decision: the tenant is unknown, or there is nothing to withdraw.
    """
    wrong = [each for each in (*key, *(edge.replace("*", "x") for edge in edges or ())) if not valid_name(each)]
    if wrong:
        raise CannotDeclare(f"{wrong[0]!r} is not a valid name: {NAME_RULE}; names of edges may have `*`")
    name = stream_name(key)

    def decide(state: ClusterState) -> Change | None:
        fact = state.facts(STREAM).get(name)
        if edges is None and fact is None:
            raise CannotDeclare(f"the cluster log declares no edges of stream {name}")
        check_tenant(state, key[0])
        before = None if fact is None else fact.document
        document: bytes | None = encode(StreamDocument(edges), before)
        if document == b"{}":
            document = None
        return None if document == before else Change(STREAM, name, document)

    return decide


_NUMBERS = ("int", "float", "decimal")


def set_quality(key: StreamKey, rules: QualityRules) -> Decision:
    """Replace the quality rules of a stream.

    Raises:
        CannotDeclare: a name is not valid, or the rules are too long; from the decision: the tenant is unknown, or the
            stream has no table of all rows.
    """
    for each in key:
        if not valid_name(each):
            raise CannotDeclare(f"{each!r} is not a valid name: {NAME_RULE}")
    name, document = stream_name(key), encode_quality(rules)
    if len(document) > DOCUMENT_BYTES_MAX:
        raise CannotDeclare(f"the rules have more than {DOCUMENT_BYTES_MAX >> 10} KiB: use shorter names, or fewer")

    def decide(state: ClusterState) -> Change | None:
        check_tenant(state, key[0])
        table, fact = state.facts(TABLE).get(name), state.facts(QUALITY).get(name)
        if table is not None and _has_no_history(table.document):
            raise CannotDeclare(
                f"{name} has a latest table instead of a table of all rows, with which quality rules are counted"
            )
        return None if fact is not None and fact.document == document else Change(QUALITY, name, document)

    return decide


def _has_no_history(document: bytes) -> bool:
    try:
        latest = decode(document, TableDocument).latest
    except UnreadableDocument:
        return False
    return latest is not None and latest.instead


def remove_quality(key: StreamKey) -> Decision:
    """Withdraw the quality rules of a stream.

    Raises:
        CannotDeclare: from the decision: it has none.
    """
    name = stream_name(key)

    def decide(state: ClusterState) -> Change:
        known_fact(state, QUALITY, name)
        return Change(QUALITY, name, None)

    return decide


_NOT_THERE = "is not a field of the stream's schema, and no edge has named a topic level like this yet"


def doubts(rules: QualityRules, schema: PayloadSchema | None, levels: Collection[str]) -> Iterator[str]:
    """Yield possible mistakes in rules: rules for which the stream currently has nothing to check.

    Args:
        levels: topic levels that edges have named for the stream so far.
    """
    others = {*levels, *OWN_KEYS}
    for name, rule in rules.rules.items():
        if schema is None and (rule.fits or rule.range is not None):
            yield f"{name}: nothing is checked until the stream has a schema (`weft hub schema set`)"
            continue
        fields = {} if schema is None else schema.fields
        if rule.unique is not None:
            for each in rule.unique.fields:
                if each not in fields and each not in others:
                    yield f"{name}: {each!r} {_NOT_THERE}"
        if rule.not_null is not None and rule.not_null not in fields and rule.not_null not in levels:
            yield f"{name}: {rule.not_null!r} {_NOT_THERE}"
        if rule.range is None:
            continue
        field = fields.get(rule.range.field_)
        if field is None:
            yield f"{name}: the stream's schema has no field {rule.range.field_!r}, so nothing is checked"
        elif field.type.name not in _NUMBERS:
            yield f"{name}: {rule.range.field_!r} is {field.type}, and a range needs numbers, so nothing is checked"


def set_schema(key: StreamKey, schema: PayloadSchema, compatibility: Compatibility | None = None) -> Decision:
    """Declare the schema of a stream, or another version of it. The number of its entry is its version.

    Args:
        compatibility: rule that this version has to keep towards the previous one, and later ones towards this; None
            for the current rule.

    Raises:
        CannotDeclare: a name is not valid, or the schema is too long; from the decision: the tenant is unknown, or the
            version is not compatible with the previous one.
    """
    for each in key:
        if not valid_name(each):
            raise CannotDeclare(f"{each!r} is not a valid name: {NAME_RULE}")
    name = stream_name(key)
    size = len(encode_schema(schema))
    if size > DOCUMENT_BYTES_MAX - 100:
        raise CannotDeclare(
            f"the schema has {size} bytes, more than {DOCUMENT_BYTES_MAX >> 10} KiB: use shorter descriptions, or "
            "fewer fields"
        )

    def decide(state: ClusterState) -> Change | None:
        check_tenant(state, key[0])
        fact = state.facts(SCHEMA).get(name)
        if fact is None:
            return Change(SCHEMA, name, encode_schema(schema, compatibility=compatibility or "none"))
        try:
            known = decode_schema(fact.document, fact.version)
        except UnreadableSchema:  # of a later release, which it replaces
            return Change(SCHEMA, name, encode_schema(schema, fact.version, compatibility or "none"))
        rule = compatibility or known.compatibility
        if (known.schema, known.compatibility) == (schema, rule):
            return None
        if broken := incompatible(known.schema, schema, rule):
            raise CannotDeclare(
                f"the schema of {name} is not compatible ({rule}) with version {known.version}: {'; '.join(broken)}. "
                "Keep to it, or declare --compatibility none"
            )
        return Change(SCHEMA, name, encode_schema(schema, fact.version, rule))

    return decide


def remove_schema(key: StreamKey) -> Decision:
    """Withdraw the schema of a stream.

    Raises:
        CannotDeclare: from the decision: it has none.
    """
    name = stream_name(key)

    def decide(state: ClusterState) -> Change:
        known_fact(state, SCHEMA, name)
        return Change(SCHEMA, name, None)

    return decide


def schema_answer(name: str, version: int, document: bytes, declared: Fact | Declaration) -> SchemaAnswer:
    """Return a version of a schema as the API has it.

    Raises:
        ApiError: 503: this release cannot read it.
    """
    tenant, stream = parse_stream_name(name)
    try:
        found = decode_schema(document, version)
    except UnreadableSchema as error:
        why = f"this release cannot read version {version} of the schema of stream {name}: {error}"
        raise ApiError(503, why, "ask a hub process of that release") from None
    return SchemaAnswer(
        tenant=tenant,
        stream=stream,
        version=version,
        before=found.before or None,
        compatibility=found.compatibility,
        schema=found.schema,
        changed=moment_of(declared.at),
        by=declared.by,
        reason=declared.reason,
    )


def schema_views(state: ClusterState, names: Sequence[str]) -> list[SchemaOfStream]:
    """Return the schemas in force of some streams, as lists of the API have them."""
    known, found = Schemas.of_state(state), []
    for name in names:
        key, fact = parse_stream_name(name), state.facts(SCHEMA)[name]
        one = known.of(key)
        found.append(
            SchemaOfStream(
                tenant=key[0],
                stream=key[1],
                version=fact.version,
                format=one.schema.format if one else None,
                fields=len(one.schema.fields) if one else None,
                compatibility=one.compatibility if one else None,
                personal=[field for field, each in one.schema.fields.items() if each.personal] if one else None,
                changed=moment_of(fact.at),
                by=fact.by,
                reason=fact.reason,
                unusable=known.unusable.get(name),
            )
        )
    return found


class DeclaredTables:
    """Declarations about tables, as of the last ``refresh``."""

    def __init__(self) -> None:
        self._seen: tuple[ClusterState, int] | None = None
        self.documents: Mapping[StreamKey, TableDocument] = {}
        """Replaced by a new mapping at each change."""
        self.unusable: dict[str, str] = {}
        """Names of streams whose declaration cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> None:
        """Take over the declarations of the cluster log, if there is an entry about a table since the last call."""
        last = state.last(TABLE)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return
        self._seen, self.unusable = (state, last), {}
        found: dict[StreamKey, TableDocument] = {}
        for name, fact in state.facts(TABLE).items():
            try:
                document = decode(fact.document, TableDocument)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
                continue
            if document.latest is not None and (wrong := wrong_part(document.latest.key)) is not None:
                self.unusable[name] = wrong
                continue
            found[parse_stream_name(name)] = document
        self.documents = found

    def log_terms(self) -> dict[StreamKey, int]:
        """Return the seconds for which the log is kept, for streams with a retention of their own."""
        return {key: each.log_s for key, each in self.documents.items() if each.log_s is not None}

    def has_latest(self, key: StreamKey) -> bool:
        """Return whether a stream has a latest table."""
        document = self.documents.get(key)
        return document is not None and document.latest is not None

    def is_instead(self, key: StreamKey) -> bool:
        """Return whether a stream's latest table replaces a table of all rows."""
        document = self.documents.get(key)
        return document is not None and document.latest is not None and document.latest.instead

    def is_iceberg(self, key: StreamKey, default: bool) -> bool:
        """Return whether a stream's tables have Iceberg metadata.

        Args:
            default: the answer for streams of which nothing is declared.
        """
        document = self.documents.get(key)
        return default if document is None or document.formats is None else "iceberg" in document.formats

    def sort_of(self, key: StreamKey) -> tuple[str, ...]:
        """Return the columns by which the rows of a stream's files are sorted first."""
        document = self.documents.get(key)
        return () if document is None else document.sort


def set_table(
    key: StreamKey,
    *,
    latest: LatestDocument | None = None,
    retain_s: int | None = None,
    retain_bytes: int | None = None,
    log_s: int | None = None,
    sort: tuple[str, ...] | None = None,
    formats: tuple[Literal["delta", "iceberg"], ...] | None = None,
) -> Decision:
    """Declare settings of a stream's tables. Settings that are None stay unchanged.

    Raises:
        CannotDeclare: a name is not valid; from the decision: the tenant is unknown, or a declaration needs the table
            of all rows, which would not exist.
    """
    if wrong := [each for each in key if not valid_name(each)]:
        raise CannotDeclare(f"{wrong[0]!r} is not a valid name: {NAME_RULE}")
    if sort and (unsortable := wrong_columns(sort)) is not None:
        raise CannotDeclare(unsortable)
    name = stream_name(key)
    of_rows = {"retain_s": retain_s, "retain_bytes": retain_bytes, "log_s": log_s, "sort": sort}
    given = {"latest": latest, "formats": formats} | of_rows

    def decide(state: ClusterState) -> Change | None:
        check_tenant(state, key[0])
        fact = state.facts(TABLE).get(name)
        before = TableDocument() if fact is None else read_fact(name, TABLE, fact.document, TableDocument)
        wanted = msgspec.structs.replace(before, **{part: value for part, value in given.items() if value is not None})
        if wanted.latest is not None and wanted.latest.instead:
            _check_instead(state, name, wanted)
        document = encode(wanted, None if fact is None else fact.document)
        return None if fact is not None and document == fact.document else Change(TABLE, name, document)

    return decide


def _check_instead(state: ClusterState, name: str, wanted: TableDocument) -> None:
    if wanted.retain_s is not None or wanted.retain_bytes is not None:
        raise CannotDeclare(
            f"{name} has a retention of the table of all rows (--retain), and with --instead it has no such table. "
            "Withdraw what is declared (`weft hub table remove`), and declare the latest table alone"
        )
    if name in state.facts(QUALITY):
        raise CannotDeclare(
            f"{name} has quality rules, which are counted with the table of all rows, and with --instead it has no "
            "such table. Withdraw them first (`weft hub quality remove`)"
        )


def remove_table(key: StreamKey) -> Decision:
    """Withdraw the settings of a stream's tables. The tables stay as they are.

    Raises:
        CannotDeclare: from the decision: nothing is declared.
    """
    name = stream_name(key)

    def decide(state: ClusterState) -> Change:
        known_fact(state, TABLE, name)
        return Change(TABLE, name, None)

    return decide


CHUNKS_BYTES = 64 << 20
"""Bytes of chunks that are kept in memory."""


class NoRecords(Exception):
    """A stream without records in the log. The message has the remedy."""


async def topic_levels(store: ObjectStore, cluster: Cluster, stream: StreamKey) -> set[str]:
    """Return the topic levels of a stream, as edges have named them so far.

    Raises:
        StoreError, Corrupt: the log cannot be read.
    """
    found = await load_every_shard(first_logs(store, cluster), frozenset({stream}))
    return {name for _, state in found for name in state.stream_fields(*stream)}


async def newest_payloads(
    store: ObjectStore, cluster: Cluster, stream: StreamKey, count: int
) -> AsyncIterator[list[bytes]]:
    """Yield about ``count`` of the newest payloads, some thousands at a time. Each shard contributes by its share of
    the stream's records.

    Raises:
        NoRecords: the stream is unknown, or its records have left the log.
        StoreError, Corrupt: the log cannot be read.
    """
    from weft.storage.table.rows import RowsOf, rows_of  # imports pyarrow, which a hub without tables does not need
    from weft.storage.table_writer.shards import ChunkCache

    found = await load_every_shard(first_logs(store, cluster), frozenset({stream}))
    ends = {log.shard: state.next_offset.get(stream, 0) for log, state in found}
    total, seen = sum(ends.values()), 0
    for log, state in found:
        if not (end := ends[log.shard]):
            continue
        first = max(0, end - max(1, count * end // total))
        n = max(await log.locate(*stream, first), log.watermark)
        cache = ChunkCache(log, CHUNKS_BYTES, whole=False)
        async for chunk, section, _ in cache.of_stream(stream, n, state.n):
            if section is None or section.base_offset + section.count <= first:
                continue
            data = await cache.section(chunk.header.n, section)
            rows = RowsOf(section, data, chunk.footer.lanes_of(section), chunk.footer.clocks_of(section))
            for batch in rows_of([rows], log.shard, (), lambda _: (), first, columns={"payload"}, rows_max=8192):
                seen += batch.num_rows
                yield batch.column("payload").to_pylist()
    if not seen:
        name = "/".join(stream)
        raise NoRecords(
            f"the log has no records of stream {name}: they are in its table alone, or there are none. `weft streams` "
            "lists the streams; --file reads a sample from a file"
        )
