"""Queries whose lanes are spread over several edges: a change of the spread, and tasks of the former one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from examples.demo.fabric import get_json
from spark_sinks.blocking import run
from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.lane import SEALED_EPOCH, LaneFact, Position, ProducerLane, Superseded
from spark_sinks.sinks.stream.link import Link
from spark_sinks.sinks.stream.recovery import held_epoch
from spark_sinks.sinks.stream.sink import SendTask, send_marks
from tests.spark_sinks.sinks.stream.conftest import TIME_US, StreamHub, rows, send
from tests.support.waiting import PATIENCE_S
from weft.protocols.lane import format_log_id

SHARDS = range(4)


def sent(hub: StreamHub, stream: str, spread: int, end: int, facts: dict[int, LaneFact] | None = None) -> int:
    """Send all rows up to ``end``, as after a lost checkpoint. Return how many were new."""
    settings = hub.settings(stream, spread=spread)
    answers = [send(settings, rows(shard, range(end)), facts=facts)[shard] for shard in SHARDS]
    for shard, answer in zip(SHARDS, answers, strict=True):
        if facts is None:
            break
        position = Position(answer["offset"], answer["ordinal"])
        facts[shard] = LaneFact(answer["end"], position, answer["epoch"], answer["is_sealed"], answer["behind"])
    return sum(answer["sent"] for answer in answers)


def once(end: int) -> list[tuple[int, ...]]:
    return [(shard, offset, 0) for shard in SHARDS for offset in range(end)]


@pytest.mark.slow
def test_a_query_goes_on_with_another_spread_and_back_again(hub: StreamHub) -> None:
    end = 0
    for spread in (1, 4, 2, 1, 8, 4, 1):
        end += 10
        assert sent(hub, "turned", spread, end) == 10 * len(SHARDS)
        assert sorted(hub.offsets("turned")) == once(end)
    assert sent(hub, "turned", 4, end) == 0
    edges = {record["edge"] for record in hub.stream_records("turned")}
    assert "spark-turned" in edges
    assert len(edges) == 4
    assert hub.problems("turned") == []


@pytest.mark.slow
def test_facts_spare_the_look_up_until_another_spread_has_sent(hub: StreamHub, tmp_path: object) -> None:
    facts: dict[int, LaneFact] = {}
    sent(hub, "facts", 4, 10, facts)
    before = dict(facts)
    settings = hub.settings("facts", spread=4, store=str(tmp_path))
    for shard in SHARDS:
        answer = send(settings, rows(shard, range(20)), facts=facts)[shard]
        assert (answer["sent"], answer["epoch"]) == (10, before[shard].epoch + 1)
    assert sent(hub, "facts", 2, 30) == 10 * len(SHARDS)
    assert sent(hub, "facts", 4, 40, facts) == 10 * len(SHARDS)
    assert sorted(hub.offsets("facts")) == once(40)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (4, 2)])
def test_a_task_of_the_former_spread_adds_nothing_behind_the_look(hub: StreamHub, before: int, after: int) -> None:
    stream = f"late-{before}-{after}"
    resume, reached = threading.Event(), threading.Event()
    ended: list[BaseException] = []

    def paused() -> Iterator[pa.RecordBatch]:
        yield rows(3, range(5000))
        reached.set()
        resume.wait(PATIENCE_S)
        yield rows(3, range(5000, 20_000))

    def zombie() -> None:
        try:
            list(SendTask(hub.settings(stream, spread=before)).run(paused()))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    assert reached.wait(PATIENCE_S)
    send(hub.settings(stream, spread=after), rows(3, range(12_000)))
    resume.set()
    thread.join(PATIENCE_S)
    assert isinstance(ended[0], Superseded)
    assert sorted(hub.offsets(stream)) == [(3, offset, 0) for offset in range(12_000)]


@pytest.mark.slow
def test_marks_reach_the_lanes_of_all_spreads_and_claim_none(hub: StreamHub) -> None:
    facts: dict[int, LaneFact] = {}
    moment = (TIME_US + 1_000_000) * 1000
    for spread, end in ((1, 10), (4, 20)):
        settings = hub.settings("complete", spread=spread, counts=True)
        for shard in SHARDS:
            send(settings, rows(shard, range(end)))
    edges = send_marks(settings, moment)
    assert len(edges) == 4
    answer = get_json(f"{hub.url}/v1/streams/complete/completeness")
    assert answer["complete_up_to"] == "2023-11-14T22:13:21.000000000Z"
    assert len(answer["covers"]) == 2 * len(SHARDS)
    assert sent(hub, "complete", 4, 30, facts) == 10 * len(SHARDS)
    assert send_marks(settings, moment + 10**9, edges=edges) == edges
    before = {shard: fact.epoch for shard, fact in facts.items()}
    sent(hub, "complete", 4, 40, facts)
    assert {shard: fact.epoch - 1 for shard, fact in facts.items()} == before
    answer = get_json(f"{hub.url}/v1/streams/complete/completeness")
    assert answer["complete_up_to"] == "2023-11-14T22:13:22.000000000Z"
    assert SEALED_EPOCH not in before.values()


class WithoutSpreads(ProducerLane):
    """A lane as releases without spreads claim it: by the hub's clock, or where that is behind by the next epoch."""

    def refused(self, held: int) -> None:
        self.epoch = max(self.epoch, held)


@pytest.mark.slow
def test_releases_without_spreads_cannot_claim_the_lane_that_they_know_again(hub: StreamHub) -> None:
    settings = hub.settings("former", patience_s=1.0)
    send(settings, rows(3, range(10)))
    send(hub.settings("former", spread=4), rows(3, range(20)))
    link = Link(settings, lambda lane: run(held_epoch(settings, "", lane)))
    with pytest.raises(SinkError, match=r"Expected `int` <= 9223372036854775807"):
        link.open(WithoutSpreads(settings.lane(3)))
    link.close()
    send(hub.settings("former", spread=4), rows(3, range(30)))
    assert sorted(hub.offsets("former")) == [(3, offset, 0) for offset in range(30)]
    assert hub.problems("former") == []


def reported(*arguments: str) -> str:
    command = [sys.executable, "-m", "weft", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout


@pytest.mark.slow
def test_status_and_trace_name_the_edges_of_a_query(hub: StreamHub) -> None:
    first, second = hub.settings("cause", spread=2), hub.settings("effect", spread=4)
    send(first, rows(3, [7, 8]))
    cause, effect = first.spread_lane(3), second.spread_lane(3)
    origin = {"edge": cause.edge, "log": format_log_id(cause.log_id), "first": 0, "last": 1, "count": 2}
    row = rows(3, [8])
    lineage = row.to_pylist()[0] | {"_lineage": json.dumps([origin])}
    send(second, pa.RecordBatch.from_pylist([lineage], schema=row.schema))
    shown = reported("hub", "status", str(hub.config_path), "--edges", "0")
    assert cause.edge in shown
    assert effect.edge in shown
    streams = ("--stream", "effect", "--stream", "cause")
    record = f"{effect.edge}/{format_log_id(effect.log_id)}/0"
    traced = reported("trace", "--store", hub.store, *streams, "--record", record, "--json")
    assert effect.edge in traced
    assert traced.count(cause.edge) >= 2
