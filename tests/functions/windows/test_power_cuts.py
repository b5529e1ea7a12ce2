"""Power cuts through windows of every shape: what comes out is what a node without cuts gives, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from tests.edge_node.derived import power_cuts
from tests.edge_node.derived.node import definition
from tests.functions.restart import context
from tests.support.slices import SLICE
from weft.config.functions.windows import Window
from weft.edge_node.derived.definitions import Definition
from weft.functions.contract import Function
from weft.functions.windows import WindowFunction

EMIT = {"mean": "mean(value / 3)", "deviation": "stddev(value)", "p": "quantile(value, 0.9)", "curve": "lttb(value, 4)"}
SHAPES: dict[str, dict[str, Any]] = {
    "hopping": {"every_s": 5.0, "size_s": 15.0},
    "sessions": {"gap_s": 2.0, "longest_s": 20.0},
    # Values as times: rows of the first thousand seconds, in any order.
    "by-event": {"every_s": 50.0, "time": "value", "lateness_s": 100.0, "idle_s": 4.0},
    "late-sessions": {"gap_s": 20.0, "time": "value", "lateness_s": 50.0, "idle_s": 3.0, "by": ("none",)},
    "few": {"every_s": 3.0, "keys_max": 2, "windows_max": 2},
}


def window(**chosen: Any) -> Callable[[], list[tuple[str, Function]]]:
    return lambda: [("window", WindowFunction(Window(emit=EMIT, **chosen), context()))]


def definitions() -> list[Definition]:
    single = [definition(name, ["telemetry"], window(**chosen)) for name, chosen in SHAPES.items()]
    return [
        *single,
        definition(
            "of-windows",
            ["hopping"],
            lambda: [("window", WindowFunction(Window(every_s=30.0, emit={"most": "max(mean)"}), context()))],
        ),
    ]


def test_power_cuts_change_no_window() -> None:
    with mock.patch.multiple(power_cuts, definitions=definitions):
        power_cuts.run_cuts(12, seed=1)


@pytest.mark.search
@pytest.mark.timeout(600)
def test_many_power_cuts_change_no_window() -> None:
    with mock.patch.multiple(power_cuts, definitions=definitions):
        power_cuts.run_lives(SLICE.seeds(ci=15, night=150))
