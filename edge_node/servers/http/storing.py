"""Records of requests on their way to the log, and the answers with their numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import msgspec

from weft.edge_node.ingest.ingest import COST_MAX, Ingest
from weft.edge_node.ingest.record import COPY_COST, Gathering, Misfits, Records, Route
from weft.edge_node.ingest.routing import refusal
from weft.edge_node.servers.http.bodies import NO_JSON
from weft.edge_node.servers.http.idempotency import IdempotencyKeys, Once, RememberedAnswer, joined
from weft.edge_node.servers.http.request import HttpExchange, Problem, problem_of, quoted
from weft.edge_node.servers.http.settings import HttpCounters
from weft.protocols.batch import HEADER_PAIR_BYTES, HeaderPairs
from weft.protocols.ranges import PackedHeaders, packed_headers
from weft.protocols.topics import InvalidTopic, check_topic
from weft.storage.segment_log import LogError, SegmentLog

# Messages of one request among the records of a turn.

CHECKED_SLICE_BYTES = 16 << 10
"""Bytes whose payloads are checked before others may have their turn, as ``check_cost`` counts them."""
CHECKED_SLICE_MESSAGES = 8
"""Messages of a request that are checked in one step without a look at ``check_cost``."""
MISFIT_COST = 16
"""Cost of a byte of a message that does not fit: the reasons are worded at some ten times the time of the check."""


class NewRecord(NamedTuple):
    """One message of a request."""

    key: bytes
    payload: bytes
    headers: HeaderPairs = ()
    misfits: Misfits | None = None
    """Findings of the checks of its route; None where there are none, or they were not asked."""

    def packed(self) -> NewRecord:
        """Return the record with headers encoded for the log, which appends all records of a request in one step."""
        headers = self.headers
        return self._replace(headers=packed_headers(headers)) if headers and type(headers) is tuple else self


class RecordSlices(NamedTuple):
    """Records of one request among those of a turn: a stretch of each run."""

    stretches: dict[Records, tuple[int, int]]
    """Run -> index of the request's first record there, and their number."""

    def seqs(self, stream: int) -> list[tuple[int, int]]:
        """Return (first seq, count) of the records in a stream, ascending; empty when the stream has none."""
        found: list[tuple[int, int]] = []
        for run, (first, count) in self.stretches.items():
            seqs = (run.by_stream.get(stream) or ())[first : first + count]
            if type(seqs) is range and seqs:
                found.append((seqs.start, count))
            else:
                found += [(seq, 1) for seq in seqs if seq is not None]
        return joined(sorted(found))


def check_cost(size: int, misfits: Misfits | None) -> int:
    """Return the cost of the check of a payload, in bytes of payloads that fit. A reason for each of many fields costs
    more than a short payload itself."""
    return MISFIT_COST * size + sum(2 * check.cost for check, _ in misfits) if misfits else size


def cost_of(record: NewRecord, route: Route) -> int:
    """Return the cost of storing a record, in units of ``Route.cost``: a dead letter costs as much as a copy in a
    queue."""
    cost = route.cost - route.check_cost  # it was checked in earlier steps
    return cost + COPY_COST if record.misfits else cost


def gather(
    gathered: Gathering, exchange: HttpExchange, records: Sequence[NewRecord], routed: Sequence[Route]
) -> RecordSlices:
    """Add the messages of a request, each with its route."""
    stretches: dict[Records, tuple[int, int]] = {}
    for (route, is_single), stretch in groupby(zip(records, routed, strict=True), _way):
        some = [record for record, _ in stretch]
        if is_single:
            for each in some:
                run = gathered.add(route, each.key, each.payload, exchange, 0, each.headers, each.misfits)
                if run is not None:
                    first, count = stretches.get(run) or (len(run.keys) - 1, 0)
                    stretches[run] = (first, count + 1)
            continue
        run = gathered.groups[route.destination]
        at = len(run.keys)
        keys, payloads, headers, *_ = zip(*some, strict=True)
        run.extend(keys, payloads, headers, exchange)
        if route.noted:
            gathered.note_fitting(route, run, at)
        first, count = stretches.get(run) or (at, 0)
        stretches[run] = (first, count + len(run.keys) - at)
    return RecordSlices(stretches)


def _way(pair: tuple[NewRecord, Route]) -> tuple[Route, bool]:
    """Return a record's route, and whether it may be a dead letter."""
    record, route = pair
    return route, route.checks is not None and record.misfits != ()


def gather_one(
    gathered: Gathering, exchange: HttpExchange, record: NewRecord, route: Route
) -> tuple[Records | None, int]:
    """Add a message. Return its run and its place there; no run for a dead letter."""
    run = gathered.add(route, record.key, record.payload, exchange, 0, record.headers, record.misfits)
    return run, 0 if run is None else len(run.keys) - 1


