"""Context of connections of every protocol: the log, subscriptions, turns, writes and bounds."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from weft.bounds import Bound, FanOutCap, Quota, Refusals, RoundRobin, TurnBudget
from weft.config.limits import EdgeLimits
from weft.config.listeners import ListenerProtocol, has_listener
from weft.config.log_lines import DisconnectLog
from weft.config.models import EdgeConfig
from weft.config.streams import State
from weft.edge_node.check.streams import intake_patterns
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Ingest, TickBatch
from weft.edge_node.ingest.routing import Router, Routing, Unrouted
from weft.edge_node.part import Part
from weft.edge_node.servers.clients.output import Writes
from weft.edge_node.servers.listeners.settings import AcceptedConnection, Authenticator
from weft.edge_node.sessions.backlog import Backlog
from weft.edge_node.sessions.sessions import make_delivery
from weft.edge_node.streams import SESSION_TOPICS_STREAM
from weft.edge_node.subscriptions.message import Outbox
from weft.edge_node.subscriptions.subscriptions import FanOut, Subscriptions
from weft.edge_node.timing import TimerWheel
from weft.protocols.mqtt.publish_run import SCAN_PACKET_BYTES_MIN
from weft.storage.segment_log import SegmentLog
from weft.storage.segment_log.settings import RECORD_BYTES_MAX

if TYPE_CHECKING:
    from weft.edge_node.queues.queues import Queues


# Interface of a connection for the node.


class Connected(Protocol):
    """A connection of any protocol."""

    def shut_down(self) -> None:
        """Close because the node stops."""


# Turns of clients: bounds on the loop's time for the data of one client, and of all clients.

TURN_COST_MAX = 64
TURN_S_MAX = 0.002
"""Filters and pings of one client, and seconds for its packets, before others have their turn. A single read has room
for 131,072 PINGREQs, half a second of the loop."""
READS_S_MAX = 0.01
"""Seconds for which one iteration of the loop handles reads; clients whose reads come later wait for their turn.
Otherwise a thousand connections of one user would have a thousand turns, two seconds of the loop."""
NOT_BEGUN = float("-inf")
"""Value of that end before an iteration's first read."""


class ReadPacing:
    """Time of clients before others have their turn. A client without time left waits in the ``round_robin``.

    Args:
        loop: supplies the time, and calls back at the end of each iteration.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.reads_until = NOT_BEGUN
        """Time until which reads of this iteration of the loop are handled at once."""
        self.budget = TurnBudget(TURN_COST_MAX, TURN_S_MAX, loop.time)
        """Budget of the client whose turn it is."""

    def admits(self, now: float) -> bool:
        """Return whether a read may be handled at once. It need not be called before ``reads_until``."""
        if self.reads_until == NOT_BEGUN:
            self.reads_until = now + READS_S_MAX
            self._loop.call_soon(self._end_of_iteration)
            return True
        return now < self.reads_until

    def _end_of_iteration(self) -> None:
        self.reads_until = NOT_BEGUN


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings of the node's input, and bounds on clients of all protocols."""

    patterns: Mapping[str, Sequence[str]]
    """Stream name -> its patterns, in the order of the configuration."""
    limits: EdgeLimits = field(default_factory=EdgeLimits)
    positions_interval_s: float = State().positions_interval_s
    """Interval at which the read positions of connected clients are saved. Messages acknowledged since the last save
    may be redelivered after a crash. Wills that found no room are retried at the same interval."""

    @classmethod
    def of(cls, config: EdgeConfig) -> ClientSettings:
        """Return the bounds that a configuration sets."""
        return cls(
            patterns=intake_patterns(config),
            limits=config.limits,
            positions_interval_s=config.state.positions_interval_s,
        )

    def __post_init__(self) -> None:
        longest = self.limits.message_bytes
        if not SCAN_PACKET_BYTES_MIN <= longest <= RECORD_BYTES_MAX:
            raise ValueError(f"limits.message must be {SCAN_PACKET_BYTES_MIN} to {RECORD_BYTES_MAX}, got {longest}")


