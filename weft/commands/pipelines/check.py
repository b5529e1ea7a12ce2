"""``weft spark check``: check a pipeline before it starts."""

from __future__ import annotations

import click

from weft.commands.check_answer import CheckAnswer
from weft.commands.common import json_option
from weft.commands.pipelines.common import (
    conf_option,
    located_pipeline,
    master_option,
    pipeline_argument,
    set_option,
    spark_log_option,
    spark_session,
)
from weft.output import counted


@click.command("check")
@pipeline_argument
@set_option
@master_option
@conf_option
@spark_log_option
@json_option
def spark_check(
    pipeline: str,
    *,
    settings: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
    spark_log: str | None,
    as_json: bool,
) -> int:
    """Check PIPELINE, a YAML file or the name of a shipped pipeline, without reading a record.

    Spark analyses the steps over no rows; Python steps are called with an empty DataFrame. The command checks columns,
    types and functions, the store and its stream, the sink and the checkpoint. It prints the columns of each step.
    """
    answer = CheckAnswer(pipeline, as_json)
    loaded = answer.load(lambda name: located_pipeline(name, settings))
    from spark_sinks.pipelines.check.check import check

    with spark_session(master, conf, spark_log) as spark:
        report = check(loaded.config, spark)
    if not as_json:
        for step, columns in report.steps:
            click.echo(f"{step}: {', '.join(f'{name} {kind}' for name, kind in columns.items())}")
    facts = {"steps": [{"step": step, "columns": columns} for step, columns in report.steps]}
    summary = f"{counted(len(loaded.config.steps), 'step')}, sink {loaded.config.sink.kind}"
    return answer.give(loaded, errors=report.errors, warnings=report.warnings, facts=facts, summary=summary)
