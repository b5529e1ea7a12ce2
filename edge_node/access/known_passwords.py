"""Correct passwords, remembered over restarts only as keyed hashes.

The file ``known-passwords.json`` holds keyed hashes (BLAKE2b) of user, line of the users file and password, and their
key. Known devices are admitted at once, without waiting for other checks. A new password or hash of a user invalidates
the old entry. A reader of the file can try passwords faster than with the users file: only the node may read it (mode
0600), and ``auth.remember_passwords`` turns it off.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from weft.storage.private_file import replace_private_file

FILE_NAME = "known-passwords.json"
KNOWN_MAX = 20_000
"""Maximum number of remembered passwords, some 100 bytes each."""
SAVE_INTERVAL_S = 5.0
KEY_BYTES = 32
HASH_BYTES = 24

log = logging.getLogger(__name__)


class StoredHashes(msgspec.Struct, forbid_unknown_fields=True):
    """Content of the file."""

    key: bytes
    """Random secret of this node."""
    passwords: list[bytes] = []
    """Keyed hashes, the oldest first."""


class KnownPasswords:
    """Correct passwords, as keyed hashes. Belongs to the event loop's thread.

    Args:
        folder: data directory of the node; None to forget all at its end.
        clock: monotonic seconds.
    """

    def __init__(self, folder: str | None, clock: Callable[[], float]) -> None:
        self._path = None if folder is None else os.path.join(folder, FILE_NAME)
        self._clock = clock
        content = self._read()
        self._key = content.key
        self._known = dict.fromkeys(content.passwords[-KNOWN_MAX:])
        self._is_saved = True
        self._save_at = clock()

    def knows(self, user: str, hashed: str, password: bytes) -> bool:
        """Return whether the password is known as correct for this line of the users file."""
        return self._hash(user, hashed, password) in self._known

    def add(self, user: str, hashed: str, password: bytes) -> None:
        """Remember a correct password."""
        while len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[self._hash(user, hashed, password)] = None
        self._is_saved = False

    async def save(self, *, at_end: bool = False) -> None:
        """Write what is new to the file, at most every few seconds. Trouble is logged: nothing is lost but time."""
        if self._path is None or self._is_saved or (self._clock() < self._save_at and not at_end):
            return
        self._save_at = self._clock() + SAVE_INTERVAL_S
        self._is_saved = True
        data = msgspec.json.encode(StoredHashes(self._key, list(self._known)))
        try:
            await asyncio.to_thread(replace_private_file, self._path, data)
        except OSError as error:
            self._is_saved = False
            log.warning("%s cannot be written; passwords are checked again after a restart: %s", self._path, error)

    def _hash(self, user: str, hashed: str, password: bytes) -> bytes:
        said = b"\0".join((user.encode(), hashed.encode(), password))
        return blake2b(said, key=self._key, digest_size=HASH_BYTES).digest()

    def _read(self) -> StoredHashes:
        fresh = StoredHashes(os.urandom(KEY_BYTES))
        if self._path is None:
            return fresh
        try:
            with open(self._path, "rb") as file:
                content = msgspec.json.decode(file.read(), type=StoredHashes)
        except FileNotFoundError:
            return fresh
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s cannot be used; every password is checked again: %s", self._path, error)
            return fresh
        if len(content.key) != KEY_BYTES:
            log.warning("%s has no key; every password is checked again", self._path)
            return fresh
        return content
