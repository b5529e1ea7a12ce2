"""Actions of a Delta table's log: the lines of one entry, ``_delta_log/<version>.json``.

Names and meanings are those of the Delta protocol's "Actions" (PROTOCOL.md of delta-io/delta). Fields that are unknown
here are skipped when read; a table's metadata keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from weft.storage.table.errors import TableError

ACTIONS_KEY = "weftActions"
"""Key in a commit's info: the number of lines that follow, by which an entry cut short by a power cut is recognised."""
ENGINE = "Weft"
ORDER_TAG = "weft.sortedBy"
"""Tag of an added file: the columns by which its rows are sorted before they become row groups, as a list in JSON. No
reader needs it."""
LINE_BYTES_MAX = 64 << 20
"""Longest action that is read. The longest ones are schemas: a column takes some 100 bytes."""


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
    """Bytes of Parquet in the store, without files that earlier versions alone need."""


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


class _Removed(msgspec.Struct):
    path: str
    size: int | None = None


class Action(msgspec.Struct):
    """One line of an entry. At most one field is there; kinds that no reader here needs leave all of them None."""

    txn: _Transaction | None = None
    protocol: TableProtocol | None = None
    metaData: dict[str, Any] | None = None  # noqa: N815
    add: AddedFile | None = None
    remove: _Removed | None = None
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
        "path": file.path, "partitionValues": {}, "size": file.size, "modificationTime": file.modified_ms,
        "dataChange": data_change, "stats": file.stats,
    }  # fmt: skip
    if file.order:
        added["tags"] = {ORDER_TAG: msgspec.json.encode(file.order).decode()}
    return {"add": added}


def remove_action(file: DataFile, now_ms: int, data_change: bool = False) -> dict[str, Any]:
    """Return the removal of a file.

    Args:
        data_change: True if rows leave the table; False if another file of the same version has all of them.
    """
    removed = {
        "path": file.path, "deletionTimestamp": now_ms, "dataChange": data_change, "extendedFileMetadata": True,
        "partitionValues": {}, "size": file.size,
    }  # fmt: skip
    return {"remove": removed}


def txn_actions(transactions: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the transactions of applications.

    They have no ``lastUpdated``: with ``delta.setTransactionRetentionDuration``, engines forget transactions by it, and
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
        "timestamp": now_ms, "operation": operation, "operationParameters": parameters, "isBlindAppend": blind,
        "engineInfo": ENGINE, ACTIONS_KEY: len(actions),
    }  # fmt: skip
    lines: Iterable[Mapping[str, Any]] = [{"commitInfo": info}, *actions]
    return b"\n".join(map(msgspec.json.encode, lines))


def plain_path(path: str) -> str:
    """Return a path of an action as a name of a file: in the log it is an encoded URI (RFC 2396)."""
    return unquote(path)
