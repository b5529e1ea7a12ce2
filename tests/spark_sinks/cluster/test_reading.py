"""Reading on a cluster: executors read the store themselves, whatever the store is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_sinks.cluster.conftest import Place, job
from tests.spark_sinks.conftest import STREAM, Hub
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.search(turns=4), pytest.mark.processes, pytest.mark.timeout(600)]

PADDING = 20_000
"""Bytes of a payload: enough that reading them cannot be mistaken for reading indexes."""


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
