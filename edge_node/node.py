"""The edge node's composition root: the only module that knows all the parts, reads clocks and starts things."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

import weft.edge_node.light_imports  # noqa: F401 - before edge_node.sessions.store
from weft.config.models import EdgeConfig
from weft.config.units import Address, UnixSocket, parse_bind
from weft.edge_node.check import carried_streams, segment_bytes, topics_log_bytes, unrouted_bytes
from weft.edge_node.clock import clock_reader, wall_clock
from weft.edge_node.control.server import Control
from weft.edge_node.counters import Counters
from weft.edge_node.ingest import unrouted
from weft.edge_node.ingest.unrouted import UNROUTED_STREAM, Unrouted
from weft.edge_node.links.links import Links
from weft.edge_node.listeners.counters import DoorCounters
from weft.edge_node.mqtt import connection as mqtt_connection
from weft.edge_node.mqtt.broker import Broker, BrokerSettings
from weft.edge_node.mqtt.listeners import FrontDoor
from weft.edge_node.sessions import deliveries
from weft.edge_node.sessions.limits import SessionLimits
from weft.edge_node.sessions.store import BrokerState, StateCounters, StateSettings
from weft.edge_node.status.facts import NodeStatus
from weft.edge_node.status.health import Health
from weft.edge_node.status.metrics import render
from weft.edge_node.status.outage import SAMPLE_INTERVAL_S
from weft.edge_node.status.pages import Pages
from weft.edge_node.status.shortage_log import ShortageLog
from weft.protocols.lane import NodeName
from weft.replication.log_lines import Throttle
from weft.storage.segment_log import LogSettings, SegmentLog, StreamPolicy

logger = logging.getLogger(__name__)

LOG_CHECK_INTERVAL_S = 1.0
"""How soon a failed log ends the process, so that the service manager starts it anew and recovery reopens the log; how
soon a full one is told of; and how soon changed files are noticed."""
READ_BYTES_MAX = 1 << 20
"""More than asyncio and uvloop read from a socket at a time (256 KiB), and what that becomes in the log."""
PENDING_READS_MIN = 3
"""Longest reads that may wait for the disk at least, whatever ``limits.pending`` says."""
KEEP_ALIVE_S_MAX = 65_535
"""The longest that two bytes can say: as a limit, it is none."""


class EdgeNode:
    """One node. ``start``, ``run`` and ``close`` once each, on the event loop's thread."""

    def __init__(self, config: EdgeConfig, software: str = "weft") -> None:
        """Take a checked configuration.

        Args:
            software: name and version, which hubs are told.
        """
        self.config = config
        self._software = software
        self.counters = Counters()
        self.door_counters = DoorCounters()
        self.state_counters = StateCounters()
        self._closing = contextlib.AsyncExitStack()
        self.listeners: dict[str, Address | UnixSocket] = {}
        """Where MQTT clients connect, by the listener's name."""
        self.http: Address | None = None
        """Where the node's pages are; None without them."""

    async def start(self) -> None:
        """Recover the log and the sessions, then accept clients and connect links. What was started is closed again on
        an error.

        Raises:
            DirectoryInUse, LogError, DatabaseFailed: log or sessions cannot be opened; the sentence says why.
            WrongOwner: the log belongs to another name than the configuration's.
            OSError: an address cannot be bound, or a file that the configuration names cannot be read.
            UsersUnusable, AclUnusable: such a file is not valid.
        """
        async with contextlib.AsyncExitStack() as stack:
            self.log = self._open_log(stack)
            self.unrouted = Unrouted(self.config.unrouted.policy, self.log, self.counters)
            links = Links(self.config, self.log, wall_clock=wall_clock, software=self._software)
            self.status = NodeStatus(
                self.config, self.log, (self.state_counters, self.door_counters, self.counters), links.statuses,
                clock_reader(), unrouted=self.unrouted.facts,
            )  # fmt: skip
            await self._start_mqtt(stack)
            await self._start_pages(stack)
            links.start()
            self.log.settled()
            stack.push_async_callback(links.close)
            control = Control(self.config.data_dir, self.log)
            await control.start()
            stack.push_async_callback(control.close)
            self._closing = stack.pop_all()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set. Users, access rules and certificates that change are read again meanwhile.

        Raises:
            LogFailed, DatabaseFailed: a write or sync failed. Nothing more can be taken in until recovery reopens them.
        """
        loop = asyncio.get_running_loop()
        for talkative in (mqtt_connection, unrouted, deliveries):
            logging.getLogger(talkative.__name__).addFilter(Throttle())
        next_sample, shortages = loop.time(), ShortageLog(loop.time())
        while not stop.is_set():
            failed = self.log.failed or self._state.failed
            if failed is not None:
                raise failed
            shortages.full(self.log.shortage(), loop.time())
            await self.front_door.check_files()
            if loop.time() >= next_sample:
                self.status.sample()
                shortages.low(self.status.low_water(), loop.time())
                next_sample += SAMPLE_INTERVAL_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOG_CHECK_INTERVAL_S)

    async def reload(self) -> None:
        """Read users, access rules and certificates again, changed or not. What cannot be used is told in the log."""
        watched = self.front_door.watched
        logger.info("SIGHUP: reading again: %s", ", ".join(watched) or "no users, access rules or certificates are set")
        await self.front_door.check_files(all_of_them=True)

    async def close(self) -> None:
        """Stop accepting, end links and clients, make what was taken in durable, release the log's directory."""
        await self._closing.aclose()

    def _open_log(self, stack: contextlib.AsyncExitStack) -> SegmentLog:
        loop = asyncio.get_running_loop()
        log = SegmentLog.open(
            self.config.data_dir,
            log_settings(self.config),
            wall_clock=wall_clock,
            clock_reading=clock_reader(),
            random_bits=random.SystemRandom().getrandbits,
            post=poster(loop),
            end_of_turn=loop.call_soon,
            owner=NodeName(self.config.tenant, self.config.node),
        )
        stack.push_async_callback(asyncio.to_thread, log.close)
        for name, policy in stream_policies(self.config).items():
            log.set_policy(log.stream(name), policy)
        if self.config.unrouted.policy == "keep" or UNROUTED_STREAM in log.streams():
            # Also where it is kept no more: what earlier settings kept still has to go one day.
            log.set_policy(log.stream(UNROUTED_STREAM), unrouted_policy(self.config))
        if log.recovery.torn_bytes:
            logger.warning("recovered the log: cut a torn tail of %d bytes", log.recovery.torn_bytes)
        return log

    async def _start_mqtt(self, stack: contextlib.AsyncExitStack) -> None:
        config, log = self.config, self.log
        numbers = {name: log.stream(name) for name in config.streams}
        suppressed = frozenset(numbers[name] for name, stream in config.streams.items() if stream.resent == "suppress")
        self._state = state = BrokerState(
            config.data_dir, log, state_settings(config, suppressed), self.state_counters,
            wall_clock=wall_clock, post=poster(asyncio.get_running_loop()),
        )  # fmt: skip
        stack.push_async_callback(state.close)
        self.front_door = FrontDoor(config, self.counters, self.door_counters)
        stack.push_async_callback(self.front_door.close)
        broker = Broker(
            log, {name: stream.from_ for name, stream in config.streams.items()},
            broker_settings(config, self._software), session_limits(config), self.counters, wall_clock,
            retained=state.retained, journal=state.journal, backlog=state.backlog, resent=state.resent,
            unrouted=self.unrouted, pending_bytes_max=config.limits.pending_bytes,
        )  # fmt: skip
        self.front_door.accounts.watch(broker.permissions_changed)
        broker.start()
        state.start()
        stack.callback(broker.close)
        stack.callback(self.front_door.stop)  # first: nobody comes in while the broker closes
        await self.front_door.open(broker.connection)
        self.listeners = self.front_door.addresses

    async def _start_pages(self, stack: contextlib.AsyncExitStack) -> None:
        if self.config.http is None:
            return
        health = Health(self.log, lambda: self._state.failed is not None, lambda: self.front_door.is_open)
        pages = Pages(self.status.facts, lambda: render(self.status), health)
        await pages.start(self.config.http.bind)
        stack.push_async_callback(pages.close)
        self.http = Address(parse_bind(self.config.http.bind).host, pages.port)


