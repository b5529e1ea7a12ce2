"""Messages that write a value: each is checked, written at most once, read back, and has a record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asyncua import Client, ua

from examples.demo.fabric import free_port
from tests.edge_node.sources.devices import Plant, device, framed, honest, modbus_source, plant, scripted
from tests.edge_node.sources.nodes import NODE, SourceNode, mqtt_source, publish, running
from tests.edge_node.sources.test_opcua_source import PRESS, opcua
from tests.support.opcua_server import OpcuaServer
from tests.support.waiting import until
from weft.config.sources import ModbusDevice, Register, Write
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.links.down_part import DownPart
from weft.edge_node.sources import writes
from weft.edge_node.sources.modbus import LineConnection
from weft.edge_node.sources.modbus_line import Value, blocks
from weft.edge_node.sources.opcua_client import Session
from weft.edge_node.sources.part import SourcesPart
from weft.edge_node.sources.status import SourceState
from weft.edge_node.sources.writes import (
    PAYLOAD_BYTES_MAX,
    WriteRefused,
    WriteUnconfirmed,
    check_same,
    encoded,
    exact,
    value_of,
    whole,
)
from weft.protocols.link import DownMessage

LINE = NODE.replace("plant/#", "line/#")
REGISTERS = (
    "{n: {address: 0}, limit: {address: 20, scale: 0.1}, gain: {address: 30, type: f32, order: CDAB},"
    " pump: {address: 3, kind: coil}, lost: {address: 205}}"
)
WRITES = (
    "      writes:\n"
    "        limit: {device: meter, register: limit, min: 0, max: 100}\n"
    "        gain: {device: meter, register: gain, min: 0, max: 1000}\n"
    "        pump: {device: meter, register: pump, topic: down/pump}\n"
    "        lost: {device: meter, register: lost, min: 0, max: 9}\n"
)


async def written(node: SourceNode, payload: bytes, topic: str) -> dict[str, Any]:
    """The record about one more message, without what is the same in all."""
    before = len(await told(node))
    await publish(node.port, [payload], topic)
    return await one_more(node, before)


async def one_more(node: SourceNode, before: int) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            if len(found := await told(node)) > before:
                return found[before]
            await asyncio.sleep(0.01)


async def told(node: SourceNode) -> list[dict[str, Any]]:
    found = [json.loads(each.payload) for each in await node.stored() if each.key.endswith(b"/$written")]
    return [{key: value for key, value in each.items() if key not in ("source", "write")} for each in found]


@pytest.mark.parametrize(
    ("payload", "kind", "why"),
    [
        (b"NaN", "f32", "the payload is not JSON"),
        (b"1e999", "f64", "the payload is not JSON"),
        (b"-Infinity", "Double", "the payload is not JSON"),
        (b"10.5", "u16", "expected a number from 0.0 to 10.0, got 10.5"),
        (b"-1", "Int32", "expected a number from 0.0 to 10.0, got -1"),
        (b"true", "u16", "expected a number"),
        (b'"7"', "Double", "expected a number"),
        (b"[7]", "Byte", "expected a number"),
        (b"1", "Boolean", "expected true or false"),
        (b"1", "text", "expected a text"),
        (rb'"a\u0000b"', "String", "expected a text without zero bytes"),
        (b'"' + b"x" * PAYLOAD_BYTES_MAX + b'"', "text", f"the limit is {PAYLOAD_BYTES_MAX}"),
        (b"[" * PAYLOAD_BYTES_MAX, "u16", "the payload is not JSON"),
        (b"\xff\xfe", "text", "the payload is not JSON"),
        (b"", "bool", "the payload is not JSON"),
        (b"9" * 4000, "u64", "expected a number from 0.0 to 10.0"),
    ],
)
def test_what_is_no_value_of_the_type_and_range_is_refused(payload: bytes, kind: str, why: str) -> None:
    with pytest.raises(WriteRefused, match=why[:30]):
        value_of(payload, kind, Write(min=0.0, max=10.0))


@pytest.mark.parametrize(
    ("value", "kind"), [(65_536, "u16"), (-1, "UInt64"), (128, "SByte"), (1.5, "i32"), (2**63, "i64")]
)
def test_an_integer_has_no_fraction_and_fits_its_type(value: float, kind: str) -> None:
    with pytest.raises(WriteRefused):
        whole(value, kind)


@pytest.mark.parametrize("order", ["ABCD", "CDAB", "BADC", "DCBA"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [("u16", 513), ("i16", -2), ("u32", 67_305_985), ("i64", -(2**40)), ("f32", 3.1), ("f64", -1e100), ("bool", True)],
)
def test_what_is_written_is_what_is_read(kind: Any, value: Any, order: Any) -> None:
    register = Register(address=7, type=kind, order=order)
    (block,) = blocks([Value("x", register)], ModbusDevice(registers={"x": register}))
    found: dict[str, Any] = {}
    block.decode(encoded(register, value), found)
    assert found == {"x": value}


def test_a_scaled_value_has_to_be_one_that_the_register_can_have() -> None:
    register = Register(address=7, scale=0.1, offset=-40.0)
    assert encoded(register, 21.3) == [613]
    with pytest.raises(WriteRefused, match="whole number"):
        encoded(register, 21.35)
    with pytest.raises(WriteRefused, match="room for 2"):
        encoded(Register(address=7, type="text", length=1), "abc")
    with pytest.raises(WriteRefused, match="no room for 1e"):
        encoded(Register(address=7, type="f32"), 1e39)


@pytest.mark.parametrize(
    ("register", "value", "why"),
    [
        (Register(address=7, type="u64", scale=0.1), 123456789012345.6, "would be 123456789012346.0"),
        (Register(address=7, type="f32"), 16_777_217, "would be 16777216"),
        (Register(address=7, type="f32"), 16_777_217.5, "expected a number from -100"),
        (Register(address=7, type="f32", scale=3.0), 0.1, ""),
        (Register(address=7, type="f32"), 3.14159265358979, ""),
        (Register(address=7, type="f64", scale=1e-300), 1e10, "has no room for"),
        (Register(address=7, type="f64", scale=0.1, offset=-40.0), 21.3, ""),
        (Register(address=7, type="u64", scale=0.001), 1234567890.123, ""),
        (Register(address=7, type="i32", scale=0.01, offset=5.0), 5.07, ""),
    ],
)
def test_what_the_device_would_have_is_what_was_asked_for(register: Register, value: float, why: str) -> None:
    wide = Write(min=-1e300, max=1e300)
    write = Write(min=-100.0, max=16_777_217.5) if "expected" in why else wide
    (block,) = blocks([Value("x", register)], ModbusDevice(registers={"x": register}))
    found: dict[str, Any] = {}
    block.decode(encoded(register, value), found)
    if not why:
        check_same(value, found["x"], register.type or "u16", write, register.offset)
        return
    with pytest.raises(WriteRefused, match=why):
        check_same(value, found["x"], register.type or "u16", write, register.offset)


@pytest.mark.parametrize(("kind", "value"), [("Float", 16_777_217), ("Double", 2**53 + 1), ("Int16", 40_000)])
def test_a_variable_has_the_number_or_is_not_written(kind: str, value: int) -> None:
    with pytest.raises(WriteRefused):
        exact(value, kind, Write(min=0.0, max=1e300))
    assert exact(3, kind, Write(min=0.0, max=10.0)) == 3


def set_in(line: Plant, function: int) -> set[int]:
    return {each.address for each in line.asked if each.function == function}


async def test_a_register_is_written_and_read_back(tmp_path: Path) -> None:
    async with plant(free_port()) as line:
        async with running(tmp_path, modbus_source(line.port, device("meter", REGISTERS), WRITES), LINE) as node:
            await until(lambda: node.source("line").messages)
            assert await written(node, b"12.3", "line/$write/limit") == {
                "outcome": "written",
                "value": 12.3,
                "read_back": 12.3,
            }
            assert (await written(node, b"3.1", "line/$write/gain"))["outcome"] == "written"
            assert (await written(node, b"true", "down/pump"))["read_back"] is True
            refused = await written(node, b"100.1", "line/$write/limit")
            assert refused["outcome"] == "refused"
            lost = await written(node, b"7", "line/$write/lost")
            assert (lost["outcome"], lost["reason"]) == ("refused", "exception 2: illegal data address")
            await publish(node.port, [b"1"], "line/$write/n")  # it is not named

            async def is_polled() -> bool:
                rows = [json.loads(each.payload) for each in await node.stored() if each.key == b"line/meter"]
                return bool(rows[-1]["limit"] == 12.3)

            await until(is_polled)
    assert (set_in(line, 6), set_in(line, 16), set_in(line, 5)) == ({20}, {30}, {3})


async def test_a_device_that_is_away_or_does_otherwise_has_confirmed_nothing(tmp_path: Path) -> None:
    answer: list[Any] = [honest]

    def answered(request: bytes) -> bytes | None:
        return honest(request) if request[7] < 5 else answer[0](request)

    port, registers = free_port(), "{limit: {address: 20}}"
    source = modbus_source(port, device("meter", registers), "\n".join(WRITES.splitlines()[:2]) + "\n")
    async with running(tmp_path, source, LINE) as node:
        await until(lambda: node.source("line").state is SourceState.WAITING)
        away = await written(node, b"5", "line/$write/limit")
        assert (away["outcome"], away["reason"]) == ("refused", "the source is not connected")
        async with scripted(port, answered):
            await until(lambda: node.source("line").messages > 3)
            answer[0] = lambda request: request
            other = await written(node, b"5", "line/$write/limit")
            assert (other["outcome"], other["read_back"]) == ("unconfirmed", 20)
            answer[0] = lambda _: None
            silent = await written(node, b"5", "line/$write/limit")
            assert (silent["outcome"], silent["reason"]) == ("unconfirmed", "no answer within 0.2 s")
            polls = node.source("line").messages
            await until(lambda: node.source("line").messages > polls)
            answer[0] = lambda request: framed(request, bytes([request[7] | 0x80, 4]))
            failed = await written(node, b"5", "line/$write/limit")
            assert (failed["outcome"], failed["reason"][:12]) == ("unconfirmed", "exception 4:")


LIMIT = "\n".join(WRITES.splitlines()[:2]) + "\n"
GAIN = LIMIT + WRITES.splitlines()[2] + "\n"
CONNECT = b"\x10\x0d\0\4MQTT\4\2\0\x3c\0\1d"


async def publish_flagged(port: int, flags: int, topic: bytes, payload: bytes) -> None:
    """Publish at QoS 1 with other flags, which no library lets one set, and wait for the acknowledgement."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = len(topic).to_bytes(2, "big") + topic + b"\0\1" + payload
    writer.write(CONNECT + bytes([0x32 | flags, len(body)]) + body)
    await reader.readexactly(8)
    writer.close()


