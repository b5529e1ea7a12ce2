"""What one task sends to a real hub: once, whatever was sent before, by whom, and however the rows were cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from examples.demo.fabric import get_json
from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.lane import BatchEncoder, LaneFact, Position, ProducerLane, Row, Superseded
from spark_sinks.sinks.stream.link import Link, ProducerSettings
from spark_sinks.sinks.stream.sink import SendTask
from tests.spark_sinks.sinks.stream.conftest import StreamHub, rows, send
from tests.support.waiting import PATIENCE_S
from weft.protocols.lane import Lane


def no_epoch(lane: Lane) -> int:
    raise AssertionError(f"the epoch of {lane} was looked up")


def test_a_repeated_micro_batch_changes_nothing(hub: StreamHub) -> None:
    settings = hub.settings("repeated")
    first = send(settings, rows(0, range(100)), rows(3, range(40), each=3))
    again = send(settings, rows(0, range(100)), rows(3, range(40), each=3))
    assert (first[0]["sent"], first[3]["sent"], first[3]["end"]) == (100, 120, 120)
    assert [(each["sent"], each["skipped"]) for each in again.values()] == [(0, 100), (0, 120)]
    expected = [(0, offset, 0) for offset in range(100)] + [(3, offset, n) for offset in range(40) for n in range(3)]
    assert sorted(hub.offsets("repeated")) == expected
    assert hub.problems("repeated") == []


def test_micro_batches_that_are_cut_differently_are_recognised_row_by_row(hub: StreamHub) -> None:
    settings = hub.settings("cut")
    send(settings, rows(1, range(70)))
    send(settings, rows(1, range(70, 75)))
    # The checkpoint is lost: everything comes again, in other pieces.
    answers = [send(settings, rows(1, piece)) for piece in (range(30), range(30, 73), range(73, 120))]
    assert [each[1]["sent"] for each in answers] == [0, 0, 45]
    assert hub.offsets("cut") == [(1, offset, 0) for offset in range(120)]
    assert [record["seq"] for record in hub.stream_records("cut")] == list(range(120))


def test_a_record_says_where_it_comes_from_what_made_it_and_when_its_cause_was(hub: StreamHub) -> None:
    settings = hub.settings("told", version="7", topics=("plant/{machine}",))
    lineage = '[{"edge":"press-1","log":"01","first":4,"last":5,"count":2}]'
    row = rows(2, [8]).to_pylist()[0] | {"_lineage": lineage, "_headers": [("unit", "K"), ("weft.subject", "mine")]}
    send(settings, pa.RecordBatch.from_pylist([row], schema=rows(2, [8]).schema))
    (record,) = hub.stream_records("told")
    assert record["edge"] == "spark-told"
    assert record["origin"] == "told@7"
    assert (record["time"], record["clock"]) == ("2023-11-14T22:13:20.000008000Z", "synced")
    assert dict(record["headers"]) == {
        "weft.position": "2:8:0",
        "weft.lineage": lineage,
        "unit": "K",
        "weft.user.weft.subject": "mine",
    }
    assert get_json(f"{hub.url}/v1/streams/told")["fields"] == ["machine"]


def test_a_known_fact_spares_the_look_up_and_a_wrong_store_is_told(hub: StreamHub, tmp_path: object) -> None:
    settings = hub.settings("fact")
    answer = send(settings, rows(0, range(10)))[0]
    blind = hub.settings("fact", store=str(tmp_path))
    known = {0: LaneFact(10, Position(9, 0), answer["epoch"])}
    assert send(blind, rows(0, range(5, 20)), facts=known)[0]["sent"] == 10
    with pytest.raises(SinkError, match="store"):
        send(blind, rows(0, range(30)))
    assert hub.offsets("fact") == [(0, offset, 0) for offset in range(20)]


def test_a_task_that_was_overtaken_stops_and_leaves_completeness_alone(hub: StreamHub) -> None:
    settings = hub.settings("zombie", counts=True)
    resume, reached = threading.Event(), threading.Event()
    ended: list[BaseException] = []

    def paused() -> Iterator[pa.RecordBatch]:
        yield rows(0, range(5000))
        reached.set()  # its lane is open, and a batch is on its way
        resume.wait(PATIENCE_S)
        yield rows(0, range(5000, 20_000))

    def zombie() -> None:
        try:
            list(SendTask(settings).run(paused()))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    assert reached.wait(PATIENCE_S)
    answer = send(settings, rows(0, range(12_000)))[0]
    resume.set()
    thread.join(PATIENCE_S)
    assert answer["end"] == 12_000
    assert isinstance(ended[0], Superseded)
    assert hub.offsets("zombie") == [(0, offset, 0) for offset in range(12_000)]
    reasons = {each["reason"] for each in get_json(f"{hub.url}/v1/streams/zombie/completeness")["held_back_by"]}
    assert reasons == {"no_mark"}


def test_an_epoch_above_the_hubs_clock_is_overcome(hub: StreamHub) -> None:
    """As when the hub's clock was set back, or another node's is behind."""
    settings = hub.settings("ahead", counts=True)
    ahead = 1 << 62
    link = Link(settings, no_epoch)
    lane = ProducerLane(settings.lane(0), ahead)
    link.open(lane)
    link.close()
    assert send(settings, rows(0, range(3)))[0]["epoch"] > ahead
    assert len(hub.stream_records("ahead")) == 3
    reasons = {each["reason"] for each in get_json(f"{hub.url}/v1/streams/ahead/completeness")["held_back_by"]}
    assert "conflict" not in reasons


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"_offset": None}, "_shard and _offset must be those of the record that caused it"),
        ({"_payload": None}, "the row of offset 4 of shard 0 has no payload"),
        ({"_time": None}, "has no time"),
        ({"_time": 1 << 62}, "a stream accepts times between"),
        ({"_key": b"k" * 70_000}, "has a key of 70000 bytes"),
        ({"_payload": bytes(70 << 20)}, "cannot be sent|begins a batch of"),
        ({"_ordinal": -1}, "number the rows of one source record from 0"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(hub: StreamHub, changes: dict[str, object], sentence: str) -> None:
    good = rows(0, [4])
    bad = pa.RecordBatch.from_pylist([good.to_pylist()[0] | changes], schema=good.schema)
    with pytest.raises(SinkError, match=sentence):
        send(hub.settings("bad"), bad)


def test_a_row_behind_an_earlier_micro_batch_is_refused_instead_of_being_lost(hub: StreamHub) -> None:
    with pytest.raises(SinkError, match="a row of offset 4 of shard 0 comes after rows of an earlier micro-batch"):
        send(hub.settings("late"), rows(0, [4]), floors={0: Position(9, 0)})


def test_rows_of_many_batches_keep_their_order(hub: StreamHub) -> None:
    settings = hub.settings("many")
    send(settings, *(rows(0, range(first, first + 10_000)) for first in range(0, 20_000, 10_000)))
    assert hub.offsets("many") == [(0, offset, 0) for offset in range(20_000)]


@pytest.mark.slow
def test_a_hub_that_is_killed_is_waited_for_and_gets_the_rest_once(own_hub: StreamHub) -> None:
    settings = own_hub.settings("killed")
    starts: list[threading.Timer] = []

    def fed() -> Iterator[pa.RecordBatch]:
        for first in range(0, 30_000, 5000):
            if first in (10_000, 20_000):
                for start in starts:
                    start.join()  # a kill beside a start would look like a hub that ends at once
                own_hub.kill()
                starts.append(threading.Timer(0.3, own_hub.start))
                starts[-1].start()
            yield rows(0, range(first, first + 5000))

    answer = next(SendTask(settings).run(fed())).to_pylist()[0]
    for start in starts:
        start.join()
    assert (len(starts), answer["end"], answer["sent"]) == (2, 30_000, 30_000)
    assert own_hub.offsets("killed") == [(0, offset, 0) for offset in range(30_000)]
    assert own_hub.problems("killed") == []


def test_a_wait_for_sparks_rows_is_no_fault_of_the_hub(hub: StreamHub) -> None:
    """The connection is lost meanwhile, as after minutes without a word."""
    settings = hub.settings("slow", patience_s=2.0)
    now = [0.0]
    link = Link(settings, no_epoch, clock=lambda: now[0])
    lane = ProducerLane(settings.lane(0))
    link.open(lane)
    lane.resume(None)
    now[0] += 1000.0
    assert link._connection is not None
    link._connection.abandon()
    lane.add(BatchEncoder(1, 1 << 20).encode([Row(Position(0, 0), 1, b"k", b"p", ())], 0), Position(0, 0))
    link.send(lane)
    link.wait_until_durable()
    link.close()
    assert lane.acked == 1


def test_a_node_that_does_not_answer_is_passed_over(hub: StreamHub) -> None:
    settings = hub.settings("passed", urls=("http://127.0.0.1:9", hub.url))
    assert send(settings, rows(0, range(3)))[0]["sent"] == 3


def test_patience_ends_with_the_reason() -> None:
    settings = ProducerSettings(("http://127.0.0.1:9",), "s", "q", "/nowhere", patience_s=0.2)
    with pytest.raises(SinkError, match=r"has accepted nothing from spark-q for 0.2 s: http://127.0.0.1:9: .*refused"):
        send(settings, rows(0, [1]))
