"""Records of requests on their way to the log, and the answers that say where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.ingest.record import Gathering, Records
from weft.edge_node.ingest.routes import Route
from weft.edge_node.servers.http.exchange import Exchange, problem_of
from weft.edge_node.servers.http.idempotency import IdempotencyKeys, Remembered
from weft.edge_node.servers.http.problem import Problem, quoted
from weft.edge_node.servers.http.writes.misfits import Misfits
from weft.protocols.batch import HEADER_PAIR_BYTES, HeaderPairs
from weft.protocols.fields import PackedHeaders, packed_headers
from weft.protocols.topics import InvalidTopic, check_topic
from weft.storage.segment_log import LogError, SegmentLog

RECORD_BYTES = 64
"""Bytes of the log's room that a record is taken to need beside key, payload and headers."""
NOTE_BYTES = 4096
"""The same of what is remembered of an idempotency key, and of each append."""


class Target(NamedTuple):
    """A stream that messages are posted to."""

    name: str
    number: int
    """Number of the stream of the log that takes its messages."""
    lane: str
    topic: bytes
    """Key of messages that come without one; and what a client must be allowed to write to for keys that the stream's
    ``from`` does not match."""


class NewRecord(NamedTuple):
    """One message of a request."""

    key: bytes
    payload: bytes
    headers: HeaderPairs = ()

    def packed(self) -> NewRecord:
        """Return the record with headers that the log need not measure: it takes all of a request's in one step."""
        headers = self.headers
        return self._replace(headers=packed_headers(headers)) if headers and type(headers) is tuple else self


class Once(NamedTuple):
    """An idempotency key of a request."""

    key: str
    fingerprint: bytes
    """Digest of everything that the request is to store."""


class Pieces(NamedTuple):
    """Records of one request among those of a turn: a stretch of each run."""

    stretches: dict[Records, tuple[int, int]]
    """Run -> index of the request's first record there, and how many there are."""
    messages: int

    def seqs(self, stream: int) -> list[tuple[int, int]]:
        """Return (first seq, count) of the records in a stream, ascending; empty when it has none of them."""
        found: list[tuple[int, int]] = []
        for run, (first, count) in self.stretches.items():
            seqs = run.by_stream.get(stream)
            if seqs and (seq := seqs[first]) is not None:
                found.append((seq, count))
        found.sort()
        joined: list[tuple[int, int]] = []
        for seq, count in found:
            if joined and joined[-1][0] + joined[-1][1] == seq:
                joined[-1] = (joined[-1][0], joined[-1][1] + count)
            else:
                joined.append((seq, count))
        return joined


Answer = Callable[[Exchange, list[tuple[int, int]], int], None]
"""(exchange, seqs, count) -> answers that the records are durable."""


