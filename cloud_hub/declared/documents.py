"""Documents of the facts that this release knows. The words are persisted (docs/reference/formats/cluster-log.md)."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from weft.cloud_hub.api.tokens import Scope
from weft.protocols.shard.shard_state import StreamKey

TOKEN, TENANT, STREAM, NODE = "token", "tenant", "stream", "node"
"""Kinds of facts."""
SECRETS_MAX = 2
"""Maximum number of secrets of a token that are in force at once: during a rotation, the old and the new one."""
EDGES_EXPECTED_MAX = 10_000
Quota = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class UnreadableDocument(ValueError):
    """A document that this release cannot read."""


class Secret(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of a token's secrets."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    until: int | None = None
    """Moment from which on it opens nothing, nanoseconds since 1970; None for no end."""


class TokenDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token; the name of the fact is that of the token."""

    scope: Scope
    secrets: Annotated[tuple[Secret, ...], Meta(max_length=8)]
    """Oldest first."""
    tenant: str = "default"
    edge: str | None = None
    """Edge that may link with the token; only for the scope ``edge``."""


class Quotas(msgspec.Struct, frozen=True, omit_defaults=True):
    """Declared shares of a tenant; None for no word."""

    edges: Quota | None = None
    """Edges that tokens of the cluster log may name."""
    streams: Quota | None = None
    bytes_per_second: Quota | None = None
    stored_bytes: Quota | None = None


class TenantDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tenant; the name of the fact is that of the tenant."""

    quotas: Quotas = Quotas()


class StreamDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stream; the name of the fact is TENANT/STREAM."""

    expected_edges: Annotated[tuple[str, ...], Meta(max_length=EDGES_EXPECTED_MAX)] | None = None
    """Names and patterns of edges that the stream needs to be complete; None for no word."""


class NodeDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A hub process or a machine with some; the name of the fact is that of the process or of the machine."""

    drained: bool = False
    """True while it gives its shards and its edges to others."""


Document = TypeVar("Document", TokenDocument, TenantDocument, StreamDocument, NodeDocument)


def decode(document: bytes, kind: type[Document]) -> Document:
    """Decode a document.

    Raises:
        UnreadableDocument: it is not one of this kind, or has values that this release does not know.
    """
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableDocument(str(error)) from error


def encode(
    document: TokenDocument | TenantDocument | StreamDocument | NodeDocument, before: bytes | None = None
) -> bytes:
    """Return the bytes of a document.

    Args:
        before: the document that it replaces, whose fields of later releases stay.
    """
    own = type(document).__struct_fields__
    try:
        kept = msgspec.json.decode(before, type=dict[str, msgspec.Raw]) if before is not None else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        kept = {}
    fields = msgspec.json.decode(msgspec.json.encode(document), type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**{name: value for name, value in kept.items() if name not in own}, **fields})


def stream_name(key: StreamKey) -> str:
    """Return the name of a stream's fact."""
    return f"{key[0]}/{key[1]}"


def parse_stream_name(name: str) -> StreamKey:
    """Return the stream of a fact's name."""
    tenant, _, stream = name.partition("/")
    return tenant, stream
