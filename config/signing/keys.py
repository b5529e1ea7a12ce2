"""Keys of Ed25519 (RFC 8032) for signatures. The library cryptography is imported once there are some."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

KEY_FILE_BYTES_MAX = 16 << 10
ID_CHARACTERS = 16
SIGNATURE_BYTES = 64
_MISSING = (
    "signatures need the library cryptography, which is not installed. Install weft-fabric[signatures], or the Debian "
    "package python3-cryptography"
)


class KeyUnusable(ValueError):
    """A key that cannot be used; the message says why, and never has the key."""


class PublicKey(NamedTuple):
    """A key that signatures are checked with."""

    id: str
    """First 16 hexadecimal digits of the SHA-256 of its 32 bytes. It names the key for people, and proves nothing."""
    raw: bytes


class KnownKeys(NamedTuple):
    """The keys of some files."""

    keys: tuple[PublicKey, ...]
    problems: tuple[str, ...]
    """Reasons why some files give none: the others count."""

    def named(self) -> str:
        """Return the keys and the problems for a sentence."""
        return "; ".join((", ".join(each.id for each in self.keys) or "none", *self.problems))


def key_id(raw: bytes) -> str:
    """Return the name of a public key of 32 bytes."""
    return hashlib.sha256(raw).hexdigest()[:ID_CHARACTERS]


def read_public_keys(paths: Sequence[str]) -> KnownKeys:
    """Return the keys of PEM files, each with one public key. Blocks. A file that gives none is a problem, no error."""
    keys: list[PublicKey] = []
    problems: list[str] = []
    for path in paths:
        try:
            keys.append(_public_key(path))
        except KeyUnusable as error:
            problems.append(str(error))
    return KnownKeys(tuple(keys), tuple(problems))


def verifies(keys: Sequence[PublicKey], message: bytes, signature: bytes) -> bool:
    """Return whether one of the keys made the signature of a message."""
    if not keys:
        return False
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    for key in keys:
        try:
            Ed25519PublicKey.from_public_bytes(key.raw).verify(signature, message)
        except InvalidSignature:
            continue
        return True
    return False


def sign(private_pem: bytes, message: bytes) -> tuple[str, bytes]:
    """Return the name of the key's public half, and the signature of a message.

    Args:
        private_pem: the key in PKCS 8, not encrypted.

    Raises:
        KeyUnusable: it is no such key, or the library is missing.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise KeyUnusable(_MISSING) from None
    try:
        key = load_pem_private_key(private_pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The library's own words may have parts of the file.
        raise KeyUnusable("it is not a private key in PEM without a password") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyUnusable("it is not a key of Ed25519: make one with `weft config keygen`")
    return key_id(key.public_key().public_bytes_raw()), key.sign(message)


def make_key() -> tuple[bytes, bytes, str]:
    """Return a new private key and its public half in PEM, and the name of the key.

    Raises:
        KeyUnusable: the library is missing.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise KeyUnusable(_MISSING) from None
    key = Ed25519PrivateKey.generate()
    public = key.public_key()
    private_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public_pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip
    return private_pem, public_pem, key_id(public.public_bytes_raw())


def read_bounded(path: str, bytes_max: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, or longer.
    """
    # A pipe must not keep the caller waiting for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise ValueError(f"it has more than {bytes_max} bytes")
    return data


def _public_key(path: str) -> PublicKey:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise KeyUnusable(_MISSING) from None
    try:
        key = load_pem_public_key(read_bounded(path, KEY_FILE_BYTES_MAX))
    except OSError as error:
        raise KeyUnusable(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyUnusable(f"{path}: it is not a public key in PEM") from None
    if not isinstance(key, Ed25519PublicKey):
        raise KeyUnusable(f"{path}: it is not a key of Ed25519")
    raw = key.public_bytes_raw()
    return PublicKey(key_id(raw), raw)
