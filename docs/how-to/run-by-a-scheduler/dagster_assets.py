"""Each hour: new rows through a pipeline, and the proof that none is missing as a check of the stream."""

import os
import subprocess

from dagster import Backoff, Definitions, RetryPolicy, ScheduleDefinition, asset, define_asset_job

WEFT = os.environ.get("WEFT", "weft")
STORE = os.environ.get("WEFT_STORE", "/var/lib/weft/hub")


def weft(*words: str) -> None:
    """Run a command of Weft; one that fails fails the asset."""
    subprocess.run([WEFT, *words], cwd=os.environ.get("WEFT_FOLDER", "/var/lib/weft/pipelines"), check=True)


@asset(retry_policy=RetryPolicy(max_retries=3, delay=60, backoff=Backoff.EXPONENTIAL))
def clean_telemetry() -> None:
    """Write each reading once, by the shipped pipeline `clean`."""
    weft("spark", "run", "clean", "--once", "--master", "local[2]", "--set", f"source.store={STORE}")


@asset(deps=[clean_telemetry])
def audited_telemetry() -> None:
    """Prove that log and table have the same records."""
    weft("audit", "telemetry", "--store", STORE)


hourly = ScheduleDefinition(job=define_asset_job("telemetry"), cron_schedule="0 * * * *")
defs = Definitions(assets=[clean_telemetry, audited_telemetry], schedules=[hourly])
