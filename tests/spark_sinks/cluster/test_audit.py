"""Audit and traces on a cluster: executors read the store themselves, whatever the store is."""

from __future__ import annotations

import pytest

from tests.spark_sinks.cluster.conftest import Place, job
from tests.spark_sinks.conftest import STREAM, Hub
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.search(turns=4), pytest.mark.processes, pytest.mark.timeout(600)]


def test_executors_audit_a_stream_and_trace_its_windows(cluster: SparkCluster, place: Place) -> None:
    hub = Hub(f"{place.root}/audited", place.options)
    hub.write(6)
    hub.tier()
    hub.write(2)
    reported = job(cluster, "audit_and_trace", place, store=hub.root, stream=STREAM)
    assert reported == {"agrees": True, "records": 320, "waiting": 80, "traced": 320, "distinct": 320}
