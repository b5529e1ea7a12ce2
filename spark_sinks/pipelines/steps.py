"""Steps of a pipeline, applied to a DataFrame."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import csv
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from spark_sinks.completeness.row_steps import ASKS_FOR_ROWS, OtherRows, check_rows, check_text
from spark_sinks.errors import SinkError
from spark_sinks.lineage import FROM_COLUMN, of_record
from spark_sinks.pipelines.catalog import PipelineError, SeveralStatements, one_statement
from spark_sinks.read import read
from spark_sinks.runtime.session import is_connect, register
from spark_sinks.sinks.delta.table import place_of
from spark_sinks.source.data_source import STREAM, STREAMS
from spark_sinks.source.options import in_utc
from spark_sinks.source.typed import NONE
from weft.config.errors import KeyPath
from weft.config.load import schema_text
from weft.config.payload_schema.model import FieldType, field_type
from weft.config.pipelines import INPUT, DimensionTable, Pipeline, PipelineSource, Step
from weft.storage.payloads.decoder import arrow_type
from weft.storage.table.delta import cause_of

# The stream or streams of a pipeline, for its steps and batches.


@dataclass(frozen=True)
class Context:
    """The pipeline and its stream. A Python step gets it as ``context`` when it has such a parameter.

    It can be pickled: with Spark Connect, steps run in a process of the server.
    """

    pipeline: Pipeline

    @property
    def source(self) -> PipelineSource:
        """Return the settings of the source."""
        return self.pipeline.source

    def stream(self, spark: SparkSession, schema: pa.Schema | None = None) -> DataFrame:
        """Return the incoming rows as a streaming DataFrame: the source's columns and ``_from``.

        Args:
            schema: the source's columns, if known. Without them, Spark starts a Python process to ask for them.
        """
        register(spark)
        reader = spark.readStream.format("weft").options(**self.options())
        if schema is not None:
            reader = reader.schema(from_arrow_schema(schema))
        return with_lineage(reader.load())

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
        """Return the stream's rows up to now, each once, from the table and from the log.

        They include rows of the present micro-batch and later ones: compare ``_shard`` and ``_offset``.

        Args:
            since: only rows with this ``_time`` or a later one.
            until: only rows with an earlier ``_time``.
            edges: only rows of these edge nodes. None means those of the pipeline.
            columns: only these columns. None means all of them, and ``_from``.
            below: shard -> offset after its last row; a shard that is not named is not read. None: up to now. It
                has a meaning for one stream.
        """
        named: dict[str, Any] = {"store": self.source.store, "tenant": self.source.tenant}
        named |= {"since": since, "until": until, "keys": self.source.keys, "columns": columns}
        # What is declared later must not change the columns that the steps were written for.
        named |= {"schema": NONE if self.source.schema is None else self.source.schema, "ending": below}
        named["edges"] = self.source.edges if edges is None else edges
        if self.source.streams is not None:
            frame = self._history_of_several(spark, named)
        else:
            frame = read(spark, self.source.one, **named)
        return with_lineage(frame) if columns is None else frame

    def _history_of_several(self, spark: SparkSession, named: Mapping[str, Any]) -> DataFrame:
        columns = named["columns"]
        given = {**named, "columns": None}
        parts = [read(spark, name, **given).withColumn(STREAM, F.lit(name)) for name in self.source.all_streams]
        whole = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)
        return whole.select(STREAM, *whole.drop(STREAM).columns) if columns is None else whole.select(*columns)

    def options(self) -> dict[str, str]:
        """Return the options of ``format("weft")``."""
        source = self.source
        named: dict[str, str] = {"store": source.store, "tenant": source.tenant}
        named |= {"stream": source.one} if source.streams is None else {STREAMS: _json_list(source.streams)}
        for name, values in (("edges", source.edges), ("keys", source.keys)):
            if values is not None:
                named[name] = _json_list(values)
        named["schema"] = NONE if source.schema is None else schema_text(source.schema)
        for name, moment in (("since", source.since), ("until", source.until)):
            if moment is not None:
                named[name] = moment
        if source.records_per_trigger_max is not None:
            named["max_records_per_trigger"] = str(source.records_per_trigger_max)
        return named


def with_lineage(frame: DataFrame) -> DataFrame:
    """Return rows of a stream with the column ``_from``, which names the record of each row."""
    return frame.withColumn(FROM_COLUMN, of_record())


def _json_list(values: Collection[str]) -> str:
    import msgspec

    return msgspec.json.encode(list(values)).decode()


# Tables beside the stream, such as the names of machines: read by the driver, and joined by SQL of the steps.

BYTES_MAX = 256 << 20
"""Maximum size of a table's files, which the driver reads for each micro-batch."""
BROADCAST_BYTES_MAX = 64 << 20
"""Size in memory up to which Spark sends a table to each executor, instead of sorting both sides of a join."""
_SENTENCE_CHARACTERS_MAX = 200


