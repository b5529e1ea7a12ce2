"""Windows as a function: rows in, closed windows out."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from weft.config.functions.windows import Window, Windowing
from weft.config.units import format_duration
from weft.functions import aggregates
from weft.functions.aggregates import Aggregate, Layout, parse_aggregate
from weft.functions.contract import Context, Function, Gap, Out, Path, Row
from weft.functions.expression_code import ExpressionError, InvalidExpression, function
from weft.functions.expressions import Expression, compile_expression
from weft.functions.series import known
from weft.functions.window_plan import (
    ALWAYS,
    CLOCK_SET,
    CLOSED,
    COUNT,
    FIRST,
    GREATEST,
    KEY,
    LAST,
    LATE,
    NEVER,
    NONE,
    SECOND,
    SEEN,
    START,
    Full,
    Group,
    Late,
    Naming,
    Pane,
    Plan,
    Refusal,
    WindowError,
    event_time_reader,
    field_code,
    iso_text,
    text_of,
    whole_second,
)
from weft.functions.window_store import (
    Bounds,
    Closing,
    LocalPanes,
    Panes,
    Schedule,
    Sessions,
    Shape,
    Store,
    WindowGaps,
    new_memory,
)

GROUP_SHARE = 100
"""Divisor of the bound on open windows: one group may have a hundredth, or more where its rows need more."""
GROUP_PANES_MIN = 100
GROUPS_A_TICK = 500
"""Maximum number of groups that one call of ``tick`` checks: about a millisecond."""
RESERVED = ("window_start", "window_end", "count", "late", "complete", "missing")
"""Fields that every result has, ``missing`` only where ``complete`` is false."""


Over = tuple[int, int, bytes, bytes, int, Group, Closing]
"""A closed window with its sort key: end, time of its oldest row, key, then the identity of its group."""


class Closed(NamedTuple):
    """A closed window, with the facts of its group."""

    group: Group
    closing: Closing
    first: int
    """Ingest time of its oldest row."""
    missing: str
    """Gaps that may have its missing rows; empty where there are none."""
    late: int
    """Number of rows of its group that came too late for a window, since the last result of the group."""


class Windows(Function):
    """Base of functions over windows.

    ``State`` has one value for each open window (for hopping windows: for each pane), one for the memory of each group
    of event-time or hopping windows, one for gaps, and one for each 64 kept rows. ``keys_max``, ``windows_max``,
    ``rows_max`` and ``memory`` bound them.
    """

    windows_a_tick = 128
    """Maximum number of windows that one call of ``tick`` closes: one to two milliseconds."""

    def __init__(
        self,
        settings: Windowing,
        context: Context,
        plan: Plan,
        new: Callable[[int, int], list[Any]],
        merge: Callable[[list[Any], list[Any]], None],
    ) -> None:
        """Start without rows.

        Args:
            settings: settings of the windows.
            context: facts about the stream.
            plan: times of the windows.
            new: function that creates the numbers of a window from ingest time and time of its first row.
            merge: function that adds the numbers of another window.
        """
        self.plan = plan
        self.levels = context.levels
        self.naming = Naming(settings.by, context.level_names, context.stream)
        share = max(GROUP_PANES_MIN, settings.windows_max // GROUP_SHARE, plan.open_at_once)
        self.store = Store(Bounds(settings.keys_max, settings.windows_max, share, settings.memory_bytes), new, merge)
        self.state = self.store.state
        self.shape = self._shaped()
        self._drops_late = settings.late_rows == "drop"
        self._missing = WindowGaps(self.state, plan.lateness if plan.by_event else None)
        self._schedule = Schedule(self._due)
        self._queue: list[Over] = []
        """Windows that close at the present tick, in reverse order of their emission."""
        self._waiting: deque[Group] = deque()
        """Groups whose tick has come, and that are not checked yet."""
        self._found: list[Over] = []
        """Closed windows, not sorted yet."""
        self._tick = 0
        self._early: list[Row] = []
        """Results of windows that had to close before their tick."""
        self.cause: Row | None = None
        """Row that closes these windows."""
        self._restored = False
        self._run: Callable[[Windows, list[Row], Out], None]
        self._arguments: list[Expression] = []

    def results(self, closed: Closed) -> list[Row]:
        """Return the rows for a closed window. Its panes are deleted after the call."""
        raise NotImplementedError

    def _shaped(self) -> Shape:
        plan = self.plan
        if plan.grid is not None:
            return LocalPanes(plan, self.store, plan.grid)
        return Sessions(plan, self.store) if plan.gap else Panes(plan, self.store)

    # --- contract

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Count rows in their windows."""
        self._restore()
        if self._missing.is_open:
            self._missing.see(rows)
        self._run(self, rows, out)
        if not self._early:
            return []
        early, self._early = self._early, []
        return early

    def tick(self, time: int, out: Out) -> list[Row]:  # noqa: ARG002
        """Close windows whose end has passed. A call checks a limited number of groups, or closes a limited number of
        windows; the rest follows in further calls."""
        self._restore()
        if not self._queue and not self._waiting:
            self._waiting.extend(self._schedule.take(time))
            # After a crash in between, a start finds the remaining ones at the same tick.
            self._tick = time // SECOND * SECOND
        if self._waiting:
            self._gather(time)
        rows: list[Row] = []
        for _ in range(min(len(self._queue), self.windows_a_tick)):
            *_, group, closing = self._queue.pop()
            rows += self._close(group, closing)
            group.closing -= 1
            if not group.closing:
                self._after(group)
        if not self._queue and not self._waiting:
            self._forget_gaps(time)
        return rows

    def gap(self, gap: Gap, out: Out) -> None:  # noqa: ARG002
        """Note that windows around the gap are incomplete."""
        self._restore()
        self._missing.add(gap)

    def due(self) -> int | None:
        """Return the tick at which the first window closes."""
        self._restore()
        return self._tick if self._queue or self._waiting else self._schedule.first()

    def oldest(self) -> int | None:
        """Return the time of the oldest row in an open window."""
        self._restore()
        return self.store.oldest()

    # --- rows, for the loop

    def group(self, row: Row, values: tuple[Any, ...]) -> Group:
        """Return the group of a row, and create it if there is none.

        Raises:
            Refusal: there are too many groups.
        """
        gid = self.naming.gid(row, values)
        found = self.store.groups.get(gid)
        if found is not None:
            return found
        has_memory = self.plan.by_event or self.plan.is_hopping
        group = self.naming.group(gid, new_memory(row.time) if has_memory else None)
        self.store.add(group)
        return group

    def place(self, group: Group, t: int, row: Row) -> Pane:
        """Return the window of a row, and open it if there is none.

        Raises:
            Refusal: it came too late, or there are too many windows.
        """
        self.cause = row
        memory = group.memory
        limit = NEVER if memory is None or not self.plan.by_event else memory[GREATEST] - self.plan.lateness
        is_passed = self.shape.is_passed(t, limit)
        if is_passed:
            # A window closes at the event that is `lateness` later, not at the tick that emits it: whether a row is
            # late must not depend on the node's speed. A window that no row opened is closed by then as well: otherwise
            # each row of a device that sends newest first would get a window of its own.
            self._close_early(group)
        try:
            if is_passed:
                self.shape.pass_by(group, t, limit)
            return self.shape.place(group, t, row.time)
        except Full:
            if not self._close_early(group):
                raise
            return self.shape.place(group, t, row.time)
        finally:
            self.cause = None
            if is_passed:
                group.turn_away()  # The next such row must look up its window as well.
            self._after(group)

    def look_at(self, group: Group) -> None:
        """Schedule the closing of a group's windows that events have passed, at the next tick."""
        if group.panes:
            self._after(group)

    def refuse(self, row: Row, error: Exception, out: Out) -> None:
        """Send a row that cannot be counted to the errors, with a reason."""
        if isinstance(error, Late) and self._drops_late:
            out.drop(row, str(error))
            return
        out.reject(row, str(error) if isinstance(error, Refusal) else self._reason(row, error))

    def _reason(self, row: Row, failure: Exception) -> str:
        levels = self.levels(row.key)
        for argument in self._arguments:
            try:
                argument.evaluate(row, levels)
            except ExpressionError as error:
                return error.reason
        if isinstance(failure, KeyError):
            return f"field {failure.args[0]} is missing"
        return f"the fields of the group or of the time cannot be read: {failure}"

    # --- ticks

    def _due(self, group: Group) -> int:
        """Return the tick at which a group has work."""
        if not self.plan.by_event:
            return whole_second(self.shape.next_end(group))
        memory = group.memory
        assert memory is not None
        if not group.panes:
            return whole_second(memory[SEEN] + self.plan.remember)
        if memory[GREATEST] - self.plan.lateness >= self.shape.next_end(group):
            return whole_second(memory[SEEN])
        return whole_second(memory[SEEN] + self.plan.idle)

    def _after(self, group: Group) -> None:
        """Enter a group in the schedule after its windows changed."""
        if group.panes:
            group.next = self.shape.next_end(group)
        elif self.plan.by_event:
            group.next = ALWAYS
        else:
            # No row of an earlier ingest time can come, so there is nothing to remember.
            self.store.remove(group)
            return
        self._schedule.enter(group, self._due(group))

    def _gather(self, time: int) -> None:
        """Check groups whose tick has come. When all are checked, queue the closed windows: by end, then by the time of
        their first row, then by key."""
        found, waiting = self._found, self._waiting
        for _ in range(min(len(waiting), GROUPS_A_TICK)):
            group = waiting.popleft()
            closings = self.shape.over(group, self._limit(group, time)) if group.panes else []
            group.closing = len(closings)
            for each in closings:
                found.append((each.end, first_of(each), group.key, group.gid, each.start, group, each))
            if not closings:
                memory = group.memory
                if memory is not None and not group.panes and memory[SEEN] + self.plan.remember <= time:
                    self.store.remove(group)
                else:
                    self._after(group)
        if waiting:
            return
        # A group has one window for an end and a start, so groups themselves are never compared.
        found.sort(reverse=True)
        self._queue, self._found = found, []

    def _limit(self, group: Group, time: int) -> int:
        """Return the end of the last window of a group that has passed at a tick."""
        memory = group.memory
        if not self.plan.by_event or memory is None:
            return time
        return ALWAYS if memory[SEEN] + self.plan.idle <= time else memory[GREATEST] - self.plan.lateness

    def _close(self, group: Group, closing: Closing) -> list[Row]:
        first = first_of(closing)
        late = 0
        if group.memory is not None:
            late, group.memory[LATE] = group.memory[LATE], 0
        missing = self._missing.text(first, closing.start, closing.end)
        rows = self.results(Closed(group, closing, first, missing, late))
        self.shape.close(group, closing)
        return rows

    def _close_early(self, group: Group) -> bool:
        """Close windows of a group that events have passed, before the tick: a late row must not be counted in them,
        and a device that sends a month of stored data would have too many open at once. Return whether there were
        any."""
        memory = group.memory
        if memory is None or not self.plan.by_event or not group.panes:
            return False
        closings = self.shape.over(group, memory[GREATEST] - self.plan.lateness)
        for closing in closings:
            self._early += self._close(group, closing)
        return bool(closings)

    def _forget_gaps(self, time: int) -> None:
        plan = self.plan
        if plan.by_event:
            # The first row of a key opens a window of any age, which may lack rows of any gap before it. `Missing`
            # merges the oldest gaps, so that their number stays bounded.
            return
        before = time - plan.span - plan.lateness - plan.idle
        oldest = self.store.oldest()
        self._missing.forget(before if oldest is None else min(before, oldest))

    def _restore(self) -> None:
        """Restore the state of an earlier run, before any other work."""
        if self._restored:
            return
        self._restored = True
        self.store.restore(self.naming.group, is_session=self.plan.gap > 0)
        self._missing.restore()
        for group in list(self.store.groups.values()):
            self._after(group)

    # --- results

    def frame(self, closed: Closed) -> dict[str, Any]:
        """Return the fields of a result that identify its window."""
        closing, digits = closed.closing, self.plan.digits
        return {
            **closed.group.fields,
            "window_start": iso_text(closing.start, digits),
            "window_end": iso_text(closing.end, digits),
        }


