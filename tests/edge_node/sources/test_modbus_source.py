"""Modbus devices as a source: every poll is a record once, or lies in a gap that a notice names."""

from __future__ import annotations

import asyncio
from pathlib import Path

from examples.demo.fabric import free_port
from tests.edge_node.sources.devices import (
    HOLES,
    assert_no_silent_gap,
    device,
    gaps,
    modbus_source,
    notices,
    plant,
    settled,
    values,
)
from tests.edge_node.sources.nodes import NODE, SourceNode, running
from tests.support.waiting import until
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
            await until(lambda: reading(node).values >= 27)
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
            await until(lambda: reading(node).values >= 6)
            found = await node.stored()
    assert {each.key for each in found} == {b"hall/line/meter/n", b"hall/line/meter/x"}
    assert found[1].payload == b"5"


async def test_a_register_that_the_device_lacks_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    registers = f"{{n: {{address: 0}}, a: {{address: 199}}, lost: {{address: {HOLES[3]}}}, b: {{address: 210}}}}"
    async with plant(free_port()) as line:
        async with running(tmp_path, modbus_source(line.port, device("meter", registers)), LINE) as node:
            await until(lambda: reading(node).values >= 9)
            await settled(node)
            found = await node.stored()
            asked = len(line.asked)
            before = reading(node).values
            await until(lambda: reading(node).values >= before + 9)
            polls = (reading(node).values - before) // 3
            assert len(line.asked) - asked <= 3 * (polls + 1), "what was refused is not asked for in each poll"
            facts = node.source("line").facts()
    assert [set(row) for _, row in values(found)[:2]] == [{"n", "a", "b"}] * 2
    (notice,) = notices(found)
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
    first = next(each for each in notices(found) if each["items"] == ["pump/n"])
    assert (first["to"], first["reason"]) == (None, "no answer within 0.2 s")
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
    ended = gaps(found)
    assert len(ended) >= 3
    assert sum(gap.missed for gap in ended) == missed
