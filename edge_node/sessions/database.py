"""The node's SQLite file: opened in any state, written by one thread, with many changes in a transaction."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from weft.protocols.errors import CodecError
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.encryption import SealedFileSystem, disk_of

if TYPE_CHECKING:
    from weft.storage.segment_log.encryption import KeyRing


# Columns of the node's SQLite file as they are stored: plain, or sealed under the keys of the data directory.
#
# A sealed row has a digest in place of its name (HMAC-SHA-256 under a key of the ring), so that it is found without
# being readable, and its name in the sealed value. A digest is a BLOB and a plain name TEXT, which tells such rows
# apart.

TABLES = {
    "retained": ("topic", ("payload", "properties", "owner")),
    "sessions": ("client_id", ("record",)),
    "session_publishes": ("client_id", ("publishes",)),
    "shared_subscriptions": ("name", ("record",)),
}
"""Table -> its name column and the columns that are sealed. Others hold numbers and times."""

Key = str | bytes

logger = logging.getLogger(__name__)


class SealedRows(sqlite3.Connection):
    """A connection whose rows are sealed if it has a ring."""

    ring: KeyRing | None = None


def stored_key(database: sqlite3.Connection, table: str, name: str) -> Key:
    """Return the value of a name's column."""
    ring = _ring(database)
    if ring is None:
        return name
    return hmac.digest(ring.lookup_key, table.encode() + b"\0" + name.encode(), "sha256")


def stored(database: sqlite3.Connection, table: str, name: str, value: str | bytes | None) -> str | bytes | None:
    """Return a value as its column has it."""
    ring = _ring(database)
    if ring is None or value is None:
        return value
    return ring.cipher.seal(msgspec.msgpack.encode((name, value)), _about(table))


def read(
    database: sqlite3.Connection, table: str, key: Key, *values: str | bytes | None
) -> tuple[str, list[str | bytes | None]] | None:
    """Return a row's name and its values; None, and an error in the log, if it does not open."""
    if isinstance(key, str):
        return key, [*values]
    ring = _ring(database)
    try:
        if ring is None:
            raise CodecError("it is encrypted, and the folder has no key ring")
        opened = [
            (None, None) if value is None else _opened(ring, table, value if isinstance(value, bytes) else b"")
            for value in values
        ]
    except CodecError as error:
        logger.error("a row of %s is lost: it does not decode: %s", table, error)
        return None
    name = next(name for name, _ in opened if name is not None)
    return name, [value for _, value in opened]


def seal_all(database: SealedRows) -> int:
    """Seal the rows that were written before the folder was encrypted. Return their number."""
    if database.ring is None:
        return 0
    count = 0
    database.execute("BEGIN IMMEDIATE")
    for table, (name_column, columns) in TABLES.items():
        query = f"SELECT {name_column}, {', '.join(columns)} FROM {table} WHERE typeof({name_column}) = 'text'"  # noqa: S608
        rows = database.execute(query).fetchall()
        sets = ", ".join(f"{column} = ?" for column in (name_column, *columns))
        database.executemany(
            f"UPDATE {table} SET {sets} WHERE {name_column} = ?",  # noqa: S608 - names of this module
            [
                (stored_key(database, table, name), *(stored(database, table, name, value) for value in values), name)
                for name, *values in rows
            ],
        )
        count += len(rows)
    database.execute("COMMIT")
    if count:
        # The file and its write-ahead log would keep the plain rows in free pages.
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return count


def _opened(ring: KeyRing, table: str, value: bytes) -> tuple[str, str | bytes]:
    try:
        name, plain = msgspec.msgpack.decode(ring.cipher.open(value, _about(table)), type=tuple[str, Any])
    except msgspec.MsgspecError as error:
        raise CodecError(str(error)) from None
    return name, plain


def _about(table: str) -> bytes:
    return b"row " + table.encode()


def _ring(database: sqlite3.Connection) -> KeyRing | None:
    return database.ring if isinstance(database, SealedRows) else None


# Opening of the node's SQLite file in any state.

FILE_NAME = "mqtt.sqlite3"
DAMAGED = ".damaged"
PRIVATE_MODE = 0o600
BUSY_TIMEOUT_S = 5.0
"""Longest wait of a write for an operator who reads the file with a tool of their own."""
DAMAGED_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

Job = Callable[[sqlite3.Connection], None]


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
        "sessions begin with the entries left in the log's journal",
        path,
        error,
        target,
    )
    return target


Done = Callable[[BaseException | None], None]
Post = Callable[[Callable[[], None]], None]
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""Temporary errors: the disk is full, or another process has the file locked."""
_FATAL = (*DAMAGED_CODES, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


class DatabaseFailed(Exception):
    """The file is no longer reliable. Restart the node: it sets a damaged file aside."""


class _Request(NamedTuple):
    job: Job
    done: Done
    direct: bool = False
    """True when ``done`` is called on the database's thread."""


