"""Documents of the facts that this release knows. The words are persisted (docs/reference/formats/cluster-log.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from weft.cloud_hub.api.tokens import GRANT_CHARACTERS_MAX, GRANTS_MAX, Scope
from weft.protocols.chunk_index import StreamKey
from weft.protocols.link import PULL_RANGES_MAX, TEXT_CHARACTERS_MAX
from weft.storage.table.schemas import StreamDocument

# Parts of the key of a latest table, of a choice of rows, or of an order of rows: columns, and fields of payloads.

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


TOKEN, TENANT, NODE, GROUP, CONFIG, PULL_KIND = "token", "tenant", "node", "group", "config", "pull"
TABLE, OPENING = "table", "opening"
"""Kinds of facts."""
BACKUP = "backup"
"""Kind of facts about backups."""
REGION = "region"
"""Kind of facts about the links to other regions."""
HUBS = "hubs"
"""Name of the only fact of kind ``opening``: hubs need no token again, until an entry about one follows it."""
SECRETS_MAX = 2
"""Maximum number of secrets of a token that are in force at once: during a rotation, the old and the new one."""
GROUP_EDGES_MAX = 4096
"""Maximum number of names and patterns of a group; a document has room for some thousand."""
Quota = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class UnreadableDocument(ValueError):
    """A document that this release cannot read."""


class Secret(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of a token's secrets."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    until: int | None = None
    """Moment from which on it opens nothing, nanoseconds since 1970; None for no end."""


class Pairing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A code by which an edge gives a token its secret, once."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """Hash of the code."""
    until: int
    """Moment from which on it opens nothing, nanoseconds since 1970."""
    token_until: int | None = None
    """End of the secret; None for no end."""
    is_used: bool = False
    """True once the token has that secret. Kept, so that a repetition of the edge's request is known."""


class TokenDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token; the name of the fact is that of the token."""

    scope: Scope
    secrets: Annotated[tuple[Secret, ...], Meta(max_length=8)]
    """Oldest first."""
    tenant: str = "default"
    edge: str | None = None
    """Edge that may link with the token; only for the scope ``edge``, and for grants to write."""
    grants: Annotated[
        tuple[Annotated[str, Meta(max_length=GRANT_CHARACTERS_MAX)], ...], Meta(max_length=GRANTS_MAX)
    ] = ()
    """Rights, such as ``read:press-*``; only for the scope ``granted``."""
    pairing: Pairing | None = None
    """The last one; only for the scope ``edge``."""


class Quotas(msgspec.Struct, frozen=True, omit_defaults=True):
    """Declared shares of a tenant; None for no word."""

    edges: Quota | None = None
    """Edges that tokens of the cluster log may name."""
    streams: Quota | None = None
    """Streams with records or lanes."""
    bytes_per_second: Quota | None = None
    """Bytes of stored batches that links bring."""
    stored_bytes: Quota | None = None
    """Recorded: nothing is held to it."""
    records_per_second: Quota | None = None
    """Records that links bring."""
    lanes: Quota | None = None
    """Lanes in all shards."""
    links: Quota | None = None
    """Edges that are linked at one time."""
    table_bytes: Quota | None = None
    """Bytes of its tables of all rows; at them, tables stand and the log keeps the records."""


Isolation = Literal["own"] | None
"""Isolation of a tenant: ``own`` for one that is set apart, None for one that shares shards."""


class TenantDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tenant; the name of the fact is that of the tenant."""

    quotas: Quotas = Quotas()
    isolation: Isolation = None
    """A record for people: ``cluster.json`` decides which tenants are set apart."""


class GroupDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A group of edges; the name of the fact is TENANT/GROUP."""

    edges: Annotated[tuple[str, ...], Meta(max_length=GROUP_EDGES_MAX)]
    """Names and patterns of edges."""
    order: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    """Place among the groups of an edge: the word of a later one wins. Groups with equal places come by name."""


Share = Annotated[float, Meta(ge=0.0, le=1.0)]
_Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]


class RolloutDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a rollout: which share of a group's edges gets the new settings."""

    share: Share
    state: Literal["running", "stopped", "aborted", "done"] = "running"
    steps: Annotated[tuple[Share, ...], Meta(max_length=32)] = ()
    """Shares that follow by themselves, each once all edges of the one before have confirmed; empty: by command."""
    failures_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Number of edges that refuse or take back at which the rollout stops."""
    forgiven: Annotated[int, Meta(ge=0)] = 0
    """Number of these that an operator has seen, and continued after."""
    why: Annotated[str, Meta(max_length=500)] = ""
    """Reason of the state."""


class ConfigDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings for an edge or a group; the name of the fact is TENANT/edge/EDGE or TENANT/group/GROUP."""

    text: _Text | None
    """YAML; None in an aborted rollout of a group that had none."""
    revision: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    """Number of the entry that declared the text: its version for the edges."""
    before: _Text | None = None
    """Text of the edges that a rollout has not reached; None for none."""
    before_revision: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    rollout: RolloutDocument | None = None
    """None: all edges have the text."""


