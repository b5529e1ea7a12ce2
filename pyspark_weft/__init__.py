"""Package with the name that Spark searches for ``format("weft")``."""

try:
    from spark_sinks.source.data_source import WeftSource as DefaultSource
except ModuleNotFoundError as missing:
    # This Python has Weft without the extra "spark": with an import error, Spark would skip this package and report an
    # unknown source.
    from pyspark_weft.incomplete import incomplete_source

    DefaultSource = incomplete_source(missing.name)  # type: ignore[misc]
