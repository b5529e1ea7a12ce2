"""A pipeline with the sink ``tables``: the hub's own tables, made by Spark."""

from __future__ import annotations

import os

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.pipelines.check.report import Report
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.store_options import with_environment
from spark_sinks.source.stream_log import open_hub
from spark_sinks.tables.query import TablesJob
from weft.config.pipelines.pipeline import Pipeline
from weft.storage.every_shard import first_logs
from weft.storage.presence.keepers import Claim


def tables_job(pipeline: Pipeline, *, once: bool = False) -> TablesJob:
    """Return the job of a pipeline.

    Args:
        once: make one round, whatever the trigger of the pipeline is.
    """
    source, sink = pipeline.source, pipeline.sink.tables
    assert sink is not None
    options = with_environment({}, os.environ, source.store)
    return TablesJob(
        pipeline.name,
        ReadOptions(source.store, "tables", store_options=tuple(sorted(options.items()))),
        source.tenant,
        source.one,
        None if once else pipeline.trigger_s,
        sink.joined_size,
        sink.streams_at_once,
    )


def check_tables(pipeline: Pipeline, report: Report) -> None:
    """Add the findings about the store and its streams. Nothing is written."""
    job = tables_job(pipeline)
    try:
        found = run(_streams(job))
    except ReadError as error:
        report.refuse(("source", "store"), str(error))
        return
    claim = Claim(job.name, 0, job.tenants, job.streams)
    if not any(map(claim.covers, found)):
        report.doubt(("source", "stream"), f"no stream of the store is {job.tenants}/{job.streams} yet")


async def _streams(job: TablesJob) -> list[tuple[str, str]]:
    store, cluster = await open_hub(job.access)
    found: dict[tuple[str, str], None] = {}
    logs = first_logs(store, cluster)
    while logs:  # one after the other: each may be large, and only names are kept
        log = logs.pop()
        state = await log.load()
        found |= dict.fromkeys(state.next_offset)
        logs += map(log.new_shard, state.splits)
    return list(found)
