"""Modbus devices for tests: pymodbus's server, which logs every request, and a scripted one that may lie."""

from __future__ import annotations

import asyncio
import json
import os
import tty
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from pymodbus.server import ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

from tests.edge_node.sources.nodes import SourceNode
from tests.support.outcomes import outcome
from tests.support.waiting import until
from weft.protocols.batch import Record

COUNTER = 0
"""Address of a register that counts the requests of the device that were answered."""
REGISTERS = 300
HOLES = range(200, 210)
"""Addresses that devices do not have."""


class Asked(NamedTuple):
    """A request as a server saw it."""

    unit: int
    function: int
    address: int
    size: int


class Plant:
    """Devices behind one address. Register N has the value N; register 0 counts the answers."""

    def __init__(self, port: int, units: list[int]) -> None:
        self.port, self._units = port, units
        self.asked: list[Asked] = []
        self.answered: dict[int, int] = dict.fromkeys(units, 0)
        self.delay_s: dict[int, float] = {}
        self.mute: dict[int, asyncio.Event] = {}
        """Units that do not answer until their event is set."""
        self._server: ModbusTcpServer | None = None

    def devices(self) -> list[SimDevice]:
        words = [
            SimData(COUNTER, values=list(range(HOLES.start)), datatype=DataType.REGISTERS),
            SimData(HOLES.stop, values=list(range(HOLES.stop, REGISTERS)), datatype=DataType.REGISTERS),
        ]
        bits = [SimData(0, values=[True, False, True] * 16, datatype=DataType.BITS)]
        return [SimDevice(unit, simdata=(bits, bits, words, words), action=self._action(unit)) for unit in self._units]

    def _action(self, unit: int) -> Callable[..., Coroutine[None, None, None]]:
        async def asked(
            function: int, _start: int, address: int, count: int, registers: list[int], _values: object
        ) -> None:
            self.asked.append(Asked(unit, function, address, count))
            if delay := self.delay_s.get(unit):
                await asyncio.sleep(delay)
            if (heard := self.mute.get(unit)) is not None:
                await heard.wait()
            if function == 3 and address == COUNTER:
                self.answered[unit] += 1
                registers[COUNTER] = self.answered[unit] % 65_536

        return asked

    def silence(self, unit: int) -> None:
        self.mute[unit] = asyncio.Event()

    def speak(self, unit: int) -> None:
        self.mute.pop(unit).set()

    async def start(self) -> None:
        self._server = ModbusTcpServer(self.devices(), address=("127.0.0.1", self.port))
        await self._server.serve_forever(background=True)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.shutdown()  # type: ignore[no-untyped-call]
            self._server = None


@asynccontextmanager
async def plant(port: int, units: list[int] | None = None) -> AsyncIterator[Plant]:
    found = Plant(port, units or [1])
    await found.start()
    try:
        yield found
    finally:
        for unit in list(found.mute):
            found.speak(unit)
        await found.stop()


def _copy(here: int, there: int) -> None:
    os.write(there, os.read(here, 4096))


@asynccontextmanager
async def serial_pair() -> AsyncIterator[tuple[str, str]]:
    """Two serial ports that are connected with each other: pseudo-terminals, and what copies between them."""
    loop, (left, left_port), (right, right_port) = asyncio.get_running_loop(), os.openpty(), os.openpty()
    for port in (left_port, right_port):
        tty.setraw(port)
    for here, there in ((left, right), (right, left)):
        os.set_blocking(here, False)
        loop.add_reader(here, partial(_copy, here, there))
    try:
        yield os.ttyname(left_port), os.ttyname(right_port)
    finally:
        for each in (left, right):
            loop.remove_reader(each)
        for each in (left, right, left_port, right_port):
            os.close(each)


Answer = Callable[[bytes], bytes | None]
"""Request with its header -> answer with its header; None for silence."""


