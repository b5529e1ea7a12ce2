"""Records for queues name their queues, whatever their headers are kept as."""

from __future__ import annotations

import msgspec
import pytest

from weft.edge_node.ingest.record import Destination, Gathering, NodeSource, Route, queued_run
from weft.protocols.batch import HeaderPairs, HeaderValue
from weft.protocols.ranges import PackedHeaders, packed_headers

PAIRS: HeaderPairs = (("unit", "C"), ("amqp.delivery-mode", 2))


class Queue:
    width = 1
    is_of_topic = False

    def __init__(self, number: int) -> None:
        self.header: tuple[str, HeaderValue] = ("weft.queues", number)

    def admit(self, _headers: HeaderPairs, _size: int) -> Queue:
        return self

    def admit_all(self, _size: int) -> Queue:
        return self

    def withdraw(self) -> None: ...


@pytest.mark.parametrize("headers", [(), PAIRS, packed_headers(PAIRS)], ids=["none", "plain", "packed"])
def test_every_record_names_its_own_queues(headers: HeaderPairs) -> None:
    gathered, queues = Gathering(), [Queue(1), Queue(2)]
    for number in (0, 0, 1, 0):
        route = Route(Destination((), False, False), live=False, marked=False, queues=queues[number])
        gathered.add(route, b"a", b"1", NodeSource(None), 0, headers)
    run = queued_run(gathered, {})
    assert [run.headers[at] for at in range(4)] == [(*headers, ("weft.queues", number)) for number in (1, 1, 2, 1)]
    for pairs in run.headers.values():
        if isinstance(pairs, PackedHeaders):
            assert msgspec.msgpack.decode(pairs.packed) == [list(pair) for pair in pairs]
