"""The conversation of one task with a hub: lanes opened, batches sent, acknowledgements awaited.

When a node dies, stops or redirects the link, the task tries again, at the next URL or at the redirect's, until nothing
has moved for ``patience_s``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.connection import Connection, ConnectionFailed
from spark_sinks.sinks.stream.encoding import ORIGIN
from spark_sinks.sinks.stream.lane import Batch, LinkLaneState, ProducerLane, Superseded
from spark_sinks.sinks.stream.settings import ProducerSettings
from weft.protocols.chunk_index.footer import LaneFlag
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane
from weft.protocols.link import (
    PROTOCOL_VERSION,
    Ack,
    Data,
    Frame,
    Hello,
    LaneClosed,
    LaneOpen,
    LaneOpened,
    Marks,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    Welcome,
)
from weft.protocols.link.stream import FrameDecoder, FrameEncoder
from weft.protocols.origin import Origin, OriginKind
from weft.protocols.ranges import RangeSet

WINDOW_BYTES = 8 << 20
"""Maximum bytes without an acknowledgement, even if a hub grants more: it bounds a task's memory."""
SOFTWARE = "weft spark sink"
HOPS_MAX = 3
"""Maximum redirects in a row: more mean that two nodes redirect to each other."""
EPOCH_TRIES_MAX = 5
"""Maximum offers of one lane with an epoch that the hub rejects as too low."""
CONNECT_S = 10.0
_RETRY_S = (0.05, 2.0)
_WAIT_S = 1.0
_HOPELESS = {RefuseCode.VERSION, RefuseCode.UNAUTHORISED, RefuseCode.BAD_HELLO, RefuseCode.PROTOCOL_ERROR}


class _Target(NamedTuple):
    """A node to connect to that is not one of the settings."""

    url: str
    back: str | None = None
    """The node that redirected to this one."""
    stays: bool = False
    """True when the node must serve the link itself, without a redirect."""


class _Left(Exception):
    """The end of a connection that is followed by another try, at once if the hub named a node."""

    def __init__(self, reason: str, target: _Target | None = None) -> None:
        super().__init__(reason)
        self.target = target


