"""SIGKILL an edge with functions, and the hub, under load: each derived table is what its input says, to the row."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import DemoHub, Edge, Service
from tests.end_to_end.test_kills import STREAM, Load, check_every_message, make_edge
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store

pytestmark = pytest.mark.processes
DRAIN_TIMEOUT_S = 120.0
STREAMS = """streams:
  even: {from_stream: load, functions: [where: "value % 2 == 0"]}
  tens: {from_stream: even, functions: [deadband: {field: value, delta: 9.5}]}
  seconds:
    from_stream: load
    payload: json
    functions: [window: {every: 1s, emit: {sum: sum(value), last: last(value)}}]
"""
WINDOWS_CLOSE_S = 3.0
"""Time after the last message by which a window of one second is over, and put out."""


TIME_ERROR = timedelta(milliseconds=100)
"""Most that the times of a row and of what was made of it may differ. A clock that is not set is corrected by the hub,
by two readings of it for each batch: 0.75 ms apart at most on a quiet machine, longer where it does other work between
them."""
Row = tuple[str, str, datetime]
"""(device, payload, time)"""


def rows_of(store: ObjectStore, stream: str) -> list[Row]:
    """(device, payload, time) of all rows of a table, in the order of the lane."""
    from deltalake import DeltaTable

    uri, options = store.location(table_key("default", stream))
    table = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["device", "payload", "_time", "_seq"])
    rows = sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=lambda row: row[3])
    assert [row[3] for row in rows] == list(range(len(rows))), f"{stream}: a row is missing, or there twice"
    return [(device, text(payload), time) for device, payload, time, _ in rows]


def text(payload: Any) -> str:
    return payload.decode() if isinstance(payload, bytes) else str(payload)


@outcome()
def check_rows(found: list[Row], expected: list[Row]) -> None:
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    assert all(abs(one[2] - other[2]) < TIME_ERROR for one, other in zip(found, expected, strict=True))


def kept_by_deadband(rows: list[Row]) -> list[Row]:
    last: dict[str, float] = {}
    kept = []
    for device, payload, at in rows:
        if device not in last or abs(float(payload) - last[device]) > 9.5:
            last[device] = float(payload)
            kept.append((device, payload, at))
    return kept


@outcome()
def check_windows(found: list[Row], rows: list[Row]) -> int:
    """Check that the windows of each device have its rows, each once and in order, whatever their bounds. Return how
    many windows there are."""
    values: dict[str, list[int]] = defaultdict(list)
    for device, payload, _ in rows:
        values[device].append(int(payload))
    for device, payload, _ in found:
        window = json.loads(payload)
        own, values[device] = values[device][: window["count"]], values[device][window["count"] :]
        assert (len(own), sum(own), own[-1]) == (window["count"], window["sum"], window["last"])
        assert window["complete"]
    assert not any(values.values()), "rows in no window"
    return len(found)


def wait_until_derived(edge: Edge, hub: DemoHub) -> None:
    """Wait until the functions have seen everything, and the tables have what they made of it."""

    def is_derived() -> bool:
        status = edge.status()
        expected = sum(stream["durable_end"] for name, stream in status["streams"].items() if name != "unrouted")
        return not any(facts["lag_records"] for facts in status["functions"].values()) and hub.table_rows() == expected

    wait_until(is_derived, DRAIN_TIMEOUT_S, lambda: f"{hub.status()}; {edge.status()}", interval_s=0.1)


def run_kills(directory: Path, kills: int, seed: int) -> Counter[str]:
    chance = random.Random(seed)
    hub = DemoHub(directory)
    edge = make_edge(directory, hub)
    text = edge.config_path.read_text().replace("streams:\n", STREAMS)
    edge.config_path.write_text(text.replace(f"  {STREAM}:\n", f"  {STREAM}:\n    payload: number\n"))
    load = None
    try:
        hub.start()
        edge.start()
        load = Load(edge.mqtt_port)
        victims: list[Service] = [edge, edge, hub] * kills
        chance.shuffle(victims)
        for victim in victims:
            time.sleep(chance.uniform(0.0, 0.8))  # the random moment is the test
            victim.kill()
            victim.start()
        acked = load.finish()
        time.sleep(WINDOWS_CLOSE_S)
        wait_until_derived(edge, hub)
    finally:
        if load is not None:
            load.kill()
        edge.stop()
        hub.stop()
    store = open_store(hub.store)
    counted = check_every_message(store, acked)
    for stream in (STREAM, "even", "tens", "seconds"):
        report = asyncio.run(audit(open_store(hub.store), "default", stream))
        assert report.agrees, report.problems
    even = [row for row in rows_of(store, STREAM) if int(row[1]) % 2 == 0]
    check_rows(rows_of(store, "even"), even)
    tens = kept_by_deadband(even)
    check_rows(rows_of(store, "tens"), tens)
    windows = check_windows(rows_of(store, "seconds"), rows_of(store, STREAM))
    return counted + Counter(even=len(even), tens=len(tens), windows=windows)


@pytest.mark.search
@pytest.mark.timeout(1500)
def test_many_kills_change_nothing_of_what_functions_make(tmp_path: Path) -> None:
    kills = SLICE.amount(ci=2, night=17)
    counted = run_kills(tmp_path, kills, seed=SLICE.seed)
    print(f"{3 * kills} kills: {dict(counted)}")
    assert counted["tens"] > 30 * kills