# Messages that do not fit the stream that they are posted to: another topic than its ``from``, or broken JSON.
#
# Stored, they would be rows with nulls that a reader finds weeks later. A stream refuses them unless it has `misfits:
# take`.

log = logging.getLogger(__name__)

PATTERNS_SHOWN = 5
_VALUE = msgspec.json.Decoder(msgspec.Raw)


class MisfitRule(NamedTuple):
    """Rule for the messages of a stream."""

    name: str
    patterns: tuple[str, ...]
    is_json: bool
    takes: bool
    """True if the stream accepts misfits."""


class PostMisfits:
    """Refusal or count of misfits. Belongs to the event loop's thread."""

    def __init__(self, counters: HttpCounters) -> None:
        """Start without rules."""
        self._counters = counters
        self._rules: Mapping[int, MisfitRule] = {}
        self._reported: set[str] = set()
        self.knows_json = False
        """True if any stream requires JSON."""

    def use(self, rules: Mapping[int, MisfitRule]) -> None:
        """Apply these rules: number of a stream in the log -> its rule."""
        self._rules = rules
        self.knows_json = any(rule.is_json for rule in rules.values())

    def refuse_topic(self, stream: int, topic: str, *, is_named: bool) -> None:
        """Refuse a message whose topic the stream's patterns do not match.

        Args:
            is_named: False if the request names no topic, and gets the stream's default.

        Raises:
            Problem: the stream refuses misfits.
        """
        rule = self._rules.get(stream)
        if rule is None:  # a reload has removed the stream's topics since the request began
            raise Problem(409, "the stream accepts no topics any more; nothing was stored")
        if rule.takes:
            return
        more = len(rule.patterns) - PATTERNS_SHOWN
        shown = ", ".join(rule.patterns[:PATTERNS_SHOWN]) + (f" and {more} more" if more > 0 else "")
        if is_named:
            problem = Problem(
                422,
                f"the stream {rule.name} accepts topics that match {shown}, and {quoted(topic)} does not; correct "
                "the topic, or add it to the stream's `from`",
            )
        else:
            problem = Problem(
                400, f"the request names no topic; send one that matches {shown} in the path or as Weft-Key"
            )
        self._refused(rule, problem)

    def look(self, streams: Iterable[int], payload: bytes) -> None:
        """Refuse, or count, a payload that is not JSON for a stream that requires it.

        Raises:
            Problem: it is not JSON, and a stream refuses misfits.
        """
        rules = [rule for rule in map(self._rules.get, streams) if rule is not None and rule.is_json]
        if not rules:
            return
        try:
            _decode(payload)
        except NO_JSON as error:
            for rule in rules:
                if not rule.takes:
                    self._refused(
                        rule,
                        Problem(
                            400,
                            f"the payload is not JSON: {error}; the stream {rule.name} has "
                            "`payload: json`. Nothing was stored, correct it",
                        ),
                    )
            self._counters.http_misfits_taken += 1

    def fits(self, stream: int, payload: bytes) -> bool:
        """Return whether ``look`` would do nothing about a payload for this stream alone."""
        rule = self._rules.get(stream)
        if rule is None or not rule.is_json:
            return True
        try:
            _decode(payload)
        except NO_JSON:
            return False
        return True

    def took(self, count: int) -> None:
        """Count accepted messages whose topic does not match."""
        self._counters.http_misfits_taken += count

    def _refused(self, rule: MisfitRule, problem: Problem) -> None:
        self._counters.http_misfits_refused += 1
        if rule.name not in self._reported:
            self._reported.add(rule.name)
            log.warning(
                "refused a request that posts to the stream %s: %s. Further ones are counted in `weft edge status`; "
                "`misfits: take` accepts them",
                rule.name,
                problem,
            )
        raise problem


def _decode(payload: bytes) -> None:
    payload.decode()  # in C; a decoder that only skips values does not check text
    _VALUE.decode(payload)


RECORD_BYTES = 64
"""Estimated bytes that a record takes in the log beside key, payload and headers."""
NOTE_BYTES = 4096
"""The same for the record of an idempotency key, and for each append."""
PIECE_COST_MAX = COST_MAX // 4
"""Deliveries of a piece: in the first, all subscribers that do not acknowledge may fall behind, at 30 to 40 µs each."""
ONCE_COST_MAX = 4 * COST_MAX
"""Highest cost of a request of several messages with an idempotency key, in units of ``Route.cost``: they are stored
and delivered in one step, unlike those of a request without a key. A message alone has no bound: it cannot be sent in
parts."""