class Link:
    """A link of one task attempt; it may outlive several connections.

    Args:
        held_epoch: looks up a lane's epoch in the hub's log; called when the hub's clock is behind that epoch.
        clock: monotonic seconds.
        wall_clock: nanoseconds since 1970.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        held_epoch: Callable[[Lane], int],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._settings = settings
        self._held_epoch = held_epoch
        self._clock, self._wall_clock = clock, wall_clock
        self._lanes: dict[Lane, ProducerLane] = {}
        self._numbers: dict[int, ProducerLane] = {}
        """Lanes by number on this connection."""
        self._connection: Connection | None = None
        self._attempts = 0
        self._failures = 0
        self._refused_epochs = 0
        self._target: _Target | None = None
        self._hops = 0
        self._moved = clock()
        self._why = ""
        self.window_bytes = 0
        self.batch_bytes_max = 0
        self.cluster_id = ""
        self._hub_clock = 0
        self._mark: tuple[int, Sequence[ProducerLane]] | None = None
        """Moment and lanes of a mark."""
        self._marked = False
        """True after this connection has carried the mark."""

    # -- called by the task

    def greet(self) -> str:
        """Connect, and return the hub's cluster id from its WELCOME. Nothing is written. Raises as ``open``."""
        self._until(lambda: True)
        return self.cluster_id

    def open(self, *lanes: ProducerLane) -> None:
        """Open lanes and wait for the hub's answer about each. ``epoch`` of a lane is its highest known one.

        Raises:
            SinkError: the hub refuses one, or does not answer for ``patience_s``.
        """
        self._lanes |= {lane.identity: lane for lane in lanes}
        self._until(lambda: all(lane.state is LinkLaneState.OPEN for lane in lanes))

    def send(self, lane: ProducerLane) -> None:
        """Send the batches added to a lane; returns when all are within the window.

        Raises:
            SinkError: the hub accepts nothing for ``patience_s``, or refuses.
            Superseded: another task has the lane.
        """
        self._until(lambda: lane.state is LinkLaneState.OPEN and lane.next_to_send is None)

    def wait_until_durable(self) -> None:
        """Wait until every batch of every lane is in the hub's log. Raises as ``send``."""
        self._until(lambda: all(lane.is_durable for lane in self._lanes.values()))

    def mark(self, moment: int, lanes: Sequence[ProducerLane]) -> None:
        """Open lanes and send their marks: each lane has all its records up to ``moment`` (ns since 1970) below its
        end.

        After a lost connection, the next one carries the marks again. Raises as ``open``.
        """
        self._mark = moment, lanes
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
        while True:
            try:
                if self._connection is None:
                    self._connect()
                self._open_lanes()
                self._pump()
                self._tell_marks()
                if is_reached():
                    return
                self._listen(_WAIT_S)
            except (ConnectionFailed, _Left) as error:
                self._lost(error)
            except CodecError as error:
                self._lost(ConnectionFailed(f"the hub broke the link protocol: {error}"))
            if self._clock() - max(since, self._moved) > self._settings.patience_s:
                self.abandon()
                why = f": {self._why}" if self._why else "; look at the hub's store"
                raise SinkError(
                    f"the hub has taken nothing of {self._settings.edge} for {self._settings.patience_s:g} s{why}"
                )

    def _lost(self, error: Exception) -> None:
        self.abandon()
        for lane in self._lanes.values():
            lane.lost()
        self._numbers.clear()
        self._marked = False
        self._why = str(error)
        tried, self._target = self._target, error.target if isinstance(error, _Left) else None
        if self._target is None and tried is not None and tried.back is not None:
            # The target of the redirect does not answer: the node that redirected must serve the link.
            self._target = _Target(tried.back, stays=True)
        if self._target is not None:
            return
        self._hops = 0
        shortest, longest = _RETRY_S
        self._failures += 1
        time.sleep(min(longest, shortest * 2**self._failures) * random.uniform(0.5, 1))

    def _connect(self) -> None:
        settings = self._settings
        target = self._target
        if target is None:
            target = _Target(settings.urls[self._attempts % len(settings.urls)])
            self._attempts += 1
        self._connection = Connection(target.url, settings.token, settings.ca, CONNECT_S, self._clock)
        self._encoder, self._decoder = FrameEncoder(), FrameDecoder()
        self.window_bytes = 0
        self._say(
            Hello(
                PROTOCOL_VERSION, settings.tenant, settings.edge, settings.lane(0).log_id, settings.lane(0).log_id,
                self._wall_clock(), SOFTWARE, stay=target.stays,
            )
        )  # fmt: skip
        deadline = self._clock() + CONNECT_S
        while not self.window_bytes:
            self._listen(_WAIT_S)
            if not self.window_bytes and self._clock() > deadline:
                raise ConnectionFailed(f"{target.url}: the hub did not answer HELLO in time")

    def _open_lanes(self) -> None:
        settings = self._settings
        for identity, lane in self._lanes.items():
            if lane.state is not LinkLaneState.CLOSED:
                continue
            # The hub's own clock orders the attempts of all machines. A known epoch takes precedence if that clock was
            # set back, or another node's is behind.
            lane.opening(max(self._hub_clock, lane.epoch + 1))
            number = max(self._numbers, default=0) + 1
            self._numbers[number] = lane
            flags = 0 if settings.counts else int(LaneFlag.PARTIAL)
            origin = Origin(ORIGIN, OriginKind.FUNCTION, settings.query, settings.version, b"")
            ranges = [(0, lane.acked)] if lane.acked else []
            self._say(
                LaneOpen(
                    number, *identity, lane.epoch, ranges, list(settings.topics), int(settings.payload),
                    flags, [origin],
                )
            )  # fmt: skip

    def _pump(self) -> None:
        """Send as many batches as the window allows."""
        for number, lane in self._numbers.items():
            while (batch := lane.next_to_send) is not None and self._has_room(batch):
                self._say(Data(number, batch.data))
                lane.note_sent()

    def _tell_marks(self) -> None:
        """Send the marks that this connection has not carried, when its lanes are open."""
        if self._mark is None or self._marked or any(lane.state is not LinkLaneState.OPEN for lane in self._mark[1]):
            return
        moment, lanes = self._mark
        self._say(Marks(moment, [(number, lane.end) for number, lane in self._numbers.items() if lane in lanes]))
        self._marked = True

    def _has_room(self, batch: Batch) -> bool:
        """Return whether a batch may be sent: within the window, or alone."""
        in_flight = sum(lane.in_flight for lane in self._lanes.values())
        return in_flight == 0 or in_flight + batch.cost <= self.window_bytes

    def _say(self, frame: Frame) -> None:
        assert self._connection is not None
        self._connection.send(self._encoder.encode([frame]))

    # -- messages from the hub

    def _listen(self, wait_s: float) -> None:
        """Handle one message, if one arrives in time."""
        assert self._connection is not None
        message = self._connection.receive(wait_s)
        if message is not None:
            for frame in self._decoder.decode(message):
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        match frame:
            case Welcome():
                if self.cluster_id not in ("", frame.cluster_id):
                    self.abandon()
                    raise SinkError(
                        f"the URLs lead to two hubs, {self.cluster_id} and {frame.cluster_id}; name the nodes of one"
                    )
                self.window_bytes = min(frame.window_bytes, WINDOW_BYTES)
                self.batch_bytes_max, self.cluster_id = frame.batch_bytes_max, frame.cluster_id
                self._hub_clock = frame.clock
                self._target, self._hops = None, 0
            case LaneOpened() if frame.lane in self._numbers:
                self._numbers[frame.lane].opened(RangeSet.from_wire(frame.ranges))
                self._progress()
            case Ack() if frame.lane in self._numbers:
                self._numbers[frame.lane].acknowledged(RangeSet.from_wire(frame.ranges))
                self._progress()
            case Ping():
                self._say(Pong(frame.sent, self._wall_clock()))
            case LaneClosed() if frame.lane in self._numbers:
                self._refused(frame.code, frame.message, frame.advice)
            case Refuse():
                self._refused(frame.code, frame.message, frame.advice, frame.url)

    def _progress(self) -> None:
        self._moved, self._why, self._failures = self._clock(), "", 0

    def _refused(self, code: int, message: str, advice: str, url: str = "") -> None:
        if code == RefuseCode.REDIRECT:
            self._redirected(message, url)
        if code == RefuseCode.IDENTITY_CONFLICT:
            self._overtaken()
        if code in _HOPELESS:
            self.abandon()
            raise SinkError(f"the hub refuses {self._settings.edge}: {message}; {advice}")
        raise _Left(f"{message}; {advice}")

    def _redirected(self, message: str, url: str) -> None:
        assert self._connection is not None
        here, was_asked = self._connection.url, self._target is not None and self._target.stays
        self._hops += 1
        if was_asked:
            raise _Left(message)
        may_follow = self._hops <= HOPS_MAX and _may_follow(here, url)
        raise _Left(message, _Target(url, here) if may_follow else _Target(here, stays=True))

    def _overtaken(self) -> None:
        """Handle the answer that an epoch is not the highest: a lane that was open now belongs to another task."""
        self.abandon()
        opening = [lane for lane in self._lanes.values() if lane.state is LinkLaneState.OPENING]
        self._refused_epochs += 1
        if (
            not opening
            or not all(lane.is_durable for lane in self._lanes.values() if lane not in opening)
            or (self._refused_epochs > EPOCH_TRIES_MAX)
        ):
            raise Superseded(
                f"another task sends for {self._settings.edge} now, so this one stops; nothing is lost or doubled. Two "
                "queries must not have one name"
            )
        for lane in opening:
            lane.epoch = max(lane.epoch, self._held_epoch(lane.identity))
        raise _Left("an earlier connection had a higher epoch")


def _may_follow(from_url: str, url: str) -> bool:
    """Return whether a redirect may be followed: never from TLS to plain HTTP, which would expose the token."""
    try:
        here, there = urlsplit(from_url), urlsplit(url)
        named = bool(there.hostname) and there.port != 0
    except ValueError:
        return False
    return named and there.scheme in ("http", "https") and (here.scheme, there.scheme) != ("https", "http")
