"""The frame of the feature ``report``: what an edge says of its disk and its functions, for people
(docs/reference/formats/link.md)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from weft.protocols.fields import U32, U64

REPORT = "report"
FUNCTIONS_MAX = 32
"""Maximum number of derived streams in a report."""
NAME_CHARACTERS_MAX = 64
ERROR_CHARACTERS_MAX = 160


class FunctionReport(msgspec.Struct, frozen=True, array_like=True):
    """The functions of one derived stream, with figures since the edge started."""

    stream: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
    """The derived stream."""
    kinds: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
    """Names of the functions in their order, such as ``where, window``; cut where they are many."""
    rows_in: U64
    rows_out: U64
    errors: U64
    """Rows that were rejected, and restarts of the functions after an error."""
    last_error: Annotated[str, Meta(max_length=ERROR_CHARACTERS_MAX)]
    """Sentence about what is wrong with them at present; empty if nothing is."""


class NodeReport(msgspec.Struct, frozen=True, array_like=True):
    """The state of an edge's disk and functions. A later report replaces it. Nothing is acknowledged or decided by it.

    The bytes are those of the log and its budget, not of the file system.
    """

    used_bytes: U64
    budget_bytes: U64
    free_bytes: U64
    """Bytes left for records that no hub has yet."""
    bytes_per_second: U64 | None
    """Growth of the log in the last hour; None if that is not known yet."""
    outage_seconds: U64 | None
    """Time for which the free bytes last at that rate; 0 if the log is full or has stopped, None if nothing comes in or
    the rate is not known yet."""
    functions: Annotated[list[FunctionReport], Meta(max_length=FUNCTIONS_MAX)]
    functions_more: U32
    """Number of derived streams that the report leaves out."""
