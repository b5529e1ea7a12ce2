"""Spark Connect: a server on the cluster, and pipelines that reach it by ``sc://``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark_sinks.cluster.commands import Run
from tests.spark_sinks.cluster.conftest import Place
from tests.spark_sinks.conftest import Hub
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.processes]


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
    for _ in range(2):  # The second goes on where the first was.
        done = run("clean", master=server, **settings)
        assert done.returncode == 0, done.stderr + cluster.log()[-4000:]
        assert rows(tmp_path / "clean", "_edge", "_seq") == [(edge, seq) for edge, seq, _ in plant.expected()]
        plant.write(1)
