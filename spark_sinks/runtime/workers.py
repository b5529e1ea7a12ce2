"""The Python that runs Spark's workers, in sessions made without ``session()``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from pyspark import SparkContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from spark_sinks.errors import ReadError

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
