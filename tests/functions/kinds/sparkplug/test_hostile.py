"""What one client may make of the memory of all, and of the time of the node."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from tests.functions.kinds.sparkplug.messages import Plant, made, number, requests, temperature
from tests.functions.restart import run, stateful
from weft.functions import sparkplug
from weft.functions.contract import Row
from weft.functions.formats import PAYLOAD_BYTES_MAX
from weft.functions.sparkplug_payloads import Payload

EMPTY = {"datatype": 3, "is_null": True}


def test_births_have_a_bound_for_all_and_for_one_edge_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparkplug, "NODE_METRICS_MAX", 6)
    plant = Plant()
    many = [EMPTY | {"name": f"m{at}"} for at in range(4)]
    plant.say("NBIRTH line1", number(0), *many, seq=0)
    plant.say("DBIRTH line1/pump", *many, seq=1)  # five and four: too many for one
    plant.say("NBIRTH line2", number(0), seq=0)
    plant.say("NBIRTH line3", number(0), seq=0)  # a third source
    plant.say("NBIRTH line2", number(0), *many, seq=0)  # eleven are too many for all
    chain = run(lambda: made(sources_max=2, metrics_max=9), plant.rows)
    assert chain.out.rejected() == [
        "an edge node with its devices has at most 6 metrics",
        "births of at most 2 edge nodes and devices with 9 metrics are remembered",
        "births of at most 2 edge nodes and devices with 9 metrics are remembered",
    ]
    # Those that are known may be born again.
    plant.say("NBIRTH line1", number(0), temperature(), seq=0)
    assert len(run(lambda: made(sources_max=2, metrics_max=9), plant.rows).out.rejected()) == 3


def test_strangers_take_no_more_than_their_places() -> None:
    plant = Plant()
    for at in range(500):
        plant.say(f"NDATA stranger{at}", {"alias": 1}, seq=0, after=0.001)
    chain = run(lambda: made(sources_max=50), plant.rows)
    assert len(stateful(chain.function).values) == 100
    chain.tick_before(plant.rows[-1].time + 10**12)
    assert len(requests(chain)) == 100
    assert stateful(chain.function).values == {}


def test_a_long_payload_takes_bounded_memory() -> None:
    """The shortest metrics that become rows, with the longest names in the topic."""
    metric = Payload(metrics=[EMPTY | {"name": "a"}]).SerializeToString()
    hostile = metric * (PAYLOAD_BYTES_MAX // len(metric))
    hostile = hostile[: len(metric) * 10_000]
    plant = Plant()
    plant.publish("spBv1.0/g/DDATA/n/" + "d" * 500, hostile)
    function, (row,) = made(), plant.rows
    tracemalloc.start()
    try:
        made_of_it = function.process([row], _Nothing())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(made_of_it) == 10_000
    assert peak < 160 * PAYLOAD_BYTES_MAX
    assert sum(len(each.key) for each in made_of_it) < 6 << 20


def test_any_bytes_make_rows_or_an_error() -> None:
    chance = random.Random(7)
    plant = Plant()
    plant.born()
    whole = [row.payload or b"" for row in plant.rows]
    for at in range(400):
        message = bytearray(chance.choice(whole))
        for _ in range(chance.randint(0, 3)):
            message[chance.randrange(len(message))] = chance.randrange(256)
        kind = chance.choice(("NBIRTH/line1", "NDATA/line1", "NDEATH/line1", "DBIRTH/line1/pump", "DDATA/line1/pump"))
        plant.publish(
            f"spBv1.0/plant/{kind}",
            bytes(message[: chance.choice((len(message), chance.randint(1, len(message))))]),
            after=at % 3,
        )
    chain = run(made, plant.rows)
    assert len(chain.emitted) > 10
    assert len(chain.out.rejected()) > 10


class _Nothing:
    def reject(self, row: Row, reason: str, cause: Row | None = None) -> None:
        raise AssertionError(reason)

    def route(self, row: Row, stream: str) -> None:
        raise AssertionError(stream)

    def alert(self, topic: bytes, payload: bytes, qos: int, time: int, *, retain: bool, until: int = 0) -> None:
        raise AssertionError(topic)

    def drop(self, row: Row, reason: str) -> None:
        raise AssertionError(reason)
