"""Numbers of a window and the code that updates them: one function for all aggregates, generated once.

A window's numbers are one plain list, which ``State`` can hold: for ten thousand open windows, a list of numbers costs
least. This module assigns the indexes in it.
"""

from __future__ import annotations

import ast
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from ddsketch.mapping import LogarithmicMapping

from weft.functions import series
from weft.functions.window_plan import ALWAYS, COUNT, FIRST, LAST, NEVER, SECOND, START, Refusal, WindowError

# Values that aggregates accept, and their results.

FLOAT_MAX = 1.7976931348623157e308
INTEGER_MIN = -(1 << 63)
INTEGER_MAX = (1 << 64) - 1
"""Largest integer in ``State``; larger ones become floats."""
SUM_MAX = 9.2e18
"""Largest sum that is kept as an integer: the range of MessagePack, slightly reduced because of the precision of
floats."""
TEXT_BYTES_MAX = 1024
"""Longest text that ``first`` and ``last`` remember, in bytes of UTF-8."""


def number(value: Any, text: str) -> float | None:
    """Return a value as a number for aggregates; None where it is null.

    Args:
        value: result of an expression.
        text: the expression.

    Raises:
        Refusal: it is not a number.
    """
    if value is None:
        return None
    if type(value) is bool:
        return int(value)
    if type(value) is int:
        return value if INTEGER_MIN <= value <= INTEGER_MAX else _as_float(value, text)
    if type(value) is not float:
        raise Refusal(f"{text} is {_kind(value)}; aggregates such as sum and max need numbers")
    if not math.isfinite(value):
        raise Refusal(f"{text} is {value}; aggregates need finite numbers")
    return value