async def test_a_repetition_a_retained_message_and_one_that_is_not_on_disk_write_nothing(tmp_path: Path) -> None:
    writes = GAIN.replace(
        "register: limit, min: 0, max: 100", "register: limit, min: 0, max: 100, topic: elsewhere/limit"
    )
    async with plant(free_port()) as line:
        source = modbus_source(line.port, device("meter", REGISTERS), writes)
        async with running(tmp_path, source, LINE + "unrouted: live\n") as node:
            await until(lambda: node.source("line").messages)
            for flags, topic, why in (
                (8, b"line/$write/gain", "the message may be a repetition (DUP)"),
                (1, b"line/$write/gain", "the message is retained"),
                (0, b"elsewhere/limit", "the message is not on disk"),
            ):
                before = len(await told(node))
                await publish_flagged(node.port, flags, topic, b"5")
                found = await one_more(node, before)
                assert (found["outcome"], found["reason"].startswith(why)) == ("refused", True), found
            assert (await written(node, b"5", "line/$write/gain"))["outcome"] == "written"
    assert [each.function for each in line.asked if each.function in (6, 16)] == [16]


async def test_commands_for_a_silent_device_are_not_carried_out_later(tmp_path: Path) -> None:
    async with plant(free_port()) as line:
        async with running(tmp_path, modbus_source(line.port, device("meter", REGISTERS), GAIN), LINE) as node:
            await until(lambda: node.source("line").messages)
            line.silence(1)
            await publish(node.port, [str(each).encode() for each in range(40)], "line/$write/gain")
            await one_more(node, 39)
            found = await told(node)
            line.speak(1)
            messages = node.source("line").messages
            await until(lambda: node.source("line").messages > messages + 3)
            assert (await written(node, b"50", "line/$write/gain"))["outcome"] == "written"
    assert {each["outcome"] for each in found} <= {"refused", "unconfirmed"}
    sent = sum(each["outcome"] == "unconfirmed" for each in found)
    assert sent <= 1
    assert sum(each.function == 16 for each in line.asked) == sent + 1


