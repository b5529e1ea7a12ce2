"""The functions of a node, joined to its log, its links and its local subscribers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping

from weft.bounds import Rounds
from weft.config.models import EdgeConfig
from weft.edge_node.check import carried_streams, streams_of
from weft.edge_node.functions.chain import Alert
from weft.edge_node.functions.definitions import Definition, definitions
from weft.edge_node.functions.runtime.functions import Functions
from weft.edge_node.functions.runtime.replays import ReplayProgress, ReplayRefused
from weft.edge_node.ingest.record import NodeRecord
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.sessions.store.retained import RetainedMessages
from weft.edge_node.streams import OWN_PREFIX, RAW_PREFIX, UNROUTED_STREAM
from weft.edge_node.subscriptions.message import Message
from weft.protocols.batch import Flag
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.mqtt.packets import Publish
from weft.protocols.ranges import RangeSet
from weft.replication.release import Party, ReleaseLedger
from weft.storage.segment_log import StreamPolicy

_QOS_FLAGS = (Flag.PUBLISHED_QOS0, Flag(0), Flag.PUBLISHED_QOS2)


Policies = Callable[[EdgeConfig], dict[str, StreamPolicy]]


class NodeFunctions:
    """The functions of a node. Event loop's thread only. Make it before links start."""

    def __init__(
        self,
        config: EdgeConfig,
        context: ProtocolContext,
        alerts: Alerts,
        ledger: ReleaseLedger,
        policies: Policies,
    ) -> None:
        """Create the functions of a configuration. Blocks while it reads their states.

        Args:
            ledger: ledger of the records that may be deleted; functions become parties to it.
            policies: returns the retention of each stream of a configuration.

        Raises:
            OSError, LogFailed, UnsupportedVersion: as ``Functions``.
        """
        self._log = context.log
        self._ledger = ledger
        self._policies = policies
        self._config = config
        found = list(definitions(config))
        self._parties: set[tuple[str, str]] = set()
        """(derived stream, input) of records that wait for a function."""
        self._join(config, found)
        self._functions = Functions(
            found,
            context.log,
            alerts=alerts,
            released=self._released,
            turn=_turn(context.rounds),
            wall_clock=context.wall_clock,
            clock=context.clock,
        )
        self._keep_replays(self._functions.replayed())
        self.start, self.close, self.counters = self._functions.start, self._functions.close, self._functions.counters

    def adopt(self, config: EdgeConfig) -> None:
        """Run the functions of another configuration from now on.

        Raises:
            ValueError: as ``Functions.change``; nothing has changed.
        """
        found = list(definitions(config))
        self._functions.change(found)
        self._join(config, found)
        self._config = config

    async def replay(self, stream: str, into: str) -> ReplayProgress:
        """Compute a derived stream again into another one, which is retained as long as the first and stays on the
        node; without ``stream``, report the progress.

        Raises:
            ReplayRefused: the replay is not possible; the message has the reason.
        """
        if not stream:
            return self._functions.replay_progress(into)
        if not valid_name(into):
            raise ReplayRefused(f"{into!r} cannot name a stream: {NAME_RULE}")
        if into.startswith(OWN_PREFIX):
            raise ReplayRefused(
                f"names that begin with {OWN_PREFIX} are for streams of the node itself. Choose another"
            )
        if into == UNROUTED_STREAM or into in streams_of(self._config):
            raise ReplayRefused(f"{into} is a stream of the node already. Choose another name for the replay")
        progress = await self._functions.replay(stream, into)
        self._keep_replays({into: stream})
        return progress

    def _keep_replays(self, replays: Mapping[str, str]) -> None:
        policies = self._policies(self._config)
        for into, replayed in replays.items():
            policy = policies.get(replayed, StreamPolicy("drop_oldest"))
            self._log.set_policy(self._log.stream(into), dataclasses.replace(policy, replicated=False))

    def _join(self, config: EdgeConfig, found: list[Definition]) -> None:
        """Keep records that links carry, or that only functions read, until the functions have them. Retention alone
        decides about records without such readers."""
        carried = {stream for link in config.links.values() for stream in carried_streams(link, config)}
        parties = {
            (definition.name, name)
            for definition in found
            for name in definition.inputs
            if name.startswith(RAW_PREFIX) or name in carried
        }
        for function, name in parties - self._parties:
            self._ledger.join(Party("function", function), self._log.stream(name))
        for function, name in self._parties - parties:
            self._ledger.leave(Party("function", function), self._log.stream(name))
        self._parties = parties

    def _released(self, function: str, stream: str, ranges: RangeSet) -> None:
        if (function, stream) in self._parties:
            self._ledger.released(Party("function", function), self._log.stream(stream), ranges)


class Alerts:
    """Publisher of the functions' alerts, within the commit of their step."""

    def __init__(self, context: ProtocolContext, retained: RetainedMessages) -> None:
        """Prepare to publish in the way of a client of the node."""
        self._ingest = context.ingest
        self._retained = retained
        self._deliver = context.fan_out.message
        self._wall_clock = context.wall_clock

    def ready(self) -> None:
        """Store the messages that clients have published before.

        Raises:
            LogFull, LogFailed: that is not possible.
        """
        self._ingest.turn.store()

    def __call__(self, alert: Alert) -> None:
        """Store and deliver a message, unless its time is over."""
        now = self._wall_clock()
        if alert.until and alert.until < now:
            return
        if alert.retain:
            self._retained.retain(Publish(alert.topic, alert.payload, alert.qos, 0, retain=True), now)
        if alert.topic.startswith(b"$"):
            # A topic of the node's own, as `$SYS`: only for clients that subscribe to it by name, and in no stream.
            self._deliver(Message(alert.topic, alert.payload, alert.qos, alert.retain))
            return
        flags = _QOS_FLAGS[alert.qos] | (Flag.RETAINED if alert.retain else Flag(0))
        self._ingest.publish(NodeRecord(alert.topic, alert.payload, int(flags)))


def _turn(rounds: Rounds) -> Callable[[], asyncio.Future[None]]:
    def turn() -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rounds.wait(None, lambda: None if done.done() else done.set_result(None))
        return done

    return turn
