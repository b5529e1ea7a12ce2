"""Records of requests on their way to the log, and the answers with their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from weft.bounds import Owner
from weft.edge_node.ingest.checks import refusal
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.ingest.record import Gathering, Records
from weft.edge_node.ingest.routes import Route
from weft.edge_node.ingest.turn import COST_MAX
from weft.edge_node.servers.http.exchange import Exchange, problem_of
from weft.edge_node.servers.http.idempotency import IdempotencyKeys, Once, RememberedAnswer, joined
from weft.edge_node.servers.http.problem import Problem, quoted, try_later
from weft.edge_node.servers.http.writes.misfits import Misfits
from weft.edge_node.servers.http.writes.records import NewRecord, Pieces, cost_of, gather, gather_one
from weft.protocols.batch import HEADER_PAIR_BYTES, HeaderPairs
from weft.protocols.fields import PackedHeaders
from weft.protocols.topics import InvalidTopic, check_topic
from weft.storage.segment_log import LogError, SegmentLog

RECORD_BYTES = 64
"""Estimated bytes that a record takes in the log beside key, payload and headers."""
NOTE_BYTES = 4096
"""The same for the record of an idempotency key, and for each append."""
PIECE_COST_MAX = COST_MAX // 4
"""Deliveries of a piece: in the first, all subscribers that do not acknowledge may fall behind, at 30 to 40 µs each."""
ONCE_COST_MAX = 4 * COST_MAX
"""Highest cost of a request with an idempotency key in one step, in units of ``Route.cost``: its messages are stored in
one commit, unlike those of a request without a key. Beyond it, the key records how many are stored."""


class PostTarget(NamedTuple):
    """A stream that messages are posted to."""

    name: str
    number: int
    """Number of the log's stream for its messages."""
    lane: str
    topic: bytes
    """Key of messages without one; a client needs the right to write to it for keys that the stream's ``from`` does not
    match."""


Answer = Callable[[Exchange, list[tuple[int, int]], int], None]
"""(exchange, seqs, count) -> answers that the records are durable."""


