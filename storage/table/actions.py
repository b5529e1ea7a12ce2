"""Actions of a Delta table's log: the lines of its entries, the version that they make, and the names of Weft's
facts in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from weft.protocols.payloads import PayloadKind, kind_labelled

# Errors of tables.


class TableError(Exception):
    """A table that could not be read or changed, or does not fit the log. Nothing is lost: the log keeps the
    records."""


class TableConflict(TableError):
    """A commit that lost to another writer, or with an unknown outcome. Read the table again and decide again."""


# Actions of a Delta table's log: the lines of one entry, ``_delta_log/<version>.json``.
#
# Names and meanings are those of the Delta protocol's "Actions" (PROTOCOL.md of delta-io/delta). Fields that are
# unknown here are skipped when read; a table's metadata keeps them.

ACTIONS_KEY = "weftActions"
"""Key in a commit's info: the number of lines that follow, by which an entry cut short by a power cut is recognised."""
ENGINE = "Weft"
FEED_PROPERTY = "delta.enableChangeDataFeed"
"""Property of a table that has a feed of its changes: "true" for one."""
ORDER_TAG = "weft.sortedBy"
"""Tag of an added file: the columns by which its rows are sorted before they become row groups, as a list in JSON. No
reader needs it."""
LINE_BYTES_MAX = 64 << 20
"""Longest action that is read. The longest ones are schemas: a column takes some 100 bytes."""


READABLE_FEATURES = frozenset({"timestampNtz", "vacuumProtocolCheck", "v2Checkpoint"})
"""Reader features that leave a live file with exactly its live rows, under their columns' own names. Deletion vectors
and column mapping, which other engines can switch on, are not among them."""


class DataFile(NamedTuple):
    """A Parquet file in a table's log."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    shard: int
    first_offset: int
    end_offset: int
    modified_ms: int
    stats: str
    """Statistics in JSON, as in the Delta protocol's "Per-file Statistics"."""
    order: tuple[str, ...] = ()
    """Columns by which the rows of a slice of the log are sorted before they become row groups; none if they are in the
    log's order."""


class TableSize(NamedTuple):
    """The files of a version of a table."""

    files: int
    bytes: int
    """Size of the Parquet files in the store, without those that earlier versions alone need."""


class TableProtocol(msgspec.Struct, frozen=True):
    """The versions and features that a table asks of its readers and writers."""

    minReaderVersion: int = 1  # noqa: N815  (Delta's names)
    minWriterVersion: int = 1  # noqa: N815
    readerFeatures: list[str] | None = None  # noqa: N815
    writerFeatures: list[str] | None = None  # noqa: N815


class _Transaction(msgspec.Struct):
    appId: str  # noqa: N815
    version: int


class AddedFile(msgspec.Struct, frozen=True):
    """A file that a version adds."""

    path: str
    size: int
    stats: str | None = None
    deletionVector: dict[str, Any] | None = None  # noqa: N815
    dataChange: bool = True  # noqa: N815


class _Removed(msgspec.Struct):
    path: str
    size: int | None = None
    dataChange: bool = True  # noqa: N815
    """False if other files of the same version have the rows."""
    deletionTimestamp: int | None = None  # noqa: N815
    """Milliseconds since 1970; by it a vacuum knows the age of the removal, and takes one without it at once."""


class _Change(msgspec.Struct):
    """A file of the table's change feed."""

    path: str
    size: int


class Action(msgspec.Struct):
    """One line of an entry. At most one field is there; kinds that no reader here needs leave all of them None."""

    txn: _Transaction | None = None
    protocol: TableProtocol | None = None
    metaData: dict[str, Any] | None = None  # noqa: N815
    add: AddedFile | None = None
    remove: _Removed | None = None
    cdc: _Change | None = None
    commitInfo: dict[str, Any] | None = None  # noqa: N815


_DECODER = msgspec.json.Decoder(Action)
_FACTS = (b'"txn"', b'"protocol"', b'"metaData"')


