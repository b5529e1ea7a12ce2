"""``weft spark run`` against a cluster, as a process with the environment of a person who set the cluster up."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.spark_sinks.cluster.conftest import JOB_S_MAX, Place
from tests.support.spark_cluster import SparkCluster, temporary_of_spark


@dataclass(frozen=True)
class Run:
    """Runs of pipelines.

    Args:
        python: of the executors.
        folder: the driver's working directory.
    """

    cluster: SparkCluster
    place: Place
    python: Path
    folder: Path

    def __call__(
        self, pipeline: str, *options: str, master: str | None = None, **settings: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a pipeline once over what there is, with settings that win over its own."""
        with temporary_of_spark() as temporary:
            return subprocess.run(
                self.command(pipeline, "--once", *options, master=master, **settings),
                env={**self.environment(), **temporary},
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=JOB_S_MAX,
                check=False,
            )

    def command(self, pipeline: str, *options: str, master: str | None = None, **settings: str) -> list[str]:
        """Return the command line."""
        conf = self.cluster.conf if master is None else {}
        return [
            sys.executable,
            "-m",
            "weft",
            "spark",
            "run",
            pipeline,
            "--master",
            master or self.cluster.master,
            *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
            *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
            *options,
        ]

    def environment(self) -> dict[str, str]:
        """Return the driver's variables: what opens the store, and the Python of the executors."""
        return {**os.environ, **self.place.options, "PYSPARK_PYTHON": str(self.python)}
