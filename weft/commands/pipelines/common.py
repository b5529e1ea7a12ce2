"""Parts that the commands of pipelines share: loading one, and a Spark session without noise."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from weft.commands.pipelines.master import standard_error, telling, wait_for_master
from weft.config.errors import ConfigError
from weft.output import Failed, Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weft.config.load import Loaded
    from weft.config.pipelines.pipeline import Pipeline

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
    from spark_sinks.runtime.quiet import NO_PERFORMANCE_DATA, keep_lost_java_quiet, stderr_to, without_context_logs
    from spark_sinks.runtime.session import is_connect, session
    from spark_sinks.runtime.waiting import silence_py4j

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
        with telling(master, say):
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
        spark.stop()
    except (ConnectionError, Py4JNetworkError):
        pass  # Java has ended already, such as by a signal to the whole group
    except Exception as error:
        click.echo(f"warning: the Spark session did not stop cleanly: {type(error).__name__}", err=True)
