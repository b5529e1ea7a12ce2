"""A pipeline over sample rows, without a store: its steps make the rows that ``weft spark test`` compares."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.completeness.row_steps import OTHER_STREAM, OtherRows, source_rows, without_rows
from spark_sinks.pipelines.job import Prepared, analysed_windows, window_frame
from spark_sinks.pipelines.steps import Context, all_steps, with_lineage
from spark_sinks.source.data_source import STREAM
from spark_sinks.source.options import in_utc, parse_moment
from weft.config.payload_schema.model import PayloadSchema
from weft.config.pipelines import Pipeline
from weft.storage.payloads.decoder import MISFIT_COLUMN, decoder_of, typed_fields
from weft.storage.table.rows import FIXED_COLUMNS, row_schema

FILE_BYTES_MAX = 64 << 20
ROWS_MAX = 100_000
"""Maximum number of rows of a sample, of a file of expected rows, and of a result."""
DIGITS = 9
"""Digits to which floats are compared: sums of floats depend on their order."""
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
"""Time of the first row of a stream that has none; further ones follow a second apart."""
Row = Mapping[str, Any]
_READERS: dict[str, Callable[[str], list[dict[str, Any]]]] = {}


class BadRows(ValueError):
    """The error of a file that is no sample, or of a row with a value that does not fit. It is one sentence."""


def read_rows(path: str) -> list[dict[str, Any]]:
    """Return the rows of a file: JSON lines, CSV with names in its first line, or Parquet, by the end of its name.

    Raises:
        BadRows: it cannot be read, or is too large.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in _READERS:
        raise BadRows(f"{path}: expected a file .jsonl, .csv or .parquet")
    try:
        if (size := os.path.getsize(path)) > FILE_BYTES_MAX:
            raise BadRows(f"{path}: has {size >> 20} MiB, and a sample at most {FILE_BYTES_MAX >> 20}. Use fewer rows")
        rows = _READERS[ending](path)
    except OSError as error:
        raise BadRows(f"{path}: {error.strerror or error}") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise BadRows(f"{path}: {' '.join(str(error).split())[:200]}") from None
    if len(rows) > ROWS_MAX:
        raise BadRows(f"{path}: has {len(rows)} rows, and a sample at most {ROWS_MAX}. Use fewer rows")
    return rows


def _of_lines(path: str) -> list[dict[str, Any]]:
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadRows(f"{path}:{number}: expected a row as a JSON object: {error}") from None
            if not isinstance(row, dict):
                raise BadRows(f"{path}:{number}: expected a row as a JSON object such as " + '{"machine": "m1"}')
            rows.append(row)
    return rows


def _of_csv(path: str) -> list[dict[str, Any]]:
    names = csv.open_csv(path).schema.names
    text = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    rows: list[dict[str, Any]] = csv.read_csv(path, convert_options=text).to_pylist()
    return rows