async def test_a_message_that_waited_for_its_turn_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "AGE_S_MAX", 0.3)
    async with plant(free_port()) as line:
        async with running(tmp_path, modbus_source(line.port, device("meter", REGISTERS), LIMIT), LINE) as node:
            await until(lambda: node.source("line").messages)
            runners = node.node.part(SourcesPart)._sources._runners  # type: ignore[union-attr]
            connection = runners["line"].connection
            assert isinstance(connection, LineConnection)
            async with connection.line.turn:
                await publish(node.port, [b"5"], "line/$write/limit")
                over = asyncio.get_running_loop().time() + 0.4
                await until(lambda: asyncio.get_running_loop().time() > over)
            found = await one_more(node, 0)
    assert (found["outcome"], found["reason"][:22]) == ("refused", "the message is too old")
    assert set_in(line, 6) == set()


async def test_what_a_source_reads_from_another_broker_commands_no_device(tmp_path: Path) -> None:
    async with plant(free_port()) as line, running(tmp_path / "other", "", LINE.replace("line/#", "#")) as other:
        devices = modbus_source(line.port, device("meter", REGISTERS), GAIN)
        source = mqtt_source(other.port).replace("plant/#", "line/#").replace("sources:\n", "")
        async with running(tmp_path, devices + source, LINE) as node:
            await until(lambda: node.source("line").messages and node.source().state is SourceState.CONNECTED)
            await publish(other.port, [b"9"], "line/$write/gain")
            await until(lambda: node.source().acknowledged)
            assert (await written(node, b"5", "line/$write/gain"))["value"] == 5
            assert [each["value"] for each in await told(node)] == [5]
    assert sum(each.function == 16 for each in line.asked) == 1


