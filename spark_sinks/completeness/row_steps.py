"""Steps before windows and their aggregates, by their analysed plan: what they may see of a stream.

A query of windows reads the records of a few windows at a time, and a window again when records come. So the steps
before windows have to make of two sets of rows together what they make of each: of one row alone, always the same.
Aggregates see the rows of their own window alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.util import PythonEvalType

from spark_sinks.errors import ReadError
from spark_sinks.read import STREAM_OPTION
from spark_sinks.runtime.session import is_connect
from weft.config.units import quoted

_SOURCE = "_weft_source"
"""Alias of a stream's rows in the plan of the steps. Columns of a row are followed down to it: metadata of a column can
be copied to another one, and a name says nothing."""
NODES_MAX = 10_000
"""Maximum number of nodes of a plan that are looked at."""

_OF_ONE_ROW = frozenset(
    {
        "CTERelationDef",
        "Expand",
        "Filter",
        "Generate",
        "PipeOperator",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sort",
        "SubqueryAlias",
        "Union",
        "View",
    }
)
"""Operators that make of each row zero, one or several rows, whatever the others are; and those that make all of them.
A sort is one of the latter: what would take its first rows is none."""
_GENERATORS = frozenset({"Explode", "PosExplode", "Inline", "Stack", "JsonTuple", "VariantExplode"})
"""Functions of one row that make several. A table function of Python is an object that sees all rows of a task."""
_GROUPS: Mapping[str, Callable[[Any], Any]] = {
    "Aggregate": lambda node: node.groupingExpressions(),
    "Deduplicate": lambda node: node.keys(),
    "Distinct": lambda node: node.output(),
    "FlatMapGroupsInArrow": lambda node: node.groupingAttributes(),
    "FlatMapGroupsInPandas": lambda node: node.groupingAttributes(),
    "Window": lambda node: node.partitionSpec(),
}
"""Operators that see the rows of one group -> the columns that name a group."""
_ROW_UDFS = frozenset({PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF})
"""Functions of Python that see one row at a time. Those of pandas and Arrow see as many as Spark happens to give."""
_SIDES = {True: ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"), False: ("Inner", "Cross", "RightOuter")}
"""Joins that look at one row of the stream, by whether that is on the left. Others keep rows of the table by whether
no row of the stream matches them."""

_BEFORE = "A step before windows may look at one row alone, since windows are computed from a few rows at a time"
_WITHIN = "An aggregate may look at its own window alone, since windows are computed a few at a time"
_CONDITION = "Select rows by a condition of each one"
_IN_WINDOWS = "Compare rows in the aggregates, such as `max(kwh) - min(kwh)`"
_BY_UDF = "Use a plain `udf`, which sees one row"
_REFUSED: Mapping[str, tuple[str, str]] = {
    "Aggregate": ("groups rows", "Group them by the windows alone"),
    "Deduplicate": ("drops rows that equal others", "Count different values by `count(DISTINCT ...)`"),
    "Distinct": ("drops rows that equal others", "Count different values by `count(DISTINCT ...)`"),
    "GlobalLimit": ("takes a number of rows", _CONDITION),
    "Join": ("joins rows of the stream with other rows of it", _IN_WINDOWS),
    "LocalLimit": ("takes a number of rows", _CONDITION),
    "MapInArrow": ("hands rows to Python in batches", _BY_UDF),
    "MapInPandas": ("hands rows to Python in batches", _BY_UDF),
    "Offset": ("skips a number of rows", _CONDITION),
    "Sample": ("draws rows at random", f"{_CONDITION}, such as `hash(_edge, _seq) % 10 = 0`"),
    "Tail": ("takes a number of rows", _CONDITION),
    "Window": ("looks at other rows (OVER)", _IN_WINDOWS),
}
OTHER_STREAM = (
    "joins what another read of a stream gives at this moment, and windows do not wait for it. Write that stream into "
    "a table first, and join the table"
)
_UNSTEADY = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Sample", "Tail"})
"""Operators that may give other rows of the same table each time."""


_IN_ANY_ORDER: Mapping[str, str] = {
    "First": "Use `min_by(x, _time)`",
    "Last": "Use `max_by(x, _time)`",
    "CollectList": "Sort it, such as `sort_array(collect_list(x))`",
    "CollectSet": "Sort it, such as `sort_array(collect_set(x))`",
    "ListAgg": "Write `WITHIN GROUP (ORDER BY x)`",
    "Mode": "Use `mode(x, true)`, the smallest of the most frequent values",
    "Deduplicate": "Use `min_by` for the columns beside them",
}
"""Aggregates whose result depends on the order of their rows, which is another one in each run -> what does not."""
_OF_ANY_ORDER = frozenset({"array_contains", "array_max", "array_min", "array_sort", "size", "sort_array"})
"""Functions of an array whose result does not depend on its order."""
_IN_ORDER_GIVEN = frozenset({"array_distinct", "cast", "flatten"})
"""Functions that make of an array in another order the same in another order."""


ASKS_FOR_ROWS = "must be executed with writeStream.start()"
"""Part of Spark's error when rows of a streaming DataFrame are asked for, such as by ``count``."""
_MOMENT = re.compile(
    r"\b(?:date|timestamp(?:_ltz|_ntz)?)(?:\s|/\*.*?\*/|--[^\n]*\n)*r?(['\"])\s*(now|today|yesterday|tomorrow)\b[^'\"]*\1",
    re.IGNORECASE | re.DOTALL,
)
"""Literal of SQL that the parser replaces by the time, before there is a plan."""


