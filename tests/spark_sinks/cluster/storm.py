"""Storms of SIGKILLs over a job on a cluster: its driver, its executors, a worker; and what the tables hold then."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.spark_sinks.conftest import STREAM, Hub
from tests.spark_sinks.sinks.killed_jobs import KILL
from tests.support.outcomes import outcome
from tests.support.spark_cluster import SparkCluster, kill_group, temporary_of_spark
from weft.storage.hub_keys import table_key

ROOT = Path(__file__).parents[3]
LIFE_S_MAX = 300.0
ROUNDS = 3
"""Rounds of records that come for each life of the driver: 120 records, three micro-batches, six commits."""
COMMITS = 4
"""A driver dies at one of its first commits. Of the least that a life has to commit, some may be done already."""
AFTER_S_MAX = 0.4
"""Longest time between the begin of a micro-batch and the kill of an executor that works on it."""


class Storm:
    """Lives of a driver, each of which ends by SIGKILL, with kills of executors within them.

    Every other kill hits the driver right before or right after a commit of a table; the others hit an executor, a
    worker with its executors, or the driver and its JVM at a random moment of a micro-batch.

    Args:
        folder: for the log, the tables and the checkpoint.
        seed: of all choices.
    """

    script, commits = "storm", COMMITS

    def __init__(self, cluster: SparkCluster, folder: Path, seed: int) -> None:
        self._cluster, self._folder = cluster, folder
        self._random = random.Random(seed)
        self._hub = Hub(str(folder / "hub"))
        self._owing = False
        self.kills: Counter[str] = Counter()
        """How many processes were killed, by what they were and when."""

    def run(self, kills: int) -> None:
        """Kill so often, with something taken from it once between two lives; then let the job come to its end."""
        lost_at = kills // 2
        while self.kills.total() < kills:
            self._hub.write(ROUNDS)
            if self.kills.total() >= lost_at:
                self._halfway()
                lost_at = sys.maxsize
            self._life()
            print(f"{self.kills.total()} kills: {dict(self.kills)}", flush=True)
        self._end("stormy", "checkpoint")

    def _halfway(self) -> None:
        """Take from the job what it must do without once."""
        shutil.rmtree(self._folder / "checkpoint")

    @outcome()
    def compare(self) -> None:
        """Compare the tables, row by row, with those of a run that nothing interrupts, and audit the log.

        Raises:
            AssertionError: they differ.
        """
        self._end("calm", "checkpoint-of-calm")
        for table in ("rows", "newest"):
            stormy, calm = rows(self._folder / "stormy" / table), rows(self._folder / "calm" / table)
            assert stormy == calm, f"{table}: {len(stormy)} rows, {len(calm)} without kills"
        assert len(rows(self._folder / "stormy" / "rows")) == len(self._hub.expected())
        self._hub.tier()
        self._audit()

    def _audit(self) -> None:
        command = [sys.executable, "-m", "weft", "audit", STREAM, "--store", self._hub.root]
        audit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert audit.returncode == 0, audit.stdout + audit.stderr

    def _life(self) -> None:
        at_commit = f"{self._random.choice(('before', 'after'))} {self._random.randint(1, self.commits)}"
        # Half of the kills are at commits: a life has one of those and one of the others. Where the other one hits the
        # driver itself, which then does not reach its commit, the next life has a commit alone.
        other = "" if self._owing else self._random.choices(("executor", "worker", "driver"), (8, 1, 2))[0]
        self._owing = other == "driver"
        batch = self._random.randint(0, 1)
        status = self._job("stormy", "checkpoint", at_commit, lambda number: number == batch and self._kill(other))
        assert status == -signal.SIGKILL
        if other != "driver":
            self.kills[f"driver {at_commit.partition(' ')[0]} a commit"] += 1

    def _kill(self, what: str) -> bool:
        """Kill a process in the middle of a micro-batch. Return whether it is the driver that has to go."""
        if not what:
            return False
        time.sleep(self._random.random() * AFTER_S_MAX)  # The moment within the micro-batch is what a seed varies.
        if what == "worker":
            number = self._random.randint(0, 1)
            self._cluster.kill_worker(number)
            self._cluster.start_worker(number)
        elif what == "executor" and not self._cluster.kill_executor(self._random.choice):
            return False
        self.kills[f"{what} in a micro-batch"] += 1
        return what == "driver"

    def _end(self, place: str, checkpoint: str) -> None:
        assert self._job(place, checkpoint, "", lambda _: False) == 0

    def _job(self, place: str, checkpoint: str, kill: str, at_batch: Callable[[int], bool]) -> int:
        """Run the job until it ends or dies.

        Args:
            kill: the commit at which it kills itself; empty for none.
            at_batch: called with the number of micro-batches that this run began before; True kills the driver.
        """
        reported: dict[str, Any] = {
            "conf": self._cluster.conf,
            "master": self._cluster.master,
            "store": self._hub.root,
            "stream": STREAM,
            "place": str(self._folder / place),
            "checkpoint": str(self._folder / checkpoint),
        }
        began = 0
        with temporary_of_spark() as temporary:
            errors = self._folder / "driver.log"
            with errors.open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", f"tests.spark_sinks.cluster.jobs.{self.script}", json.dumps(reported)],
                    env={**os.environ, **temporary, KILL: kill},
                    cwd=ROOT,
                    start_new_session=True,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if line.startswith("batch "):
                        if at_batch(began):
                            os.killpg(process.pid, signal.SIGKILL)
                        began += 1
                status = process.wait(LIFE_S_MAX)
            finally:
                kill_group(process)
                process.stdout.close()
        assert status in {0, -signal.SIGKILL}, errors.read_text()[-4000:]
        return status


class TablesStorm(Storm):
    """Lives of a pipeline that makes the tables of the hub, on the hub's own table; once a hub node makes it between
    two lives."""

    script, commits = "tables", 2

    @outcome()
    def compare(self) -> None:
        """Compare the table with the log.

        Raises:
            AssertionError: they differ.
        """
        table = DeltaTable(str(Path(self._hub.root, table_key("default", STREAM)))).to_pyarrow_table()
        found = zip(*(table.column(name).to_pylist() for name in ("_edge", "_seq", "payload")), strict=True)
        assert sorted(found) == self._hub.expected()
        self._audit()

    def _halfway(self) -> None:
        self._hub.write(1)
        assert self._hub.tier()
        self._hub.write(ROUNDS)  # the hub has taken what was there, and the next life needs commits to die at


def rows(table: Path) -> list[tuple[Any, ...]]:
    """Return all rows of a table with all columns, sorted."""
    found = DeltaTable(str(table)).to_pyarrow_table()
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)
