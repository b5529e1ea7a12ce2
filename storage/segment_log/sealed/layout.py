"""Lengths and numbers of sealed bytes. Without the library, so that every reader can import them."""

from __future__ import annotations

import struct

KEY_BYTES = 32
SALT_BYTES = 12
TAG_BYTES = 16
HEAD = struct.Struct("<I12sI")
"""Key id, salt, number: before the ciphertext."""
SEALED_BYTES = HEAD.size + TAG_BYTES
"""Bytes that sealed content has more than the plain one."""
FILE_MAGIC = b"WFX1"
"""First bytes of a file that is sealed as a whole."""


def entry_about(kind: int) -> bytes:
    """Return what binds sealed bytes to the kind of their entry of a log."""
    return b"entry %d" % kind
