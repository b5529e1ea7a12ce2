"""The audit on executors: the same report as in one process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_sinks import ReadError
from spark_sinks import audit as job
from spark_sinks.audit import audit
from tests.proofs.audit.stores import DAMAGE, HARMLESS, Planting, written
from tests.spark_sinks.conftest import Hub
from tests.storage.object_store.buckets import s3_endpoint
from weft.proofs.audit import tasks
from weft.proofs.audit.audit import audit as local_audit
from weft.proofs.audit.report import AuditReport
from weft.proofs.audit.tasks import LogTask
from weft.storage.object_store import open_store

pytestmark = pytest.mark.spark

KEY = ("default", "telemetry")


def plant(root: str, *plantings: Planting) -> AuditReport:
    """Make a store. Return what an audit in this process says of it."""

    async def work() -> AuditReport:
        store = open_store(root)
        log = await written(store)
        for each in plantings:
            await each(log)
        return await local_audit(store, *KEY, payloads=True)

    return asyncio.run(work())


@pytest.mark.slow
@pytest.mark.parametrize("plantings", [(*HARMLESS, *DAMAGE), HARMLESS, *((one,) for one in DAMAGE)])
def test_executors_find_what_one_process_finds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plantings: tuple[Planting, ...]
) -> None:
    root = str(tmp_path / "store")
    expected = plant(root, *plantings)
    monkeypatch.setattr(tasks, "RUN_CHUNKS", 3)
    monkeypatch.setattr(tasks, "TASK_BYTES", 8000)
    monkeypatch.setattr(job, "WAVE_TASKS_MAX", 4)
    found = audit(spark, "telemetry", store=root, payloads=True)
    assert found == expected
    assert found.agrees == (plantings == HARMLESS)


@pytest.mark.slow
def test_errors_say_what_to_do(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="holds no hub"):
        audit(spark, "telemetry", store=tmp_path / "nowhere")
    with pytest.raises(ReadError, match="stream: expected lower-case"):
        audit(spark, "Telemetry!", store=hub.root)
    hub.write(1)
    assert audit(spark, "alarms", store=hub.root).lanes == []


@pytest.mark.slow
@pytest.mark.s3
def test_executors_read_a_bucket_without_a_file_system_of_spark(spark: SparkSession) -> None:
    with s3_endpoint() as endpoint:
        options = dict(endpoint.options)
        hub = Hub(f"{endpoint.new_bucket()}/weft", options)
        hub.write(3)
        hub.tier()
        hub.write(1)
        found = audit(spark, "telemetry", store=hub.root, store_options=options)
        assert (found.agrees, found.total("records"), found.total("waiting")) == (True, 160, 40)
        assert found == asyncio.run(local_audit(open_store(hub.root, options), *KEY))
        with pytest.raises(ReadError, match="does not answer"):
            audit(
                spark, "telemetry", store=hub.root, store_options={**options, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
            )


@pytest.mark.slow
def test_a_job_that_fails_says_why(spark: SparkSession, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.write(1)
    monkeypatch.setattr(LogTask, "__reduce__", lambda _: (exec, ("raise OSError('no room on the executor')",)))
    with pytest.raises(ReadError, match=r"^the Spark job failed: OSError: no room on the executor"):
        audit(spark, "telemetry", store=hub.root)