async def test_the_values_that_a_source_reads_are_no_commands_to_it(tmp_path: Path, server: OpcuaServer) -> None:
    writes = (
        '      writes: {speed: {node: "nsu=urn:example:press;s=speed", type: Double, min: 0, max: 10, topic: %s}}\n'
    )
    nodes = '[{path: "Objects/Speed"}]'
    async with running(tmp_path, opcua(server.port, writes % "press/Speed", nodes), PRESS) as node:
        await until(lambda: node.source("press").messages)
        for count, value in enumerate((b"7", b"8"), 1):
            assert (await written(node, value, "press/Speed"))["outcome"] == "written"
            await until(lambda wanted=count: node.source("press").messages > wanted)  # type: ignore[misc]
        assert len(await told(node)) == 2


async def test_writes_of_other_settings_end_at_once(tmp_path: Path) -> None:
    async with plant(free_port()) as line:
        source = modbus_source(line.port, device("meter", REGISTERS), LIMIT)
        async with running(tmp_path, source, LINE) as node:
            await until(lambda: node.source("line").messages)
            line.delay_s[1] = 0.15
            node.apply(LINE.format(name="data") + source.replace(LIMIT, ""))
            await publish(node.port, [b"5"], "line/$write/limit")
            line.delay_s.clear()
            await until(lambda: node.source("line").messages > 3)
            assert await told(node) == []
    assert set_in(line, 6) == set()


async def test_a_record_that_cannot_be_stored_ends_no_later_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plant(free_port()) as line:
        async with running(tmp_path, modbus_source(line.port, device("meter", REGISTERS), LIMIT), LINE) as node:
            await until(lambda: node.source("line").messages)
            with monkeypatch.context() as broken:
                broken.setattr(Ingest, "publish", lambda *_: 1 / 0)
                await publish(node.port, [b"5"], "line/$write/limit")
                await until(lambda: 6 in {each.function for each in line.asked})
                polls = node.source("line").messages
                await until(lambda: node.source("line").messages > polls + 2)
            assert (await written(node, b"6", "line/$write/limit"))["outcome"] == "written"


