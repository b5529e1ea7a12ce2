"""``raw: discard``: what functions leave out is acknowledged and never written, and sessions get all of it the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiomqtt
import msgspec
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tests.edge_node.servers.mqtt.harness import RawClient
from tests.functions.test_pages import _BLOCK, _CONFIG, PAGES, START
from tests.support import live_node
from tests.support.live_node import LiveNode
from tests.support.waiting import PATIENCE_S, until
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.config.units import Address, parse_duration
from weft.edge_node import node as node_module
from weft.edge_node.check.rules import check
from weft.edge_node.derived.definitions import definitions
from weft.edge_node.derived.part import FunctionsPart
from weft.edge_node.derived.steps import runs_of
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.ingest.record import Gathering, NodeSource
from weft.edge_node.node import EdgeNode
from weft.edge_node.reconfigure import ConfigUnusable
from weft.edge_node.streams import SESSION_TOPICS_STREAM, raw_stream
from weft.functions.chain import Outputs
from weft.functions.contract import Row
from weft.protocols.batch import Record, records
from weft.protocols.mqtt.packets import Will
from weft.storage.segment_log import LogFull, StreamPolicy

CONFIG = """
node: press-hall
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
http: null
disk: {budget: 64MiB, segment: 4MiB}
streams:
  shaking:
    from: "plant/{line}/vibration"
    payload: json
    raw: discard
    functions:
      - where: rms > 2 and line != "test"
      - route: [{where: rms > 9, to: urgent, copy: true}]
      - set: {mm: rms * 10}
  urgent: {replicate: false}
  all: {from: "copies/+", payload: json}
  copied:
    from: "copies/+"
    payload: json
    raw: discard
    functions: [where: rms > 2]
