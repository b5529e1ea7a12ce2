"""The function ``window``: aggregates of the rows of each window."""

from __future__ import annotations

from typing import Any

from weft.config.functions.windows import Window
from weft.edge_node.functions.contract import Context, Path, Row
from weft.edge_node.functions.expressions import InvalidExpression, compile_expression
from weft.edge_node.functions.series.sources import UNKNOWN, known
from weft.edge_node.functions.windows.aggregates import Aggregate, parse_aggregate
from weft.edge_node.functions.windows.groups import COUNT, Pane
from weft.edge_node.functions.windows.loop import make_loop
from weft.edge_node.functions.windows.naming import KEY, NONE, field_code
from weft.edge_node.functions.windows.numbers import Layout
from weft.edge_node.functions.windows.plan import Plan, WindowError
from weft.edge_node.functions.windows.refusal import Refusal
from weft.edge_node.functions.windows.times import event_time_reader
from weft.edge_node.functions.windows.windows import RESERVED, Closed, Windows


class WindowFunction(Windows):
    """One row for each window and group, with aggregates of its rows.

    A window's value in ``State`` is a list of its numbers: two, and one to three for each aggregate and argument. A
    quantile adds up to 2,048 bins of five bytes, and ``lttb`` keeps a time and a number of each row.
    """

    makes_values = True

    def __init__(self, settings: Window, context: Context) -> None:
        """Compile the aggregates.

        Raises:
            WindowError: settings contradict each other, or an aggregate is not valid.
        """
        plan = Plan.of(settings)
        aggregates = [parse_aggregate(name, text) for name, text in settings.emit.items()]
        _check_names(settings, aggregates)
        layout = Layout(aggregates, is_session=plan.gap > 0, accuracy=settings.accuracy)
        new, self._merge, self._result = layout.functions()
        super().__init__(settings, context, plan, new, self._merge)
        self._new = new
        self._rows_max = settings.rows_max
        self._over, self._sources = layout.over, layout.sources
        self.store.pad = self._pad
        arguments = []
        levels: set[str] = set()
        for (text, is_number), argument in layout.arguments.items():
            try:
                expression = compile_expression(text, context.level_names, nulls=context.nulls)
            except InvalidExpression as error:
                raise WindowError(f"emit: {text}: {error}") from None
            arguments.append((argument.name, expression, is_number))
            levels |= expression.levels
            self._arguments.append(expression)
        own = {name for name in settings.by if name not in context.level_names} | {settings.time or ""}
        self._reads = frozenset(
            {tuple(name.split(".")) for name in own - {KEY, NONE, ""}}.union(*(each.paths for each in self._arguments))
        )
        update = layout.update()
        before: list[str] = []
        if layout.kept is not None:
            # Choosing points takes some 80 ns for each row of a window.
            self.windows_a_tick = 2
            before.append(f"if a[{layout.kept}] >= {settings.rows_max} or w_store.is_full: w_fn.refuse_more(p)")
            points = ", ".join(argument.name for argument in layout.points)
            update += [f"a[{layout.kept}] += 1", f"w_store.keep(p, [w_t, {points}])"]
        self._run = make_loop(
            plan,
            self.naming,
            arguments=arguments,
            levels=levels,
            event=None if settings.time is None else (
                field_code(settings.time), event_time_reader(settings.time, settings.time_unit, settings.time_zone)
            ),
            before=before,
            update=update,
            names=layout.namespace(),
        )  # fmt: skip

    def reads(self) -> frozenset[Path]:
        """Return the fields of aggregates, groups and the time."""
        return self._reads

    def refuse_more(self, pane: Pane) -> None:
        """Count and refuse a row beyond the bound of kept rows.

        Raises:
            Refusal: always.
        """
        assert self._over is not None
        pane.numbers[self._over] += 1
        self.store.state.touch(pane.key)
        if self.store.is_full:
            raise Refusal(self.store.why_full())
        raise Refusal(f"its window has {self._rows_max:,} rows already (rows_max)")

    def results(self, closed: Closed) -> list[Row]:
        """Return the row of a window."""
        group, closing, first, missing, late = closed
        panes = closing.panes
        if len(panes) == 1:
            numbers = panes[0].numbers
        else:
            numbers = self._new(first, closing.start)
            for pane in panes:
                self._merge(numbers, pane.numbers)
        values: dict[str, Any] = self.frame(closed)
        kept = [] if self._over is None else sorted(
            (item for pane in panes for item in self.store.kept(pane)), key=lambda item: item[0]
        )  # fmt: skip
        self._result(numbers, values, kept)
        over = 0 if self._over is None else numbers[self._over]
        if over:
            missing = f"{missing}; " * bool(missing) + f"{over} rows beyond rows_max or memory"
        values["count"] = numbers[COUNT]
        values["late"] = late
        values["complete"] = not missing
        if missing:
            values["missing"] = missing
        return [Row(first, group.key, None, values, source=known(numbers[self._sources]))]

    def _pad(self, numbers: list[Any]) -> None:
        if len(numbers) == self._sources:
            numbers.append([UNKNOWN])


def _check_names(settings: Window, aggregates: list[Aggregate]) -> None:
    taken = {*RESERVED, *settings.by}
    for aggregate in aggregates:
        for field in aggregate.fields:
            if field in taken:
                why = "every result has such a field" if field in RESERVED else "something else has this name"
                raise WindowError(f"emit: {field}: {why}; choose another name")
            taken.add(field)