class Storing:
    """Stores what requests bring. Belongs to the event loop's thread."""

    def __init__(
        self,
        log: SegmentLog,
        ingest: Ingest,
        keys: IdempotencyKeys,
        misfits: Misfits,
        wall_clock: Callable[[], int],
    ) -> None:
        self.ingest = ingest
        self.keys = keys
        self.misfits = misfits
        self._off_pattern = 0
        """Messages of a request that a stream takes although it does not match their topics."""
        self._log = log
        self._wall_clock = wall_clock

    # --- where records go

    def route(self, exchange: Exchange, target: Target | None, key: bytes) -> Route:
        """Return where a record goes: to the streams that match its key, and to ``target`` in any case.

        Raises:
            Problem: it may not go there.
        """
        routes = exchange.routes
        known = routes.plain.get(key)
        if known is not None and (target is None or target.number in known.streams):
            return known
        try:
            check_topic(key.decode())
        except (InvalidTopic, UnicodeDecodeError) as error:
            raise Problem(400, f"{quoted(key.decode(errors='replace'))} cannot be a key: {error}") from None
        if not routes.permits(key):
            deep = key.count(b"/") >= self.ingest.topic_levels_max
            if deep:
                raise Problem(400, f"the key {quoted(key.decode())} has too many levels (limits.topic_levels)")
            raise _forbidden(key)
        if target is None:
            found = routes.route(key)
            if found is None:
                raise Problem(
                    422, f"no stream matches {quoted(key.decode())} (`unrouted: refuse`); add it to a stream's `from`"
                )
            return found
        if self.ingest.matches(key, target.number):
            # Everywhere that it matches, as with other protocols: sessions that read the log later rely on it.
            return routes.route(key) or self.ingest.route(key)
        if key != target.topic and not routes.permits(target.topic):
            raise _forbidden(target.topic)
        self.misfits.refuse_topic(target.number, key.decode(), is_named=key != target.topic)
        self._off_pattern += 1
        return self.ingest.route(key, target.number)

    # --- storing

    def repeats(self, exchange: Exchange, once: Once, answer: Answer) -> bool:
        """Return whether a request was stored before; then it is answered as the first time, whatever is refused now.

        Raises:
            Problem: the key came with another request.
        """
        known = self.keys.find(exchange.owner, once.key)
        if known is None:
            return False
        if known.fingerprint != once.fingerprint:
            raise Problem(422, "this Idempotency-Key came with another request before; use a new one for new data")
        exchange.stored = partial(self._repeat, exchange, known, answer)
        self.ingest.on_durable(partial(_when_durable, exchange))  # perhaps it is not durable yet
        return True

    def store(
        self, exchange: Exchange, target: Target | None, records: Sequence[NewRecord], once: Once | None, answer: Answer
    ) -> None:
        """Store all records of a request, and have it answered once they are durable.

        Args:
            once: stores them unless they are stored already: then the answer is that of the first time.

        Raises:
            Problem: none of them was stored.
        """
        if not records:
            answer(exchange, [], 0)
            return
        if once is not None:
            self._store_once(exchange, target, records, once, answer)
            return
        routed = self._routed(exchange, target, records)
        turn = self.ingest.turn
        if not turn.begun:
            turn.begin()
        pieces = _gather(turn, exchange, records, routed)
        exchange.stored = partial(self._answer, exchange, target, routed, pieces, answer)
        turn.answer(exchange, b"")
        turn.more_acks += len(records) - 1

    def _answer(
        self, exchange: Exchange, target: Target | None, routed: list[Route], pieces: Pieces, answer: Answer
    ) -> None:
        answer(exchange, pieces.seqs(_stream_of(target, routed)), pieces.messages)

    def _store_once(
        self, exchange: Exchange, target: Target | None, records: Sequence[NewRecord], once: Once, answer: Answer
    ) -> None:
        if self.repeats(exchange, once, answer):
            return
        owner = exchange.owner
        routed = self._routed(exchange, target, records)
        turn = self.ingest.turn
        turn.store()  # what came before has lower numbers
        gathered = Gathering()
        pieces = _gather(gathered, exchange, records, routed)
        stream = _stream_of(target, routed)
        try:
            with self._log.together(_room(records)):
                self.ingest.store(gathered)
                self.keys.note(
                    owner, once.key, Remembered(once.fingerprint, stream, tuple(pieces.seqs(stream)), len(records))
                )
        except LogError as error:
            raise problem_of(error) from None
        gathered.answer(exchange, b"")
        gathered.more_acks += len(records) - 1
        exchange.stored = partial(self._answer, exchange, target, routed, pieces, answer)
        self.ingest.on_durable(partial(turn.durable, gathered))

    def _routed(self, exchange: Exchange, target: Target | None, records: Sequence[NewRecord]) -> list[Route]:
        self._off_pattern = 0
        routed = [self.route(exchange, target, record.key) for record in records]
        self.misfits.took(self._off_pattern)
        return routed

    def _repeat(self, exchange: Exchange, known: Remembered, answer: Answer) -> None:
        self.keys.counters.http_repeated += 1
        exchange.answer_fields = (*exchange.answer_fields, ("Idempotency-Replayed", "true"))
        answer(exchange, list(known.seqs), known.messages)


def _gather(gathered: Gathering, exchange: Exchange, records: Sequence[NewRecord], routed: Sequence[Route]) -> Pieces:
    stretches: dict[Records, tuple[int, int]] = {}
    for route, stretch in groupby(zip(records, routed, strict=True), itemgetter(1)):
        run = gathered.groups[route.destination]
        at = len(run.keys)
        keys, payloads, headers = zip(*(record for record, _ in stretch), strict=True)
        run.extend(keys, payloads, headers, exchange)
        if route.noted:
            gathered.note(route, run, at)
        first, count = stretches.get(run) or (at, 0)
        stretches[run] = (first, count + len(run.keys) - at)
    return Pieces(stretches, len(records))


def _stream_of(target: Target | None, routed: Sequence[Route]) -> int:
    """Return the stream whose numbers an answer gives; 0 for none."""
    if target is not None:
        return target.number
    streams = routed[0].streams
    return streams[-1] if routed[0].kept_for_sessions and streams else streams[0] if streams else 0


def _when_durable(exchange: Exchange, error: BaseException | None) -> None:
    exchange.acknowledge(b"") if error is None else exchange.refuse(error)


def _room(records: Sequence[NewRecord]) -> int:
    size = sum(len(record.key) + len(record.payload) + RECORD_BYTES for record in records)
    return 2 * (size + sum(_headers_room(record.headers) for record in records)) + NOTE_BYTES


def _headers_room(headers: HeaderPairs) -> int:
    if type(headers) is PackedHeaders:
        return len(headers.packed) + HEADER_PAIR_BYTES
    return sum(
        HEADER_PAIR_BYTES + len(name) + (len(value) * 4 if isinstance(value, str | bytes) else 8)
        for name, value in headers
    )


def _forbidden(topic: bytes) -> Problem:
    return Problem(
        403, f"the user may not write to topic {quoted(topic.decode(errors='replace'))}; ask for the right to"
    )
