"""A bearer token in a file."""

from __future__ import annotations

TOKEN_BYTES_MAX = 8192
"""Longest file: JSON Web Tokens of some issuers list all groups of their bearer."""


def read_token(path: str) -> str:
    """Return the token in the file ``path``. Blocks; raises ``OSError``, ``ValueError``."""
    with open(path, "rb") as file:
        return token_in(file.read(TOKEN_BYTES_MAX + 1), path)


def token_in(data: bytes, path: str) -> str:
    """Return the token in the content of ``path``. Raises ``ValueError``."""
    words = data.decode("ascii", "replace").split()
    if not words:
        raise ValueError(f"{path} is empty: expected one token on one line. Write it there")
    if len(data) > TOKEN_BYTES_MAX:
        raise ValueError(f"{path} has more than {TOKEN_BYTES_MAX} bytes: expected one token on one line")
    if len(words) > 1:
        raise ValueError(f"{path}: expected one token on one line, got several words. Leave the token alone there")
    if not words[0].isprintable() or "\ufffd" in words[0]:
        raise ValueError(f"{path}: expected one token on one line, got characters that no token has. Write it again")
    return words[0]
