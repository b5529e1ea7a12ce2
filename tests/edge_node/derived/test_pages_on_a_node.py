"""The examples on the pages of reducers, on a real node: published over MQTT, and read back from its log.

Only the clock is the test's, so that the messages are as far apart as the page says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiomqtt
import msgspec
import pytest

from tests.functions.test_pages import _BLOCK, _CONFIG, PAGES, START
from tests.support import live_node
from tests.support.waiting import until
from weft.config.units import Address, parse_duration
from weft.edge_node import node as node_module
from weft.edge_node.derived.part import FunctionsPart
from weft.edge_node.node import EdgeNode
from weft.protocols.batch import Record, records

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
async def running(config: str, folder: Path) -> AsyncIterator[EdgeNode]:
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
    async with running(page.config, tmp_path) as node, client(node) as device:
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
        async with running(page.config, tmp_path) as node, client(node) as device:
            await device.publish(page.topic, line, qos=1)
            # With the last one or without: what no step has is read again by the next node.
            await until(lambda at=at: caught_up(node, at % 2))  # type: ignore[misc]
        clock.now += SECOND
    async with running(page.config, tmp_path) as node:
        clock.now += 3600 * SECOND
        await until(lambda: len(read(node, stream)) >= len(expected))
        found = read(node, stream)
        assert values(found) == expected
        assert {record.headers for record in found} == {(("weft.swinging_door.level", 0.5),)}
        assert [record.time // SECOND - START // SECOND for record in found] == [0, 4, 7]


async def test_bad_input_goes_to_the_errors_and_stops_nothing(tmp_path: Path, clock: Clock) -> None:
    page = example("deadband")
    bad = [b"", b"{", b"7", b'{"t": NaN}', b'{"t": 1e999}', b'{"t": "x"}', b"\xff", b'{"t": 20.1}', b"[" * 5000]
    async with running(page.config, tmp_path) as node, client(node) as device:
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
