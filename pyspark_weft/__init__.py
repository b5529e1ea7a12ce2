"""Package of the name that Spark looks for when it meets ``format("weft")``."""

try:
    from spark_sinks.source.data_source import WeftSource as DefaultSource
except ModuleNotFoundError as missing:
    # A Python with Weft and without the extra "spark": Spark would skip this package, and call the source unknown.
    from pyspark_weft.incomplete import incomplete_source

    DefaultSource = incomplete_source(missing.name)  # type: ignore[misc]