def first_of(closing: Closing) -> int:
    """Return the ingest time of the oldest row of a window."""
    if len(closing.panes) == 1:
        only: int = closing.panes[0].numbers[FIRST]
        return only
    first: int = min(pane.numbers[FIRST] for pane in closing.panes)
    return first


# Loop over the rows of a batch: the hot path of windows, generated once from the settings.
#
# The parts are templates of this package, around expressions that were checked and compiled before. A row costs one
# pass through this code: arguments, group, window, numbers. Nothing changes before the last step that can fail.

_HEAD = """
def run(w_fn, rows, w_out):
    w_store = w_fn.store
    w_groups = w_store.groups
    w_names = w_store.by_name
    w_touch = w_store.state.touch
    w_levels_of = w_fn.levels
    for row in rows:
        try:
"""
_TAIL = """
        except Failure as w_error:
            w_fn.refuse(row, w_error, w_out)
            continue
"""


class Lines:
    """Lines of a function, and the expressions in them."""

    def __init__(self) -> None:
        self.expressions: dict[str, ast.expr] = {}
        self.lines: list[str] = []

    def value(self, code: ast.expr) -> str:
        """Return a placeholder for an expression."""
        name = f"W_{len(self.expressions)}"
        self.expressions[name] = code
        return name

    def add(self, *lines: str) -> None:
        """Append lines."""
        self.lines += lines


