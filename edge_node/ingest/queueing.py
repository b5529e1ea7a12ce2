"""Contract of the queues that messages go to beside their streams; ``edge_node/queues`` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from weft.edge_node.ingest.queue_targets import Admitted, QueueTargets
from weft.edge_node.ingest.record import Gathering, Records, Source
from weft.protocols.batch import Flag, HeaderPairs
from weft.protocols.fields import PackedHeaders
from weft.protocols.message_headers import DELIVERY_MODE, PERSISTENT


class Queueing(Protocol):
    """The queues of the node. Event loop's thread only."""

    stream: int
    """Stream with the messages of all queues."""

    def of_topic(self, topic: bytes) -> QueueTargets | None:
        """Return the queues of a topic that clients publish to without naming an exchange; None for none."""
        ...

    def before_store(self, first_seq: int, admitted: Sequence[Admitted]) -> None:
        """Note that messages are about to be appended to ``stream``, in the same commit as the changes that this call
        records.

        Args:
            first_seq: number of the first of them, if they are not refused.
        """

    def stored(self, records: Records, admitted: Sequence[Admitted], now: int) -> None:
        """Add messages to their queues, and deliver them. Messages whose seq is None were refused.

        Args:
            admitted: the queues of each message.
            now: time of the messages, ns since 1970.
        """


class QueuedRun(Records):
    """The records of a turn for queues, in order of receipt."""

    __slots__ = ("admitted",)

    def __init__(self) -> None:
        super().__init__()
        self.admitted: list[Admitted] = []
        """Queues of each record."""


def persistent(headers: HeaderPairs) -> HeaderPairs:
    """Return headers that mark a message as persistent, because its publisher is answered once it is on disk."""
    if any(name == DELIVERY_MODE for name, _ in headers):
        return headers
    return headers.plus(PERSISTENT) if type(headers) is PackedHeaders else (*headers, PERSISTENT)


def queued_run(gathered: Gathering, refused: Mapping[Source, object]) -> QueuedRun:
    """Return the run of records to store for queues.

    Args:
        refused: sources whose records are not stored.
    """
    run = QueuedRun()
    for records, index, queues in gathered.queued:
        source = records.sources[index]
        if source in refused:
            continue
        headers = records.headers.get(index, ())
        payload = records.payloads[index]
        admitted = queues.admit(headers, len(payload))
        if admitted is not None:
            flags = records.flags.get(index, 0)
            if queues.is_of_topic and not flags & Flag.PUBLISHED_QOS0:
                headers = persistent(headers)
            named = headers.plus(admitted.header) if type(headers) is PackedHeaders else (*headers, admitted.header)
            run.add(records.keys[index], payload, source, flags, named)
            run.admitted.append(admitted)
    return run
