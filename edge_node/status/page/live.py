"""Live messages of the topics that match a filter, as server-sent events, at the pace of people."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from weft.edge_node.access.identity import Identity
from weft.edge_node.status.page.readers import shown
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriber import ClientSubscription, DeliveryOptions
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.mqtt.packets import Subscription

PER_S_MAX = 50
"""Messages of a second that a reader is shown; it hears the number of the others."""
PAYLOAD_BYTES_MAX = 2048
EVENT_INTERVAL_S = 0.25
LOOK_S = 1.0
"""Longest time after which a reader that has left gives its place back."""
BEAT_S = 15.0
"""Longest time without a word to a reader, so that proxies keep the connection."""
WRITE_S = 10.0
"""Longest time that a reader may take to read an event: slower ones are disconnected."""


class LiveMessages:
    """A subscriber at QoS 0 for one reader. Belongs to the event loop's thread.

    Args:
        monotonic: seconds.
        wall_clock: nanoseconds since 1970.
    """

    client_id = ""
    persistent = False

    def __init__(
        self,
        subscriptions: Subscriptions,
        identity: Identity,
        topic_filter: str,
        monotonic: Callable[[], float],
        wall_clock: Callable[[], int],
    ) -> None:
        self._subscriptions = subscriptions
        self._identity = identity
        self._subscription = ClientSubscription(self, topic_filter, Subscription(topic_filter, 0), None)
        self._monotonic, self._wall_clock = monotonic, wall_clock
        self._gathered: list[dict[str, Any]] = []
        self._skipped = 0
        self._taken, self._until = 0, 0.0
        self._news = asyncio.Event()
        self._is_over = False

    def end(self) -> None:
        """End ``send``."""
        self._is_over = True
        self._news.set()

    async def send(self, request: web.Request) -> web.StreamResponse:
        """Send messages until the reader leaves, is no user any more, or ``end``."""
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = web.StreamResponse(headers=headers)
        self._subscriptions.add(self._subscription)
        try:
            async with asyncio.timeout(WRITE_S):
                await stream.prepare(request)
                await stream.write(b":\n\n")
            said = self._monotonic()
            while not self._is_over and self._identity.admitted and _is_there(request):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._news.wait()
                self._news.clear()
                has_news = bool(self._gathered or self._skipped)
                if self._is_over or not self._identity.admitted or not (has_news or self._monotonic() - said >= BEAT_S):
                    continue
                said = self._monotonic()
                async with asyncio.timeout(WRITE_S):
                    await stream.write(self._event() if has_news else b":\n\n")
                await asyncio.sleep(EVENT_INTERVAL_S)
            await stream.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._subscriptions.remove(self._subscription)
        return stream

    def _event(self) -> bytes:
        gathered, self._gathered = self._gathered, []
        skipped, self._skipped = self._skipped, 0
        return b"data: " + msgspec.json.encode({"messages": gathered, "skipped": skipped}) + b"\n\n"

    # --- ``Subscriber``

    def may_read(self, topic: bytes) -> bool:
        """Return whether the reader may read messages of a topic."""
        return self._identity.unrestricted or self._identity.may_read(topic)

    def offer(self, message: Message, options: DeliveryOptions, qos: int) -> None:  # noqa: ARG002
        """Show a message, or count it."""
        self.send_at_most_once(message, options)

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:  # noqa: ARG002
        """Show a message, or count it."""
        now = self._monotonic()
        if now >= self._until:
            self._taken, self._until = 0, now + 1.0
        self._taken += 1
        if self._taken > PER_S_MAX:
            self._skipped += 1
        else:
            self._gathered.append({
                "topic": message.topic.decode(), "time": self._wall_clock() / 1e9, "qos": message.qos,
                "retain": message.retain, "payload": shown(message.payload, PAYLOAD_BYTES_MAX),
            })  # fmt: skip
        self._news.set()


def _is_there(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()
