"""Modbus devices as a source: every poll is a record once, or lies in a gap that a notice names."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pymodbus.framer import FramerType
from pymodbus.framer.rtu import FramerRTU
from pymodbus.pdu import DecodePDU
from pymodbus.server import ModbusSerialServer, ModbusTcpServer

from examples.demo.fabric import free_port
from tests.edge_node.sources.devices import (
    HOLES,
    Plant,
    assert_all_polls_counted,
    assert_no_silent_gap,
    device,
    framed,
    gaps,
    honest,
    modbus_source,
    notices,
    plant,
    scripted,
    serial_pair,
    settled,
    values,
    values_of,
)
from tests.edge_node.sources.nodes import FULL, NODE, SourceNode, publish, running
from tests.support.processes import Node
from tests.support.waiting import PATIENCE_S, until
from weft.cli import cli
from weft.config.sources import ModbusDevice, ModbusSource, Register
from weft.edge_node.sources.connection import SourceDown
from weft.edge_node.sources.modbus import Schedule
from weft.edge_node.sources.modbus_line import RTU_BYTES_MAX, Block, Line
from weft.edge_node.sources.notices import Gaps
from weft.edge_node.sources.status import Reading, SourceState

LINE = NODE.replace("plant/#", "line/#")


def reading(node: SourceNode) -> Reading:
    found = node.source("line").reading
    assert found is not None
    return found


async def test_values_of_every_kind_arrive_with_one_request_for_each_block(tmp_path: Path) -> None:
    registers = (
        "{n: {address: 0}, near: {address: 9}, far: {address: 100, scale: 0.1, offset: -1},"
        " in: {address: 5, kind: input}, on: {address: 0, kind: coil}, off: {address: 1, kind: discrete},"
        " both: {address: 2, type: u32},"
        " swapped: {address: 2, type: u32, order: CDAB}, third: {address: 7, type: bool, bit: 1}}"
    )
    async with plant(free_port()) as line:
        async with running(tmp_path, modbus_source(line.port, device("meter", registers)), LINE) as node:
            await until(lambda: values_of(node) >= 27)
            await settled(node)
            rows = values(await node.stored())
    assert {key: value for key, value in rows[0][1].items() if key != "n"} == {
        "near": 9,
        "far": 9.0,
        "in": 5,
        "on": True,
        "off": False,
        "both": 2 * 65_536 + 3,
        "swapped": 3 * 65_536 + 2,
        "third": True,
    }
    asked = [(each.function, each.address, each.size) for each in line.asked[:5]]
    assert sorted(asked) == [(1, 0, 1), (2, 1, 1), (3, 0, 10), (3, 100, 1), (4, 5, 1)]
    counts = [row["n"] for _, row in rows]
    assert counts == list(range(1, len(counts) + 1)), "each poll is there once, in order"


async def test_a_record_for_each_value_where_that_is_asked_for(tmp_path: Path) -> None:
    devices = device("meter", "{n: {address: 0}, x: {address: 5}}")
    async with plant(free_port()) as line:
        source = modbus_source(line.port, devices, "      records: register\n      prefix: hall/\n")
        async with running(tmp_path, source, NODE.replace("plant/#", "hall/#")) as node:
            await until(lambda: values_of(node) >= 6)
            found = await node.stored()
    read = [each for each in found if not each.key.endswith(b"$gap")]
    assert {each.key for each in read} == {b"hall/line/meter/n", b"hall/line/meter/x"}
    assert read[1].payload == b"5"


async def test_a_register_that_the_device_lacks_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    registers = f"{{n: {{address: 0}}, a: {{address: 199}}, lost: {{address: {HOLES[3]}}}, b: {{address: 210}}}}"
    async with plant(free_port()) as line:
        async with running(tmp_path, modbus_source(line.port, device("meter", registers)), LINE) as node:
            await until(lambda: values_of(node) >= 9)
            await settled(node)
            found = await node.stored()
            asked = len(line.asked)
            before = values_of(node)
            await until(lambda: values_of(node) >= before + 9)
            polls = (values_of(node) - before) // 3
            assert len(line.asked) - asked <= 3 * (polls + 1), "what was refused is not asked for in each poll"
            facts = node.node.status.facts()["sources"]["line"]
    assert [set(row) for _, row in values(found)[:2]] == [{"n", "a", "b"}] * 2
    (notice,) = [each for each in notices(found) if each["items"] == ["meter/lost"]]
    assert (notice["items"], notice["to"]) == (["meter/lost"], None)
    assert notice["reason"] == "exception 2: illegal data address"
    assert facts["reading"]["gaps"]["meter/lost"]["missed"] >= 2
    assert "illegal data address" in facts["last_error"]


async def test_a_device_that_is_away_has_a_gap_and_does_not_stop_the_others(tmp_path: Path) -> None:
    devices = device("meter") + device("pump", more="unit_id: 2, ")
    async with plant(free_port(), [1, 2]) as line:
        async with running(tmp_path, modbus_source(line.port, devices), LINE) as node:
            await until(lambda: min(line.answered.values()) >= 2)
            line.silence(2)
            await until(lambda: "pump" in reading(node).gaps.open)
            answered = line.answered[1]
            await until(lambda: line.answered[1] >= answered + 10)
            assert node.source("line").state is SourceState.CONNECTED
            assert node.source("line").last_error.startswith("pump: no answer within 0.2 s")
            line.speak(2)
            await until(lambda: "pump" not in reading(node).gaps.open)
            await settled(node, "pump")
            await settled(node)
            found = await node.stored()
    assert_no_silent_gap(found, "pump")
    assert_no_silent_gap(found, "meter")
    told = [each for each in notices(found) if each["items"] == ["pump/n"]]
    assert any(each["to"] is None for each in told), "it is said before the device is back"
    assert any("no answer within 0.2 s" in each["reason"] for each in told)
    assert reading(node).timeouts


async def test_a_restart_of_the_devices_is_a_gap_from_the_first_missed_poll(tmp_path: Path) -> None:
    async with plant(free_port()) as line:
        async with running(tmp_path, modbus_source(line.port, device("meter")), LINE) as node:
            for kills in range(1, 4):
                await settled(node)
                await line.stop()
                await until(lambda: "meter" in reading(node).gaps.open)
                await asyncio.sleep(0)
                await line.start()
                await until(lambda: "meter" not in reading(node).gaps.open)
                await settled(node)
                assert node.source("line").connections == kills + 1
            found = await node.stored()
            missed = reading(node).gaps.missed
    assert_no_silent_gap(found)
    assert_all_polls_counted(found)
    ended = gaps(found)
    assert len(ended) >= 3
    assert sum(gap.missed for gap in ended) == missed


LIES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another unit": (lambda request: honest(request)[:6] + b"\x07" + honest(request)[7:], "an answer of unit 7"),
    "another transaction": (lambda request: b"\xff\xff" + honest(request)[2:], "an answer to another request"),
    "another function": (lambda request: framed(request, b"\x04\x02\x00\x07"), "answered with function 4, asked for 3"),
    "too few registers": (lambda request: framed(request, b"\x03\x02\x00\x07"), "answered with 1 of 2 registers"),
    "too many registers": (lambda request: framed(request, b"\x03\x06" + b"\0" * 6), "answered with 3 of 2 registers"),
    "a count beyond the answer": (lambda request: framed(request, b"\x03\xfa\x00\x07"), "something else than Modbus"),
    "a giant length": (lambda request: request[:4] + b"\xff\xff" + request[6:7], "its header announces 65535 bytes"),
    "another protocol": (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", "the protocol in its header is 21584"),
    "half of an answer": (lambda request: honest(request)[:-1], "no answer within 0.2 s"),
    "busy": (lambda request: framed(request, b"\x83\x06"), "exception 6: server device busy"),
    "an unknown exception": (lambda request: framed(request, b"\x83\x63"), "exception 99: not in the specification"),
    "a gateway without its device": (lambda request: framed(request, b"\x83\x0b"), "exception 11: gateway target"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_answer_that_does_not_fit_is_no_value_but_a_gap_with_its_reason(tmp_path: Path, lie: str) -> None:
    false, words = LIES[lie]
    lies = False

    def answer(request: bytes) -> bytes | None:
        return false(request) if lies else honest(request)

    port, registers = free_port(), "{n: {address: 7}, x: {address: 8}}"
    async with scripted(port, answer):
        async with running(tmp_path, modbus_source(port, device("meter", registers)), LINE) as node:
            await settled(node)
            lies = True
            await until(lambda: any(words in each for gap in reading(node).gaps.open.values() for each in gap.reasons))
            lies = False
            await until(lambda: not reading(node).gaps.open)
            await settled(node)
            found = await node.stored()
    assert {(row["n"], row["x"]) for _, row in values(found)} == {(7, 8)}, "nothing of a lie is a value"
    (gap,) = [each for each in gaps(found) if words in each.reason]
    assert gap.missed >= 1
    rows = [at for at, _ in values(found)]
    assert any(before < gap.since < after for before, after in pairwise(rows)), "the gap begins after the last value"


async def test_an_answer_that_comes_late_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    late: list[bytes] = []

    def answer(request: bytes) -> bytes | None:
        """Keep the first answer about register 9, and send it before the next one."""
        if request[9] == 9 and not late:
            late.append(honest(request))
            return None
        before = late.pop() if late and late[0] else b""
        late[:] = [b""] if before or late else []
        return before + honest(request)

    port, registers = free_port(), "{n: {address: 7}, x: {address: 9}}"
    async with scripted(port, answer):
        source = modbus_source(port, device("meter", registers, "fill: 0, "))
        async with running(tmp_path, source, LINE) as node:
            await until(lambda: values_of(node) >= 6)
            await settled(node)
            found = await node.stored()
    assert {(row["n"], row["x"]) for _, row in values(found)} == {(7, 9)}
    assert reading(node).bad_answers


class Wire(asyncio.Transport):
    """What a line writes to; a test says what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.asked.append(bytes(data))

    def close(self) -> None:
        pass


