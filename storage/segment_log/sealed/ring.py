"""The key ring of a data directory: its data keys, each encrypted under the master key.

Two files with the same content, ``keyring`` and ``keyring.copy``, because everything else is lost with them: a damaged
one is replaced from the other (docs/reference/formats/sealed.md). A rotation adds a data key and encrypts all of them
under the new master key; what older keys sealed stays readable.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
import os
import threading
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from weft.storage.filesystem import FileSystem, write_atomically
from weft.storage.segment_log.sealed.errors import KeyUnavailable
from weft.storage.segment_log.sealed.layout import KEY_BYTES
from weft.storage.segment_log.sealed.source import KeySource

if TYPE_CHECKING:
    from weft.storage.segment_log.sealed.cipher import Cipher

FILE = "keyring"
COPY = "keyring.copy"
VERSION = 1
KEYS_MAX = 1024
"""Data keys of a ring, and so rotations."""
FILE_BYTES_MAX = 1 << 20
_NS = 1_000_000_000
MISSING = (
    "encryption needs the library cryptography, which is not installed. Install weft-fabric[encryption], or the Debian "
    "package python3-cryptography"
)

logger = logging.getLogger(__name__)


class WrappedKey(msgspec.Struct, frozen=True):
    """A data key under the master key."""

    id: int
    created: int
    """Nanoseconds since 1970."""
    wrapped: str
    """Nonce, ciphertext and tag, in base64."""


class Ring(msgspec.Struct, frozen=True):
    """Content of the file. A later release may add fields."""

    version: int
    keys: list[WrappedKey]
    """Ascending by id; the last one seals."""


class KeyRing:
    """An open ring, with its data keys in memory. Any thread."""

    def __init__(self, filesystem: FileSystem, directory: str, source: KeySource, masters: list[bytes]) -> None:
        """Read the ring of a directory, which exists.

        Args:
            masters: keys of ``source``, the current one first.

        Raises:
            KeyUnavailable: the ring is damaged, or none of the keys opens it.
        """
        self._filesystem = filesystem
        self.directory = directory
        self.source = source
        self._lock = threading.Lock()
        self._ring = read_ring(filesystem, directory)
        self._master, self._keys = _opened(self._ring, masters, os.path.join(directory, FILE), source)
        self.is_behind = self._master != masters[0]
        """True while the ring is under an older key of the source than its first."""
        cipher = library()
        self.cipher: Cipher = cipher.Cipher(self._newest, self._key)
        self.lookup_key: bytes = cipher.derived(self._keys[min(self._keys)], None, b"lookup")
        """Key of digests that stand for names in the node's database: it is the same after a rotation."""

    def rotate(self, now: int) -> bool:
        """Read the source again. If it gives another key, add a data key and write the ring under the new one. Blocks.

        Returns:
            False if the source still gives the same key: nothing was written.

        Raises:
            KeyUnavailable: the source gives no key. The ring stays as it is.
            OSError: the ring was not written; its keys count as before.
        """
        master = self.source.masters()[0]
        with self._lock:
            if master == self._master:
                return False
            if len(self._keys) >= KEYS_MAX:
                raise KeyUnavailable(f"{self.directory} has had {KEYS_MAX} keys, the most that a key ring holds")
            created = {each.id: each.created for each in self._ring.keys}
            new = max(self._keys) + 1
            keys = {**self._keys, new: os.urandom(KEY_BYTES)}
            ring = _wrapped(master, keys, {**created, new: now})
            _write(self._filesystem, self.directory, ring)
            self._ring, self._keys, self._master, self.is_behind = ring, keys, master, False
        self.cipher.renew()
        logger.info("%s has a new data key, number %d, under a new key of %s", self.directory, new, self.source)
        return True

    def repair(self) -> None:
        """Write the copy that is missing or damaged. For the node that has the directory's lock.

        Raises:
            OSError: it was not written.
        """
        data = _encoded(self._ring)
        for name in (FILE, COPY):
            path = os.path.join(self.directory, name)
            try:
                is_same = self._filesystem.read(path) == data
            except OSError:
                is_same = False
            if not is_same:
                write_atomically(self._filesystem, path, data)

    def is_current(self) -> bool:
        """Return whether the directory still has this ring, perhaps with newer keys, and not one of another origin.

        Raises:
            KeyUnavailable: it cannot be read.
        """
        found = read_ring(self._filesystem, self.directory).keys
        return [(each.id, each.created) for each in found[: len(self._ring.keys)]] == [
            (each.id, each.created) for each in self._ring.keys
        ]

    @property
    def ids(self) -> list[int]:
        """Return the ids of the data keys."""
        return sorted(self._keys)

    def _newest(self) -> tuple[int, bytes]:
        newest = max(self._keys)
        return newest, self._keys[newest]

    def _key(self, key_id: int) -> bytes:
        key = self._keys.get(key_id)
        if key is None:
            # A command that reads a running node's log: the node may have rotated its keys since.
            ring = read_ring(self._filesystem, self.directory)
            with self._lock, contextlib.suppress(KeyUnavailable):
                masters = [self._master, *self.source.masters()]
                self._master, self._keys = _opened(ring, masters, self.directory, self.source)
                self._ring = ring
            key = self._keys.get(key_id)
        if key is None:
            raise KeyUnavailable(
                f"{self.directory} has data under key {key_id}, which its key ring lacks. Restore the newest copy of "
                f"{FILE}, which every rotation changes"
            )
        return key


