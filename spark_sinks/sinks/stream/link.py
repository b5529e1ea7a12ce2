"""The link of one task: a ``replication.sender.Sender`` over blocking sockets, fed from the lanes' batches.

When a node dies, stops or redirects the link, the task tries again, at the next URL or at the redirect's, until nothing
has moved for ``patience_s``.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.lane import ORIGIN, Claim, ProducerLane, Sealed, Superseded
from spark_sinks.source.options import ReadOptions
from weft.protocols.chunk_index import LaneFlag
from weft.protocols.lane import Lane, Origin, OriginKind
from weft.protocols.link import PROTOCOL_VERSION, Hello
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.placement import edge_of_query, place_of, places_of
from weft.replication.attempts import (
    REASON_HEADER,
    Backoff,
    ConnectionEnd,
    RedirectHosts,
    Redirects,
    Target,
    refused_by_hub,
    refused_by_server,
)
from weft.replication.events import (
    Acked,
    ConnectionLost,
    LaneEnded,
    LaneTaken,
    LinkState,
    ReadRequest,
    Refusal,
    SenderEvent,
    Welcomed,
)
from weft.replication.flow_control import LINK_PATH, SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.sender import Sender
from weft.replication.sender_lanes import LinkLaneState
from weft.replication.source import OfferedLane

# A blocking WebSocket to a hub node, over a plain socket.
#
# The connection can be left without a closing handshake. A hub treats the closing of a refused connection as proof
# that a second node claims the lane, and stops the lane's completeness until an operator decides. A task that another
# one has overtaken is not a second node, so it drops the connection without a handshake.

MESSAGE_BYTES_MAX = 4 << 20
"""Longest message from a hub."""
_RECEIVE_BYTES = 64 << 10
_CLOSE_S = 2.0


class ConnectionFailed(Exception):
    """No connection, or the loss of one, with its outcome for the link."""

    def __init__(self, outcome: ConnectionEnd | str) -> None:
        self.outcome = ConnectionEnd(LinkState.WAITING, outcome) if isinstance(outcome, str) else outcome
        super().__init__(self.outcome.reason)


class Connection:
    """One WebSocket. Used by one thread.

    Args:
        url: ``http(s)://host:port``.
        token: sent as a bearer token.
        ca: certificate authorities in PEM; None trusts the system's.
        timeout_s: longest time for connecting, and for sending each piece.
        clock: monotonic seconds.

    Raises:
        ConnectionFailed: nothing answers, or not with a WebSocket.
        SinkError: the hub's certificate is refused: another try would not help.
    """

    def __init__(
        self, url: str, token: str | None, ca: str | None, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.url = url
        self._messages: deque[bytes] = deque()
        self._parts: list[bytes] = []
        scheme, _, rest = url.rstrip("/").partition("://")
        uri = parse_uri(f"{'wss' if scheme == 'https' else 'ws'}://{rest}{LINK_PATH}")
        self._protocol = ClientProtocol(uri, max_size=MESSAGE_BYTES_MAX)
        self._timeout_s, self._clock = timeout_s, clock
        try:
            self._socket = socket.create_connection((uri.host, uri.port), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise ConnectionFailed(f"{url}: {error.strerror or error}") from error
        try:
            if uri.secure:
                context = ssl.create_default_context(cadata=ca)
                self._socket = context.wrap_socket(self._socket, server_hostname=uri.host)
            self._shake_hands(token)
        except ssl.SSLCertVerificationError as error:
            self.abandon()
            raise SinkError(
                f"{url}: the hub's certificate is refused ({error.verify_message}). Name the hub as its certificate "
                "does, and give its authority's certificate as ca_file"
            ) from error
        except OSError as error:
            self.abandon()
            raise ConnectionFailed(f"{url}: {error.strerror or error}") from error
        except BaseException:
            self.abandon()
            raise

    def _shake_hands(self, token: str | None) -> None:
        request = self._protocol.connect()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        self._protocol.send_request(request)
        self._flush()
        deadline = self._clock() + self._timeout_s
        while not self._protocol.handshake_exc and self._protocol.state.name == "CONNECTING":
            if not self._read(deadline - self._clock()):
                raise ConnectionFailed(f"{self.url}: no answer within {self._timeout_s:g} s")
        failure = self._protocol.handshake_exc
        if isinstance(failure, InvalidStatus):
            status, headers = failure.response.status_code, failure.response.headers
            challenge, reason = (
                next(iter(headers.get_all(each)), None) for each in ("WWW-Authenticate", REASON_HEADER)
            )
            raise ConnectionFailed(
                refused_by_server(
                    self.url,
                    status,
                    has_token=token is not None,
                    argument="the sink's `hub`",
                    challenge=challenge,
                    server_reason=reason,
                )
            )
        if failure is not None:
            raise ConnectionFailed(f"{self.url}: {failure}")

    def send(self, message: bytes) -> None:
        """Send one message. Blocks while the hub reads nothing.

        Raises:
            ConnectionFailed: the connection is over.
        """
        try:
            self._protocol.send_binary(message)
            self._flush()
        except (OSError, WebSocketException) as error:
            raise ConnectionFailed(f"{self.url}: {error}") from error

    def receive(self, wait_s: float) -> bytes | None:
        """Return the next message; None when none arrived within ``wait_s``. With 0 it looks only at what is here.

        Raises:
            ConnectionFailed: the connection is over, and every message was returned.
        """
        deadline = self._clock() + wait_s
        while not self._messages:
            if self._protocol.state.name != "OPEN":
                raise ConnectionFailed(f"{self.url}: the hub closed the connection")
            try:
                if not self._read(deadline - self._clock()):
                    return None
                if not self._messages:
                    self._flush_answers()
            except OSError as error:
                raise ConnectionFailed(f"{self.url}: {error}") from error
        return self._messages.popleft()

    def _flush_answers(self) -> None:
        """Send pongs. The answer to a closing waits for ``close``: earlier messages may be the reason to ``abandon``
        instead."""
        if self._protocol.state.name == "OPEN":
            self._flush()

    def close(self) -> None:
        """Close with a handshake, if the peer answers soon."""
        with contextlib.suppress(OSError, WebSocketException, ConnectionFailed):
            if self._protocol.state.name == "OPEN":
                self._protocol.send_close(1000)
            self._flush()
            deadline = self._clock() + _CLOSE_S
            while self._protocol.state.name == "CLOSING" and self._read(deadline - self._clock()):
                self._messages.clear()
        self.abandon()

    def abandon(self) -> None:
        """Drop the connection without a handshake."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _flush(self) -> None:
        self._socket.settimeout(self._timeout_s)
        for data in self._protocol.data_to_send():
            if data:
                self._socket.sendall(data)
            else:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)

    def _read(self, wait_s: float) -> bool:
        """Read the socket's bytes. Return False when none came in time."""
        self._socket.settimeout(max(wait_s, 0.0))
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return False
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Response) and isinstance(self._protocol.handshake_exc, InvalidHandshake):
                return True
            if isinstance(event, Frame):
                self._take(event)
        return True

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            self._parts.append(bytes(frame.data))
            if frame.fin:
                self._messages.append(b"".join(self._parts))
                self._parts = []


