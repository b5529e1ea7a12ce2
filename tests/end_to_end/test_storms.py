"""Hub nodes over a real S3 server, with kills of the nodes and of the server, and stores that fail one node alone."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.storms import Fabric, running, storm
from tests.support.s3_servers import MINIO, VERSITYGW, Kind, S3Server, built, installed
from tests.support.slices import SLICE
from tests.support.store_path import Way
from tests.support.waiting import wait_until

BLOWS = SLICE.amount(ci=4, night=14)
MESSAGES_MIN = 75
"""Acknowledged for each blow, on a busy machine."""
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1500)]


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
TROUBLE_S = 5
"""After which a shard whose store fails sends its links away."""
SLOW_MACHINE_S = 20
"""Beside the promised times: the machine may be busy."""


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


def test_edges_leave_a_node_that_is_stopped_within_the_ack_timeout(tmp_path: Path) -> None:
    fabric = Fabric(tmp_path, link_settings=f"\n    ack_timeout: {ACK_TIMEOUT_S}s")
    with running(fabric):
        fabric.until_all_linked()
        for hub in fabric.hubs:
            there = [edge for edge in fabric.edges if fabric.hub_of(edge) is hub]
            hub.pause()
            stopped = time.time()
            for edge in there:
                waited = fabric.seconds_to_acks(edge, stopped + 1, ACK_TIMEOUT_S + SLOW_MACHINE_S)
                print(f"acknowledged again {1 + waited:.1f} s after the node was stopped")
            time.sleep(2.0)
            hub.resume()
            wait_until(hub.answers, 30, "an answer of the node")
        counted = fabric.finish()
    assert counted["messages"] > 500


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