def rtu() -> tuple[Line, Wire, Reading]:
    found, wire = Reading(Gaps("line")), Wire()
    line = Line(FramerType.RTU, found)
    line.connection_made(wire)
    return line, wire, found


def rtu_answer(*registers: int, unit: int = 1) -> bytes:
    data = b"".join(each.to_bytes(2, "big") for each in registers)
    return FramerRTU(DecodePDU(False)).encode(bytes([3, len(data)]) + data, unit, 0)


async def test_a_late_answer_of_rtu_is_no_value_of_another_block() -> None:
    line, wire, found = rtu()
    loop = asyncio.get_running_loop()
    loop.call_later(0.3, line.data_received, rtu_answer(1, 2))
    with pytest.raises(TimeoutError):
        await line.read(1, Block(3, 100, 2, ()), 0.2)
    assert (line.stray, found.bad_answers) == ("data that came later", 1)
    second = asyncio.create_task(line.read(1, Block(3, 500, 2, ()), 5.0))
    await until(lambda: len(wire.asked) == 2)
    line.data_received(rtu_answer(7, 8))
    assert await second == [7, 8]


async def test_a_request_of_rtu_that_is_given_up_ends_the_line() -> None:
    line, wire, _ = rtu()
    asked = asyncio.create_task(line.read(1, Block(3, 100, 2, ()), 5.0))
    await until(lambda: len(wire.asked) == 1)
    asked.cancel()
    assert await line.ended == "a request was given up before its answer"


