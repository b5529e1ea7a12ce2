"""The load generators: they send what real fleets send, and their latencies hide no stall."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench import amqp, http, nats, payloads
from bench.brokers import Edge, certificate
from bench.brokers import weft as brokers_weft
from bench.generator import NO_TLS, Generator, build
from bench.loads import Case, Door, Target, choose, generators, judged, measure, verdict, weft
from bench.mqtt.__main__ import parse_settings
from bench.mqtt.cases import CASES, GROUPS, IDLE
from bench.mqtt.cases import Target as CasesTarget
from bench.mqtt.cases import choose as cases_choose
from bench.mqtt.compare import judged as compare_judged
from bench.mqtt.compare import medians, ratios
from bench.mqtt.lines import busy_machine, line, remarks
from bench.report import doors
from tests.bench.broker import Broker, running
from weft.config.load import load
from weft.config.models import EdgeConfig

# --- The load generators of AMQP and HTTP against a real node, and how the benchmarks judge what they measure


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


# --- The MQTT benchmark: which cases are chosen, what is given to the node, and when a target is met


def mqtt_figures(**changes: float) -> dict[str, Any]:
    return {
        "messages_per_s": 100.0,
        "ack_ms_p50": 1.0,
        "ack_ms_p99": 2.0,
        "server_cpu": 0.5,
        "server_us_per_message": 10.0,
        "write_amplification": 0.5,
        "messages_per_commit": 20.0,
        "generator_cpu": 0.2,
        "unacked": 0,
        "other_cores": 0.0,
        **changes,
    }


def result(ours: dict[str, Any], theirs: dict[str, Any] | None) -> dict[str, Any]:
    return {"title": "case", "weft": ours, "mosquitto": theirs, "targets": [], **ratios(CASES[0], ours, theirs)}


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert not set(names) & set(GROUPS)


def test_groups_and_names_choose_cases() -> None:
    assert cases_choose(["v5", IDLE]) == {"v5", IDLE}
    assert cases_choose(["rates"]) == {
        f"rate_{rate}_{count}" for rate in (100, 1000, 5000, 10000) for count in (10, 100, 1000)
    }
    assert cases_choose(GROUPS) == {case.name for case in CASES} | {IDLE}


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no case or group 'rate'; there are .*rate_100_10"):
        cases_choose(["rate"])


def test_settings_reach_the_node(tmp_path: Any) -> None:
    settings = parse_settings("commit_interval=5ms,disk.compression=none")
    assert settings["disk"] == {"compression": "none"}
    brokers_weft(tmp_path, 1883, 8080, None, Edge({"commit_interval": "5ms", "disk": {"compression": "none"}}))
    config = load(str(tmp_path / "edge.yaml"), EdgeConfig).config
    assert config.disk.compression == "none"
    written = yaml.safe_load((tmp_path / "edge.yaml").read_text())
    assert written["commit_interval"] == "5ms"
    assert written["streams"]["load"]["from"] == "plant/{line}/{machine}/telemetry"


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="expected NAME=VALUE, got 'commit_interval'"):
        parse_settings("commit_interval")


def test_the_median_of_each_figure_counts() -> None:
    rounds = [mqtt_figures(ack_ms_p99=p99, server_cpu=cpu) for p99, cpu in ((5, 0.1), (90, 0.3), (7, 0.2))]
    found = medians(rounds)
    assert (found["ack_ms_p99"], found["server_cpu"], found["generator_bound_rounds"]) == (7, 0.2, 0)


def test_rounds_in_which_the_generator_was_the_limit_are_told() -> None:
    busy = medians([mqtt_figures(generator_cpu=cpu) for cpu in (0.95, 0.5, 0.91)])
    reported = remarks(result(medians([mqtt_figures()]), busy), 3)
    assert reported == [
        "  generator above 90% of its core in 2 of 3 rounds with mosquitto: it may be the limit of that rate"
    ]


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (CasesTarget("cpu_ratio", 1.3), 1.3, True),
        (CasesTarget("cpu_ratio", 1.3), 1.31, False),
        (CasesTarget("rate_ratio", 3.0, at_least=True), 3.0, True),
        (CasesTarget("rate_ratio", 3.0, at_least=True), 2.99, False),
        (CasesTarget("ack_ms_p99", 5.0, plus_fsync=True), 5.2, True),
        (CasesTarget("ack_ms_p99", 5.0, plus_fsync=True), 5.3, False),
        (CasesTarget("cpu_ratio", 1.3), None, None),
    ],
)
def test_targets(target: CasesTarget, value: float | None, met: bool | None) -> None:
    assert compare_judged(target, {target.figure: value}, fsync_ms=0.25)["met"] is met


def test_without_mosquitto_there_is_still_a_line() -> None:
    found = result(medians([mqtt_figures()]), None)
    found["targets"] = [compare_judged(CasesTarget("cpu_ratio", 1.3), found, 0.2)]
    assert "CPU <= 1.3: not compared" in line(found)


def test_disturbed_cases_are_named() -> None:
    quiet = {"name": "one", **result(medians([mqtt_figures()]), None)}
    busy = {"name": "two", **result(medians([mqtt_figures()]), medians([mqtt_figures(other_cores=0.9)]))}
    assert busy_machine([quiet]) == ""
    assert busy_machine([quiet, busy]).startswith("other processes used more than 0.2 cores in 1 cases (two): ")


# --- The load generator sends what real fleets send, and its latencies hide no stall


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
    return build(tmp_path_factory.mktemp("generator"))


async def mqttload_load(
    generator: Generator, broker: Broker, seconds: float = 0.3, **options: object
) -> dict[str, Any]:
    """Run the generator without warm-up; its figures."""
    return await asyncio.to_thread(generator.run, broker.port, None, seconds, {"W": 0, **options})


def by_client(broker: Broker) -> dict[str, list[bytes]]:
    found = defaultdict(list)
    for message in broker.messages:
        found[message.client].append(message.payload)
    return found


async def test_neighbours_differ_in_length_on_every_connection(generator: Generator) -> None:
    async with running(Broker()) as broker:
        await mqttload_load(generator, broker, c=5, w=10)
    sent = by_client(broker)
    assert len(sent) == 5
    for sizes in sent.values():
        assert all(len(one) != len(other) for one, other in pairwise(sizes))
    assert len({payloads[0] for payloads in sent.values()}) == 5, "each connection begins somewhere else"
    lines = set(generator.payloads.read_bytes().splitlines())
    assert {message.payload for message in broker.messages} <= lines


async def test_each_connection_has_a_topic_of_its_own(generator: Generator) -> None:
    async with running(Broker()) as broker:
        await mqttload_load(generator, broker, c=10, w=1)
    topics = defaultdict(set)
    for message in broker.messages:
        topics[message.client].add(message.topic)
    assert len(topics) == 10
    assert {len(found) for found in topics.values()} == {1}
    assert set.union(*topics.values()) == {f"plant/line-{n % 8}/m-{n:05}/telemetry" for n in range(10)}


async def test_topics_are_shared_when_asked(generator: Generator) -> None:
    async with running(Broker()) as broker:
        await mqttload_load(generator, broker, c=10, w=1, N=2)
    assert {message.topic for message in broker.messages} == {f"plant/line-{n}/m-{n:05}/telemetry" for n in range(2)}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("shape", [{"c": 3, "w": 4}, {"c": 20, "r": 1000}], ids=["closed", "open"])
async def test_every_quality_of_service_is_counted(
    generator: Generator, qos: int, version: int, shape: dict[str, float]
) -> None:
    async with running(Broker()) as broker:
        figures = await mqttload_load(generator, broker, q=qos, V=version, **shape)
    assert figures["errors"] == 0
    assert 0 < figures["messages"] <= len(broker.messages)
    assert figures["sent_payload_bytes"] >= sum(len(message.payload) for message in broker.messages)
    assert figures["ack_ms"]["p99"] > 0


async def test_an_open_loop_sends_all_that_was_due_from_every_connection(generator: Generator) -> None:
    async with running(Broker()) as broker:
        figures = await mqttload_load(generator, broker, seconds=0.5, c=50, r=400)
    counts = {client: len(payloads) for client, payloads in by_client(broker).items()}
    assert len(counts) == 50
    assert sum(counts.values()) >= 200
    assert max(counts.values()) - min(counts.values()) <= 1, "each publishes at equal intervals"
    assert figures["unacked"] == 0


async def test_a_stall_counts_for_every_message_that_was_due_in_it(generator: Generator) -> None:
    # At 200 a second it takes half a second until 100 have come and the first is acknowledged.
    async with running(Broker(hold_until=100)) as broker:
        figures = await mqttload_load(generator, broker, seconds=0.6, c=10, r=200)
    assert figures["ack_ms"]["max"] > 400
    assert figures["ack_ms"]["p50"] > 150


async def test_a_closed_loop_keeps_no_more_than_the_window_in_flight(generator: Generator) -> None:
    async with running(Broker(hold_until=1_000_000)) as broker:
        await mqttload_load(generator, broker, c=4, w=7)
    assert {len(payloads) for payloads in by_client(broker).values()} == {7}


async def test_tls(generator: Generator, tmp_path: Path) -> None:
    made = certificate(tmp_path)
    if made is None or not generator.has_tls:
        pytest.skip(NO_TLS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    async with running(Broker(), context) as broker:
        figures = await mqttload_load(generator, broker, c=20, w=10, X=True)
    assert len(broker.clients) == 20
    assert 0 < figures["messages"] <= len(broker.messages)


async def test_a_lost_connection_fails_the_run(generator: Generator) -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x20\x02\x00\x05")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SystemExit, match="the load generator failed with status 1"):
            await asyncio.to_thread(generator.run, port, None, 0.2, {"c": 1})


# --- The payloads of the benchmarks are real, varied and always the same


def test_telemetry_is_json_of_many_lengths() -> None:
    lines = payloads.telemetry()
    lengths = [len(line) for line in lines]
    assert len(set(lines)) == payloads.PAYLOADS
    assert 40 <= min(lengths) < 50
    assert 300 < max(lengths) <= 400
    assert len(set(lengths)) > 150
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_neighbours_differ_in_length() -> None:
    lines = payloads.telemetry()
    assert all(len(one) != len(other) for one, other in pairwise([*lines, lines[0]]))


def test_payloads_are_the_same_in_every_run() -> None:
    assert payloads.telemetry() == payloads.telemetry()


def test_no_payload_holds_a_line_end() -> None:
    for lines in (payloads.telemetry(), payloads.sensor(), payloads.random_bytes()):
        assert not any(b"\n" in line for line in lines)
