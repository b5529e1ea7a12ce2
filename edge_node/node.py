"""The edge node's composition root: the only module that knows all the parts, reads clocks and starts things."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import weft.edge_node.sessions.store.light_imports  # noqa: F401 - before sqlite_utils is imported
from weft.bounds import Refusals
from weft.config.log_lines.throttle import Throttle
from weft.config.models import EdgeConfig
from weft.config.units import Address, UnixSocket, parse_bind
from weft.edge_node.check.data_directory import formats_of
from weft.edge_node.check.derived import is_derived
from weft.edge_node.control.client import ReloadReply
from weft.edge_node.control.server import Control
from weft.edge_node.counters import AmqpCounters, Counters, HttpCounters, ListenerCounters
from weft.edge_node.from_config import (
    broker_settings,
    has_amqp,
    has_http,
    http_settings,
    keys_policy,
    log_settings,
    queue_limits,
    state_settings,
    stream_policies,
    suppressed_streams,
    unrouted_policy,
)
from weft.edge_node.functions.runtime.counters import FunctionCounters
from weft.edge_node.ingest import unrouted
from weft.edge_node.ingest.turn import Turn
from weft.edge_node.ingest.unrouted import Unrouted
from weft.edge_node.links.imports import Imports
from weft.edge_node.links.links import Links
from weft.edge_node.reconfigure import (
    BeforeLogPart,
    ConfigFile,
    ConfigUnusable,
    FunctionsPart,
    LinksPart,
    Part,
    Reconfigure,
    StreamsPart,
)
from weft.edge_node.servers.broker.broker import Broker
from weft.edge_node.servers.listeners.by_prefix import ByPrefix
from weft.edge_node.servers.listeners.listener import MakeConnection
from weft.edge_node.servers.listeners.listeners import Listeners
from weft.edge_node.servers.mqtt import connection as mqtt_connection
from weft.edge_node.servers.mqtt.connection import ClientConnection
from weft.edge_node.sessions import delivery_journal
from weft.edge_node.sessions.store.broker_state import BrokerState
from weft.edge_node.sessions.store.settings import StateCounters
from weft.edge_node.sessions.window import client_window
from weft.edge_node.sources.part import SourcesPart
from weft.edge_node.status.facts import NodeStatus
from weft.edge_node.status.health import Health
from weft.edge_node.status.metrics import render
from weft.edge_node.status.outage import SAMPLE_INTERVAL_S
from weft.edge_node.status.pages import Pages
from weft.edge_node.status.shortage_log import ShortageLog
from weft.edge_node.streams import FUNCTIONS_STREAM, HTTP_STREAM, QUEUES_STREAM, UNROUTED_STREAM
from weft.edge_node.timing.clock import clock_reader, wall_clock, wall_clock_error
from weft.protocols.lane import NodeName
from weft.storage.segment_log import SegmentLog

if TYPE_CHECKING:
    from weft.edge_node.functions.node_part import NodeFunctions
    from weft.edge_node.queues.queues import Queues
    from weft.edge_node.sources.sources import Sources
    from weft.edge_node.sources.status import SourceStatus

logger = logging.getLogger(__name__)

LOG_CHECK_INTERVAL_S = 1.0
"""Interval at which the log's state is checked: a failed log ends the process, so that the service manager restarts it
and recovery reopens the log; a full one is reported; changed files are noticed."""


class EdgeNode:
    """A node. ``start``, ``run`` and ``close`` once each, on the event loop's thread."""

    def __init__(self, config: EdgeConfig, software: str = "weft", file: ConfigFile | None = None) -> None:
        """Take a checked configuration.

        Args:
            software: name and version, for the hubs.
            file: what ``config`` was read from, to be read again; None when it cannot change while the node runs.
        """
        self.config = config
        self._file = file
        self._software = software
        self.counters = Counters()
        self.listener_counters = ListenerCounters()
        self.state_counters = StateCounters()
        self.http_counters = HttpCounters()
        self.queues: Queues | None = None
        """Exchanges and queues; None where no listener has them, and none had before."""
        self.amqp_counters = AmqpCounters()
        self._closing = contextlib.AsyncExitStack()
        self._more_parts: list[Part] = []
        """Parts that a configuration can change, of nodes that have them."""
        self.addresses: dict[str, Address | UnixSocket] = {}
        """Addresses for MQTT clients, by the listener's name."""
        self.http: Address | None = None
        """Address of the node's pages; None without them."""

    async def start(self, stopping: asyncio.Event | None = None) -> None:
        """Recover the log and the sessions, connect links, then accept clients. Close the started parts again on an
        error.

        Args:
            stopping: ends the wait for the hubs' first answers, which clients wait for. Nothing is taken in then.

        Raises:
            DirectoryInUse, LogError, DatabaseFailed: log or sessions cannot be opened; the sentence says why.
            WrongOwner: the log belongs to another name than the configuration's.
            OSError: an address cannot be bound, or a file that the configuration names cannot be read.
            UsersUnusable, AclUnusable: such a file is not valid.
        """
        async with contextlib.AsyncExitStack() as stack:
            loop = asyncio.get_running_loop()
            self.turn = Turn(loop.call_soon, loop.time, self.counters)
            self.log = self._open_log(stack)
            self._refusals = Refusals(loop.time)
            self.unrouted = Unrouted(self.config.unrouted.policy, self.log, self.counters)
            links = Links(
                self.config, self.log, wall_clock=wall_clock, software=self._software, clock_reading=clock_reader(),
                clock_error=wall_clock_error,
            )  # fmt: skip
            self._links = links
            # Behind all that appends to the log: the links' last words say that nothing more comes.
            stack.push_async_callback(links.close)
            self._imports = Imports(self.config, self._software, poster(loop))
            stack.push_async_callback(self._imports.close)
            self.status = NodeStatus(
                self.config, self.log,
                (self.state_counters, self.listener_counters, self.http_counters, self.amqp_counters, self.counters),
                links.statuses,
                clock_reader(), unrouted=self.unrouted.facts, imports=self._imports.facts,
                conflicts=lambda: links.conflicts.reasons, refusals=self._refusals,
                functions=self._function_figures, configuration=self._configuration,
                queues=lambda: self.queues.facts() if self.queues is not None else {},
                sources=self._source_statuses,
            )  # fmt: skip
            broker = await self._start_mqtt(stack)
            self._make_functions(broker, stack)
            parts: list[Part] = [StreamsPart(self.log, broker), self._before_log, self._functions, LinksPart(links)]
            parts += self._more_parts
            self._sources = SourcesPart(lambda config: self._sources_of(config, broker))
            self._sources.make(self.config)
            parts.append(self._sources)
            self.reconfigure = Reconfigure(self.config, parts, wall_clock, self._file)
            await self._start_pages(stack)
            links.start()
            # Before anything is appended, a will too: a restored log gives numbers of the hubs' records to others.
            await links.until_compared(stopping)
            if stopping is not None and stopping.is_set():
                self._closing = stack.pop_all()
                return
            self._open_doors(broker)
            self._be_host(broker, stack)
            self.log.settled()
            self._imports.start()
            self._sources.start()
            stack.push_async_callback(self._sources.close)
            control = Control(
                self.config.data_dir,
                self.log,
                acknowledge=links.acknowledge_alarms,
                reload=self._reload_configuration,
                replay=self._functions.replay,
            )
            await control.start()
            stack.push_async_callback(control.close)
            self._closing = stack.pop_all()

    def _open_doors(self, broker: Broker) -> None:
        """Take messages from now on: wills of the last run, clients, functions."""
        broker.start()
        self.listeners.accept()
        self._functions.start()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set. Changed users, access rules and certificates are read again meanwhile.

        Raises:
            LogFailed, DatabaseFailed: a write or sync failed. The node accepts nothing until recovery reopens them.
        """
        loop = asyncio.get_running_loop()
        for talkative in (mqtt_connection, unrouted, delivery_journal, client_window):
            logging.getLogger(talkative.__name__).addFilter(Throttle())
        next_sample, shortages = loop.time(), ShortageLog(loop.time())
        while not stop.is_set():
            failed = self.log.failed or self._state.failed
            if failed is not None:
                raise failed
            shortages.full(self.log.shortage(), loop.time())
            await self.listeners.check_files()
            await self.listeners.save_passwords()
            self._links.conflicts.look(self._links.statuses)
            self._links.clocks.look()
            if loop.time() >= next_sample:
                self.status.sample()
                shortages.low(self.status.low_water(), loop.time())
                next_sample += SAMPLE_INTERVAL_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOG_CHECK_INTERVAL_S)

    async def reload(self) -> None:
        """Read users, access rules and certificates again, changed or not, and the configuration. Unusable files are
        logged."""
        watched = self.listeners.watched
        logger.info("SIGHUP: reading again: %s", ", ".join(watched) or "no users, access rules or certificates are set")
        await self.listeners.check_files(all_of_them=True)
        with contextlib.suppress(ConfigUnusable):  # it is logged
            await self.reconfigure.reload()

    def _configuration(self) -> dict[str, Any]:
        return self.reconfigure.facts()

    async def _reload_configuration(self) -> ReloadReply:
        try:
            found = await self.reconfigure.reload()
        except ConfigUnusable as error:
            return ReloadReply(error=str(error))
        return ReloadReply(found.version.number, found.version.digest, found.applied, found.restart)

    async def close(self) -> None:
        """Stop accepting, end links and clients, make accepted messages durable, release the log's directory."""
        await self._closing.aclose()

    def _function_figures(self) -> dict[str, FunctionCounters]:
        figures = self._functions.counters()
        return {**figures, **self._before_log.counters(figures)}

    def _make_functions(self, broker: Broker, stack: contextlib.AsyncExitStack) -> None:
        """Make what the configuration says, or tidy up after functions of earlier settings."""
        part = FunctionsPart(lambda config: self._functions_of(config, broker))
        if any(map(is_derived, self.config.streams.values())) or FUNCTIONS_STREAM in self.log.streams():
            part.make(self.config)
        self._functions = part
        stack.push_async_callback(part.close)

    def _functions_of(self, config: EdgeConfig, broker: Broker) -> NodeFunctions:
        # A second of a Pi and megabytes that nodes without functions can do without.
        from weft.edge_node.functions.node_part import NodeFunctions

        return NodeFunctions(config, self.log, broker, self._links.ledger, wall_clock, stream_policies)

    def _be_host(self, broker: Broker, stack: contextlib.AsyncExitStack) -> None:
        """Say that this node is a host application of Sparkplug B, where the configuration says so."""
        if self.config.sparkplug is None:
            return
        from weft.edge_node.functions.kinds.sparkplug.host import HostState
        from weft.edge_node.functions.node_part import Alerts

        host = HostState(self.config.sparkplug.host_id, Alerts(broker, wall_clock), wall_clock)
        host.begin()
        stack.callback(host.end)

    def _source_statuses(self) -> Sequence[SourceStatus]:
        return self._sources.statuses()

    def _sources_of(self, config: EdgeConfig, broker: Broker) -> Sources:
        from weft.edge_node.sources.connection import NodeParts
        from weft.edge_node.sources.sources import Sources

        return Sources(config, NodeParts(broker.ingest, broker.rounds, wall_clock))

    def _open_log(self, stack: contextlib.AsyncExitStack) -> SegmentLog:
        loop = asyncio.get_running_loop()
        log = SegmentLog.open(
            self.config.data_dir,
            log_settings(self.config),
            wall_clock=wall_clock,
            clock_reading=clock_reader(),
            random_bits=random.SystemRandom().getrandbits,
            post=poster(loop),
            end_of_turn=self.turn.at_end,
            owner=NodeName(self.config.tenant, self.config.node),
            guard=formats_of(self.config.data_dir, self._software),
        )
        stack.push_async_callback(asyncio.to_thread, log.close)
        for name, policy in stream_policies(self.config).items():
            log.set_policy(log.stream(name), policy)
        if self.config.unrouted.policy == "keep" or UNROUTED_STREAM in log.streams():
            # Also where it is kept no more: what earlier settings kept still has to go one day.
            log.set_policy(log.stream(UNROUTED_STREAM), unrouted_policy(self.config))
        if has_http(self.config) or HTTP_STREAM in log.streams():
            log.set_policy(log.stream(HTTP_STREAM), keys_policy(self.config))
        if log.recovery.torn_bytes:
            logger.warning("recovered the log: cut a torn tail of %d bytes", log.recovery.torn_bytes)
        return log

    async def _start_mqtt(self, stack: contextlib.AsyncExitStack) -> Broker:
        config, log = self.config, self.log
        self._state = state = BrokerState(
            config.data_dir, log, state_settings(config, suppressed_streams(config, log)), self.state_counters,
            wall_clock=wall_clock, post=poster(asyncio.get_running_loop()), refusals=self._refusals,
        )  # fmt: skip
        stack.push_async_callback(state.close)
        self.listeners = Listeners(config, self.counters, self.listener_counters, self._refusals)
        stack.push_async_callback(self.listeners.close)
        broker = Broker(
            log, state, self.turn, self.unrouted, broker_settings(config, self._software), self.counters, wall_clock
        )
        self.ingest = broker.ingest
        self._before_log = BeforeLogPart(self.log, broker)
        self._before_log.put(config)
        self.listeners.accounts.watch(broker.permissions_changed)
        state.start()
        stack.callback(broker.close)
        self._make_queues(broker, stack)
        makers: dict[str, MakeConnection] = {"mqtt": lambda door, arrival: ClientConnection(broker, door, arrival)}
        if has_http(config):
            makers["http"] = self._make_http(broker, stack)
        if has_amqp(config):
            makers["amqp"] = self._make_amqp(broker, stack)
        stack.callback(self.listeners.stop)  # first: no client connects while the broker closes
        await self.listeners.open(makers)
        self.addresses = self.listeners.addresses
        return broker

    def _make_queues(self, broker: Broker, stack: contextlib.AsyncExitStack) -> None:
        """Take up queues where a listener has them, or one had them before: what waits in them must not be lost."""
        if not has_amqp(self.config) and QUEUES_STREAM not in self.log.streams():
            return
        from weft.edge_node.queues.queues import Queues

        self.queues = queues = Queues(
            self.log, broker.ingest, self._state.backlog, queue_limits(self.config), self._refusals, broker.rounds,
            broker.wheel, wall_clock,
        )  # fmt: skip
        self.listeners.accounts.watch(queues.permissions_changed)
        stack.callback(queues.close)

    def _make_http(self, broker: Broker, stack: contextlib.AsyncExitStack) -> MakeConnection:
        from weft.edge_node.servers.http.node_part import Http

        http = Http(
            self.config, self.log, broker, http_settings(self.config, self._software), self.http_counters,
            self._refusals, wall_clock,
        )  # fmt: skip
        self.listeners.accounts.watch(http.permissions_changed)
        self._more_parts.append(http)
        stack.callback(http.close)
        return http.make_connection

    def _make_amqp(self, broker: Broker, stack: contextlib.AsyncExitStack) -> MakeConnection:
        from weft.edge_node.servers.amqp.node_part import Amqp, amqp_settings
        from weft.edge_node.servers.amqp1.connection import make_connection
        from weft.edge_node.servers.amqp1.parts import Parts
        from weft.protocols.amqp.frames import PROTOCOL_HEADER
        from weft.protocols.amqp1.opening import AMQP, SASL

        assert self.queues is not None, "they are made for such listeners"
        parts = Parts(broker, self.log, self.config.node, self._software, self.queues)
        parts.start()
        stack.callback(parts.close)
        settings = amqp_settings(self.config, self._software)
        amqp = Amqp(broker, self.queues, settings, self.amqp_counters, self._refusals)
        stack.callback(amqp.close)
        self.listeners.accounts.watch(parts.permissions_changed)
        self.listeners.accounts.watch(amqp.permissions_changed)
        versions: dict[bytes, MakeConnection] = dict.fromkeys((AMQP, SASL), make_connection(parts))
        versions[PROTOCOL_HEADER] = amqp.connect
        return lambda door, arrival: ByPrefix(door, arrival, versions, PROTOCOL_HEADER, "AMQP", broker.partings)

    async def _start_pages(self, stack: contextlib.AsyncExitStack) -> None:
        if self.config.http is None:
            return
        health = Health(
            self.log, lambda: self._state.failed is not None, lambda: self.listeners.is_open,
            has_conflict=lambda: bool(self._links.conflicts.reasons),
        )  # fmt: skip
        pages = Pages(
            self.status.facts, lambda: render(self.status), health,
            connections_max=self.config.limits.http_connections, monotonic=asyncio.get_running_loop().time,
            refusals=self._refusals,
        )  # fmt: skip
        await pages.start(self.config.http.bind, self.config.http.hosts)
        stack.push_async_callback(pages.close)
        self.http = Address(parse_bind(self.config.http.bind).host, pages.port)


def poster(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    """Return a function that runs callbacks of other threads on the event loop's thread, in their order."""

    def post(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    return post
