"""Numbers of a window and the code that updates them: one function for all aggregates, generated once.

A window's numbers are one plain list, which ``State`` can hold: for ten thousand open windows, a list of numbers costs
least. This module assigns the indexes in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from weft.edge_node.functions.series import sources
from weft.edge_node.functions.windows import sketch, values
from weft.edge_node.functions.windows.aggregates import ENVELOPE, SCALAR, Aggregate
from weft.edge_node.functions.windows.groups import ALWAYS, COUNT, FIRST, LAST, NEVER, START
from weft.edge_node.functions.windows.lttb import lttb
from weft.edge_node.functions.windows.times import SECOND

Numbers = list[Any]
_INFINITE = "w_infinite"
SOURCE_NAMES = {"w_note": sources.note, "w_join": sources.join, "w_len": len}
"""Names in the lines of sources."""


def source_lines(at: int) -> list[str]:
    """Return the lines that add the record of a row to a list at an index of the numbers."""
    return [  # Inline for rows of one input in order: nearly all of them.
        f"w_s = a[{at}]",
        "if w_len(w_s) == 4 and row.seq > w_s[2] and w_s[0] == row.input:",
        "    w_s[2] = row.seq",
        "    w_s[3] += 1",
        "else:",
        "    w_note(w_s, row)",
    ]


class Argument(NamedTuple):
    """Expression with aggregates."""

    text: str
    name: str
    """Name of its value in the code."""
    is_number: bool
    nulls: int
    """Index of the number of rows in which it is null."""


class Layout:
    """Indexes of the numbers of some aggregates, and the code for them."""

    def __init__(self, aggregates: Iterable[Aggregate], *, is_session: bool, accuracy: float) -> None:
        self.new: list[str] = ["w_first", "0", *(["w_start", "w_start"] if is_session else [])]
        """Code of each number of a new window."""
        self.arguments: dict[tuple[str, bool], Argument] = {}
        self.points: list[Argument] = []
        """Arguments whose values are kept for each row."""
        self._update: dict[Argument, list[str]] = {}
        self._merge: list[str] = [
            f"if b[{FIRST}] < a[{FIRST}]: a[{FIRST}] = b[{FIRST}]",
            *([f"if b[{START}] < a[{START}]: a[{START}] = b[{START}]",
               f"if b[{LAST}] > a[{LAST}]: a[{LAST}] = b[{LAST}]"] if is_session else []),
        ]  # fmt: skip
        self._result: list[str] = []
        self._known: dict[tuple[str, Argument], int] = {}
        self._sketches = sketch.Sketches(accuracy)
        found = list(aggregates)
        self.kept = self._place("0") if any(each.function == "lttb" for each in found) else None
        """Index of the number of kept rows; None where none are kept."""
        self.over = self._place("0") if self.kept is not None else None
        """Index of the number of rows beyond the kept ones."""
        for place in (self.kept, self.over):
            if place is not None:
                self._merge.append(f"a[{place}] += b[{place}]")
        self._quantiles = {
            argument: tuple(
                sorted({each.number for each in found if (each.function, each.argument) == ("quantile", argument)})
            )
            for argument in {each.argument for each in found}
        }
        for aggregate in found:
            self._add(aggregate)
        self.sources = self._place("[]")
        """Index of the rows' source records: behind all others, as windows of earlier releases lack it."""
        self._merge.append(f"w_join(a[{self.sources}], b[{self.sources}])")
        # Deviations are merged by the counts from before: the counts come last.
        self._merge += [f"a[{each.nulls}] += b[{each.nulls}]" for each in self.arguments.values()]
        self._merge.append(f"a[{COUNT}] += b[{COUNT}]")

    # --- code

    def update(self) -> list[str]:
        """Return the lines that count a row. ``a`` are the numbers, ``w_t`` is its time in the window."""
        lines = [f"a[{COUNT}] += 1"]
        for argument, updates in self._update.items():
            lines.append(f"if {argument.name} is None: a[{argument.nulls}] += 1")
            if updates:
                lines += ["else:", *(f"    {each}" for each in updates)]
        return lines + source_lines(self.sources)

    def functions(
        self,
    ) -> tuple[Callable[[int, int], Numbers], Callable[[Numbers, Numbers], None], Callable[..., None]]:
        """Return three functions: one that creates the numbers of a new window (ingest time and time of its first row),
        one that adds the numbers of another window, and one that writes results into a mapping (numbers, mapping, kept
        rows)."""
        namespace = self.namespace()
        source = [
            f"def new(w_first, w_start): return [{', '.join(self.new)}]",
            "def merge(a, b):",
            *(f"    {line}" for line in self._merge),
            "def result(a, w_into, w_kept):",
            *(f"    {line}" for line in self._result or ["pass"]),
        ]
        exec(compile("\n".join(source), "<window>", "exec"), namespace)  # noqa: S102 - code of ours, without users' text
        return namespace["new"], namespace["merge"], namespace["result"]

    def namespace(self) -> dict[str, Any]:
        """Return the names in the code."""
        return {
            "w_infinite": float("inf"),
            "w_float": float,
            "w_number": values.number,
            "w_scalar": values.scalar,
            "w_finite": values.finite,
            "w_deviation": values.deviation,
            "w_merge_deviation": values.merge_deviation,
            "w_add": self._sketches.adder(),
            "w_merge_sketch": sketch.merge,
            "w_quantile": self._sketches.quantiles,
            "w_downsample": downsample,
            **SOURCE_NAMES,
        }

    # --- aggregates

    def _add(self, aggregate: Aggregate) -> None:
        function, name = aggregate.function, aggregate.name
        if not aggregate.argument:
            self._result.append(f"w_into[{name!r}] = a[{COUNT}]")
            return
        argument = self._argument(aggregate.argument, is_number=function not in SCALAR)
        count = f"(a[{COUNT}] - a[{argument.nulls}])"
        match function:
            case "count":
                self._result.append(f"w_into[{name!r}] = {count}")
            case "sum":
                at = self._sum(argument)
                self._result.append(f"w_into[{name!r}] = w_finite(a[{at}]) if {count} else None")
            case "mean":
                at = self._sum(argument)
                self._result.append(f"w_into[{name!r}] = w_finite(a[{at}] / {count}) if {count} else None")
            case "stddev":
                at = self._deviation(argument)
                self._result.append(f"w_into[{name!r}] = w_deviation({count}, a[{at} + 1])")
            case "quantile":
                at = self._sketch(argument)
                wanted = self._quantiles[aggregate.argument]
                line = f"w_q{at} = w_quantile(a[{at}], {wanted!r})"
                if line not in self._result:
                    self._result.append(line)
                self._result.append(f"w_into[{name!r}] = w_q{at}[{wanted.index(aggregate.number)}]")
            case "lttb":
                if argument not in self.points:
                    self.points.append(argument)
                at = self.points.index(argument) + 1
                self._result.append(f"w_into[{name!r}] = w_downsample(w_kept, {at}, {int(aggregate.number)})")
            case "envelope":
                for part in ENVELOPE:
                    self._simple(part, argument, f"{name}_{part}")
            case _:
                self._simple(function, argument, name)

    def _simple(self, function: str, argument: Argument, name: str) -> None:
        at = self._extreme(function, argument) if function in ("min", "max") else self._end(function, argument) + 1
        self._result.append(f"w_into[{name!r}] = a[{at}] if a[{COUNT}] - a[{argument.nulls}] else None")

    def _argument(self, text: str, *, is_number: bool) -> Argument:
        argument = self.arguments.get((text, is_number))
        if argument is None:
            argument = Argument(text, f"w_x{len(self.arguments)}", is_number, self._place("0"))
            self.arguments[text, is_number] = argument
            self._update[argument] = []
        return argument

    def _place(self, initial: str) -> int:
        self.new.append(initial)
        return len(self.new) - 1

    def _places(self, what: str, argument: Argument, *initial: str) -> tuple[int, bool]:
        """Return the first index for a purpose, and whether it is new. Aggregates of one argument share indexes."""
        at = self._known.get((what, argument))
        if at is not None:
            return at, False
        at = self._known[what, argument] = len(self.new)
        self.new += initial
        return at, True

    def _sum(self, argument: Argument) -> int:
        at, is_new = self._places("sum", argument, "0")
        if is_new:
            self._update[argument] += [f"a[{at}] = w_s = a[{at}] + {argument.name}", *_bounded(at, "w_s")]
            self._merge += [f"a[{at}] = w_s = a[{at}] + b[{at}]", *_bounded(at, "w_s")]
        return at

    def _extreme(self, function: str, argument: Argument) -> int:
        sign, initial = ("<", _INFINITE) if function == "min" else (">", f"-{_INFINITE}")
        at, is_new = self._places(function, argument, initial)
        if is_new:
            self._update[argument].append(f"if {argument.name} {sign} a[{at}]: a[{at}] = {argument.name}")
            self._merge.append(f"if b[{at}] {sign} a[{at}]: a[{at}] = b[{at}]")
        return at

    def _end(self, function: str, argument: Argument) -> int:
        """Return the index of the time of the first or last value; the value is at the next index."""
        # For two rows of equal time, their order of arrival decides which is the first and which the last.
        sign, initial = ("<", ALWAYS) if function == "first" else (">=", NEVER)
        at, is_new = self._places(function, argument, str(initial), "None")
        if is_new:
            self._update[argument].append(f"if w_t {sign} a[{at}]: a[{at}] = w_t; a[{at + 1}] = {argument.name}")
            self._merge.append(f"if b[{at}] {sign} a[{at}]: a[{at}] = b[{at}]; a[{at + 1}] = b[{at + 1}]")
        return at

    def _deviation(self, argument: Argument) -> int:
        at, is_new = self._places("deviation", argument, "0.0", "0.0")
        if is_new:
            self._update[argument] += [  # Welford 1962: no difference of large sums
                f"w_d = {argument.name} - a[{at}]",
                f"a[{at}] += w_d / (a[{COUNT}] - a[{argument.nulls}])",
                f"a[{at + 1}] += w_d * ({argument.name} - a[{at}])",
            ]
            count, other = (f"{each}[{COUNT}] - {each}[{argument.nulls}]" for each in "ab")
            self._merge.append(f"w_merge_deviation(a, b, {at}, {count}, {other})")
        return at

    def _sketch(self, argument: Argument) -> int:
        at, is_new = self._places("sketch", argument, "{}")
        if is_new:
            self._update[argument].append(f"w_add(a[{at}], {argument.name})")
            self._merge.append(f"w_merge_sketch(a[{at}], b[{at}])")
        return at


def _bounded(at: int, name: str) -> list[str]:
    # Integers are added without rounding, as long as the state can hold them.
    limit = values.SUM_MAX
    return [f"if not -{limit} <= {name} <= {limit}: a[{at}] = w_float({name})"]


def downsample(kept: list[list[Any]], at: int, points: int) -> list[list[float]]:
    """Return some points as pairs of time (seconds since 1970) and value, in order of time.

    Args:
        kept: time in ns and values of each row.
        at: index of the value in a row.
        points: maximum number of points to return.
    """
    found = [(row[0], row[at]) for row in kept if row[at] is not None]
    times, values = [time for time, _ in found], [value for _, value in found]
    return [[times[place] / SECOND, values[place]] for place in lttb(times, values, points)]
