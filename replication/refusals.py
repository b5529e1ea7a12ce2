"""Refusals of a sender: hubs that it must not send to."""

from __future__ import annotations

from weft.protocols.link import RefuseCode
from weft.replication.events import Refusal


def of_another_cluster(found: str, wanted: str) -> Refusal:
    """Return the refusal of a hub of another cluster than the link is for. It gets no records."""
    return Refusal(
        RefuseCode.UNAUTHORISED,
        f"the hub is of cluster {found}, and this link is for {wanted}",
        "see who answers at the link's URL; if the hub was replaced on purpose, set the link's `cluster` to the new id",
        by_peer=False,
    )


def rolled_back(stream: str, end: int, high_watermark: int) -> Refusal:
    """Return the refusal of a hub that holds more of a stream than this log can have given it."""
    return Refusal(
        RefuseCode.IDENTITY_CONFLICT,
        f"the hub holds records of stream {stream} up to seq {end}, but this log gave it none beyond "
        f"{high_watermark}. The log was restored from an old copy, or its disk lost acknowledged records",
        "stop the node, keep its data directory aside and start with an empty one, which gets a new log id. "
        "`weft edge query` reads the records that only the old one has",
        by_peer=False,
    )
