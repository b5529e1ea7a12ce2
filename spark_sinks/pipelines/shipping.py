"""Weft's code and the user's, sent to the executors of a cluster along with a job."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.pipelines.errors import PipelineError
from spark_sinks.runtime.session import is_connect
from spark_sinks.runtime.workers import NEEDED
from spark_sinks.source.data_source import WeftSource
from weft.config.pipelines.pipeline import Pipeline

PACKAGES = ("weft", "spark_sinks", "pyspark_weft")
ENDINGS = (".py", ".yaml", "py.typed")
FILES_MAX = 5_000
"""Maximum number of files of one package that is sent along; larger packages must be installed."""
_OURS = {*PACKAGES}


def ship(spark: SparkSession, pipeline: Pipeline) -> None:
    """Send the code that a pipeline needs to the executors, so that they run the same version as the driver.

    These are Weft itself and the modules of the pipeline's Python steps that are not installed. Compiled libraries
    cannot be sent: a first small task checks that they are installed.

    Raises:
        PipelineError: a package is too large to be sent.
        MissingLibraries: executors lack libraries that must be installed there.
    """
    if is_connect(spark):
        with tempfile.TemporaryDirectory(prefix="weft-code-") as folder:
            spark.addArtifact(_archive(folder, pipeline), pyfile=True)
    else:
        # Executors fetch the code from this path when they start, and a lost executor may be replaced hours later.
        # Spark removes its temporary folder when the session ends, not before.
        folder = tempfile.mkdtemp(prefix="weft-code-", dir=spark.sparkContext._temp_dir)
        spark.sparkContext.addPyFile(_archive(folder, pipeline))
    # Registered again: an earlier registration does not include the files that were added since.
    spark.dataSource.register(WeftSource)
    missing = _missing_on_executors(spark)
    if missing:
        raise MissingLibraries(missing)


def _archive(folder: str, pipeline: Pipeline) -> str:
    path = os.path.join(folder, "weft_code.zip")
    write_archive(path, code_of(pipeline))
    return path


class MissingLibraries(RuntimeError):
    """The error when executors lack compiled libraries."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"the executors' Python lacks {missing}. These libraries are compiled and cannot be sent along: "
            'install "weft-fabric[spark]" there, and set PYSPARK_PYTHON to the path of that Python'
        )


def code_of(pipeline: Pipeline) -> Iterator[str]:
    """Yield the packages and modules to send: Weft's, and those of the Python steps that are not installed libraries.

    Raises:
        PipelineError: a step's module is compiled.
    """
    yield from PACKAGES
    for at, step in enumerate(pipeline.steps):
        if step.python is None:
            continue
        name = step.python.partition(":")[0].partition(".")[0]
        if name not in _OURS and name not in sys.stdlib_module_names and _is_own(name, at):
            yield name


def _is_own(name: str, at: int) -> bool:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return spec is not None and spec.submodule_search_locations is not None
    if "site-packages" in spec.origin or "dist-packages" in spec.origin:
        return False  # A library, which must be installed on the executors, like every other one.
    if not spec.origin.endswith(".py"):
        message = f"module {name} is compiled and cannot be sent to executors. Install it there"
        raise PipelineError(("steps", at, "python"), message)
    return True


def write_archive(path: str, packages: Iterable[str]) -> None:
    """Write a zip from which Python can import some packages and modules.

    Raises:
        PipelineError: a package has more than ``FILES_MAX`` files.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in dict.fromkeys(packages):
            spec = importlib.util.find_spec(name)
            assert spec is not None
            for file, inside in _files(name, spec.origin, list(spec.submodule_search_locations or ())):
                archive.write(file, inside)


def _files(name: str, origin: str | None, folders: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (file, path in the archive) for each file of a module or a package."""
    if not folders:
        assert origin is not None
        yield origin, f"{name}.py"
        return
    count = 0
    for folder in folders:
        # In a working copy weft/config and so on are links to folders beside it.
        for place, inner, files in os.walk(folder, followlinks=True):
            inner[:] = [each for each in inner if each != "__pycache__"]
            for file in files:
                if file.endswith(ENDINGS):
                    count += 1
                    if count > FILES_MAX:
                        raise PipelineError(("steps",), f"package {name} has more than {FILES_MAX} files. Install it")
                    inside = os.path.join(name, os.path.relpath(os.path.join(place, file), folder))
                    yield os.path.join(place, file), inside


def _missing_on_executors(spark: SparkSession) -> str:
    """Return the names of the libraries that an executor lacks."""
    needed = [name for name in NEEDED if name not in _OURS]

    def look(_: int) -> str:
        import importlib.util

        return ", ".join(name for name in needed if importlib.util.find_spec(name) is None)

    # Without Arrow: pyarrow may be what is missing.
    missing = F.udf(look, "string", useArrow=False)
    rows = spark.range(0, 2, 1, 2).select(missing("id").alias("missing")).distinct().collect()
    return max((row["missing"] for row in rows), default="")
