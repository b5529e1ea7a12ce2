"""Encryption of a data directory: the sources of its master key, its ring of data keys, and a disk whose files are
sealed."""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
import os
import subprocess
import threading
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from weft.protocols.checksum import crc32c
from weft.storage.filesystem import Buffer, File, FileSystem, Lock, OSFileSystem, read_private_file, write_atomically
from weft.storage.segment_log.settings import FILE_MAGIC, KEY_BYTES

if TYPE_CHECKING:
    from weft.storage.segment_log.cipher import Cipher


# Errors of an encrypted data directory.


class KeyUnavailable(OSError):
    """The key of an encrypted directory is missing, unusable or another one. Nothing was written."""


# The sources of the master key: a file, a command such as one of a TPM or a vault, or the environment.

COMMAND_SECONDS = 30.0
"""Longest run of a command that prints the key."""
TEXT_BYTES_MAX = 4096
"""Longest text with keys."""
MASTER_KEYS_MAX = 8
_MADE = "`openssl rand -hex 32` makes one"


class KeySource(NamedTuple):
    """Exactly one of the three."""

    key_file: str | None = None
    command: tuple[str, ...] = ()
    environment: str | None = None

    def __str__(self) -> str:
        if self.key_file is not None:
            return self.key_file
        # Of a command only its name: an argument may be a secret.
        return f"the command {self.command[0]}" if self.command else f"the variable {self.environment}"

    def masters(self) -> list[bytes]:
        """Return the master keys, the current one first; later ones open a ring that is still under them. Blocks.

        Raises:
            KeyUnavailable: there is none, or it is not a key. The message never has the key.
        """
        words = self._text().split()
        if not words:
            raise KeyUnavailable(f"{self} holds no key: expected 32 bytes in hex or base64; {_MADE}")
        if len(words) > MASTER_KEYS_MAX:
            raise KeyUnavailable(
                f"{self} holds {len(words)} words; expected at most {MASTER_KEYS_MAX} keys, one a line"
            )
        return [self._key(word, number) for number, word in enumerate(words, 1)]

    def _key(self, word: bytes, number: int) -> bytes:
        # 64 hex digits are also valid base64, of 48 bytes, so the length decides and hex comes first.
        for decode in (bytes.fromhex, _base64):
            try:
                key = decode(word.decode("ascii"))
            except ValueError:
                continue
            if len(key) == KEY_BYTES:
                return key
        raise KeyUnavailable(f"key {number} of {self} is not 32 bytes in hex or base64; {_MADE}")

    def _text(self) -> bytes:
        if self.key_file is not None:
            try:
                # A key that other users may read is refused, as SSH does, rather than used with a warning.
                text = read_private_file(self.key_file, TEXT_BYTES_MAX)
            except OSError as error:
                raise KeyUnavailable(f"the key file {self.key_file} cannot be used: {_why(error)}") from None
        elif self.command:
            text = _output(self.command)
        else:
            found = os.environ.get(self.environment or "")
            if found is None:
                raise KeyUnavailable(f"the variable {self.environment} is not set, and should hold the key")
            text = os.fsencode(found)
        if len(text) > TEXT_BYTES_MAX:
            raise KeyUnavailable(f"{self} gives more than {TEXT_BYTES_MAX} bytes; expected a key")
        return text


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _output(command: tuple[str, ...]) -> bytes:
    """Return what a command prints, up to one byte more than a key may have."""
    name = command[0]
    try:
        # Its messages go to the node's own standard error. What it prints is the key, which nothing may log.
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:  # noqa: S603
            killer = _Killer(process)
            try:
                assert process.stdout is not None
                text = process.stdout.read(TEXT_BYTES_MAX + 1)
                if len(text) > TEXT_BYTES_MAX:
                    process.kill()
                status = process.wait()
            finally:
                killer.cancel()
    except OSError as error:
        raise KeyUnavailable(f"the command {name} for the key cannot be run: {_why(error)}") from None
    if killer.has_fired:
        raise KeyUnavailable(f"the command {name} gave no key within {COMMAND_SECONDS:.0f} s")
    if status and len(text) <= TEXT_BYTES_MAX:
        raise KeyUnavailable(f"the command {name} for the key ended with status {status}; run it by hand to see why")
    return text


