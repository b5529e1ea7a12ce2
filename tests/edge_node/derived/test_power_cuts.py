"""Power cuts through windows and memories of functions; and the faults that such a search must find."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.edge_node.derived import power_cuts
from tests.edge_node.derived.node import SECOND, START, Edge, Minutes, definition
from tests.edge_node.derived.power_cuts import Violation, quiet, run_cuts, run_lives, run_seed
from tests.functions.restart import context
from tests.storage.fakes import FakeFileSystem
from tests.support.slices import SLICE
from weft.config.functions.step import Changes, Deadband, Dedupe, Sample, SwingingDoor
from weft.config.functions.step import Enrich as EnrichSettings
from weft.config.functions.windows import Sql, Window
from weft.edge_node.derived.steps import Positions, StateWriter
from weft.edge_node.derived.stream import Derived
from weft.functions.contract import Function, Out, Row, State
from weft.functions.enrich import Enrich
from weft.functions.registry import KINDS
from weft.functions.sql import SqlFunction
from weft.functions.thinning import DeadbandFunction
from weft.functions.windows import WindowFunction
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import SegmentLog

SEEDS_MAX = 60
"""Lives in which a planted fault must show."""


def test_power_cuts_change_no_output() -> None:
    run_cuts(40)


@pytest.mark.search
@pytest.mark.timeout(600)
def test_many_power_cuts_change_no_output() -> None:
    run_lives(SLICE.seeds(ci=25, night=400))


def has_violation(seed: int) -> bool:
    try:
        run_seed(seed)
    except (Violation, RuntimeError):
        return True
    return False


def parted(log: SegmentLog, reserve_bytes: int, *, uses_spare: bool) -> contextlib.AbstractContextManager[None]:
    """Appends that a power cut may part."""
    return contextlib.nullcontext()


def forgets_states(entry: Callable[..., bytes]) -> Callable[..., bytes]:
    def faulty(self: StateWriter, positions: Positions, states: Any) -> bytes:
        for _, state in states:
            state.take_changes()
        return entry(self, positions, [])

    return faulty


def forgets_positions(entry: Callable[..., bytes]) -> Callable[..., bytes]:
    def faulty(self: StateWriter, positions: Positions, states: Any) -> bytes:
        behind = {name: max(0, seq - 1) for name, seq in positions.inputs.items()}
        return entry(self, Positions(behind, positions.tick, positions.times, positions.hold), states)

    return faulty


def forgets_deletions(take: Callable[[State], dict[bytes, Any]]) -> Callable[[State], dict[bytes, Any]]:
    return lambda self: {key: value for key, value in take(self).items() if value is not None}


def lets_go(written: Callable[..., RangeSet]) -> Callable[..., RangeSet]:
    return lambda self, seq: written(self, seq) and RangeSet([(0, seq)])


FAULTS: dict[str, tuple[type, str, Any]] = {
    "outputs without their states": (StateWriter, "entry", forgets_states(StateWriter.entry)),
    "states without their positions": (StateWriter, "entry", forgets_positions(StateWriter.entry)),
    "a copy that goes with what is before it": (StateWriter, "written", lets_go(StateWriter.written)),
    "a step that a cut may part": (SegmentLog, "together", parted),
    "a mark before its windows": (Derived, "_hold_of", lambda self, chain: self._tick + 1),
    "what was deleted comes back": (State, "take_changes", forgets_deletions(State.take_changes)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    owner, attribute, faulty = FAULTS[name]
    with mock.patch.object(owner, attribute, faulty), quiet():
        assert any(has_violation(seed) for seed in range(SEEDS_MAX))


# --- Power cuts through functions that read files or ask SQLite, and through derived streams that read derived
# streams


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


def test_power_cuts_change_no_output_of_kinds(tmp_path: Path) -> None:
    with functions(tmp_path):
        power_cuts.run_cuts(20, seed=3)


@pytest.mark.search
@pytest.mark.timeout(600)
def test_many_power_cuts_change_no_output_of_kinds(tmp_path: Path) -> None:
    with functions(tmp_path):
        power_cuts.run_lives(SLICE.seeds(ci=15, night=200))


# --- Power cuts through what reducers remember: rows that are held back, last values, identities


DOOR = SwingingDoor(field_="value", delta=150, max_silence_s=4.0, keys_max=2)
CHAINS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "near": (["telemetry"], {"deadband": Deadband(field_="value", delta=200, max_silence_s=3.0)}),
    "line": (["telemetry"], {"swinging_door": DOOR}),
    "lines": (["telemetry", "events"], {"swinging_door": DOOR, "deadband": Deadband(field_="value", delta=50)}),
    "once": (["events"], {"dedupe": Dedupe(by=("value",), within_s=5.0, ids_max=20)}),
    "few": (["line"], {"sample": Sample(every=3), "changes": Changes(fields=("value",))}),
    "some": (["events"], {"sample": Sample(period_s=2.0)}),
}


def reducers_functions(name: str) -> list[tuple[str, Function]]:
    return [(kind, KINDS[kind](settings, context())) for kind, settings in CHAINS[name][1].items()]


def reducers_definitions() -> list[Any]:
    made = [definition(name, inputs, partial(reducers_functions, name)) for name, (inputs, _) in CHAINS.items()]
    behind = definition("line-minutes", ["telemetry"], lambda: [*reducers_functions("line"), ("minutes", Minutes(7))])
    return [*made, behind]


def cut(lives: range) -> int:
    with mock.patch.multiple(power_cuts, definitions=reducers_definitions):
        return power_cuts.run_lives(lives)


def test_power_cuts_change_no_output_of_reducers() -> None:
    assert cut(range(3)) > 10


@pytest.mark.search
@pytest.mark.timeout(600)
def test_many_power_cuts_change_no_output_of_reducers() -> None:
    lives = SLICE.seeds(ci=20, night=200)
    assert cut(lives) > 5 * len(lives)


async def test_a_mark_waits_for_the_held_row_and_goes_on_when_it_is_out() -> None:
    edge = Edge(FakeFileSystem(), definition("line", ["telemetry"], lambda: reducers_functions("line")))
    for at in range(3):
        edge.publish("telemetry", 100, time=START + at * SECOND + 7)
        await edge.settle()
    assert [record[1] for record in edge.read("line")] == [START + 7]
    assert edge.mark("line") < START + 2 * SECOND + 7 <= edge.mark("telemetry")
    await edge.pass_time(5)
    assert [record[1] for record in edge.read("line")] == [START + 7, START + 2 * SECOND + 7]
    assert edge.mark("line") > START + 2 * SECOND + 7
    await edge.close()


async def test_no_payload_stops_a_reducer() -> None:
    """Neither strange values nor a payload that is not a mapping: what cannot be judged continues or to the errors."""
    edge = Edge(FakeFileSystem(), *reducers_definitions())
    strange: list[Any] = [
        None,
        "n/a",
        [1],
        {"x": {}},
        True,
        10**30,
        -(10**400),
        1e308,
        -1e308,
        {"value": {"value": 1}},
        "",
    ]
    for at, value in enumerate(strange):
        for stream in ("telemetry", "events"):
            edge.publish(stream, 5, value if isinstance(value, dict) else {"value": value}, 7, time=START + at * SECOND)
        await edge.settle()
    await edge.pass_time(10)
    counters = edge.functions.counters()
    for name in CHAINS:
        assert (counters[name].failures, counters[name].trouble, counters[name].lag) == (0, "", 0), name
    assert len(edge.read("near")) >= len(strange)
    await edge.close()
