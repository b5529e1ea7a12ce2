"""Spark looks for a package of this name when it meets ``format("weft")``."""

from spark_sinks.source import WeftSource as DefaultSource