def tables_read(pipeline: Pipeline, step: Step) -> list[str]:
    """Return the tables of the pipeline whose names are in a step's SQL."""
    words = {word.lower() for word in re.findall(r"\w+", step.sql or "")}
    return [name for name in pipeline.tables if name.lower() in words]


def opened_tables(pipeline: Pipeline, names: Collection[str], spark: SparkSession) -> dict[str, DataFrame]:
    """Return tables as they are now, by name. Each is read once and whole: Delta at its newest version.

    Raises:
        PipelineError: one cannot be read.
    """
    return {name: _frame(spark, read_table(name, pipeline.tables[name])) for name in names}


def _frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    frame = spark.createDataFrame(table)
    return F.broadcast(frame) if table.nbytes <= BROADCAST_BYTES_MAX else frame


def read_table(name: str, settings: DimensionTable) -> pa.Table:
    """Return the rows of a table.

    Raises:
        PipelineError: it is not there, is too large, or has a value or a name of a column that does not fit.
    """
    path: KeyPath = ("tables", name, settings.chosen[0])
    table = _of_csv(path, settings) if settings.csv is not None else _of_delta(path, settings.delta or "")
    seen: dict[str, str] = {}
    for at, column in enumerate(table.column_names, 1):
        if not column.strip():
            raise PipelineError(path, f"column {at} has no name. Write one into the first line")
        if (other := seen.setdefault(column.lower(), column)) != column or table.column_names.count(column) > 1:
            raise PipelineError(path, f"two columns are called {other}. Name each of them once")
    return table


def _of_csv(path: KeyPath, settings: DimensionTable) -> pa.Table:
    assert settings.csv is not None
    form = csv.ParseOptions(delimiter=settings.delimiter, newlines_in_values=True)
    try:
        with open(settings.csv, "rb") as file:
            _check_size(path, os.fstat(file.fileno()).st_size)
            data = pa.py_buffer(file.read(BYTES_MAX))
        names = csv.open_csv(pa.BufferReader(data), parse_options=form).schema.names
        # Text at first: a type found out from the values would change with them, and the sink's column has one.
        text = csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        table = csv.read_csv(pa.BufferReader(data), parse_options=form, convert_options=text)
    except OSError as error:
        raise PipelineError(path, f"{settings.csv} cannot be read: {error.strerror or error}") from None
    except pa.ArrowException as error:
        raise PipelineError(path, f"{settings.csv} is not a CSV table with a header line: {_short(error)}") from None
    for column, type_ in (settings.columns or {}).items():
        if column not in table.column_names:
            has = ", ".join(table.column_names)
            raise PipelineError((*path[:2], "columns", column), f"{settings.csv} has no such column. It has {has}")
        values = _typed((*path[:2], "columns", column), field_type(type_), table.column(column))
        table = table.set_column(table.column_names.index(column), column, values)
    return table