"""


@asynccontextmanager
async def running(directory: Path, text: str = CONFIG) -> AsyncIterator[LiveNode]:
    async with live_node.running(directory, text) as node:
        yield LiveNode(node, directory)


def connect(node: LiveNode, name: str, *, clean: bool = True) -> aiomqtt.Client:
    lasting = Properties(PacketTypes.CONNECT)
    if not clean:
        lasting.SessionExpiryInterval = 600
    return aiomqtt.Client(
        "127.0.0.1",
        node.port,
        identifier=name,
        protocol=aiomqtt.ProtocolVersion.V5,
        clean_start=clean,
        properties=lasting,
    )


def json(**values: Any) -> bytes:
    return msgspec.json.encode(values)


async def test_only_what_the_functions_make_is_written(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connect(node, "device") as device:
        for qos in (0, 1, 2):
            await device.publish("plant/a/vibration", json(rms=1, qos=qos), qos)
            await device.publish("plant/a/vibration", json(rms=3, qos=qos), qos)
        await device.publish("plant/a/vibration", json(rms=10), 1)
        await device.publish("plant/test/vibration", json(rms=11), 1)
        await device.publish("plant/a/vibration", json(rms="n/a"), 1)
        await device.publish("plant/a/vibration", b"{", 1)
        assert await node.payloads("shaking") == [
            *({"rms": 3, "qos": qos, "mm": 30} for qos in (0, 1, 2)),
            {"rms": 10, "mm": 100},
        ]
        assert await node.payloads("urgent") == [{"rms": 10}]
        assert {record.key for record in await node.stored("shaking")} == {b"plant/a/vibration"}
        errors = await node.stored("shaking-errors")
        assert [record.payload for record in errors] == [json(rms="n/a"), b"{"]
        assert dict(errors[0].headers)["weft.reason"] == "cannot compare text with a number: rms is 'n/a'"
        assert await node.stored(raw_stream("shaking")) == []
        assert await node.stored("unrouted") == []
        figures = node.node.part(FunctionsPart).figures()["shaking"]
        assert (figures.rows_in, figures.rows_out, figures.rows_rejected, figures.rows_routed) == (10, 4, 2, 1)


async def test_it_survives_a_restart(tmp_path: Path) -> None:
    for number in range(3):
        async with running(tmp_path) as node, connect(node, "device") as device:
            await device.publish("plant/a/vibration", json(rms=3 + number), 1)
            await device.publish("plant/a/vibration", json(rms=1), 1)
            assert [each["rms"] for each in await node.payloads("shaking")] == [3, 4, 5][: number + 1]


async def test_subscribers_and_sessions_get_every_message_as_it_came(tmp_path: Path) -> None:
    sent = [json(rms=number) for number in range(6)]
    async with running(tmp_path) as node:
        async with connect(node, "away", clean=False) as away:
            await away.subscribe("plant/+/vibration", 1)
        async with connect(node, "here") as here, connect(node, "device") as device:
            await here.subscribe("plant/#", 1)
            for payload in sent:
                await device.publish("plant/a/vibration", payload, 1)
            assert await received(here, len(sent)) == sent
        assert [each["rms"] for each in await node.payloads("shaking")] == [3, 4, 5]
    async with running(tmp_path) as node, connect(node, "away", clean=False) as away:
        assert await received(away, len(sent)) == sent


async def test_a_retained_message_and_a_will_are_what_they_were(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        gone = await RawClient.connect(node.port, "gone", will=Will(b"plant/b/vibration", json(rms=7), 1))
        async with connect(node, "here") as here, connect(node, "device") as device:
            await here.subscribe("plant/b/#", 1)
            await device.publish("plant/a/vibration", json(rms=1), 1, retain=True)
            await gone.close()
            assert await received(here, 1) == [json(rms=7)]
        assert await node.payloads("shaking") == [{"rms": 7, "mm": 70}]
    async with running(tmp_path) as node, connect(node, "later") as later:
        await later.subscribe("plant/a/vibration", 1)
        assert await received(later, 1) == [json(rms=1)]


async def test_without_a_session_nothing_is_kept_for_one(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connect(node, "here") as here, connect(node, "device") as device:
        await here.subscribe("plant/#", 1)
        await device.publish("plant/a/vibration", json(rms=1), 1)
        assert await received(here, 1) == [json(rms=1)]
        assert await node.stored(SESSION_TOPICS_STREAM) == []


async def test_another_stream_of_the_topic_has_the_messages_as_they_came(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        async with connect(node, "away", clean=False) as away:
            await away.subscribe("copies/+", 1)
        async with connect(node, "device") as device:
            for rms in (1, 3):
                await device.publish("copies/a", json(rms=rms), 1)
        assert await node.payloads("all") == [{"rms": 1}, {"rms": 3}]
        assert await node.payloads("copied") == [{"rms": 3}]
        async with connect(node, "away", clean=False) as away:
            assert await received(away, 2) == [json(rms=1), json(rms=3)]
        assert await node.stored(SESSION_TOPICS_STREAM) == []


async def test_the_reason_code_says_that_something_took_the_message(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connect(node, "device") as device:
        codes: list[ReasonCode] = []
        done = asyncio.Event()

        def published(*reported: Any) -> None:
            codes.append(reported[3])
            done.set()

        device._client.on_publish = published
        device._client.publish("plant/a/vibration", json(rms=1), 1)
        await asyncio.wait_for(done.wait(), PATIENCE_S)
        assert [str(code) for code in codes] == ["Success"]


async def test_a_full_stream_refuses_what_it_would_get_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        log, ingest = node.node.log, node.node.batch._store
        assert isinstance(ingest, Ingest)
        log.set_policy(log.stream("shaking"), StreamPolicy("refuse", retain_bytes=5_000))
        first, one, other = NodeSource("first"), NodeSource("one"), NodeSource("other")
        topic = b"plant/a/vibration"

        def gathered(*sent: tuple[NodeSource, float, int]) -> Gathering:
            found = Gathering()
            for source, rms, size in sent:
                pad = random.Random(size).randbytes(size // 2).hex()
                found.add(ingest.routing.route(topic), topic, json(rms=rms, pad=pad), source)
            return found

        assert ingest.store_each(gathered((first, 3, 4_000))) == {}
        assert len(await node.stored("shaking")) == 1
        refused = ingest.store_each(gathered((one, 1, 4_000), (other, 3, 6_000), (one, 0, 10), (other, 1, 10)))
        assert set(refused) == {other}
        assert isinstance(refused[other], LogFull)
        with pytest.raises(LogFull), log.together(20_000):
            ingest.store(gathered((one, 1, 10), (other, 3, 6_000)))
        assert len(await node.stored("shaking")) == 1


async def received(client: aiomqtt.Client, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        async for message in client.messages:
            found.append(bytes(message.payload))
            if len(found) == count:
                return found
    raise AssertionError("the client is closed")


async def test_a_function_that_fails_loses_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.functions.routing import Where

    def broken(*_: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Where, "process", broken)
    async with running(tmp_path) as node, connect(node, "device") as device:
        await device.publish("plant/a/vibration", json(rms=3), 1)
        (error,) = await node.stored("shaking-errors")
        assert (error.payload, dict(error.headers)["weft.reason"]) == (
            json(rms=3),
            "the functions failed: RuntimeError",
        )


async def test_a_key_that_is_missing_stops_the_start(tmp_path: Path) -> None:
    text = CONFIG.replace("- set: {mm: rms * 10}", "- redact: {hash: [id], key_file: key}")
    with pytest.raises(OSError, match=r"streams.shaking: cannot read .*key"):
        async with running(tmp_path, text):
            pass
    (tmp_path / "key").write_text("0123456789abcdef")
    (tmp_path / "key").chmod(0o600)
    async with running(tmp_path, text) as node, connect(node, "device") as device:
        await device.publish("plant/a/vibration", json(rms=3, id="x"), 1)
        (made,) = await node.payloads("shaking")
        assert len(made["id"]) == 32


async def test_changed_functions_are_taken_over(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connect(node, "device") as device:
        await device.publish("plant/a/vibration", json(rms=3), 1)
        node.apply(CONFIG.replace("rms > 2 and", "rms > 4 and").replace("mm:", "um:"))
        for rms in (3, 5):
            await device.publish("plant/a/vibration", json(rms=rms), 1)
        assert await node.payloads("shaking") == [{"rms": 3, "mm": 30}, {"rms": 5, "um": 50}]
        keyless = CONFIG.replace("- set: {mm: rms * 10}", "- redact: {hash: [id], key_file: key}")
        with pytest.raises(ConfigUnusable, match=r"functions before the log: streams.shaking: cannot read .*key"):
            node.apply(keyless)
        await device.publish("plant/a/vibration", json(rms=6), 1)
        assert (await node.payloads("shaking"))[-1] == {"rms": 6, "um": 60}
        stored = CONFIG.replace("    raw: discard\n", "", 1).replace("rms > 2 and", "rms > 7 and")
        node.apply(stored)
        await device.publish("plant/a/vibration", json(rms=6), 1)
        await device.publish("plant/a/vibration", json(rms=8), 1)
        await until(lambda: node.node.part(FunctionsPart).figures()["shaking"].rows_out == 1)
        assert (await node.payloads("shaking"))[-1] == {"rms": 8, "mm": 80}
        assert node.node.part(FunctionsPart).figures()["shaking"].rows_in == 2


async def test_what_earlier_settings_stored_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as stuck:
        stuck.setattr(FunctionsPart, "start", lambda _: None)
        stored = CONFIG.replace("    raw: discard\n", "", 1)
        async with running(tmp_path, stored) as node, connect(node, "device") as device:
            await device.publish("plant/a/vibration", json(rms=3), 1)
            assert len(await node.stored(raw_stream("shaking"))) == 1
            assert await node.stored("shaking") == []
    async with running(tmp_path) as node, connect(node, "device") as device:
        async with asyncio.timeout(PATIENCE_S):
            while not await node.stored("shaking"):
                await device.publish("plant/a/vibration", json(rms=1), 1)
        await device.publish("plant/a/vibration", json(rms=5), 1)
        assert await node.payloads("shaking") == [{"rms": 3, "mm": 30}, {"rms": 5, "mm": 50}]
        assert len(await node.stored(raw_stream("shaking"))) <= 1


# --- A stream of errors goes where its stream goes, so it must not have what `redact` keeps from going there


REDACTED_ERRORS_CONFIG = """
node: press-hall
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
http: null
disk: {budget: 64MiB, segment: 4MiB}
streams:
  shifts:
    from: "plant/{line}/shift"
    payload: json
