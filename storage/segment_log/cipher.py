"""AES-256-GCM as the parts of a data directory use it. The only module that knows the library.

Sealed bytes are ``key id u32 | salt 12 bytes | number u32 | ciphertext | tag 16 bytes``, integers little-endian
(docs/reference/formats/sealed.md). The key of the call is derived from the data key and the salt (HKDF-SHA-256, RFC
5869), and the nonce is the number.

A nonce never repeats under one key, because no key is used by two counters: each process draws a random salt of 96 bits
before its first call, after a fork, and again after 2^31 calls, and so has a key of its own in which its counter begins
at 0. Nothing about nonces has to survive a crash. A position in the log would not do as a nonce: after a power cut the
log writes other bytes at the positions of the torn commit, of which the disk may have kept some.
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from weft.protocols.errors import Corrupt
from weft.storage.filesystem import Buffer
from weft.storage.segment_log.settings import HEAD, KEY_BYTES, SALT_BYTES, SEALED_BYTES, TAG_BYTES

CALLS_MAX = 1 << 31
"""Calls under one derived key: NIST SP 800-38D allows 2^32."""
_OPENERS_MAX = 256
"""Derived keys that are kept for reading."""
_NONCE = struct.Struct("<QI")


class _DerivedKey(NamedTuple):
    """One derived key and its counter."""

    cipher: AESGCM
    key_id: int
    salt: bytes
    numbers: Iterator[int]
    process: int


def derived(key: bytes, salt: bytes | None, purpose: bytes) -> bytes:
    """Return 32 bytes derived from a key, for one purpose (HKDF-SHA-256)."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=b"weft " + purpose).derive(key)


class Cipher:
    """Seals under the newest data key, and opens what any of them sealed. Any thread.

    Args:
        newest: returns id and bytes of the key to seal under.
        key: returns the key of an id; raises ``KeyUnavailable``.
    """

    def __init__(self, newest: Callable[[], tuple[int, bytes]], key: Callable[[int], bytes]) -> None:
        self._newest = newest
        self._key = key
        self._lock = threading.Lock()
        self._run = self._begin()
        self._openers: dict[tuple[int, bytes], AESGCM] = {}

    def seal(self, plain: Buffer, about: bytes) -> bytes:
        """Return ``plain`` sealed. ``about`` is not stored; ``open`` must name the same."""
        while True:
            run = self._run
            number = next(run.numbers)
            if number < CALLS_MAX and run.process == os.getpid():
                break
            self.renew(run)
        sealed = run.cipher.encrypt(_NONCE.pack(0, number), plain, about)
        return HEAD.pack(run.key_id, run.salt, number) + sealed

    def open(self, sealed: Buffer, about: bytes) -> bytes:
        """Return the plain bytes.

        Raises:
            Corrupt: these bytes were not sealed with this key, or they were changed.
            KeyUnavailable: the ring lacks the key.
        """
        if len(sealed) < SEALED_BYTES:
            raise Corrupt(f"sealed entry truncated: {len(sealed)} bytes, at least {SEALED_BYTES} expected")
        key_id, salt, number = HEAD.unpack_from(sealed)
        cipher = self._openers.get((key_id, salt))
        if cipher is None:
            cipher = AESGCM(derived(self._key(key_id), salt, b"seal"))
            if len(self._openers) >= _OPENERS_MAX:
                self._openers = {}
            self._openers[key_id, salt] = cipher
        try:
            return cipher.decrypt(_NONCE.pack(0, number), memoryview(sealed)[HEAD.size :], about)
        except InvalidTag:
            raise Corrupt("sealed bytes do not match their tag: they were changed") from None

    def renew(self, run: _DerivedKey | None = None) -> None:
        """Begin a key and a counter of its own, with the newest data key; not if another thread replaced ``run``."""
        with self._lock:
            if run is None or run is self._run:
                self._run = self._begin()

    def _begin(self) -> _DerivedKey:
        key_id, key = self._newest()
        salt = os.urandom(SALT_BYTES)
        return _DerivedKey(AESGCM(derived(key, salt, b"seal")), key_id, salt, itertools.count(), os.getpid())


def wrap(master: bytes, key: bytes, about: bytes) -> bytes:
    """Return a data key encrypted under a master key, with a random nonce: a ring holds few keys."""
    nonce = os.urandom(SALT_BYTES)
    return nonce + AESGCM(derived(master, None, b"wrap")).encrypt(nonce, key, about)


def unwrap(master: bytes, wrapped: bytes, about: bytes) -> bytes | None:
    """Return a data key; None if it is not under this master key."""
    if len(wrapped) != SALT_BYTES + KEY_BYTES + TAG_BYTES:
        return None
    try:
        return AESGCM(derived(master, None, b"wrap")).decrypt(wrapped[:SALT_BYTES], wrapped[SALT_BYTES:], about)
    except InvalidTag:
        return None
