"""The pipelines that look back, killed at their commits: tables and alerts equal those of an uninterrupted run."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_sinks.pipelines.shipped.training import main as train
from tests.spark_sinks.pipelines.shipped.conftest import Machines
from tests.spark_sinks.pipelines.shipped.looking_back_job import Settings, command
from tests.spark_sinks.pipelines.shipped.test_anomalies import by_a_loop, readings
from tests.spark_sinks.pipelines.shipped.test_features import SERIES
from tests.spark_sinks.sinks.killed_jobs import Jobs
from tests.spark_sinks.sinks.stream.conftest import StreamHub

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.search(turns=4), pytest.mark.timeout(1790)]
KILLS = ("after 2 alerts", "before 2 sessions", "after 2 features")
"""In the order in which the pipelines run: each life gets to its own, after it has finished those before it."""
LOST_AT = 2
"""The life before which the checkpoints are deleted."""
EVERYTHING = readings(1, 280)
LATE = EVERYTHING[60:180:3]
"""Readings that an old disk brought back at last."""
IN_TIME = [each for each in EVERYTHING if each not in LATE]
RECORDS_MAX = 160
"""The log has two shards, and one of them all records: two micro-batches."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[StreamHub]:
    """A hub over a store with readings of two machines."""
    machines = Machines(tmp_path)
    machines.write("e1", IN_TIME)
    machines.write("e1", LATE, log_id=2)
    started = StreamHub(tmp_path)
    started.start()
    yield started
    started.stop()


def test_kills_at_commits_and_a_lost_checkpoint_change_nothing(hub: StreamHub, tmp_path: Path) -> None:
    model = tmp_path / "model.pickle"
    assert train([SERIES, str(model), "--until", "2013-12-04"]) == 0
    cut = Settings(hub.store, hub.url, str(model), str(tmp_path / "cut"), "alerts", RECORDS_MAX)
    jobs = Jobs(command(cut), tmp_path / "cut" / "features")
    for life, kill in enumerate(KILLS):
        if life == LOST_AT:
            shutil.rmtree(tmp_path / "cut" / "checkpoints")
        assert jobs.run(kill) == -signal.SIGKILL
    whole = Settings(hub.store, hub.url, str(model), str(tmp_path / "whole"), "uninterrupted", len(EVERYTHING) * 4)
    assert Jobs(command(cut, whole), tmp_path / "cut" / "features").run() == 0
    for table, count in (("sessions", 10), ("features", len(EVERYTHING))):
        found = rows(tmp_path / "cut" / table)
        assert found == rows(tmp_path / "whole" / table)
        assert len(found) >= count
    alerts = [alert(each) for each in hub.stream_records("alerts")]
    assert alerts == [alert(each) for each in hub.stream_records("uninterrupted")]
    said = [json.loads(payload) for _, _, payload, _ in alerts]
    assert sorted((each["machine"], each["value"]) for each in said) == by_a_loop(IN_TIME + LATE)
    assert len(alerts) > 2
    assert hub.problems("alerts") == []


def rows(table: Path) -> list[dict[str, Any]]:
    """Return all rows of a table, sorted."""
    return sorted(DeltaTable(str(table)).to_pyarrow_table().to_pylist(), key=repr)


def alert(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a record of a stream says; its place there and the name of its pipeline are left out."""
    return record["key"], record["time"], record["payload"], sorted(map(str, record["headers"]))
