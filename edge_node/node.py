"""The edge node's composition root: the only module that knows all the parts, reads clocks and starts things."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from config.models import EdgeConfig
from config.units import Address, parse_bind
from edge_node.clock import clock_reader, wall_clock
from edge_node.counters import Counters
from edge_node.http import Pages
from edge_node.ingest import Ingest
from edge_node.links import Links
from edge_node.metrics import render
from edge_node.mqtt_listener import MqttListener, MqttSettings
from edge_node.outage import SAMPLE_INTERVAL_S
from edge_node.router import Router
from edge_node.sessions import SessionLimits, Sessions
from edge_node.status import NodeStatus
from edge_node.subscriptions import Subscriptions
from storage.segment_log import LogSettings, SegmentLog

logger = logging.getLogger(__name__)

LOG_CHECK_INTERVAL_S = 1.0
"""How soon a failed log ends the process, so that the service manager starts it anew and recovery reopens the log, and
how soon a full one is told of."""


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
        self._closing = contextlib.AsyncExitStack()
        self._shortage: str | None = None
        self.mqtt: Address | None = None
        """Where MQTT clients connect; None without a listener."""
        self.http: Address | None = None
        """Where the node's pages are; None without them."""

    async def start(self) -> None:
        """Recover the log, then accept clients and connect links. What was started is closed again on an error.

        Raises:
            DirectoryInUse, LogError: the log cannot be opened; the sentence says why.
            OSError: an address cannot be bound.
        """
        async with contextlib.AsyncExitStack() as stack:
            self.log = self._open_log(stack)
            links = Links(self.config, self.log, wall_clock=wall_clock, software=self._software)
            self.status = NodeStatus(self.config, self.log, self.counters, links.statuses, clock_reader())
            await self._start_mqtt(stack)
            await self._start_pages(stack)
            links.start()
            stack.push_async_callback(links.close)
            self._closing = stack.pop_all()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set.

        Raises:
            LogFailed: a write or sync failed. Nothing more can be taken in until recovery reopens the log.
        """
        loop = asyncio.get_running_loop()
        next_sample = loop.time()
        while not stop.is_set():
            if self.log.failed is not None:
                raise self.log.failed
            self._tell_shortage()
            if loop.time() >= next_sample:
                self.status.sample()
                next_sample += SAMPLE_INTERVAL_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOG_CHECK_INTERVAL_S)

    def _tell_shortage(self) -> None:
        shortage, known = self.log.shortage(), self._shortage
        self._shortage = shortage
        if shortage is not None and known is None:
            logger.error("devices get no acknowledgements: %s", shortage)
        elif shortage is None and known is not None:
            logger.warning("the log has room again: devices are acknowledged")

    async def close(self) -> None:
        """Stop accepting, end links and clients, make what was taken in durable, release the log's directory."""
        await self._closing.aclose()

    def _open_log(self, stack: contextlib.AsyncExitStack) -> SegmentLog:
        loop = asyncio.get_running_loop()

        def post(callback: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(callback)

        log = SegmentLog.open(
            self.config.data_dir,
            log_settings(self.config),
            wall_clock=wall_clock,
            clock_reading=clock_reader(),
            random_bits=random.SystemRandom().getrandbits,
            post=post,
        )
        stack.push_async_callback(asyncio.to_thread, log.close)
        if log.recovery.torn_bytes:
            logger.warning("recovered the log: cut a torn tail of %d bytes", log.recovery.torn_bytes)
        return log

    async def _start_mqtt(self, stack: contextlib.AsyncExitStack) -> None:
        listener_config, limits = self.config.listeners.mqtt, self.config.limits
        if listener_config is None:
            return
        patterns = {name: stream.from_ for name, stream in self.config.streams.items()}
        subscriptions = Subscriptions()
        ingest = Ingest(
            self.log, Router(patterns, self.log.stream), subscriptions, wall_clock, self.counters,
            pending_bytes_max=limits.pending_bytes,
        )  # fmt: skip
        sessions = Sessions(subscriptions, session_limits(self.config), self.counters)
        host, port = parse_bind(listener_config.bind)
        listener = MqttListener(ingest, sessions, mqtt_settings(self.config, host, port), self.counters)
        await listener.start()
        stack.push_async_callback(listener.close)
        self.mqtt = Address(host, listener.port)

    async def _start_pages(self, stack: contextlib.AsyncExitStack) -> None:
        if self.config.http is None:
            return
        pages = Pages(self.status.facts, lambda: render(self.status))
        await pages.start(self.config.http.bind)
        stack.push_async_callback(pages.close)
        self.http = Address(parse_bind(self.config.http.bind).host, pages.port)


def log_settings(config: EdgeConfig) -> LogSettings:
    """The log's settings from the node's configuration."""
    return LogSettings(
        segment_bytes=config.disk.segment_bytes,
        budget_bytes=config.disk.budget_bytes,
        tail_bytes=config.limits.tail_bytes,
        pending_bytes_max=config.limits.pending_bytes,
        commit_interval_s=config.commit_interval_s,
    )


def session_limits(config: EdgeConfig) -> SessionLimits:
    """The bounds on MQTT sessions from the node's configuration."""
    limits = config.limits
    return SessionLimits(
        sessions_max=limits.sessions,
        filters_max=limits.subscriptions,
        inflight_max=limits.inflight,
        queue_bytes_max=limits.session_queue_bytes,
        queue_bytes_total_max=limits.session_queues_bytes,
    )


def mqtt_settings(config: EdgeConfig, host: str, port: int) -> MqttSettings:
    """The MQTT listener's settings from the node's configuration."""
    limits = config.limits
    return MqttSettings(
        host=host,
        port=port,
        connections_max=limits.connections,
        packet_bytes_max=limits.packet_bytes,
        connect_timeout_s=limits.connect_timeout_s,
        write_timeout_s=limits.write_timeout_s,
        subscriber_queue_bytes_max=limits.send_queue_bytes,
    )
