"""A data source for a Python without a library that reading needs: every use raises an error that names it."""

from __future__ import annotations

import sys

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType


def incomplete_source(module: str | None) -> type[DataSource]:
    """Return a data source "weft" that raises an error about the missing module on every use."""

    class IncompleteSource(DataSource):
        """A stand-in for ``spark_sinks.source.data_source.WeftSource``."""

        @classmethod
        def name(cls) -> str:
            """Return ``weft``."""
            return "weft"

        def schema(self) -> StructType:
            """Raise ``ModuleNotFoundError``; Spark asks for the schema before anything else."""
            raise ModuleNotFoundError(
                f"Spark's Python workers run in {sys.executable}, which lacks {module}. Before the Spark session "
                "starts, set PYSPARK_PYTHON to a Python that has weft-fabric with its extra 'spark'"
            )

        reader = streamReader = schema  # noqa: N815

    return IncompleteSource