class Lines:
    """A cutter of an entry's bytes, which come in pieces, into actions.

    Args:
        files: return additions and removals of files as well. Without them, such lines are mostly not even decoded.
    """

    def __init__(self, files: bool) -> None:
        self._files = files
        self._rest = b""

    def take(self, piece: bytes) -> Iterator[Action]:
        """Yield the actions that a piece completes.

        Raises:
            TableError: a line is no action, or is longer than ``LINE_BYTES_MAX``.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n") if self._rest else piece.split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise TableError(f"an action of more than {LINE_BYTES_MAX >> 20} MiB")
        return (action for line in lines if (action := self._decode(line)) is not None)

    def finish(self) -> Iterator[Action]:
        """Yield the action of a last line without an end. Raises as ``take``."""
        last = self._decode(self._rest)
        return iter(()) if last is None else iter((last,))

    def _decode(self, line: bytes) -> Action | None:
        # Most lines of a large entry add or remove files, with statistics that take long to decode.
        if not line.strip() or (not self._files and not any(fact in line for fact in _FACTS)):
            return None
        try:
            return _DECODER.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TableError(f"an action that cannot be read: {error}") from error


def add_action(file: DataFile, data_change: bool) -> dict[str, Any]:
    """Return the addition of a file.

    Args:
        data_change: False if the rows were in the table before: streaming readers then skip the file.
    """
    added: dict[str, Any] = {
        "path": file.path,
        "partitionValues": {},
        "size": file.size,
        "modificationTime": file.modified_ms,
        "dataChange": data_change,
        "stats": file.stats,
    }
    if file.order:
        added["tags"] = {ORDER_TAG: msgspec.json.encode(file.order).decode()}
    return {"add": added}


def remove_action(file: DataFile, now_ms: int, data_change: bool = False) -> dict[str, Any]:
    """Return the removal of a file.

    Args:
        data_change: True if rows leave the table; False if another file of the same version has all of them.
    """
    removed = {
        "path": file.path,
        "deletionTimestamp": now_ms,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size,
    }
    return {"remove": removed}


def txn_actions(transactions: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the transactions of applications.

    They have no `lastUpdated`: with ``delta.setTransactionRetentionDuration``, engines forget transactions by it, and
    rows below a forgotten position would be added a second time.
    """
    return [{"txn": {"appId": app, "version": version}} for app, version in transactions.items()]


def encode_entry(
    operation: str, parameters: Mapping[str, str], actions: Sequence[Mapping[str, Any]], now_ms: int, blind: bool
) -> bytes:
    """Return the bytes of an entry: its commit info, then its actions.

    Args:
        blind: True if the commit depends on no row of the table. Spark's writers do not conflict with such appends.
    """
    info = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": parameters,
        "isBlindAppend": blind,
        "engineInfo": ENGINE,
        ACTIONS_KEY: len(actions),
    }
    lines: Iterable[Mapping[str, Any]] = [{"commitInfo": info}, *actions]
    return b"\n".join(map(msgspec.json.encode, lines))


def plain_path(path: str) -> str:
    """Return a path of an action as a name of a file: in the log it is an encoded URI (RFC 2396)."""
    return unquote(path)


# Names of the facts that Weft stores in a table.

PAYLOAD_PROPERTY = "weft.payload"
"""Table property for the payload kind, from the table's first version on: `text` or `json`."""


def table_payload(column_type: str | None, properties: Mapping[str, str]) -> PayloadKind:
    """Return the payload kind of a table. The column's type, not the property, decides between bytes and text.

    Args:
        column_type: the Delta type of the column ``payload``.
    """
    if column_type != "string":
        return PayloadKind.BYTES
    named = kind_labelled(properties.get(PAYLOAD_PROPERTY, ""))
    return named if named is PayloadKind.JSON else PayloadKind.TEXT


def app_id(cluster_id: bytes, stream: str, shard: int) -> str:
    """Return the Delta ``txn`` application id of a table's position in one shard.

    The transaction's version is the end offset: rows of the shard below it are in the table, later rows are not. The
    cluster id prevents a table that was copied to another cluster from counting as that cluster's own.
    """
    return f"{app_ids(cluster_id, stream)}{shard}"


def app_ids(cluster_id: bytes, stream: str) -> str:
    """Return the beginning of every transaction id of a stream's table."""
    return f"weft/{cluster_id.hex()}/{stream}/"


