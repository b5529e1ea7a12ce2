"""A plug-in for amqtt, the MQTT broker in Python: an edge node inside the broker's process stores what it receives.

amqtt acknowledges a publish when it has it in memory, and calls plug-ins afterwards. So its acknowledgement does not
mean that the message is on disk: docs/how-to/store-what-amqtt-receives.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any

from amqtt.broker import BrokerContext
from amqtt.plugins.base import BasePlugin

from weft.config.load import load
from weft.config.log_lines import Repeats, left_out
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.node import EdgeNode
from weft.protocols.batch import Flag
from weft.protocols.topics import valid_topic

log = logging.getLogger(__name__)


class _Publisher:
    """A client of amqtt, as ingest knows a source. It waits for no answer."""

    __slots__ = ("_plugin", "publisher")
    owner = None

    def __init__(self, plugin: WeftPlugin, publisher: str) -> None:
        self._plugin = plugin
        self.publisher: str | None = publisher

    def acknowledge(self, answers: bytes) -> None:
        """Do nothing: amqtt has answered."""

    def refuse(self, error: BaseException) -> None:
        """Report that a message could not be stored."""
        self._plugin.lost_one(str(error))


class WeftPlugin(BasePlugin[BrokerContext]):  # type: ignore[misc]
    """Runs the edge node of a configuration beside the broker, and hands it every message that the broker passes on."""

    @dataclass
    class Config:
        """Settings of the plug-in in amqtt's configuration."""

        config: str
        """Configuration of the edge node. Without listeners of its own: `listeners: {}`."""

    def __init__(self, context: BrokerContext) -> None:
        """Read the node's configuration.

        Raises:
            ConfigError: it is not valid; amqtt does not start then.
        """
        super().__init__(context)
        self._node = EdgeNode(load(self.config.config, EdgeConfig, check).config)
        self._stop = asyncio.Event()
        self._run: asyncio.Task[None] | None = None
        self._is_open = False
        self._lines = Repeats(keys_max=32)
        self.stored = 0
        """Messages handed to the log."""
        self.lost = 0
        """Messages that the broker has acknowledged and the log has not taken."""

    async def on_broker_pre_start(self) -> None:
        """Open the log before the first client."""
        try:
            await self._node.start()
        except Exception as error:
            # amqtt continues whatever a plug-in raises.
            log.critical("the log cannot be opened, and NOTHING that amqtt receives is stored: %s", error)
            return
        self._is_open = True
        self._run = asyncio.create_task(self._node.run(self._stop))
        self._run.add_done_callback(self._ended)

    async def on_broker_message_broadcast(self, *, client_id: str, message: Any) -> None:
        """Store a message that a client was allowed to publish."""
        topic, payload = message.topic, bytes(message.data or b"")
        if not self._is_open:
            self.lost_one("the log is not open")
            return
        if not valid_topic(topic):
            self.lost_one(f"{topic!r} is not a topic")
            return
        batch, key = self._node.ingest.batch, topic.encode()
        route = self._node.ingest.routing.everybody.route(key)
        if route is None:
            self.lost_one(f"no stream matches topic {topic!r}")
            return
        packet = message.publish_packet
        flags = Flag.PUBLISHED_QOS2 if message.qos == 2 else Flag(0) if message.qos else Flag.PUBLISHED_QOS0
        if packet is not None and packet.retain_flag:
            flags |= Flag.RETAINED
        if packet is not None and packet.dup_flag:
            flags |= Flag.DUPLICATE_SUSPECTED
        self.stored += 1
        batch.add(route, key, payload, _Publisher(self, client_id), int(flags))
        batch.joined_bytes += len(payload)
        batch.gathered()

    async def close(self) -> None:
        """Make everything durable, and release the log."""
        self._stop.set()
        if self._run is not None:
            with contextlib.suppress(Exception):
                await self._run
            self._is_open = False
            await self._node.close()

    def lost_one(self, why: str) -> None:
        """Count a message that amqtt has acknowledged and the log has not taken, and say so, not too often."""
        self.lost += 1
        repeated = self._lines.due(why, asyncio.get_running_loop().time())
        if repeated is not None:
            log.error("a message that amqtt has acknowledged is not stored: %s%s", why, left_out(repeated))

    def _ended(self, run: asyncio.Task[None]) -> None:
        if not run.cancelled() and (error := run.exception()) is not None:
            self._is_open = False
            log.critical("the log has failed, and NOTHING that amqtt receives is stored any more: %s", error)