class OtherRows(ReadError):
    """The error of steps or aggregates that see more of a stream than one row or one window, or not the same twice."""


class OtherTime(ReadError):
    """The error of steps whose rows have another time, or another window, than the stream's row that they are of."""

    def __init__(self, column: str) -> None:
        super().__init__(
            f"makes a {column} that is not the source's own, or is not seen to be. Windows are found by the source's, "
            "and would lose rows"
        )
        self.column = column


def source_rows(frame: DataFrame) -> DataFrame:
    """Return rows of a stream for steps, whose result ``check_rows`` can look at."""
    return frame.alias(_SOURCE)


def without_rows(frame: DataFrame) -> DataFrame:
    """Return a streaming DataFrame with the same columns. It raises an error when steps ask for its rows: what they
    would find out is of the rows that happen to be read."""
    empty = frame.sparkSession.readStream.format("rate").load()
    return empty.select(*(F.lit(None).cast(each.dataType).alias(each.name) for each in frame.schema.fields))


def check_text(sql: str) -> None:
    """Check SQL for what its plan does not show.

    Raises:
        OtherRows: it has a literal such as ``TIMESTAMP 'now'``.
    """
    if found := _MOMENT.search(sql):
        raise _of_the_clock(f"`{found[0]}`")


def check_rows(rows: DataFrame, own: Collection[str]) -> None:
    """Check what steps made of ``source_rows``.

    Args:
        own: columns that have to be those of the stream's row.

    Raises:
        OtherRows: a step looks at several rows, or at something else than a row.
        OtherTime: a column of ``own`` is another one.
    """
    if is_connect(rows.sparkSession):
        raise OtherRows(
            "cannot be checked through Spark Connect, which does not show its plan. Run windows with steps in a "
            "session of Spark itself, such as `--master local[*]`"
        )
    _Plan(rows, None).check(own)


def check_aggregates(windows: DataFrame, start: str) -> None:
    """Check what aggregates made of ``source_rows``. With Spark Connect nothing can be seen.

    Args:
        start: column with the start of a window, by which rows have to be grouped.

    Raises:
        OtherRows: an aggregate looks at rows of several windows, or at something else than rows.
        OtherTime: the result has another start.
    """
    if not is_connect(windows.sparkSession):
        _Plan(windows, start).check([start])