def _typed(path: KeyPath, kind: FieldType, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts as values of a type.

    Raises:
        PipelineError: one has another form.
    """
    try:
        return _converted(kind, texts)
    except ValueError:
        for row, text in enumerate(texts, 1):
            try:
                _converted(kind, pa.chunked_array([pa.array([text.as_py()], pa.string())]))
            except ValueError:
                value = _short(repr(text.as_py()))
                raise PipelineError(path, f"row {row} has {value}, which is not a valid {kind}. Correct it") from None
        raise


def _converted(kind: FieldType, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    if kind.name != "timestamp":
        return pc.cast(texts, arrow_type(kind))
    moments = (None if text is None else in_utc(datetime.fromisoformat(text.strip())) for text in texts.to_pylist())
    return pa.chunked_array([pa.array(moments, arrow_type(kind))])


def _of_delta(path: KeyPath, uri: str) -> pa.Table:
    try:
        where, options = place_of(uri, {}).location()
        if not DeltaTable.is_deltatable(where, options or None):
            raise PipelineError(path, f"{uri} is not a Delta table. Correct the path")
        table = DeltaTable(where, storage_options=options or None)
        sizes = pa.table(table.get_add_actions(flatten=True)).column("size_bytes")
        _check_size(path, pc.sum(sizes).as_py() or 0)
        return table.to_pyarrow_table()
    except (DeltaError, SinkError, OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, PipelineError):
            raise
        raise PipelineError(path, f"{uri} cannot be read as a Delta table: {_short(cause_of(error))}") from None


def _check_size(path: KeyPath, size: int) -> None:
    if size > BYTES_MAX:
        raise PipelineError(
            path,
            f"has {size >> 20} MiB, and the driver reads at most {BYTES_MAX >> 20} MiB for each micro-batch. Make a "
            "smaller table of the rows and columns that the steps need",
        )


def _short(error: object) -> str:
    """Return a text as one line of bounded length."""
    line = " ".join(str(error).split()).rstrip(".")
    return line if len(line) <= _SENTENCE_CHARACTERS_MAX else f"{line[:_SENTENCE_CHARACTERS_MAX]}..."


# Errors of Spark's analysis as one sentence: Spark appends plans, codes and traces.

_CODE = re.compile(r"^\s*\[([A-Z][A-Z0-9_.]*)\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_PLACE = re.compile(r"[;.,]?\s*\(?line (\d+)[,]? pos(?:ition)? (\d+)\)?")
_TICKS = re.compile(r"`([^`]*)`")
SENTENCE_CHARACTERS_MAX = 600


def is_of_spark(error: BaseException) -> bool:
    """Return whether an error is one of Spark's own, with a condition and a message."""
    return isinstance(error, PySparkException)


def plan_of(frame: DataFrame) -> str:
    """Return the analysed plan of a DataFrame; empty with Spark Connect, where only the server has it."""
    return "" if is_connect(frame.sparkSession) else str(frame._jdf.queryExecution().analyzed().toString())


def condition(error: BaseException) -> str:
    """Return the name of Spark's error condition, such as `UNRESOLVED_COLUMN.WITH_SUGGESTION`; empty without one."""
    getter = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    return (getter() if getter else None) or ""


def explained(error: BaseException, tables: Sequence[str] = (), lines_before: int = 0) -> str:
    """Return an error of analysis as a sentence.

    Args:
        tables: names that a SELECT may read here.
        lines_before: lines in front of the user's SQL in the text that Spark parsed.
    """
    text = str(error).strip()
    place = _PLACE.search(text)
    named = condition(error)
    sentence = _of_condition(named, text, tables) or _plain(text)
    line = int(place[1]) - lines_before if place else 0
    if place and named == "PARSE_SYNTAX_ERROR":
        found = f"{sentence} (line {line}, column {int(place[2]) + 1} of the SQL)" if line > 0 else sentence
        return f"{found}. Expected a SELECT, such as `SELECT line, avg_temp FROM input`"  # noqa: S608
    return f"{sentence} (line {line} of the SQL)" if line > 1 else sentence


def _of_condition(named: str, text: str, tables: Sequence[str]) -> str | None:
    ticks = _TICKS.findall(text)
    if named.startswith(("UNRESOLVED_COLUMN", "UNRESOLVED_FIELD")) and ticks:
        column = ".".join(_name(text))
        near = _suggestions(text)
        return f"there is no column {column} here" + (f". Did you mean {' or '.join(near[:3])}?" if near else "")
    if named == "TABLE_OR_VIEW_NOT_FOUND" and ticks and tables:
        return f"there is no table {ticks[0]}. A step can read {', '.join(tables)}"
    return None


def _name(text: str) -> list[str]:
    """Return the parts of the first name in backticks: ```a`.`b```."""
    match = re.search(r"`[^`]*`(?:\.`[^`]*`)*", text)
    return _TICKS.findall(match[0]) if match else []


def _suggestions(text: str) -> list[str]:
    match = re.search(r"following\? \[([^\]]*)\]", text)
    return [".".join(_TICKS.findall(part)) for part in match[1].split(", ")] if match else []


def _plain(text: str) -> str:
    """Return Spark's own sentence: without its code, its state, and the plan that follows."""
    text = _CODE.sub("", text)
    text = _STATE.split(text)[0]
    text = re.split(r";?\s*\n(?:['~+!]|==|[A-Z]\w+ \[|\s*at |\n)", text)[0]
    text = _PLACE.sub("", " ".join(text.split())).rstrip(" ;.")
    if len(text) > SENTENCE_CHARACTERS_MAX:
        text = f"{text[:SENTENCE_CHARACTERS_MAX]}..."
    return text


# Python steps: the function behind ``module:function``, and what it returns.

StepFunction = Callable[..., DataFrame]
CONTEXT = "context"
"""Parameter by which a function gets the pipeline's ``Context``."""


def load_function(name: str, path: KeyPath) -> StepFunction:
    """Return the function that ``module:function`` names.

    Raises:
        PipelineError: there is no such module or function, or the module fails when it is imported.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise PipelineError(path, _not_found(module_name, error)) from None
    except (Exception, SystemExit) as error:
        raise PipelineError(path, f"module {module_name} cannot be imported: {_said(error)}") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise PipelineError(
            path, f"module {module_name} has no function {function_name}. It has {', '.join(known) or 'none'}"
        )
    return function


def call(step: Step, frame: DataFrame, context: Context, path: KeyPath) -> DataFrame:
    """Return the result of a Python step for a DataFrame.

    Raises:
        PipelineError: the function cannot be called with the step's options, fails, or returns something else.
    """
    assert step.python is not None
    function = load_function(step.python, path)
    named = arguments(function, step, context, path)
    try:
        result = function(frame, **named)
    except PipelineError:
        raise
    except (Exception, SystemExit) as error:
        has_windows = context.pipeline.window_step is not None
        raise PipelineError(path, f"{step.python} failed: {_said(error, has_windows=has_windows)}") from error
    if not (hasattr(result, "sparkSession") and hasattr(result, "schema")):
        raise PipelineError(path, f"{step.python} returned {_kind(result)}. Return a DataFrame of Spark")
    return result


def arguments(function: StepFunction, step: Step, context: Context, path: KeyPath) -> Mapping[str, Any]:
    """Return the arguments by name: the step's options, and the context for a function that has a parameter for it.

    Raises:
        PipelineError: the function does not accept these options, or needs others.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return step.options
    named = dict(step.options)
    if CONTEXT in signature.parameters and CONTEXT not in named:
        named[CONTEXT] = context
    try:
        signature.bind(None, **named)
    except TypeError as error:
        wanted = [str(each) for name, each in list(signature.parameters.items())[1:] if name != CONTEXT]
        raise PipelineError(
            (*path[:-1], "options"),
            f"{step.python} cannot be called with these options: {error}. "
            f"It takes the DataFrame and {', '.join(wanted) or 'no option'}",
        ) from None
    return named


def _not_found(module: str, error: ModuleNotFoundError) -> str:
    missing = error.name or module
    if module == missing or module.startswith(f"{missing}."):
        return f"there is no module {missing}. Put {missing}.py into the pipeline's folder, or install its package"
    return f"module {module} needs {missing}, which is not installed for {sys.executable}"


def _said(error: BaseException, *, has_windows: bool = False) -> str:
    """Return the sentence of an error with its place in the user's code."""
    if is_of_spark(error) and ASKS_FOR_ROWS in str(error):
        if has_windows:
            return (
                "it asks for rows, and would get those of a few windows alone. Return a DataFrame of the step's input"
            )
        return "it asks for rows, and a streaming DataFrame has none before the query runs. Give the step `mode: batch`"
    if is_of_spark(error):
        return explained(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not _is_library(each.filename)]
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}:{error.lineno})"
        return f"{error.msg}{place}"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{place}"


