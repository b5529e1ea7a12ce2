"""Signed files of functions: a signature in a file of its own beside each, ``X.sig`` for ``X``.

The bytes that are signed are on docs/reference/formats/signatures.md.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from collections.abc import Sequence

from weft.config.signing.keys import ID_CHARACTERS, read_bounded, read_public_keys, verifies

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
