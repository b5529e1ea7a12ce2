"""Makes an archive of the classes that Spark loads, with which every further Java starts in half of the time.

Spark's classes lie in hundreds of jars, which Java searches one after the other for each of 13,000 classes. The archive
has them ready. It lies in the virtual environment, as the jars do. Java itself checks that its version and the jars are
those of the archive, and does without it otherwise. Making it takes as long as it saves in a dozen starts, which
the slow tests have and the quick ones have not: ``./run test --all`` makes it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zlib
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

# Every run of tests reads Java's options here, and few need Spark, which takes a second to import.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_ENDS_S_MAX = 240.0
"""Java writes the archive when it ends."""
_UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Options of a Java that believes what Spark's compilers wrote: it loads 13,000 classes, and no test is about them."""


def archive_of_classes() -> Path | None:
    """Return where the archive of Spark's classes is, once it has been made.

    None where Java has no archive of its own classes, as that of the wheel: another needs it below.
    """
    found = shutil.which(
        "java", path=os.path.join(os.environ["JAVA_HOME"], "bin") if "JAVA_HOME" in os.environ else None
    )
    below = found and Path(os.path.realpath(found)).parents[1] / "lib" / "server" / "classes.jsa"
    if not below or not below.exists():
        return None
    of = f"{below} {below.stat().st_mtime_ns} {version('pyspark')}"
    return Path(sys.prefix) / f"spark-{zlib.crc32(of.encode()):08x}.jsa"


def _archived() -> str:
    path = archive_of_classes()
    # Java does without an archive that does not fit, and would say so on standard output.
    return f" -XX:SharedArchiveFile={path} -Xlog:disable" if path is not None and path.exists() else ""


LOADING = f"{_UNVERIFIED}{_archived()}"
"""Options with which Java loads Spark's classes quickly."""
QUICK = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData {LOADING}"
"""Options of a Java that lives for seconds: the best compiler would not pay."""


def end_with_java(spark: SparkSession) -> None:
    """End a session and its Java. Connections of Java's calls into Python end with it: to close one while a thread
    reads from it blocks for good."""
    from pyspark import SparkContext

    java = SparkContext._gateway
    spark.stop()
    java.proc.stdin.close()
    java.proc.wait(JAVA_ENDS_S_MAX)
    java.shutdown()
    SparkContext._gateway = SparkContext._jvm = None


def make(path: Path) -> None:
    """Run a few queries in a Java that notes what it loads, and keep that."""
    from spark_sinks.runtime.session import session

    made = path.with_name(f"{path.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="classes-", ignore_cleanup_errors=True) as folder:
        note = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable -Djava.io.tmpdir={folder}"
        os.environ |= {"SPARK_SUBMIT_OPTS": f"{QUICK} {note}", "SPARK_LAUNCHER_OPTS": QUICK}
        spark = session("local[1]", **{"spark.sql.shuffle.partitions": "1", "spark.sql.warehouse.dir": folder})
        spark.range(9).selectExpr("id % 2 AS half").groupBy("half").count().collect()
        spark.range(9).mapInArrow(lambda batches: batches, "id bigint").write.parquet(f"{folder}/rows")
        rows = spark.readStream.schema("id bigint").parquet(f"{folder}/rows").groupBy("id").count()
        writing = rows.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
        writing.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
        end_with_java(spark)
    os.replace(made, path)


def main() -> None:
    """Make the archive of this environment's Spark and this machine's Java, unless it is there or cannot be."""
    path = archive_of_classes()
    if path is not None and not path.exists():
        print("Archiving Spark's classes (once) ...", file=sys.stderr)
        make(path)


if __name__ == "__main__":
    main()