class _Killer:
    """Ends a command that takes too long."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.has_fired = False
        self._process = process
        self._timer = threading.Timer(COMMAND_SECONDS, self._fire)
        self._timer.daemon = True
        self._timer.start()

    def _fire(self) -> None:
        self.has_fired = True
        self._process.kill()

    def cancel(self) -> None:
        """Stop waiting."""
        self._timer.cancel()


# The key ring of a data directory: its data keys, each encrypted under the master key.
#
# Two files with the same content, ``keyring`` and ``keyring.copy``, because everything else is lost with them: a
# damaged one is replaced from the other (docs/reference/formats/sealed.md). A rotation adds a data key and encrypts
# all of them under the new master key; what older keys sealed stays readable.

FILE = "keyring"
COPY = "keyring.copy"
VERSION = 1
DATA_KEYS_MAX = 1024
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
        # The first key in the source is the wanted one. If an older one opens the ring, the ring is to be rotated still
        # by the next start or reload.
        self.is_behind = self._master != masters[0]
        """True while the ring is under an older key of the source than its first."""
        cipher = library()
        self.cipher: Cipher = cipher.Cipher(self._newest, self._key)
        # From the oldest key: names looked up by it must stay the same over all rotations.
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
            if len(self._keys) >= DATA_KEYS_MAX:
                raise KeyUnavailable(f"{self.directory} has had {DATA_KEYS_MAX} keys, the most that a key ring holds")
            created = {each.id: each.created for each in self._ring.keys}
            new = max(self._keys) + 1
            # Old data keys stay, because what they sealed is not written again. A rotation costs two small files, not
            # the whole log.
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
            # The other process may have written it a moment ago.
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
        # Not tried with the copy: both files are of the same release.
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
        from weft.storage.segment_log import cipher
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
                if key := unwrap(master, base64.b64decode(each.wrapped), _about_key(each.id, each.created)):
                    keys[each.id] = key
        # All keys or none: a master that opens only some belongs to a ring that was put together from two.
        if keys and len(keys) == len(ring.keys):
            return master, keys
    raise KeyUnavailable(
        f"{source} holds another key than the one that encrypts {path}. Give the node the key that it had; to replace "
        "a key, put the new one before the old one (docs/how-to/encrypt-an-edge.md)"
    )


def _wrapped(master: bytes, keys: dict[int, bytes], created: dict[int, int]) -> Ring:
    wrap = library().wrap
    return Ring(
        VERSION,
        [
            WrappedKey(key_id, made, base64.b64encode(wrap(master, keys[key_id], _about_key(key_id, made))).decode())
            for key_id, made in sorted(created.items())
        ],
    )


def _about_key(key_id: int, created: int) -> bytes:
    return b"%d %d" % (key_id, created)


def _encoded(ring: Ring) -> bytes:
    # The checksum tells a damaged ring from a wrong master key. The advice differs: restore the file, or give the right
    # key.
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


# A disk whose files are sealed: state files as a whole, segments of the log entry by entry by the code that writes
# them.
#
# ``disk_of`` returns the disk of a folder: a folder with a key ring, and all folders in it, are encrypted. The keys
# come from the source that the process has named with ``use``, or from the file that ``WEFT_KEY_FILE`` names.

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
        # Files from before the encryption was turned on stay readable; each is sealed when it is next written.
        if not data.startswith(FILE_MAGIC):
            return data
        try:
            return self.ring.cipher.open(memoryview(data)[len(FILE_MAGIC) :], _about_file(path))
        except ValueError as error:
            raise OSError(f"{path} is damaged: {error}") from None

    def sealed(self, path: str, data: Buffer) -> bytes:
        """Return the bytes to write as the content of a file."""
        return FILE_MAGIC + self.ring.cipher.seal(data, _about_file(path))

    def lock(self, directory: str) -> Lock:
        """Take the directory's exclusive lock."""
        return self.disk.lock(directory)


def _about_file(path: str) -> bytes:
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
    # Folders in a data directory share its ring, and the ring is looked for no further up: another's ring must not
    # decide for this folder.
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