def _is_library(file: str) -> bool:
    return file == __file__ or "site-packages" in file or "importlib" in file or file.startswith("<")


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


@dataclass(frozen=True)
class StepGroup:
    """Steps that follow each other, with their places in the file."""

    steps: tuple[tuple[int, Step], ...]

    def apply(self, frame: DataFrame, context: Context) -> DataFrame:
        """Return the result of the steps for a DataFrame.

        Raises:
            PipelineError: a step cannot be applied.
        """
        for _, result in self.results(frame, context):
            frame = result
        return frame

    def results(self, frame: DataFrame, context: Context) -> Iterator[tuple[int, DataFrame]]:
        """Yield the place and the result of each step. A named step is a view for the following ones, and so are the
        pipeline's tables, read now.

        Before windows, the frame is one of ``source_rows``.

        Raises:
            PipelineError: a step cannot be applied, or looks at more than a row before windows.
        """
        pipeline = context.pipeline
        read = {name for _, step in self.steps for name in tables_read(pipeline, step)}
        named = opened_tables(pipeline, read, frame.sparkSession) if read else {}
        for at, step in self.steps:
            frame = _applied(at, step, frame, named, context)
            if pipeline.window_step is not None:
                _check_rows(at, step, frame)
            if step.name is not None:
                named[step.name] = frame
            yield at, frame


