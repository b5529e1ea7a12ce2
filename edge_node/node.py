"""The edge node's composition root: the only module that knows all the parts, reads clocks and starts them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from weft.bounds import Refusals
from weft.config.listeners import has_listener
from weft.config.log_lines import Throttle
from weft.config.models import EdgeConfig
from weft.config.units import Address, UnixSocket, parse_bind
from weft.edge_node.check import data_directory
from weft.edge_node.check.data_directory import formats_of
from weft.edge_node.check.streams import (
    is_derived,
    keys_policy,
    log_settings,
    stream_policies,
    suppressed_streams,
    unrouted_policy,
)
from weft.edge_node.control.server import Control
from weft.edge_node.counters import Counters, ListenerCounters
from weft.edge_node.derived.part import BeforeLogPart, FunctionsPart
from weft.edge_node.ingest import routing
from weft.edge_node.ingest.ingest import Rests, TickBatch
from weft.edge_node.ingest.routing import PayloadChecks
from weft.edge_node.ingest.tracing_part import TracingPart
from weft.edge_node.links.desired import ConfigTrial, StoredConfig
from weft.edge_node.links.down_part import DownPart
from weft.edge_node.links.imports import Imports
from weft.edge_node.links.links import Links, LinksPart
from weft.edge_node.part import Part, Shown
from weft.edge_node.queues.part import QueuesPart
from weft.edge_node.reconfigure import (
    ConfigFile,
    ConfigUnusable,
    DesiredPart,
    NodeOrders,
    OverlaidNode,
    Overlay,
    Reconfigure,
)
from weft.edge_node.servers.clients.context import ClientSettings, Foundation, ProtocolContext, ProtocolPart, protocols
from weft.edge_node.servers.listeners.listeners import ByPrefix, Listeners, ListenersPart, MakeConnection
from weft.edge_node.servers.mqtt import connection as mqtt_connection
from weft.edge_node.servers.mqtt.part import Mqtt, Streams
from weft.edge_node.sessions import journal, window
from weft.edge_node.sessions.broker_state import BrokerState
from weft.edge_node.sessions.records import StateCounters, StateSettings
from weft.edge_node.sources.part import SourcesPart
from weft.edge_node.status.facts import SAMPLE_INTERVAL_S, Health, NodeStatus, ShortageLog, render
from weft.edge_node.status.messages import MessagePages
from weft.edge_node.status.pages import Pages
from weft.edge_node.streams import FUNCTIONS_STREAM, HTTP_STREAM, QUEUES_STREAM, UNROUTED_STREAM
from weft.edge_node.timing import clock_reader, wall_clock
from weft.protocols.lane import NodeName
from weft.storage.host import wall_clock_error
from weft.storage.segment_log import SegmentLog

if TYPE_CHECKING:
    from weft.edge_node.derived.runtime import NodeAlerts, NodeFunctions
    from weft.edge_node.pair.part import PairPart
    from weft.edge_node.queues.queues import Queues
    from weft.edge_node.sources.sources import Sources

logger = logging.getLogger(__name__)

AnyPart = TypeVar("AnyPart", bound=Part)

LOG_CHECK_INTERVAL_S = 1.0
"""Interval at which the log's state is checked: a failed log ends the process, so that the service manager restarts it
and recovery reopens the log; a full one is reported; changed files are noticed."""


class EdgeNode:
    """A node. ``start``, ``run`` and ``close`` once each, on the event loop's thread."""

    def __init__(
        self, config: EdgeConfig, software: str = "weft", file: ConfigFile | None = None, overlay: Overlay | None = None
    ) -> None:
        """Take a checked configuration.

        Args:
            software: name and version of the program, for the hubs.
            file: file that ``config`` was read from, which ``reload`` reads again; None when it cannot change while the
                node runs.
            overlay: settings of a hub over those of the file; None where it allows none.
        """
        self.config = config
        self._overlay = overlay
        self.restart = asyncio.Event()
        """Event: the node is to end, and to start again with another configuration."""
        self._file = file
        self._software = software
        self.counters = Counters()
        self.listener_counters = ListenerCounters()
        self.state_counters = StateCounters()
        self.queues: Queues | None = None
        """Exchanges and queues; None where no listener serves them, and none did before."""
        self._pair: PairPart | None = None
        self._closing = contextlib.AsyncExitStack()
        self._parts: list[Part] = []
        """In the order of their start; they end in reverse."""
        self.addresses: dict[str, Address | UnixSocket] = {}
        """Addresses for MQTT clients, by the listener's name."""
        self.http: Address | None = None
        """Address of the node's pages; None without them."""

    async def start(self, stopping: asyncio.Event | None = None) -> None:
        """Recover the log and the sessions, connect links, then accept clients. Close the started parts again on an
        error.

        Args:
            stopping: ends the wait for the hubs' first answers. Clients wait for these, and no message is accepted
                meanwhile.

        Raises:
            DirectoryInUse, LogError, DatabaseFailed: log or sessions cannot be opened; the message has the reason.
            WrongOwner: the log belongs to another name than the configuration's.
            OSError: an address cannot be bound, or a file that the configuration names cannot be read.
            UsersUnusable, AclUnusable: such a file is not valid.
        """
        async with contextlib.AsyncExitStack() as stack:
            loop = asyncio.get_running_loop()
            self.batch = TickBatch(loop.call_soon, loop.time, self.counters)
            self.log = self._open_log(stack)
            self.batch.rest_with(Rests(self.log, loop.call_soon))
            self._refusals = Refusals(loop.time)
            self.unrouted = routing.Unrouted(self.config.unrouted.policy, self.log, self.counters)
            trial = self._make_trial()
            links = Links(
                self.config,
                self.log,
                wall_clock=wall_clock,
                software=self._software,
                clock_reading=clock_reader(),
                clock_error=wall_clock_error,
                config_door=trial,
            )
            self._links = links
            # The links end after all parts that append to the log: their last words state that no record follows.
            stack.push_async_callback(links.close)
            self._parts.append(LinksPart(links))
            pair = self._pair = self._make_pair(stack)
            await self._start_clients(stack)
            if pair is not None:
                self._parts.append(pair)
                await pair.open(self._refusals, self.listeners.reloads)
                if pair.is_awaited:
                    self.ingest.gate = pair.second_disk.after
            self._add(stack, down := DownPart(self.config, self._context))
            links.taker = down.taker
            self._make_functions(stack)
            self._add(stack, Imports(self.config, self._software, poster(loop)))
            self._add(stack, sources := SourcesPart(self._sources_of, wall_clock, clock_reader()))
            sources.make(self.config)
            # Links come last: they carry the streams of the others.
            self.reconfigure = Reconfigure(self.config, [*self._parts[1:], self._parts[0]], wall_clock, self._file)
            if trial is not None:
                self._add(stack, DesiredPart(trial))
            self._parts.append(Shown("configuration", facts=lambda: {"configuration": self.reconfigure.facts()}))
            self.status = NodeStatus(self.config, self.log, self._parts, clock_reader(), refusals=self._refusals)
            await self._start_pages(stack)
            self._notify_hubs()
            links.start()
            if pair is not None:
                pair.connect()
            # Before any append, also of a will: a restored log would give new records numbers that hubs have for
            # others.
            await links.until_compared(stopping)
            if stopping is not None and stopping.is_set():
                self._closing = stack.pop_all()
                return
            for part in self._parts:
                part.start()
            self.log.settled()
            orders = NodeOrders(self.reconfigure, self._functions.replay, links, self.part(LinksPart))
            control = Control(
                self.config.data_dir,
                self.log,
                acknowledge=links.acknowledge_alarms,
                reload=orders.reload,
                replay=orders.replay,
                links=orders.links,
                take_over=None if pair is None else pair.take_over,
            )
            await control.start()
            stack.push_async_callback(control.close)
            self._closing = stack.pop_all()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set. Changed users, access rules and certificates are read again meanwhile.

        Raises:
            LogFailed, DatabaseFailed: a write or sync failed. The node accepts nothing until recovery reopens them.
        """
        loop = asyncio.get_running_loop()
        for talkative in (mqtt_connection, routing, journal, window):
            logging.getLogger(talkative.__name__).addFilter(Throttle())
        next_sample, shortages, troubled = loop.time(), ShortageLog(loop.time()), frozenset[str]()
        while not stop.is_set() and not self.restart.is_set():
            failed = self.log.failed or self._state.failed
            if failed is not None:
                raise failed
            shortages.full(self.log.shortage(), loop.time())
            await self.listeners.reloads.check()
            await self.listeners.accounts.known.save()
            self._links.look()
            self._links.clocks.look()
            if loop.time() >= next_sample:
                self.status.sample()
                self._notify_hubs()
                shortages.low(self.status.low_water(), loop.time())
                next_sample += SAMPLE_INTERVAL_S
            elif self._functions.in_trouble() != troubled:
                self._notify_hubs()
            troubled = self._functions.in_trouble()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOG_CHECK_INTERVAL_S)

    def _notify_hubs(self) -> None:
        functions = self._functions.facts()["functions"]
        self._links.report.pair = None if self._pair is None else self._pair.report()
        self._links.tell(self.status.report(self.reconfigure.running.streams, functions))

    async def reload(self) -> None:
        """Read users, access rules and certificates again, changed or not, and the configuration. Unusable files are
        logged."""
        watched = self.listeners.watched
        logger.info("SIGHUP: reading again: %s", ", ".join(watched) or "no users, access rules or certificates are set")
        await self.listeners.reloads.check(all_of_them=True)
        with contextlib.suppress(ConfigUnusable):  # ``reload`` has logged it
            await self.reconfigure.reload()

    def part(self, kind: type[AnyPart]) -> AnyPart:
        """Return the part of a class; the node has one."""
        return next(part for part in self._parts if isinstance(part, kind))

    async def close(self) -> None:
        """Stop accepting, end links and clients, make accepted messages durable, release the log's directory."""
        await self._closing.aclose()

    def _add(self, stack: contextlib.AsyncExitStack, part: Part) -> None:
        """Add a part to the node."""
        self._parts.append(part)
        self.listeners.accounts.watch(part.permissions_changed)
        stack.push_async_callback(part.close)

    def _make_functions(self, stack: contextlib.AsyncExitStack) -> None:
        """Create the configured functions, or clean up after functions of earlier settings."""
        self._functions = part = FunctionsPart(self._functions_of, self._before_log, wall_clock)
        if any(map(is_derived, self.config.streams.values())) or FUNCTIONS_STREAM in self.log.streams():
            part.make(self.config)
        self._add(stack, part)
        if self.config.sparkplug is not None:
            from weft.edge_node.derived.runtime import HostState

            self._add(stack, HostState(self.config.sparkplug.host_id, self._alerts(), wall_clock))

    def _make_trial(self) -> ConfigTrial | None:
        """Create the part that tries the hub's configurations, if the node's file allows some."""
        overlay = self._overlay
        if overlay is None:
            return None

        def put(stored: StoredConfig) -> None:
            overlay.stored = stored

        node = OverlaidNode(overlay, lambda: self.reconfigure, lambda: self._links.statuses, self.restart.set)
        return ConfigTrial(overlay.stored, node, asyncio.get_running_loop().time, put, is_unsaved=overlay.is_unsaved)

    def _make_pair(self, stack: contextlib.AsyncExitStack) -> PairPart | None:
        """Create the node's side of its pair, if it is of one."""
        if self.config.pair is None:
            return None
        from weft.edge_node.pair.part import PairPart

        post = poster(asyncio.get_running_loop())
        pair = PairPart(
            self.config,
            self.config.pair,
            self._links,
            software=self._software,
            answered=self.batch.committed,
            post=post,
        )
        stack.push_async_callback(pair.close)
        return pair

    def _functions_of(self, config: EdgeConfig) -> NodeFunctions:
        # Imported here: it takes a second on a Pi and megabytes, which nodes without functions save.
        from weft.edge_node.derived.runtime import NodeFunctions

        return NodeFunctions(config, self._context, self._alerts(), self._links.ledger, stream_policies)

    def _alerts(self) -> NodeAlerts:
        from weft.edge_node.derived.runtime import NodeAlerts

        return NodeAlerts(self._context, self._state.retained)

    def _sources_of(self, config: EdgeConfig) -> Sources:
        from weft.edge_node.sources.connection import SourceContext
        from weft.edge_node.sources.sources import Sources

        context = self._context
        return Sources(config, SourceContext(context.ingest, context.round_robin, wall_clock, context.subscriptions))

    def _open_log(self, stack: contextlib.AsyncExitStack) -> SegmentLog:
        loop = asyncio.get_running_loop()
        data_directory.prepare(self.config, wall_clock())
        log = SegmentLog.open(
            self.config.data_dir,
            log_settings(self.config),
            wall_clock=wall_clock,
            clock_reading=clock_reader(),
            random_bits=random.SystemRandom().getrandbits,
            post=poster(loop),
            end_of_tick=self.batch.at_end,
            owner=NodeName(self.config.tenant, self.config.node),
            guard=formats_of(self.config.data_dir, self._software),
        )
        stack.push_async_callback(asyncio.to_thread, log.close)
        for name, policy in stream_policies(self.config).items():
            log.set_policy(log.stream(name), policy)
        if self.config.unrouted.policy == "keep" or UNROUTED_STREAM in log.streams():
            # Also with another policy now: records that earlier settings stored still expire.
            log.set_policy(log.stream(UNROUTED_STREAM), unrouted_policy(self.config))
        if has_listener("http", self.config.listeners) or HTTP_STREAM in log.streams():
            log.set_policy(log.stream(HTTP_STREAM), keys_policy(self.config))
        if log.recovery.torn_bytes:
            logger.warning("recovered the log: cut a torn tail of %d bytes", log.recovery.torn_bytes)
        return log

    async def _start_clients(self, stack: contextlib.AsyncExitStack) -> None:
        config, log = self.config, self.log
        self._state = state = BrokerState(
            config.data_dir,
            log,
            StateSettings.of(config, suppressed_streams(config, log)),
            self.state_counters,
            wall_clock=wall_clock,
            post=poster(asyncio.get_running_loop()),
            refusals=self._refusals,
        )
        stack.push_async_callback(state.close)
        self.listeners = Listeners(config, self.counters, self.listener_counters, self._refusals)
        stack.push_async_callback(self.listeners.close)
        self._context = context = ProtocolContext(
            log,
            state.backlog,
            self.batch,
            self.unrouted,
            ClientSettings.of(config),
            self._refusals,
            self.counters,
            wall_clock,
        )
        self.ingest = context.ingest
        stack.callback(context.close)
        tracing = TracingPart(config, self._software, context.ingest, self._links.ledger, wall_clock, context.clock)
        self._add(stack, tracing)
        mqtt = Mqtt(config, self._software, context, state)
        self._before_log = BeforeLogPart(self.log, context.routing)
        self._before_log.put(config)
        state.start()
        self.queues = self._queues_of(context)
        self._parts += [
            Shown("state", counters=self.state_counters),
            Shown("clients", counters=self.counters, facts=lambda: {"unrouted": self.unrouted.facts()}),
            Streams(context, mqtt.server),
            self._before_log,
            PayloadChecks(config, self.log, context.routing, context.clock),
        ]
        self._add(stack, mqtt)
        self._add(stack, QueuesPart(self.queues))
        spoken: dict[str, list[ProtocolPart]] = {"mqtt": [mqtt]}
        for name, protocol in protocols(Foundation(config, self._software, context, self.queues)):
            spoken.setdefault(name, []).append(protocol)
            self._add(stack, protocol)
        self._add(stack, ListenersPart(self.listeners, self.listener_counters))
        await self.listeners.open({name: self._maker(name, them) for name, them in spoken.items()})
        self.addresses = self.listeners.addresses

    def _maker(self, name: str, protocols: Sequence[ProtocolPart]) -> MakeConnection:
        """Return the factory of connections for the listeners of a protocol, in its versions."""
        if len(protocols) == 1:
            return protocols[0].connect
        versions = {prefix: each.connect for each in protocols for prefix in each.prefixes}
        greeting = next(each.greeting for each in protocols if each.greeting)
        return lambda authenticator, accepted: ByPrefix(
            authenticator, accepted, versions, greeting, name.upper(), self._context.disconnect_log
        )

    def _queues_of(self, context: ProtocolContext) -> Queues | None:
        if not has_listener("amqp", self.config.listeners) and QUEUES_STREAM not in self.log.streams():
            return None
        from weft.edge_node.queues.limits import QueueLimits
        from weft.edge_node.queues.queues import Queues

        return Queues(
            self.log,
            context.ingest,
            self._state.backlog,
            QueueLimits.of(self.config),
            self._refusals,
            context.round_robin,
            context.wheel,
            wall_clock,
        )

    async def _start_pages(self, stack: contextlib.AsyncExitStack) -> None:
        if self.config.http is None:
            return
        health = Health(
            self.log,
            lambda: self._state.failed is not None,
            lambda: self.listeners.is_open,
            has_conflict=lambda: bool(self._links.conflicts.reasons),
        )
        context, loop = self._context, asyncio.get_running_loop()
        pages = Pages(
            self.status.facts,
            lambda: render(self.status),
            health,
            history=lambda of_day: self.status.history.view(of_day=of_day),
            messages=MessagePages(
                context.subscriptions,
                self.listeners.accounts,
                self.config.http.hosts or (),
                loop.time,
                wall_clock,
                takes_anyone=any(each and each.anonymous != "never" for each in self.config.listeners.values()),
            ),
            connections_max=self.config.limits.http_connections,
            monotonic=loop.time,
            refusals=self._refusals,
        )
        await pages.start(self.config.http.bind, self.config.http.hosts)
        stack.push_async_callback(pages.close)
        self.http = Address(parse_bind(self.config.http.bind).host, pages.port)


def poster(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    """Return a function that runs callbacks of other threads on the event loop's thread, in their order."""

    def post(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    return post
