"""Quality rules of a stream: what its rows should be like, and how many may be otherwise before the hub raises an
alarm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, field

from weft.config.errors import Finding
from weft.config.units import format_duration, quoted
from weft.config.values import Count, Duration, OneOf, Section

RULES_MAX = 32
"""Largest number of rules of a stream."""
UNIQUE_MAX = 4
"""Largest number of these rules about unique values: each has the keys of many rows in memory."""
NAME_CHARACTERS_MAX = 64
OVER_S = 600.0
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_Column = Annotated[str, Meta(min_length=1, max_length=128)]


class ValueRange(Section, frozen=True, kw_only=True):
    """Bounds of numbers. A null value is within them: `not_null` is a rule of its own."""

    field_: Annotated[
        _Column, Meta(description="Field of the stream's schema: an `int`, a `float` or a `decimal`.")
    ] = field(name="field")
    min: Annotated[float | None, Meta(description="Smallest good value. Unset: no bound.")] = None
    max: Annotated[float | None, Meta(description="Largest good value. Unset: no bound.")] = None


class UniqueKeys(Section, frozen=True, kw_only=True):
    """Values that no two rows have: `unique: [machine, at]` is short for `unique: {fields: [machine, at]}`."""

    fields: Annotated[
        tuple[_Column, ...],
        Meta(min_length=1, max_length=8, description="Fields of the schema, topic levels, `_key` (the topic), `_edge`, "
             "`_time` or `payload`. Rows without a value of one of them are not compared."),
    ]  # fmt: skip
    within: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Number of rows of each shard to look back."),
    ] = 1000  # fmt: skip


class QualityRule(OneOf, frozen=True, kw_only=True):
    """One check of a stream's rows, and how much of a failure is tolerated."""

    noun: ClassVar[str] = "check"
    beside: ClassVar[tuple[str, ...]] = ("tolerate", "over_s", "over")

    range: Annotated[ValueRange | None, Meta(description="Numbers of a field are within bounds.")] = None
    not_null: Annotated[
        _Column | None,
        Meta(description="A field of the schema, or a topic level, has a value in each row."),
    ] = None
    fits: Annotated[
        bool | None,
        Meta(description="`true`: payloads fit the stream's schema, so that `_misfit` is null."),
    ] = None
    unique: Annotated[
        UniqueKeys | None,
        Meta(extra_json_schema={"x-short": "fields"}, description="No row repeats the values of a row before it."),
    ] = None
    fresh: Annotated[
        Annotated[Duration, Meta(ge=1, le=366 * 86_400)] | None,
        Meta(description="The newest row is younger than this, by clocks that can be believed."),
    ] = None
    tolerate: Annotated[
        float,
        Meta(ge=0, lt=1, description="Share of rows that may fail before the hub raises an alarm: `0.01` is one in a "
             "hundred. Not for `fresh`."),
    ] = 0.0  # fmt: skip
    over_s: Annotated[
        Duration,
        Meta(ge=10, le=86_400, description="Time over which the share is taken. It reaches further back until it has "
             "20 rows. Not for `fresh`."),
    ] = field(default=OVER_S, name="over")  # fmt: skip

    @property
    def check(self) -> bytes:
        """Return the check without what is tolerated, as text that is the same for the same check."""
        name, value = self.chosen
        return msgspec.json.encode([name, msgspec.to_builtins(value)], order="sorted")

    @property
    def words(self) -> str:
        """Return the check for people."""
        name, value = self.chosen
        if isinstance(value, ValueRange):
            low = "" if value.min is None else f"{value.min:g}"
            high = "" if value.max is None else f"{value.max:g}"
            return f"range of {value.field_}: {low}..{high}"
        if isinstance(value, UniqueKeys):
            return f"unique within {value.within:,} rows: {', '.join(value.fields)}"
        if name == "fresh":
            return f"fresh: {format_duration(value)}"
        return "fits the schema" if name == "fits" else f"{name}: {value}"


class QualityRules(Section, frozen=True, kw_only=True):
    """Quality rules of a stream."""

    quarantine: Annotated[
        bool,
        Meta(description="Mark rows that fail a rule about single rows in the column `_failed`, and copy them into the "
             "stream's quarantine table."),
    ] = False  # fmt: skip

    rules: Annotated[
        dict[str, QualityRule],
        Meta(max_length=RULES_MAX, description="Rules by name. A name begins with a letter and has letters, digits, "
             "`-` and `_`."),
    ] = field(default_factory=dict)  # fmt: skip
    vanished_after: Annotated[
        Count | None,
        Meta(description="Number of rows without a value, from which on a field that had values counts as "
             "vanished: it was renamed, or is no longer sent. Null: never."),
    ] = 1000  # fmt: skip


def check_rules(given: QualityRules) -> Iterator[Finding]:
    """Yield the problems with rules, as a check for ``config.load.parse``."""
    checks: dict[bytes, str] = {}
    unique = 0
    for name, rule in given.rules.items():
        at = ("rules", name)
        if not _NAME.fullmatch(name) or len(name) > NAME_CHARACTERS_MAX:
            yield Finding(at, f"expected a name of letters, digits, - and _, at most {NAME_CHARACTERS_MAX} characters, "
                          f"got {quoted(name)}")  # fmt: skip
        kind, value = rule.chosen
        if isinstance(value, ValueRange):
            yield from _check_range(value, (*at, "range"))
        elif isinstance(value, UniqueKeys):
            unique += 1
            if unique > UNIQUE_MAX:
                yield Finding((*at, "unique"), f"a stream has at most {UNIQUE_MAX} rules about unique values")
            if len({*value.fields}) < len(value.fields):
                yield Finding((*at, "unique"), "a field is named twice: keep one")
        elif kind == "fits" and value is False:
            yield Finding((*at, "fits"), "expected `true`: leave the rule out where payloads need not fit")
        elif kind == "fresh" and rule.tolerate:
            yield Finding((*at, "tolerate"), "a stream is fresh or not: leave it out, or give `fresh` more time")
        if (other := checks.setdefault(rule.check, name)) != name:
            yield Finding(at, f"is the same check as {other}: keep one")
    if not given.rules and given.vanished_after is None:
        yield Finding(("rules",), "expected rules, got nothing to look at")


def _check_range(value: ValueRange, at: tuple[str, ...]) -> Iterator[Finding]:
    bounds = [each for each in (value.min, value.max) if each is not None]
    if not bounds:
        yield Finding(at, "expected `min`, `max` or both")
    elif not all(map(isfinite, bounds)):
        yield Finding(at, "expected numbers as bounds; leave out one that is infinite")
    elif value.min is not None and value.max is not None and value.min > value.max:
        yield Finding(at, f"expected min below max, got {value.min:g} and {value.max:g}")