def split(pipeline: Pipeline) -> tuple[StepGroup, StepGroup]:
    """Return the steps on the streaming DataFrame, and those on the rows of a micro-batch; the window step is in
    neither. A step that reads a table is on micro-batches: on a stream, the table would be read once for all of them.
    """
    plain = [(at, step) for at, step in enumerate(pipeline.steps) if step.window is None]
    first = next((at for at, step in plain if step.mode == "batch" or tables_read(pipeline, step)), len(plain))
    return StepGroup(tuple(plain[:first])), StepGroup(tuple(plain[first:]))


def all_steps(pipeline: Pipeline) -> StepGroup:
    """Return all steps before the window step."""
    return StepGroup(tuple((at, step) for at, step in enumerate(pipeline.steps) if step.window is None))


def _applied(at: int, step: Step, frame: DataFrame, named: dict[str, DataFrame], context: Context) -> DataFrame:
    if step.python is not None:
        return call(step, frame, context, ("steps", at, "python"))
    assert step.sql is not None
    return select(step.sql, frame, named, ("steps", at, "sql"))


def _check_rows(at: int, step: Step, frame: DataFrame) -> None:
    try:
        check_text(step.sql or "")
        check_rows(frame, ())
    except OtherRows as error:
        raise PipelineError(("steps", at, *step.kinds), str(error)) from None


def select(text: str, frame: DataFrame, named: dict[str, DataFrame], path: KeyPath) -> DataFrame:
    """Return the rows of a SELECT over ``input`` and the named steps before it.

    Raises:
        PipelineError: the text is not a SELECT, or names columns, tables or functions that do not exist.
    """
    try:
        statement = one_statement(text)
    except SeveralStatements:
        raise PipelineError(path, "has several statements. Write one SELECT, and a step for each of them") from None
    if not statement.strip():
        raise PipelineError(path, "has no SELECT. Write one that reads `input`")
    spark = frame.sparkSession
    for name, rows in {INPUT: frame, **named}.items():
        rows.createOrReplaceTempView(name)
    try:
        # In parentheses only a query is valid: a DROP or an INSERT on its own would run as soon as Spark parses it.
        return spark.sql(f"SELECT * FROM (\n{statement}\n)")  # noqa: S608
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise PipelineError(path, explained(error, [INPUT, *named], lines_before=1)) from None


# The sentence of an error that ended a query. Spark wraps it into traces of Java and of Python.

_RAISED = re.compile(
    r"^\s*((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Refused|Corrupt|Interrupt)"
    r"|(?:spark_sinks|weft)\.(?:\w+\.)*[A-Z]\w*): (.+)$",
    re.MULTILINE,
)
"""An error of Python at the end of its trace. Names of Weft's error classes follow no pattern."""
_OURS = ("spark_sinks.", "weft.")
_STORE = {
    "weft.storage.object_store.protocol.NotFound": "the store lacks {}",
    "weft.storage.object_store.protocol.StoreError": "a store failed: {}",
}
"""Errors of a store that went away while a query ran."""
_NO_WORKER = "Python worker failed to connect back"
"""Message of Spark when a Python process that it started did not answer within 10 s; no setting changes this time."""


def sentence_of(error: BaseException) -> str:
    """Return the cause: the innermost error of Python, without its class if it is one of Weft's."""
    if _NO_WORKER in str(error):
        return (
            "a Python process of Spark took more than 10 s to start: this machine is overloaded. "
            "Run fewer jobs on it, and start the pipeline again. It continues where it was"
        )
    raised = [(name, text.strip()) for name, text in _RAISED.findall(str(error)) if not name.startswith(_JAVA)]
    if not raised:
        return explained(error)
    name, text = raised[-1]
    if name in _STORE:
        happened = _STORE[name].format(text)
        return f"{happened}. Check that it exists and has room, and start the pipeline again. It continues where it was"
    return text if name.startswith(_OURS) else f"{name.rpartition('.')[2]}: {text}"


_JAVA = ("org.", "java.", "py4j.", "pyspark.", "scala.")
