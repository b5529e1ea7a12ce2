"""``weft spark``: check, test, run and move pipelines, and ask streams in SQL."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from weft.commands.common import CheckAnswer, cannot_be_done, json_option, tenant_option
from weft.config.errors import ConfigError
from weft.config.units import approximate_duration
from weft.output import FAILURE_EXIT_CODE, Failed, Refused, counted, harmless, print_json, print_json_line, print_table
from weft.protocols.lane import NAME_RULE, valid_name
from weft.storage.object_store import StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from spark_sinks.completeness.window_state import IfChanged
    from spark_sinks.completeness.windows import WindowQuery
    from spark_sinks.pipelines.progress import Progress, WindowProgress
    from spark_sinks.pipelines.sample import Difference
    from spark_sinks.source.moving import MovedPosition
    from spark_sinks.tables.query import TablesQuery
    from weft.config.load import Loaded
    from weft.config.pipelines import Pipeline


# Connect to a Spark master before Java starts: Spark itself tries an address for minutes without a message.

MASTER_WAIT_S = 30.0
"""Longest wait for a master that does not answer: a starting master takes some seconds."""
SAID_EVERY_S = 10.0
_CONNECT_S = 5.0
_RETRY_S = 1.0
_PORTS = {"spark": 7077, "sc": 15002}


def addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of the masters at a URL; empty for masters without an address of their own."""
    scheme, separator, rest = master.partition("://")
    if not separator or scheme not in _PORTS:
        return []
    found = []
    for each in rest.partition("/")[0].split(","):
        host, colon, port = each.rpartition(":")
        if not colon:
            host, port = each, str(_PORTS[scheme])
        if not host or not port.isdecimal():
            return []  # Spark reports what is wrong with it
        found.append((host.strip("[]"), int(port)))
    return found


