"""Functions on whole rows, by a condition: ``where``, ``route`` and ``alert``."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from weft.config.functions.step import Alert, Route, Rule
from weft.functions.contract import MISSING, Context, Function, Out, Path, Row, State, getter
from weft.functions.expression_code import ExpressionError, InvalidExpression
from weft.functions.expressions import Condition, Expression, compile_expression
from weft.functions.series import key_of

# ``route``: rows to other streams.


class RouteFunction(Function):
    """Send rows to other streams by rules, tried in their order.

    The first rule that holds takes a row; with ``copy`` the row also passes to the next rule. Rows that no rule took
    pass to the next function. Drops nothing; rows on which a condition fails go to the errors. Without state.
    """

    is_stateless = True

    def __init__(self, settings: Route, context: Context) -> None:
        """Compile the conditions.

        Raises:
            ValueError: a condition is not valid, or a rule can never be reached.
        """
        self._rules: list[tuple[Condition | None, Rule]] = []
        self._levels = context.levels
        for at, rule in enumerate(settings.rules):
            if self._rules and self._rules[-1][0] is None and not self._rules[-1][1].copy:
                raise ValueError(f"no row reaches rules[{at}]: the rule before it has no `where` and takes all of them")
            try:
                condition = (
                    None if rule.where is None else Condition(rule.where, context.level_names, nulls=context.nulls)
                )
            except InvalidExpression as error:
                raise error.of(f"rules[{at}].where") from None
            self._rules.append((condition, rule))

    def reads(self) -> frozenset[Path]:
        """Return the fields of the conditions."""
        return frozenset[Path]().union(*(condition.expression.paths for condition, _ in self._rules if condition))

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Route rows, and return those that continue."""
        for condition, rule in self._rules:
            left: list[Row] = []
            # Rows on which the condition fails go to the errors. Other rows that it does not take remain.
            taken = condition.filter_rows(rows, self._levels, out.reject, left.append) if condition else rows
            for row in taken:
                out.route(_copied(row) if rule.copy else row, rule.to)
            rows = _merged(rows, taken, left) if rule.copy else left
            if not rows:
                break
        return rows


def _copied(row: Row) -> Row:
    """Return a copy of a row that later functions do not change."""
    return msgspec.structs.replace(row, values=dict(row.values))


def _merged(rows: list[Row], taken: list[Row], left: list[Row]) -> list[Row]:
    """Return the taken and remaining rows, in their order; others have failed."""
    if not taken or not left:
        return taken or left
    kept = {id(row) for part in (taken, left) for row in part}
    return [row for row in rows if id(row) in kept]


# ``where``: rows for which a condition holds.


