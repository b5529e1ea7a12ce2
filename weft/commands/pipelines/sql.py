"""``weft spark sql``: ask the streams of a store or a hub in SQL."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from weft.commands.common import json_option
from weft.commands.pipelines.common import conf_option, master_option, spark_log_option, spark_session
from weft.output import Failed, Refused, counted, harmless, print_json_line, print_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_MAX = 1_000_000
_NAMES = re.compile(r"\bweft\s*\.\s*(?:`([^`]+)`|(\w+))", re.IGNORECASE)


@click.command("sql")
@click.argument("place", metavar="STORE")
@click.argument("statement", metavar="SELECT")
@click.option("--tenant", default="default", show_default=True, help="Tenant of the streams.")
@click.option(
    "--rows", type=click.IntRange(1, ROWS_MAX), default=1000, show_default=True, help="Maximum number of rows printed."
)
@click.option("--token-file", metavar="FILE", help="File with a token of the hub.")
@click.option("--ca-file", metavar="FILE", help="Certificate authorities of the hub; the system's by default.")
@master_option
@conf_option
@spark_log_option
@json_option
def spark_sql(
    place: str,
    statement: str,
    *,
    tenant: str,
    rows: int,
    token_file: str | None,
    ca_file: str | None,
    master: str,
    conf: tuple[str, ...],
    spark_log: str | None,
    as_json: bool,
) -> int:
    """Ask the streams of STORE in SQL, each under the name `weft.STREAM`, and print the rows.

    STORE is the store of a hub, or the URL of a hub, which is asked for the rows in its log. Streams with a declared
    schema have its typed columns. Names with a hyphen stand in backticks. With --json, each row is a line.

    \b
    weft spark sql /var/lib/weft/hub 'SELECT machine, count(*) FROM weft.telemetry GROUP BY machine'
    """
    asked = list(dict.fromkeys(quoted or plain for quoted, plain in _NAMES.findall(statement)))
    from weft.protocols.lane import NAME_RULE, valid_name

    for name in [tenant, *asked]:
        if not valid_name(name):
            raise Refused(f"{name!r} cannot be a name: {NAME_RULE}")
    is_hub = place.startswith(("http://", "https://"))
    options = {name: text for name, text in (("token_file", token_file), ("ca_file", ca_file)) if text is not None}
    if options and not is_hub:
        raise Refused("--token-file and --ca-file are for the URL of a hub, and STORE is none")
    if is_hub and not asked:
        raise Refused("name the streams as weft.STREAM in the statement")
    given: dict[str, Any] = {"hub": place, "hub_options": options} if is_hub else {"store": place}
    # SHOW TABLES IN weft names none of them, and means all.
    given |= {"tenant": tenant, "streams": asked or None}
    with spark_session(master, conf, spark_log) as spark:
        columns, found = _asked(spark, given, statement, rows + 1)
    if as_json:
        for row in found[:rows]:
            print_json_line(dict(zip(columns, map(_fact, row), strict=True)))
    else:
        print_table(columns, [tuple(map(_cell, row)) for row in found[:rows]])
    if len(found) > rows:
        click.echo(f"there are more than {counted(rows, 'row')}; --rows shows more", err=True)
    return 0


def _asked(
    spark: SparkSession, given: dict[str, Any], statement: str, rows: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    from spark_sinks.errors import ReadError
    from spark_sinks.pipelines.failure import sentence_of
    from spark_sinks.views import register

    try:
        register(spark, **given)
        frame = spark.sql(statement)
        return frame.columns, [tuple(row) for row in frame.take(rows)]
    except ReadError as error:
        raise Failed(str(error)) from None
    except Exception as error:
        raise Failed(sentence_of(error)) from error


def _fact(value: Any) -> Any:
    """Return a value for JSON: bytes as text where they are text."""
    from pyspark.sql import Row

    if isinstance(value, bytes | bytearray):
        return _text(bytes(value))
    if isinstance(value, Row):
        return {name: _fact(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {str(name): _fact(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_fact(each) for each in value]
    return value


def _cell(value: Any) -> str | int | float:
    """Return a value for people."""
    if value is None:
        return ""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return value
    if isinstance(value, bytes | bytearray):
        return harmless(_text(bytes(value)))
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    import msgspec

    fact = _fact(value)
    return msgspec.json.encode(fact).decode() if isinstance(fact, dict | list) else str(fact)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()
