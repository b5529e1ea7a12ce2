"""Declarations of streams in the cluster log: schemas, quality rules and expected edges, their documents, the state of
all, and a follower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from weft.config.payload_schema.model import Compatibility, PayloadSchema, QualityRules, check_rules, check_schema
from weft.protocols.chunk_index import StreamKey
from weft.protocols.shard.completeness import UNREADABLE
from weft.storage.cluster_log import ClusterLog, ClusterLogFollower, ClusterState
from weft.storage.object_store import ObjectStore

# Schemas of streams' payloads as the cluster log declares them: their documents, and the state of all.

SCHEMA = "schema"
"""Kind of the facts; the name of a fact is TENANT/STREAM."""
KEPT_MAX = 10_000
"""Maximum number of decoded schemas that are kept."""
OWN_KEYS = ("_key", "_edge", "_time", "payload")
"""Columns of every table that may be a part of a unique key."""


class UnreadableSchema(ValueError):
    """A document that this release cannot read."""


class SchemaDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A schema of a stream."""

    schema: msgspec.Raw
    """The settings of ``config.payload_schema``."""
    before: Annotated[int, Meta(ge=0)] = 0
    """Number of the entry with the version before; 0 for none."""
    compatibility: Compatibility = "none"
    """Rule that the next version has to keep."""


class StreamSchema(NamedTuple):
    """A version of a stream's schema."""

    version: int
    """Number of the entry of the cluster log that declared it."""
    schema: PayloadSchema
    before: int = 0
    """The version before; 0 for none."""
    compatibility: Compatibility = "none"
    """Rule that the next version has to keep."""


def encode_schema(schema: PayloadSchema, before: int = 0, compatibility: Compatibility = "none") -> bytes:
    """Return the document of a schema."""
    return msgspec.json.encode(SchemaDocument(msgspec.Raw(msgspec.json.encode(schema)), before, compatibility))


def decode_schema(document: bytes, version: int) -> StreamSchema:
    """Decode a document.

    Raises:
        UnreadableSchema: it is not a schema, or has settings that this release does not know.
    """
    try:
        found = msgspec.json.decode(document, type=SchemaDocument)
        schema = msgspec.json.decode(found.schema, type=PayloadSchema)
        # These read the texts of types and paths.
        for name, each in schema.fields.items():
            _ = each.type, each.path(name)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableSchema(str(error)) from error
    if problem := next(check_schema(schema), None):
        raise UnreadableSchema(f"{'.'.join(map(str, problem.path))}: {problem.message}")
    return StreamSchema(version, schema, found.before, found.compatibility)


class Schemas:
    """The schemas of all streams, as of the last ``refresh``. A document is decoded once for each version."""

    def __init__(self) -> None:
        self._documents: dict[StreamKey, tuple[int, bytes]] = {}
        self._decoded: dict[StreamKey, StreamSchema] = {}
        self._seen: tuple[ClusterState, int] | None = None
        self.unusable: dict[str, str] = {}
        """Names of streams whose schema cannot be read, each with the reason."""

    @classmethod
    def of_state(cls, state: ClusterState) -> Schemas:
        """Return the schemas of a state of the cluster log."""
        schemas = cls()
        schemas.refresh(state)
        return schemas

    def refresh(self, state: ClusterState) -> bool:
        """Take over the declarations of the cluster log, if there is an entry about a schema since the last call.

        Returns:
            Whether there was one.
        """
        last = state.last(SCHEMA)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return False
        before, self._seen, self._documents = self._documents, (state, last), {}
        for name, fact in state.facts(SCHEMA).items():
            tenant, _, stream = name.partition("/")
            self._documents[tenant, stream] = fact.version, fact.document
        for key in before.keys() | self._documents.keys():
            if before.get(key) != self._documents.get(key):
                self._decoded.pop(key, None)
                self.unusable.pop("/".join(key), None)
                self.of(key)
        return True

    def of(self, key: StreamKey) -> StreamSchema | None:
        """Return the schema of a stream; None if none is declared, or it cannot be read."""
        found = self._documents.get(key)
        name = "/".join(key)
        if found is None or name in self.unusable:
            return None
        if (known := self._decoded.get(key)) is not None:
            return known
        version, document = found
        try:
            schema = decode_schema(document, version)
        except UnreadableSchema as error:
            self.unusable[name] = str(error)
            return None
        if len(self._decoded) < KEPT_MAX:
            self._decoded[key] = schema
        return schema


# Quality rules as the cluster log declares them: their documents, and the state of all.

QUALITY = "quality"
"""Kind of the facts; the name of a fact is TENANT/STREAM."""


class UnreadableRules(ValueError):
    """A document that this release cannot read."""


class QualityDocument(msgspec.Struct, frozen=True):
    """Quality rules of a stream."""

    quality: msgspec.Raw
    """The settings of ``config.payload_schema.model``."""


class StreamQuality(NamedTuple):
    """The quality rules of a stream."""

    version: int
    """Number of the entry of the cluster log that declared them."""
    rules: QualityRules


def encode_quality(rules: QualityRules) -> bytes:
    """Return the document of rules."""
    return msgspec.json.encode(QualityDocument(msgspec.Raw(msgspec.json.encode(rules))))


def decode_quality(document: bytes, version: int) -> StreamQuality:
    """Decode a document.

    Raises:
        UnreadableRules: it has no rules, or some that this release does not know.
    """
    try:
        found = msgspec.json.decode(document, type=QualityDocument)
        rules = msgspec.json.decode(found.quality, type=QualityRules)
        # A rule of a later release has no check that this one knows.
        problem = next(check_rules(rules), None)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError) as error:
        raise UnreadableRules(str(error)) from error
    if problem is not None:
        raise UnreadableRules(f"{'.'.join(map(str, problem.path))}: {problem.message}")
    return StreamQuality(version, rules)