def _of_parquet(path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


_READERS |= {".jsonl": _of_lines, ".ndjson": _of_lines, ".csv": _of_csv, ".parquet": _of_parquet}


def sample_table(pipeline: Pipeline, samples: Mapping[str, Sequence[Row]]) -> pa.Table:
    """Return sample rows with the columns of the source. What a row leaves out gets a value: one edge node sends the
    rows of a stream in their order, a second apart. A row has a ``payload``, or the fields of ``source.schema``.

    Args:
        samples: stream -> its rows.

    Raises:
        BadRows: a value does not fit its column, or a column is none of the source's.
    """
    declared = pipeline.source.schema
    typed = [] if declared is None else typed_fields(declared)
    own = {field.name for field in typed}
    given = dict.fromkeys(name for rows in samples.values() for row in rows for name in row)
    levels = [name for name in given if name not in FIXED_COLUMNS | own and name != STREAM]
    fixed = row_schema(levels)
    tables = [_of_stream(name, rows, fixed, typed, declared) for name, rows in samples.items()]
    whole = pa.concat_tables(tables)
    return whole if pipeline.source.streams is not None else whole.drop_columns([STREAM])


def _of_stream(
    stream: str, rows: Sequence[Row], fixed: pa.Schema, typed: Sequence[pa.Field], schema: PayloadSchema | None
) -> pa.Table:
    made = [_whole(row, number, stream) for number, row in enumerate(rows)]
    columns = {STREAM: pa.array([stream] * len(rows), pa.string())}
    columns |= {field.name: _column(field, made, stream) for field in fixed}
    if typed and schema is not None:
        columns |= _typed(rows, typed, schema, columns["payload"], stream)
    return pa.table(columns)


def _whole(row: Row, number: int, stream: str) -> Row:
    """Return a row with what each record has."""
    try:
        time = value_of(row.get("_time"), pa.timestamp("us", "UTC")) or BEGIN + timedelta(seconds=number)
    except (ValueError, TypeError) as error:
        raise BadRows(f"row {number + 1} of {stream}: _time: {error}") from None
    payload = row.get("payload")
    text = "" if payload is None else payload if isinstance(payload, str | bytes) else json.dumps(payload)
    return {
        "_offset": number,
        "_shard": 0,
        "_edge": "edge",
        "_log": "1",
        "_seq": number,
        "_clock": "synced",
        "_received": time,
        "_key": stream,
        "_resent": False,
        **{name: value for name, value in row.items() if value is not None},
        "_time": time,
        "payload": text.encode() if isinstance(text, str) else text,
    }


def _column(field: pa.Field, rows: Sequence[Row], stream: str) -> pa.Array:
    values = []
    for number, row in enumerate(rows, 1):
        try:
            values.append(value_of(row.get(field.name), field.type))
        except (ValueError, TypeError) as error:
            hint = "" if field.name in FIXED_COLUMNS else ". Declare it in source.schema; a topic level is text"
            raise BadRows(f"row {number} of {stream}: {field.name}: {error}{hint}") from None
    return pa.array(values, field.type)


def _typed(
    rows: Sequence[Row], fields: Sequence[pa.Field], schema: PayloadSchema, payloads: pa.Array, stream: str
) -> dict[str, pa.Array]:
    """Return the typed columns: from the payload where a row has one, else as the row has them."""
    decoded = decoder_of(schema, tuple(field.name for field in fields)).columns(payloads)
    found = {}
    for field in fields:
        of_payload = decoded[field.name].to_pylist()
        named = _column(field, [{} if field.name == MISFIT_COLUMN else row for row in rows], stream).to_pylist()
        values = [
            said if row.get("payload") is not None else own
            for row, said, own in zip(rows, of_payload, named, strict=True)
        ]
        found[field.name] = pa.array(values, field.type)
    return found


@dataclass(frozen=True)
class SampleContext(Context):
    """A pipeline whose stream is a sample: its history, too."""

    table: pa.Table = None

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return all rows, with the source's columns and ``_from``."""
        return with_lineage(spark.createDataFrame(self.table))

    def history(
        self,
        spark: SparkSession,
        *,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        edges: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
        below: Mapping[int, int] | None = None,
    ) -> DataFrame:
        """Return rows of the sample, as ``Context.history`` does those of the stream."""
        if self.pipeline.window_step is not None:
            raise OtherRows(OTHER_STREAM)
        frame = self.frame(spark)
        if since is not None:
            frame = frame.where(F.col("_time") >= F.lit(parse_moment("since", since)))
        if until is not None:
            frame = frame.where(F.col("_time") < F.lit(parse_moment("until", until)))
        if edges is not None:
            frame = frame.where(F.col("_edge").isin(*edges))
        if below is not None:
            parts = ((F.col("_shard") == shard) & (F.col("_offset") < end) for shard, end in below.items())
            frame = frame.where(reduce(or_, parts, F.lit(False)))
        return frame if columns is None else frame.select(*columns)


def made_rows(pipeline: Pipeline, spark: SparkSession, table: pa.Table) -> pa.Table:
    """Return what the steps make of a sample, as one micro-batch. Windows are computed as complete ones.

    Raises:
        PipelineError: a step cannot be applied.
        BadRows: there are too many rows.
    """
    context = SampleContext(pipeline, table)
    frame = context.frame(spark)
    if pipeline.window_step is None:
        made = all_steps(pipeline).apply(frame, context)
    else:
        analysed_windows(pipeline, all_steps(pipeline).apply(source_rows(without_rows(frame)), context))
        windows = window_frame(pipeline)
        assert isinstance(windows.prepare, Prepared)
        windows = replace(windows, prepare=replace(windows.prepare, context=context))
        made = windows.windows(frame, windows.grid.number(_LAST_US), table.num_rows)
    found = made.limit(ROWS_MAX + 1).toArrow()
    if found.num_rows > ROWS_MAX:
        raise BadRows(f"the steps make more than {ROWS_MAX} rows. Use a smaller sample")
    return found


_LAST_US = 250_000_000_000 * 1_000_000
"""A time after every record: the year 9892."""


class Difference(NamedTuple):
    """Rows as JSON texts, of the columns that the expected rows have."""

    same: int
    missing: list[str]
    """Expected, and not made."""
    unexpected: list[str]
    """Made, and not expected."""


def compared(made: pa.Table, expected: Sequence[Row]) -> Difference:
    """Compare rows without their order, in the columns that the expected rows name.

    Raises:
        BadRows: an expected row has a column that is not made, or a value of another type.
    """
    columns = list(dict.fromkeys(name for row in expected for name in row)) or made.column_names
    if unknown := [name for name in columns if name not in made.column_names]:
        has = ", ".join(made.column_names)
        raise BadRows(f"column {', '.join(unknown)} is not made by the last step. It makes {has}")
    types = {name: made.schema.field(name).type for name in columns}
    wanted = [_text(_as_made(row, types, number), types) for number, row in enumerate(expected, 1)]
    found = texts(made.select(columns))
    return Difference(sum((Counter(wanted) & Counter(found)).values()), _less(wanted, found), _less(found, wanted))


def texts(table: pa.Table) -> list[str]:
    """Return rows as JSON texts, in which equal rows are equal."""
    types = {field.name: field.type for field in table.schema}
    return [_text(row, types) for row in table.to_pylist()]


def _less(rows: Iterable[str], others: Iterable[str]) -> list[str]:
    left, kept = Counter(others), []
    for row in rows:
        if left[row]:
            left[row] -= 1
        else:
            kept.append(row)
    return kept


def _as_made(row: Row, types: Mapping[str, pa.DataType], number: int) -> dict[str, Any]:
    found = {}
    for name, kind in types.items():
        try:
            found[name] = value_of(row.get(name), kind)
        except (ValueError, TypeError) as error:
            raise BadRows(f"expected row {number}: {name}: {error}") from None
    return found


def value_of(value: Any, kind: pa.DataType) -> Any:
    """Return a value of JSON, CSV or Parquet as one of a type.

    Raises:
        ValueError, TypeError: it is none.
    """
    if value is None:
        return None
    if isinstance(value, str) and (pa.types.is_nested(kind)):
        value = json.loads(value)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [value_of(each, kind.value_type) for each in _of_kind(value, list, kind)]
    if pa.types.is_struct(kind):
        given = _of_kind(value, dict, kind)
        return {field.name: value_of(given.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return [(value_of(key, kind.key_type), value_of(each, kind.item_type)) for key, each in pairs]
    for is_kind, convert in _CONVERTERS:
        if is_kind(kind):
            try:
                return convert(value)
            except (ValueError, TypeError, ArithmeticError, LookupError):
                raise ValueError(f"expected {kind}, got {str(value)[:100]!r}") from None
    return value


def _of_kind(value: Any, python: type, kind: pa.DataType) -> Any:
    if not isinstance(value, python):
        raise ValueError(f"expected {kind}, got {str(value)[:100]!r}")
    return value


def _moment(value: Any) -> datetime:
    return in_utc(value if isinstance(value, datetime) else datetime.fromisoformat(value.strip())).astimezone(UTC)


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value)


def _truth(value: Any) -> bool:
    return {"true": True, "false": False}[str(value).lower()] if not isinstance(value, bool) else value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_timestamp, _moment),
    (pa.types.is_integer, _whole_number),
    (pa.types.is_floating, _number),
    (pa.types.is_boolean, _truth),
    (pa.types.is_decimal, lambda value: Decimal(str(value))),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), _string),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), _bytes),
)


def _text(row: Row, types: Mapping[str, pa.DataType]) -> str:
    return json.dumps({name: _plain(row[name], kind) for name, kind in types.items()}, ensure_ascii=False)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value for JSON, in which equal values have one form."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    if isinstance(value, datetime):
        return in_utc(value).astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return str(value.quantize(Decimal(1).scaleb(-kind.scale)))
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if pa.types.is_map(kind) and value is not None:
        return {str(key): _plain(each, kind.item_type) for key, each in sorted(value)}
    if isinstance(value, list):
        return [_plain(each, kind.value_type) for each in value]
    if isinstance(value, dict):
        return {field.name: _plain(value.get(field.name), field.type) for field in kind}
    return value if isinstance(value, str | int | bool | None) else str(value)
