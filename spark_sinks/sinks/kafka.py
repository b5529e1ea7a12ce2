"""Rows into a topic of Kafka, by Spark's own connector."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_sinks.errors import SinkError
from spark_sinks.runtime.session import is_connect

# Spark's Kafka connector in a session: checks of its presence and version.

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


PREFIX = "weft."
"""Prefix of headers that only the sink writes: a device's header with such a name is left out."""
OPTIONS_BYTES_MAX = 65_536
_SURE = {"kafka.acks": "all", "kafka.enable.idempotence": "true"}
"""Producer settings that the guarantee needs."""
_SAME = {"all": ("all", "-1"), "true": ("true",)}
_SECRET = ("password", "jaas", "secret", "keystore.key")


@dataclass(frozen=True)
class KafkaSink:
    """Writer of micro-batches into a topic of Kafka, for ``foreachBatch``.

    Guarantee: at least once. When this returns, every row of the micro-batch is acknowledged by all in-sync replicas of
    the topic. A batch that is interrupted is written again from its beginning, so messages may come twice. Each message
    names its record in its headers, by which consumers recognise repeats: ``weft.lane`` (``EDGE/LOG``) and
    ``weft.seq``, ``weft.shard`` and ``weft.offset``, and ``weft.lineage`` (JSON) for the column ``_from``.
    ``weft.time`` has ``_time`` in microseconds since 1970.

    With ``ordered``, messages with one key come in the order of the log, except repeats. So a consumer drops every
    message whose ``weft.seq`` is not above the highest one that it has received with the same key and lane.

    The session needs Spark's connector: ``spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION``.

    Args:
        bootstrap_servers: ``HOST:PORT``, several separated by commas.
        topic: name of the topic.
        key: SQL expression of the message's key; None for messages without one, in any order.
        value: SQL expression of the message's value. None: the payload as the device sent it.
        headers: name of a header -> SQL expression. None: the record's own, from ``_headers``.
        ordered: sort the rows by their place in the log, with all rows of a key in one task. It costs a shuffle.
        options: further options of the connector, ``kafka.`` and a producer setting, such as
            ``{"kafka.compression.type": "zstd"}``. Secrets are refused here.
        options_file: file on the driver with producer settings as ``NAME=VALUE`` lines, as for Kafka's own tools; read
            for each batch. Passwords and ``sasl.jaas.config`` belong there.

    Raises:
        SinkError: an argument is wrong.
    """

    bootstrap_servers: str
    topic: str
    key: str | None = "_key"
    value: str | None = None
    headers: Mapping[str, str] | None = None
    ordered: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    options_file: str | None = None

    def __post_init__(self) -> None:
        """Check the arguments, as far as possible without Kafka."""
        if not self.bootstrap_servers or not self.topic:
            raise SinkError("bootstrap_servers, topic: both are needed, such as kafka.example.com:9092 and telemetry")
        for name in self.headers or ():
            if name.startswith(PREFIX):
                raise SinkError(f"headers: {name} is the sink's own; choose a name that does not begin with weft.")
        for name, value in self.options.items():
            if any(part in name.lower() for part in _SECRET):
                raise SinkError(f"options: {name} holds a secret; put it into a file, and name that as options_file")
            _check_option("options", name, value)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:  # noqa: ARG002
        """Write one micro-batch.

        Raises:
            SinkError: the rows lack the columns of their source, or the session has no Kafka connector.
            PySparkException: Kafka rejects a message, or does not answer within ``kafka.delivery.timeout.ms``.
        """
        writer = self.messages(frame).write.format("kafka").options(**self.settings())
        writer = writer.option("kafka.bootstrap.servers", self.bootstrap_servers).option("topic", self.topic)
        try:
            writer.save()
        except Exception as error:
            version = frame.sparkSession.version
            if isinstance(error, AnalysisException) and "kafka" in str(error) and "data source" in str(error):
                raise missing(version) from None
            if (reason := of_connector(error, version)) is not None:
                raise reason from error
            raise

    def settings(self) -> dict[str, str]:
        """Return the options of Spark's connector; the file overrides ``options``. They may hold secrets.

        Raises:
            SinkError: the file cannot be read, or has a setting without which messages may be lost.
        """
        return {**_SURE, **self.options, **self._from_file()}

    def check(self, frame: DataFrame) -> None:
        """Check the columns of future rows, and the session's connector. Kafka is not contacted.

        Raises:
            SinkError: the rows lack the columns of their source, or the session has no matching connector.
            AnalysisException: an expression names a missing column.
        """
        self.messages(frame).schema  # noqa: B018
        check_connector(frame.sparkSession)

    def messages(self, frame: DataFrame) -> DataFrame:
        """Return the messages of a batch: ``key``, ``value`` and ``headers``, as Spark's connector expects them.

        Raises:
            SinkError: the rows lack the columns of their source.
        """
        columns = set(frame.columns)
        if self.ordered and self.key is not None:
            frame = self._sorted(frame, columns)
        headers = list(self._headers(columns))
        own = self._own_headers(columns)
        all_headers = F.array(*headers) if own is None else F.concat(F.array(*headers), own)
        # A header without a value would be a null in Kafka, which many clients cannot read.
        kept = F.filter(all_headers, lambda header: header["value"].isNotNull())
        parts = [self._value(columns).alias("value"), kept.alias("headers")]
        if self.key is not None:
            parts.insert(0, F.expr(self.key).cast("string").cast("binary").alias("key"))
        return frame.select(*parts)

    def _sorted(self, frame: DataFrame, columns: set[str]) -> DataFrame:
        if not {"_shard", "_offset"} <= columns:
            return frame
        key = F.expr(self.key or "NULL").cast("string")
        # Rows without a key have no order to keep, so they are spread: together they would be one long task.
        place = F.coalesce(key, F.concat_ws(" ", "_shard", "_offset"))
        return frame.repartition(place).sortWithinPartitions("_shard", "_offset")

    def _value(self, columns: set[str]) -> Column:
        if self.value is not None:
            return F.expr(self.value).cast("binary")
        if "payload" not in columns:
            raise SinkError("value: the rows have no payload; give an SQL expression, such as to_json(struct(*))")
        payload = F.col("payload").cast("binary")
        # In streams of text or JSON, other bytes are in a column of their own. Without it the value would be null,
        # which deletes the key's messages from a compacted topic.
        return F.coalesce(payload, F.col("_payload_bytes")) if "_payload_bytes" in columns else payload

    def _headers(self, columns: set[str]) -> Iterator[Column]:
        found = False
        if {"_edge", "_log", "_seq"} <= columns:
            found = True
            yield _header("weft.lane", F.concat_ws("/", "_edge", "_log"))
            yield _header("weft.seq", F.col("_seq"))
        if {"_shard", "_offset"} <= columns:
            found = True
            yield _header("weft.shard", F.col("_shard"))
            yield _header("weft.offset", F.col("_offset"))
        if "_from" in columns:
            found = True
            yield _header("weft.lineage", F.to_json("_from"))
        if "_time" in columns:
            yield _header("weft.time", F.unix_micros("_time"))
        if not found:
            raise SinkError("the rows lack their origin: keep _edge, _log and _seq, or _shard and _offset, or _from")
        for name, expression in (self.headers or {}).items():
            yield _header(name, F.expr(expression))

    def _own_headers(self, columns: set[str]) -> Column | None:
        if self.headers is not None or "_headers" not in columns:
            return None
        own = F.transform(
            F.map_entries("_headers"),
            lambda entry: F.struct(entry["key"].alias("key"), entry["value"].cast("binary").alias("value")),
        )
        none = F.array().cast(T.ArrayType(_HEADER))
        return F.coalesce(F.filter(own, lambda header: ~F.startswith(header["key"], F.lit(PREFIX))), none)

    def _from_file(self) -> dict[str, str]:
        if self.options_file is None:
            return {}
        try:
            with open(self.options_file, encoding="utf-8") as file:
                text = file.read(OPTIONS_BYTES_MAX)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SinkError(f"options_file: {self.options_file} cannot be read: {reason}") from None
        found = {}
        for number, line in enumerate(text.splitlines(), 1):
            name, equals, value = line.partition("=")
            if not line.strip() or line.lstrip().startswith(("#", "!")):
                continue
            if not equals:
                # The line itself may be a secret.
                raise SinkError(f"options_file: {self.options_file}, line {number}: expected NAME=VALUE")
            found[f"kafka.{name.strip()}"] = value.strip()
            _check_option("options_file", f"kafka.{name.strip()}", value.strip())
        return found


_HEADER = T.StructType([T.StructField("key", T.StringType(), False), T.StructField("value", T.BinaryType())])


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def _check_option(where: str, name: str, value: str) -> None:
    sure = _SURE.get(name.lower())  # Spark ignores the case of option names.
    if sure is not None and value.lower() not in _SAME[sure]:
        raise SinkError(f"{where}: {name} is {sure}: without it messages may be lost; remove the setting")
