"""Check of a data directory before any write: formats of later releases, and files from before the first release."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from urllib.parse import quote

from weft.storage.data_directory import DataDirectory
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogVersionError

DATABASE = "mqtt.sqlite3"
COLUMNS = {
    "retained": ("topic", "payload", "qos", "properties", "stored_ns", "owner"),
    "sessions": ("client_id", "record"),
    "shared_subscriptions": ("name", "record"),
    "session_publishes": ("client_id", "publishes"),
    "session_meta": ("name", "value"),
}
"""Table -> its columns in release 0.1.0. Columns of later releases do not belong here."""


def formats_of(directory: str, release: str) -> DataDirectory:
    """Return the formats of a node's data directory, for the check before any write.

    Args:
        release: name of this release, for the file that states them.
    """
    return DataDirectory(OSFileSystem(), directory, release, check_database)


def check_database(directory: str) -> None:
    """Compare the tables of ``mqtt.sqlite3`` with those of the first release. A damaged file is left to the code that
    opens it.

    The file is read without its write-ahead log: SQLite would write files beside it to read that. A later release has
    stated the format of sessions in ``formats.json``.

    Raises:
        LogVersionError: a table lacks a column that every release has written.
    """
    path = os.path.join(directory, DATABASE)
    if not os.path.exists(path):
        return
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)) as found:
            missing = _missing(found)
    except sqlite3.Error:
        return
    if missing:
        raise LogVersionError(
            f"{path} was written by a state before release 0.1.0, which no release opens: its table {missing[0]} has "
            f"no column {missing[1]}. Move the file away, with {DATABASE}-wal and {DATABASE}-shm, to go on without "
            "its MQTT sessions and retained messages. The records of the log stay"
        )


def _missing(found: sqlite3.Connection) -> tuple[str, str] | None:
    """Return an existing table and the column that it lacks; None when there is none."""
    for table, columns in COLUMNS.items():
        there = [row[1] for row in found.execute(f"PRAGMA table_info({table})")]
        for column in columns:
            if there and column not in there:
                return table, column
    return None