def wait_for_master(
    master: str,
    say: Callable[[str], None],
    *,
    wait_s: float = MASTER_WAIT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when one of the masters at a URL accepts connections.

    Raises:
        Failed: none did in ``wait_s``.
    """
    known = addresses(master)
    began, said_at = clock(), -SAID_EVERY_S
    while known:
        reasons = [_unreachable(*address, min(_CONNECT_S, wait_s)) for address in known]
        if None in reasons:
            return
        where = ", ".join(f"{host}:{port} ({why})" for (host, port), why in zip(known, reasons, strict=True))
        waited = clock() - began
        if waited >= wait_s:
            raise Failed(
                f"--master {master}: no Spark master at {where}, tried for {waited:.0f} s. Start it, or correct the "
                "address: the master's web page shows it, and local[*] needs none"
            )
        if waited - said_at >= SAID_EVERY_S:
            say(f"waiting for the Spark master at {where}, at most {wait_s:.0f} s")
            said_at = waited
        sleep(_RETRY_S)


def _unreachable(host: str, port: int, timeout: float) -> str | None:
    try:
        with socket.create_connection((host, port), timeout):
            return None
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__


@contextlib.contextmanager
def standard_error() -> Iterator[Callable[[str], None]]:
    """Return a function that prints a line on the present standard error, even while that is redirected."""
    try:
        copy = open(os.dup(2), "w", encoding="utf-8")  # noqa: SIM115
    except OSError:
        yield lambda _: None
        return
    with copy:
        yield lambda line: print(line, file=copy, flush=True)


@contextlib.contextmanager
def waiting_lines(master: str, say: Callable[[str], None], every_s: float = SAID_EVERY_S) -> Iterator[None]:
    """Print every few seconds that a session is still being started at a master on another machine."""
    done = threading.Event()

    def print_lines() -> None:
        began = time.monotonic()
        while not done.wait(every_s):
            say(f"waiting for a Spark session at {master}, for {time.monotonic() - began:.0f} s now")

    printer = threading.Thread(target=print_lines, daemon=True)
    printer.start()
    try:
        yield
    finally:
        done.set()
        printer.join()


# Parts that the commands of pipelines share: loading one, and a Spark session without noise.

pipeline_argument = click.argument("pipeline", metavar="PIPELINE")
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting that overrides the file's, such as source.store=/data/hub. The value is YAML. May be repeated.",
)
master_option = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="URL",
    help="Spark's master: local[*], spark://host:7077, k8s://..., yarn, or sc://host:15002 for Spark Connect.",
)
conf_option = click.option(
    "--conf", "conf", multiple=True, metavar="NAME=VALUE", help="Setting of the Spark session. May be repeated."
)
spark_log_option = click.option(
    "--spark-log", metavar="FILE", help="File that gets the log lines of Spark. Unset: they are dropped."
)


def located_pipeline(name: str, settings: Sequence[str]) -> Loaded[Pipeline]:
    """Return a checked pipeline with the lines of its settings. ``Refused`` says what is wrong."""
    from spark_sinks.pipelines.catalog import UnknownPipeline, is_file, located

    try:
        loaded = located(name, settings)
    except ConfigError as error:
        raise Refused(str(error)) from error
    except UnknownPipeline as error:
        raise Refused(str(error)) from None
    if is_file(name):
        # The modules of the user's steps are beside the file. Their folder comes last, so that it cannot shadow a
        # module of Python or of a library: a file `socket.py` beside a pipeline would run in every command that reads
        # it.
        sys.path.append(os.path.dirname(os.path.abspath(name)))
    return loaded


@contextmanager
def spark_session(master: str, conf: Sequence[str], log: str | None) -> Iterator[SparkSession]:
    """Return a Spark session whose log lines go to a file, and stop it in the end.

    Raises:
        Refused: ``conf`` is not a list of ``NAME=VALUE``.
        Failed: the session does not start.
    """
    confs = {}
    for text in conf:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Refused(f"--conf: expected NAME=VALUE such as spark.executor.memory=2g, got {text!r}")
        confs[name] = value
    from spark_sinks.runtime.session import is_connect, session
    from spark_sinks.runtime.waiting import (
        NO_PERFORMANCE_DATA,
        keep_lost_java_quiet,
        silence_py4j,
        stderr_to,
        without_context_logs,
    )

    for name, options in NO_PERFORMANCE_DATA.items():
        os.environ.setdefault(name, options)
    if not master.startswith("local"):
        find_our_code()
    try:
        with _waiting(master), stderr_to(log or os.devnull), _interrupt_held():
            spark = session(master, **confs)
    except OSError as error:
        raise Failed(f"{log}: {error.strerror}") from None
    except Failed:
        raise
    except Exception as error:
        raise Failed(_no_session(master, error)) from error
    if not is_connect(spark):
        keep_lost_java_quiet(spark)
    # Spark's own handler calls the JVM first, which answers with a trace when the session is stopping already.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    silence_py4j()
    try:
        with without_context_logs():
            yield spark
    finally:
        _stop(spark)


@contextmanager
def _waiting(master: str) -> Iterator[None]:
    """Wait for a master on another machine, and print that a session is being started there."""
    if master.startswith("local"):
        yield
        return
    with standard_error() as say:
        wait_for_master(master, say)
        with waiting_lines(master, say):
            yield


@contextmanager
def _interrupt_held() -> Iterator[None]:
    """Hold Ctrl-C while Java starts, and deliver it afterwards.

    On Ctrl-C, PySpark would remove the folder in which Java is to write its address. Java then fails to write it, and
    never ends.
    """
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt


def find_our_code() -> None:
    """Let the Python processes that plan reads on this machine import Weft, before the session starts.

    Their Python is that of the executors (``PYSPARK_PYTHON``), which may lack Weft. Executors get Weft with the job.
    For a streaming query's plan, Spark searches a folder of the query's own, which does not have the files of the job.
    """
    import spark_sinks

    folder = os.path.dirname(os.path.dirname(os.path.abspath(spark_sinks.__file__)))
    found = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{found}" if found else folder


def _no_session(master: str, error: Exception) -> str:
    sentence = " ".join(str(error).split())[:400]
    return f"--master {master}: no Spark session: {sentence}. `--spark-log FILE` keeps Spark's log"


def _stop(spark: Any) -> None:
    """Stop the session without Spark's log lines: about a cluster that has gone away they are many, and useless."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    try:
        with warnings.catch_warnings():
            # Where Java has ended already, Spark gives this warning or one of the errors below.
            warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)
            spark.stop()
    except (ConnectionError, Py4JNetworkError):
        pass  # Java has ended already, such as by a signal to the whole group
    except Exception as error:
        click.echo(f"warning: the Spark session did not stop cleanly: {type(error).__name__}", err=True)


