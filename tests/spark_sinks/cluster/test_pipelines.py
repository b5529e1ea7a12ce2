"""Shipped pipelines on a cluster whose machines have Weft's libraries and not Weft: its code comes with the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_sinks.sinks.delta.place import place_of
from tests.spark_sinks.cluster.commands import Run
from tests.spark_sinks.cluster.conftest import Place
from tests.spark_sinks.conftest import EDGES, Hub
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.processes]

ROUNDS = 6


def reading(edge: str, seq: int) -> bytes:
    return b'{"temperature": %d.5}' % (20 + seq % 10)


@pytest.fixture(scope="module")
def plant(place: Place) -> Hub:
    """Readings, half of them in the table."""
    hub = Hub(f"{place.root}/plant", place.options)
    hub.payload = reading
    hub.write(ROUNDS // 2)
    hub.tier()
    hub.write(ROUNDS // 2)
    return hub


def rows(place: Place, table: str, *columns: str) -> list[tuple[Any, ...]]:
    uri, options = place_of(f"{place.root}/{table}", dict(place.options)).location()
    found = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=[*columns])
    return sorted(zip(*(found.column(name).to_pylist() for name in columns), strict=True), key=repr)


@pytest.fixture
def run(cluster: SparkCluster, place: Place, bare_python: Path, tmp_path: Path) -> Run:
    return Run(cluster, place, bare_python, tmp_path)


def test_clean_has_each_record_once(run: Run, plant: Hub, place: Place, tmp_path: Path) -> None:
    settings = {"source.store": plant.root, "sink.delta.path": f"{place.root}/clean", "checkpoint": str(tmp_path / "c")}
    done = run("clean", **settings)
    assert done.returncode == 0, done.stderr
    assert rows(place, "clean", "_edge", "_seq") == sorted(((edge, seq) for edge, seq, _ in plant.expected()), key=repr)


def test_machine_hours_count_each_record(run: Run, plant: Hub, place: Place, tmp_path: Path) -> None:
    settings = {"source.store": plant.root, "sink.delta.path": f"{place.root}/hours", "checkpoint": str(tmp_path / "c")}
    done = run("machine-hours", **settings, **{"steps[1].window.every": "1s"})
    assert done.returncode == 0, done.stderr
    found = rows(place, "hours", "window_start", "machine", "records", "mean")
    assert len(found) == ROUNDS * 2
    assert {row[2:] for row in found} == {(5 * len(EDGES), 24.5), (5 * len(EDGES), 25.5)}
