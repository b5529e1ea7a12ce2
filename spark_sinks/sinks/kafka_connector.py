"""Spark's Kafka connector in a session: checks of its presence and version."""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

from spark_sinks.errors import SinkError
from spark_sinks.runtime.session import is_connect

ARTIFACT = "spark-sql-kafka-0-10"
SCALA = "2.13"
"""Scala version of Spark 4; its packages on PyPI have no other."""
PACKAGE = f"org.apache.spark:{ARTIFACT}_{SCALA}"
"""Spark's connector; its version is Spark's."""
_JAR = re.compile(rf"{ARTIFACT}_([\d.]+)-([\w.-]+)\.jar$")
_MIXED = re.compile(
    r"\b(?:NoClassDefFound|NoSuchMethod|NoSuchField|AbstractMethod|IncompatibleClassChange|ServiceConfiguration|"
    r"UnsupportedClassVersion|Verify|Linkage)Error\b[^\n]*"
)
"""Errors of Java when classes of two versions meet."""
SENTENCE_CHARACTERS_MAX = 200


def check_connector(spark: SparkSession) -> None:
    """Check that a session has a matching connector.

    A session of Spark Connect is not checked: its server has the connector.

    Raises:
        SinkError: it has none, or one of another version.
    """
    if is_connect(spark):
        return
    jvm = spark._jvm
    assert jvm is not None
    try:
        sources = jvm.org.apache.spark.sql.execution.datasources.DataSource
        provider = sources.lookupDataSource("kafka", spark._jsparkSession.sessionState().conf())
        jar = str(provider.getProtectionDomain().getCodeSource().getLocation().getPath())
    except Exception as error:
        raise of_connector(error, spark.version) or missing(spark.version) from error
    if (found := misfit(jar, spark.version)) is not None:
        raise found


def missing(version: str) -> SinkError:
    """Return the error of a session without a connector."""
    return SinkError(f"this session has no Kafka connector; start it with spark.jars.packages={PACKAGE}:{version}")


def misfit(jar: str, version: str) -> SinkError | None:
    """Return the error of a connector whose jar names another version of Scala or of Spark; None for one that fits.

    Args:
        jar: path of the connector's jar.
        version: Spark's.
    """
    found = _JAR.search(jar)
    if found is None or (found[1], found[2]) == (SCALA, version):
        return None
    return SinkError(
        f"the Kafka connector is of Spark {found[2]} and Scala {found[1]}, and this is Spark {version} with Scala "
        f"{SCALA}. Start the session with spark.jars.packages={PACKAGE}:{version}, and leave out "
        f"{jar.rpartition('/')[2]}"
    )


def of_connector(error: BaseException, version: str) -> SinkError | None:
    """Return the error of jars of several versions in one session; None when an error is of another kind."""
    found = _MIXED.search(str(error))
    if found is None:
        return None
    why = found[0].strip()[:SENTENCE_CHARACTERS_MAX]
    return SinkError(
        f"the Kafka connector of this session, or a jar beside it, is of another version ({why}). "
        f"Start the session with spark.jars.packages={PACKAGE}:{version} and no other jars of Spark, Kafka or Scala"
    )
