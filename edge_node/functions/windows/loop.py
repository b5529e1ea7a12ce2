"""Loop over the rows of a batch: the hot path of windows, generated once from the settings.

The parts are templates of this package, around expressions that were checked and compiled before. A row costs one pass
through this code: arguments, group, window, numbers. Nothing changes before the last step that can fail.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from weft.config.units import format_duration
from weft.edge_node.functions.expressions import Expression
from weft.edge_node.functions.expressions.generate import function
from weft.edge_node.functions.windows import values
from weft.edge_node.functions.windows.groups import CLOSED, FIRST, GREATEST, LAST, SEEN, START
from weft.edge_node.functions.windows.naming import Naming, text_of
from weft.edge_node.functions.windows.plan import Plan
from weft.edge_node.functions.windows.refusal import Refusal
from weft.edge_node.functions.windows.times import CLOCK_SET, SECOND, iso_text

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
            limit = values.FLOAT_MAX
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
            f"its time {iso_text(t, 6)} is more than ahead ({format_duration(ahead / SECOND)}) after it was taken in, "
            f"at {iso_text(time, 6)}; check the clock of the device"
        )

    return refuse
