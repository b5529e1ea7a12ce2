"""Opening of the node's SQLite file in any state."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable

from weft.edge_node.sessions.store.columns import SealedRows, seal_all
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.sealed.disk import SealedFileSystem

FILE_NAME = "mqtt.sqlite3"
DAMAGED = ".damaged"
PRIVATE_MODE = 0o600
BUSY_TIMEOUT_S = 5.0
"""Longest wait of a write for an operator who reads the file with a tool of their own."""
DAMAGED_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

Job = Callable[[sqlite3.Connection], None]

logger = logging.getLogger(__name__)


class _Damaged(sqlite3.DatabaseError):
    """A file that opens and has damaged content."""


def open_database(path: str, schema: Job, filesystem: FileSystem) -> tuple[sqlite3.Connection, str | None]:
    """Open or create a file, in WAL mode and with every commit synced. Blocks.

    Args:
        schema: creates missing tables.

    Returns:
        The database; and the path of a damaged file that was set aside and replaced.

    Raises:
        OSError, sqlite3.Error: not even a new file can be created.
    """
    try:
        return _open(path, schema, filesystem), None
    except sqlite3.DatabaseError as error:
        if not isinstance(error, _Damaged) and primary_code(error) not in DAMAGED_CODES:
            raise
        target = _set_aside(path, error, filesystem)
        return _open(path, schema, filesystem), target


def primary_code(error: sqlite3.Error) -> int:
    """Return the primary result code (sqlite.org/rescode.html); 0 for errors that did not come from SQLite itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _open(path: str, schema: Job, filesystem: FileSystem) -> sqlite3.Connection:
    existed = filesystem.exists(path)
    _keep_private(path)
    database = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S, factory=SealedRows
    )
    if isinstance(filesystem, SealedFileSystem):
        database.ring = filesystem.ring
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("PRAGMA trusted_schema=OFF")
        if existed:
            found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise _Damaged(found)
        schema(database)
        if sealed := seal_all(database):
            logger.info("%s: encrypted %d rows that were plain", path, sealed)
        filesystem.sync_directory(os.path.dirname(path))
        return database
    except BaseException:
        database.close()
        raise


def _keep_private(path: str) -> None:
    """Create the file for its owner alone, or remove the others' rights: SQLite creates files that all users may read.

    The files of the log are readable for the group, because commands show them. This one only the node reads. SQLite
    gives the files beside it, such as the write-ahead log, the same mode.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
    except OSError:
        return  # SQLite meets the same error and reports it
    try:
        with contextlib.suppress(PermissionError):  # it belongs to another user, who decides about its mode
            os.fchmod(descriptor, PRIVATE_MODE)
    finally:
        os.close(descriptor)
    for suffix in ("-wal", "-shm"):  # left by a release that did not restrict them
        with contextlib.suppress(FileNotFoundError, PermissionError):
            os.chmod(path + suffix, PRIVATE_MODE)


def _set_aside(path: str, error: Exception, filesystem: FileSystem) -> str:
    number, target = 1, path + DAMAGED
    while filesystem.exists(target):
        number += 1
        target = f"{path}{DAMAGED}-{number}"
    for suffix in ("-wal", "-shm", ""):  # the file itself last: after an earlier crash the next start repeats all steps
        if filesystem.exists(path + suffix):
            filesystem.rename(path + suffix, target + suffix)
    filesystem.sync_directory(os.path.dirname(path))
    logger.error(
        "%s is damaged (%s): set aside as %s. Retained messages are lost until they are published again; "
        "sessions begin with the entries left in the log's journal", path, error, target,
    )  # fmt: skip
    return target