class PostTarget(NamedTuple):
    """A stream that messages are posted to."""

    name: str
    number: int
    """Number of the log's stream for its messages."""
    lane: str
    topic: bytes
    """Key of messages without one; a client needs the right to write to it for keys that the stream's ``from`` does not
    match."""


Answer = Callable[[HttpExchange, list[tuple[int, int]], int], None]
"""(exchange, seqs, count) -> answers that the records are durable."""


class Storing:
    """Writer of requests' records to the log. Belongs to the event loop's thread."""

    def __init__(
        self,
        log: SegmentLog,
        ingest: Ingest,
        keys: IdempotencyKeys,
        misfits: PostMisfits,
        wall_clock: Callable[[], int],
    ) -> None:
        self.ingest = ingest
        self.keys = keys
        self.misfits = misfits
        self._off_pattern = 0
        """Messages of a request that a stream accepts although it does not match their topics."""
        self._log = log
        self._wall_clock = wall_clock

    # --- routes

    def route(self, exchange: HttpExchange, target: PostTarget | None, key: bytes) -> Route:
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

    def checked(self, exchange: HttpExchange, target: PostTarget | None, record: NewRecord) -> NewRecord:
        """Return a record with what the checks of its payload have found.

        Raises:
            Problem: a stream refuses it, or as ``route``.
        """
        route = self.route(exchange, target, record.key)
        if route.checks is None:
            return record
        misfits = route.checks.look(record.payload)
        if misfits and (why := refusal(route, misfits)):
            raise Problem(400, f"a payload is refused, and nothing of the request is stored: {why}")
        return record._replace(misfits=misfits)

    # --- storing

    def repeats(self, exchange: HttpExchange, once: Once, answer: Answer) -> bool:
        """Return whether a request was stored before; then it gets its first answer, even if it would be refused now.

        Raises:
            Problem: the key came with another request.
        """
        known = self.keys.find(exchange.owner, once.key)
        if known is not None and known.fingerprint != once.fingerprint:
            raise Problem(422, "this Idempotency-Key was used for another request before; use a new one for new data")
        if known is None:
            return False
        exchange.stored = partial(self._repeat, exchange, known, answer)
        self.ingest.on_durable(partial(_when_durable, exchange))  # it may not be durable yet
        return True

    def store(
        self,
        exchange: HttpExchange,
        target: PostTarget | None,
        records: Sequence[NewRecord],
        once: Once | None,
        answer: Answer,
    ) -> Iterator[None] | None:
        """Store all records of a request, and answer it once they are durable. Return the steps of a request with many
        deliveries.

        Args:
            once: idempotency key. All records are stored in one commit with it, and a request that was stored before
                gets its first answer.

        Raises:
            Problem: none of them was stored; 413 if there are several, with a key, and too many deliveries.
        """
        if not records:
            answer(exchange, [], 0)
            return None
        if once is not None and self.repeats(exchange, once, answer):
            return None
        routed = self._routed(exchange, target, records)
        cost = sum(map(cost_of, records, routed))
        if once is not None:
            if cost > ONCE_COST_MAX and len(records) > 1:
                raise Problem(
                    413,
                    f"with an Idempotency-Key, all messages are stored in one commit, of at most {ONCE_COST_MAX} "
                    f"deliveries to subscribers and queues. These have about {cost}: nothing was stored, send less at "
                    "once",
                )
            self._store_once(exchange, records, routed, _stream_of(target, routed), once, answer)
        elif cost > COST_MAX:
            return self._store_in_slices(exchange, target, records, answer)
        else:
            self._store_in_turn(exchange, target, records, routed, answer)
        return None

    def store_at_once(
        self, exchange: HttpExchange, target: PostTarget | None, record: NewRecord, answer: Answer
    ) -> bool:
        """Store the one message of a request as ``store`` does, if nothing about it has to be found out or refused.
        Return False, with nothing done, for any other."""
        key, payload, headers, _ = record
        route = exchange.routes.plain.get(key)
        if route is None or route.checks is not None or route.cost > COST_MAX:
            return False
        if target is None:
            if self.misfits.knows_json:
                return False
            stream = _stream_of(None, (route,))
        else:
            stream = target.number
            if stream not in route.streams or not self.misfits.fits(stream, payload):
                return False
        batch = self.ingest.batch
        if not batch.begun:
            batch.begin()
        run = batch.add(route, key, payload, exchange, 0, headers)
        assert run is not None, "only checks make dead letters"
        exchange.stored = partial(_answer_one, exchange, answer, run, len(run.keys) - 1, stream)
        batch.answer(exchange, b"")
        return True

    def _store_in_turn(
        self,
        exchange: HttpExchange,
        target: PostTarget | None,
        records: Sequence[NewRecord],
        routed: Sequence[Route],
        answer: Answer,
    ) -> None:
        batch = self.ingest.batch
        if not batch.begun:
            batch.begin()
        # What waits for the disk here is little, since the garbage collector looks at all of it.
        stream = _stream_of(target, routed)
        if len(records) == 1:  # as most requests have
            run, at = gather_one(batch, exchange, records[0], routed[0])
            exchange.stored = partial(_answer_one, exchange, answer, run, at, stream)
        else:
            slices = gather(batch, exchange, records, routed)
            exchange.stored = partial(_answer_all, exchange, answer, slices, stream, len(records))
        batch.answer(exchange, b"")
        batch.more_acks += len(records) - 1

    def _store_in_slices(
        self, exchange: HttpExchange, target: PostTarget | None, records: Sequence[NewRecord], answer: Answer
    ) -> Iterator[None]:
        batch, seqs, at = self.ingest.batch, list[tuple[int, int]](), 0
        while True:
            routed = self._routed_piece(exchange, target, records[at:])
            if not batch.begun:
                batch.begin()
            stream, slices = _stream_of(target, routed), gather(batch, exchange, records[at : at + len(routed)], routed)
            at += len(routed)
            if at == len(records):
                break
            batch.store()
            if exchange.ready:  # the log has refused a piece; the rest would overtake it when it is sent again
                return
            seqs = joined([*seqs, *slices.seqs(stream)])
            yield
        exchange.stored = lambda: answer(exchange, joined([*seqs, *slices.seqs(stream)]), len(records))
        batch.answer(exchange, b"")
        batch.more_acks += len(records) - 1

    def _store_once(  # noqa: PLR0917
        self,
        exchange: HttpExchange,
        records: Sequence[NewRecord],
        routed: list[Route],
        stream: int,
        once: Once,
        answer: Answer,
    ) -> None:
        """Store all records of a request in one commit with its key: a crash leaves all of it or nothing."""
        batch = self.ingest.batch
        batch.store()  # earlier records have lower numbers
        gathered = Gathering()
        slices = gather(gathered, exchange, records, routed)
        try:
            with self._log.together(_room(records)):
                self.ingest.store(gathered)
                stored = RememberedAnswer(once.fingerprint, stream, tuple(slices.seqs(stream)), len(records))
                self.keys.note(exchange.owner, once.key, stored)
        except LogError as error:
            raise problem_of(error) from None
        gathered.answer(exchange, b"")
        gathered.more_acks += len(records) - 1
        exchange.stored = partial(answer, exchange, list(stored.seqs), stored.messages)
        self.ingest.on_durable(partial(batch.durable, gathered))

    def _routed(self, exchange: HttpExchange, target: PostTarget | None, records: Sequence[NewRecord]) -> list[Route]:
        self._off_pattern = 0
        routed = [self.route(exchange, target, record.key) for record in records]
        if self._off_pattern:
            self.misfits.took(self._off_pattern)
        return routed

    def _routed_piece(
        self, exchange: HttpExchange, target: PostTarget | None, records: Iterable[NewRecord]
    ) -> list[Route]:
        """Return the routes of as many records as may be delivered in one step: subscribers come and go between two."""
        routed, cost = list[Route](), 0
        for record in records:
            route = self.route(exchange, target, record.key)
            routed.append(route)
            cost += cost_of(record, route)
            if cost > PIECE_COST_MAX:
                break
        return routed

    def _repeat(self, exchange: HttpExchange, known: RememberedAnswer, answer: Answer) -> None:
        self.keys.counters.http_repeated += 1
        exchange.answer_fields = (*exchange.answer_fields, ("Idempotency-Replayed", "true"))
        answer(exchange, list(known.seqs), known.messages)


def _answer_one(exchange: HttpExchange, answer: Answer, run: Records | None, at: int, stream: int) -> None:
    seqs = None if run is None else run.by_stream.get(stream)
    seq = seqs[at] if seqs else None
    answer(exchange, [] if seq is None else [(seq, 1)], 1)


def _answer_all(exchange: HttpExchange, answer: Answer, slices: RecordSlices, stream: int, count: int) -> None:
    answer(exchange, slices.seqs(stream), count)


def _stream_of(target: PostTarget | None, routed: Sequence[Route]) -> int:
    """Return the stream whose numbers an answer gives; 0 for none."""
    if target is not None:
        return target.number
    streams = routed[0].streams
    return streams[-1] if routed[0].kept_for_sessions and streams else streams[0] if streams else 0


def _when_durable(exchange: HttpExchange, error: BaseException | None) -> None:
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
