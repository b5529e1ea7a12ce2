"""Checks of a data directory before any write: its formats, files from before the first release, and its encryption."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from urllib.parse import quote

from weft.config.models import EdgeConfig
from weft.protocols.errors import CodecError
from weft.protocols.segment import HEADER_BYTES, SEALED_VERSION, decode_header, parse_file_name
from weft.storage.data_directory import DataDirectory
from weft.storage.filesystem import DirectoryInUse, FileSystem, OSFileSystem
from weft.storage.segment_log import LogVersionError
from weft.storage.segment_log.encryption import (
    FILE,
    KeyRing,
    KeySource,
    KeyUnavailable,
    disk_of,
    has_ring,
    library,
    make_ring,
    ring_in_use,
    use,
)

# Check of a data directory before any write: formats of later releases, and files from before the first release.

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
            f"{path} was written by a pre-release build and cannot be opened: its table {missing[0]} has "
            f"no column {missing[1]}. Move the file away, with {DATABASE}-wal and {DATABASE}-shm, to continue without "
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


# The encryption of a node's data directory: its key ring is opened or made before anything else is.


def source_of(config: EdgeConfig) -> KeySource | None:
    """Return the source of the key; None for a node that does not encrypt."""
    given = config.encryption
    return None if given is None else KeySource(given.key_file, given.command, given.environment)


def name_source(config: EdgeConfig) -> None:
    """Have all that reads the data directory in this process take the key from the configuration."""
    source = source_of(config)
    if source is not None:
        use(config.data_dir, source)


def prepare(config: EdgeConfig, now: int) -> None:
    """Open the node's key ring, and make one for a node that encrypts from now on. Blocks.

    Args:
        now: nanoseconds since 1970.

    Raises:
        KeyUnavailable: there is no key, or it is another one. Nothing was written.
        OSError: the ring cannot be written.
    """
    source = source_of(config)
    if source is None:
        return
    name_source(config)
    disk, directory = OSFileSystem(), config.data_dir
    masters = source.masters()
    library()
    if has_ring(disk, directory):
        KeyRing(disk, directory, source, masters)
    else:
        _check_is_plain(disk, directory)
        disk.make_directory(directory)
    try:
        lock = disk.lock(directory)
    except DirectoryInUse:
        return  # the node that has it keeps the ring; this one ends when it opens the log
    try:
        if not has_ring(disk, directory):
            make_ring(disk, directory, source, now)
        disk_of(directory)
        ring = ring_in_use(directory)
        assert ring is not None
        if ring.is_behind:
            # The source gives a new key before the old one, and the node was stopped before a reload.
            ring.rotate(now)
        ring.repair()
    finally:
        lock.close()


def rotate(config: EdgeConfig, now: int) -> bool:
    """Read the key again, and begin a new data key if it is another one. Blocks.

    Returns:
        Whether there is a new data key.

    Raises:
        KeyUnavailable, OSError: the node keeps its keys.
    """
    ring = ring_in_use(config.data_dir) if config.encryption is not None else None
    return ring is not None and ring.rotate(now)


def _check_is_plain(disk: FileSystem, directory: str) -> None:
    """Refuse a directory that has sealed segments and no ring: a new one could not open them."""
    if not disk.exists(directory):
        return
    for name in disk.list_names(directory):
        if parse_file_name(name) is None:
            continue
        file = disk.open(f"{directory}/{name}", read_only=True)
        try:
            version = decode_header(file.read_at(0, HEADER_BYTES)).version
        except CodecError:
            continue
        finally:
            file.close()
        if version >= SEALED_VERSION:
            raise KeyUnavailable(
                f"{directory} is encrypted, and its key ring {FILE} is gone: nothing in it can be read without. "
                "Restore it from a backup, or move the folder away to begin an empty log"
            )


# Copies of other nodes' logs.

PAIR_FOLDER = "pair"
"""Folder of a data_dir with everything about its pair."""
COPY_NAME = re.compile(r"([0-9a-f]{16})(?:-([1-9][0-9]{0,5}))?")
"""Name of a copy's folder: the log id, and which copy of that log it is if it is not the first."""


def copies_in(directory: str) -> list[str]:
    """Return the names of the copies in a data directory, which may be missing."""
    try:
        return sorted(filter(COPY_NAME.fullmatch, os.listdir(os.path.join(directory, PAIR_FOLDER))))
    except OSError:
        return []
