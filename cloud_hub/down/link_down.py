"""Messages on one edge's link: those under way, and what the edge says became of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from weft.cloud_hub.down.edge_queue import EdgeQueue
from weft.cloud_hub.down.lane_writer import CannotWrite
from weft.cloud_hub.down.records import Waiting
from weft.cloud_hub.down.shard_down import ShardDown
from weft.protocols.lane import Lane
from weft.protocols.link import Frame
from weft.protocols.link.down import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    DownMessage,
    MessageOutcome,
    Messages,
    OutcomeKind,
)

logger = logging.getLogger(__name__)

RETRY_S, RETRY_S_MAX = 1.0, 30.0
"""Seconds between two looks for a shard that is not loaded: they double."""


class LinkDown:
    """The messages of one link (``shard_down.Attached``).

    Args:
        next_number: the edge has outcomes of messages up to this number.
        tell: sends a frame.
        wall_clock: nanoseconds since 1970.
    """

    def __init__(
        self, shard: ShardDown, lane: Lane, next_number: int, tell: Callable[[Frame], None],
        wall_clock: Callable[[], int],
    ) -> None:  # fmt: skip
        self._shard, self._lane, self._next_number = shard, lane, next_number
        self._tell, self._wall_clock = tell, wall_clock
        self._queue: EdgeQueue | None = None
        self._last = -1
        """Highest number sent."""
        self._sent: dict[int, int] = {}
        """Messages without an outcome on this link: number -> bytes of payload."""
        self._bytes = 0
        shard.attach(lane, self)

    def restart(self) -> None:
        """Send everything again that waits: the copy of the log is another one."""
        self._queue, self._last, self._bytes = None, -1, 0
        self._sent.clear()

    def pump(self, queue: EdgeQueue) -> None:
        """Send messages, as many as may be under way."""
        if self._queue is not queue:
            self.restart()
            self._queue = queue
            queue.skip_to(self._next_number)
        chosen: list[DownMessage] = []
        now = self._wall_clock()
        for message in queue.after(self._last):
            size = len(message.payload)
            if len(self._sent) >= IN_FLIGHT_MAX or (self._sent and self._bytes + size > IN_FLIGHT_BYTES_MAX):
                break
            self._sent[message.number] = size
            self._bytes, self._last = self._bytes + size, message.number
            chosen.append(_framed(message, now))
        if chosen:
            self._tell(Messages(chosen))

    def outcomes(self, told: Sequence[MessageOutcome]) -> None:
        """Take the edge's word on messages. Those that were not sent on this link are passed over."""
        queue, final = self._queue, list[MessageOutcome]()
        for each in told:
            if queue is None or each.number not in self._sent:
                continue
            if each.outcome == OutcomeKind.WAITING:
                queue.trouble = each.reason
                continue
            queue.trouble = ""
            self._bytes -= self._sent.pop(each.number)
            final.append(each)
        if final and queue is not None:
            self._shard.settle(self._lane, final)
            self.pump(queue)

    def close(self) -> None:
        """Note that the link has ended."""
        self._shard.detach(self._lane, self)


class OpeningDown:
    """The messages of one link from the edge's DOWN_OPEN on. While the edge's shard is not loaded they wait, and the
    link goes on without: other lanes of a relay are in other shards.

    Args:
        attach: begins to send messages; raises ``CannotWrite`` while the shard is not loaded.
    """

    def __init__(self, attach: Callable[[], Awaitable[LinkDown]]) -> None:
        self._attach = attach
        self._link: LinkDown | None = None
        self._task = asyncio.create_task(self._open(), name="messages-of-a-link")

    async def _open(self) -> None:
        wait = RETRY_S
        while True:
            try:
                self._link = await self._attach()
                return
            except CannotWrite:
                pass  # the shard itself logs why, once for all its edges
            except Exception:  # the link can go on
                logger.exception("messages to an edge wait")
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_S_MAX)

    def outcomes(self, told: Sequence[MessageOutcome]) -> None:
        """Take the edge's word on messages."""
        if self._link is not None:
            self._link.outcomes(told)

    def close(self) -> None:
        """Note that the link has ended."""
        self._task.cancel()
        if self._link is not None:
            self._link.close()


def _framed(message: Waiting, now: int) -> DownMessage:
    left = max(0, message.expires - now)
    return DownMessage(
        message.number, message.accepted, left, message.topic, message.payload if left else b"", message.qos
    )