class Where(Function):
    """Filter by an expression. Drops rows for which it is false; rows on which it fails go to the errors.

    Without state.
    """

    is_stateless = True

    def __init__(self, settings: str, context: Context) -> None:
        """Compile the condition.

        Raises:
            InvalidExpression: it is not valid.
        """
        self._condition = Condition(settings, context.level_names, nulls=context.nulls)
        self._levels = context.levels
        self._paths = self._condition.expression.paths
        self._reason = f"where is false: {settings.strip()}"

    def reads(self) -> frozenset[Path]:
        """Return the fields of the condition."""
        return self._paths

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows for which the condition holds."""
        drop, reason = out.drop, self._reason
        return self._condition.filter_rows(rows, self._levels, out.reject, lambda row: drop(row, reason))


# Topics and payloads of messages, from names in braces or from expressions.

VALUE_CHARACTERS_MAX = 1024
"""Longest text of one value in a topic or text."""
TOPIC_BYTES_MAX = 65_535
"""Longest topic (MQTT 5.0 section 1.5.4)."""
_PART = re.compile(r"\{([^{}]*)\}|([{}])")
_NOT_IN_LEVELS = re.compile(r"[/+#\0]")


class Template:
    """A text with names in braces: ``key``, ``time``, topic levels and fields of the payload."""

    def __init__(self, text: str, context: Context) -> None:
        """Parse a text.

        Raises:
            ValueError: a brace is alone, or a name is not valid.
        """
        self._parts: list[str | tuple[str, Callable[[Row], Any]]] = []
        names = {found[1] for found in _PART.finditer(text) if found[1] is not None}
        known = {"key", "time", *context.level_names}
        self.fields = frozenset(name.partition(".")[0] for name in names - known)
        """Fields of the rows that are read, by their first names."""
        position = 0
        for found in _PART.finditer(text):
            if found[2]:
                raise ValueError(f"column {found.start() + 1}: a {found[2]} is alone; write names in braces: {{key}}")
            self._parts += [text[position : found.start()], (found[1], _source(found[1], context))]
            position = found.end()
        self._parts.append(text[position:])
        self.literal = "".join(part for part in self._parts if isinstance(part, str))
        """The text without the names."""

    def fill(self, row: Row, clean: Callable[[str, str], str] = lambda _, text: text) -> str:
        """Return the text for a row.

        Args:
            clean: changes the text of a value, given its name and the text.

        Raises:
            ExpressionError: a field is missing.
        """
        done = []
        for part in self._parts:
            if isinstance(part, str):
                done.append(part)
                continue
            name, get = part
            value = get(row)
            if value is MISSING:
                raise ExpressionError(f"field {name} is missing")
            done.append(clean(name, _text(value)))
        return "".join(done)


class Topic:
    """A topic with names in braces. A value other than ``key`` stays within its level: separators of levels, and
    wildcards, become ``_``."""

    def __init__(self, text: str, context: Context) -> None:
        """Parse a topic.

        Raises:
            ValueError: it is not a valid topic.
        """
        self._template = Template(text, context)
        self.fields = self._template.fields
        """Fields of the rows that are read, by their first names."""
        if re.search(r"[+#\0]", self._template.literal):
            raise ValueError("a topic to publish to has no + and no #")
        if text.startswith("$"):
            raise ValueError("topics that begin with $ are the node's own")

    def fill(self, row: Row) -> bytes:
        """Return the topic for a row.

        Raises:
            ExpressionError: a field is missing, or the topic too long.
        """
        topic = self._template.fill(row, _clean).encode()
        if not topic or len(topic) > TOPIC_BYTES_MAX or topic.startswith(b"$"):
            raise ExpressionError(f"no topic to publish to: {topic[:80]!r}")
        return topic


class Payload:
    """Payloads of messages: JSON of a whole row, JSON of expressions, or a text with names in braces."""

    def __init__(self, payload: Mapping[str, str] | str | None, context: Context) -> None:
        """Compile the settings.

        Raises:
            ValueError: an expression or the text is not valid.
        """
        self._levels = context.levels
        self._template = Template(payload, context) if isinstance(payload, str) else None
        self._expressions: dict[str, Expression] = {}
        self.fields: frozenset[str] | None = None
        """Fields of the rows that are read, by their first names; None for all."""
        if self._template is not None:
            self.fields = self._template.fields
        elif isinstance(payload, Mapping):
            self._expressions = {name: _compiled(name, text, context) for name, text in payload.items()}
            self.fields = frozenset[str]().union(*(each.fields for each in self._expressions.values()))

    def fill(self, row: Row) -> bytes:
        """Return the payload for a row.

        Raises:
            ExpressionError: a field is missing, or an expression fails.
        """
        if self._template is not None:
            return self._template.fill(row).encode()
        if not self._expressions:
            key = row.key.decode(errors="replace")
            return _json({"key": key, "time": row.time / 10**9, "values": row.values})
        levels = self._levels(row.key)
        return _json({name: each.evaluate(row, levels) for name, each in self._expressions.items()})


def _compiled(name: str, text: str, context: Context) -> Expression:
    try:
        return compile_expression(text, context.level_names, nulls=context.nulls)
    except InvalidExpression as error:
        raise error.of(name) from None


def _json(values: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ExpressionError(f"the message cannot be JSON: {error}") from None


def _source(name: str, context: Context) -> Callable[[Row], Any]:
    if name in context.level_names:
        return lambda row: context.levels(row.key).get(name, MISSING)
    if name == "key":
        return lambda row: row.key.decode(errors="replace")
    if name == "time":
        return lambda row: row.time / 10**9
    get = getter(name)
    return lambda row: get(row.values)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value[:VALUE_CHARACTERS_MAX]
    if isinstance(value, bytes):
        return value.hex()[:VALUE_CHARACTERS_MAX]
    return json.dumps(value, ensure_ascii=False, default=str)[:VALUE_CHARACTERS_MAX]


def _clean(name: str, text: str) -> str:
    return text if name == "key" else _NOT_IN_LEVELS.sub("_", text) or "_"


# ``alert``: a message when a condition becomes true.

Made = TypeVar("Made")


class AlertFunction(Function):
    """A message to a local topic when a condition becomes true for a key. Rows pass unchanged.

    State: for each key in alert the times of its beginning and of its last message, at most ``keys`` of them.
    """

    def __init__(self, settings: Alert, context: Context) -> None:
        """Compile the conditions and texts.

        Raises:
            ValueError: one of them is not valid.
        """
        self.state = State()
        self._settings = settings
        self._levels = context.levels
        condition = partial(Condition, levels=context.level_names, nulls=context.nulls)
        self._when = _named("when", condition, settings.when)
        self._until = None if settings.until is None else _named("until", condition, settings.until)
        self._topic = _named("topic", Topic, settings.topic, context)
        self._payload = _named("payload", Payload, settings.payload, context)
        self._cleared = None if settings.cleared is None else _named("cleared", Payload, settings.cleared, context)
        self._every = None if settings.every_s is None else round(settings.every_s * 10**9)
        self._oldest: list[tuple[int, bytes]] | None = None
        """Heap of keys in alert by the time of its beginning, with some whose alert is over."""

    def reads(self) -> frozenset[Path] | None:
        """Return the fields of the conditions and texts."""
        payloads = (self._payload,) if self._cleared is None else (self._payload, self._cleared)
        conditions = (self._when,) if self._until is None else (self._when, self._until)
        found = set(self._topic.fields)
        for payload in payloads:
            if payload.fields is None:
                return None
            found |= payload.fields
        of_texts = {(name,) for name in found}
        return frozenset(of_texts.union(*(each.expression.paths for each in conditions)))

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows, and publish the alerts of their conditions."""
        passed: list[Row] = []
        for row in rows:
            try:
                self._look_at(row, out)
            except ExpressionError as error:
                out.reject(row, f"alert: {error.reason}")
            else:
                passed.append(row)
        return passed

    def _look_at(self, row: Row, out: Out) -> None:
        assert self.state is not None
        key = row.key
        levels = self._levels(key)
        series = key_of(row)
        known = self.state.values.get(series)
        if known is None:
            if self._when.holds(row, levels):
                self._publish(row, self._payload.fill(row), out)
                self._remember(series, row.time)
            return
        ends = not self._when.holds(row, levels) if self._until is None else self._until.holds(row, levels)
        if ends:
            if self._cleared is not None:
                self._publish(row, self._cleared.fill(row), out)
            self.state.delete(series)
        elif self._every is not None and row.time - known[1] >= self._every:
            self._publish(row, self._payload.fill(row), out)
            self.state.set(series, [known[0], row.time])

    def _publish(self, row: Row, payload: bytes, out: Out) -> None:
        out.alert(self._topic.fill(row), payload, self._settings.qos, row.time, retain=self._settings.retain)

    def _remember(self, key: bytes, time: int) -> None:
        assert self.state is not None
        self.state.set(key, [time, time])
        if self._oldest is None:
            # Only from the state, by time and key, so that a restart forgets the same keys.
            self._oldest = sorted((began, each) for each, (began, _) in self.state.values.items())
        else:
            heapq.heappush(self._oldest, (time, key))
        while len(self.state.values) > self._settings.keys:
            began, oldest = heapq.heappop(self._oldest)
            if self._began(oldest) == began:
                self.state.delete(oldest)
        if len(self._oldest) > 2 * self._settings.keys:
            self._oldest = None

    def _began(self, key: bytes) -> int | None:
        assert self.state is not None
        known = self.state.values.get(key)
        return None if known is None else known[0]


def _named(name: str, make: Callable[..., Made], *arguments: Any) -> Made:
    try:
        return make(*arguments)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