async def test_what_no_request_waits_for_is_not_kept_and_endless_data_ends_a_line_of_rtu() -> None:
    line, wire, found = rtu()
    for _ in range(3):
        line.data_received(rtu_answer(1, 2)[:-1] * 1000)
    assert found.bad_answers == 3
    asked = asyncio.create_task(line.read(1, Block(3, 100, 2, ()), 5.0))
    await until(lambda: len(wire.asked) == 1)
    line.data_received(rtu_answer(3, 4))
    assert await asked == [3, 4]
    asked = asyncio.create_task(line.read(1, Block(3, 100, 2, ()), 5.0))
    await until(lambda: len(wire.asked) == 2)
    for _ in range(RTU_BYTES_MAX):
        line.data_received(b"\x55")
    assert not line.ended.done()
    line.data_received(b"\x55")
    assert "does not speak Modbus RTU" in await line.ended
    with pytest.raises(SourceDown, match="does not speak Modbus RTU"):
        await asked


def test_a_unit_that_did_not_answer_is_left_alone_in_all_its_entries() -> None:
    registers = {"n": Register(address=0)}
    devices = {
        name: ModbusDevice(unit_id=unit, registers=registers, every_s=0.1, timeout_s=2.0)
        for name, unit in {"a": 1, "b": 1, "c": 2}.items()
    }
    schedule = Schedule(ModbusSource(url="tcp://127.0.0.1", devices=devices), 0.0)
    schedule.timed_out(schedule.devices[0], 10.0)
    assert [schedule.turn()[0].name, schedule.turn()[1] < 10.0] == ["c", True]
    schedule.devices[2].next = 1000
    assert schedule.turn()[1] == 12.0


