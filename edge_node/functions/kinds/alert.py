"""``alert``: a message when a condition becomes true."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from weft.config.functions.alert import Alert
from weft.edge_node.functions.contract import Context, Function, Out, Path, Row, State
from weft.edge_node.functions.expressions import Condition, ExpressionError
from weft.edge_node.functions.kinds.message_template import Payload, Topic
from weft.edge_node.functions.series.identity import key_of

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
