"""Spans of messages from their acceptance to the hub's acknowledgement.

Nothing here runs for a node without the setting ``tracing``. With it, records without headers cost one subtraction for
each run of records; only traced messages cost more. The record of a traced message gets the header ``weft.trace``, by
which the hub's spans become children of the edge's. The publisher's own ``traceparent`` stays as it came: MQTT forwards
user properties unaltered [MQTT-3.3.2-17].
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

from weft.edge_node.counters import TraceCounters
from weft.edge_node.ingest.record import Gathering, Records, Source
from weft.network.tracing import Attribute, Span, TraceContext, found_in
from weft.protocols.batch import HEADER_PAIRS_MAX, HeaderPairs
from weft.protocols.message_headers import TRACE
from weft.protocols.ranges import PackedHeaders, RangeSet

ACCEPT, LINK = "weft accept", "weft link"
HEADER_ROOM = 8
"""Headers of a record that stay free for those that the node adds later."""
AWAITED_MAX = 4096
"""Maximum number of traced records whose acknowledgement by a hub is awaited; the oldest have no span of the link."""
TOPIC_CHARACTERS_MAX = 256
CLIENT_SHARE = 4
"""One client may use the rate's part of this number."""


class TraceSettings(NamedTuple):
    """Choice of the messages to trace."""

    sample_ratio: float
    """Part of the messages without a context."""
    rate_max: int
    """Traced messages a second."""
    attributes: Mapping[str, Attribute]
    """Attributes of all spans: the node's name, tenant and log."""


class _Opened:
    """A span of a message that is not durable yet: also of several that came with the same headers in one turn."""

    __slots__ = ("context", "count", "first", "parent", "records", "start")

    def __init__(
        self, records: Records, first: int, context: TraceContext, parent: TraceContext | None, start: int
    ) -> None:
        self.records, self.first = records, first
        self.context, self.parent = context, parent
        self.start = start
        self.count = 0


class _Awaited(NamedTuple):
    """A durable record that a hub has not acknowledged."""

    seq: int
    context: TraceContext
    since: int
    attributes: Mapping[str, Attribute]