# ``weft spark check``: check a pipeline before it starts.


@click.command("check")
@pipeline_argument
@set_option
@master_option
@conf_option
@spark_log_option
@json_option
def spark_check(
    pipeline: str,
    *,
    settings: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
    spark_log: str | None,
    as_json: bool,
) -> int:
    """Check PIPELINE, a YAML file or the name of a shipped pipeline, without reading a record.

    Spark analyses the steps over no rows; Python steps are called with an empty DataFrame. The command checks columns,
    types and functions, the store and its stream, the sink and the checkpoint. It prints the columns of each step.
    """
    answer = CheckAnswer(pipeline, as_json)
    loaded = answer.load(lambda name: located_pipeline(name, settings))
    from spark_sinks.pipelines.check import check

    with spark_session(master, conf, spark_log) as spark:
        report = check(loaded.config, spark)
    if not as_json:
        for step, columns in report.steps:
            click.echo(f"{step}: {', '.join(f'{name} {kind}' for name, kind in columns.items())}")
    facts = {"steps": [{"step": step, "columns": columns} for step, columns in report.steps]}
    summary = f"{counted(len(loaded.config.steps), 'step')}, sink {loaded.config.sink.kind}"
    return answer.give(loaded, errors=report.errors, warnings=report.warnings, facts=facts, summary=summary)


# ``weft spark new``: a copy of a shipped pipeline.


@click.command("new")
@click.argument("name", required=False)
def spark_new(name: str | None) -> None:
    """Print the YAML of shipped pipeline NAME, as a start for your own; without NAME, list all names.

    \b
    weft spark new machine-hours > machine-hours.yaml
    """
    from spark_sinks.pipelines.catalog import UnknownPipeline, names, text_of

    if name is None:
        click.echo("\n".join(names()))
        return
    try:
        click.echo(text_of(name), nl=False)
    except UnknownPipeline as error:
        raise Refused(str(error)) from None


# ``weft spark move``: a query continues in another region's store.


@click.command("move")
@click.argument("checkpoint")
@click.option("--from", "origin", metavar="URI", required=True, help="Store of the region that the query has read.")
@click.option("--to", "target", metavar="URI", required=True, help="Store of the region in which it continues.")
@click.option("--stream", help="The stream that the query reads; not needed for a query of several.")
@tenant_option("Tenant of the stream.")
@json_option
def spark_move(checkpoint: str, *, origin: str, target: str, stream: str | None, tenant: str, as_json: bool) -> int:
    """Continue the stopped query of CHECKPOINT in the store of another region, with each record once.

    CHECKPOINT is the query's `checkpointLocation`, a folder or a bucket's URI. Its position is translated by the
    numbers that records have in all regions. The query then begins at the first record of the other log that it has not
    read. It skips those that it has read, even if they arrive there later. Its state stays, such as that of aggregates.

    Both stores must answer, and the first one must still have what the query has not read. Then start the query with
    the other store, and its sink with another name. Windows (`complete_windows`) begin with a new checkpoint instead.
    """
    from spark_sinks.errors import ReadError
    from spark_sinks.source.data_source import STREAMS, positions
    from spark_sinks.source.moving import SparkCheckpoint

    for name in [tenant] if stream is None else [tenant, stream]:
        if not valid_name(name):
            raise Refused(f"{name!r} is not a valid name: {NAME_RULE}")
    try:
        found = SparkCheckpoint(checkpoint)
        position = found.position
        is_of_several = isinstance(position, dict) and STREAMS in position
        if is_of_several == (stream is not None):
            raise Refused("--stream is for a query of one stream" if is_of_several else "name the stream with --stream")
        given = positions(position) if stream is None else {stream: position}
        moved = {name: _moved(each, (origin, target), tenant, name) for name, each in given.items()}
        if stream is None:
            found.replace({STREAMS: {name: each.position for name, each in moved.items()}})
        else:
            found.replace(moved[stream].position)
    except (ReadError, StoreError) as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json({"streams": {name: each._asdict() for name, each in moved.items()}})
    else:
        _show(moved, target)
    return 0


