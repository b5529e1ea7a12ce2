"""Shipped pipelines on a cluster whose machines have Weft's libraries and not Weft: its code comes with the job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_sinks.pipelines.shipped.training import main as train
from spark_sinks.sinks.delta.table import place_of
from tests.spark_sinks.cluster.commands import Run
from tests.spark_sinks.cluster.conftest import Place
from tests.spark_sinks.conftest import EDGES, SHARDS, Hub
from tests.spark_sinks.sinks.stream.conftest import StreamHub
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.search(turns=5), pytest.mark.processes, pytest.mark.timeout(600)]

ROUNDS = 6
HOT, HOT_SEQ = 95.5, 55
"""Value of one record of each edge node, in the log behind the table: an alert, and a session of its own."""
CUT = {"source.max_records_per_trigger": str(len(EDGES) * 10 * ROUNDS // 2)}
"""Two micro-batches: the second one looks back into the first."""
SERIES = Path("examples/demo/data/machine_temperature_system_failure.csv.gz").absolute()


def value_of(seq: int) -> float:
    return HOT if seq == HOT_SEQ else 20.5 + seq % 10


def reading(edge: str, seq: int) -> bytes:
    return json.dumps({"temperature": value_of(seq)}).encode()


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
    assert [row[1:] for row in found] == [
        (f"m{machine}", 5 * len(EDGES), sum(map(value_of, range(first + machine, first + 10, 2))) / 5)
        for first in range(0, 10 * ROUNDS, 10)
        for machine in (0, 1)
    ]


def test_sessions_are_those_of_all_records(run: Run, plant: Hub, place: Place, tmp_path: Path) -> None:
    table = {"sink.delta.path": f"{place.root}/sessions", "checkpoint": str(tmp_path / "c")}
    done = run("sessions", **table, **CUT, **{"source.store": plant.root})
    assert done.returncode == 0, done.stderr
    found = [row[1:] for row in rows(place, "sessions", "started_at", "_edge", "machine", "state", "records")]
    odd = HOT_SEQ // 2
    assert sorted(found) == sorted(
        each
        for edge in EDGES
        for each in (
            (edge, "m0", "down", 5 * ROUNDS),
            (edge, "m1", "down", odd),
            (edge, "m1", "running", 1),
            (edge, "m1", "down", 5 * ROUNDS - odd - 1),
        )
    )


def test_features_carry_the_score_of_a_model(run: Run, plant: Hub, place: Place, tmp_path: Path) -> None:
    assert train([str(SERIES), str(tmp_path / "model.pickle"), "--until", "2013-12-04", "--version", "7"]) == 0
    table = {"sink.delta.path": f"{place.root}/features", "checkpoint": str(tmp_path / "c")}
    done = run("features", **table, **CUT, **{"source.store": plant.root})
    assert done.returncode == 0, done.stderr
    found = rows(place, "features", "_edge", "machine", "records", "value", "model_version", "score")
    past = len(EDGES) * 2
    assert sorted(row[2] for row in found) == sorted([*range(1, 5 * ROUNDS + 1)] * past)
    assert {row[4] for row in found} == {"7"}
    # The first five of a machine have too short a history for features.
    assert sum(row[5] is None for row in found) == 5 * past


@pytest.fixture
def hub(plant: Hub, place: Place, tmp_path: Path) -> Iterator[StreamHub]:
    """A hub over the plant's store."""
    started = StreamHub(tmp_path)
    started.serve(plant.root, SHARDS, place.options)
    started.start()
    yield started
    started.stop()


def test_anomalies_come_once_into_a_stream(run: Run, plant: Hub, hub: StreamHub, tmp_path: Path) -> None:
    settings = {"source.store": plant.root, "sink.stream.hub": hub.url, "checkpoint": str(tmp_path / "c")}
    done = run("anomalies", **settings, **CUT, **{"steps[1].options": "{warm_up: 20}"})
    assert done.returncode == 0, done.stderr
    alerts = [json.loads(each["payload"]) for each in hub.stream_records("alerts", shards=SHARDS)]
    assert [(alert["machine"], alert["value"]) for alert in alerts] == [("m1", HOT)] * len(EDGES)