class Traces:
    """The spans of one node. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        settings: TraceSettings,
        counters: TraceCounters,
        offer: Callable[[Span], None],
        on_durable: Callable[[Callable[[BaseException | None], None]], None],
        links_of: Callable[[int], Collection[str]],
        streams: Callable[[], Mapping[str, int]],
        wall_clock: Callable[[], int],
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        """Trace from the next message on.

        Args:
            offer: takes finished spans.
            on_durable: the log's.
            links_of: returns the links that carry a stream.
            streams: returns the numbers of the log's streams, by their names.
            wall_clock: nanoseconds since 1970.
            clock: monotonic seconds.
        """
        self._settings = settings
        self._offer, self._on_durable = offer, on_durable
        self._links_of, self._streams = links_of, streams
        self._names: dict[int, str] = {}
        self._wall_clock, self._clock, self._rng = wall_clock, clock, rng
        self._counters = counters
        self._opened: list[_Opened] = []
        """Spans of the records that are being stored."""
        self._unpicked = self._gap() if settings.sample_ratio else 0
        """Number of records until the next one that is picked."""
        self._second = -math.inf
        self._in_second = 0
        self._by_client: dict[object, int] = {}
        self._awaited: dict[tuple[str, int], deque[_Awaited]] = {}
        """(link, stream) -> its records, by their numbers."""
        self._awaited_count = 0

    # --- storing

    def begin(self, gathered: Gathering) -> None:
        """Open the spans of records that are stored next, and mark these records."""
        self._opened = []
        picks = self._settings.sample_ratio > 0
        for destination, records in gathered.groups.items():
            if destination.is_beside:
                continue
            if records.headers:
                self._follow(records)
            if picks:
                self._pick(records)

    def stored(self) -> None:
        """Close the spans of the records passed to ``begin`` once they are durable."""
        opened, self._opened = self._opened, []
        if opened:
            self._on_durable(partial(self._durable, opened))

    def _follow(self, records: Records) -> None:
        """Open spans of records whose publishers trace them. Records of one request share their headers."""
        known: dict[int, tuple[HeaderPairs, _Opened | None, HeaderPairs]] = {}
        for index, headers in records.headers.items():
            seen = known.get(id(headers))
            if seen is None:
                parent, opened = found_in(headers), None
                if parent is not None and parent.is_sampled and self._admits(records.sources[index]):
                    opened = self._open(records, index, parent)
                # The headers are kept, so that their id is no other's.
                seen = known[id(headers)] = headers, opened, headers if opened is None else _marked(headers, opened)
            _, opened, marked = seen
            if opened is not None:
                opened.count += 1
                records.headers[index] = marked

    def _pick(self, records: Records) -> None:
        """Open spans of records that are picked by the ratio."""
        count, at = len(records.keys), self._unpicked
        while at < count:
            headers = records.headers.get(at, ())
            if found_in(headers) is None and self._admits(records.sources[at]):
                opened = self._open(records, at, None)
                opened.count = 1
                records.headers[at] = _marked(headers, opened)
            at += 1 + self._gap()
        self._unpicked = at - count

    def _gap(self) -> int:
        """Return the number of records before the next one that is picked: each is picked with the same
        probability."""
        ratio = self._settings.sample_ratio
        return 0 if ratio >= 1 else int(math.log(1 - self._rng.random()) / math.log(1 - ratio))

    def _open(self, records: Records, index: int, parent: TraceContext | None) -> _Opened:
        trace_id = self._rng.getrandbits(128) or 1 if parent is None else parent.trace_id
        context = TraceContext(trace_id, self._rng.getrandbits(64) or 1)
        opened = _Opened(records, index, context, parent, self._wall_clock())
        self._opened.append(opened)
        self._counters.traced_messages += 1
        return opened

    def _admits(self, source: Source) -> bool:
        """Return whether the rate has room for a message of a client."""
        now = self._clock()
        if now - self._second >= 1:
            self._second, self._in_second = now, 0
            self._by_client.clear()
        client = getattr(source, "owner", None) or source.publisher or id(source)
        used, rate = self._by_client.get(client, 0), self._settings.rate_max
        if self._in_second >= rate or used >= max(1, rate // CLIENT_SHARE):
            self._counters.trace_rate_exceeded += 1
            return False
        self._in_second += 1
        self._by_client[client] = used + 1
        return True

    # --- ends

    def _durable(self, opened: list[_Opened], error: BaseException | None) -> None:
        now = self._wall_clock()
        for each in opened:
            places = _places(each)
            attributes = self._attributes(each, places)
            why = f"not stored: {error}" if error is not None else ""
            if not why and each.records.by_stream and not places:
                why = "not stored: the log has refused it"
            self._offer(Span(ACCEPT, each.context, each.parent, each.start, now, attributes, why))
            if not why:
                for stream, seq in places:
                    self._await(stream, _Awaited(seq, each.context, now, attributes))

    def _attributes(self, opened: _Opened, places: list[tuple[int, int]]) -> Mapping[str, Attribute]:
        records, index = opened.records, opened.first
        topic = records.keys[index].decode(errors="replace")[:TOPIC_CHARACTERS_MAX]
        found: dict[str, Attribute] = {
            **self._settings.attributes,
            "messaging.destination.name": topic,
            "messaging.message.body.size": len(records.payloads[index]),
        }
        if protocol := getattr(records.sources[index], "protocol", ""):
            found["network.protocol.name"] = protocol
        if opened.count > 1:
            found["messaging.batch.message_count"] = opened.count
        if places:
            stream, found["weft.seq"] = places[0]
            found["weft.stream"] = self._stream_name(stream)
        return found

    def _stream_name(self, stream: int) -> str:
        if stream not in self._names:
            self._names = {number: name for name, number in self._streams().items()}
        return self._names.get(stream, "")

    def _await(self, stream: int, awaited: _Awaited) -> None:
        for link in self._links_of(stream):
            if self._awaited_count >= AWAITED_MAX:
                self._drop_oldest()
            self._awaited.setdefault((link, stream), deque()).append(awaited)
            self._awaited_count += 1

    def _drop_oldest(self) -> None:
        """Forget the oldest record of the link and stream that has the oldest one."""
        oldest = min(self._awaited, key=lambda place: self._awaited[place][0].since)
        self._awaited[oldest].popleft()
        self._awaited_count -= 1
        if not self._awaited[oldest]:
            del self._awaited[oldest]

    def released(self, link: str, stream: int, ranges: RangeSet) -> None:
        """Close the spans of a link for records that its hub has acknowledged."""
        waiting = self._awaited.get((link, stream))
        if not waiting:
            return
        now, left = self._wall_clock(), deque[_Awaited]()
        for each in waiting:
            if each.seq not in ranges:
                left.append(each)
                continue
            context = TraceContext(each.context.trace_id, self._rng.getrandbits(64) or 1)
            attributes = {
                **each.attributes,
                "weft.stream": self._stream_name(stream),
                "weft.seq": each.seq,
                "weft.link": link,
            }
            self._offer(Span(LINK, context, each.context, each.since, now, attributes))
        self._replace((link, stream), left)

    def _replace(self, place: tuple[str, int], left: deque[_Awaited]) -> None:
        self._awaited_count += len(left) - len(self._awaited.pop(place))
        if left:
            self._awaited[place] = left


def _marked(headers: HeaderPairs, opened: _Opened) -> HeaderPairs:
    """Return the headers of a traced record; unchanged if there is no room, so that the hub has no span of it."""
    if len(headers) > HEADER_PAIRS_MAX - HEADER_ROOM:
        return headers
    pair = (TRACE, str(opened.context))
    return headers.plus(pair) if type(headers) is PackedHeaders else (*headers, pair)


def _places(opened: _Opened) -> list[tuple[int, int]]:
    """Return stream and number of a stored record, of the first of several."""
    found = ((stream, seqs[opened.first]) for stream, seqs in opened.records.by_stream.items() if seqs)
    return [(stream, seq) for stream, seq in found if seq is not None]
