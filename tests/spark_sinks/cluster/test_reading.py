"""Reading on a cluster: executors read the store themselves, whatever the store is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark_sinks.cluster.commands import Run
from tests.spark_sinks.cluster.conftest import Place, job
from tests.spark_sinks.cluster.storm import Storm, TablesStorm
from tests.spark_sinks.conftest import EDGES, SHARDS, STREAM, Hub
from tests.spark_sinks.sinks.stream.conftest import StreamHub
from tests.support.slices import SLICE
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.search(turns=4), pytest.mark.processes]

PADDING = 20_000
"""Bytes of a payload: enough that reading them cannot be mistaken for reading indexes."""


@pytest.mark.timeout(600)
def test_every_way_of_reading_gives_every_record_once(cluster: SparkCluster, place: Place, tmp_path: Path) -> None:
    hub = Hub(f"{place.root}/weft", place.options)
    hub.payload = lambda edge, seq: f"{edge}:{seq}".encode().ljust(PADDING, b".")
    hub.write(20)
    hub.tier()
    hub.write(20)
    expected = hub.expected()
    reported = job(cluster, "read_everything", place, store=hub.root, stream=STREAM, checkpoint=str(tmp_path / "c"))
    assert reported["source"]["rows"] == reported["source"]["records"] == len(expected)
    assert reported["source"] == reported["read"] == reported["streaming"]
    assert reported["bytes"] == len(expected) * PADDING
    # Read four times, and not once by the driver: that reads indexes, plans and answers.
    assert reported["driver_bytes"] < reported["bytes"] / 4


# --- Audit and traces on a cluster: executors read the store themselves, whatever the store is


@pytest.mark.timeout(600)
def test_executors_audit_a_stream_and_trace_its_windows(cluster: SparkCluster, place: Place) -> None:
    hub = Hub(f"{place.root}/audited", place.options)
    hub.write(6)
    hub.tier()
    hub.write(2)
    reported = job(cluster, "audit_and_trace", place, store=hub.root, stream=STREAM)
    assert reported == {"agrees": True, "records": 320, "waiting": 80, "traced": 320, "distinct": 320}


# --- Spark Connect: a server on the cluster, and pipelines that reach it by ``sc://``


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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
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


# --- SIGKILLs of drivers, executors and workers: the tables equal those of a run that nothing interrupted, and the
# log


KILLS = {Storm: SLICE.amount(ci=6, night=40), TablesStorm: SLICE.amount(ci=3, night=20)}
"""Half of them are at commits."""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KILLS)
def test_tables_equal_those_of_a_run_without_kills(cluster: SparkCluster, tmp_path: Path, kind: type[Storm]) -> None:
    storm = kind(cluster, tmp_path, SLICE.seed)
    storm.run(KILLS[kind])
    print(f"killed: {dict(storm.kills)}")
    storm.compare()
