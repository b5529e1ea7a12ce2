"""The queues of a route: the choice of those that take a message, and their names in its record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.bounds import Bound
from weft.edge_node.ingest.queue_targets import WIDE
from weft.edge_node.queues.message import ENTRY_BYTES
from weft.edge_node.queues.queue.queue import Queue
from weft.edge_node.queues.topics import QUEUES
from weft.protocols.batch import HeaderPairs
from weft.protocols.columns import HeaderValue, read_u32s, u32s
from weft.protocols.message_headers import own_name


class QueueSet:
    """Queues that take a message."""

    __slots__ = ("header", "queues")

    def __init__(self, queues: Iterable[Queue]) -> None:
        self.queues = tuple(queues)
        self.header = (QUEUES, _pack([queue.number for queue in self.queues]))
        """Header of the message's record."""


def _pack(numbers: list[int]) -> HeaderValue:
    return numbers[0] if len(numbers) == 1 else u32s(numbers).tobytes()


def numbers_in(headers: HeaderPairs) -> Iterable[int]:
    """Return the numbers of the queues that a record is for."""
    for name, value in reversed(headers):
        if name == QUEUES:
            if type(value) is int:
                return (value,)
            if isinstance(value, bytes) and not len(value) % 4:
                return read_u32s(value)
    return ()


class Admission:
    """Choice of the queues that take a message: the messages of an owner's queues are bounded, and queues may have
    limits.

    Args:
        waiting: bytes of messages in queues.
    """

    def __init__(self, waiting: Bound) -> None:
        self.waiting = waiting
        self.not_taken = 0
        """Messages that queues rejected, since the start."""
        self.reserved: dict[Queue, None] = {}
        """Queues with messages that are accepted and not stored."""

    def takes(self, queue: Queue, size: int) -> bool:
        """Return whether a queue takes one more message, and count a rejection."""
        arguments = queue.definition.arguments
        if arguments.rejects and queue.is_full(queue.reserved + 1, size):
            queue.refused()
            self.not_taken += 1
            return False
        if not self.has_share(queue, size):
            return False
        if arguments.rejects:
            queue.reserve()
            self.reserved[queue] = None
        return True

    def has_share(self, queue: Queue, size: int) -> bool:
        """Return whether a queue's owner may have one more message in queues, and count a rejection."""
        owner = queue.owner
        if self.waiting.fits(owner, size + ENTRY_BYTES):
            return True
        queue.refused()
        self.not_taken += 1
        self.waiting.refuse(owner, size + ENTRY_BYTES)
        return False

    def stored(self) -> None:
        """Forget the accepted messages: they are in the queues now, or were refused."""
        if self.reserved:
            for queue in self.reserved:
                queue.forget_reserved()
            self.reserved.clear()


class BoundQueues:
    """Queues that the messages of a route go to.

    Args:
        reserved: whether ``Admission.takes`` has admitted each message already, for a publisher that learns the answer.
    """

    __slots__ = ("_admission", "all", "is_of_topic", "queues", "reserved", "width")

    def __init__(self, queues: Iterable[Queue], admission: Admission, *, reserved: bool) -> None:
        self.all = QueueSet(queues)
        self.queues = self.all.queues
        self.width = len(self.queues)
        self._admission = admission
        self.reserved = reserved
        self.is_of_topic = not reserved

    def admit(self, _headers: HeaderPairs, size: int) -> QueueSet | None:
        """Return the queues that take a message, None for none of them."""
        takes = self._admission.takes
        found = [queue for queue in self.queues if not queue.deleted and (self.reserved or takes(queue, size))]
        if len(found) == len(self.queues):
            return self.all
        return QueueSet(found) if found else None

    def withdraw(self) -> None:
        """Give back the room that ``Admission.takes`` has reserved for a message, which is not stored after all."""
        if self.reserved:
            for queue in self.queues:
                queue.withdraw()


class QueuesByHeaders:
    """Queues that depend on the headers of each message, for a publisher that does not learn whether they take it.

    Args:
        find: headers -> the queues of a message that has them.
    """

    __slots__ = ("_find", "width")
    is_of_topic = True

    def __init__(self, find: Callable[[Mapping[str, Any]], BoundQueues | None]) -> None:
        self._find = find
        self.width = WIDE  # unknown before there is a message

    def admit(self, headers: HeaderPairs, size: int) -> QueueSet | None:
        """Return the queues that take a message, None for none of them."""
        found = self._find(own_headers(headers))
        return None if found is None else found.admit(headers, size)

    def withdraw(self) -> None:
        """Do nothing: nothing is reserved."""


def own_headers(headers: HeaderPairs) -> Mapping[str, Any]:
    """Return the publisher's own headers, by their names."""
    return {own: value for name, value in headers if (own := own_name(name)) is not None}
