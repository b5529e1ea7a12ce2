"""Hub nodes over a real S3 server, with kills of the nodes and of the server, and stores that fail one node alone."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import DemoHub
from tests.end_to_end.broker_load import QUEUE
from tests.end_to_end.storms import Fabric, running, storm
from tests.end_to_end.test_kills import LOAD_TIMEOUT_S, STREAM, make_edge, wait_until_drained
from tests.support import forked
from tests.support.outcomes import outcome
from tests.support.s3_servers import MINIO, VERSITYGW, Kind, S3Server, Way, built, installed
from tests.support.slices import SLICE
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1500)]

BLOWS = SLICE.amount(ci=4, night=14)
MESSAGES_MIN = 75
"""Acknowledged for each blow, on a busy machine."""


def server_of(kind: Kind, folder: Path) -> S3Server:
    """Return the server, built if Go can do that; the test is skipped where it cannot be had."""
    try:
        # MinIO takes ten minutes to build.
        binary = installed(kind) if kind is MINIO and not SLICE.is_night else built(kind)
    except LookupError as reason:
        pytest.skip(str(reason))
    if binary is None:
        pytest.skip(f"{kind.name} is not installed; ./run nightly builds it")
    return S3Server(kind, binary, folder)


@pytest.mark.slow
@pytest.mark.search(turns=2)
@pytest.mark.parametrize("kind", [VERSITYGW, MINIO], ids=lambda kind: kind.name)
def test_kills_of_an_s3_server_and_of_two_nodes_lose_and_double_nothing(tmp_path: Path, kind: Kind) -> None:
    with server_of(kind, tmp_path / "server") as server:
        fabric = Fabric(tmp_path, server)

        def kill_hub(chance: random.Random) -> None:
            hub = chance.choice(fabric.hubs)
            hub.kill()
            time.sleep(chance.uniform(0.0, 0.8))
            hub.start()

        def kill_server(chance: random.Random) -> None:
            server.kill()
            time.sleep(chance.uniform(0.0, 1.0))
            server.start()

        hurts: list[Callable[[random.Random], None]] = [kill_hub, kill_server]
        counted = storm(fabric, hurts, BLOWS, SLICE.seed)
    print(f"{kind.name}: {dict(counted)}")
    assert counted["messages"] > MESSAGES_MIN * BLOWS


ACK_TIMEOUT_S = 3
BEAT_TIMEOUT_S = 3
"""The default of a link's ``beat_timeout``. ``ack_timeout`` is longer than that and ``SLOW_MACHINE_S``."""
TROUBLE_S = 5
"""After which a shard whose store fails sends its links away."""
SLOW_MACHINE_S = 20
"""Beside the promised times: the machine may be busy."""


@pytest.mark.slow
@pytest.mark.search(turns=2)
@pytest.mark.parametrize("way", SLICE.some([Way.DENIED, Way.SILENT, Way.CUT], ci=1), ids=lambda way: way.name.lower())
def test_edges_leave_a_node_whose_store_fails_and_lose_nothing(tmp_path: Path, way: Way) -> None:
    """Proof p8: an edge never left a node that took its data and could not store it."""
    with server_of(VERSITYGW, tmp_path / "server") as server:
        fabric = Fabric(tmp_path, server, link_settings=f"\n    ack_timeout: {ACK_TIMEOUT_S}s")
        with running(fabric):
            fabric.until_all_linked()
            for at in (0, 1):  # the one node, then the other, which by now has every edge
                sick = fabric.hubs[at]
                there = [edge for edge in fabric.edges if fabric.hub_of(edge) is sick]
                assert there, "a node without links has nothing to show"
                fabric.paths[at].set(way)
                failed = time.time()
                promised = max(TROUBLE_S, ACK_TIMEOUT_S)
                waited = [
                    fabric.seconds_to_acks(edge, failed + promised / 2, promised + SLOW_MACHINE_S) for edge in there
                ]
                print(
                    f"{way.name}: acknowledged again {[round(promised / 2 + s, 1) for s in waited]} s after the failure"
                )
                assert all(fabric.hub_of(edge) is not sick for edge in there)
                fabric.paths[at].set(Way.OPEN)
                time.sleep(TROUBLE_S)  # the node's retries reach the store again before the other one fails
            counted = fabric.finish()
    assert counted["messages"] > 500


@pytest.mark.slow
def test_edges_leave_a_node_that_is_stopped_when_they_miss_its_beats(tmp_path: Path) -> None:
    fabric = Fabric(tmp_path)
    with running(fabric):
        fabric.until_all_linked()
        for hub in fabric.hubs:
            there = [edge for edge in fabric.edges if fabric.hub_of(edge) is hub]
            hub.pause()
            stopped = time.time()
            for edge in there:
                waited = fabric.seconds_to_acks(edge, stopped + 1, BEAT_TIMEOUT_S + SLOW_MACHINE_S)
                print(f"acknowledged again {1 + waited:.1f} s after the node was stopped")
            time.sleep(2.0)
            hub.resume()
            wait_until(hub.answers, 30, "an answer of the node")
        counted = fabric.finish()
    assert counted["messages"] > 500


@pytest.mark.slow
@pytest.mark.search(turns=2)
def test_processes_and_nodes_are_killed_and_stopped_and_lose_and_double_nothing(tmp_path: Path) -> None:
    """Two nodes of two processes each, redirects between them, and one S3 server."""
    with server_of(VERSITYGW, tmp_path / "server") as server:
        fabric = Fabric(tmp_path, server, processes=2, edges=3, link_settings=f"\n    ack_timeout: {ACK_TIMEOUT_S}s")

        def kill_one(chance: random.Random) -> None:
            chance.choice(fabric.hubs).kill_one(chance)

        def kill_node(chance: random.Random) -> None:
            hub = chance.choice(fabric.hubs)
            hub.kill()
            hub.start()

        def stop_one(chance: random.Random) -> None:
            victim = chance.choice(fabric.hubs).worker(chance)
            os.kill(victim, signal.SIGSTOP)
            time.sleep(chance.uniform(1.0, 2.0 * ACK_TIMEOUT_S))
            os.kill(victim, signal.SIGCONT)

        def fail_store(chance: random.Random) -> None:
            path = chance.choice(fabric.paths)
            path.set(chance.choice([Way.DENIED, Way.SILENT, Way.CUT]))
            time.sleep(chance.uniform(0.5, 2.0 * TROUBLE_S))
            path.set(Way.OPEN)

        hurts: list[Callable[[random.Random], None]] = [kill_one, kill_node, stop_one, fail_store]
        counted = storm(fabric, hurts, BLOWS, SLICE.seed)
    print(dict(counted))
    assert counted["messages"] > MESSAGES_MIN * BLOWS


# --- SIGKILL an edge node again and again while devices send by AMQP 0-9-1, AMQP 1.0 and HTTP and workers empty a
# queue; then count every message in log, table and queue


KILLS = SLICE.amount(ci=4, night=30)
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


@pytest.mark.search
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
