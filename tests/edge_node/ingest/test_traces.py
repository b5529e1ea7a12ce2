"""Which messages are traced, at what rate, and when their spans end."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from itertools import count

from tests.edge_node.ingest.test_ingest import NotedSource
from weft.edge_node.counters import TraceCounters
from weft.edge_node.ingest.record import Destination, Gathering, Route
from weft.edge_node.ingest.traces import AWAITED_MAX, Traces, TraceSettings
from weft.network.tracing import Span, TraceContext, parse
from weft.protocols.batch import HEADER_PAIRS_MAX, HeaderPairs
from weft.protocols.message_headers import TRACE
from weft.protocols.ranges import RangeSet, packed_headers

ROUTE = Route(Destination((1,), False, False), live=0, marked=False)
LETTERS = Route(Destination((2,), False, False, is_beside=True), live=0, marked=False)
PARENT = TraceContext(0xAA, 0xBB)
SAMPLED: HeaderPairs = (("traceparent", str(PARENT)),)
UNSAMPLED: HeaderPairs = (("traceparent", str(PARENT._replace(is_sampled=False))),)


class TracedNode:
    """The rest of a node: a log of one stream, links, clocks that stand still."""

    def __init__(self, *, ratio: float = 0.0, rate: int = 100_000, links: Collection[str] = ("up",)) -> None:
        self.spans: list[Span] = []
        self.now, self.wall = 50.0, count(1_000)
        self.counters = TraceCounters()
        self._seq = 0
        self._waiting: list[Callable[[BaseException | None], None]] = []
        self.traces = Traces(
            TraceSettings(ratio, rate, {"weft.edge": "press-7"}),
            self.counters,
            self.spans.append,
            self._waiting.append,
            lambda _: links,
            lambda: {"telemetry": 1},
            lambda: next(self.wall),
            lambda: self.now,
            random.Random(4),
        )

    def store(self, gathered: Gathering, error: Exception | None = None, *, full: bool = False) -> list[HeaderPairs]:
        """Store what was gathered; return the headers of the records."""
        self.traces.begin(gathered)
        headers: list[HeaderPairs] = []
        for run in gathered.groups.values():
            numbers = range(self._seq, self._seq + len(run.keys))
            run.seqs = run.by_stream[1] = [None] * len(run.keys) if full else numbers
            self._seq = numbers.stop
            headers += [run.headers.get(index, ()) for index in range(len(run.keys))]
        self.traces.stored()
        waiting, self._waiting[:] = self._waiting.copy(), []
        assert len(waiting) <= 1, "one callback for a turn"
        for callback in waiting:
            callback(error)
        return headers


def gathered(*headers: HeaderPairs, source: NotedSource | None = None) -> Gathering:
    found = Gathering()
    for each in headers:
        found.add(ROUTE, b"plant/1", b"21", source or NotedSource("press"), 0, each)
    return found


def test_a_sampled_message_is_traced_and_its_record_names_the_span() -> None:
    node = TracedNode()
    first, second, third = node.store(gathered(SAMPLED, UNSAMPLED, ()))
    (span,) = node.spans
    assert (span.name, span.parent, span.context.trace_id) == ("weft accept", PARENT, PARENT.trace_id)
    assert span.attributes["weft.seq"] == 0
    assert span.attributes["weft.stream"] == "telemetry"
    assert first == (*SAMPLED, (TRACE, str(span.context)))
    assert (second, third) == (UNSAMPLED, ())
    assert node.counters.traced_messages == 1


def test_messages_of_one_request_are_one_span() -> None:
    node, shared = TracedNode(), packed_headers(SAMPLED)
    headers = node.store(gathered(*[shared] * 500))
    (span,) = node.spans
    assert span.attributes["messaging.batch.message_count"] == 500
    assert {id(each) for each in headers} == {id(headers[0])}, "encoded once for all"
    assert headers[0].packed == packed_headers((*SAMPLED, (TRACE, str(span.context)))).packed  # type: ignore[attr-defined]


def test_the_ratio_picks_among_messages_without_a_context() -> None:
    node = TracedNode(ratio=0.01)
    traced = sum(TRACE in dict(each) for _ in range(400) for each in node.store(gathered(*[()] * 100)))
    assert 300 < traced < 500
    assert len(node.spans) == node.counters.traced_messages == traced
    assert all(span.parent is None for span in node.spans)
    assert len({span.context.trace_id for span in node.spans}) == traced
    node = TracedNode(ratio=1.0)
    assert node.store(gathered(UNSAMPLED)) == [UNSAMPLED], "its publisher has decided"
    marked = node.store(gathered((("unit", "C"),)))
    assert marked[0][0] == ("unit", "C")
    assert parse(marked[0][1][1]) == node.spans[0].context


def test_the_rate_is_bounded_and_one_client_has_a_quarter() -> None:
    node = TracedNode(rate=40)
    node.store(gathered(*[(*SAMPLED, ("n", number)) for number in range(100)], source=NotedSource("greedy")))
    assert (len(node.spans), node.counters.trace_rate_exceeded) == (10, 90)
    node.store(gathered(SAMPLED, source=NotedSource("good")))
    assert len(node.spans) == 11
    for number in range(100):
        node.store(gathered(SAMPLED, source=NotedSource(f"device-{number}")))
    assert len(node.spans) == 40
    node.now += 1
    node.store(gathered(SAMPLED, source=NotedSource("greedy")))
    assert len(node.spans) == 41


def test_a_message_that_is_not_stored_says_so() -> None:
    node = TracedNode()
    node.store(gathered(SAMPLED), full=True)
    node.store(gathered(SAMPLED), OSError("the disk is gone"))
    assert [span.error for span in node.spans] == ["not stored: the log has refused it", "not stored: the disk is gone"]
    everything = RangeSet([(0, 10)])
    node.traces.released("up", 1, everything)
    assert len(node.spans) == 2, "no hub can have them"


def test_a_store_that_fails_leaves_no_span_to_the_next() -> None:
    node = TracedNode()
    node.traces.begin(gathered(SAMPLED))
    node.store(gathered(()))
    assert node.spans == []


def test_dead_letters_beside_a_message_are_not_traced_again() -> None:
    node, both = TracedNode(), gathered(SAMPLED)
    both.add(LETTERS, b"plant/1", b"21", NotedSource("press"), 0, SAMPLED)
    node.store(both)
    assert len(node.spans) == 1


def test_a_record_without_room_for_a_header_stays_as_it_is() -> None:
    node = TracedNode()
    full = (*SAMPLED, *(("a", 1),) * (HEADER_PAIRS_MAX - 1))
    assert node.store(gathered(full)) == [full]
    assert len(node.spans) == 1


def test_each_link_has_a_span_that_ends_with_its_acknowledgement() -> None:
    node = TracedNode(links=("up", "other"))
    node.store(gathered(SAMPLED, (), (*SAMPLED, ("n", 2))))
    first, third = node.spans
    node.traces.released("up", 1, RangeSet([(0, 2)]))
    node.traces.released("up", 2, RangeSet([(0, 9)]))
    node.traces.released("up", 1, RangeSet([(0, 3)]))
    node.traces.released("up", 1, RangeSet([(0, 3)]))
    node.traces.released("other", 1, RangeSet([(2, 3)]))
    links = node.spans[2:]
    assert [(span.parent, span.attributes["weft.link"], span.attributes["weft.seq"]) for span in links] == [
        (first.context, "up", 0),
        (third.context, "up", 2),
        (third.context, "other", 2),
    ]
    assert all(span.name == "weft link" and span.start == first.end < span.end for span in links)


def test_what_waits_for_a_hub_is_bounded() -> None:
    node = TracedNode()
    for number in range(AWAITED_MAX + 100):
        node.store(gathered((*SAMPLED, ("n", number))))
    node.spans.clear()
    node.traces.released("up", 1, RangeSet([(0, AWAITED_MAX + 100)]))
    assert [span.attributes["weft.seq"] for span in node.spans] == list(range(100, AWAITED_MAX + 100))
