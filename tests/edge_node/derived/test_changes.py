"""Functions that change while they run: what an operator sees of it, and what becomes of a version that cannot work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import pytest

from tests.edge_node.derived.node import START, Edge, Large, definition
from tests.storage.fakes import FakeFileSystem
from weft.edge_node.derived.stream import REPLAYS_MAX, ReplayRefused
from weft.functions.contract import AsyncFunction, Function, NotReady, Out, Row

LARGE = definition("large", ["telemetry"], lambda: [("large", Large(0))])


class Faulty(Large):
    def process(self, rows: list[Row], out: Out) -> list[Row]:
        raise RuntimeError("a fault of the new version")


class Resource(AsyncFunction):
    """Works with something that has to be closed, and counts what is open."""

    open = 0

    async def prepare(self) -> None:
        if not hasattr(self, "_is_open"):
            self._is_open = True
            Resource.open += 1

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        return rows

    async def close(self) -> None:
        if hasattr(self, "_is_open"):
            del self._is_open
            Resource.open -= 1


class WithFile(AsyncFunction):
    """Needs a file, which may be missing."""

    is_there = False

    async def prepare(self) -> None:
        if not WithFile.is_there:
            raise NotReady("machines.csv is missing")

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        return rows


def needs_file() -> Sequence[tuple[str, Function]]:
    return [("resource", Resource()), ("file", WithFile())]


async def test_a_version_that_fails_on_its_first_rows_is_taken_back_and_named_until_the_next_change() -> None:
    edge = Edge(FakeFileSystem(), LARGE)
    edge.publish("telemetry", 10, time=START)
    await edge.settle()
    edge.functions.change([definition("large", ["telemetry"], lambda: [("faulty", Faulty(0))], digest=b"faulty")])
    await edge.settle()
    edge.publish("telemetry", 5, 20)
    await edge.pass_time(5)
    assert [record[3]["value"] for record in edge.read("large")] == [10, 5, 20], "by the former version"
    figures = edge.functions.counters()["large"]
    assert figures.version == LARGE.digest.hex()[:8]
    assert figures.lag == 0
    assert figures.trouble == "", "the stream continues"
    assert "new ones fail on their first rows (RuntimeError: a fault of the new version)" in figures.refused
    edge.functions.change([LARGE])
    await edge.pass_time(2)
    assert figures.refused == ""
    await edge.close()


async def test_a_version_without_its_file_is_named_holds_nothing_up_and_is_taken_when_the_file_comes() -> None:
    WithFile.is_there, Resource.open = False, 0
    edge = Edge(FakeFileSystem(), LARGE)
    edge.publish("telemetry", 10, time=START)
    await edge.pass_time(1)
    wanted = definition("large", ["telemetry"], needs_file, digest=b"with file")
    edge.functions.change([wanted])
    edge.publish("telemetry", 11)
    await edge.pass_time(20)
    figures = edge.functions.counters()["large"]
    assert [record[3]["value"] for record in edge.read("large")] == [10, 11]
    assert (figures.trouble, figures.version) == ("", LARGE.digest.hex()[:8])
    assert "machines.csv is missing" in figures.refused
    assert Resource.open == 0, "what a function before it has opened is closed again"
    WithFile.is_there = True
    await edge.pass_time(61)
    assert (figures.refused, figures.version) == ("", wanted.digest.hex()[:8])
    assert Resource.open == 1
    await edge.close()
    assert Resource.open == 0


class Model(AsyncFunction):
    """Loads as long as the test likes."""

    loaded: ClassVar[asyncio.Event]
    given_up = 0

    async def prepare(self) -> None:
        try:
            if not hasattr(self, "is_loaded"):
                await Model.loaded.wait()
            self.is_loaded = True
        except asyncio.CancelledError:
            Model.given_up += 1
            raise

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        return rows


async def test_rows_do_not_wait_for_a_version_that_takes_long_to_load() -> None:
    Model.loaded, Model.given_up = asyncio.Event(), 0
    edge = Edge(FakeFileSystem(), LARGE)
    edge.publish("telemetry", 10, time=START)
    await edge.pass_time(1)
    slow = definition("large", ["telemetry"], lambda: [("model", Model())], digest=b"slow")
    other = definition("large", ["telemetry"], lambda: [("model", Model())], digest=b"other")
    figures = edge.functions.counters()["large"]
    for wanted in (slow, LARGE, other):  # one is taken back while it loads
        edge.functions.change([wanted])
        edge.publish("telemetry", 11)
        await edge.pass_time(3)
        assert (figures.lag, figures.version) == (0, LARGE.digest.hex()[:8])
    assert Model.given_up == 1
    Model.loaded.set()
    edge.publish("telemetry", 12)
    await edge.pass_time(2)
    assert figures.version == other.digest.hex()[:8]
    assert [record[3]["value"] for record in edge.read("large")] == [10, 11, 11, 11, 12]
    Model.loaded.clear()
    edge.functions.change([slow])
    await edge.pass_time(1)
    await edge.close()
    assert Model.given_up == 2


async def test_functions_that_could_never_start_make_way_for_others_at_once() -> None:
    WithFile.is_there = False
    edge = Edge(FakeFileSystem(), definition("large", ["telemetry"], needs_file, digest=b"with file"))
    edge.publish("telemetry", 10, time=START)
    await edge.pass_time(5)
    assert "machines.csv" in edge.functions.counters()["large"].trouble
    edge.functions.change([LARGE])
    await edge.pass_time(2)
    assert [record[3]["value"] for record in edge.read("large")] == [10]
    assert edge.functions.counters()["large"].trouble == ""
    await edge.close()


async def test_replays_that_are_done_count_no_more() -> None:
    edge = Edge(FakeFileSystem(), LARGE)
    edge.publish("telemetry", 10, time=START)
    await edge.pass_time(2)
    for number in range(REPLAYS_MAX + 2):
        await edge.functions.replay("large", f"again-{number}")
        await edge.pass_time(2)
        assert edge.functions.replay_progress(f"again-{number}").left == 0
    for number in range(REPLAYS_MAX):
        # Nothing is durable of them before the next commit.
        await edge.functions.replay("large", f"more-{number}")
    with pytest.raises(ReplayRefused, match="run already"):
        await edge.functions.replay("large", "too-many")
    await edge.close()