def make_loop(
    plan: Plan,
    naming: Naming,
    *,
    arguments: Sequence[tuple[str, Expression, bool]],
    levels: Collection[str],
    event: tuple[ast.expr, Callable[[Any], int]] | None,
    before: Sequence[str],
    update: Sequence[str],
    names: Mapping[str, Any],
) -> Callable[..., None]:
    """Return the function that counts rows: (windows, rows, out).

    Args:
        plan: times of the windows.
        naming: names of the groups.
        arguments: name in the code, expression, and whether it is a number, for each argument.
        levels: levels of the topic that the arguments read.
        event: code of the event's time, and its reader; None for ingest time.
        before: lines that may still refuse the row, when its window ``p`` is known.
        update: lines that count the row in the numbers ``a`` of its window.
        names: names that these lines use.
    """
    body = Lines()
    body.add("v = row.values")
    if levels or naming.levels:
        body.add("levels = w_levels_of(row.key)")
    for name, expression, is_number in arguments:
        body.add(f"{name} = {body.value(expression.code)}")
        if is_number:
            limit = aggregates.FLOAT_MAX
            body.add(
                f"if w_type({name}) is not w_float or not -{limit} <= {name} <= {limit}:",
                f"    {name} = w_number({name}, {expression.text!r})",
            )
        else:
            body.add(f"{name} = w_scalar({name}, {expression.text!r})")
    body.add("w_time = row.time")
    if event is None:
        body.add("w_t = w_time")
    else:
        body.add(
            f"w_t = w_event({body.value(event[0])})",
            f"if w_t > w_time + {plan.ahead} and w_time >= {CLOCK_SET}: w_ahead(w_t, w_time)",
        )
    _add_group(body, naming)
    if plan.by_event:
        # Even a row that is refused below shows that its group is not silent.
        body.add("m = g.memory", f"if w_time > m[{SEEN}]: m[{SEEN}] = w_time", "w_touch(g.memory_key)")
    _add_window(body, plan)
    body.add(*before)
    source = _HEAD + _indented(12, body.lines) + _TAIL + _indented(8, _counted(plan, update))
    return function(
        source,
        body.expressions,
        w_type=type,
        w_str=str,
        w_text=text_of,
        w_event=event[1] if event else None,
        w_ahead=_refuse_ahead(plan.ahead),
        **names,
    )