class _Plan:
    """An analysed plan over rows of a stream.

    Args:
        start: column with the start of a window where groups of one window may be looked at; None where only rows may.
    """

    def __init__(self, rows: DataFrame, start: str | None) -> None:
        spark = rows.sparkSession
        assert spark._jvm is not None
        catalyst = spark._jvm.org.apache.spark.sql.catalyst
        self._gateway = spark.sparkContext._gateway
        patterns = catalyst.trees.TreePattern
        self._replaced = catalyst.optimizer.ReplaceExpressions.apply
        self._with_moments = catalyst.optimizer.SpecialDatetimeValues.apply
        self._clock, self._query, self._python = (
            patterns.CURRENT_LIKE(),
            patterns.PLAN_EXPRESSION(),
            patterns.PYTHON_UDF(),
        )
        self._aggregate, self._variable, self._stands_for = (
            patterns.AGGREGATE_EXPRESSION(),
            patterns.VARIABLE_REFERENCE(),
            patterns.RUNTIME_REPLACEABLE(),
        )
        self._start = start
        self._columns = rows.columns
        self._defined: dict[int, Any] = {}
        self._left = NODES_MAX
        self._root = self._shown(rows._jdf.queryExecution().analyzed())

    def check(self, own: Collection[str]) -> None:
        """Check the whole plan."""
        self._walk(self._root)
        for name in own:
            if not self._is_own(self._root, self._root.output().apply(self._columns.index(name)), name):
                raise OtherTime(name)

    def _shown(self, plan: Any) -> Any:
        """Return a plan with the functions that others stand for."""
        self._no_random_bytes(plan)
        found = self._replaced(plan)
        if not self._with_moments(found).fastEquals(found):
            raise _of_the_clock("a time such as 'now' or 'today'")
        return found

    def _no_random_bytes(self, plan: Any) -> None:
        """Check encryption, which Spark calls deterministic, and draws bytes for where none are given."""
        waiting = [plan]
        while waiting:
            node = waiting.pop()
            self._count()
            for each in _listed(node.expressions()):
                if each.containsPattern(self._stands_for):
                    for made in self._found(each, self._stands_for, "AesEncrypt"):
                        if made.mode().sql().upper() != "'ECB'" and made.iv().sql() in ("''", "CAST('' AS BINARY)"):
                            raise _of_chance("aes_encrypt", "Give it an `iv` that is made of the row")
            waiting += [child for child in _listed(node.children()) if child.containsPattern(self._stands_for)]

    def _walk(self, plan: Any) -> None:
        """Check the operators between a result and the rows of the stream."""
        waiting = [plan]
        while waiting:
            node = waiting.pop()
            kind = self._kind(node)
            if kind == "WithCTE":
                waiting.append(self._main(node))
                continue
            if kind == "CTERelationRef":
                waiting.append(self._defined[node.cteId()])
                continue
            if _is_source(node):
                continue
            children = list(_listed(node.children()))
            if not children:
                self._steady(node)  # a part that is not of the stream, whose rows have no time of it
                continue
            if kind == "Join":
                children = self._joined(node)
            elif kind not in _OF_ONE_ROW and kind != "LateralJoin" and not self._is_of_one_window(node, kind):
                raise self._refused(kind)
            self._keeps_no_row_of_several(node, kind)
            if not kind.startswith("FlatMapGroups"):
                self._expressions(node)
            waiting += children

    def _joined(self, node: Any) -> list[Any]:
        """Return the sides of a join that have rows of the stream."""
        left, right = node.left(), node.right()
        sides = self._has_source(left), self._has_source(right)
        if all(sides):
            if not self._is_by_window(node):
                raise self._refused("Join")
            return [left, right]
        if node.joinType().toString() not in _SIDES[sides[0]]:
            raise OtherRows(
                f"joins a table so that rows of it stay which match no row of the stream ({node.joinType().sql()}). "
                f"{self._rule}. Use an inner join, or a LEFT JOIN that begins with the stream"
            )
        self._steady(right if sides[0] else left)
        return [left if sides[0] else right]

    def _expressions(self, node: Any) -> None:
        # Spark knows of a plan as a whole whether it has any of these: each expression costs some calls into Java.
        patterns = (self._clock, self._query, self._python, self._aggregate, self._variable)
        if node.nodeName() != "Generate" and node.deterministic() and not any(map(node.containsPattern, patterns)):
            return
        for each in _listed(node.expressions()):
            self._expression(each)
        if node.nodeName() == "Generate" and (made := node.generator().nodeName()) not in _GENERATORS:
            raise OtherRows(f"makes rows by {made}, which may see several of them. {self._rule}. Use `explode`")

    def _expression(self, expression: Any) -> None:
        self._same_each_time(expression)
        if expression.containsPattern(self._query):
            for query in self._found(expression, self._query, "PlanExpression"):
                if self._has_source(query.plan()):
                    raise OtherRows(f"reads rows of the stream in a subquery. {self._rule}. {_IN_WINDOWS}")
                self._steady(query.plan())
        if expression.containsPattern(self._python):
            for function in self._found(expression, self._python, "PythonFuncExpression"):
                if function.evalType() not in _ROW_UDFS and function.nodeName() != "PythonUDAF":
                    raise OtherRows(
                        f"calls {quoted(function.name())} with batches of rows, and which rows share one depends on "
                        f"what is read. {self._rule}. {_BY_UDF}"
                    )

    def _same_each_time(self, expression: Any) -> None:
        if expression.containsPattern(self._clock):
            raise _of_the_clock(f"`{self._culprit(expression, lambda each: each.containsPattern(self._clock))}`")
        if not expression.deterministic():
            name = self._culprit(expression, lambda each: not each.deterministic())
            raise _of_chance(name, "Use a value of the row, such as `hash(_edge, _seq)`")
        if expression.containsPattern(self._variable):
            # Its text is `variablereference(system.session.NAME=VALUE)`.
            [text, *_] = (each.sql() for each in self._found(expression, self._variable, "VariableReference"))
            name = text.partition("=")[0].rpartition(".")[2]
            raise OtherRows(
                f"uses the variable `{name}` of the session, which may have another value in the next run. "
                "Write the value itself"
            )
        if expression.containsPattern(self._aggregate):
            self._of_any_order(expression)

    def _of_any_order(self, expression: Any) -> None:
        """Check aggregates within an expression: rows come in another order in each run."""
        waiting = [(expression, "")]
        while waiting:
            each, around = waiting.pop()
            self._count()
            kind = each.nodeName()
            if kind == "WindowExpression" and each.windowSpec().orderSpec().size():
                continue
            if kind == "AggregateExpression":
                made = each.aggregateFunction()
                kind = made.nodeName()
                is_ordered = (
                    (kind.startswith("Collect") and around in _OF_ANY_ORDER)
                    or (kind == "ListAgg" and made.orderExpressions().size())
                    or (kind == "Mode" and made.reverseOpt().isDefined())
                )
                if kind in _IN_ANY_ORDER and not is_ordered:
                    raise _of_order(f"uses `{made.prettyName()}`", kind)
            name = each.prettyName()
            within = around if name in _IN_ORDER_GIVEN else name
            waiting += [(child, within) for child in _listed(each.children()) if child.containsPattern(self._aggregate)]

    def _keeps_no_row_of_several(self, node: Any, kind: str) -> None:
        if kind == "Deduplicate" and node.keys().size() < node.child().outputSet().size():
            raise _of_order("keeps one of the rows that have the same values in some columns", kind)

    def _steady(self, plan: Any) -> None:
        """Check a table beside the stream: it is whole, and the same for all rows that are read at once."""
        waiting = [self._shown(plan)]
        while waiting:
            node = waiting.pop()
            kind = self._kind(node)
            if kind in _UNSTEADY:
                raise OtherRows(
                    f"joins a part of a table that may be another one each time ({kind}). "
                    "Select its rows by a condition, or make a smaller table"
                )
            if self._reads_a_stream(node, kind):
                raise OtherRows(OTHER_STREAM)
            self._keeps_no_row_of_several(node, kind)
            for each in _listed(node.expressions()):
                self._same_each_time(each)
                if each.containsPattern(self._query):
                    found = self._found(each, self._query, "PlanExpression")
                    waiting += [self._shown(query.plan()) for query in found]
            waiting += [self._main(node)] if kind == "WithCTE" else _listed(node.children())
            waiting += [self._defined[node.cteId()]] if kind == "CTERelationRef" else []

    def _has_source(self, plan: Any) -> bool:
        waiting = [plan]
        while waiting:
            node = waiting.pop()
            kind = self._kind(node)
            if _is_source(node):
                return True
            waiting += [self._main(node)] if kind == "WithCTE" else _listed(node.children())
            waiting += [self._defined[node.cteId()]] if kind == "CTERelationRef" else []
            for each in _listed(node.expressions()):
                if each.containsPattern(self._query):
                    waiting += [query.plan() for query in self._found(each, self._query, "PlanExpression")]
        return False

    def _main(self, node: Any) -> Any:
        """Return the query of a WITH, after its named ones are known."""
        self._defined |= {each.id(): each.child() for each in _listed(node.cteDefs())}
        return node.plan()

    def _is_of_one_window(self, node: Any, kind: str) -> bool:
        if self._start is None or kind not in _GROUPS:
            return False
        return any(self._is_start(node.child(), each) for each in _listed(_GROUPS[kind](node)))

    def _is_by_window(self, join: Any) -> bool:
        if self._start is None or join.condition().isEmpty():
            return False
        waiting = [join.condition().get()]
        while waiting:
            each = waiting.pop()
            if each.nodeName() == "And":
                waiting += [each.left(), each.right()]
            elif each.nodeName() in ("EqualTo", "EqualNullSafe"):
                for one, other in ((each.left(), each.right()), (each.right(), each.left())):
                    if self._is_start(join.left(), one) and self._is_start(join.right(), other):
                        return True
        return False

    def _is_start(self, node: Any, expression: Any) -> bool:
        if expression.nodeName() != "AttributeReference" or not node.outputSet().contains(expression):
            return False
        return self._is_own(node, expression, self._start or "")

    def _is_own(self, plan: Any, column: Any, name: str) -> bool:
        """Return whether each value of a column is that of the stream's row; of a union, in each of its parts."""
        waiting = [(plan, column)]
        while waiting:
            node, column = waiting.pop()
            kind = self._kind(node)
            if _is_source(node):
                if not any(each.name() == name and _is_same(each, column) for each in _listed(node.output())):
                    return False
            elif kind == "WithCTE":
                waiting.append((self._main(node), column))
            elif kind == "Union":
                at = _place(node.output(), column)
                waiting += [(each, each.output().apply(at)) for each in _listed(node.children())]
            elif kind == "CTERelationRef":
                query = self._defined[node.cteId()]
                waiting.append((query, query.output().apply(_place(node.output(), column))))
            elif (below := _below(node, column)) is not None:
                waiting.append((below, column))
            elif kind.startswith("FlatMapGroups"):
                # The function names the group's window again: what it says is believed.
                if not self._is_of_one_window(node, kind) or column.name() != name:
                    return False
            else:
                made = _made(node, kind, column)
                if made is None or made.child().nodeName() != "AttributeReference":
                    return False
                waiting.append((node, made.child()))
        return True

    def _found(self, expression: Any, pattern: Any, kind: str) -> Iterator[Any]:
        """Yield the parts of an expression that are of a class; those that have them have the pattern."""
        waiting = [expression]
        while waiting:
            each = waiting.pop()
            self._count()
            if self._is_a(each, f"catalyst.expressions.{kind}"):
                yield each
            waiting += [child for child in _listed(each.children()) if child.containsPattern(pattern)]

    def _culprit(self, expression: Any, is_bad: Callable[[Any], bool]) -> str:
        """Return the name of the innermost function for which something is true."""
        each = expression
        while inner := next((child for child in _listed(each.children()) if is_bad(child)), None):
            self._count()
            each = inner
        return str(each.name() if each.nodeName() == "PythonUDF" else each.prettyName())

    def _is_a(self, value: Any, name: str) -> bool:
        return bool(is_instance_of(self._gateway, value, f"org.apache.spark.sql.{name}"))

    def _reads_a_stream(self, node: Any, kind: str) -> bool:
        """Return whether an operator reads a stream of Weft: by its source, or its table's files as ``read`` does."""
        if kind in ("DataSourceV2Relation", "StreamingRelationV2"):
            return bool(node.table().name() == "weft")
        if kind != "LogicalRelation" or not self._is_a(node.relation(), "execution.datasources.HadoopFsRelation"):
            return False
        return bool(node.relation().options().contains(STREAM_OPTION))

    def _kind(self, node: Any) -> str:
        self._count()
        return str(node.nodeName())

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise OtherRows(f"has a plan of more than {NODES_MAX} nodes, which cannot be checked. Make it smaller")

    @property
    def _rule(self) -> str:
        return _BEFORE if self._start is None else _WITHIN

    def _refused(self, kind: str) -> OtherRows:
        default = "may look at several rows", "Select, filter, explode, or join a table"
        did, instead = _REFUSED.get(kind, default)
        return OtherRows(f"{did} ({kind}). {self._rule}. {instead}")


