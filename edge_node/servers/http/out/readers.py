"""``GET /v1/streams/STREAM/events`` and ``GET /v1/topics?filter=``: permissions, limits and the start."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weft.bounds import Bound, Refusals
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.servers.http.answers import Answers
from weft.edge_node.servers.http.counters import HttpCounters
from weft.edge_node.servers.http.exchange import Exchange
from weft.edge_node.servers.http.out.events import EventObjects, ServerSent, Wrapping
from weft.edge_node.servers.http.out.feed import Feed
from weft.edge_node.servers.http.out.stream_feed import StreamFeed
from weft.edge_node.servers.http.out.topic_feed import TopicFeed
from weft.edge_node.servers.http.problem import Problem, quoted, try_later
from weft.edge_node.servers.http.request import Request
from weft.edge_node.servers.http.settings import HttpSettings
from weft.protocols.topics import InvalidTopic, check_filter
from weft.storage.segment_log import SegmentLog

if TYPE_CHECKING:
    from weft.edge_node.servers.http.out.websocket import WebSocketWrapping

LEVELS_MAX = 16
PLUSES_MAX = 2
"""Maximum number of ``+`` in a filter: with more, or with more levels, each publish would cost too many steps."""
READS = 2
"""Concurrent reads of the disk for all readers."""
RETRY_MS = 2_000
_FIELDS = (("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
_SEQ = re.compile("[0-9]{1,18}")


class Readers:
    """All open readers of events. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        log: SegmentLog,
        context: ProtocolContext,
        settings: HttpSettings,
        counters: HttpCounters,
        refusals: Refusals,
        answers: Answers,
    ) -> None:
        self._log = log
        self._context = context
        self._counters = counters
        self._answers = answers
        self._pages = log.page_reader(READS)
        self._objects = EventObjects()
        self._bound = Bound(
            settings.readers_max, settings.readers_per_user_max, refusals,
            "limits.http_readers", "limits.http_readers_per_user", "readers of events",
        )  # fmt: skip

    def read_stream(self, exchange: Exchange, lane: str, stream: int) -> None:
        """Send a stream's records from now on, or from the client's position.

        Raises:
            Problem: the client may not read it, or the request is not valid.
        """
        query = exchange.request.query
        topic_filter = query.get("filter")
        if topic_filter is not None:
            _check(exchange, topic_filter)
        start = self._start(exchange.request, stream)
        base = self._open(exchange)
        if base is not None:
            feed = StreamFeed(
                base, self._pages, self._context.rounds, stream, lane, start, topic_filter, self._objects,
                self._counters, self._context.wall_clock,
            )  # fmt: skip
            exchange.stream_to(feed)

    def read_topics(self, exchange: Exchange) -> None:
        """Send messages published from now on.

        Raises:
            Problem: as ``read_stream``.
        """
        topic_filter = exchange.request.query.get("filter")
        if topic_filter is None:
            raise Problem(400, "the query names no filter; send ?filter=plant/%2B/temperature, or ?filter=%23 for all")
        _check(exchange, topic_filter)
        if topic_filter.count("/") >= LEVELS_MAX or topic_filter.count("+") > PLUSES_MAX:
            raise Problem(400, f"a filter may have {LEVELS_MAX} levels and {PLUSES_MAX} `+` here; send a simpler one")
        base = self._open(exchange)
        if base is not None:
            exchange.stream_to(
                TopicFeed(base, self._context.subscriptions, topic_filter, self._objects, self._counters)
            )

    # --- inside

    def _start(self, request: Request, stream: int) -> int:
        """Return the first number to send: after Last-Event-ID, ``from``, or the next one."""
        end = self._log.durable_end(stream)
        last = request.header(b"last-event-id") or request.query.get("last_event_id", "")
        asked = request.query.get("from", "")
        if last:
            if not _SEQ.fullmatch(last):
                raise Problem(400, f"Last-Event-ID is {quoted(last)}; send the id of the last event that came")
            start = int(last) + 1
        elif asked == "earliest":
            ranges = self._log.ranges(stream)
            start = next(iter(ranges), (end, end))[0]
        elif asked in ("", "latest"):
            start = end
        elif _SEQ.fullmatch(asked):
            start = int(asked)
        else:
            raise Problem(400, f"from is {quoted(asked)}; send a seq, earliest or latest")
        return min(start, self._log.next_seq(stream))  # higher numbers belong to a former log

    def _open(self, exchange: Exchange) -> tuple[Any, ...] | None:
        """Return the common arguments of feeds; None where the answer is only a head."""
        request, identity = exchange.request, exchange.identity
        assert identity is not None
        if not exchange.is_first:
            raise Problem(400, "events cannot be asked for behind other requests; use a connection of their own")
        if request.method == "HEAD":
            exchange.answer(200, content_type="text/event-stream")
            return None
        wrapping: Wrapping
        socket: WebSocketWrapping | None = None
        if request.upgrades:
            # Imported here, so that a node without such clients does not load the library.
            from weft.edge_node.servers.http.out.websocket import WebSocketWrapping, upgrade

            head = upgrade(request)
            wrapping = socket = WebSocketWrapping()
        else:
            events = wrapping = ServerSent(is_chunked=not request.is_http10)
            coding = () if request.is_http10 else (("Transfer-Encoding", "chunked"),)
            fields = (*exchange.answer_fields, *_FIELDS, *coding)
            head = self._answers.head(200, fields, keeps_alive=False) + b"\r\n" + events.greeting(RETRY_MS)
        if not self._bound.take(exchange.owner):
            self._bound.refuse(exchange.owner)
            raise try_later(429, "too many readers of events (limits.http_readers); close some", 10)
        self._counters.http_readers += 1
        return (head, wrapping, socket, identity, exchange.owner, self._has_ended)

    def _has_ended(self, feed: Feed) -> None:
        self._bound.free(feed.owner)
        self._counters.http_readers -= 1


def _check(exchange: Exchange, topic_filter: str) -> None:
    identity = exchange.identity
    assert identity is not None
    try:
        check_filter(topic_filter)
    except InvalidTopic as error:
        raise Problem(400, f"{quoted(topic_filter)} is no filter: {error}") from None
    if topic_filter.startswith("$share/"):
        raise Problem(400, "shared subscriptions are for MQTT; send the filter alone")
    if not identity.unrestricted and not identity.may_subscribe(topic_filter):
        raise Problem(403, f"the user may not read {quoted(topic_filter)}; ask for the right to")
