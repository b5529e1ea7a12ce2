"""Power cuts through functions that read files or ask SQLite, and through derived streams that read derived streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.edge_node.derived import power_cuts
from tests.edge_node.derived.node import definition
from tests.functions.restart import context
from tests.support.slices import SLICE
from weft.config.functions.step import Deadband
from weft.config.functions.step import Enrich as EnrichSettings
from weft.config.functions.windows import Sql, Window
from weft.functions.contract import Function, Out, Row
from weft.functions.enrich import Enrich
from weft.functions.sql import SqlFunction
from weft.functions.thinning import DeadbandFunction
from weft.functions.windows import WindowFunction

TOP = "SELECT value, count(*) OVER () AS n FROM input ORDER BY value DESC, time LIMIT 2"
AREAS = "SELECT area, sum(value) AS total, min(value / 3.0) AS least FROM input GROUP BY area ORDER BY area"


def definitions(table: Path) -> list[Any]:
    def top() -> list[tuple[str, Function]]:
        return [("sql", SqlFunction(Sql(every_s=4.0, by=("key",), select=TOP), context()))]

    def named() -> list[tuple[str, Function]]:
        settings = EnrichSettings(
            file=str(table), on="key", column="machine", fields=("area", "gain"), numbers=("gain",)
        )
        return [("enrich", Enrich(settings, context()))]

    def areas() -> list[tuple[str, Function]]:
        return [("sql", SqlFunction(Sql(every_s=6.0, size_s=12.0, by=(), select=AREAS), context()))]

    def largest() -> list[tuple[str, Function]]:
        window = Window(every_s=9.0, emit={"most": "max(total)", "of": "count()"})
        calm = Deadband(field_="total", delta=50, max_silence_s=8.0)
        return [("deadband", DeadbandFunction(calm, context())), ("window", WindowFunction(window, context()))]

    return [
        definition("top", ["telemetry"], top),
        definition("named", ["telemetry", "events"], named),
        definition("areas", ["named"], areas),
        definition("largest", ["areas"], largest),
        definition("both", ["areas", "events"], lambda: [("sql", top()[0][1])]),
    ]


async def results(self: SqlFunction, jobs: list[Any], out: Out) -> list[Row]:
    """Run SELECTs here: a process would make each of thousands of power cuts a second long."""
    return self._results(jobs, out)


@contextlib.contextmanager
def functions(directory: Path) -> Iterator[None]:
    table = directory / "machines.csv"
    table.write_text("machine,area,gain\na,north,1.5\nb,south,2\n")
    with (
        mock.patch.object(power_cuts, "definitions", partial(definitions, table)),
        mock.patch.object(SqlFunction, "_results_async", results),
    ):
        yield


def test_power_cuts_change_no_output(tmp_path: Path) -> None:
    with functions(tmp_path):
        power_cuts.run_cuts(20, seed=3)


@pytest.mark.search
@pytest.mark.timeout(600)
def test_many_power_cuts_change_no_output(tmp_path: Path) -> None:
    with functions(tmp_path):
        power_cuts.run_lives(SLICE.seeds(ci=15, night=200))
