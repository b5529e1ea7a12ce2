"""``weft spark``: check, test, run and move pipelines, and ask streams in SQL."""

from __future__ import annotations

import click

from weft.commands.common import LaterGroup


class _Spark(LaterGroup):
    modules = {
        "check": "weft.commands.pipelines.check",
        "move": "weft.commands.pipelines.move",
        "new": "weft.commands.pipelines.new",
        "run": "weft.commands.pipelines.run",
        "sql": "weft.commands.pipelines.sql",
        "test": "weft.commands.pipelines.pipeline_test",
    }


@click.group("spark", cls=_Spark)
def command() -> None:
    """Check, test, run and move pipelines of Spark, and ask streams in SQL."""