class DeclaredQuality:
    """The quality rules of all streams, as of the last ``refresh``. A document is decoded once for each version."""

    def __init__(self) -> None:
        self._seen: tuple[ClusterState, int] | None = None
        self.streams: Mapping[StreamKey, StreamQuality] = {}
        """Another mapping after each change."""
        self.unusable: dict[str, str] = {}
        """Names of streams whose rules cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> None:
        """Take over the declarations of the cluster log, if there is an entry about rules since the last call."""
        last = state.last(QUALITY)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return
        self._seen, self.unusable = (state, last), {}
        found: dict[StreamKey, StreamQuality] = {}
        for name, fact in state.facts(QUALITY).items():
            tenant, _, stream = name.partition("/")
            known = self.streams.get((tenant, stream))
            if known is None or known.version != fact.version:
                try:
                    known = decode_quality(fact.document, fact.version)
                except UnreadableRules as error:
                    self.unusable[name] = str(error)
                    continue
            found[tenant, stream] = known
        self.streams = found

    def of(self, key: StreamKey) -> StreamQuality | None:
        """Return the rules of a stream; None if none are declared, or they cannot be read."""
        return self.streams.get(key)


# Edges without which streams are not complete. Every answer to "up to when" goes by them: the hub's, Spark's, the
# audit's.

STREAM = "stream"
"""Kind of the facts; the name of a fact is TENANT/STREAM."""
EDGES_EXPECTED_MAX = 10_000


class StreamDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stream; the name of the fact is TENANT/STREAM."""

    expected_edges: Annotated[tuple[str, ...], Meta(max_length=EDGES_EXPECTED_MAX)] | None = None
    """Names and patterns of edges that the stream needs to be complete; None for no word."""


class ExpectedEdges(Mapping[StreamKey, tuple[str, ...]]):
    """(tenant, stream) -> names and patterns of edges, as of the last ``refresh``; ``UNREADABLE`` of a declaration that
    this release cannot read."""

    def __init__(self) -> None:
        self._edges: dict[StreamKey, tuple[str, ...]] = {}
        self._seen: tuple[ClusterState, int] | None = None
        self.unusable: dict[str, str] = {}
        """Names of streams whose declaration cannot be read, each with the reason."""

    @classmethod
    def of_state(cls, state: ClusterState) -> ExpectedEdges:
        """Return the expected edges of a state of the cluster log."""
        found = cls()
        found.refresh(state)
        return found

    def refresh(self, state: ClusterState) -> None:
        """Take over the declarations of the cluster log. They are read only after an entry about a stream: the log of a
        fleet has many others."""
        last = state.last(STREAM)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return
        self._seen, self.unusable = (state, last), {}
        found: dict[StreamKey, tuple[str, ...]] = {}
        for name, fact in state.facts(STREAM).items():
            edges: tuple[str, ...] | None
            try:
                edges = msgspec.json.decode(fact.document, type=StreamDocument).expected_edges
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                # Taken for no declaration, the stream would be called complete without an edge that a later release
                # waits for.
                self.unusable[name], edges = str(error), (UNREADABLE,)
            if edges is not None:
                tenant, _, stream = name.partition("/")
                found[tenant, stream] = edges
        self._edges = found

    def __getitem__(self, key: StreamKey) -> tuple[str, ...]:
        return self._edges[key]

    def __iter__(self) -> Iterator[StreamKey]:
        return iter(self._edges)

    def __len__(self) -> int:
        return len(self._edges)


# Schemas and quality rules of a store, for a process that makes tables and is no hub node.

TABLE: Final = "table"
"""Kind of the facts about tables of streams."""


class _Latest(msgspec.Struct):
    instead: bool = False


class _TablesOfStream(msgspec.Struct):
    latest: _Latest | None = None
    sort: tuple[str, ...] = ()


_UNDECLARED = _TablesOfStream()


class FollowedDeclarations:
    """The declarations of a store that rows are made by. Of the cluster log, nothing else is followed."""

    def __init__(self, store: ObjectStore, cluster_id: bytes) -> None:
        self.schemas, self.quality = Schemas(), DeclaredQuality()
        self._tables: dict[str, _TablesOfStream] = {}
        self._follower = ClusterLogFollower(ClusterLog(store, cluster_id), self._changed)

    async def start(self) -> None:
        """Read the cluster log, and follow it. Raises as ``ClusterLogFollower.start``."""
        await self._follower.start()
        self._changed()

    async def close(self) -> None:
        """Stop following."""
        await self._follower.close()

    def is_instead(self, key: StreamKey) -> bool:
        """Return whether a stream's latest table replaces a table of all rows."""
        latest = self._of(key).latest
        return latest is not None and latest.instead

    def sort_of(self, key: StreamKey) -> tuple[str, ...]:
        """Return the columns by which the rows of a stream's files are sorted first."""
        return self._of(key).sort

    def _of(self, key: StreamKey) -> _TablesOfStream:
        return self._tables.get("/".join(key), _UNDECLARED)

    def _changed(self) -> None:
        self.schemas.refresh(self._follower.state)
        self.quality.refresh(self._follower.state)
        facts = self._follower.state.facts(TABLE)
        self._tables = {name: _read(fact.document) for name, fact in facts.items()}


def _read(document: bytes) -> _TablesOfStream:
    try:
        return msgspec.json.decode(document, type=_TablesOfStream)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _UNDECLARED
