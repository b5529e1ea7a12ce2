"""A table's version without its list of files: the same few kilobytes for a table of one file or of a million."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

import msgspec

from weft.storage.table.delta.entries import Action, TableProtocol, plain_path
from weft.storage.table.errors import TableError


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
        """Return a builder that goes on from a state."""
        return cls(
            applications, state.version, state.protocol, state.metadata, dict(state.transactions), state.entry_hash,
            frozenset(watched),
        )  # fmt: skip

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


class EntryFollower(Protocol):
    """A reader of a table's entries that keeps what it needs of them from one reading to the next."""

    version: int
    """Version up to which it has read; -1 before the first."""
    entry_hash: bytes
    """Hash of that version's entry."""

    @property
    def reads_files(self) -> bool:
        """Return whether it needs additions and removals of files."""

    def clear(self) -> None:
        """Forget the table."""

    def take(self, action: Action) -> None:
        """Take one action of the next entry."""

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:
        """Take a checkpoint, or a part of one, in a thread."""
