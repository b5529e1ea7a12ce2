"""Origin: what made the records of a batch - a version of a function, or of a schema (docs/reference/formats/batch.md).

A batch names its origin by a number. Whatever carries the batch resolves the number: the log by its ``ORIGINS``
entries, a link when a lane is opened, a chunk in its footer.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from weft.protocols.fields import U32

ORIGIN_TEXT_MAX = 255
"""Longest name and version, in characters."""
HASH_BYTES_MAX = 64
ORIGINS_MAX = 1024
"""Most origins in one list: of a log, a lane or a chunk."""


class OriginKind(IntEnum):
    """Kinds of origins. The numbers are persisted; a reader keeps those that it does not know."""

    FUNCTION = 1
    SCHEMA = 2


OriginText = Annotated[str, Meta(max_length=ORIGIN_TEXT_MAX)]
OriginHash = Annotated[bytes, Meta(max_length=HASH_BYTES_MAX)]


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """One origin under the number that the batches of one log (or link, or chunk) give it."""

    number: U32
    """At least 1: a batch of origin 0 has none."""
    kind: U32
    """An ``OriginKind``, or what a later release made of it."""
    name: OriginText
    version: OriginText
    hash: OriginHash
    """Checksum of the content; empty where there is none."""