def _moved(position: Any, stores: tuple[str, str], tenant: str, stream: str) -> MovedPosition:
    from spark_sinks.source.moving import moved_position
    from spark_sinks.source.options import parse_options, source_options

    origin, target = (parse_options(source_options(stream, tenant, store)) for store in stores)
    return moved_position(position, origin, target)


def _show(moved: dict[str, MovedPosition], target: str) -> None:
    for stream, each in moved.items():
        click.echo(
            f"{stream}: {counted(each.read, 'record')} read. {target} has {counted(each.unread, 'record')} that the "
            f"query has not read, and lacks {each.coming} that it has; these are left out when they arrive"
        )
    click.echo(f"start the query with the store {target}, and its sink with another name")


# ``weft spark run``: run a pipeline until it is stopped.

LANES_SHOWN_MAX = 3
"""Maximum number of edge nodes in a line of progress."""


@click.command("run")
@pipeline_argument
@set_option
@master_option
@conf_option
@click.option("--once", is_flag=True, help="Read the existing records, then stop.")
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
@click.option(
    "--report-token-file",
    metavar="FILE",
    help="File with a token that has the grant report. Unset: the token of WEFT_TOKEN.",
)
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

    With --report the console of that hub shows the pipeline: rate, lag, last micro-batch and error. The pipeline
    continues without the hub.

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
    from spark_sinks.pipelines.catalog import PipelineError
    from spark_sinks.pipelines.check import check
    from spark_sinks.pipelines.job import MissingLibraries, ship, start
    from spark_sinks.pipelines.steps import sentence_of
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
    from spark_sinks.pipelines.progress import Reporter
    from spark_sinks.source.options import hub_access

    given = {"hub": urls, "token_file": token_file, "ca_file": ca_file}
    try:
        access = hub_access({name: value for name, value in given.items() if value is not None})
    except ReadError as error:
        raise Refused(f"--report: {error}") from None
    assert access is not None, "it has a hub"
    source = pipeline.source
    is_one = source.stream is not None and "*" not in source.stream
    reporter = Reporter(
        access,
        pipeline.name,
        source.one if is_one else "*",
        tenant=None if "*" in source.tenant else source.tenant,
        on_failure=lambda why: click.echo(f"warning: {why}", err=True),
    )

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
    until = progress.complete_until or "no known time"
    waiting = f"; held back by {', '.join(progress.held_back_by[:LANES_SHOWN_MAX])}" if progress.held_back_by else ""
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


# ``weft spark sql``: ask the streams of a store or a hub in SQL.

ROWS_MAX = 1_000_000
_NAMES = re.compile(r"\bweft\s*\.\s*(?:`([^`]+)`|(\w+))", re.IGNORECASE)


