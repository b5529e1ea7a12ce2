"""Spark Connect: a server on the cluster, and pipelines that reach it by ``sc://``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark_sinks.cluster.commands import Run
from tests.spark_sinks.cluster.conftest import Place, job
from tests.spark_sinks.conftest import EDGES, SHARDS, STREAM, Hub
from tests.spark_sinks.sinks.stream.conftest import StreamHub
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.search(turns=4), pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture
def plant(tmp_path: Path) -> Hub:
    hub = Hub(str(tmp_path / "plant"))
    hub.write(2)
    hub.tier()
    hub.write(2)
    return hub


@pytest.fixture
def server(cluster: SparkCluster, tmp_path: Path) -> Iterator[str]:
    """A server in the cluster's folder, with none of the code on its path but what is installed."""
    with cluster.connect_server() as address:
        yield address


def rows(table: Path, *columns: str) -> list[tuple[Any, ...]]:
    found = DeltaTable(str(table)).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in found)


def test_a_pipeline_runs_through_a_server_on_the_cluster(
    cluster: SparkCluster, server: str, plant: Hub, tmp_path: Path
) -> None:
    run = Run(cluster, Place(str(tmp_path)), Path("/unused"), tmp_path)
    settings = {
        "source.store": plant.root,
        "sink.delta.path": str(tmp_path / "clean"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    for _ in range(2):  # The second continues where the first was.
        done = run("clean", master=server, **settings)
        assert done.returncode == 0, done.stderr + cluster.log()[-4000:]
        assert rows(tmp_path / "clean", "_edge", "_seq") == [(edge, seq) for edge, seq, _ in plant.expected()]
        plant.write(1)


@pytest.fixture
def hub(plant: Hub, tmp_path: Path) -> Iterator[StreamHub]:
    """A hub over the plant's store."""
    started = StreamHub(tmp_path)
    started.serve(plant.root, SHARDS)
    started.start()
    yield started
    started.stop()


def test_reads_and_sinks_of_a_client_on_a_server(
    cluster: SparkCluster, server: str, plant: Hub, hub: StreamHub, tmp_path: Path
) -> None:
    given = {"store": plant.root, "stream": STREAM, "hub": hub.url, "into": str(tmp_path)}
    reported = job(cluster, "connect", Place(str(tmp_path)), master=server, conf={}, **given)
    records = [(edge, seq) for edge, seq, _ in plant.expected()]
    assert reported == {"read": len(records), "source": len(records), "lanes": len(EDGES), "complete": True}
    assert rows(tmp_path / "copied", "_edge", "_seq") == records
    # A second run without the checkpoint of the first found every row in the stream.
    payloads = sorted(each["payload"] for each in hub.stream_records("back", SHARDS))
    assert payloads == sorted(payload.decode() for _, _, payload in plant.expected())
    assert hub.problems("back") == []
