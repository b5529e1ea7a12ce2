"""The node as a host application: ``STATE`` informs edge nodes that their data reach a log (Sparkplug 3.0, section 5).

An edge node whose primary host this is sends its data while the host is online, and holds them back otherwise. Here the
broker and the host are one process: a client that reaches the broker reaches the log. No will is needed, since the host
goes offline only with the broker: after a crash, the retained `online` message is available as soon as clients can
connect, and their publishes are stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from weft.edge_node.functions.chain import Alert, Alerts
from weft.edge_node.part import Part
from weft.storage.segment_log import LogError

logger = logging.getLogger(__name__)


class HostState(Part):
    """The retained message ``spBv1.0/STATE/HOST_ID``. Event loop's thread only."""

    name = "Sparkplug host"

    def __init__(self, host_id: str, publish: Alerts, wall_clock: Callable[[], int]) -> None:
        """Publish nothing yet.

        Args:
            wall_clock: ns since 1970.
        """
        self._topic = b"spBv1.0/STATE/" + host_id.encode()
        self._publish = publish
        self._wall_clock = wall_clock

    def start(self) -> None:
        """Publish that the host is online."""
        self._say(online=True)

    async def close(self) -> None:
        """Publish that the host goes offline."""
        self._say(online=False)

    def _say(self, *, online: bool) -> None:
        now = self._wall_clock()
        payload = msgspec.json.encode({"online": online, "timestamp": now // 1_000_000})
        try:
            self._publish.ready()
            self._publish(Alert(self._topic, payload, 1, now, retain=True))
        except LogError as error:
            # The message is retained in any case; streams with `STATE` lack it.
            logger.warning("%s: the log does not take it: %s", self._topic.decode(), error)