GOOD, OPEN = ua.StatusCode(), ua.StatusCode(ua.UInt32(ua.StatusCodes.UncertainLastUsableValue))


def status(code: int) -> ua.StatusCode:
    return ua.StatusCode(ua.UInt32(code))


@pytest.mark.parametrize(
    ("answer", "read", "outcome"),
    [
        (GOOD, GOOD, None),
        (status(ua.StatusCodes.BadTypeMismatch), GOOD, WriteRefused),
        (status(ua.StatusCodes.BadUserAccessDenied), GOOD, WriteRefused),
        (status(ua.StatusCodes.BadTimeout), GOOD, WriteUnconfirmed),
        (status(ua.StatusCodes.BadCommunicationError), GOOD, WriteUnconfirmed),
        (status(ua.StatusCodes.BadUnexpectedError), GOOD, WriteUnconfirmed),
        (OPEN, GOOD, WriteUnconfirmed),
        (ua.UaStatusCodeError(ua.StatusCodes.BadServiceUnsupported), GOOD, WriteRefused),
        (ua.UaStatusCodeError(ua.StatusCodes.BadTimeout), GOOD, WriteUnconfirmed),
        (GOOD, OPEN, WriteUnconfirmed),
        (GOOD, status(ua.StatusCodes.BadNotReadable), WriteUnconfirmed),
    ],
)
async def test_an_answer_that_leaves_open_what_happened_is_no_refusal(answer: Any, read: Any, outcome: Any) -> None:
    class Services:
        async def write(self, _: object) -> list[Any]:
            if isinstance(answer, Exception):
                raise answer
            return [answer]

        async def read_attributes(self, *_: object) -> list[ua.DataValue]:
            return [ua.DataValue(ua.Variant(7.0, ua.VariantType.Double), read)]

    session: Any = SimpleNamespace(services=Services())
    writing = Session.write(session, ua.NodeId(1, 0), "Double", 7.0)
    if outcome is None:
        assert (await writing).is_same
        return
    with pytest.raises(outcome):
        await writing


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OpcuaServer]:
    with OpcuaServer(free_port(), tmp_path / "values.log") as found:
        yield found


async def test_a_variable_is_written_by_a_client_and_by_a_hub(tmp_path: Path, server: OpcuaServer) -> None:
    writes = (
        "      writes:\n"
        '        speed: {node: "nsu=urn:example:press;s=speed", type: Double, min: 0, max: 10, topic: down/speed}\n'
        '        wrong: {node: "nsu=urn:example:press;s=speed", type: Int32, min: 0, max: 10}\n'
        '        none: {node: "nsu=urn:example:press;s=none", type: Double, min: 0, max: 10}\n'
    )
    config = PRESS + 'links: {{up: {{to: "http://127.0.0.1:1", down: {{}}}}}}\n'
    async with running(tmp_path, opcua(server.port, writes), config) as node:
        await until(lambda: node.source("press").messages)
        assert await written(node, b"7.25", "down/speed") == {"outcome": "written", "value": 7.25, "read_back": 7.25}
        async with Client(f"opc.tcp://127.0.0.1:{server.port}/") as other:
            space = await other.get_namespace_index("urn:example:press")
            assert await other.get_node(f"ns={space};s=speed").read_value() == 7.25
        for name, status in (("wrong", "BadTypeMismatch"), ("none", "BadNodeIdUnknown")):
            refused = await written(node, b"7", f"press/$write/{name}")
            assert (refused["outcome"], status in refused["reason"]) == ("refused", True), refused
        before = len(await told(node))
        taker = node.node.part(DownPart).taker("up")
        assert taker is not None
        taker.take("hub", [DownMessage(41, 1, 60 * 10**9, "down/speed", b"3")], lambda _: None)
        assert await one_more(node, before) == {"outcome": "written", "value": 3, "read_back": 3.0, "message": 41}
