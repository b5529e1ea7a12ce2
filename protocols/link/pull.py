"""Frames of the feature ``pull``: windows of records that a hub asks of an edge, and the edge's answers
(docs/reference/formats/link.md).

The hub names all pulls that are to run, so that a frame that was lost with its connection changes nothing: what it no
longer names has ended. The records come on a lane of their stream that the edge opens as PARTIAL.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from weft.protocols.fields import U32, U64, Nanoseconds, Seq

PULL = "pull"
PULLS_MAX = 8
"""Maximum number of pulls of one edge at a time."""
RANGES_MAX = 256
"""Maximum number of ranges of sequence numbers that the records of a pull lie in."""
ID_CHARACTERS_MAX = 32
REASON_CHARACTERS_MAX = 300


class PullStage(IntEnum):
    """Stages of a pull at an edge. The numbers are on the wire."""

    SENDING = 1
    """The edge has found the records: the ranges name them, those that the hub has included."""
    DONE = 2
    """The hub acknowledged all records of the ranges that the edge still has."""
    REFUSED = 3
    """The edge sends none, or none any more: the reason says why."""
    WAITING = 4
    """The edge cannot send for now: the reason says why."""


class PullRequest(msgspec.Struct, frozen=True, array_like=True):
    """A window of one stream's records."""

    id: Annotated[str, Meta(min_length=1, max_length=ID_CHARACTERS_MAX)]
    stream: Annotated[str, Meta(max_length=64)]
    first: Nanoseconds
    """Beginning of the window by the edge's clock, ns since 1970."""
    end: Nanoseconds
    """End of the window, which does not belong to it."""
    bytes_max: U64
    """Bytes of stored batches beyond which the edge refuses."""


class Pulls(msgspec.Struct, frozen=True, array_like=True):
    """All pulls that are to run at the edge, in their order. Others have ended."""

    pulls: Annotated[list[PullRequest], Meta(max_length=PULLS_MAX)]


class PullState(msgspec.Struct, frozen=True, array_like=True):
    """The edge's answer to a pull, and each change of it."""

    id: Annotated[str, Meta(max_length=ID_CHARACTERS_MAX)]
    stage: U32
    """A ``PullStage``, or a later release's number."""
    log_id: U64
    ranges: Annotated[list[tuple[Seq, Seq]], Meta(max_length=RANGES_MAX)]
    """Sequence numbers of the records in the window, [first, end), ascending."""
    records: U64
    bytes: U64
    """Bytes of their stored batches."""
    kept_from: Nanoseconds
    """Time of the oldest record that the edge keeps of the stream; 0 if it keeps none."""
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] = ""