async def test_the_poll_that_a_lost_connection_interrupts_is_named_by_its_error(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with running(tmp_path, modbus_source(port, device("meter")), LINE) as node:
            await until(lambda: reading(node).gaps.missed >= 2)
            reasons = reading(node).gaps.open["meter"].reasons
    assert "the other side closed the connection" in reasons
    assert "the source was stopped" not in reasons


async def test_a_line_that_is_too_slow_names_the_polls_that_it_left_out(tmp_path: Path) -> None:
    async with plant(free_port()) as line:
        async with running(tmp_path, modbus_source(line.port, device("meter", every="20ms")), LINE) as node:
            await settled(node)
            line.delay_s[1] = 0.07
            missed = reading(node).gaps.missed
            await until(lambda: reading(node).gaps.missed >= missed + 9)
            line.delay_s.clear()
            await settled(node)
            found = await node.stored()
    slow = [gap for gap in gaps(found) if gap.reason.startswith("the line, or the node, was too slow")]
    assert len(slow) >= 3
    assert all(gap.missed >= 1 for gap in slow)
    assert_no_silent_gap(found, every_s=0.02)
    assert_all_polls_counted(found, every_s=0.02)


async def test_polls_that_the_log_has_no_room_for_are_a_gap(tmp_path: Path) -> None:
    full = FULL.replace("plant/#", "line/#")
    async with plant(free_port()) as line:
        source = modbus_source(line.port, device("meter"))
        async with running(tmp_path, source, full) as node:
            await settled(node)
            # Short ones: what is refused leaves no room for the polls of a minute.
            much = [os.urandom(500) for _ in range(3000)]
            sending = asyncio.create_task(publish(node.port, much, "line/other"))
            await until(lambda: "could not be stored" in str(reading(node).gaps.open.get("meter")))
            missed = reading(node).gaps.missed
            await until(lambda: reading(node).gaps.missed > missed + 3)
            assert len(reading(node).gaps.open) == 1
            node.apply((full.format(name="data") + source).replace("1MiB", "32MiB"))
            await until(lambda: not reading(node).gaps.open)
            sending.cancel()  # its client sends nothing again that was not acknowledged
            await asyncio.gather(sending, return_exceptions=True)
            await settled(node)
            found = await node.stored()
    assert_no_silent_gap(found)
    assert any("could not be stored" in gap.reason and gap.missed > 3 for gap in gaps(found))


async def test_rtu_on_a_serial_line_reads_the_same(tmp_path: Path) -> None:
    async with serial_pair() as (ours, theirs):
        line = Plant(0, [1, 2])
        server = ModbusSerialServer(line.devices(), framer=FramerType.RTU, port=theirs, baudrate=115_200)
        await server.serve_forever(background=True)
        devices = device("meter", "{n: {address: 0}, x: {address: 5, type: u32}}") + device("pump", more="unit_id: 2, ")
        source = modbus_source(0, devices)
        source = source.replace("tcp://127.0.0.1:0", f"serial://{ours}").replace(
            "      devices:", "      serial: {baud_rate: 115200, parity: none}\n      devices:"
        )
        try:
            async with running(tmp_path, source, LINE) as node:
                await settled(node)
                line.silence(2)
                await until(lambda: "pump" in reading(node).gaps.open)
                line.speak(2)
                await until(lambda: "pump" not in reading(node).gaps.open)
                await settled(node)
                found = await node.stored()
        finally:
            await server.shutdown()  # type: ignore[no-untyped-call]
    assert values(found)[0][1] == {"n": 1, "x": 5 * 65_536 + 6}
    assert_no_silent_gap(found)
    assert_no_silent_gap(found, "pump")


async def test_rtu_frames_over_tcp_read_the_same(tmp_path: Path) -> None:
    line = Plant(free_port(), [1])
    server = ModbusTcpServer(line.devices(), framer=FramerType.RTU, address=("127.0.0.1", line.port))
    await server.serve_forever(background=True)
    source = modbus_source(line.port, device("meter", "{n: {address: 0}, x: {address: 5, type: u32}}"))
    try:
        async with running(tmp_path, source.replace("tcp://", "rtu+tcp://"), LINE) as node:
            await settled(node)
            found = await node.stored()
    finally:
        await server.shutdown()  # type: ignore[no-untyped-call]
    assert values(found)[0][1] == {"n": 1, "x": 5 * 65_536 + 6}


def tried(config: Path, source: str) -> Result:
    return CliRunner().invoke(cli, ["edge", "test-source", str(config), source], standalone_mode=False)


async def test_everything_is_read_once_for_people_who_set_up_a_source(tmp_path: Path) -> None:
    registers = f"{{n: {{address: 4, scale: 0.1, unit: kW}}, lost: {{address: {HOLES[3]}, type: u32}}}}"
    config = tmp_path / "edge.yaml"
    async with plant(free_port()) as line:
        config.write_text(LINE.format(name="data") + modbus_source(line.port, device("meter", registers)))
        shown = await asyncio.to_thread(tried, config, "line")
    assert shown.return_value == 1, "a value is missing"
    assert shown.stdout.splitlines()[1:] == [
        "meter/n\t0.4\tkW\tholding 4 u16\t",
        "meter/lost\t\t\tholding 203 u32\texception 2: illegal data address",
    ]
    assert "2 values with 2 requests" in shown.stderr
    unknown = await asyncio.to_thread(tried, config, "plant")
    assert "Sources of that kind" in str(unknown.exception)
    down = await asyncio.to_thread(tried, config, "line")
    assert "tcp://127.0.0.1" in str(down.exception)


@pytest.mark.slow
@pytest.mark.processes
async def test_a_node_that_is_killed_names_the_time_without_it(tmp_path: Path) -> None:
    async with plant(free_port()) as line:
        source = modbus_source(line.port, device("meter"))
        config = tmp_path / "edge.yaml"
        http = f'http: {{bind: "127.0.0.1:{free_port()}"}}'
        config.write_text(LINE.format(name="data").replace("http: null", http) + source)
        for _ in range(3):
            answered = line.answered[1]
            node = await asyncio.to_thread(Node, "edge", config)
            await until(lambda: line.answered[1] >= answered + 20)
            # Its file of gaps is written for the first time.
            await until((tmp_path / "data/sources/line.gaps.json").exists, PATIENCE_S)
            node.kill()
        async with running(tmp_path, source, LINE) as last:
            await settled(last)
            found = await last.stored()
    assert_no_silent_gap(found)
    ended = [gap for gap in gaps(found) if "the node was not running" in gap.reason]
    assert len(ended) == 3
