"""An incoming record of any protocol, and runs of records on their way to the log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from weft.edge_node.ingest.queue_targets import QueueTargets
from weft.edge_node.ingest.routes import Destination, Misfits, Route
from weft.edge_node.subscriptions.message import NOWHERE
from weft.protocols.batch import HeaderPairs
from weft.protocols.message_headers import REASON, SENDER

SENDER_CHARACTERS_MAX = 256
_NONE_LEFT: dict[int, frozenset[int]] = {}
"""Shared by all runs whose records go to all of their streams. It stays empty."""


class NodeRecord(NamedTuple):
    """One record that the node stores of its own accord, such as a will."""

    key: bytes
    payload: bytes
    flags: int = 0
    """``protocols.batch.Flag`` bits."""
    headers: HeaderPairs = ()
    """With ``weft.expires`` among them for a record that expires."""
    publisher: str | None = None
    """Client identifier."""


class Source(Protocol):
    """Sender of records; it is answered once they are durable. Compared by identity."""

    publisher: str | None
    """Client identifier, for subscriptions that do not want their own messages."""

    def acknowledge(self, answers: bytes) -> None:
        """Send answers: everything before them is durable."""

    def refuse(self, error: BaseException) -> None:
        """End the connection: some of its records could not be stored, so they must not be acknowledged."""


class NodeSource:
    """The source of a record that the node stores of its own accord: it needs no answer."""

    __slots__ = ("publisher",)

    def __init__(self, publisher: str | None) -> None:
        self.publisher = publisher

    def acknowledge(self, answers: bytes) -> None:
        """Do nothing."""

    def refuse(self, error: BaseException) -> None:
        """Do nothing: the caller of ``Ingest.publish`` gets the error."""


class Records:
    """A run of records for one destination, in order of receipt."""

    __slots__ = (
        "_payload_bytes", "by_stream", "copied_in", "flags", "headers", "keys", "left", "marked", "payloads", "seqs",
        "sources",
    )  # fmt: skip

    def __init__(self, copied_in: int = NOWHERE) -> None:
        self.copied_in = copied_in
        """``Destination.copied_in``."""
        self.keys: list[bytes] = []
        self.payloads: list[bytes] = []
        self.sources: list[Source] = []
        """Source of each record."""
        self.flags: dict[int, int] = {}
        """Index in this run -> flag bits, for records with flags."""
        self.headers: dict[int, HeaderPairs] = {}
        """Likewise."""
        self.marked: list[int] = []
        """Indexes of the records that name their publisher."""
        self.left = _NONE_LEFT
        """Index in this run -> streams that do not get the record, for those that do not fit all streams."""
        self.seqs: Sequence[int | None] = ()
        """Once it is stored: the seq of each record in the first of its streams; None for one that is not there."""
        self.by_stream: dict[int, Sequence[int | None]] = {}
        """Once it is stored: the same for each of its streams."""
        self._payload_bytes = -1

    @property
    def payload_bytes(self) -> int:
        """Return the bytes of all payloads. They are counted once: ask when the run is whole."""
        if self._payload_bytes < 0:
            self._payload_bytes = sum(map(len, self.payloads))
        return self._payload_bytes

    def add(self, key: bytes, payload: bytes, source: Source, flags: int, headers: HeaderPairs) -> None:
        """Add one record."""
        if flags:
            self.flags[len(self.keys)] = flags
        if headers:
            self.headers[len(self.keys)] = headers
        self.keys.append(key)
        self.payloads.append(payload)
        self.sources.append(source)

    def extend(
        self, keys: Sequence[bytes], payloads: Sequence[bytes], headers: Sequence[HeaderPairs], source: Source
    ) -> None:
        """Add records of one source, without flags."""
        at = len(self.keys)
        self.headers.update({index: pairs for index, pairs in enumerate(headers, at) if pairs})
        self.keys += keys
        self.payloads += payloads
        self.sources += [source] * len(keys)

    def leave(self, streams: frozenset[int]) -> None:
        """Leave the last record out of some streams."""
        if not self.left:
            self.left = {}  # of its own
        self.left[len(self.keys) - 1] = streams

    def kept_in(self, stream: int) -> list[int] | None:
        """Return the indexes of the records that a stream gets; None for all."""
        if not self.left:
            return None
        return [index for index in range(len(self.keys)) if stream not in self.left.get(index, ())]

    def cut(self, first: int) -> list[tuple[bytes, bytes, Source, int, HeaderPairs]]:
        """Take out the records from ``first`` on; return them as arguments of ``add``."""
        taken = [
            (
                self.keys[index], self.payloads[index], self.sources[index],
                self.flags.pop(index, 0), self.headers.pop(index, ()),
            )
            for index in range(first, len(self.keys))
        ]  # fmt: skip
        del self.keys[first:], self.payloads[first:], self.sources[first:]
        return taken

    def where(self, indexes: Sequence[int]) -> Records:
        """Return a run of some of the records."""
        part = Records(self.copied_in)
        for at, index in enumerate(indexes):
            part.add(
                self.keys[index], self.payloads[index], self.sources[index],
                self.flags.get(index, 0), self.headers.get(index, ()),
            )  # fmt: skip
            if _holds(self.marked, index):
                part.marked.append(at)
        return part

    def by_source(self, indexes: Sequence[int]) -> Iterator[list[int]]:
        """Return the indexes in stretches of one source each, in order."""
        for _, stretch in groupby(indexes, lambda index: id(self.sources[index])):
            yield list(stretch)


def letter_headers(headers: HeaderPairs, why: str, sender: str | None) -> HeaderPairs:
    """Return the headers of a dead letter.

    Args:
        sender: client identifier of its publisher.
    """
    own = ((REASON, why),) if sender is None else ((REASON, why), (SENDER, sender[:SENDER_CHARACTERS_MAX]))
    return (*headers, *own)


def _holds(ascending: list[int], index: int) -> bool:
    at = bisect_left(ascending, index)
    return at < len(ascending) and ascending[at] == index


class Groups(dict[Destination, Records]):
    """Runs by destination. A destination without a run gets one at the first access."""

    def __missing__(self, destination: Destination) -> Records:
        """Begin a run."""
        records = self[destination] = Records(destination.copied_in)
        return records


class Gathering:
    """Records that are not stored yet, and their pending answers, in order of receipt."""

    __slots__ = ("answers", "clients", "cost", "groups", "live", "more_acks", "queued")

    def __init__(self) -> None:
        self.groups = Groups()
        self.live: list[tuple[Records, int]] = []
        """Records of topics that a client is subscribed to now, as run and index."""
        self.queued: list[tuple[Records, int, QueueTargets]] = []
        """Records for queues, as run and index, in order of receipt: a queue keeps that order across runs."""
        self.clients: list[Source] = []
        self.answers: list[bytes] = []
        """Answers to the clients at the same places of ``clients``, sent once everything gathered is durable. Two lists
        instead of pairs: objects that the garbage collector tracks cost more than the rest of a message."""
        self.cost = 0
        """Cost of storing ``live`` and ``queued``, in deliveries to clients."""
        self.more_acks = 0
        """Number of acknowledged records beyond one for each of ``answers``."""

    def __bool__(self) -> bool:
        return bool(self.groups or self.clients)

    def add(  # noqa: PLR0917
        self, route: Route, key: bytes, payload: bytes, source: Source, flags: int = 0, headers: HeaderPairs = (),
        misfits: Misfits | None = None,
    ) -> Records | None:  # fmt: skip
        """Add one record, and its dead letters.

        Args:
            misfits: what ``route.checks`` has found; None where it was not asked yet.

        Returns:
            The run whose last record it is; None for one that is a dead letter and nothing else.
        """
        parted = None
        if route.checks is not None:
            parted = route.checks.place(route.checks.look(payload) if misfits is None else misfits)
        if parted is not None:
            for letter, why in parted.letters:
                self.add(letter, key, payload, source, flags, letter_headers(headers, why, source.publisher))
            if parted.is_hidden and route.queues is not None:
                route.queues.withdraw()
            if not parted.goes_on:
                return None
        run = self.groups[route.destination]
        run.add(key, payload, source, flags, headers)
        if parted is not None:
            run.leave(parted.left)
        if route.noted and (parted is None or not parted.is_hidden):
            self.note_fitting(route, run, len(run.keys) - 1)
        return run

    def note(self, route: Route, run: Records, first: int) -> None:
        """Note that the records of ``run`` from ``first`` on are of a route that is ``noted``. Those that do not fit
        are taken out of it: whatever becomes of them, their publisher gets the answer of records that are stored."""
        if route.checks is not None:
            found = list(map(route.checks.look, run.payloads[first:]))
            self.checked()
            if any(found):
                for (key, payload, source, flags, headers), misfits in zip(run.cut(first), found, strict=True):
                    self.add(route, key, payload, source, flags, headers, misfits)
                return
        self.note_fitting(route, run, first)

    def checked(self) -> None:
        """Note that payloads were checked, which takes time."""

    def note_fitting(self, route: Route, run: Records, first: int) -> None:
        """Do what ``note`` does, for records whose payloads were checked."""
        indexes = range(first, len(run.keys))
        if route.marked:
            run.marked += indexes
        if route.live:
            self.live += [(run, index) for index in indexes]
        if (queues := route.queues) is not None:
            self.queued += [(run, index, queues) for index in indexes]
        self.cost += len(indexes) * route.cost

    def answer(self, client: Source, data: bytes) -> None:
        """Queue data for a client, behind its earlier answers."""
        self.clients.append(client)
        self.answers.append(data)

    def hand_over(self) -> Gathering:
        """Return the gathered records and answers, and begin again."""
        taken = Gathering()
        taken.groups, self.groups = self.groups, taken.groups
        taken.live, self.live = self.live, taken.live
        taken.queued, self.queued = self.queued, taken.queued
        taken.clients, self.clients = self.clients, taken.clients
        taken.answers, self.answers = self.answers, taken.answers
        taken.more_acks, taken.cost = self.more_acks, self.cost
        self.more_acks = self.cost = 0
        return taken
