"""Records of an edge's lane of messages: messages, and what became of them (docs/reference/formats/messages.md).

The lane is written by hub processes, one at a time. It is PARTIAL: it takes no part in completeness. Its mark names the
first message without an outcome, and the moment before the hub accepted that, so that a process finds the messages that
wait without reading the log from its start.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weft.cloud_hub.shard.message_lanes import DOWN_STREAM
from weft.protocols import batch as batches
from weft.protocols.batch import ClockReading, ClockState, HeaderPairs
from weft.protocols.chunk import SectionEntry
from weft.protocols.columns import columns_from_lists
from weft.protocols.lane import Lane
from weft.protocols.link.down import OutcomeKind

HUB_LOG = 0
"""Log id of the lanes: hub processes have no log of their own."""
STREAM_NUMBER = 1
NUMBER, ACCEPTED, EXPIRES, QOS = "weft.message", "weft.accepted", "weft.expires", "weft.qos"
KEY, BY, OUTCOME, REASON = "weft.idempotency-key", "weft.by", "weft.outcome", "weft.reason"


class Waiting(NamedTuple):
    """A message without an outcome."""

    number: int
    accepted: int
    """Nanoseconds since 1970 by the hub's clock."""
    expires: int
    """Likewise."""
    topic: str
    payload: bytes
    qos: int = 1
    key: str = ""
    """Idempotency key of the request; empty without one."""
    by: str = ""
    """Name of the token that published it; empty without one."""


class Settled(NamedTuple):
    """The outcome of a message."""

    number: int
    accepted: int
    time: int
    """Moment at which the hub learned of it, nanoseconds since 1970."""
    topic: str
    outcome: str
    """Name of an ``OutcomeKind`` in lower case, or the number of a later release's."""
    reason: str = ""


DownRecord = Waiting | Settled


def lane_of(tenant: str, edge: str) -> Lane:
    """Return the lane of the messages to an edge."""
    return Lane(tenant, edge, HUB_LOG, DOWN_STREAM)


def outcome_name(outcome: int) -> str:
    """Return the name of an outcome, or the number of one of a later release."""
    try:
        return OutcomeKind(outcome).name.lower()
    except ValueError:
        return str(outcome)


def encode(base_seq: int, records: Sequence[DownRecord]) -> bytes:
    """Return a batch of records, in the order of their times.

    Raises:
        ValueError: as ``protocols.batch.encode``.
    """
    times = array("q", [each.accepted if isinstance(each, Waiting) else each.time for each in records])
    columns = columns_from_lists(
        times.tobytes(),
        [each.topic.encode() for each in records],
        [each.payload if isinstance(each, Waiting) else b"" for each in records],
        {index: _headers(each) for index, each in enumerate(records)},
    )
    return batches.encode(STREAM_NUMBER, base_seq, columns, ClockReading(0, 0, ClockState.SYNCED))


def _headers(record: DownRecord) -> HeaderPairs:
    if isinstance(record, Settled):
        reason = ((REASON, record.reason),) if record.reason else ()
        return ((NUMBER, record.number), (ACCEPTED, record.accepted), (OUTCOME, record.outcome), *reason)
    told = [(name, value) for name, value in ((KEY, record.key), (BY, record.by)) if value]
    return ((NUMBER, record.number), (EXPIRES, record.expires), (QOS, record.qos), *told)


def decode(entry: SectionEntry) -> Iterator[tuple[int, DownRecord | None]]:
    """Yield (seq, record) of a chunk's entry; None for a record that this release cannot read."""
    for record in batches.records(entry.batch, first=entry.skip, end=entry.skip + entry.take):
        yield record.seq, _decoded(record)


def _decoded(record: batches.Record) -> DownRecord | None:
    headers = dict(record.headers)
    number, topic = headers.get(NUMBER), record.key.decode(errors="replace")
    if not isinstance(number, int):
        return None
    outcome, accepted, expires, qos = (headers.get(name) for name in (OUTCOME, ACCEPTED, EXPIRES, QOS))
    if isinstance(outcome, str) and isinstance(accepted, int):
        return Settled(number, accepted, record.time, topic, outcome, str(headers.get(REASON, "")))
    if isinstance(expires, int):
        key, by = str(headers.get(KEY, "")), str(headers.get(BY, ""))
        return Waiting(number, record.time, expires, topic, record.payload, 0 if qos == 0 else 1, key, by)
    return None