def _add_group(body: Lines, naming: Naming) -> None:
    if naming.is_key:
        body.add("g = w_groups.get(row.key)")
        parts: list[str] = []
    elif not naming.by:
        body.add("g = w_groups.get(b'')")
        parts = []
    else:
        parts = [f"w_by{at}" for at in range(len(naming.by))]
        body.add(*(f"{part} = {body.value(code)}" for part, code in zip(parts, naming.code, strict=True)))
        is_text = " and ".join(f"w_type({part}) is w_str" for part in parts)
        name = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
        body.add(f"g = w_names.get({name}) if {is_text} else None")
    given = "".join(f"{part}, " for part in parts)
    body.add("if g is None:", f"    g = w_fn.group(row, ({given}))")


def _add_window(body: Lines, plan: Plan) -> None:
    body.add("p = g.pane")
    place = "p = w_fn.place(g, w_t, row)"
    if not plan.gap:
        body.add(f"if not g.start <= w_t < g.end: {place}", "a = p.numbers")
        return
    fits = f"a[{START}] <= w_t < a[{LAST}] + {plan.gap} and w_t - a[{START}] < {plan.longest}"
    if plan.by_event:
        fits += f" and w_t >= m[{CLOSED}]"
    body.add(
        "if p is None:",
        f"    {place}",
        "    a = p.numbers",
        "else:",
        "    a = p.numbers",
        f"    if not ({fits}):",
        f"        {place}",
        "        a = p.numbers",
        # Even a row that is refused below ends a silence.
        f"    elif w_t > a[{LAST}]: a[{LAST}] = w_t",
    )