@click.command("sql")
@click.argument("place", metavar="STORE")
@click.argument("statement", metavar="SELECT")
@tenant_option("Tenant of the streams.")
@click.option(
    "--rows", type=click.IntRange(1, ROWS_MAX), default=1000, show_default=True, help="Maximum number of rows printed."
)
@click.option("--token-file", metavar="FILE", help="File with a token of the hub.")
@click.option("--ca-file", metavar="FILE", help="Certificate authorities of the hub; the system's by default.")
@master_option
@conf_option
@spark_log_option
@json_option
def spark_sql(
    place: str,
    statement: str,
    *,
    tenant: str,
    rows: int,
    token_file: str | None,
    ca_file: str | None,
    master: str,
    conf: tuple[str, ...],
    spark_log: str | None,
    as_json: bool,
) -> int:
    """Ask the streams of STORE in SQL, each under the name `weft.STREAM`, and print the rows.

    STORE is the store of a hub, or the URL of a hub, which is asked for the rows in its log. Streams with a declared
    schema have its typed columns. Put names with a hyphen in backticks. With --json, each row is a line.

    \b
    weft spark sql /var/lib/weft/hub 'SELECT machine, count(*) FROM weft.telemetry GROUP BY machine'
    """
    asked = list(dict.fromkeys(quoted or plain for quoted, plain in _NAMES.findall(statement)))

    for name in [tenant, *asked]:
        if not valid_name(name):
            raise Refused(f"{name!r} is not a valid name: {NAME_RULE}")
    is_hub = place.startswith(("http://", "https://"))
    options = {name: text for name, text in (("token_file", token_file), ("ca_file", ca_file)) if text is not None}
    if options and not is_hub:
        raise Refused("--token-file and --ca-file need the URL of a hub as STORE")
    if is_hub and not asked:
        raise Refused("name the streams as weft.STREAM in the statement")
    given: dict[str, Any] = {"hub": place, "hub_options": options} if is_hub else {"store": place}
    # SHOW TABLES IN weft names none of them, and means all.
    given |= {"tenant": tenant, "streams": asked or None}
    with spark_session(master, conf, spark_log) as spark:
        columns, found = _asked(spark, given, statement, rows + 1)
    if as_json:
        for row in found[:rows]:
            print_json_line(dict(zip(columns, map(_fact, row), strict=True)))
    else:
        print_table(columns, [tuple(map(_cell, row)) for row in found[:rows]])
    if len(found) > rows:
        click.echo(f"there are more than {counted(rows, 'row')}; --rows shows more", err=True)
    return 0


