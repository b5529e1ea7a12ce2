"""A draft of a schema from a sample of payloads.

Payloads come decoded, thousands at a time, and are looked at by column: a million of them take a second or two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from weft.config.payload_schema.model import FIELDS_MAX, SchemaField, SchemaFormat, column_name
from weft.config.payload_schema.paths import STEPS_MAX, Path, format_path
from weft.config.payload_schema.text import field_line

NAMES_MAX = 1024
"""Maximum number of names within one object that are looked at: an object with keys of machines has any number."""
PLACES_MAX = 4096
"""Maximum number of places in payloads that are looked at."""
TEXTS_MAX = 256
"""Number of texts of a field that are compared with times."""
_MISSING = object()
_NONE = type(None)
_NUMBERS = {int, float}
_TIME_NAME = re.compile(r"(?:^|[_.])(?:ts|time|timestamp|datetime|date|at)(?:_?(?:s|ms|us|ns))?$", re.IGNORECASE)
_SECONDS = (10**9, 4 * 10**9)
"""The years 2001 to 2096: a number between them, in a field named like a time, is a time."""
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_WORDS = {str: "text", int: "whole numbers", float: "numbers", bool: "true or false", bytes: "bytes", list: "arrays",
          dict: "objects", datetime: "times"}  # fmt: skip


class _Spot:
    """The values at one place of the payloads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kinds: Counter[type] = Counter()
        self.low: float | None = None
        self.high: float | None = None
        self.texts: dict[str, None] = {}
        self.inside: dict[str, _Spot] = {}
        self.items: _Spot | None = None
        self.left_out = False

    def names(self) -> Iterator[_Spot]:
        """Yield the places below, and this one if it has values of its own."""
        if any(kind not in {dict, _NONE} for kind in self.kinds):
            yield self
        for each in self.inside.values():
            yield from each.names()


class PayloadSample:
    """A sample of payloads of a stream."""

    def __init__(self) -> None:
        self.records = 0
        self.unreadable = 0
        """Payloads that are not of their format."""
        self._root = _Spot(())
        self._places = 1

    def take(self, values: Sequence[Any], broken: int) -> None:
        """Add decoded payloads, some thousands at most, and the number of those that could not be decoded."""
        self.records += len(values) + broken
        self.unreadable += broken
        self._look(self._root, values)

    def _look(self, place: _Spot, values: Sequence[Any]) -> None:
        kinds = Counter(map(type, values))
        place.kinds.update(kinds)
        if kinds[int] or kinds[float]:
            numbers = (
                values if kinds.keys() <= {int, float} else [each for each in values if type(each) in {int, float}]
            )
            low, high = min(numbers), max(numbers)
            place.low = low if place.low is None else min(low, place.low)
            place.high = high if place.high is None else max(high, place.high)
        if kinds[str] and len(place.texts) < TEXTS_MAX:
            found = (each for each in values if type(each) is str)
            place.texts.update(dict.fromkeys(each for each, _ in zip(found, range(TEXTS_MAX), strict=False)))
        if kinds[dict]:
            objects = values if kinds[dict] == len(values) else [each for each in values if type(each) is dict]
            self._look_inside(place, objects)
        if kinds[list]:
            items = [item for each in values if type(each) is list for item in each[:64]]
            if items:
                place.items = place.items or _Spot((*place.path, 0))
                self._look(place.items, items)

    def _look_inside(self, place: _Spot, objects: Sequence[dict[Any, Any]]) -> None:
        for name in dict.fromkeys(name for keys in dict.fromkeys(map(tuple, objects)) for name in keys):
            child = place.inside.get(name)
            if child is None:
                full = len(place.inside) >= NAMES_MAX or self._places >= PLACES_MAX
                if full or len(place.path) >= STEPS_MAX or not isinstance(name, str):
                    place.left_out = True
                    continue
                child = place.inside[name] = _Spot((*place.path, name))
                self._places += 1
            column = [each.get(name, _MISSING) for each in objects]
            self._look(child, [each for each in column if each is not _MISSING] if _MISSING in column else column)

    def draft(self, payload_format: SchemaFormat) -> str:
        """Return a schema in YAML with what was found beside each field, to be edited."""
        lines = self.lines((), ())
        broken = f"; {self.unreadable} of them are not {payload_format}" if self.unreadable else ""
        head = f"# A draft from {self.records} records{broken}. Add units, descriptions and what is required.\n"
        return f"{head}format: {payload_format}\nfields:\n{''.join(lines)}"

    def lines(self, known: Collection[Path], taken: Collection[str]) -> list[str]:
        """Return the lines of a draft below `fields:`.

        Args:
            known: places that get no line, nor what is inside of them or around them.
            taken: names of columns that others have, in lower case.
        """
        lines, names = list[str](), set(taken)
        for place in self._root.names():
            if not place.path or len(names) >= FIELDS_MAX or any(_overlap(place.path, each) for each in known):
                continue
            found = _guess(place)
            if found.type is None:
                path = "".join(each if each.isprintable() else " " for each in format_path(place.path))
                lines.append(f"  # {path}: {found.words}\n")
                continue
            name = column_name(place.path, names)
            names.add(name.casefold())
            from_ = None if place.path == (name,) else format_path(place.path)
            seen = sum(count for kind, count in place.kinds.items() if kind is not _NONE)
            share = "" if seen == self.records else f"in {100 * seen / self.records:.3g} % of the records"
            words = "; ".join(filter(None, (found.words, share)))
            line = field_line(name, SchemaField(type_=found.type, from_=from_))
            lines.append(f"{line}  # {words}\n" if words else f"{line}\n")
        return lines

    @property
    def has_fields(self) -> bool:
        """Return whether a payload was an object with fields."""
        return bool(self._root.inside)