def source_ids(app: str) -> tuple[str, str]:
    """Return the ids under which a table stores the source of its position: number and footer CRC of the chunk with the
    last row below the position. A log that was restored to an earlier state and has grown since has another chunk
    there.
    """
    return f"{app}/chunk", f"{app}/crc"


# A table's version without its list of files: the same few kilobytes for a table of one file or of a million.


class _SchemaField(msgspec.Struct):
    """A column of a schema, as far as it is read here."""

    name: str
    type: str | dict[str, Any]


@dataclass(frozen=True)
class DeltaState:
    """One reading of a table: its schema, properties, demands, and the positions of one application's family."""

    version: int
    protocol: TableProtocol
    metadata: dict[str, Any]
    """The action ``metaData`` of the table, unknown fields included."""
    transactions: dict[str, int]
    """Application -> version of its last transaction, for those that the reader asked for."""
    entry_hash: bytes
    """Hash of the version's entry, by which a table is recognised; empty if only a checkpoint was left of it."""

    def fields(self) -> list[dict[str, Any]]:
        """Return the columns as the table's schema has them, in its order.

        Raises:
            TableError: the schema cannot be read.
        """
        return list(self._schema()["fields"])

    def columns(self) -> list[tuple[str, str]]:
        """Return (name, type) of the columns, in the table's order. A nested type is "nested"."""
        return [(each["name"], each["type"] if isinstance(each["type"], str) else "nested") for each in self.fields()]

    def properties(self) -> dict[str, str]:
        """Return the table's properties."""
        return dict(self.metadata.get("configuration") or {})

    def with_text_columns(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the metadata with further text columns, null in existing rows."""
        new = [{"name": name, "type": "string", "nullable": True, "metadata": {}} for name in names]
        return self.with_fields([*self.fields(), *new])

    def with_fields(self, fields: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the metadata with other columns: those of now, also with other metadata of theirs, and new ones."""
        schema = self._schema()
        schema["fields"] = list(fields)
        return self.metadata | {"schemaString": msgspec.json.encode(schema).decode()}

    def with_properties(self, properties: Mapping[str, str]) -> dict[str, Any]:
        """Return the metadata with some properties changed."""
        return self.metadata | {"configuration": self.properties() | dict(properties)}

    def _schema(self) -> dict[str, Any]:
        try:
            schema = msgspec.json.decode(self.metadata["schemaString"], type=dict[str, Any])
            msgspec.convert(schema["fields"], list[_SchemaField])
        except (KeyError, TypeError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise TableError(f"version {self.version} of the table has a schema that cannot be read: {error}") from None
        return schema


@dataclass
class StateBuilder:
    """A state while its checkpoint and its entries are read, oldest first."""

    applications: str
    """Beginning of the applications whose transactions are kept: a table may have any number of others."""
    version: int = -1
    protocol: TableProtocol | None = None
    metadata: dict[str, Any] | None = None
    transactions: dict[str, int] = field(default_factory=dict)
    entry_hash: bytes = b""
    watched: Collection[str] = ()
    """Paths whose removal is noted."""
    removed: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, state: DeltaState, applications: str, watched: Collection[str] = ()) -> StateBuilder:
        """Return a builder that continues from a state."""
        return cls(
            applications,
            state.version,
            state.protocol,
            state.metadata,
            dict(state.transactions),
            state.entry_hash,
            frozenset(watched),
        )

    @property
    def reads_files(self) -> bool:
        """Return whether additions and removals of files are needed."""
        return bool(self.watched)

    def take(self, action: Action) -> None:
        """Take one action of the next entry, or of the checkpoint."""
        if action.txn is not None and action.txn.appId.startswith(self.applications):
            self.transactions[action.txn.appId] = action.txn.version
        if action.protocol is not None:
            self.protocol = action.protocol
        if action.metaData is not None:
            self.metadata = action.metaData
        if action.remove is not None and (path := plain_path(action.remove.path)) in self.watched:
            self.removed.add(path)

    def state(self) -> DeltaState:
        """Return the state.

        Raises:
            TableError: the log names no protocol or no schema.
        """
        if self.protocol is None or self.metadata is None or "schemaString" not in self.metadata:
            raise TableError("its log has no protocol or no schema up to this version: an older entry is missing")
        return DeltaState(self.version, self.protocol, self.metadata, dict(self.transactions), self.entry_hash)
