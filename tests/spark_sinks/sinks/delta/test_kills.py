"""SIGKILLs of the driver before, after and between commits: the tables equal those of an uninterrupted run.

Storms of more kills, of executors and workers too, are in ``tests/spark_sinks/cluster``.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.spark_sinks.conftest import Hub
from tests.spark_sinks.sinks.delta.tables import rows
from tests.spark_sinks.sinks.killed_jobs import Jobs

KILLS = ("before 1", "after 1", "before 2", "after 3", "random", "before 3")
LOST_AT = 3
"""The run before which the checkpoint is deleted."""


@pytest.mark.search(turns=4)
@pytest.mark.spark
@pytest.mark.timeout(890)
def test_tables_equal_those_of_an_uninterrupted_run(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    jobs = Jobs(["tests.spark_sinks.sinks.delta.table_job", hub.root, str(folder)], folder / "rows")
    for number, kill in enumerate(KILLS):
        hub.write(3)
        if number == LOST_AT:
            shutil.rmtree(folder / "checkpoint")
        status = jobs.run(kill)
        assert status == -signal.SIGKILL or kill == "random"
    assert jobs.run() == 0
    assert sorted(rows(folder / "rows", "_edge", "_seq", "payload")) == hub.expected()
    newest: dict[tuple[str, int], int] = {}
    for edge, seq, _ in hub.expected():
        newest[edge, seq % 2] = seq
    assert sorted((edge, seq) for edge, seq in rows(folder / "newest", "_edge", "_seq")) == sorted(
        (edge, seq) for (edge, _), seq in newest.items()
    )
    assert len(jobs.killed) >= len(KILLS) - 1
