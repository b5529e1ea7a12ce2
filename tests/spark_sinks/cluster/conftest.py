"""A cluster for the tests of a module, and stores that its workers reach: a folder, and a bucket of an S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.s3_servers import VERSITYGW, S3Server, built
from tests.support.spark_cluster import SparkCluster, temporary_of_spark

JOB_S_MAX = 580
"""For a machine that has much else to do: a job takes seconds."""


@dataclass(frozen=True)
class Place:
    """A place for stores and tables."""

    root: str
    """A folder or ``s3://bucket``; stores and tables get a name under it."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Variables that open it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module", params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    if request.param == "directory":
        yield Place(str(folder))
        return
    try:
        binary = built(VERSITYGW)
    except LookupError as error:
        pytest.skip(str(error))
    with S3Server(VERSITYGW, binary, folder / "server") as server:
        yield Place(server.uri, server.options())


def job(cluster: SparkCluster, name: str, place: Place, **arguments: object) -> Any:
    """Run ``jobs/NAME.py`` on the cluster in a process of its own and return what it says: one JSON value.

    The job runs in the cluster's folder, so that nothing is found because the repository is the working directory.
    """
    reported = {"conf": cluster.conf, "master": cluster.master, **arguments}
    with temporary_of_spark() as temporary:
        done = subprocess.run(
            [sys.executable, "-m", f"tests.spark_sinks.cluster.jobs.{name}", json.dumps(reported)],
            env={**os.environ, **place.options, **temporary, "PYTHONPATH": str(Path(__file__).parents[3])},
            cwd=cluster.folder,
            capture_output=True,
            text=True,
            timeout=JOB_S_MAX,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the libraries of ``.[spark]`` and cannot import Weft, as on a machine that was set up once."""
    folder = tmp_path_factory.mktemp("python") / "bare"
    venv.create(folder, with_pip=False)
    packages = sysconfig.get_path("purelib")
    inner = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    # A folder named in a .pth file becomes part of the path; the .pth files in it, as of our editable install, do not.
    (Path(inner) / "libraries.pth").write_text(f"{packages}\n")
    python = folder / "bin" / "python"
    lacks = subprocess.run(
        [python, "-c", "import pyarrow, pyspark, weft"], check=False, cwd=folder, capture_output=True, text=True
    )
    assert "No module named 'weft'" in lacks.stderr
    return python