def make_ring(filesystem: FileSystem, directory: str, source: KeySource, now: int) -> None:
    """Make the ring of a directory that has none, durably. Another process may have made one first, which then counts.

    Args:
        now: nanoseconds since 1970.

    Raises:
        KeyUnavailable: the source gives no key.
        OSError: it was not written.
    """
    ring = _wrapped(source.masters()[0], {1: os.urandom(KEY_BYTES)}, {1: now})
    path = os.path.join(directory, FILE)
    temporary = f"{path}.{os.urandom(8).hex()}"
    file = filesystem.create(temporary)
    try:
        file.write_at(0, _encoded(ring))
        file.sync()
    finally:
        file.close()
    try:
        # Create-if-absent: two rings of one directory would make each other's data unreadable.
        with contextlib.suppress(FileExistsError):
            filesystem.link(temporary, path)
    finally:
        filesystem.remove(temporary)
        filesystem.sync_directory(directory)


def has_ring(filesystem: FileSystem, directory: str) -> bool:
    """Return whether a directory has a ring, or the copy of one."""
    return any(filesystem.exists(os.path.join(directory, name)) for name in (FILE, COPY))


def read_ring(filesystem: FileSystem, directory: str) -> Ring:
    """Return the ring of a directory, from the first of its two files that is sound.

    Raises:
        KeyUnavailable: neither is.
    """
    reasons = []
    for name in (FILE, COPY):
        path = os.path.join(directory, name)
        try:
            if filesystem.size(path) > FILE_BYTES_MAX:
                raise ValueError("it is too long")
            ring = _decoded(filesystem.read(path))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            reasons.append(f"{path}: {error}")
            continue
        if ring.version > VERSION:
            raise KeyUnavailable(f"{path} was written by a later release of Weft: install that release again")
        return ring
    raise KeyUnavailable(
        f"the key ring of {directory} cannot be read, and without it nothing in the folder can: {'; '.join(reasons)}. "
        "Restore the file from a backup"
    )


def library() -> ModuleType:
    """Return the module of the cipher, imported only by nodes that encrypt.

    Raises:
        KeyUnavailable: the library is not installed.
    """
    try:
        from weft.storage.segment_log.sealed import cipher
    except ImportError:
        raise KeyUnavailable(MISSING) from None
    return cipher


def _opened(ring: Ring, masters: list[bytes], path: str, source: KeySource) -> tuple[bytes, dict[int, bytes]]:
    """Return the master key that opens the ring, and the data keys."""
    unwrap = library().unwrap
    for master in masters:
        keys = {}
        for each in ring.keys:
            with contextlib.suppress(binascii.Error):
                if key := unwrap(master, base64.b64decode(each.wrapped), _about(each.id, each.created)):
                    keys[each.id] = key
        if keys and len(keys) == len(ring.keys):
            return master, keys
    raise KeyUnavailable(
        f"{source} holds another key than the one that encrypts {path}. Give the node the key that it had; to replace "
        "a key, put the new one before the old one (docs/how-to/encrypt-an-edge.md)"
    )


def _wrapped(master: bytes, keys: dict[int, bytes], created: dict[int, int]) -> Ring:
    wrap = library().wrap
    return Ring(VERSION, [
        WrappedKey(key_id, made, base64.b64encode(wrap(master, keys[key_id], _about(key_id, made))).decode())
        for key_id, made in sorted(created.items())
    ])  # fmt: skip


def _about(key_id: int, created: int) -> bytes:
    return b"%d %d" % (key_id, created)


def _encoded(ring: Ring) -> bytes:
    line = msgspec.json.encode(ring)
    return b"%08x %s\n" % (crc32c(line), line)


def _decoded(data: bytes) -> Ring:
    checksum, _, line = data.removesuffix(b"\n").partition(b" ")
    if int(checksum, 16) != crc32c(line):
        raise ValueError("its checksum does not match")
    return msgspec.json.decode(line, type=Ring)


def _write(filesystem: FileSystem, directory: str, ring: Ring) -> None:
    # The copy last: until the first is durable, the copy opens under the key before.
    for name in (FILE, COPY):
        write_atomically(filesystem, os.path.join(directory, name), _encoded(ring))
