"""SIGKILL an edge node again and again while devices send by AMQP 0-9-1, AMQP 1.0 and HTTP and workers empty a queue;
then count every message in log, table and queue."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import DemoHub
from tests.end_to_end.broker_load import QUEUE
from tests.end_to_end.test_kills import LOAD_TIMEOUT_S, STREAM, make_edge, wait_until_drained
from tests.support import forked
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from weft.proofs.audit.audit import audit
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store

KILLS = SLICE.amount(ci=4, night=30)
pytestmark = [pytest.mark.processes, pytest.mark.search, pytest.mark.timeout(1500)]
proton = pytest.importorskip("proton", reason="needs the extra amqp1")


def run_storm(directory: Path, kills: int, seed: int) -> tuple[dict[str, Any], ObjectStore]:
    """Kill the edge under load; return what the clients say, once the table has everything, and the store."""
    chance, hub = random.Random(seed), DemoHub(directory)
    edge = make_edge(directory, hub)
    options = ["--amqp", str(edge.amqp_port), "--http", str(edge.post_port)]
    load = None
    try:
        hub.start()
        edge.start()
        load = forked.Popen(
            [sys.executable, "-m", "tests.end_to_end.broker_load", *options], stdout=subprocess.PIPE, text=True
        )
        time.sleep(1)  # for its imports: the first kill is to hit something
        for _ in range(kills):
            time.sleep(chance.uniform(0.2, 1.0))  # the random moment is the test
            edge.kill()
            edge.start()
        time.sleep(0.5)
        load.terminate()
        reported, _ = load.communicate(timeout=LOAD_TIMEOUT_S)
        wait_until_drained(edge, hub)
        return json.loads(reported), open_store(hub.store)
    finally:
        if load is not None:
            load.kill()
            load.wait()
        edge.stop()
        hub.stop()


@outcome()
def check_rows(store: ObjectStore, reported: dict[str, Any]) -> Counter[str]:
    """What was acknowledged is there once, and the rest that was sent once at most: no client sends anything twice."""
    from deltalake import DeltaTable

    uri, options = store.location(table_key("default", STREAM))
    rows = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["device", "payload"]).to_pylist()
    found = Counter((row["device"], int(row["payload"])) for row in rows)
    assert set(found.values()) == {1}, [each for each, count in found.items() if count > 1][:5]
    counted = Counter(rows=len(rows))
    for device, numbers in reported["acked"].items():
        if device == QUEUE:
            continue
        there = {number for name, number in found if name == device}
        assert set(numbers) <= there, f"{device}: acknowledged and not there: {sorted(set(numbers) - there)[:5]}"
        assert there <= set(range(reported["sent"][device]))
        counted[device.split("-")[0]] += len(numbers)
    return counted


@outcome()
def check_jobs(reported: dict[str, Any]) -> Counter[str]:
    """Each confirmed job was done, what came again says so, and none came after the commit of its acknowledgement."""
    counted, acknowledged, committed = Counter[str](), set[int](), set[int]()
    unflagged = Counter[int]()
    for events in reported["workers"].values():
        own = set[int]()
        for what, number in events:
            counted[what] += 1
            if what in {"got", "again"}:
                assert number not in own, f"job {number} came again after its transaction was committed"
                unflagged[number] += what == "got"
            elif what == "acknowledged":
                acknowledged.add(number)
            else:
                own.add(number)
                assert number not in committed, f"job {number} was committed twice"
                committed.add(number)
    assert set(reported["acked"][QUEUE]) <= acknowledged, "confirmed, and never done"
    assert max(unflagged.values()) == 1, "it came twice without the flag"
    return counted


def test_kills_lose_and_double_nothing_of_amqp_and_http(tmp_path: Path) -> None:
    reported, store = run_storm(tmp_path, KILLS, SLICE.seed)
    counted, jobs = check_rows(store, reported), check_jobs(reported)
    report = asyncio.run(audit(store, "default", STREAM))
    assert report.agrees, report.problems
    assert report.total("log_doubled") == report.total("table_doubled") == report.total("holes") == 0
    assert not any(lane.gaps for lane in report.lanes)
    assert counted["rows"] == report.total("table_records") == report.total("records")
    print(f"{KILLS} kills: {dict(counted)}; jobs {dict(jobs)}")
    for protocol in ("amqp", "amqp1", "http"):  # few, since the machine may be busy: each waits for its answers
        assert counted[protocol] > KILLS
    assert jobs["committed"] > KILLS
