"""Makes an archive of the classes that Spark loads, with which every further Java starts in half of the time.

Spark's classes lie in hundreds of jars, which Java searches one after the other for each of 13,000 classes. The archive
has them ready. It lies in the virtual environment, as the jars do. Java itself checks that its version and the jars are
those of the archive, and does without it otherwise. Making it takes as long as it saves in a dozen starts, which
the slow tests have and the quick ones have not: ``./run test --all`` makes it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_sinks.runtime.session import session
from tests.support.spark_cluster import QUICK, archive_of_classes

JAVA_ENDS_S_MAX = 240.0
"""Java writes the archive when it ends."""


def end_with_java(spark: SparkSession) -> None:
    """End a session and its Java. Connections of Java's calls into Python end with it: to close one while a thread
    reads from it blocks for good."""
    java = SparkContext._gateway
    spark.stop()
    java.proc.stdin.close()
    java.proc.wait(JAVA_ENDS_S_MAX)
    java.shutdown()
    SparkContext._gateway = SparkContext._jvm = None


def make(path: Path) -> None:
    """Run a few queries in a Java that notes what it loads, and keep that."""
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
