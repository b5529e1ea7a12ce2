"""Power cuts through what reducers remember: rows that are held back, last values, identities."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import pytest

from tests.edge_node.derived import power_cuts
from tests.edge_node.derived.node import SECOND, START, Edge, Minutes, definition
from tests.functions.restart import context
from tests.storage.fakes import FakeFileSystem
from tests.support.slices import SLICE
from weft.config.functions.step import Changes, Deadband, Dedupe, Sample, SwingingDoor
from weft.functions.contract import Function
from weft.functions.registry import KINDS

DOOR = SwingingDoor(field_="value", delta=150, max_silence_s=4.0, keys_max=2)
CHAINS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "near": (["telemetry"], {"deadband": Deadband(field_="value", delta=200, max_silence_s=3.0)}),
    "line": (["telemetry"], {"swinging_door": DOOR}),
    "lines": (["telemetry", "events"], {"swinging_door": DOOR, "deadband": Deadband(field_="value", delta=50)}),
    "once": (["events"], {"dedupe": Dedupe(by=("value",), within_s=5.0, ids_max=20)}),
    "few": (["line"], {"sample": Sample(every=3), "changes": Changes(fields=("value",))}),
    "some": (["events"], {"sample": Sample(period_s=2.0)}),
}


def functions(name: str) -> list[tuple[str, Function]]:
    return [(kind, KINDS[kind](settings, context())) for kind, settings in CHAINS[name][1].items()]


def definitions() -> list[Any]:
    made = [definition(name, inputs, partial(functions, name)) for name, (inputs, _) in CHAINS.items()]
    behind = definition("line-minutes", ["telemetry"], lambda: [*functions("line"), ("minutes", Minutes(7))])
    return [*made, behind]


def cut(lives: range) -> int:
    with mock.patch.multiple(power_cuts, definitions=definitions):
        return power_cuts.run_lives(lives)


def test_power_cuts_change_no_output() -> None:
    assert cut(range(3)) > 10


@pytest.mark.search
@pytest.mark.timeout(600)
def test_many_power_cuts_change_no_output() -> None:
    lives = SLICE.seeds(ci=20, night=200)
    assert cut(lives) > 5 * len(lives)


async def test_a_mark_waits_for_the_held_row_and_goes_on_when_it_is_out() -> None:
    edge = Edge(FakeFileSystem(), definition("line", ["telemetry"], lambda: functions("line")))
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
    edge = Edge(FakeFileSystem(), *definitions())
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
