"""The stream or streams of a pipeline, for its steps and batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from spark_sinks.lineage.columns import FROM_COLUMN, of_record
from spark_sinks.read import read
from spark_sinks.runtime.session import register
from spark_sinks.source.several import STREAM, STREAMS
from weft.config.pipelines.pipeline import Pipeline
from weft.config.pipelines.schema_text import schema_text
from weft.config.pipelines.source import PipelineSource


@dataclass(frozen=True)
class Context:
    """The pipeline and its stream. A Python step gets it as ``context`` when it has such a parameter.

    It can be pickled: with Spark Connect, steps run in a process of the server.
    """

    pipeline: Pipeline

    @property
    def source(self) -> PipelineSource:
        """Return the settings of the source."""
        return self.pipeline.source

    def stream(self, spark: SparkSession, schema: pa.Schema | None = None) -> DataFrame:
        """Return the incoming rows as a streaming DataFrame: the source's columns and ``_from``.

        Args:
            schema: the source's columns, if known. Without them, Spark starts a Python process to ask for them.
        """
        register(spark)
        reader = spark.readStream.format("weft").options(**self.options())
        if schema is not None:
            reader = reader.schema(from_arrow_schema(schema))
        return with_lineage(reader.load())

    def history(
        self,
        spark: SparkSession,
        *,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        edges: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
        below: Mapping[int, int] | None = None,
    ) -> DataFrame:
        """Return the stream's rows up to now, each once, from the table and from the log.

        They include rows of the present micro-batch and later ones: compare ``_shard`` and ``_offset``.

        Args:
            since: only rows with this ``_time`` or a later one.
            until: only rows with an earlier ``_time``.
            edges: only rows of these edge nodes. None means those of the pipeline.
            columns: only these columns. None means all of them, and ``_from``.
            below: shard -> offset after its last row; a shard that is not named is not read. None: up to now. It
                has a meaning for one stream.
        """
        named: dict[str, Any] = {"store": self.source.store, "tenant": self.source.tenant}
        named |= {"since": since, "until": until, "keys": self.source.keys, "columns": columns}
        named |= {"schema": self.source.schema, "ending": below}
        named["edges"] = self.source.edges if edges is None else edges
        if self.source.streams is not None:
            frame = self._history_of_several(spark, named)
        else:
            frame = read(spark, self.source.one, **named)
        return with_lineage(frame) if columns is None else frame

    def _history_of_several(self, spark: SparkSession, named: Mapping[str, Any]) -> DataFrame:
        columns = named["columns"]
        given = {**named, "columns": None}
        parts = [read(spark, name, **given).withColumn(STREAM, F.lit(name)) for name in self.source.all_streams]
        whole = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)
        return whole.select(STREAM, *whole.drop(STREAM).columns) if columns is None else whole.select(*columns)

    def options(self) -> dict[str, str]:
        """Return the options of ``format("weft")``."""
        source = self.source
        named: dict[str, str] = {"store": source.store, "tenant": source.tenant}
        named |= {"stream": source.one} if source.streams is None else {STREAMS: _json_list(source.streams)}
        for name, values in (("edges", source.edges), ("keys", source.keys)):
            if values is not None:
                named[name] = _json_list(values)
        if source.schema is not None:
            named["schema"] = schema_text(source.schema)
        for name, moment in (("since", source.since), ("until", source.until)):
            if moment is not None:
                named[name] = moment
        if source.records_per_trigger_max is not None:
            named["max_records_per_trigger"] = str(source.records_per_trigger_max)
        return named


def with_lineage(frame: DataFrame) -> DataFrame:
    """Return rows of a stream with the column ``_from``, which names the record of each row."""
    return frame.withColumn(FROM_COLUMN, of_record())


def _json_list(values: Collection[str]) -> str:
    import msgspec

    return msgspec.json.encode(list(values)).decode()
