"""Refusals by a sender, of hubs that must not get its records; and by a hub's handler, of a link."""

from __future__ import annotations

from weft.protocols.link import RefuseCode
from weft.replication.events import Refusal

START_EMPTY = (
    "stop the node, keep its data directory aside and start with an empty one, which gets a new log id. "
    "`weft edge import --as-new` then brings the hub the records that only the old one has"
)
"""Advice for a node whose log is an old copy."""


def of_another_cluster(found: str, wanted: str) -> Refusal:
    """Return the refusal for a hub of another cluster than the link's. It gets no records."""
    return Refusal(
        RefuseCode.UNAUTHORISED,
        f"the hub is of cluster {found}, and this link is for {wanted}",
        "see who answers at the link's URL; if the hub was replaced on purpose, set the link's `cluster` to the new id",
        by_peer=False,
    )


def taken_before(of: str, stream: str, *, held: tuple[int, int], claimed: tuple[int, int | None]) -> tuple[str, str]:
    """Return message and advice of a hub's refusal: it has accepted this log with an epoch at least as high before.

    A log that was restored from an old copy claims an earlier epoch again, as does a second node with a copy. Only a
    log with all records of the hub must be the copy of a node that still runs.

    Args:
        of: the edge and its log.
        held: the hub's epoch of the lane, and the end of the records that it holds.
        claimed: the refused epoch, and the end of the records that the refused log has; None when that is unknown.
    """
    (epoch, held_end), (refused, end) = held, claimed
    lacks = end is not None and end < held_end
    if epoch > refused and not lacks:
        return (
            f"{of}: a connection with epoch {epoch} has taken over, this one has {refused}",
            "if the log was copied to a second node, give that node an empty data_dir; otherwise connect again",
        )
    what = (
        f"the hub holds records of stream {stream} up to seq {held_end}, and this log has them up to {end} only"
        if lacks
        else f"the hub has taken this log before with epoch {epoch}, and it comes with {refused} now"
    )
    return (
        f"{of}: {what}. The log was restored from an old copy, or a second node runs with a copy of it",
        f"if a second node runs with a copy of this log, give that one an empty data_dir. Otherwise {START_EMPTY}",
    )


def rolled_back(stream: str, end: int, high_watermark: int) -> Refusal:
    """Return the refusal for a hub that holds more of a stream than this log can have sent."""
    return Refusal(
        RefuseCode.IDENTITY_CONFLICT,
        f"the hub holds records of stream {stream} up to seq {end}, but this log gave it none beyond "
        f"{high_watermark}. The log was restored from an old copy, or its disk lost acknowledged records",
        START_EMPTY,
        by_peer=False,
    )


class LinkRefused(Exception):
    """An error of a handler that refuses the link; the edge gets the code, the reason and advice.

    Args:
        url: the node to connect to instead (code REDIRECT).
    """

    def __init__(self, code: RefuseCode, message: str, advice: str, url: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.advice = advice
        self.url = url