Span = tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]
"""Sequence numbers [first, end)."""
PullStateName = Literal["asked", "sending", "done", "refused", "failed", "cancelled", "expired"]


class PullDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A window of records that an edge is asked for; the name of the fact is TENANT/ID."""

    edge: str
    stream: str
    first: int
    """Beginning of the window, nanoseconds since 1970."""
    end: int
    """End of the window, which does not belong to it."""
    bytes_max: int
    asked: int
    """Moment of the request by the hub's clock."""
    expires: int
    by: str = ""
    """Name of the token."""
    state: PullStateName = "asked"
    log_id: int = 0
    """Log of the edge that the numbers belong to."""
    ranges: Annotated[tuple[Span, ...], Meta(max_length=PULL_RANGES_MAX)] = ()
    """Numbers of the records that the edge found first; none once the pull is over."""
    records: int = 0
    bytes: int = 0
    kept_from: int = 0
    """Time of the oldest record that the edge then had of the stream; 0 if unknown."""
    started: int = 0
    """Moment at which the edge said what it sends; 0 before."""
    ended: int = 0
    """Moment of the last state; 0 while the pull runs."""
    received: int = 0
    """Number of these records that the hub had at the end."""
    lost: Annotated[tuple[Span, ...], Meta(max_length=PULL_RANGES_MAX)] = ()
    """Numbers that the edge no longer had, the first ones if there are more."""
    reason: Annotated[str, Meta(max_length=500)] = ""

    @property
    def is_over(self) -> bool:
        """Return whether the edge is no longer asked."""
        return self.state not in ("asked", "sending")


class NodeDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A hub process or a machine with some; the name of the fact is that of the process or of the machine."""

    drained: bool = False
    """True while it gives its shards and its edges to others."""


class RegionDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The links to another region; the name of the fact is that of the region in the configurations of the hubs."""

    paused: bool = False
    """True while records wait for `weft hub region resume`."""
    comparison: Annotated[int, Meta(ge=0)] = 0
    """Number of times that the whole log had to be compared with the region. Positions of an earlier comparison count
    for nothing."""


class LatestDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A latest table of a stream."""

    key: Annotated[tuple[str, ...], Meta(min_length=1, max_length=8)]
    """Columns, and fields of payloads, whose newest rows it has."""
    every_s: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    """Interval at which it is written."""
    feed: bool = False
    """True if a new table has a change feed."""
    instead: bool = False
    """True if it replaces the table of all rows, which is not made then."""


class TableDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tables of a stream; the name of the fact is TENANT/STREAM."""

    latest: LatestDocument | None = None
    retain_s: Annotated[int, Meta(ge=3600)] | None = None
    """Age, by the hub's time of receipt, at which rows are removed from the table of all rows; None for never."""
    retain_bytes: Annotated[int, Meta(ge=1 << 20)] | None = None
    """Size of the table of all rows above which the oldest are removed; None for none."""
    # Longer than ``retain_log``, never shorter: hidden records would still be in the store, and a log with holes has
    # no collected end.
    log_s: Annotated[int, Meta(ge=3600)] | None = None
    """Age up to which chunks of the log with records of the stream are kept, if that is longer than the hub's
    ``retain_log``; None for the hub's."""
    sort: Annotated[tuple[str, ...], Meta(max_length=SORT_COLUMNS_MAX)] = ()
    """Columns by which the rows of files of the table of all rows are sorted first."""


class BackupDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last complete backup in a place; the name of the fact is that of the place."""

    started: int
    """Moment up to which it has everything, nanoseconds since 1970."""
    finished: int


AnyDocument = (
    TokenDocument
    | TenantDocument
    | StreamDocument
    | NodeDocument
    | GroupDocument
    | ConfigDocument
    | PullDocument
    | TableDocument
    | BackupDocument
    | RegionDocument
)
Document = TypeVar(
    "Document",
    TokenDocument, TenantDocument, StreamDocument, NodeDocument, GroupDocument, ConfigDocument, PullDocument,
    TableDocument, BackupDocument, RegionDocument,
)  # fmt: skip


def decode(document: bytes, kind: type[Document]) -> Document:
    """Decode a document.

    Raises:
        UnreadableDocument: it is not one of this kind, or has values that this release does not know.
    """
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableDocument(str(error)) from error


def encode(document: AnyDocument, before: bytes | None = None) -> bytes:
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
    """Return the name of the fact of a tenant's stream or group."""
    return f"{key[0]}/{key[1]}"


def parse_stream_name(name: str) -> StreamKey:
    """Return (tenant, name of the stream or group) of a fact's name."""
    tenant, _, stream = name.partition("/")
    return tenant, stream
