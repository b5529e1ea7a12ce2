"""SIGKILL an edge and the hub at random moments under QoS 1 load, then count every message in log and table."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import DemoHub, Edge, Service
from tests.support import forked
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store

pytestmark = pytest.mark.processes

STREAM = "load"
STRAYS = 1
"""Devices whose topics no stream matches."""
DRAIN_TIMEOUT_S = 120.0
LOAD_TIMEOUT_S = 60.0


class Load:
    """The device process.

    Args:
        strays: devices whose topics no stream matches.
        options: further ones of the process, as it takes them.
    """

    def __init__(self, port: int, strays: int = 0, options: Sequence[str] = ()) -> None:
        arguments = ["--port", str(port), "--strays", str(strays), *options]
        self._process = forked.Popen(
            [sys.executable, "-m", "tests.end_to_end.load", *arguments], stdout=subprocess.PIPE, text=True
        )

    def finish(self) -> dict[str, int]:
        """Stop publishing, wait for the last acks, and return the messages acked to each device."""
        self._process.terminate()
        output, _ = self._process.communicate(timeout=LOAD_TIMEOUT_S)
        counts: dict[str, int] = json.loads(output)
        return counts

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def make_edge(directory: Path, hub: DemoHub) -> Edge:
    edge = Edge(directory, "edge", hub.port)
    text = (
        edge.config_path.read_text()
        .replace("telemetry:", f"{STREAM}:")
        .replace("sensors/{device}/telemetry", "load/{device}/count")
    )
    edge.config_path.write_text(text)
    return edge


def wait_until_drained(edge: Edge, hub: DemoHub, stream: str = STREAM) -> int:
    """Wait until the table has a row for every record of the edge's log; the number of rows."""
    expected = edge.status()["streams"][stream]["durable_end"]
    wait_until(
        lambda: hub.table_rows() == expected,
        DRAIN_TIMEOUT_S,
        lambda: f"{expected} records expected; {hub.status()}; {edge.status()}",
        interval_s=0.1,
    )
    return int(expected)


@outcome()
def check_every_message(store: ObjectStore, acked: dict[str, int]) -> Counter[str]:
    """Each device's numbers are all there, and every copy but one is flagged as sent again."""
    from deltalake import DeltaTable

    uri, options = store.location(table_key("default", STREAM))
    rows = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["device", "payload", "_resent"])
    found: dict[str, Counter[int]] = {}
    unflagged: Counter[tuple[str, int]] = Counter()
    for device, payload, resent in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        found.setdefault(device, Counter())[int(payload)] += 1
        if not resent:
            unflagged[device, int(payload)] += 1
    for device, count in acked.items():
        assert sorted(found[device]) == list(range(count)), f"{device}: acked messages are missing"
    assert max(unflagged.values()) == 1, "a message is there twice without the flag"
    copies = sum(sum(numbers.values()) - len(numbers) for numbers in found.values())
    return Counter(messages=sum(acked.values()), rows=rows.num_rows, copies=copies)


@outcome()
def check_every_stray(edge: Edge, acked: dict[str, int]) -> None:
    """The same of what no stream matches, in the edge's log: it goes to no hub."""
    sql = "SELECT key, payload, resent FROM unrouted"
    asked = forked.run(
        [sys.executable, "-m", "weft", "edge", "query", str(edge.config_path), sql, "--json"],
        stdout=subprocess.PIPE,
        check=True,
    )
    rows = [json.loads(line) for line in asked.stdout.splitlines()]
    for device, count in acked.items():
        of_device = [row for row in rows if row["key"] == f"stray/{device}"]
        assert {int(row["payload"]) for row in of_device} == set(range(count)), f"{device}: acked messages are missing"
        unflagged = Counter(row["payload"] for row in of_device if not row["resent"])
        assert max(unflagged.values()) == 1, "a message is there twice without the flag"


def run_kills(directory: Path, kills: int, seed: int) -> Counter[str]:
    """``kills`` SIGKILLs of the edge and as many of the hub under load; what was counted afterwards."""
    chance = random.Random(seed)
    hub = DemoHub(directory)
    edge = make_edge(directory, hub)
    load = None
    try:
        hub.start()
        edge.start()
        load = Load(edge.mqtt_port, STRAYS)
        victims: list[Service] = [edge, hub] * kills
        chance.shuffle(victims)
        for victim in victims:
            time.sleep(chance.uniform(0.0, 0.8))  # the random moment is the test
            victim.kill()
            victim.start()
        acked = load.finish()
        wait_until_drained(edge, hub)
    finally:
        if load is not None:
            load.kill()
        edge.stop()
        hub.stop()
    report = asyncio.run(audit(open_store(hub.store), "default", STREAM))
    assert report.agrees, report.problems
    assert report.total("log_doubled") == report.total("table_doubled") == report.total("holes") == 0
    assert not any(lane.gaps for lane in report.lanes)
    strays = {device: acked.pop(device) for device in list(acked) if device.startswith("stray-")}
    assert len(strays) == STRAYS
    check_every_stray(edge, strays)
    counted = check_every_message(open_store(hub.store), acked)
    assert counted["rows"] == report.total("table_records") == report.total("records")
    assert counted["copies"] <= report.total("resent")
    return counted


@pytest.mark.timeout(180)
def test_no_acked_message_is_lost_or_doubled_by_kills(tmp_path: Path) -> None:
    counted = run_kills(tmp_path, kills=2, seed=20261120)
    assert counted["messages"] > 100  # some between the kills, on a busy machine too


@pytest.mark.search
@pytest.mark.timeout(1500)
def test_many_kills_of_edge_and_hub(tmp_path: Path) -> None:
    kills = SLICE.amount(ci=4, night=100)
    counted = run_kills(tmp_path, kills, seed=SLICE.seed)
    print(f"{2 * kills} kills: {dict(counted)}")
    assert counted["messages"] > 20 * kills


# --- SIGKILL an edge with functions, and the hub, under load: each derived table is what its input says, to the row


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


def function_kills_run_kills(directory: Path, kills: int, seed: int) -> Counter[str]:
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
    counted = function_kills_run_kills(tmp_path, kills, seed=SLICE.seed)
    print(f"{3 * kills} kills: {dict(counted)}")
    assert counted["tens"] > 30 * kills
