"""``weft spark``: check, test, run and move pipelines, and ask streams in SQL."""

from __future__ import annotations

import click

from weft.commands.common import LaterGroup


class _Spark(LaterGroup):
    later = {
        "check": "weft.commands.pipelines.check:spark_check",
        "move": "weft.commands.pipelines.move:spark_move",
        "new": "weft.commands.pipelines.new:spark_new",
        "run": "weft.commands.pipelines.run:spark_run",
        "sql": "weft.commands.pipelines.sql:spark_sql",
        "test": "weft.commands.pipelines.pipeline_test:spark_test",
    }


@click.group("spark", cls=_Spark)
def spark_group() -> None:
    """Check, test, run and move pipelines of Spark, and ask streams in SQL."""
