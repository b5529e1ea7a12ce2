"""Signatures by Ed25519 (RFC 8032): keys, signed files of functions, and signed settings for edges."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from collections.abc import Sequence
from typing import NamedTuple

# Keys of Ed25519 (RFC 8032) for signatures. The library cryptography is imported once there are some.

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


class PublicKeys(NamedTuple):
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


def read_public_keys(paths: Sequence[str]) -> PublicKeys:
    """Return the keys of PEM files, each with one public key. Blocks. A file that gives none is a problem, no error."""
    keys: list[PublicKey] = []
    problems: list[str] = []
    for path in paths:
        try:
            keys.append(_public_key(path))
        except KeyUnusable as error:
            problems.append(str(error))
    return PublicKeys(tuple(keys), tuple(problems))


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
    public_pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
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


# Signed files of functions: a signature in a file of its own beside each, ``X.sig`` for ``X``.
#
# The bytes that are signed are on docs/reference/formats/signatures.md.

SUFFIX = ".sig"
SIGNATURE_FILE_BYTES_MAX = 4096
_LINES = re.compile(
    rf"weft-code-signature: 1\nname: (?P<name>[^\n]+)\nsha256: (?P<digest>[0-9a-f]{{64}})\n"
    rf"key: (?P<key>[0-9a-f]{{{ID_CHARACTERS}}})\ned25519: (?P<signature>[A-Za-z0-9+/]{{86}}==)\n?"
)


class CodeNotSigned(ValueError):
    """A file of a function that no key in question signed as it is; the message says why, and what to do."""


def code_message(name: str, digest: str) -> bytes:
    """Return the bytes that are signed for a file.

    Args:
        name: its name without folders.
        digest: SHA-256 of its content, in hexadecimal digits.
    """
    return f"weft-code-signature: 1\nname: {name}\nsha256: {digest}\n".encode()


def code_signature(name: str, digest: str, key: str, signature: bytes) -> bytes:
    """Return the content of the file with a signature."""
    return code_message(name, digest) + f"key: {key}\ned25519: {base64.b64encode(signature).decode()}\n".encode()


def digest_of(path: str) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal digits. Blocks.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_code(path: str, digest: str, key_files: Sequence[str]) -> None:
    """Check the signature beside a file. Blocks.

    Args:
        digest: SHA-256 of the content that is to run, in hexadecimal digits.
        key_files: PEM files with public keys.

    Raises:
        CodeNotSigned: it does not match.
    """
    advice = "Sign it with `weft config sign-code`"
    try:
        text = read_bounded(f"{path}{SUFFIX}", SIGNATURE_FILE_BYTES_MAX).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        raise CodeNotSigned(
            f"{path} has no signature beside it, and functions_signed_by asks for one. {advice}"
        ) from None
    except (OSError, ValueError) as error:
        raise CodeNotSigned(f"{path}{SUFFIX} cannot be read: {error}. {advice}") from None
    found = _LINES.fullmatch(text)
    if found is None:
        raise CodeNotSigned(f"{path}{SUFFIX} is not a signature that this release knows. {advice}")
    name = os.path.basename(path)
    if found["name"] != name:
        raise CodeNotSigned(f"{path}{SUFFIX} is for a file of the name {found['name'][:100]!r}. {advice}")
    if found["digest"] != digest:
        raise CodeNotSigned(f"{path} was changed after it was signed. {advice}")
    known = read_public_keys(key_files)
    if not verifies(known.keys, code_message(name, digest), base64.b64decode(found["signature"])):
        raise CodeNotSigned(
            f"none of the keys of functions_signed_by ({known.named()}) made the signature of {path}, "
            f"which names key {found['key']}. {advice}"
        )


# Signed settings for edges: a statement and its signature behind the YAML, as comments of YAML.
#
# The text stays one that every release of a hub stores and carries, and that every edge reads. The bytes that are
# signed are on docs/reference/formats/signatures.md.

VERSION = 1
NUMBER_MAX = (1 << 63) - 1
ORDER_MAX = 1000
NAMES_MAX = 256
"""Maximum number of names or patterns in one line."""
NOTHING = "-"
"""Text of a list without entries."""
_BEGIN = "# weft-signature: "
_WORD = r"[^\s,]{1,255}"
_LIST = rf"(?:{_WORD})(?:, {_WORD})*"
_TARGET = rf"(?:edge|group) {_WORD}"
_STATEMENT_LINES = re.compile(
    rf"# weft-signature: 1\n"
    rf"# tenant: (?P<tenant>{_WORD})\n"
    rf"# target: (?P<target>{_TARGET})\n"
    rf"# edges: (?P<edges>{_LIST})\n"
    rf"# order: (?P<order>0|-?[1-9][0-9]{{0,3}})\n"
    rf"# number: (?P<number>[1-9][0-9]{{0,18}})\n"
    rf"# withdraws: (?P<withdraws>-|{_TARGET}(?:, {_TARGET})*)\n"
    rf"# key: (?P<key>[0-9a-f]{{{ID_CHARACTERS}}})\n"
    rf"# ed25519: (?P<signature>[A-Za-z0-9+/]{{86}}==)\n?"
)


class SignatureUnreadable(ValueError):
    """A signature that is not written as it has to be; the message says so."""


class Statement(NamedTuple):
    """The facts that are signed with the settings."""

    tenant: str
    target: str
    """``edge NAME`` or ``group NAME``."""
    edges: tuple[str, ...]
    """Names of edges, and patterns in which ``*`` matches any characters, that may take the settings."""
    order: int
    """Place among the groups of an edge, as ``weft hub group`` declares it; 0 for an edge."""
    number: int
    """It grows with each signature for the target; seconds since 1970 if no one says otherwise."""
    withdraws: tuple[str, ...] = ()
    """Targets whose settings the edge may lose with these."""


class SignedText(NamedTuple):
    """Settings with their signature, which is not checked yet."""

    text: str
    """The settings alone."""
    statement: Statement
    key: str
    """Name of the key that made it, by its own word."""
    signature: bytes

    @property
    def message(self) -> bytes:
        """Return the bytes that are signed."""
        return message_of(self.text, self.statement)


def message_of(text: str, statement: Statement) -> bytes:
    """Return the bytes that are signed for some settings."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return "".join(f"{line}\n" for line in (*_lines(statement), f"sha256: {digest}")).encode()