# Settings of a producer: the hub, the lanes, and their bounds.

LOG_ID_BYTES = 8


@dataclass(frozen=True)
class ProducerSettings:
    """All settings of a sending task. It is pickled to executors; its text leaves out credentials."""

    urls: tuple[str, ...]
    """Nodes of one hub, ``http(s)://host:port``; tried in turn."""
    stream: str
    query: str
    store: str
    """Root of the hub's store, from which the last record of a lane is read."""
    tenant: str = "default"
    source: str = ""
    """Name of the source stream of the positions; part of the lanes' identity."""
    version: str = ""
    """Version of the query, shown in ``_origin``."""
    topics: tuple[str, ...] = ()
    payload: PayloadKind = PayloadKind.BYTES
    counts: bool = False
    """True when the sink sends marks. Otherwise its lanes do not count for the stream's completeness."""
    spread: int = 1
    """Number of edges over which the lanes are spread, one of ``SPREADS``."""
    patience_s: float = 60.0
    """Longest time without any progress before a task fails."""
    store_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    source_log: ReadOptions | None = None
    """Source stream of the positions, to compare them with; None if it is not given."""
    token: str | None = field(default=None, repr=False)
    ca: str | None = field(default=None, repr=False)
    """Certificate authorities in PEM; None trusts the system's."""

    @property
    def edge(self) -> str:
        """Return the first edge of the query, after which it is called in messages."""
        return self.edge_at(0)

    def edge_at(self, place: int) -> str:
        """Return one of the query's edges."""
        return edge_of_query(self.tenant, self.query, place)

    def edge_of(self, shard: int) -> str:
        """Return the edge that has the lane of a source shard under this spread."""
        return self.edge_at(place_of(shard, self.spread))

    def lane(self, shard: int) -> Lane:
        """Return the first lane of a source shard. A query that was never spread has no other, and releases without
        spreads know no other."""
        return Lane(self.tenant, self.edge, log_id(self.query, self.source, shard), self.stream)

    def spread_lane(self, shard: int) -> Lane:
        """Return the lane of a source shard under this spread, once the first lane is sealed."""
        return self._lane_at(place_of(shard, self.spread), shard)

    def lanes_of_other_spreads(self, shard: int) -> list[Lane]:
        """Return the lanes that a source shard has under all other spreads."""
        own = place_of(shard, self.spread)
        return [self._lane_at(place, shard) for place in places_of(shard) if place != own]

    def _lane_at(self, place: int, shard: int) -> Lane:
        log = log_id(self.query, self.source, shard, place)
        return Lane(self.tenant, self.edge_at(place), log, self.stream)


def log_id(query: str, source: str, shard: int, place: int | None = None) -> int:
    """Return the log id of a query's lane for one source shard, the same on every machine and in every release.

    Args:
        place: number of the edge; None for the first lane of the shard. One log under two edges would pass for a copy.
    """
    named = "\0".join(("weft-producer", query, source, str(shard)))
    if place is not None:
        named += f"\0{place}"
    return int.from_bytes(blake2b(named.encode(), digest_size=LOG_ID_BYTES).digest(), "big")


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
            Sealed: the first of the lanes that is sealed; the link continues without it.
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
                raise SinkError(
                    f"the hub has accepted nothing from {self.edge} for {self._settings.patience_s:g} s{why}"
                )

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
        """Offer the lanes that this connection lacks, once the WELCOME has given the hub's time."""
        if not self._sender.connected or self._sender.welcome is None:
            return
        settings = self._settings
        for number, lane in enumerate(self._lanes):
            if lane.state is LinkLaneState.CLOSED:
                epoch = lane.offer(self._sender.welcome.clock)  # the hub's own clock orders those of all machines
                offered = OfferedLane(
                    number,
                    settings.stream,
                    settings.topics,
                    settings.payload,
                    lane.identity,
                    self._flags(lane),
                    self._origin,
                    epoch=epoch,
                    continues_hub=True,
                )
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
