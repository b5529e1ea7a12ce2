"""``weft spark run``: run a pipeline until it is stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from weft.commands.common import cannot_be_done, json_option
from weft.commands.pipelines.common import (
    conf_option,
    located_pipeline,
    master_option,
    pipeline_argument,
    set_option,
    spark_log_option,
    spark_session,
)
from weft.config.units import approximate_duration
from weft.output import Failed, Refused, counted, print_json_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from spark_sinks.completeness.definition import IfChanged
    from spark_sinks.completeness.window_query import WindowQuery
    from spark_sinks.pipelines.progress import Progress, WindowProgress
    from spark_sinks.tables.query import TablesQuery
    from weft.config.load import Loaded
    from weft.config.pipelines.pipeline import Pipeline

SHOWN_MAX = 3
"""Maximum number of edge nodes in a line of progress."""


@click.command("run")
@pipeline_argument
@set_option
@master_option
@conf_option
@click.option("--once", is_flag=True, help="Read the records that there are now, and end.")
@click.option("--no-check", is_flag=True, help="Start without the check.")
@click.option(
    "--if-changed",
    type=click.Choice(["refuse", "recompute", "keep"]),
    default="refuse",
    show_default=True,
    help="Action when the definition of windows differs from that of the written ones: refuse to start, recompute all "
    "windows, or keep them.",
)
@click.option("--report", metavar="URL", help="Hub whose console shows the pipeline: URLs, with commas.")
@click.option("--report-token-file", metavar="FILE", help="File with a token that has the grant report. Unset: the "
              "token of WEFT_TOKEN.")  # fmt: skip
@click.option("--report-ca-file", metavar="FILE", help="PEM file of the authorities that the hub is trusted by.")
@spark_log_option
@json_option
def spark_run(
    pipeline: str,
    *,
    settings: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
    once: bool,
    no_check: bool,
    if_changed: IfChanged,
    report: str | None,
    report_token_file: str | None,
    report_ca_file: str | None,
    spark_log: str | None,
    as_json: bool,
) -> int:
    """Run PIPELINE, a YAML file or the name of a shipped pipeline, until Ctrl-C or SIGTERM.

    A restarted pipeline resumes where it stopped, also after a crash. Progress goes to standard error: one line for
    each micro-batch with records, and for each half minute of one that takes longer. On a cluster, the command sends
    Weft and the modules of your steps to the executors, but not libraries.

    With --report the console of that hub shows the pipeline: rate, lag, last micro-batch and error. The pipeline goes
    on without the hub.

    \b
    weft spark run clean.yaml --once
    weft spark run machine-hours --set source.store=/data/hub --master spark://10.0.0.5:7077
    """
    loaded = located_pipeline(pipeline, settings)
    look: Callable[[Any], None] = Show(as_json)
    if report is not None:
        look = reported(look, loaded.config, report, report_token_file, report_ca_file)
    # A history server lists applications by it. A server of Spark Connect has a name of its own.
    named = conf if master.startswith("sc://") else (f"spark.app.name={loaded.config.name}", *conf)
    with spark_session(master, named, spark_log) as spark:
        _run(loaded, spark, master, once=once, check_first=not no_check, if_changed=if_changed, look=look)
    return 0


def _run(
    loaded: Loaded[Pipeline],
    spark: SparkSession,
    master: str,
    *,
    once: bool,
    check_first: bool,
    if_changed: IfChanged,
    look: Callable[[Any], None],
) -> None:
    from spark_sinks.pipelines.check.check import check
    from spark_sinks.pipelines.errors import PipelineError
    from spark_sinks.pipelines.failure import sentence_of
    from spark_sinks.pipelines.job import start
    from spark_sinks.pipelines.shipping import MissingLibraries, ship
    from spark_sinks.runtime.waiting import await_termination, stop_asked

    try:
        if not master.startswith("local"):
            ship(spark, loaded.config)
        if check_first:
            report = check(loaded.config, spark, if_changed=if_changed)
            if not report.is_good:
                raise cannot_be_done(loaded, report.errors)
        with stop_asked() as stop:
            await_termination(start(loaded.config, spark, once=once, if_changed=if_changed), look, stop)
    except PipelineError as error:
        raise cannot_be_done(loaded, [error.finding]) from None
    except MissingLibraries as error:
        raise Failed(str(error)) from None
    except (Failed, click.ClickException):
        raise
    except Exception as error:
        raise Failed(sentence_of(error)) from error


class Show:
    """Progress on standard error: a line that changes on a terminal, one for each micro-batch elsewhere."""

    def __init__(self, as_json: bool) -> None:
        from spark_sinks.pipelines.progress import Watcher

        self._watcher = Watcher()
        self._as_json = as_json

    def __call__(self, query: StreamingQuery | WindowQuery | TablesQuery) -> None:
        """Print new progress."""
        for progress in self._watcher.new(query):
            if self._as_json:
                print_json_line(progress._asdict())
            else:
                click.echo(_line(progress), err=True, nl=not sys.stderr.isatty())
        running = self._watcher.running(query)
        if running is not None and not self._as_json:
            click.echo(_shown(f"micro-batch running for {running:.0f} s"), err=True, nl=not sys.stderr.isatty())
        if not query.isActive and sys.stderr.isatty() and not self._as_json:
            click.echo(err=True)


def reported(
    show: Callable[[Any], None], pipeline: Pipeline, urls: str, token_file: str | None, ca_file: str | None
) -> Callable[[Any], None]:
    """Return ``show`` with reports to a hub behind it.

    Raises:
        Refused: a URL or a file is not usable.
    """
    from spark_sinks.errors import ReadError
    from spark_sinks.pipelines.report import Reporter
    from spark_sinks.source.hub.access import hub_access

    given = {"hub": urls, "token_file": token_file, "ca_file": ca_file}
    try:
        access = hub_access({name: value for name, value in given.items() if value is not None})
    except ReadError as error:
        raise Refused(f"--report: {error}") from None
    assert access is not None, "it has a hub"
    source = pipeline.source
    is_one = source.stream is not None and "*" not in source.stream
    reporter = Reporter(
        access, pipeline.name, source.one if is_one else "*",
        tenant=None if "*" in source.tenant else source.tenant,
        told=lambda why: click.echo(f"warning: {why}", err=True),
    )  # fmt: skip

    def look(query: Any) -> None:
        show(query)
        reporter(query)

    return look


def _line(progress: Progress | WindowProgress) -> str:
    from spark_sinks.pipelines.progress import Progress

    return _shown(_of_batch(progress) if isinstance(progress, Progress) else _of_windows(progress))


def _shown(text: str) -> str:
    return f"\r\x1b[K{text}" if sys.stderr.isatty() else text


def _of_windows(progress: WindowProgress) -> str:
    until = progress.complete_until or "no moment that is known"
    waiting = f"; held back by {', '.join(progress.held_back_by[:SHOWN_MAX])}" if progress.held_back_by else ""
    late = f"; {counted(progress.late, 'window')} with records after the bound `late`" if progress.late else ""
    rejected = "; ".join(f"{counted(rows, 'record')} in no window: {why}" for why, rows in progress.rejected.items())
    return (
        f"{counted(progress.given, 'window')} written in {approximate_duration(progress.seconds)}, "
        f"{progress.pending} pending, complete until {until}{waiting}{late}"
        f"{'; ' if rejected else ''}{rejected}"
    )


def _of_batch(progress: Progress) -> str:
    behind = "" if progress.behind is None else f", {counted(progress.behind, 'record')} behind"
    return (
        f"micro-batch {progress.batch}: {counted(progress.records, 'record')} in "
        f"{approximate_duration(progress.seconds)}, {progress.rate:,.0f}/s{behind}"
    )
