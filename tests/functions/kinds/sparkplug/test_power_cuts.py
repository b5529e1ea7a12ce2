"""Power cuts through births and numbers: what comes out is what would have come out without them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from tests.edge_node.derived import power_cuts
from tests.edge_node.derived.node import Minutes, definition
from tests.functions.kinds.sparkplug.messages import made, number, payload
from tests.support.slices import SLICE
from weft.functions.contract import Function, Out, Row

KINDS = ("NDATA",) * 6 + ("DDATA",) * 6 + ("NBIRTH", "NBIRTH", "DBIRTH", "DBIRTH", "NDEATH", "DDEATH")
SETTINGS: dict[str, dict[str, Any]] = {
    "metrics": {"reorder_s": 2.0, "rebirth_every_s": 3.0},
    "messages": {"rows": "message", "reorder_s": 0.0, "sources_max": 3, "certificates": True},
}


class Spoken(Function):
    """Makes a message of Sparkplug B of each number that a device of the harness publishes."""

    is_stateless = True

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        for row in rows:
            value = row.values["value"]
            if isinstance(value, dict):
                value = value["value"]
            kind, node = KINDS[value % len(KINDS)], row.key.decode()
            device = "/pump" if kind[0] == "D" else ""
            row.key = f"spBv1.0/plant/{kind}/{node}{device}".encode()
            metrics: list[dict[str, Any]] = [{"alias": value % 3, "int_value": value}]
            if kind.endswith("BIRTH"):
                metrics = [{"name": f"m{value % 3 + at}", "alias": at, "datatype": 3, "int_value": at} for at in (0, 1)]
            if kind in ("NBIRTH", "NDEATH"):
                metrics.append(number(value % 2))
            row.payload = payload(*metrics, seq=None if kind == "NDEATH" else value % 5)
        return rows


def definitions() -> list[Any]:
    def chain(name: str) -> list[tuple[str, Function]]:
        return [("spoken", Spoken()), (name, made(**SETTINGS[name]))]

    class Counted(Minutes):
        def process(self, rows: list[Row], out: Out) -> list[Row]:
            for row in rows:
                row.values = {"value": 1}
            return super().process(rows, out)

    return [
        definition("metrics", ["telemetry"], lambda: chain("metrics")),
        definition("messages", ["telemetry", "events"], lambda: chain("messages")),
        definition("counted", ["metrics"], lambda: [("minutes", Counted(7))]),
    ]


def test_power_cuts_change_no_output() -> None:
    with mock.patch.object(power_cuts, "definitions", definitions):
        power_cuts.run_cuts(15, seed=3)


@pytest.mark.search
@pytest.mark.timeout(600)
def test_many_power_cuts_change_no_output() -> None:
    with mock.patch.object(power_cuts, "definitions", definitions):
        power_cuts.run_lives(SLICE.seeds(ci=15, night=150))
