"""Idle connections to the status page take no place of devices: the MQTT door stays open, and the log its files."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.waits import at_most
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.processes
FILES_MAX = 400
"""Files that the node may open: a flood of connections is over the sooner."""
CONNECTIONS = 600


def closed(edge: GuardedEdge) -> float:
    """How often the metrics say that the bound was met."""
    with urllib.request.urlopen(f"http://127.0.0.1:{edge.http_port}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if 'refusals_total{bound="limits.http_connections"' in line)


@pytest.mark.slow
def test_a_node_serves_devices_while_its_status_page_is_flooded(tmp_path: Path) -> None:
    edge = GuardedEdge(tmp_path, "http_connections: 20")
    edge.command = ["sh", "-c", f'ulimit -n {FILES_MAX}; exec "$@"', "sh", *edge.command]
    edge.start()
    process = psutil.Process(edge.pid)
    try:
        with GoodClient(edge, "device") as good:
            before = process.num_fds()
            flood = [
                socket.create_connection(("127.0.0.1", edge.http_port), timeout=PATIENCE_S) for _ in range(CONNECTIONS)
            ]
            wait_until(lambda: process.num_fds() <= before + 20, what="closing the idle connections")
            assert closed(edge) >= CONNECTIONS - 20
            with GoodClient(edge, "alice", "newcomer"):
                assert edge.status()["mqtt"]["connections"] == 2
            for each in flood:
                each.close()
            at_most(2.0, good.take().longest)
            wait_until(lambda: process.num_fds() <= before, what="giving the files back")
        assert "limits.http_connections" in edge.log_path.read_text()
    finally:
        edge.stop()
