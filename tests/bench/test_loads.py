"""The load generators of AMQP and HTTP against a real node, and how the benchmarks judge what they measure."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bench import amqp, http, nats
from bench.loads import Case, Door, Target, choose, generators, judged, measure, verdict, weft
from bench.report import doors

PROGRAMS = ("amqpload", "amqp1load", "httpload")


def figures(rate: float, cpu: float) -> dict[str, Any]:
    return {"messages_per_s": rate, "server_us_per_message": cpu, "ack_ms_p50": 1.0, "ack_ms_p99": 2.0}


def test_a_target_says_rate_and_processor_time_beside_the_other_server() -> None:
    case = Case("case", "case", "amqpload", {}, (Target("weft", "rival", 3.0), Target("weft", "absent", 2.0)))
    met, absent = judged(case, {"weft": figures(3_000, 5), "rival": figures(1_000, 20)})
    assert (met["value"], met["cpu"], met["met"]) == (3.0, 4.0, True)
    assert (absent["value"], absent["met"]) == (None, None)
    assert "not compared" in verdict(absent)
    (missed,) = judged(
        Case("case", "", "", {}, case.targets[:1]), {"weft": figures(2_999, 5), "rival": figures(1_000, 5)}
    )
    assert missed["met"] is False


@pytest.mark.parametrize("cases", [amqp.CASES, http.CASES, nats.CASES])
def test_cases_are_chosen_by_name(cases: tuple[Case, ...]) -> None:
    assert choose(cases, None) == list(cases)
    assert choose(cases, cases[1].name) == [cases[1]]
    with pytest.raises(ValueError, match="no case 'other'; there are"):
        choose(cases, "other")


def test_the_page_has_a_column_for_each_server() -> None:
    servers = {"weft": figures(3_000, 5), "rival": figures(1_000, 20)}
    case = Case("case", "case", "amqpload", {}, (Target("weft", "rival", 3.0),))
    results = {
        "rabbitmq": "RabbitMQ 3",
        "rounds": 1,
        "seconds": 1.0,
        "load_before": 0.1,
        "fsync_ms": {"p50": 1.0, "p99": 2.0},
        "cases": [{"title": "case", "servers": servers, "targets": judged(case, servers)}],
    }
    lines = doors(results, "rabbitmq")
    assert "| case | 3,000 (5.0 us) | 1,000 (20.0 us) | 1.0 / 2.0 |" in lines
    assert "| case: weft / rival | 3.00 | 4.00 | at least 3: met |" in lines


@pytest.mark.slow
def test_generators_are_answered_by_a_node(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
    pytest.importorskip("proton", reason="AMQP 1.0 needs the extra amqp1")
    tools = generators(tmp_path, PROGRAMS)
    shapes: list[tuple[str, str, dict[str, object]]] = [
        ("amqpload", "amqp", {"c": 5, "w": 10}),
        ("amqpload", "amqp", {"c": 5, "w": 3, "U": True}),
        ("amqpload", "amqp", {"c": 20, "r": 500}),
        ("amqp1load", "amqp", {"c": 5, "w": 10}),
        ("httpload", "http", {"c": 5}),
        ("httpload", "http", {"c": 2, "b": 10}),
        ("httpload", "http", {"c": 2, "b": 10, "n": True}),
    ]
    found = []

    def run(door: Door) -> None:
        for program, protocol, options in shapes:
            found.append(measure(tools[program], door.ports[protocol], door.pid, 0.3, {"W": 0, **options}))

    weft(tmp_path, run)
    assert len(found) == len(shapes)
    assert all(each["messages_per_s"] > 0 and not each["refused"] for each in found)


@pytest.mark.slow
def test_consumers_empty_a_queue(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
    tools = generators(tmp_path, ("amqpload",))
    found = []

    def run(door: Door) -> None:
        port = door.ports["amqp"]
        amqp.fresh_queue(port, None)
        tools["amqpload"].run(port, door.pid, 0.3, {"W": 0, "c": 2, "w": 10})
        found.append(measure(tools["amqpload"], port, door.pid, 20, {"W": 0, "c": 0, "S": 2}))

    weft(tmp_path, run)
    assert found[0]["messages_per_s"] > 0


@pytest.mark.slow
def test_a_stream_of_nats_answers_what_is_published(tmp_path: Path) -> None:
    if shutil.which("cc") is None or nats.nats_program() is None:
        pytest.skip("there is no C compiler (cc), or no nats-server")
    tools = generators(tmp_path, ("natsload",))
    (found,) = nats.one_round(nats.LATER, nats.CASES[1:2], tmp_path, tools, 1).values()
    assert found["messages_per_s"] > 0
    assert not found["refused"]