def _overlap(one: Path, other: Path) -> bool:
    steps = min(len(one), len(other))
    return one[:steps] == other[:steps]


class _Guess(NamedTuple):
    type: str | None
    words: str


def _guess(place: _Spot) -> _Guess:
    kinds = Counter({kind: count for kind, count in place.kinds.items() if kind not in {_NONE, dict}})
    numbers = kinds[int] + kinds[float]
    if kinds[float]:
        del kinds[int]
        kinds[float] = numbers
    kind, total = kinds.most_common(1)[0][0], sum(kinds.values())
    rest = ((count, _WORDS.get(other, other.__name__)) for other, count in kinds.items() if other is not kind)
    others = [f"{count} of {total} are {words}" for count, words in rest]
    if place.inside:
        others.append("also an object")
    type_, words = _type_of(place, kind)
    return _Guess(type_, "; ".join(filter(None, (words, *others))))


def _type_of(place: _Spot, kind: type) -> tuple[str | None, str]:
    between = f"{place.low:g} to {place.high:g}" if kind in {int, float} else ""
    if kind is list:
        return _array(place)
    if kind is str:
        return ("timestamp", "") if _are_times(place.texts) else ("string", "")
    if kind in {int, float}:
        unit = _unit(place)
        return (f"timestamp({unit})", "") if unit else ("int" if _fits(place, kind) else "float", between)
    return {bool: "bool", bytes: "binary", datetime: "timestamp"}.get(kind), ""


def _fits(place: _Spot, kind: type) -> bool:
    return kind is int and (place.low or 0) >= -(1 << 63) and (place.high or 0) < 1 << 63


def _array(place: _Spot) -> tuple[str | None, str]:
    items = place.items
    if items is None:
        return None, "arrays without items"
    if not any(kind not in {dict, list, _NONE} for kind in items.kinds):
        return None, "arrays of objects or arrays: name single places, such as readings[0].value"
    guess = _guess(items)
    is_single = guess.type is not None and not guess.type.startswith("array")
    return (f"array<{guess.type}>", guess.words) if is_single else (None, "arrays of different values")


def _unit(place: _Spot) -> str | None:
    """Return the unit of numbers that are times, by the field's name and their size."""
    name = next((step for step in reversed(place.path) if isinstance(step, str)), "")
    if not _TIME_NAME.search(name) or place.low is None or place.high is None:
        return None
    low, high = _SECONDS
    return next((unit for unit, size in _UNITS.items() if low * size <= place.low <= place.high <= high * size), None)


def _are_times(texts: Iterable[str]) -> bool:
    try:
        return all("-" in text[:5] and len(text) > 12 and datetime.fromisoformat(text) for text in texts)
    except ValueError:
        return False
