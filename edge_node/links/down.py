"""The taking of a hub's messages at one link: each is stored and published in one commit, and then reported."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence

import msgspec

from weft.config.links import Down
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.ingest.record import Gathering, NodeSource
from weft.protocols.batch import Flag, HeaderPairs, records
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.link import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    REASON_CHARACTERS_MAX,
    DownMessage,
    DownOpen,
    MessageOutcome,
    OutcomeKind,
    Outcomes,
)
from weft.protocols.message_headers import EXPIRES, MESSAGE_NUMBER
from weft.protocols.ranges import RangeSet
from weft.protocols.topics import InvalidTopic, check_topic, matches
from weft.replication.runner.settings import Answer
from weft.storage.segment_log import LogError, SegmentLog

# Outcomes of the messages of hubs: recovered from the log, so that none is stored twice.
#
# Each message has one record in the stream ``weft-down-state``, in one commit with the message's own record in
# ``weft-down`` if it is published. After a crash at any instant the node knows a message if and only if it is stored.
# The last ``KEPT_MAX`` outcomes of a hub stay: a hub sends only messages without an outcome again, of which it keeps
# fewer.

logger = logging.getLogger(__name__)

KEPT_MAX = 4096
"""Maximum number of outcomes of a hub that are remembered: four times as many as may wait at a hub."""
FORGOTTEN_AT_ONCE = 256
HUBS_MAX = 16
"""Maximum number of hubs that are remembered. Another one replaces the one that was silent for longest."""
READ_BYTES = 1 << 20
VERSION = 1
RECORD_BYTES = 512
"""Bytes of a record of this stream, at most: the room that a commit reserves."""


class _OutcomeVersion(msgspec.Struct, array_like=True):
    """Part of the value that each release can read."""

    version: int


class _OutcomeEntry(msgspec.Struct, array_like=True):
    """Value of one record; its key is the hub's cluster id."""

    version: int
    number: int
    accepted: int
    outcome: int
    reason: str = ""


class _Hub:
    """The outcomes of one hub's messages."""

    def __init__(self) -> None:
        self.next = 0
        self.accepted = -1
        """Latest time at which the hub accepted a message that is known here."""
        self.outcomes: OrderedDict[tuple[int, int], tuple[int, MessageOutcome]] = OrderedDict()
        """(number, accepted) -> the number of its record, and the outcome; the oldest first."""

    def add(self, seq: int, outcome: MessageOutcome) -> None:
        self.next = max(self.next, outcome.number + 1)
        self.accepted = max(self.accepted, outcome.accepted)
        self.outcomes[outcome.number, outcome.accepted] = seq, outcome


class DownMemory:
    """The outcomes of all hubs' messages. Belongs to the event loop's thread.

    Args:
        stream: number of the stream of outcomes.
        wall_clock: nanoseconds since 1970.

    Raises:
        OSError, LogError: the log cannot be read.
        UnsupportedVersion: a later release wrote it.
    """

    def __init__(self, log: SegmentLog, stream: int, wall_clock: Callable[[], int]) -> None:
        self._log, self._stream, self._wall_clock = log, stream, wall_clock
        self._encode = msgspec.msgpack.Encoder().encode
        self._hubs: OrderedDict[str, _Hub] = OrderedDict()
        """Outcomes by cluster id; the hub that was silent for longest comes first."""
        self._load()

    def next(self, hub: str) -> int:
        """Return one past the highest known number of a hub's messages; 0 without one."""
        known = self._hubs.get(hub)
        return 0 if known is None else known.next

    def known(self, hub: str, message: DownMessage) -> MessageOutcome | None:
        """Return the outcome of a message that was stored before; None for a new one.

        A hub whose store was restored to an earlier state may give a number again, to a message that it accepted later:
        that is a new one.
        """
        of_hub = self._hubs.get(hub)
        if of_hub is None:
            return None
        found = of_hub.outcomes.get((message.number, message.accepted))
        if found is not None:
            return found[1]
        if message.number >= of_hub.next or message.accepted > of_hub.accepted:
            return None
        return MessageOutcome(
            message.number, message.accepted, OutcomeKind.UNKNOWN, "the edge has stored later messages"
        )

    def note(self, hub: str, outcomes: Sequence[MessageOutcome]) -> None:
        """Remember outcomes, in the log as well. Call it in ``together``, with the messages' records.

        Raises:
            LogFull, LogFailed: they are not remembered.
        """
        entries = [
            self._encode(_OutcomeEntry(VERSION, each.number, each.accepted, each.outcome, each.reason))
            for each in outcomes
        ]
        seq = self._log.append(self._stream, self._wall_clock(), [hub.encode()] * len(entries), entries)
        for at, each in enumerate(outcomes, seq):
            self._hub(hub).add(at, each)

    def forget(self) -> None:
        """Release the records of outcomes beyond those that are remembered. Call it when the last ones are durable."""
        gone = RangeSet()
        for hub in self._hubs.values():
            if len(hub.outcomes) >= KEPT_MAX + FORGOTTEN_AT_ONCE:
                while len(hub.outcomes) > KEPT_MAX:
                    seq = hub.outcomes.popitem(last=False)[1][0]
                    gone.add(seq, seq + 1)
        while len(self._hubs) > HUBS_MAX:
            for seq, _ in self._hubs.popitem(last=False)[1].outcomes.values():
                gone.add(seq, seq + 1)
        if gone:
            self._log.release(self._stream, gone)

    def _hub(self, hub: str) -> _Hub:
        known = self._hubs.setdefault(hub, _Hub())
        self._hubs.move_to_end(hub)
        return known

    def _load(self) -> None:
        decoder, seq, end = msgspec.msgpack.Decoder(_OutcomeEntry), 0, self._log.durable_end(self._stream)
        while seq < end and (batches := self._log.read(self._stream, seq, READ_BYTES)):
            for data in batches:
                for record in records(data):
                    seq = record.seq + 1
                    entry = _decoded(record.payload, decoder)
                    if entry is not None:
                        outcome = MessageOutcome(entry.number, entry.accepted, entry.outcome, entry.reason)
                        self._hub(record.key.decode()).add(record.seq, outcome)
        self.forget()