def _as_float(value: int, text: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Refusal(f"{text} is an integer of {value.bit_length()} bits; aggregates accept up to 1024") from None


def scalar(value: Any, text: str) -> Any:
    """Return a value that ``first`` and ``last`` can remember.

    Raises:
        Refusal: it is a list, a mapping or a long text.
    """
    if value is None or type(value) is bool:
        return value
    if type(value) is int or type(value) is float:
        return number(value, text)
    if type(value) is str:
        if len(value.encode(errors="replace")) <= TEXT_BYTES_MAX:
            return value
        raise Refusal(f"{text} is a text of more than {TEXT_BYTES_MAX} bytes; first and last need shorter ones")
    raise Refusal(f"{text} is {_kind(value)}; first, last and count need numbers, text, true or false")


def finite(value: float | None) -> float | None:
    """Return a result, or None where it is too large for a number."""
    return value if value is not None and math.isfinite(value) else None


def deviation(count: int, squares: float) -> float | None:
    """Return the standard deviation of a sample; None where there are fewer than two values."""
    if count < 2:
        return None
    return finite(math.sqrt(squares / (count - 1))) if squares >= 0 else None


def merge_deviation(numbers: list[Any], other: list[Any], at: int, count: int, other_count: int) -> None:
    """Add mean and sum of squares of other values to those at a place (Chan, Golub and LeVeque 1979)."""
    if not other_count:
        return
    if not count:
        numbers[at], numbers[at + 1] = other[at], other[at + 1]
        return
    total = count + other_count
    difference = other[at] - numbers[at]
    numbers[at] += difference * other_count / total
    numbers[at + 1] += other[at + 1] + difference * difference * count * other_count / total


_KINDS = ((str, "text"), (bytes, "bytes"), (dict, "a mapping"), (list, "a list"))


def _kind(value: Any) -> str:
    return next((words for type_, words in _KINDS if isinstance(value, type_)), type(value).__name__)


# Largest Triangle Three Buckets: a few points with the shape of all of them.
#
# Sveinn Steinarsson: Downsampling Time Series for Visual Representation (University of Iceland, 2013), section 4.2.
# The plain algorithm may leave out the least or the greatest value when its neighbours make a larger triangle; people
# read a picture without the peak as a signal without one, so here both are always among the points.

POINTS_MIN: Final = 3
"""Minimum number of points: the first, the last, and one between. The extremes are guaranteed from 4 on."""

# A line in doubles is off by at most some 9 roundings of 2**-53 of its larger end.
_ROUNDINGS: Final = 2.0**-49


def lttb(times: Sequence[float], values: Sequence[float], points: int) -> list[int]:
    """Choose points for a picture. Returns their indexes in order of time; all of them when there are few enough.

    Among them are the first and the last, and from 4 points on one with the least and one with the greatest value. The
    same input gives the same points. Points with equal times stay in the order of the input.

    Args:
        times: time of each point, in any unit and order.
        values: finite numbers.
        points: maximum number of points to choose, at least 3.
    """
    order = sorted(range(len(times)), key=times.__getitem__)
    if len(order) <= points:
        return order
    sorted_values = [values[at] for at in order]
    x, y = _scaled([times[at] for at in order]), _scaled(sorted_values)
    # Extremes that the triangles omit replace other points: with two places less there is room for both.
    for fewer in range(3):
        chosen = {0, *_triangles(x, y, max(points - fewer, 2)), len(order) - 1}
        if points > POINTS_MIN:
            chosen |= _left_out(sorted_values, chosen)
        if len(chosen) <= points:
            break
    return [order[at] for at in sorted(chosen)]


def _left_out(values: Sequence[float], chosen: set[int]) -> set[int]:
    """Return the indexes of the least and the greatest value, unless points with these values are chosen."""
    kept = {values[at] for at in chosen}
    return {values.index(each) for each in (min(values), max(values)) if each not in kept}


def error_of(times: Sequence[float], values: Sequence[float], chosen: Sequence[int]) -> float:
    """Return a bound on the error of chosen points: the largest distance of any point from the line through them,
    rounded up.

    Args:
        times: time of each point.
        values: finite numbers.
        chosen: indexes of points, as ``lttb`` returns them.
    """
    order = sorted(range(len(times)), key=times.__getitem__)
    places = {index: at for at, index in enumerate(order)}
    worst = 0.0
    for left, right in itertools.pairwise(chosen):
        for index in order[places[left] + 1 : places[right]]:
            worst = max(worst, _distance(times, values, left, right, index))
    return worst


def _distance(times: Sequence[float], values: Sequence[float], left: int, right: int, index: int) -> float:
    first, last, value = values[left], values[right], values[index]
    duration = times[right] - times[left]
    if duration == 0:  # a step at one moment covers everything between its ends
        low, high = min(first, last), max(first, last)
        found = max(low - value, value - high, 0)
    else:
        part = (times[index] - times[left]) / duration
        found = abs(first * (1 - part) + last * part - value)
    if found == 0 and first == last == value:
        return 0.0
    margin = max(abs(first), abs(last), abs(value)) * _ROUNDINGS
    return math.nextafter(found + margin, math.inf)


def _triangles(x: list[float], y: list[float], points: int) -> list[int]:
    """Return the point of each bucket that makes the largest triangle with the one chosen before and the mean of the
    next bucket."""
    count = len(x)
    buckets = points - 2
    # Buckets of equal length, up to one point, between the first and the last point.
    edges = [1 + (count - 2) * at // buckets for at in range(buckets + 1)] if buckets else [1]
    chosen = []
    before = 0
    for at in range(buckets):
        start, end = edges[at], edges[at + 1]
        following = range(end, edges[at + 2]) if at + 2 <= buckets else range(count - 1, count)
        mean_x = sum(x[each] for each in following) / len(following)
        mean_y = sum(y[each] for each in following) / len(following)
        from_x, from_y = x[before], y[before]
        wide, high = from_x - mean_x, mean_y - from_y
        best, largest = start, -1.0
        for each in range(start, end):
            area = abs(wide * (y[each] - from_y) - (from_x - x[each]) * high)
            if area > largest:
                best, largest = each, area
        chosen.append(best)
        before = best
    return chosen


def _scaled(numbers: list[float]) -> list[float]:
    """Return numbers between 0 and 1: which triangle is the largest stays the same, and no area is infinite."""
    low, high = min(numbers), max(numbers)
    # Halved, as the difference of two doubles may overflow.
    span = high / 2 - low / 2
    if span == 0:
        return [0.0] * len(numbers)
    return [min(max((each / 2 - low / 2) / span, 0.0), 1.0) for each in numbers]


# Quantiles of many values in little memory: a DDSketch (docs/decisions/0075-quantiles-by-ddsketch.md).
#
# A sketch counts values in bins whose bounds grow by a constant factor, so a quantile is off by at most ``accuracy``
# of its value. Only bins with values are kept, in a plain dictionary: a machine's temperature needs about ten of
# them. Counts are integers, so that sketches merge, restart and add up without rounding.

Bins = dict[int, int]
"""Bin -> number of values in it."""
BINS_MAX = 2048
"""Maximum number of bins of a sketch; an accuracy of 1 % then covers values from 1 to 10**17. Beyond it, the bins
nearest to zero are merged."""
_NEGATIVE = 1 << 20
"""Added to the bins of values below zero. The bins of floats at the finest accuracy reach to 360,000 on both sides."""
_ZERO = 1 << 21


class Sketches:
    """Sketches of one accuracy."""

    def __init__(self, accuracy: float) -> None:
        self._mapping = LogarithmicMapping(accuracy)

    def adder(self) -> Callable[[Bins, float], None]:
        """Return a function that adds a value to a sketch."""
        key, least = self._mapping.key, self._mapping.min_possible
        # The value that represents the highest bin must be a float.
        most = self._mapping.max_possible / self._mapping.gamma

        def add(bins: Bins, value: float) -> None:
            if value > least:
                bin_ = key(min(value, most))
            elif value < -least:
                bin_ = key(min(-value, most)) + _NEGATIVE
            else:
                bin_ = _ZERO
            bins[bin_] = bins.get(bin_, 0) + 1
            if len(bins) > BINS_MAX:
                _collapse(bins)

        return add

    def quantiles(self, bins: Bins, wanted: tuple[float, ...]) -> list[float | None]:
        """Return quantiles between 0 and 1: for each, the value that this share of all values does not exceed."""
        # The library's stores are dense: values from 1e-300 to 1e300 would take them seconds.
        ordered = sorted(bins, key=_order)
        ranks = list(accumulate(bins[bin_] for bin_ in ordered))
        if not ranks:
            return [None] * len(wanted)
        places = (bisect_right(ranks, share * (ranks[-1] - 1)) for share in wanted)
        return [self._value(ordered[place]) for place in places]

    def _value(self, bin_: int) -> float:
        if bin_ == _ZERO:
            return 0.0
        is_negative, key = _key(bin_)
        value: float = self._mapping.value(key)
        return -value if is_negative else value


def _key(bin_: int) -> tuple[bool, int]:
    """Return whether a bin is for values below zero, and its number by their size."""
    return (True, bin_ - _NEGATIVE) if bin_ >= _NEGATIVE // 2 else (False, bin_)


def _order(bin_: int) -> tuple[int, int]:
    """Return the sort key of a bin, by its values."""
    if bin_ == _ZERO:
        return 0, 0
    is_negative, key = _key(bin_)
    return (-1, -key) if is_negative else (1, key)


def merge(bins: Bins, other: Bins) -> None:
    """Add the values of another sketch."""
    for bin_, count in other.items():
        bins[bin_] = bins.get(bin_, 0) + count
    if len(bins) > BINS_MAX:
        _collapse(bins)


def _collapse(bins: Bins) -> None:
    """Merge the bins nearest to zero, an eighth at a time: sorting them for each value would make widely scattered
    values a hundred times as expensive."""
    ordered = sorted((bin_ for bin_ in bins if bin_ != _ZERO), key=lambda bin_: _key(bin_)[::-1])
    kept = ordered[len(ordered) - BINS_MAX * 7 // 8 :]
    least = {_key(bin_)[0]: bin_ for bin_ in reversed(kept)}
    for bin_ in ordered[: len(ordered) - len(kept)]:
        # Into the least bin of its own sign; where none is left, among the zeros.
        into = least.get(_key(bin_)[0], _ZERO)
        bins[into] = bins.get(into, 0) + bins.pop(bin_)


# Parsing of aggregates in ``emit``: ``max(rms)``, ``quantile(rms, 0.99)``.

NUMERIC = ("sum", "mean", "min", "max", "stddev", "median", "quantile", "envelope", "lttb")
"""Aggregates of numbers; true and false count as 1 and 0."""
SCALAR = ("count", "first", "last")
"""Aggregates of any number, text, true or false."""
ENVELOPE = ("min", "max", "first", "last")
POINTS_MAX = 1000
"""Maximum number of points of ``lttb``."""
_NAMES = sorted((*NUMERIC, *SCALAR))


class Aggregate(NamedTuple):
    """One aggregate of a window."""

    name: str
    """Name of the result's field; for an envelope, its first part."""
    function: str
    argument: str
    """Aggregated expression; empty for ``count()``."""
    number: float = 0.0
    """Second argument: the quantile, or the number of points."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of the result that it fills."""
        return tuple(f"{self.name}_{each}" for each in ENVELOPE) if self.function == "envelope" else (self.name,)


def parse_aggregate(name: str, text: str) -> Aggregate:
    """Return the aggregate of a text such as ``max(rms)``.

    Raises:
        WindowError: it is not an aggregate; the message has the problem and the remedy.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise WindowError(f"{name}: {_shown(text)} is not an aggregate; write one such as max(rms)") from None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
        raise WindowError(f"{name}: {_shown(text)} is not an aggregate; write one such as max(rms)")
    function = node.func.id
    if function not in _NAMES:
        raise WindowError(f"{name}: {function} is not an aggregate. Known here: {', '.join(_NAMES)}")
    arguments = [ast.get_source_segment(text.strip(), each) or "" for each in node.args]
    wanted = 2 if function in ("quantile", "lttb") else 1
    if len(arguments) != wanted and not (function == "count" and not arguments):
        raise WindowError(f"{name}: {function} takes {wanted} argument{'s'[: wanted - 1]}, got {len(arguments)}")
    number = 0.5 if function == "median" else _number(name, function, node.args[1]) if wanted == 2 else 0.0
    return Aggregate(name, "quantile" if function == "median" else function, arguments[0] if arguments else "", number)


def _number(name: str, function: str, node: ast.expr) -> float:
    value = node.value if isinstance(node, ast.Constant) else None
    if function == "quantile":
        if type(value) in (int, float) and 0 <= value <= 1:  # type: ignore[operator]
            return float(value)  # type: ignore[arg-type]
        raise WindowError(f"{name}: the second argument of quantile is a number from 0 to 1, such as 0.99")
    if type(value) is int and 3 <= value <= POINTS_MAX:
        return value
    raise WindowError(f"{name}: the second argument of lttb is a number of points from 3 to {POINTS_MAX}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


Numbers = list[Any]
_INFINITE = "w_infinite"
SOURCE_NAMES = {"w_note": series.note, "w_join": series.join, "w_len": len}
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
            *(
                [
                    f"if b[{START}] < a[{START}]: a[{START}] = b[{START}]",
                    f"if b[{LAST}] > a[{LAST}]: a[{LAST}] = b[{LAST}]",
                ]
                if is_session
                else []
            ),
        ]
        self._result: list[str] = []
        self._known: dict[tuple[str, Argument], int] = {}
        self._sketches = Sketches(accuracy)
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
        """Index of the rows' source records: behind all others."""
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
            "w_number": number,
            "w_scalar": scalar,
            "w_finite": finite,
            "w_deviation": deviation,
            "w_merge_deviation": merge_deviation,
            "w_add": self._sketches.adder(),
            "w_merge_sketch": merge,
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
    limit = SUM_MAX
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
