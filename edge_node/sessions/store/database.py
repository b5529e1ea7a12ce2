"""The node's SQLite file: opened in any state, written by one thread, with many changes in a transaction."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from weft.edge_node.sessions.store.database_file import DAMAGED_CODES, FILE_NAME, Job, open_database, primary_code
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.sealed.disk import disk_of

logger = logging.getLogger(__name__)

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
            self._tell(requests, error)
            return
        for request in requests:  # one of them may have caused the error; the others must not fail with it
            self._tell([request], self._transaction([request.job]))

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
                    "room on the disk", self._path, error,
                )  # fmt: skip
        elif code in _FATAL:
            self.failed = DatabaseFailed(
                f"{self._path} failed and takes nothing more until the node is started again: {error}"
            )
            logger.error("%s", self.failed)
            return self.failed
        else:
            logger.error("a change of %s failed", self._path, exc_info=error)
        return error

    def _tell(self, requests: list[_Request], error: BaseException | None) -> None:
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