def _decoded(payload: bytes, decoder: msgspec.msgpack.Decoder[_OutcomeEntry]) -> _OutcomeEntry | None:
    try:
        if msgspec.msgpack.decode(payload, type=_OutcomeVersion).version > VERSION:
            # Without these outcomes, messages would be published twice.
            raise UnsupportedVersion("a later release has stored messages of hubs on this node: install that again")
        return decoder.decode(payload)
    except msgspec.MsgspecError as error:
        logger.error("the outcome of a hub's message cannot be read, and is forgotten: %s", error)
        return None


RETRY_S = 2.0
"""Seconds between two attempts to store messages for which the log had no room."""
RESERVE_BYTES = 4096
"""Room of one commit beside its records."""


class LinkTaker:
    """The taker of one link (``replication.runner.settings.MessageTaker``).

    Args:
        stream: number of the stream of published messages.
        clock: monotonic seconds.
        call_later: calls back after some seconds.
        payload_bytes_max: longest message that the node's clients may get.
    """

    def __init__(
        self,
        down: Down,
        memory: DownMemory,
        ingest: Ingest,
        stream: int,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], None],
        payload_bytes_max: int,
    ) -> None:
        self.down = down
        self._memory, self._ingest, self._stream = memory, ingest, stream
        self._clock, self._wall_clock, self._call_later = clock, wall_clock, call_later
        self._payload_bytes_max = payload_bytes_max
        self._waiting: deque[tuple[float, DownMessage]] = deque()
        """Messages that are not stored, each with the time at which it expires."""
        self._answer: Answer = _nowhere
        self._hub = ""
        self._is_retried = False
        self.counts: Counter[OutcomeKind] = Counter()
        """Outcomes since the start, of new messages only."""
        self.trouble = ""
        """Reason why messages wait; empty if none does."""

    def opening(self, hub: str) -> DownOpen:
        """Return the frame by which the edge says that it takes messages of ``hub``. Those that wait are forgotten."""
        self._waiting.clear()
        self._hub, self._answer, self.trouble = hub, _nowhere, ""
        return DownOpen(self._memory.next(hub))

    def counted(self, outcome: str) -> int:
        """Return the number of messages with an outcome since the start, by its name."""
        return self.counts[OutcomeKind[outcome.upper()]]

    @property
    def waiting(self) -> int:
        """Return the number of messages for which the log has no room."""
        return len(self._waiting)

    def take(self, hub: str, messages: list[DownMessage], answer: Answer) -> None:
        """Take messages in order. Each gets an outcome when that is durable.

        A hub that sends more than it may has them dropped. It sends them again on the next connection.
        """
        self._hub, self._answer = hub, answer
        now, size = self._clock(), sum(len(message.payload) for _, message in self._waiting)
        names = {(message.number, message.accepted) for _, message in self._waiting}
        for message in messages:
            size += len(message.payload)
            name = message.number, message.accepted
            if name not in names and len(names) < IN_FLIGHT_MAX and size <= IN_FLIGHT_BYTES_MAX:
                names.add(name)
                self._waiting.append((now + message.left / 1e9, message))
        self._store(is_new=True)

    def _store(self, *, is_new: bool = False) -> None:
        """Store all that wait, in one commit."""
        taken, self._waiting = list(self._waiting), deque()
        former = [self._memory.known(self._hub, message) for _, message in taken]
        new = [each for each, known in zip(taken, former, strict=True) if known is None]
        now = self._clock()
        outcomes = [self._outcome(message, end <= now) for end, message in new]
        try:
            if outcomes:
                self._append([message for _, message in new], outcomes)
        except LogError as error:
            self._waiting.extend(taken)
            self.trouble = str(error)
            if is_new:
                self._report([_outcome(message, OutcomeKind.WAITING, str(error)) for _, message in taken])
            self._retry_later()
            return
        self.trouble = ""
        self.counts.update(OutcomeKind(each.outcome) for each in outcomes)
        fresh, answer = iter(outcomes), self._answer
        found = [next(fresh) if known is None else known for known in former]

        def durable(error: BaseException | None) -> None:
            if error is None:
                self._memory.forget()
                answer(Outcomes(found))

        self._ingest.on_durable(durable)

    def _outcome(self, message: DownMessage, has_expired: bool) -> MessageOutcome:
        if has_expired:
            return _outcome(message, OutcomeKind.EXPIRED)
        refusal = self._refusal(message)
        return (
            _outcome(message, OutcomeKind.PUBLISHED)
            if refusal is None
            else _outcome(message, OutcomeKind.REFUSED, refusal)
        )

    def _refusal(self, message: DownMessage) -> str | None:
        topic = message.topic
        try:
            check_topic(topic)
        except InvalidTopic as error:
            return str(error)
        if topic.startswith("$") or topic.count("/") >= self._ingest.routing.topic_levels_max:
            return "the edge accepts no messages for such topics"
        if not any(matches(each, topic) for each in self.down.topics):
            return f"the edge's configuration allows no messages to {topic[:80]!r}: see links.<name>.down.topics"
        if len(message.payload) > self._payload_bytes_max:
            return f"a message of {len(message.payload)} bytes; the limit is {self._payload_bytes_max} (limits.message)"
        return None

    def _append(self, messages: Sequence[DownMessage], outcomes: Sequence[MessageOutcome]) -> None:
        """Append messages and outcomes, all of which count or none.

        Raises:
            LogError: nothing was appended.
        """
        ingest, gathered, wall = self._ingest, Gathering(), self._wall_clock()
        size = len(outcomes) * RECORD_BYTES
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome.outcome == OutcomeKind.PUBLISHED:
                headers: HeaderPairs = (
                    (MESSAGE_NUMBER, message.number),
                    (EXPIRES, min(wall + message.left, (1 << 63) - 1)),
                )
                topic = message.topic.encode()
                route = ingest.routing.route(topic, self._stream)
                flags = 0 if message.qos else int(Flag.PUBLISHED_QOS0)
                gathered.add(route, topic, message.payload, NodeSource(None), flags, headers)
                size += len(topic) + len(message.payload) + RECORD_BYTES
        ingest.batch.store()  # earlier publishes come first
        with ingest.log.together(RESERVE_BYTES + 2 * size):
            if gathered:
                ingest.store(gathered)  # refused as a whole, before anything is appended
            self._memory.note(self._hub, outcomes)  # within the reserved room: it is not refused

    def _report(self, outcomes: list[MessageOutcome]) -> None:
        if outcomes:
            self._answer(Outcomes(outcomes))

    def _retry_later(self) -> None:
        if not self._is_retried:
            self._is_retried = True
            self._call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._is_retried = False
        if self._waiting:
            self._store()


def _outcome(message: DownMessage, outcome: OutcomeKind, reason: str = "") -> MessageOutcome:
    return MessageOutcome(message.number, message.accepted, outcome, reason[:REASON_CHARACTERS_MAX])


def _nowhere(_outcomes: Outcomes) -> None:
    """Tell no one: no connection is open."""