class Database:
    """One SQLite file (WAL, ``synchronous=FULL``: commits survive a power cut).

    Jobs run on the database's own thread, all that are waiting in one transaction, so that a burst of changes costs one
    sync. A full disk fails the jobs of that transaction; later jobs are tried again. After any other failure of the
    disk nothing more is written: the state of the disk after a failed sync is unknown (``failed``).
    """

    def __init__(self, directory: str, schema: Job, post: Post, *, filesystem: FileSystem | None = None) -> None:
        """Open or create ``mqtt.sqlite3`` in a directory that exists. Blocks.

        A file that is damaged, or that a later release wrote, is set aside as ``mqtt.sqlite3.damaged`` (``.damaged-2``,
        ...) and a new one is begun: the node starts.

        Args:
            schema: creates missing tables.
            post: runs a callback on the owner's thread; must keep order.

        Raises:
            OSError, sqlite3.Error: not even a new file can be created.
        """
        self._path = os.path.join(directory, FILE_NAME)
        self._post = post
        self.failed: DatabaseFailed | None = None
        self._full = False
        self._database, self.set_aside = open_database(self._path, schema, filesystem or disk_of(directory))
        """The database, and the path to which a damaged file was moved."""
        self._changed = threading.Condition()
        self._requests: list[_Request] = []
        self._closing = False
        self.failures = 0
        """Transactions that failed. Written by the database's thread."""
        self._thread = threading.Thread(target=self._run, name="weft-sqlite", daemon=True)
        self._thread.start()

    def submit(self, job: Job, done: Done) -> None:
        """Run ``job`` in the next transaction; ``done`` is called back once that is durable, or with the error.

        After an error nothing of the job was kept; a job may run twice, so it must start over each time. Callbacks of
        successful jobs come in the order of submission.
        """
        with self._changed:
            if not self._closing and self.failed is None:
                self._requests.append(_Request(job, done))
                self._changed.notify()
                return
            error = self.failed or DatabaseFailed(f"{self._path} is closed")
        self._post(lambda: done(error))

    def run(self, job: Job) -> None:
        """Run ``job`` in a transaction of its own and wait for it. Not for the event loop's thread once it serves.

        Raises:
            Exception: the error of the job or its commit; nothing of it was kept.
        """
        finished = threading.Event()
        outcome: list[BaseException | None] = []

        def done(error: BaseException | None) -> None:
            outcome.append(error)
            finished.set()

        with self._changed:
            if self.failed is not None:
                raise self.failed
            self._requests.append(_Request(job, done, direct=True))
            self._changed.notify()
        finished.wait()
        if outcome[0] is not None:
            raise outcome[0]

    def close(self) -> None:
        """Run the waiting jobs, then close the file. Blocks."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    # --- the database's thread

    def _run(self) -> None:
        with closing(self._database):
            while True:
                with self._changed:
                    while not self._requests and not self._closing:
                        self._changed.wait()
                    requests, self._requests = self._requests, []
                    if not requests:
                        return
                self._run_all(requests)

    def _run_all(self, requests: list[_Request]) -> None:
        error = self._transaction([request.job for request in requests])
        if error is None or len(requests) == 1:
            self._settle(requests, error)
            return
        for request in requests:  # one of them may have caused the error; the others must not fail with it
            self._settle([request], self._transaction([request.job]))

    def _transaction(self, jobs: list[Job]) -> BaseException | None:
        if self.failed is not None:
            return self.failed
        try:
            self._database.execute("BEGIN IMMEDIATE")
            for job in jobs:
                job(self._database)
            self._database.execute("COMMIT")
        except Exception as error:
            self._rolled_back()
            self.failures += 1
            return self._judge(error)
        if self._full:
            self._full = False
            logger.warning("%s can be written again", self._path)
        return None

    def _rolled_back(self) -> None:
        if self._database.in_transaction:
            try:
                self._database.execute("ROLLBACK")
            except sqlite3.Error as error:
                logger.debug("no rollback: %s", error)

    def _judge(self, error: Exception) -> BaseException:
        code = primary_code(error) if isinstance(error, sqlite3.Error) else 0
        if code in _FULL:
            if not self._full:
                self._full = True
                logger.error(
                    "%s cannot be written (%s): retained messages and sessions are not acknowledged until there is "
                    "room on the disk",
                    self._path,
                    error,
                )
        elif code in _FATAL:
            self.failed = DatabaseFailed(
                f"{self._path} failed and refuses changes until the node is restarted: {error}"
            )
            logger.error("%s", self.failed)
            return self.failed
        else:
            logger.error("a change of %s failed", self._path, exc_info=error)
        return error

    def _settle(self, requests: list[_Request], error: BaseException | None) -> None:
        for request in requests:
            if request.direct:
                request.done(error)
        posted = [request.done for request in requests if not request.direct]
        if not posted:
            return

        def deliver() -> None:
            for done in posted:
                try:
                    done(error)
                except Exception:
                    logger.exception("a callback of the database failed")

        try:
            self._post(deliver)
        except RuntimeError as closed:
            logger.debug("the owner's loop is gone: %s", closed)
