"""Each hour: new rows through a pipeline, then the proof that none is missing."""

import os
from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

WEFT = os.environ.get("WEFT", "weft")
STORE = os.environ.get("WEFT_STORE", "/var/lib/weft/hub")

with DAG(
    "weft_telemetry",
    schedule="@hourly",
    start_date=datetime(2026, 11, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
):
    pipeline = BashOperator(
        task_id="pipeline",
        bash_command=f"{WEFT} spark run clean --once --master 'local[2]' --set source.store={STORE}",
        cwd=os.environ.get("WEFT_FOLDER", "/var/lib/weft/pipelines"),
    )
    audit = BashOperator(task_id="audit", bash_command=f"{WEFT} audit telemetry --store {STORE}")
    pipeline >> audit
