"""The audit on executors: the same report as in one process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_sinks import ReadError
from spark_sinks.audit import audit, job
from tests.spark_sinks.conftest import Hub
from tests.storage.audit.stores import DAMAGE, HARMLESS, Planting, written
from weft.storage.audit import log_plan, table_task
from weft.storage.audit.audit import audit as local_audit
from weft.storage.audit.report import AuditReport
from weft.storage.object_store import open_store

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


@pytest.mark.parametrize(
    "plantings", [HARMLESS, (*HARMLESS, *DAMAGE), *(pytest.param((each,), marks=pytest.mark.slow) for each in DAMAGE)]
)
def test_executors_find_what_one_process_finds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plantings: tuple[Planting, ...]
) -> None:
    root = str(tmp_path / "store")
    expected = plant(root, *plantings)
    monkeypatch.setattr(log_plan, "RUN_CHUNKS", 3)
    monkeypatch.setattr(table_task, "TASK_BYTES", 8000)
    monkeypatch.setattr(job, "WAVE_TASKS_MAX", 4)
    found = audit(spark, "telemetry", store=root, payloads=True)
    assert found == expected
    assert found.agrees == (plantings == HARMLESS)


def test_errors_say_what_to_do(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="holds no hub"):
        audit(spark, "telemetry", store=tmp_path / "nowhere")
    with pytest.raises(ReadError, match="stream: expected lower-case"):
        audit(spark, "Telemetry!", store=hub.root)
    hub.write(1)
    assert audit(spark, "alarms", store=hub.root).lanes == []