class Storing:
    """Writer of requests' records to the log. Belongs to the event loop's thread."""

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
        """Messages of a request that a stream accepts although it does not match their topics."""
        self._under_way: set[tuple[Owner, str]] = set()
        """Idempotency keys of requests that are being stored in pieces."""
        self._log = log
        self._wall_clock = wall_clock

    # --- routes

    def route(self, exchange: Exchange, target: PostTarget | None, key: bytes) -> Route:
        """Return the route of a record: the streams that match its key, and ``target`` in any case.

        Raises:
            Problem: that is not permitted.
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
            deep = key.count(b"/") >= self.ingest.routing.topic_levels_max
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
        if self.ingest.routing.matches(key, target.number):
            # To every matching stream, as with other protocols: sessions that read the log later rely on it.
            return routes.route(key) or self.ingest.routing.route(key)
        if key != target.topic and not routes.permits(target.topic):
            raise _forbidden(target.topic)
        self.misfits.refuse_topic(target.number, key.decode(), is_named=key != target.topic)
        self._off_pattern += 1
        return self.ingest.routing.route(key, target.number)

    @property
    def has_checks(self) -> bool:
        """Return whether the payloads of some stream are checked."""
        return self.ingest.routing.has_checks

    def checked(
        self, exchange: Exchange, target: PostTarget | None, record: NewRecord, once: Once | None = None
    ) -> NewRecord:
        """Return a record with what the checks of its payload have found.

        Raises:
            Problem: a stream refuses it, or as ``route``.
        """
        route = self.route(exchange, target, record.key)
        if route.checks is None:
            return record
        misfits = route.checks.look(record.payload)
        if misfits and (why := refusal(route, misfits)):
            begun = None if once is None else self.keys.find(exchange.owner, once.key)
            if begun is not None and begun.rest_at:  # the schema has changed since
                stored = f"of the request, {begun.messages} messages are stored since it was sent before"
            else:
                stored = "nothing of the request is stored"
            raise Problem(400, f"a payload is refused, and {stored}: {why}")
        return record._replace(misfits=misfits)

    # --- storing

    def repeats(self, exchange: Exchange, once: Once, answer: Answer) -> bool:
        """Return whether a request was stored before; then it gets its first answer, even if it would be refused now.

        Raises:
            Problem: the key came with another request.
        """
        known = self.keys.find(exchange.owner, once.key)
        if known is not None and known.fingerprint != once.fingerprint:
            raise Problem(422, "this Idempotency-Key came with another request before; use a new one for new data")
        if (exchange.owner, once.key) in self._under_way:
            raise try_later(409, "a request with this Idempotency-Key is being stored; send it again later")
        if known is None or known.rest_at:
            return False
        exchange.stored = partial(self._repeat, exchange, known, answer)
        self.ingest.on_durable(partial(_when_durable, exchange))  # it may not be durable yet
        return True

    def store(
        self,
        exchange: Exchange,
        target: PostTarget | None,
        records: Sequence[NewRecord],
        once: Once | None,
        answer: Answer,
    ) -> Iterator[None] | None:
        """Store all records of a request, and answer it once they are durable. Return the steps of a request with many
        deliveries.

        Args:
            once: idempotency key: a request that was stored before gets its first answer.

        Raises:
            Problem: none of them was stored.
        """
        if not records:
            answer(exchange, [], 0)
            return None
        begun = None
        if once is not None:
            if self.repeats(exchange, once, answer):
                return None
            begun = self.keys.find(exchange.owner, once.key)
        if once is not None and begun is not None:
            return self._store_once_in_pieces(exchange, target, records, once, answer)
        routed = self._routed(exchange, target, records)
        cost = sum(map(cost_of, records, routed))
        if once is None:
            if cost > COST_MAX:
                return self._store_in_pieces(exchange, target, records, answer)
            self._store_in_turn(exchange, target, records, routed, answer)
        elif cost > ONCE_COST_MAX:
            return self._store_once_in_pieces(exchange, target, records, once, answer)
        else:
            remembered = RememberedAnswer(once.fingerprint, _stream_of(target, routed), (), 0)
            self._commit(exchange, records, routed, once, remembered, answer)
        return None

    def _store_in_turn(
        self,
        exchange: Exchange,
        target: PostTarget | None,
        records: Sequence[NewRecord],
        routed: list[Route],
        answer: Answer,
    ) -> None:
        turn = self.ingest.turn
        if not turn.begun:
            turn.begin()
        # What waits for the disk here is little, since the garbage collector looks at all of it.
        stream = _stream_of(target, routed)
        if len(records) == 1:  # as most requests have
            run, at = gather_one(turn, exchange, records[0], routed[0])
            exchange.stored = partial(_answer_one, exchange, answer, run, at, stream)
        else:
            pieces = gather(turn, exchange, records, routed)
            exchange.stored = partial(_answer_all, exchange, answer, pieces, stream, len(records))
        turn.answer(exchange, b"")
        turn.more_acks += len(records) - 1

    def _store_in_pieces(
        self, exchange: Exchange, target: PostTarget | None, records: Sequence[NewRecord], answer: Answer
    ) -> Iterator[None]:
        turn, seqs, at = self.ingest.turn, list[tuple[int, int]](), 0
        while True:
            routed = self._routed_piece(exchange, target, records[at:])
            if not turn.begun:
                turn.begin()
            stream, pieces = _stream_of(target, routed), gather(turn, exchange, records[at : at + len(routed)], routed)
            at += len(routed)
            if at == len(records):
                break
            turn.store()
            if exchange.ready:  # the log has refused a piece; the rest would overtake it when it is sent again
                return
            seqs = joined([*seqs, *pieces.seqs(stream)])
            yield
        exchange.stored = lambda: answer(exchange, joined([*seqs, *pieces.seqs(stream)]), len(records))
        turn.answer(exchange, b"")
        turn.more_acks += len(records) - 1

    def _commit(  # noqa: PLR0917
        self,
        exchange: Exchange,
        records: Sequence[NewRecord],
        routed: list[Route],
        once: Once,
        before: RememberedAnswer,
        answer: Answer,
        rest_at: int = 0,
        *,
        in_pieces: bool = False,
    ) -> RememberedAnswer:
        """Store some or all records of a request in one commit with its key, and answer if they are the last.

        Args:
            before: answer for the records stored already.
            rest_at: ``Remembered.rest_at`` afterwards.

        Returns:
            The answer for the records stored so far.
        """
        turn = self.ingest.turn
        turn.store()  # earlier records have lower numbers
        gathered = Gathering()
        pieces = gather(gathered, exchange, records, routed)
        try:
            with self._log.together(_room(records)):
                self.ingest.store(gathered)
                stored = before.plus(pieces.seqs(before.stream), len(records), rest_at)
                self.keys.note(exchange.owner, once.key, stored, in_pieces=in_pieces)
        except LogError as error:
            raise problem_of(error) from None
        if not rest_at:
            gathered.answer(exchange, b"")
            gathered.more_acks += stored.messages - 1
            exchange.stored = partial(answer, exchange, list(stored.seqs), stored.messages)
            self.ingest.on_durable(partial(turn.durable, gathered))
        return stored

    def _store_once_in_pieces(
        self, exchange: Exchange, target: PostTarget | None, records: Sequence[NewRecord], once: Once, answer: Answer
    ) -> Iterator[None]:
        """Store a request with very many deliveries. Its key records the progress, so that the repeated request resumes
        there after a crash or a refusal."""
        this = (exchange.owner, once.key)
        if self.repeats(exchange, once, answer):  # the request was stored, or began to be, after this one's check
            return
        stored = self.keys.find(*this)
        # By their numbers: a changed configuration may have changed the set of stored messages.
        rest_at = 0 if stored is None else stored.rest_at
        left = [
            each
            for each in ((record.number or at, record) for at, record in enumerate(records, 1))
            if each[0] >= rest_at
        ]
        self._under_way.add(this)
        try:
            while True:
                routed = self._routed_piece(exchange, target, (record for _, record in left))
                taken, left = left[: len(routed)], left[len(routed) :]
                piece = [record for _, record in taken]
                before = stored or RememberedAnswer(once.fingerprint, _stream_of(target, routed), (), 0)
                rest_at = taken[-1][0] + 1 if left else 0
                stored = self._commit(exchange, piece, routed, once, before, answer, rest_at, in_pieces=True)
                if not left:
                    return
                yield
        finally:
            self._under_way.discard(this)

    def _routed(self, exchange: Exchange, target: PostTarget | None, records: Sequence[NewRecord]) -> list[Route]:
        self._off_pattern = 0
        routed = [self.route(exchange, target, record.key) for record in records]
        if self._off_pattern:
            self.misfits.took(self._off_pattern)
        return routed

    def _routed_piece(self, exchange: Exchange, target: PostTarget | None, records: Iterable[NewRecord]) -> list[Route]:
        """Return the routes of as many records as may be delivered in one step: subscribers come and go between two."""
        routed, cost = list[Route](), 0
        for record in records:
            route = self.route(exchange, target, record.key)
            routed.append(route)
            cost += cost_of(record, route)
            if cost > PIECE_COST_MAX:
                break
        return routed

    def _repeat(self, exchange: Exchange, known: RememberedAnswer, answer: Answer) -> None:
        self.keys.counters.http_repeated += 1
        exchange.answer_fields = (*exchange.answer_fields, ("Idempotency-Replayed", "true"))
        answer(exchange, list(known.seqs), known.messages)


def _answer_one(exchange: Exchange, answer: Answer, run: Records | None, at: int, stream: int) -> None:
    seqs = None if run is None else run.by_stream.get(stream)
    seq = seqs[at] if seqs else None
    answer(exchange, [] if seq is None else [(seq, 1)], 1)


def _answer_all(exchange: Exchange, answer: Answer, pieces: Pieces, stream: int, count: int) -> None:
    answer(exchange, pieces.seqs(stream), count)


def _stream_of(target: PostTarget | None, routed: Sequence[Route]) -> int:
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