def poster(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    """Runs callbacks of other threads on the event loop's thread, in their order."""

    def post(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    return post


def log_settings(config: EdgeConfig) -> LogSettings:
    """The log's settings from the node's configuration."""
    return LogSettings(
        segment_bytes=segment_bytes(config),
        budget_bytes=config.disk.budget_bytes,
        tail_bytes=config.limits.tail_bytes,
        # The log takes up to twice this, and a read of a persistent session asks for room for the longest one. A bound
        # in which that never fits would refuse each such session whenever anything waits for the disk.
        pending_bytes_max=max(config.limits.pending_bytes, PENDING_READS_MIN * read_reserve_bytes(config)),
        commit_interval_s=config.commit_interval_s,
        compression_level=config.disk.compression_level if config.disk.compression == "zstd" else None,
    )


def read_reserve_bytes(config: EdgeConfig) -> int:
    """Room that is made sure of before a read of a persistent session is stored."""
    return READ_BYTES_MAX + config.limits.packet_bytes


def stream_policies(config: EdgeConfig) -> dict[str, StreamPolicy]:
    """How long each stream's records stay, from the node's configuration."""
    carried = {name for link in config.links.values() for name in carried_streams(link, config)}
    return {
        name: StreamPolicy(stream.when_full, stream.retain.time_s, stream.retain.size_bytes, replicated=name in carried)
        for name, stream in config.streams.items()
    }


def unrouted_policy(config: EdgeConfig) -> StreamPolicy:
    """Return how long the stream `unrouted` keeps records, from the node's configuration."""
    return StreamPolicy("drop_oldest", config.unrouted.time_s, unrouted_bytes(config), replicated=False)


def session_limits(config: EdgeConfig) -> SessionLimits:
    """The bounds on MQTT sessions from the node's configuration."""
    limits = config.limits
    expiry_s = round(limits.session_expiry_s)
    return SessionLimits(
        sessions_max=limits.sessions,
        filters_max=limits.subscriptions,
        filters_total_max=limits.subscriptions_total,
        filter_levels_max=limits.topic_levels,
        inflight_max=limits.inflight,
        queue_bytes_max=limits.session_queue_bytes,
        queue_bytes_total_max=limits.session_queues_bytes,
        filter_bytes_max=limits.filter_bytes,
        filters_bytes_max=limits.filters_bytes,
        filters_bytes_total_max=limits.filters_total_bytes,
        will_bytes_max=limits.wills_bytes,
        expiry_s_max=expiry_s,
        expiry_s_of_old_versions=expiry_s,
    )


def broker_settings(config: EdgeConfig, software: str) -> BrokerSettings:
    """The bounds on MQTT connections from the node's configuration."""
    limits = config.limits
    keep_alive_s = round(limits.keep_alive_s)
    return BrokerSettings(
        packet_bytes_max=limits.packet_bytes,
        write_timeout_s=limits.write_timeout_s,
        send_queue_bytes_max=limits.send_queue_bytes,
        receive_maximum=limits.receive_maximum,
        topic_alias_maximum=limits.topic_alias_maximum,
        topic_levels_max=limits.topic_levels,
        closes_on_refusal=config.auth.refused_publish == "close",
        positions_interval_s=config.state.positions_interval_s,
        keep_alive_s_max=0 if keep_alive_s == KEEP_ALIVE_S_MAX else keep_alive_s,
        software=software,
    )


def state_settings(config: EdgeConfig, suppressed: frozenset[int]) -> StateSettings:
    """The bounds on what is kept for MQTT clients, from the node's configuration.

    Args:
        suppressed: numbers of the streams that say ``resent: suppress``.
    """
    limits, state = config.limits, config.state
    return StateSettings(
        retained_messages_max=limits.retained,
        retained_bytes_max=limits.retained_bytes,
        save_interval_s=state.save_interval_s,
        save_bytes=state.save_bytes,
        journal_bytes_max=state.journal_bytes,
        reserve_bytes=read_reserve_bytes(config),
        resent_window=state.resent_window,
        resent_total_max=state.resent_total,
        backlog_buffer_bytes=state.backlog_buffer_bytes,
        backlog_page_records=state.backlog_page_records,
        backlog_page_bytes=state.backlog_page_bytes,
        backlog_reads=state.backlog_reads,
        topics_log_bytes=topics_log_bytes(config),
        suppressed=suppressed,
    )
