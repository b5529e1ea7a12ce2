"""The link of one task: a ``replication.Sender`` over blocking sockets, fed from the lanes' batches.

When a node dies, stops or redirects the link, the task tries again, at the next URL or at the redirect's, until nothing
has moved for ``patience_s``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.connection import Connection, ConnectionFailed
from spark_sinks.sinks.stream.encoding import ORIGIN
from spark_sinks.sinks.stream.lane import Claim, ProducerLane, Sealed, Superseded
from spark_sinks.sinks.stream.settings import ProducerSettings
from weft.protocols.chunk_index.footer import LaneFlag
from weft.protocols.lane import Lane
from weft.protocols.link import PROTOCOL_VERSION, Hello
from weft.protocols.origin import Origin, OriginKind
from weft.replication.attempts.backoff import Backoff
from weft.replication.attempts.outcome import refused_by_hub
from weft.replication.attempts.redirect_hosts import RedirectHosts
from weft.replication.attempts.redirects import Redirects, Target
from weft.replication.events import (
    Acked,
    ConnectionLost,
    LaneEnded,
    LaneTaken,
    ReadRequest,
    Refusal,
    SenderEvent,
    Welcomed,
)
from weft.replication.liveness import SECOND
from weft.replication.sender import Sender
from weft.replication.sender_lane import LinkLaneState
from weft.replication.settings import SenderSettings
from weft.replication.source import OfferedLane
from weft.replication.status import LinkState

WINDOW_BYTES = 8 << 20
"""Maximum bytes without an acknowledgement, even if a hub grants more: it bounds a task's memory."""
SOFTWARE = "weft spark sink"
EPOCH_TRIES_MAX = 5
"""Maximum offers of one lane with an epoch that the hub rejects as too low."""
CONNECT_S = 10.0
_RETRY_S = (0.05, 2.0)
_WAIT_S = 1.0
# Batches are large and made to be stored as they are, so none is merged; a task has no time to find its window.
_SENDER = SenderSettings(
    window_bytes=WINDOW_BYTES,
    window_start_bytes=WINDOW_BYTES,
    merge_bytes_max=0,
    welcome_timeout=int(CONNECT_S * SECOND),
)