@asynccontextmanager
async def scripted(port: int, answer: Answer) -> AsyncIterator[None]:
    """A server that answers as a function says, which may be changed by what it closes over."""
    writers = set[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            while True:
                head = await reader.readexactly(6)
                request = head + await reader.readexactly(int.from_bytes(head[4:], "big"))
                if (data := answer(request)) is not None:
                    writer.write(data)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.sleep(0)


def honest(request: bytes) -> bytes:
    """Answer a read of registers with their addresses."""
    address, count = int.from_bytes(request[8:10], "big"), int.from_bytes(request[10:12], "big")
    data = b"".join((address + at).to_bytes(2, "big") for at in range(count))
    return framed(request, bytes([request[7], len(data)]) + data)


def framed(request: bytes, pdu: bytes) -> bytes:
    return request[:4] + (len(pdu) + 1).to_bytes(2, "big") + request[6:7] + pdu


def modbus_source(port: int, devices: str, more: str = "") -> str:
    """The section `sources` with one source `line`."""
    return (
        f'sources:\n  line:\n    modbus:\n      url: "tcp://127.0.0.1:{port}"\n      retry_min: 20ms\n'
        f"      retry_max: 200ms\n{more}      devices:\n{devices}"
    )


def device(name: str, registers: str = "{n: {address: 0}}", more: str = "", every: str = "50ms") -> str:
    return f"        {name}: {{every: {every}, timeout: 200ms, {more}registers: {registers}}}\n"


class Gap(NamedTuple):
    """A notice about a gap that is over; times in ns since 1970."""

    items: tuple[str, ...]
    since: int
    to: int
    missed: int
    reason: str


def values(records: list[Record], topic: str = "line/meter") -> list[tuple[int, Any]]:
    """Time and content of the records of a device."""
    return [(each.time, json.loads(each.payload)) for each in records if each.key == topic.encode()]


def notices(records: list[Record]) -> list[dict[str, Any]]:
    return [json.loads(each.payload) for each in records if each.key == b"line/$gap"]


def gaps(records: list[Record]) -> list[Gap]:
    """The gaps that are over."""
    return [
        Gap(tuple(each["items"]), _ns(each["from"]), _ns(each["to"]), each["missed"], each["reason"])
        for each in notices(records)
        if each["to"]
    ]


def _ns(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000) * 1_000_000


@outcome()
def assert_no_silent_gap(
    records: list[Record], name: str = "meter", every_s: float = 0.05, timeout_s: float = 0.2
) -> None:
    """Every poll that the device answered is a row once or lies in a gap, and so does all time without a row.

    The device counts its answers, and a row has that number.
    """
    rows = [(at, row["n"]) for at, row in values(records, f"line/{name}")]
    counts = [count for _, count in rows]
    assert counts == sorted(set(counts)), "a poll is there twice"
    covered = [(gap.since, gap.to) for gap in gaps(records) if f"{name}/n" in gap.items]
    silence_ns = (2 * every_s + timeout_s) * 1e9
    for (before, count), (after, next_count) in pairwise(rows):
        if next_count != count + 1 or after - before > silence_ns:
            assert any(since < after and to > before for since, to in covered), (before, after, covered)


@outcome()
def assert_all_polls_counted(records: list[Record], name: str = "meter", every_s: float = 0.05) -> None:
    """There are as many rows and missed polls as the schedule had polls from the first row to the last."""
    rows = values(records, f"line/{name}")
    due = (rows[-1][0] - rows[0][0]) / 1e9 / every_s
    missed = sum(gap.missed for gap in gaps(records) if f"{name}/n" in gap.items and gap.to <= rows[-1][0] + 1)
    # A row's time is that of its answer, which may be late by an interval and a timeout.
    assert abs(len(rows) - 1 + missed - due) <= 6, (len(rows), missed, due)


async def settled(node: SourceNode, name: str = "meter") -> None:
    """Wait until the source reads the device, and no gap of it is open."""
    reading = node.source("line").reading
    assert reading is not None
    before = values_of(node)
    await until(lambda: values_of(node) > before and name not in reading.gaps.open)
    # Notices are written before the next poll.
    before = values_of(node)
    await until(lambda: values_of(node) > before)


def values_of(node: SourceNode) -> int:
    """How many values the source has read."""
    found = node.source("line").values
    assert found is not None
    return found.total
