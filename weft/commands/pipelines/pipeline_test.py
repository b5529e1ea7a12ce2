"""``weft spark test``: the rows that a pipeline makes of a sample, compared with expected ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.commands.common import cannot_be_done, json_option
from weft.commands.pipelines.common import (
    conf_option,
    located_pipeline,
    master_option,
    pipeline_argument,
    set_option,
    spark_log_option,
    spark_session,
)
from weft.output import FAILURE_EXIT_CODE, Failed, Refused, counted, harmless, print_json

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_sinks.pipelines.sample import Difference
    from weft.config.load import Loaded
    from weft.config.pipelines.pipeline import Pipeline

SHOWN_MAX = 50
"""Maximum number of rows of each kind in a difference for people."""


@click.command("test")
@pipeline_argument
@click.option(
    "--input",
    "inputs",
    multiple=True,
    required=True,
    metavar="[STREAM=]FILE",
    help="Sample rows: a .jsonl, .csv or .parquet file. Name the stream where the pipeline reads several; repeat it.",
)
@click.option("--expected", metavar="FILE", help="Rows that the steps should make, in such a file.")
@set_option
@master_option
@conf_option
@spark_log_option
@json_option
def spark_test(
    pipeline: str,
    *,
    inputs: tuple[str, ...],
    expected: str | None,
    settings: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
    spark_log: str | None,
    as_json: bool,
) -> int:
    """Run the steps of PIPELINE over sample rows, and compare what they make with expected rows.

    Neither store, sink nor checkpoint is touched. A sample row has columns of the source: topic levels, fields of
    `source.schema`, or `payload`, and `_time` and others where they matter. Rows are compared without their order, in
    the columns that the expected rows have. The exit status is 1 if they differ. Without --expected, the rows are
    printed as JSON lines.

    \b
    weft spark test warm.yaml --input sample.jsonl > expected.jsonl
    weft spark test warm.yaml --input sample.jsonl --expected expected.jsonl
    weft spark test named.yaml --input presses=a.csv --input ovens=b.csv --expected rows.parquet
    """
    loaded = located_pipeline(pipeline, settings)
    from spark_sinks.pipelines.errors import PipelineError
    from spark_sinks.pipelines.failure import sentence_of
    from spark_sinks.pipelines.sample import BadRows, compared, made_rows, read_rows, texts

    try:
        sample = _sample(loaded, inputs)
        wanted = None if expected is None else read_rows(expected)
        with spark_session(master, conf, spark_log) as spark:
            made = made_rows(loaded.config, spark, sample)
        if wanted is None:
            for text in texts(made):
                click.echo(harmless(text))
            return 0
        return _told(compared(made, wanted), as_json=as_json)
    except PipelineError as error:
        raise cannot_be_done(loaded, [error.finding]) from None
    except BadRows as error:
        raise Refused(str(error)) from None
    except (Refused, click.ClickException):
        raise
    except Exception as error:
        raise Failed(sentence_of(error)) from error


def _sample(loaded: Loaded[Pipeline], inputs: tuple[str, ...]) -> pa.Table:
    from spark_sinks.pipelines.sample import read_rows, sample_table

    source = loaded.config.source
    if loaded.config.sink.kind == "tables":
        raise Refused(f"{loaded.file}: the sink `tables` takes no steps: there is nothing to test")
    names = source.all_streams
    files: dict[str, str] = {}
    for given in inputs:
        name, equals, file = given.partition("=")
        if not equals or name not in names:
            if len(names) > 1:
                raise Refused(f"--input: expected STREAM=FILE with one of {', '.join(names)}, got {given!r}")
            name, file = names[0], given
        if name in files:
            raise Refused(f"--input: {name} has two files. Write their rows into one")
        files[name] = file
    return sample_table(loaded.config, {name: read_rows(files[name]) if name in files else [] for name in names})


def _told(found: Difference, *, as_json: bool) -> int:
    """Print a difference, and return the exit status."""
    is_good = not found.missing and not found.unexpected
    if as_json:
        print_json({"good": is_good, "same": found.same, "missing": found.missing, "unexpected": found.unexpected})
        return 0 if is_good else FAILURE_EXIT_CODE
    for sign, rows in (("-", found.missing), ("+", found.unexpected)):
        for row in rows[:SHOWN_MAX]:
            click.echo(harmless(f"{sign} {row}"))
        if len(rows) > SHOWN_MAX:
            click.echo(f"{sign} ... and {len(rows) - SHOWN_MAX} more")
    summary = f"{counted(found.same, 'row')} as expected"
    if not is_good:
        summary += f", {len(found.missing)} missing (-), {len(found.unexpected)} not expected (+)"
    click.echo(summary)
    return 0 if is_good else FAILURE_EXIT_CODE
