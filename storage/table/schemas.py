"""Schemas of streams' payloads as the cluster log declares them: their documents, and the state of all."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from weft.config.payload_schema.compatibility import Compatibility
from weft.config.payload_schema.model import PayloadSchema, check_schema
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.cluster_log.state import ClusterState

SCHEMA = "schema"
"""Kind of the facts; the name of a fact is TENANT/STREAM."""
KEPT_MAX = 10_000
"""Maximum number of decoded schemas that are kept."""


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


def encode(schema: PayloadSchema, before: int = 0, compatibility: Compatibility = "none") -> bytes:
    """Return the document of a schema."""
    return msgspec.json.encode(SchemaDocument(msgspec.Raw(msgspec.json.encode(schema)), before, compatibility))


def decode(document: bytes, version: int) -> StreamSchema:
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
            schema = decode(document, version)
        except UnreadableSchema as error:
            self.unusable[name] = str(error)
            return None
        if len(self._decoded) < KEPT_MAX:
            self._decoded[key] = schema
        return schema
