"""A disk whose files are sealed: state files as a whole, segments of the log entry by entry by the code that writes
them.

``disk_of`` returns the disk of a folder: a folder with a key ring, and all folders in it, are encrypted. The keys come
from the source that the process has named with ``use``, or from the file that ``WEFT_KEY_FILE`` names.
"""

from __future__ import annotations

import os
import threading

from weft.storage.filesystem import Buffer, File, FileSystem, Lock, OSFileSystem
from weft.storage.segment_log.sealed.errors import KeyUnavailable
from weft.storage.segment_log.sealed.layout import FILE_MAGIC
from weft.storage.segment_log.sealed.ring import KeyRing, has_ring
from weft.storage.segment_log.sealed.source import KeySource

VARIABLE = "WEFT_KEY_FILE"
"""Variable of the environment with the path of a key file, for commands that read a data directory."""
PARENTS_MAX = 2
"""Folders above one that are searched for a key ring: ``imported/<log id>`` is in the data directory."""


class SealedFile:
    """A file with the ring of its directory. Its bytes are those on the disk: entries are sealed by their writer."""

    def __init__(self, file: File, ring: KeyRing) -> None:
        self.ring = ring
        self.write_at = file.write_at
        self.read_at = file.read_at
        self.allocate = file.allocate
        self.truncate = file.truncate
        self.sync = file.sync
        self.size = file.size
        self.close = file.close


def ring_of(file: File) -> KeyRing | None:
    """Return the ring of a sealed disk's file; None for a plain one's."""
    return file.ring if isinstance(file, SealedFile) else None


class SealedFileSystem:
    """Names and files of another disk. ``write_atomically`` seals what it writes, and ``read`` opens it."""

    def __init__(self, disk: FileSystem, ring: KeyRing) -> None:
        self.disk = disk
        self.ring = ring
        self.size = disk.size
        self.modified = disk.modified
        self.exists = disk.exists
        self.list_names = disk.list_names
        self.is_directory = disk.is_directory
        self.make_directory = disk.make_directory
        self.link = disk.link
        self.rename = disk.rename
        self.remove = disk.remove
        self.remove_directory = disk.remove_directory
        self.sync_directory = disk.sync_directory
        self.free_bytes = disk.free_bytes

    def open(self, path: str, *, read_only: bool = False) -> File:
        """Open a file, with the ring."""
        return SealedFile(self.disk.open(path, read_only=read_only), self.ring)

    def create(self, path: str) -> File:
        """Create a file, with the ring."""
        return SealedFile(self.disk.create(path), self.ring)

    def read(self, path: str) -> bytes:
        """Return the content of a file, opened if it is sealed. One that was written before is plain.

        Raises:
            OSError: also when the content does not match its tag.
        """
        data = self.disk.read(path)
        if not data.startswith(FILE_MAGIC):
            return data
        try:
            return self.ring.cipher.open(memoryview(data)[len(FILE_MAGIC) :], _about(path))
        except ValueError as error:
            raise OSError(f"{path} is damaged: {error}") from None

    def sealed(self, path: str, data: Buffer) -> bytes:
        """Return the bytes to write as the content of a file."""
        return FILE_MAGIC + self.ring.cipher.seal(data, _about(path))

    def lock(self, directory: str) -> Lock:
        """Take the directory's exclusive lock."""
        return self.disk.lock(directory)


def _about(path: str) -> bytes:
    """Return what binds content to its file: the name, without its folder, which an import moves."""
    return b"file " + os.fsencode(os.path.basename(path))


def is_sealed(disk: FileSystem) -> bool:
    """Return whether a disk encrypts what is written to it."""
    return isinstance(disk, SealedFileSystem)


class _Sources:
    """Sources that this process may ask for keys, and the rings that it has open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sources: dict[str, KeySource] = {}
        self.rings: dict[str, KeyRing] = {}


_known = _Sources()


def use(directory: str, source: KeySource) -> None:
    """Name the source of the key of a directory, which need not exist yet."""
    with _known.lock:
        _known.sources[os.path.realpath(directory)] = source


def disk_of(directory: str) -> FileSystem:
    """Return the disk of a directory: a sealed one if it, or a folder that it is in, has a key ring. May block.

    Raises:
        KeyUnavailable: it is encrypted, and the key is not to be had.
    """
    disk = OSFileSystem()
    place = os.path.realpath(directory)
    for _ in range(PARENTS_MAX + 1):
        if has_ring(disk, place):
            return SealedFileSystem(disk, _ring(disk, place))
        place = os.path.dirname(place)
    return disk


def ring_in_use(directory: str) -> KeyRing | None:
    """Return the ring that this process has open for a directory."""
    return _known.rings.get(os.path.realpath(directory))


def _ring(disk: FileSystem, place: str) -> KeyRing:
    with _known.lock:
        known = _known.rings.get(place)
        own = _known.sources.get(place)
        if known is not None and (own is None or known.source == own) and known.is_current():
            return known
        sources = [own] if own is not None else [*_known.sources.values()]
    file = os.environ.get(VARIABLE)
    if file and own is None:
        sources.insert(0, KeySource(key_file=file))
    if not sources:
        raise KeyUnavailable(
            f"{place} is encrypted. Name its key under `encryption` in the node's configuration, or the file that "
            f"holds it in the variable {VARIABLE}"
        )
    problem: KeyUnavailable | None = None
    for source in sources:
        try:
            ring = KeyRing(disk, place, source, source.masters())
        except KeyUnavailable as error:
            problem = problem or error
            continue
        with _known.lock:
            _known.rings[place] = ring
        return ring
    assert problem is not None
    raise problem
