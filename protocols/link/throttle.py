"""The frame of the feature ``throttle``: a hub slows a link whose tenant is at its quota
(docs/reference/formats/link.md)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from weft.protocols.fields import U64

THROTTLE = "throttle"
WAIT_NS_MAX = 3_600_000_000_000
"""Longest wait of one frame, ns: a sender that hears no more of the hub goes on after it."""
REASON_CHARACTERS_MAX = 300


class Throttled(msgspec.Struct, frozen=True, array_like=True):
    """The hub's request to send no data and no gap notice for some time. A later frame replaces it, with any wait.

    What is sent nevertheless is taken, and counts against the quota: nothing is refused.
    """

    wait: Annotated[int, Meta(ge=0, le=WAIT_NS_MAX)]
    """Time from the frame's arrival on, ns; 0: data may be sent at once."""
    bytes_per_second: U64
    """Bytes of stored batches a second that the link can expect to send, for the size of its messages; 0 if unknown."""
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]
    """The quota, for people; empty when it is over."""
