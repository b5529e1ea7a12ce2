"""The encryption of a node's data directory: its key ring is opened or made before anything else is."""

from __future__ import annotations

from weft.config.models import EdgeConfig
from weft.protocols.errors import CodecError
from weft.protocols.segment import HEADER_BYTES, SEALED_VERSION, decode_header, parse_file_name
from weft.storage.filesystem import DirectoryInUse, FileSystem, OSFileSystem
from weft.storage.segment_log.sealed.disk import disk_of, ring_in_use, use
from weft.storage.segment_log.sealed.errors import KeyUnavailable
from weft.storage.segment_log.sealed.ring import FILE, KeyRing, has_ring, library, make_ring
from weft.storage.segment_log.sealed.source import KeySource


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