class ProtocolContext:
    """The parts of the node that a protocol needs. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        segment_log: SegmentLog,
        backlog: Backlog,
        batch: TickBatch,
        unrouted: Unrouted,
        settings: ClientSettings,
        refusals: Refusals,
        counters: Counters,
        wall_clock: Callable[[], int],
    ) -> None:
        """Join the parts.

        Args:
            turn: turn whose end is the end of the log's turns.
            refusals: counts refusals because of shares.
            wall_clock: nanoseconds since 1970.
        """
        limits = settings.limits
        self._loop = asyncio.get_running_loop()
        self.log = segment_log
        self.settings = settings
        self.counters = counters
        self.wall_clock = wall_clock
        self.clock = self._loop.time
        self.disconnect_log = DisconnectLog(self.clock)
        """Log lines about clients that were closed."""
        self.pacing = ReadPacing(self._loop)
        self.refusals = refusals
        what = "bytes of packets that have not come whole"
        self.unfinished = Bound(
            Quota.of("limits.unfinished", limits.unfinished_bytes, limits.user_share, what), refusals
        )
        """Bytes of clients that the node holds before it can handle them."""
        self.wheel = TimerWheel(self._loop)
        self.subscriptions, self.outbox = Subscriptions(), (outbox := Outbox(fan_out_cap := FanOutCap()))
        self.round_robin = RoundRobin(outbox.flush, round_s=READS_S_MAX)
        """Queues of clients whose turn is over. A round of them has as much time as the reads before it: with less,
        thousands of clients that send all the time overtake some that wait, for seconds."""
        self.writes = Writes(fan_out_cap, counters, limits.send_queue_bytes)
        self.fan_out = FanOut(self.subscriptions, outbox)
        self.routing = Routing(
            Router(settings.patterns, segment_log.stream),
            self.subscriptions,
            unrouted,
            session_topics=segment_log.stream(SESSION_TOPICS_STREAM),
            topic_levels_max=limits.topic_levels,
        )
        self.ingest = Ingest(
            segment_log, self.routing, self.fan_out, wall_clock, counters, batch, pending_bytes_max=limits.pending_bytes
        )
        self.delivery = make_delivery(
            segment_log, self.ingest, self.subscriptions, backlog, outbox, limits, refusals, counters, wall_clock
        )
        """Parts that deliver messages to clients, slow ones included."""
        self.connection_bound = self.delivery.shares.connections
        """Connections of each user, by every protocol (``ConnectionSlot``)."""
        self._connections: set[Connected] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def shut_down(self) -> None:
        """Send the answers that are due, and close every connection: the node stops."""
        self.ingest.batch.answer_all()
        for connection in list(self._connections):
            connection.shut_down()

    def close(self) -> None:
        """End timers and tasks."""
        self.wheel.close()
        for task in self._tasks:
            task.cancel()

    def reroute(self, patterns: Mapping[str, Sequence[str]]) -> Mapping[int, int]:
        """Route publishes by other patterns from now on: stream -> its filters.

        Returns:
            Stream -> its end, for streams that clients publish to from now on.

        Raises:
            InvalidTopic: a pattern is not valid; nothing has changed.
        """
        added = self.routing.reroute(Router(patterns, self.log.stream))
        return {stream: self.log.next_seq(stream) for stream in added}

    # --- for connections

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call back after the current callback of the loop."""
        return self._loop.call_soon(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after some time, unless the context is closed by then."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            callback()

        self.run(wait())

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a longer task; it is cancelled when the context closes, and its errors are logged."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "Work for a client failed", "exception": error})

    def arrived(self, connection: Connected) -> None:
        """Register a new connection."""
        self._connections.add(connection)

    def left(self, connection: Connected) -> None:
        """Forget a connection that has ended."""
        self._connections.discard(connection)


# A protocol as a part of the node, and the list of protocols.


@dataclass(frozen=True, slots=True)
class Foundation:
    """Parts of the node from which a protocol is created."""

    config: EdgeConfig
    software: str
    """Name and version of the node, for its clients."""
    context: ProtocolContext
    queues: Queues | None
    """None where no listener serves them, and none did before."""


class ProtocolPart(Part):
    """Base of the protocols. Its ``__init__`` restores the state of the last run before clients connect, so it may
    block on the disk.

    Each is imported where a listener uses it, and loads the modules that only clients need with the first client.
    """

    prefixes: tuple[bytes, ...] = ()
    """First bytes of its clients, where another protocol has the same listeners; all of one length."""
    greeting = b""
    """Answer to clients of an unknown protocol at such listeners."""

    def connect(self, authenticator: Authenticator, accepted: AcceptedConnection) -> asyncio.Protocol:
        """Return the protocol object of a connection."""
        raise NotImplementedError


PROTOCOLS: dict[ListenerProtocol, tuple[str, ...]] = {
    "http": ("weft.edge_node.servers.http.part",),
    "amqp": ("weft.edge_node.servers.amqp1.part", "weft.edge_node.servers.amqp.part"),
}
"""Protocol of a listener -> modules, each with a ``make``. MQTT is not among them: its sessions, retained messages and
wills exist with any listeners."""


def protocols(foundation: Foundation) -> Iterator[tuple[ListenerProtocol, ProtocolPart]]:
    """Yield the protocols of a node's listeners, each with its name in the configuration."""
    for name, modules in PROTOCOLS.items():
        if has_listener(name, foundation.config.listeners):
            for module in modules:
                yield name, importlib.import_module(module).make(foundation)