RAW    functions:
      - where: parts > 0
      - redact: {remove: [name, operator.name], headers: [cookie]}
      - set: {rate: parts / hours}
      - where: rate > 1
"""
WITHHELD = "The payload and the reason are left out, as redact comes later"
BEFORE, BEHIND, TWICE = json(parts="Kim"), json(parts=8, hours=0, name="Kim"), json(parts=1, operator="Kim")


def reasons(errors: list[Record]) -> list[Any]:
    return [dict(record.headers)["weft.reason"] for record in errors]


@pytest.mark.parametrize("raw", ["", "    raw: discard\n"], ids=["from the log", "before the log"])
async def test_errors_have_nothing_that_is_redacted(raw: str, tmp_path: Path) -> None:
    with_cookie = Properties(PacketTypes.PUBLISH)
    with_cookie.UserProperty = [("cookie", "Kim"), ("shift", "early")]
    sent = [json(parts=8, hours=2, name="Kim"), BEFORE, BEHIND, b'{"name": "Kim"', TWICE]
    async with running(tmp_path, REDACTED_ERRORS_CONFIG.replace("RAW", raw)) as node, connect(node, "device") as device:
        for payload in sent:
            await device.publish("plant/a/shift", payload, 1, properties=with_cookie)
        await until(lambda: figures(node.node) == (5, 1, 4))
        errors, kept = await node.stored("shifts-errors"), await node.stored("shifts")
    assert b"Kim" not in b"".join(record.payload for record in [*errors, *kept])
    assert "Kim" not in str([record.headers for record in [*errors, *kept]])
    assert reasons(errors) == [
        f"where failed. {WITHHELD}",
        "rate: division by zero: hours is 0",
        "it is not JSON",
        "operator is not a mapping, so operator.name cannot be redacted",
    ]
    # What fails behind `redact` is there as it was then, so that it can be mended.
    assert [record.payload for record in errors] == [b"", json(parts=8, hours=0), b"", b""]
    assert ("shift", "early") in errors[1].headers
    sources = [dict(record.headers).get("weft.source") for record in errors]
    assert sources == ([None] * 4 if raw else [f"weft-raw-shifts {seq}" for seq in (1, 2, 3, 4)])


def figures(node: EdgeNode) -> tuple[int, int, int]:
    found = node.part(FunctionsPart).figures()["shifts"]
    return found.rows_in, found.rows_out, found.rows_rejected


async def test_originals_stay_whole_where_nothing_is_redacted(tmp_path: Path) -> None:
    text = REDACTED_ERRORS_CONFIG.replace("RAW", "    raw: discard\n").replace(
        "      - redact: {remove: [name, operator.name], headers: [cookie]}\n", ""
    )
    async with running(tmp_path, text) as node, connect(node, "device") as device:
        await device.publish("plant/a/shift", BEHIND, 1)
        await device.publish("plant/a/shift", json(parts=1, hours=1, name="Kim"), 1)
        await until(lambda: figures(node.node)[0] == 2)
        (error,) = await node.stored("shifts-errors")
    assert error.payload == BEHIND


@pytest.mark.parametrize(
    ("functions", "message"),
    [("[{redact: [name]}, {where: parts > 0}]", b""), ("[{where: parts > 0}]", json(name="Kim"))],
    ids=["redacted", "not redacted"],
)
def test_a_row_that_functions_crash_on_is_named_and_not_quoted(functions: str, message: bytes) -> None:
    text = f"node: a\ndata_dir: d\nstreams: {{s: {{from: a, payload: json, functions: {functions}}}}}"
    (definition,) = definitions(parse(text, "edge.yaml", EdgeConfig, check).config)
    outputs = Outputs()
    row = Row(1, b"a", json(name="Kim"), {}, (("cookie", "Kim"),), 7, "raw", json(name="Kim"))
    definition.make_chain().entry(outputs).reject(row, "the functions failed: KeyError: 'Kim'")
    (run,) = runs_of(outputs, 1, 2, {}, after=0, last={})
    assert run.payloads == [message]
    assert ("Kim" in str(run.headers)) == bool(message)
    assert dict(run.headers[0])["weft.source"] == "raw 7"


# --- The examples on the pages of reducers, on a real node: published over MQTT, and read back from its log
#
# Only the clock is the test's, so that the messages are as far apart as the page says.


REDUCERS = ("sample", "deadband", "swinging_door", "changes", "dedupe")
SECOND = 10**9


class Example(NamedTuple):
    config: str
    topic: str
    every: str
    input: list[str]
    outputs: dict[str, list[Any]]
    """Stream -> the values that come out."""


def example(name: str) -> Example:
    text = (PAGES / f"{name}.md").read_text()
    config, blocks = _CONFIG.search(text), _BLOCK.findall(text)
    assert config is not None
    ((topic, every, lines),) = (block[1:] for block in blocks if block[0] == "input")
    outputs = {stream: body.splitlines() for kind, stream, _, body in blocks if kind == "output"}
    decoded = {stream: [msgspec.json.decode(line) for line in body] for stream, body in outputs.items()}
    return Example(config[1], topic, every, lines.splitlines(), decoded)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(node_module, "wall_clock", made)
    return made


@asynccontextmanager
async def pages_on_a_node_running(config: str, folder: Path) -> AsyncIterator[EdgeNode]:
    config = config.replace("/var/lib/weft/press-hall", str(folder / "data"))
    text = f'{config}\nhttp: null\nlisteners: {{mqtt: {{bind: "127.0.0.1:0"}}}}\n'
    async with live_node.running(folder, text) as node:
        yield node


@asynccontextmanager
async def client(node: EdgeNode) -> AsyncIterator[aiomqtt.Client]:
    address = node.addresses["mqtt"]
    assert isinstance(address, Address)
    async with aiomqtt.Client(address.host, address.port, identifier="device") as found:
        yield found


def read(node: EdgeNode, stream: str) -> list[Record]:
    number, found = node.log.stream(stream), list[Record]()
    while batches := node.log.read(number, found[-1].seq + 1 if found else 0, 1 << 20):
        found += [record for data in batches for record in records(data)]
    return found


def values(found: list[Record]) -> list[Any]:
    return [msgspec.json.decode(record.payload) for record in found]


def caught_up(node: EdgeNode, rows: int) -> bool:
    figures = node.part(FunctionsPart).figures().values()
    assert not any(each.failures or each.trouble for each in figures)
    return all(each.lag == 0 for each in figures) and any(each.rows_in >= rows for each in figures)


@pytest.mark.parametrize("name", REDUCERS)
async def test_the_example_runs_on_a_node(name: str, tmp_path: Path, clock: Clock) -> None:
    page = example(name)
    async with pages_on_a_node_running(page.config, tmp_path) as node, client(node) as device:
        for at, line in enumerate(page.input):
            await device.publish(page.topic, line, qos=1)
            await until(lambda at=at: caught_up(node, at + 1))  # type: ignore[misc]
            clock.now += round(parse_duration(page.every) * SECOND)
        clock.now += 3600 * SECOND
        for stream, expected in page.outputs.items():
            await until(lambda: len(read(node, stream)) >= len(expected))
            assert values(read(node, stream)) == expected


async def test_a_node_that_stops_in_between_goes_on_where_it_was(tmp_path: Path, clock: Clock) -> None:
    page = example("swinging_door")
    ((stream, expected),) = page.outputs.items()
    for at, line in enumerate(page.input):
        async with pages_on_a_node_running(page.config, tmp_path) as node, client(node) as device:
            await device.publish(page.topic, line, qos=1)
            # With the last one or without: what no step has is read again by the next node.
            await until(lambda at=at: caught_up(node, at % 2))  # type: ignore[misc]
        clock.now += SECOND
    async with pages_on_a_node_running(page.config, tmp_path) as node:
        clock.now += 3600 * SECOND
        await until(lambda: len(read(node, stream)) >= len(expected))
        found = read(node, stream)
        assert values(found) == expected
        assert {record.headers for record in found} == {(("weft.swinging_door.level", 0.5),)}
        assert [record.time // SECOND - START // SECOND for record in found] == [0, 4, 7]


async def test_bad_input_goes_to_the_errors_and_stops_nothing(tmp_path: Path, clock: Clock) -> None:
    page = example("deadband")
    bad = [b"", b"{", b"7", b'{"t": NaN}', b'{"t": 1e999}', b'{"t": "x"}', b"\xff", b'{"t": 20.1}', b"[" * 5000]
    async with pages_on_a_node_running(page.config, tmp_path) as node, client(node) as device:
        for payload in (b'{"t": 20.0}', *bad, b'{"t": 99.0}'):
            await device.publish(page.topic, payload, qos=1)
        await until(lambda: [each.payload for each in read(node, "temperatures")][-1:] == [b'{"t": 99.0}'])
        assert caught_up(node, len(bad) + 2)
        kept = [record.payload for record in read(node, "temperatures")]
        assert kept[0] == b'{"t": 20.0}'
        refused = read(node, "temperatures-errors")
        # Each bad payload is kept as it came, is among the errors with a reason, or is near the row before it.
        assert {*kept, *(record.payload for record in refused)} >= {*bad} - {b'{"t": 20.1}'}
        assert all(dict(record.headers)["weft.reason"] for record in refused)
