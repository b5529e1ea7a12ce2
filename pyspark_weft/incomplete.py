"""The data source of a Python that lacks a library which reading needs: it says so."""

from __future__ import annotations

import sys

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType


def incomplete_source(module: str | None) -> type[DataSource]:
    """Return a data source "weft" whose every use raises a sentence about the missing module."""

    class IncompleteSource(DataSource):
        """Stands in for ``spark_sinks.source.WeftSource``."""

        @classmethod
        def name(cls) -> str:
            """``weft``."""
            return "weft"

        def schema(self) -> StructType:
            """Raise ``ModuleNotFoundError``; Spark asks for the schema before anything else."""
            raise ModuleNotFoundError(
                f"Spark's Python workers run in {sys.executable}, which lacks {module}: set PYSPARK_PYTHON, before "
                "the Spark session starts, to a Python in which weft-fabric is installed with its extra 'spark'"
            )

        reader = streamReader = schema  # noqa: N815

    return IncompleteSource
