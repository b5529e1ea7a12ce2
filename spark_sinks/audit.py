"""The audit as a Spark job: executors count chunks and table files, the driver sums up the counts.

Executors read the store by Weft's own code, so the job works with any store that the hub can use. Each task returns
runs of numbers: the driver's memory grows with gaps and lanes, not with records.
"""

from __future__ import annotations

import asyncio
import os
import pickle  # Between this driver and its executors, as Spark itself does.
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.runtime.session import register
from spark_sinks.source.options import STORE_PREFIX, ReadOptions, parse_options
from spark_sinks.source.stream_log import open_hub
from weft.proofs.audit.audit import Runner, Task
from weft.proofs.audit.audit import audit as run_audit
from weft.proofs.audit.counts import Part, Scope
from weft.proofs.audit.report import AuditReport
from weft.storage.object_store import StoreError, open_store
from weft.storage.table.actions import TableError

WAVE_TASKS_MAX = 512
"""Maximum number of tasks of one Spark job: bounds the counts that are in the driver before they are summed up."""
REASON_CHARACTERS_MAX = 500
_PARTS = "part binary, error string"


def audit(
    spark: SparkSession,
    stream: str,
    *,
    store: str | os.PathLike[str],
    tenant: str = "default",
    payloads: bool = False,
    store_options: Mapping[str, str] | None = None,
) -> AuditReport:
    """Compare lanes, log and table of a stream, record by record; ``report.agrees`` is the answer.

    The report is that of ``weft audit`` without Spark. The job reads the whole log of the stream and the columns of
    the table that name records and their times. It changes nothing, and the hub may run meanwhile.

    Args:
        store: root of the hub's store.
        payloads: compare the payloads, too, by checksum. Reads the whole table.
        store_options: for the object store: ``{"AWS_REGION": ...}``.

    Raises:
        ReadError: an argument is not valid, the store holds no hub or does not answer, its table cannot be opened, or
            the job failed, as on executors without Weft.
    """
    register(spark)
    return run(_audit(spark, _options(stream, store, tenant, store_options or {}), payloads=payloads))


def check(
    stream: str,
    *,
    store: str | os.PathLike[str],
    tenant: str = "default",
    store_options: Mapping[str, str] | None = None,
) -> None:
    """Check the arguments of ``audit``, without a session of Spark.

    Raises:
        ReadError: as ``audit``, except for the table.
    """
    run(open_hub(_options(stream, store, tenant, store_options or {})))


def _options(stream: str, store: str | os.PathLike[str], tenant: str, store_options: Mapping[str, str]) -> ReadOptions:
    named = {f"{STORE_PREFIX}{name}": value for name, value in store_options.items()}
    return parse_options({"store": os.fspath(store), "tenant": tenant, "stream": stream, **named})


async def _audit(spark: SparkSession, options: ReadOptions, *, payloads: bool) -> AuditReport:
    store, _ = await open_hub(options)
    runner = on_executors(spark, options)
    try:
        return await run_audit(store, options.tenant, options.stream, payloads=payloads, runner=runner)
    except StoreError as error:
        raise ReadError(f"store {options.store!r} does not answer: {error}") from error
    except TableError as error:
        raise ReadError(f"the table of {options.stream} cannot be opened: {error}") from error
    except PySparkException as error:
        raise ReadError(f"the Spark job failed: {_reason(error)}") from error


def _reason(error: PySparkException) -> str:
    """Return the line with the cause of a job's failure: Spark puts the trace of a worker in front of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"[\w.]*(Error|Exception|NotFound): ", line)]
    return (python or lines or [type(error).__name__])[0][:REASON_CHARACTERS_MAX]


def on_executors(spark: SparkSession, options: ReadOptions) -> Runner:
    """Return a runner of audit tasks on Spark's executors."""

    async def on_spark(tasks: Sequence[Task], scope: Scope) -> AsyncIterator[Part]:
        for start in range(0, len(tasks), WAVE_TASKS_MAX):
            wave = tasks[start : start + WAVE_TASKS_MAX]
            frame = spark.range(0, len(wave), 1, len(wave)).mapInArrow(_counting(wave, scope, options), _PARTS)
            for row in await asyncio.to_thread(frame.collect):
                if row.error is not None:
                    raise StoreError(row.error)
                yield pickle.loads(row.part)  # noqa: S301

    return on_spark


def _counting(
    tasks: Sequence[Task], scope: Scope, options: ReadOptions
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the executor's function: it runs the tasks with the given numbers."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(options.store, dict(options.store_options))
        for batch in batches:
            for number in batch.column("id").to_pylist():
                part, error = None, None
                try:
                    part = pickle.dumps(asyncio.run(tasks[number].run(store, scope)))
                except StoreError as failure:
                    error = str(failure)
                columns = [pa.array([part], pa.binary()), pa.array([error], pa.string())]
                yield pa.RecordBatch.from_arrays(columns, names=["part", "error"])

    return count