def _asked(
    spark: SparkSession, given: dict[str, Any], statement: str, rows: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    from spark_sinks.errors import ReadError
    from spark_sinks.pipelines.steps import sentence_of
    from spark_sinks.views import register

    try:
        register(spark, **given)
        frame = spark.sql(statement)
        return frame.columns, [tuple(row) for row in frame.take(rows)]
    except ReadError as error:
        raise Failed(str(error)) from None
    except Exception as error:
        raise Failed(sentence_of(error)) from error


def _fact(value: Any) -> Any:
    """Return a value for JSON: bytes as text where they are text."""
    from pyspark.sql import Row

    if isinstance(value, bytes | bytearray):
        return _text(bytes(value))
    if isinstance(value, Row):
        return {name: _fact(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {str(name): _fact(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_fact(each) for each in value]
    return value


def _cell(value: Any) -> str | int | float:
    """Return a value for people."""
    if value is None:
        return ""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return value
    if isinstance(value, bytes | bytearray):
        return harmless(_text(bytes(value)))
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")

    fact = _fact(value)
    return msgspec.json.encode(fact).decode() if isinstance(fact, dict | list) else str(fact)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


# ``weft spark test``: the rows that a pipeline makes of a sample, compared with expected ones.

ROWS_SHOWN_MAX = 50
"""Maximum number of rows of each kind in a difference for people."""


@click.command("test")
@pipeline_argument
@click.option(
    "--input",
    "inputs",
    multiple=True,
    required=True,
    metavar="[STREAM=]FILE",
    help="Sample rows: a .jsonl, .csv or .parquet file. Name the stream where the pipeline reads several; repeat it.",
)
@click.option("--expected", metavar="FILE", help="Rows that the steps should make, in such a file.")
@set_option
@master_option
@conf_option
@spark_log_option
@json_option
def spark_test(
    pipeline: str,
    *,
    inputs: tuple[str, ...],
    expected: str | None,
    settings: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
    spark_log: str | None,
    as_json: bool,
) -> int:
    """Run the steps of PIPELINE over sample rows, and compare what they make with expected rows.

    Neither store, sink nor checkpoint is touched. A sample row has columns of the source: topic levels, fields of
    `source.schema`, or `payload`, and `_time` and others where they matter. Rows are compared without their order, in
    the columns that the expected rows have. The exit status is 1 if they differ. Without --expected, the rows are
    printed as JSON lines.

    \b
    weft spark test warm.yaml --input sample.jsonl > expected.jsonl
    weft spark test warm.yaml --input sample.jsonl --expected expected.jsonl
    weft spark test named.yaml --input presses=a.csv --input ovens=b.csv --expected rows.parquet
    """
    loaded = located_pipeline(pipeline, settings)
    from spark_sinks.pipelines.catalog import PipelineError
    from spark_sinks.pipelines.sample import BadRows, compared, made_rows, read_rows, texts
    from spark_sinks.pipelines.steps import sentence_of

    try:
        sample = _sample(loaded, inputs)
        wanted = None if expected is None else read_rows(expected)
        with spark_session(master, conf, spark_log) as spark:
            made = made_rows(loaded.config, spark, sample)
        if wanted is None:
            for text in texts(made):
                click.echo(harmless(text))
            return 0
        return _told(compared(made, wanted), as_json=as_json)
    except PipelineError as error:
        raise cannot_be_done(loaded, [error.finding]) from None
    except BadRows as error:
        raise Refused(str(error)) from None
    except (Refused, click.ClickException):
        raise
    except Exception as error:
        raise Failed(sentence_of(error)) from error


def _sample(loaded: Loaded[Pipeline], inputs: tuple[str, ...]) -> pa.Table:
    from spark_sinks.pipelines.sample import read_rows, sample_table

    source = loaded.config.source
    if loaded.config.sink.kind == "tables":
        raise Refused(f"{loaded.file}: the sink `tables` has no steps: there is nothing to test")
    names = source.all_streams
    files: dict[str, str] = {}
    for given in inputs:
        name, equals, file = given.partition("=")
        if not equals or name not in names:
            if len(names) > 1:
                raise Refused(f"--input: expected STREAM=FILE with one of {', '.join(names)}, got {given!r}")
            name, file = names[0], given
        if name in files:
            raise Refused(f"--input: {name} has two files. Write their rows into one")
        files[name] = file
    return sample_table(loaded.config, {name: read_rows(files[name]) if name in files else [] for name in names})


def _told(found: Difference, *, as_json: bool) -> int:
    """Print a difference, and return the exit status."""
    is_good = not found.missing and not found.unexpected
    if as_json:
        print_json({"good": is_good, "same": found.same, "missing": found.missing, "unexpected": found.unexpected})
        return 0 if is_good else FAILURE_EXIT_CODE
    for sign, rows in (("-", found.missing), ("+", found.unexpected)):
        for row in rows[:ROWS_SHOWN_MAX]:
            click.echo(harmless(f"{sign} {row}"))
        if len(rows) > ROWS_SHOWN_MAX:
            click.echo(f"{sign} ... and {len(rows) - ROWS_SHOWN_MAX} more")
    summary = f"{counted(found.same, 'row')} as expected"
    if not is_good:
        summary += f", {len(found.missing)} missing (-), {len(found.unexpected)} not expected (+)"
    click.echo(summary)
    return 0 if is_good else FAILURE_EXIT_CODE