def with_signature(text: str, statement: Statement, key: str, signature: bytes) -> str:
    """Return settings with their signature behind them."""
    lines = (*_lines(statement), f"key: {key}", f"ed25519: {base64.b64encode(signature).decode()}")
    return text + "".join(f"# {line}\n" for line in lines)


def read_signed(text: str) -> SignedText | None:
    """Return the parts of settings with a signature; None for settings without one.

    Raises:
        SignatureUnreadable: the signature is not written as it has to be, or more follows it.
    """
    at = 0 if text.startswith(_BEGIN) else text.rfind(f"\n{_BEGIN}") + 1
    if at == 0 and not text.startswith(_BEGIN):
        return None
    found = _STATEMENT_LINES.fullmatch(text, at)
    if found is None:
        version = text[at + len(_BEGIN) :].partition("\n")[0][:20]
        why = "" if version == str(VERSION) else f": it has version {version!r}, and this release knows {VERSION}"
        raise SignatureUnreadable(f"its signature cannot be read{why}. Sign the settings again, and add nothing behind")
    edges, withdraws = found["edges"].split(", "), found["withdraws"]
    statement = Statement(
        found["tenant"],
        found["target"],
        tuple(edges),
        int(found["order"]),
        int(found["number"]),
        () if withdraws == NOTHING else tuple(withdraws.split(", ")),
    )
    signature = base64.b64decode(found["signature"])
    within = statement.number <= NUMBER_MAX and abs(statement.order) <= ORDER_MAX
    if not within or max(len(edges), len(statement.withdraws)) > NAMES_MAX or len(signature) != SIGNATURE_BYTES:
        raise SignatureUnreadable("its signature has values beyond their bounds")
    return SignedText(text[:at], statement, found["key"], signature)


def _lines(statement: Statement) -> tuple[str, ...]:
    return (
        f"weft-signature: {VERSION}",
        f"tenant: {statement.tenant}",
        f"target: {statement.target}",
        f"edges: {', '.join(statement.edges)}",
        f"order: {statement.order}",
        f"number: {statement.number}",
        f"withdraws: {', '.join(statement.withdraws) or NOTHING}",
    )