class Link:
    """A link of one task attempt; it may outlive several connections.

    Args:
        held_epoch: looks up a lane's epoch in the hub's log; called when the hub refuses an epoch.
        edge: the edge of the lanes; by default the first one of the query.
        clock: monotonic seconds.
        wall_clock: nanoseconds since 1970.
        connect: opens connections; as ``Connection``.
        sleep: waits between two of them.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        held_epoch: Callable[[Lane], int],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], int] = time.time_ns,
        *,
        edge: str = "",
        connect: Callable[[str, str | None, str | None, float, Callable[[], float]], Connection] = Connection,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._connect_to, self._sleep = connect, sleep
        self._settings, self.edge = settings, edge or settings.edge
        self._held_epoch = held_epoch
        self._clock, self._wall_clock = clock, wall_clock
        self._lanes: list[ProducerLane] = []
        """Lanes of the task; the place of each is its number at the sender."""
        self._connection: Connection | None = None
        self._sender = self._new_sender(stay=False)
        chance = random.Random()
        self._backoff = Backoff(settings.urls, *_RETRY_S, chance)
        self._redirects = Redirects(chance, RedirectHosts(settings.urls, None), "of a stream sink")
        self._target: Target | None = None
        self._attempts = 0
        self._is_taken = False
        """True when the hub has opened a lane on this connection."""
        self._refused_epochs = 0
        self._moved = clock()
        self._why = ""
        self.batch_bytes_max = 0
        self.cluster_id = ""

    # -- called by the task

    def greet(self) -> str:
        """Connect, and return the hub's cluster id from its WELCOME. Nothing is written. Raises as ``open``."""
        self._until(lambda: self._sender.connected)
        return self.cluster_id

    def open(self, *lanes: ProducerLane) -> None:
        """Open lanes and wait for the hub's answer about each. ``epoch`` of a lane is its highest known one.

        Raises:
            SinkError: the hub refuses one, or does not answer for ``patience_s``.
            Sealed: the first of the lanes that is sealed; the link goes on without it.
        """
        self._lanes += [lane for lane in lanes if lane not in self._lanes]
        self._refused_epochs = 0
        self._until(lambda: all(lane.state is LinkLaneState.OPEN for lane in lanes))

    def send(self, lane: ProducerLane) -> None:
        """Send the batches added to a lane; returns when all are within the window.

        Raises:
            SinkError: the hub accepts nothing for ``patience_s``, or refuses.
            Superseded: another task has the lane.
        """
        number = self._lanes.index(lane)
        self._sender.offer(number, lane.snapshot)
        self._until(lambda: self._sender.has_sent(number))

    def wait_until_durable(self) -> None:
        """Wait until every batch of every lane is in the hub's log. Raises as ``send``."""
        self._until(lambda: all(lane.is_durable for lane in self._lanes))

    def mark(self, moment: int, lanes: Sequence[ProducerLane]) -> None:
        """Open lanes and send their marks: each lane has all its records up to ``moment`` (ns since 1970) below its
        end.

        After a lost connection, the next one carries the marks again. Raises as ``open``.
        """
        for lane in lanes:
            lane.complete_up_to = moment
        self.open(*lanes)

    def close(self) -> None:
        """Close the connection. Batches that are not durable yet may be lost."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def abandon(self) -> None:
        """Drop the connection without a handshake, for a task that another one has overtaken."""
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None

    # -- connections

    def _until(self, is_reached: Callable[[], bool]) -> None:
        """Work until a condition holds."""
        since = self._clock()  # the task may have waited minutes for Spark, which must not count against the hub
        was_away = True
        while True:
            try:
                connection = self._connection or self._connect()
                if was_away:
                    self._come_back(connection)
                    was_away = False
                self._converse(connection)
                if is_reached():
                    self._sender.liveness.pause()
                    return
                self._listen(connection, self._wait_s())
            except ConnectionFailed as error:
                self._lost(error)
            if self._clock() - max(since, self._moved) > self._settings.patience_s:
                self.abandon()
                why = f": {self._why}" if self._why else "; look at the hub's store"
                raise SinkError(f"the hub has taken nothing of {self.edge} for {self._settings.patience_s:g} s{why}")

    def _now(self) -> int:
        return int(self._clock() * SECOND)

    def _new_sender(self, *, stay: bool) -> Sender:
        settings, log_id = self._settings, self._settings.lane(0).log_id
        hello = Hello(
            PROTOCOL_VERSION, settings.tenant, self.edge, log_id, log_id, self._wall_clock(), SOFTWARE, stay=stay
        )
        # The lanes bring their own epochs, and judge themselves what the hub has of them.
        return Sender(hello, 0, _SENDER, self._wall_clock, self._now(), high_watermark=lambda _hub, _lane: 0)

    def _connect(self) -> Connection:
        settings = self._settings
        if self._target is None:
            at = self._attempts % len(settings.urls)
            self._attempts += 1
            self._target = Target(self._redirects.best(settings.urls[at:] + settings.urls[:at], self._clock()))
        self._connection = self._connect_to(self._target.url, settings.token, settings.ca, CONNECT_S, self._clock)
        self._sender, self._is_taken = self._new_sender(stay=self._target.stay_s is not None), False
        return self._connection

    def _lost(self, error: ConnectionFailed) -> None:
        """Choose the next node, and wait if it is not one that a hub named."""
        outcome = error.outcome
        self.abandon()
        if outcome.state is LinkState.REFUSED:
            by_hub = f"the hub refuses {self.edge}: " if outcome.code else ""
            raise SinkError(by_hub + outcome.reason)
        try:
            if outcome.state is LinkState.CONFLICT:
                self._overtaken()
        finally:
            for lane in self._lanes:
                lane.state = LinkLaneState.CLOSED
        self._why = outcome.reason
        assert self._target is not None
        self._target = self._redirects.after(self._target, outcome, taken=self._is_taken, now=self._clock())
        if self._target is None:
            self._sleep(self._backoff.next_wait_s())

    def _overtaken(self) -> None:
        """Handle the answer that an epoch is not the highest: a lane that was open now belongs to another task."""
        opening = any(lane.state is LinkLaneState.OPENING for lane in self._lanes)
        self._refused_epochs += 1
        if not opening or self._refused_epochs > EPOCH_TRIES_MAX:
            raise Superseded(
                f"another task sends for {self.edge} now, so this one stops; nothing is lost or doubled. Two "
                "queries must not have one name"
            )
        # The refusal does not say which lane it is about.
        for lane in list(self._lanes):
            try:
                lane.refused(self._held_epoch(lane.identity))
            except Sealed:
                self._lanes.remove(lane)
                raise

    # -- the conversation

    def _come_back(self, connection: Connection) -> None:
        """Take what the hub said while the task did other work: its silence meanwhile means nothing."""
        while self._listen(connection, 0.0):
            pass
        now = self._now()
        self._sender.liveness.resume(now)
        self._sender.patience.answered(now)

    def _wait_s(self) -> float:
        deadline = self._sender.deadline()
        return _WAIT_S if deadline is None else min(_WAIT_S, max(0.0, (deadline - self._now()) / SECOND))

    def _listen(self, connection: Connection, wait_s: float) -> bool:
        """Handle one message; return False when none arrives in time."""
        message = connection.receive(wait_s)
        if message is not None:
            self._sender.receive_data(message, self._now())
        return message is not None

    def _converse(self, connection: Connection) -> None:
        """Handle what the hub said, and send what the window allows."""
        sender = self._sender
        sender.handle_timeout(self._now())
        while True:
            request = None
            for event in sender.events():
                if isinstance(event, ReadRequest):
                    request = event
                else:
                    self._handle(event)
            if request is not None:
                sender.feed(request.lane, self._lanes[request.lane].read(request.seq, request.bytes_max))
            self._open_lanes()
            data = sender.data_to_send()
            if data:
                connection.send(data)
            elif request is None:
                return

    def _open_lanes(self) -> None:
        """Offer the lanes that this connection lacks, once the WELCOME has told the hub's time."""
        if not self._sender.connected or self._sender.welcome is None:
            return
        settings = self._settings
        for number, lane in enumerate(self._lanes):
            if lane.state is LinkLaneState.CLOSED:
                epoch = lane.offer(self._sender.welcome.clock)  # the hub's own clock orders those of all machines
                offered = OfferedLane(
                    number, settings.stream, settings.topics, settings.payload, lane.identity,
                    self._flags(lane), self._origin, epoch=epoch, continues_hub=True,
                )  # fmt: skip
                self._sender.open_lane(offered, lane.snapshot)

    def _flags(self, lane: ProducerLane) -> LaneFlag:
        if lane.claim is Claim.RELAY:
            return LaneFlag.RELAY
        return LaneFlag(0) if self._settings.counts else LaneFlag.PARTIAL

    def _origin(self, number: int) -> Origin | None:
        query = Origin(ORIGIN, OriginKind.FUNCTION, self._settings.query, self._settings.version, b"")
        return query if number == ORIGIN else None

    def _handle(self, event: SenderEvent) -> None:
        match event:
            case Welcomed():
                self._welcomed()
            case LaneTaken(number):
                lane, self._is_taken = self._lanes[number], True
                lane.opened(self._sender.known(number)[0])
                self._sender.offer(number, lane.snapshot)
                self._progress()
            case Acked(number, ranges, by_opening=False):
                self._lanes[number].acknowledged(ranges)
                self._progress()
            case LaneEnded(_, code, message, advice) | Refusal(code, message, advice):
                url = event.url if isinstance(event, Refusal) else ""
                raise ConnectionFailed(refused_by_hub(code, message, advice, url))
            case ConnectionLost(_, reason):
                raise ConnectionFailed(reason)

    def _welcomed(self) -> None:
        sender = self._sender
        assert sender.welcome is not None
        if self.cluster_id not in ("", sender.cluster_id):
            self.abandon()
            raise SinkError(
                f"the URLs lead to two hubs, {self.cluster_id} and {sender.cluster_id}; name the nodes of one"
            )
        self.cluster_id, self.batch_bytes_max = sender.cluster_id, sender.welcome.batch_bytes_max

    def _progress(self) -> None:
        self._moved, self._why = self._clock(), ""
        self._backoff.reset()