def _of_the_clock(what: str) -> OtherRows:
    return OtherRows(
        f"uses {what}, which is another one in each run. A window would depend on when it is computed. "
        "Compare with it where the windows are read"
    )


def _of_chance(name: str, instead: str) -> OtherRows:
    return OtherRows(
        f"uses `{name}`, whose value differs each time. Windows are computed again when records come, to the same "
        f"values. {instead}"
    )


def _of_order(what: str, kind: str) -> OtherRows:
    return OtherRows(
        f"{what}, which depends on the order of the rows, and that is another one in each run. {_IN_ANY_ORDER[kind]}"
    )


def _is_source(node: Any) -> bool:
    return node.nodeName() == "SubqueryAlias" and node.identifier().name() == _SOURCE


def _below(node: Any, column: Any) -> Any | None:
    """Return the child of a node that hands a column on; None if the node makes it."""
    return next((each for each in _listed(node.children()) if each.outputSet().contains(column)), None)


def _made(node: Any, kind: str, column: Any) -> Any | None:
    """Return the expression with which a SELECT names a column; None for other nodes."""
    if kind not in ("Project", "Aggregate"):
        return None
    named = _listed(node.projectList() if kind == "Project" else node.aggregateExpressions())
    return next((each for each in named if each.nodeName() == "Alias" and _is_same(each, column)), None)


def _place(columns: Any, column: Any) -> int:
    return next(at for at, each in enumerate(_listed(columns)) if _is_same(each, column))


def _is_same(one: Any, other: Any) -> bool:
    return bool(one.exprId().equals(other.exprId()))


def _listed(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a sequence of Scala."""
    return (sequence.apply(at) for at in range(sequence.size()))
