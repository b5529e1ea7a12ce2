"""The taking of a hub's messages at one link: each is stored and published in one commit, and then reported."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from weft.config.links import Down
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.ingest.record import Gathering, NodeSource
from weft.edge_node.links.down.memory import RECORD_BYTES, DownMemory
from weft.protocols.batch import Flag, HeaderPairs
from weft.protocols.link.down import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    REASON_CHARACTERS_MAX,
    DownMessage,
    DownOpen,
    MessageOutcome,
    OutcomeKind,
    Outcomes,
)
from weft.protocols.message_headers import EXPIRES
from weft.protocols.topics import InvalidTopic, check_topic, matches
from weft.replication.runner.messages import Answer
from weft.storage.segment_log import LogError

NUMBER = "weft.message"
"""Header with the number of a hub's message."""
RETRY_S = 2.0
"""Seconds between two attempts to store messages for which the log had no room."""
RESERVE_BYTES = 4096
"""Room of one commit beside its records."""


class LinkTaker:
    """The taker of one link (``replication.runner.messages.MessageTaker``).

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
        told = [self._memory.known(self._hub, message) for _, message in taken]
        new = [each for each, known in zip(taken, told, strict=True) if known is None]
        now = self._clock()
        outcomes = [self._outcome(message, end <= now) for end, message in new]
        try:
            if outcomes:
                self._append([message for _, message in new], outcomes)
        except LogError as error:
            self._waiting.extend(taken)
            self.trouble = str(error)
            if is_new:
                self._tell([_outcome(message, OutcomeKind.WAITING, str(error)) for _, message in taken])
            self._retry_later()
            return
        self.trouble = ""
        self.counts.update(OutcomeKind(each.outcome) for each in outcomes)
        fresh, answer = iter(outcomes), self._answer
        found = [next(fresh) if known is None else known for known in told]

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
            return "the edge takes no messages for such topics"
        if not any(matches(each, topic) for each in self.down.topics):
            return f"the edge's configuration allows no messages to {topic[:80]!r}: see links.<name>.down.topics"
        if len(message.payload) > self._payload_bytes_max:
            return (
                f"a message of {len(message.payload)} bytes; the edge takes {self._payload_bytes_max} (limits.message)"
            )
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
                headers: HeaderPairs = ((NUMBER, message.number), (EXPIRES, min(wall + message.left, (1 << 63) - 1)))
                topic = message.topic.encode()
                route = ingest.routing.route(topic, self._stream)
                flags = 0 if message.qos else int(Flag.PUBLISHED_QOS0)
                gathered.add(route, topic, message.payload, NodeSource(None), flags, headers)
                size += len(topic) + len(message.payload) + RECORD_BYTES
        ingest.turn.store()  # earlier publishes come first
        with ingest.log.together(RESERVE_BYTES + 2 * size):
            if gathered:
                ingest.store(gathered)  # refused as a whole, before anything is appended
            self._memory.note(self._hub, outcomes)  # within the reserved room: it is not refused

    def _tell(self, outcomes: list[MessageOutcome]) -> None:
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


def _nowhere(_told: Outcomes) -> None:
    """Tell no one: no connection is open."""