def _counted(plan: Plan, update: Sequence[str]) -> list[str]:
    lines = [f"if w_time < a[{FIRST}]: w_store.lower(p, w_time)"]
    lines += [*update, "w_touch(p.key)"]
    if plan.by_event:
        lines += [
            f"if w_t > m[{GREATEST}]:",
            f"    m[{GREATEST}] = w_t",
            f"    if w_t - {plan.lateness} >= g.next: w_fn.look_at(g)",
        ]
    return lines


def _indented(by: int, lines: Sequence[str]) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in lines)


def _refuse_ahead(ahead: int) -> Callable[[int, int], None]:
    def refuse(t: int, time: int) -> None:
        raise Refusal(
            f"its time {iso_text(t, 6)} is more than {format_duration(ahead / SECOND)} (`ahead`) later than the "
            f"node's clock at receipt, {iso_text(time, 6)}; check the clock of the device"
        )

    return refuse


# The function ``window``: aggregates of the rows of each window.


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
            event=None
            if settings.time is None
            else (field_code(settings.time), event_time_reader(settings.time, settings.time_unit, settings.time_zone)),
            before=before,
            update=update,
            names=layout.namespace(),
        )

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
        kept = (
            []
            if self._over is None
            else sorted((item for pane in panes for item in self.store.kept(pane)), key=lambda item: item[0])
        )
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


def _check_names(settings: Window, aggregates: list[Aggregate]) -> None:
    taken = {*RESERVED, *settings.by}
    for aggregate in aggregates:
        for field in aggregate.fields:
            if field in taken:
                why = "every result has such a field" if field in RESERVED else "something else has this name"
                raise WindowError(f"emit: {field}: {why}; choose another name")
            taken.add(field)
