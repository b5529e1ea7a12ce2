"""``spark.read.format("weft")`` and ``spark.readStream.format("weft")``.

Filters are not pushed down. In pyspark 4.2.0, as in 4.3.0, a reader that defines ``pushFilters`` fails every read while
``spark.sql.python.filterPushdown.enabled`` is off, which is its default; and with it on, later queries without a filter
get the filtered query's reader again and lose rows (docs/reference/spark.md). The options ``edges``, ``keys``,
``columns``, ``starting`` and ``ending`` prune instead, and so does a schema given by the user.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_sinks.blocking import run
from spark_sinks.source import several
from spark_sinks.source.broken_pipes import keep_broken_pipes_quiet
from spark_sinks.source.hub.readers import HubReader, HubStreamReader, columns_of
from spark_sinks.source.options import parse_options
from spark_sinks.source.readers import WeftReader, WeftStreamReader, check_endless, checked
from spark_sinks.source.stream_log import StreamLog, subset
from spark_sinks.source.typed import commented

# Also in processes that only plan a read, or look for data sources: Spark ends them as abruptly as those that read.
keep_broken_pipes_quiet()


class WeftSource(DataSource):
    """The data source. Options: ``spark_sinks.source.options.ReadOptions``."""

    @classmethod
    def name(cls) -> str:
        """Return ``weft``."""
        return "weft"

    def schema(self) -> StructType:
        """Return the stream's columns, or those of the ``columns`` option.

        Raises:
            ReadError: an option is wrong, or the store has no such stream.
        """
        if (streams := several.named_streams(self.options)) is not None:
            declared = parse_options(next(iter(streams.values()))).schema
            return commented(from_arrow_schema(several.columns_of(streams)), declared)
        options = parse_options(self.options)
        stored = columns_of(options) if options.hub is not None else run(StreamLog.open(options)).schema
        columns = from_arrow_schema(subset(stored, options.columns))
        return commented(columns, options.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the records between ``starting`` and ``ending``."""
        if (streams := several.named_streams(self.options)) is not None:
            return several.SeveralReader(streams, schema)
        options = parse_options(self.options)
        wanted = checked(schema, options)
        return WeftReader(options, wanted) if options.hub is None else HubReader(options, wanted)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Return a reader that follows the stream from ``starting`` on."""
        if (streams := several.named_streams(self.options)) is not None:
            return several.SeveralStreamReader(streams, schema)
        if "hub" not in map(str.lower, self.options):
            return WeftStreamReader(self.options, schema)
        options = parse_options(self.options)
        check_endless(self.options)
        return HubStreamReader(options, checked(schema, options))
