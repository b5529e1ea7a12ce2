"""One turn of the event loop, one append: the publishes of all connections in a turn are stored at its end.

A fleet is thousands of devices with a message in flight each. Storing every read by itself would cost an append under
the log's lock, a callback and an object or two that wait for the commit. So reads only gather records by route and
answers by client; the end of the turn makes one append for each stream, and each commit is answered by one walk over
its clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Protocol

from weft.bounds import CROWD, Crowd
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.record import Gathering, Source

TURN_BYTES_MAX = 1 << 20
"""Bytes read after which a turn is stored before its end. It bounds the memory that is not yet counted against
``limits.pending``."""
COST_MAX = 16_384
"""The same bound in deliveries to clients, or in entries in queues of that cost: they take five to ten milliseconds,
regardless of their bytes."""
CHECKS_S_MAX = 0.01
"""Seconds of a turn after which reads with checks of payloads are no longer handled without a look at the clock."""

logger = logging.getLogger(__name__)

Durable = Callable[[BaseException | None], None]


class Store(Protocol):
    """Store for the records of a turn; ``Ingest`` implements it."""

    def store_each(self, gathered: Gathering) -> dict[Source, Exception]:
        """Append and deliver the records for which there is room. Returns the sources of the others."""
        ...

    def on_durable(self, callback: Durable) -> None:
        """Call back, in order of registration, once everything stored so far is durable, or with the error."""


class Turn(Gathering):
    """Publishes of all connections in one turn. Belongs to the event loop's thread.

    A step that needs earlier records in the log (a subscription, a will, a session's journal) calls ``store`` first, so
    the order of records is the order of receipt.
    """

    __slots__ = ("_acks", "_answers", "_at_end", "_call_soon", "_clients", "_clock", "_counters", "_store", "begun",
                 "bytes", "crowd", "is_heavy", "joined_bytes", "now", "stores")  # fmt: skip

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float], counters: Counters
    ) -> None:
        """Wait for the first read.

        Args:
            call_soon: calls back at the end of the loop's turn.
            clock: the loop's, in seconds.
        """
        super().__init__()
        self._call_soon = call_soon
        self._clock = clock
        self._counters = counters
        self._store: Store | None = None
        self._at_end: list[Callable[[], None]] = []
        self._clients: list[Source] = []
        self._answers: list[bytes] = []
        self._acks = 0
        self.crowd = Crowd()
        """Marker of this step: clients that it answers or delivers to wait for their turn."""
        self.begun = False
        """True while the end of the turn is scheduled."""
        self.now = 0.0
        """Time at which the turn began, by the loop's clock."""
        self.joined_bytes = 0
        """Bytes of packets that arrived in several reads; ``bytes`` counts only the last read."""
        self.bytes = 0
        """Bytes read in this turn by connections that count them here."""
        self.is_heavy = False
        """True if this turn had to be stored before its end because of its cost for subscribers and queues, or if its
        checks of payloads have taken long: reads that come now are handled as long as ``Turns`` admits them."""
        self.stores = 0
        """Number of stores: it separates what a source gathered before from its present records."""

    def stores_in(self, store: Store) -> None:
        """Set the store for the records of the turn."""
        self._store = store

    def begin(self) -> None:
        """Note the time, and schedule the end of the turn. For a turn that has not begun."""
        self.begun = True
        self.now = self._clock()
        self._call_soon(self._end)

    def gathered(self) -> None:
        """Note that a read is over. Schedule the end of the turn if the read brought records; otherwise only its bytes
        count."""
        if not self.begun and self:
            self.begin()
        if not self.begun or self.bytes + self.joined_bytes > TURN_BYTES_MAX:
            self.store()
        else:
            self.relieve()

    def relieve(self) -> None:
        """Store the gathered records if their delivery is expensive, so that the cost is charged to the sender's
        turn."""
        if self.cost > COST_MAX:
            self.is_heavy = True
            self.store()

    def checked(self) -> None:
        """Note that payloads were checked: a fleet may have sent one each, of up to 10 ms."""
        if self.begun and self._clock() - self.now > CHECKS_S_MAX:
            self.is_heavy = True

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call back at the end of the turn, after all of its records were appended."""
        if not self.begun:
            self.begin()
        self._at_end.append(callback)

    def store(self) -> None:
        """Store the gathered records. Sources whose publishes cannot be stored are refused before this returns."""
        self._counters.bytes_received += self.bytes
        self.bytes = self.joined_bytes = 0
        if not self:
            return
        assert self._store is not None
        gathered = self.hand_over()
        self.stores += 1
        try:
            refused = self._store.store_each(gathered)
        except Exception as error:
            # A fault in the node's code, perhaps after some records were appended. Without a refusal the clients would
            # wait for an answer without end; refused, they send again.
            sources = [source for records in gathered.groups.values() for source in records.sources]
            _refuse([*sources, *gathered.clients], error)
            raise
        if refused:
            kept = [pair for pair in zip(gathered.clients, gathered.answers, strict=True) if pair[0] not in refused]
            gathered.clients, gathered.answers = [client for client, _ in kept], [data for _, data in kept]
        if gathered.clients:
            self._store.on_durable(partial(self.durable, gathered))
        for source, refusal in refused.items():
            _refuse([source], refusal)

    def durable(self, gathered: Gathering, error: BaseException | None) -> None:
        """Queue the answers for ``committed``, or refuse the clients."""
        if error is not None:
            _refuse(gathered.clients, error)
            return
        self._clients += gathered.clients
        self._answers += gathered.answers
        self._acks += len(gathered.clients) + gathered.more_acks

    def committed(self) -> None:
        """Send the answers of a commit, in one write for each client. Call it after the callbacks of a commit."""
        clients, answers = self._clients, self._answers
        if not clients:
            return
        self._clients, self._answers = [], []
        self._counters.acks_sent += self._acks
        self._acks = 0
        by_client = dict(zip(clients, answers, strict=True))
        if len(by_client) != len(clients):
            by_client = _joined(zip(clients, answers, strict=True))
        left = iter(by_client.items())
        _acknowledge(islice(left, CROWD))
        if len(by_client) > CROWD:
            self.crowd.is_here = True
            _acknowledge(left)
            self.crowd.is_here = False

    def _end(self) -> None:
        try:
            self.store()
        finally:
            callbacks, self._at_end = self._at_end, []
            self.begun = self.is_heavy = False
            for callback in callbacks:
                callback()


def _acknowledge(answers: Iterable[tuple[Source, bytes]]) -> None:
    for client, data in answers:
        try:
            client.acknowledge(data)
        except Exception as error:
            # A failure with one client must not cost the others their answers.
            logger.exception("a client could not be answered")
            _refuse([client], error)


def _refuse(clients: Iterable[Source], error: BaseException) -> None:
    """Refuse each of the clients once, even if another one fails."""
    for client in dict.fromkeys(clients):
        try:
            client.refuse(error)
        except Exception:
            logger.exception("a client could not be refused")


def _joined(answers: Iterable[tuple[Source, bytes]]) -> dict[Source, bytes]:
    """Return all answers of each client."""
    parts: dict[Source, list[bytes]] = {}
    for client, data in answers:
        parts.setdefault(client, []).append(data)
    return {client: b"".join(found) for client, found in parts.items()}
