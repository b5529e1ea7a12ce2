"""A user's code on a real log: its stream waits for it and others do not; a power cut doubles and loses nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from tests.edge_node.derived.node import SECOND, START, Edge, Large, definition
from tests.functions.restart import context
from tests.storage.fakes import FakeFileSystem
from tests.support.waiting import PATIENCE_S
from weft.config.functions.step import Python as Settings
from weft.edge_node.derived.definitions import Definition
from weft.functions.python import Python

LARGE = definition("large", ["telemetry"], lambda: [("large", Large(0))])
COUNTS = """
def process(record, ctx):
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    if record["value"] % 100 == 50:
        while True: pass
    return {"value": record["value"], "count": ctx.state["count"]}
"""


def scored(file: Path, code: str) -> Definition:
    file.write_text(code)
    settings = Settings(file=str(file), timeout_s=0.3)
    return definition("scored", ["telemetry"], lambda: [("python", Python(settings, context(stream="scored")))])


async def until(edge: Edge, done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():
            await edge.settle()
            await asyncio.sleep(0.005)


async def test_streams_beside_code_that_loops_do_not_wait(tmp_path: Path) -> None:
    edge = Edge(FakeFileSystem(), scored(tmp_path / "score.py", COUNTS), LARGE)
    edge.publish("telemetry", *range(200), time=START)
    await until(edge, lambda: len(edge.read("large")) == 200)
    assert len(edge.read("scored")) < 198, "two records loop for 0.3 s each"
    await until(edge, lambda: edge.functions.counters()["scored"].lag == 0 and len(edge.read("scored")) == 198)
    values = [value for value in range(200) if value % 100 != 50]
    assert [record[3] for record in edge.read("scored")] == [
        {"value": value, "count": at + 1} for at, value in enumerate(values)
    ]
    assert [record[3] for record in edge.read("scored-errors")] == [{"value": 50}, {"value": 150}]
    await edge.close()


async def test_input_waits_in_the_log_for_code_that_is_mended(tmp_path: Path) -> None:
    edge = Edge(FakeFileSystem(), scored(tmp_path / "score.py", "import not_there\n"))
    edge.publish("telemetry", 1, 2, time=START)
    await until(edge, lambda: "not_there" in edge.functions.counters()["scored"].trouble)
    assert edge.released == {}
    assert edge.mark("scored") < START
    (tmp_path / "score.py").write_text("def process(record, ctx):\n    return record\n")
    await until(edge, lambda: [record[3]["value"] for record in edge.read("scored")] == [1, 2])
    assert edge.functions.counters()["scored"].trouble == ""
    await edge.close()


async def test_power_cuts_double_and_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    code = COUNTS.replace("if record", "if False and record")
    disk, published, now = FakeFileSystem(), 0, START
    for _ in range(6):
        edge = Edge(disk, scored(tmp_path / "score.py", code), now=now)
        published = edge.log.durable_end(edge.log.stream("telemetry"))
        begun = len(edge.read("scored"))
        for _ in range(10):
            edge.publish("telemetry", *range(published, published + 20), time=edge.now + SECOND)
            published += 20
            edge.commit()
        await until(edge, lambda: len(edge.read("scored")) > begun + chance.randrange(150))
        now = edge.now
        disk.kill_process()
        await edge.lose_power()
        disk = disk.power_cut(chance)
    edge = Edge(disk, scored(tmp_path / "score.py", code), now=now)
    published = edge.log.durable_end(edge.log.stream("telemetry"))
    await until(edge, lambda: len(edge.read("scored")) >= published)
    assert [record[3] for record in edge.read("scored")] == [{"value": n, "count": n + 1} for n in range(published)]
    await edge.close()
