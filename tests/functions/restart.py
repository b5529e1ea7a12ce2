"""The property that every function has: restarts change nothing.

``same_after_restarts`` feeds the same input to a function twice: once in one piece, and once in pieces of random
lengths. Between pieces the state goes through MessagePack, as changes, and now and then into a new instance. Outputs
must be equal. The helper stands in for the runtime: it calls ``tick`` for each whole second that has something due.

    @given(strategies.data())
    def test_restarts_change_nothing(data):
        rows = data.draw(...)
        same_after_restarts(lambda: Deadband(settings, context()), rows, data.draw(cuts(len(rows))))
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies

from weft.functions.contract import Context, Function, Gap, Row, State, Values

SECOND = 10**9


class Cut(NamedTuple):
    """A place between two inputs at which a step ends."""

    at: int
    """Number of inputs before it."""
    restart: bool
    """True where a new instance continues with what was saved."""
    crash: bool = False
    """True where an instance first reads the following inputs, and dies before any of that is saved."""


def cuts(count: int) -> strategies.SearchStrategy[list[Cut]]:
    """Draw places to cut an input of ``count`` rows and gaps."""
    cut = strategies.builds(Cut, strategies.integers(0, count), strategies.booleans(), strategies.booleans())
    return strategies.lists(cut, max_size=8).map(lambda found: sorted(found, key=lambda cut: cut.at))


def context(
    levels: Mapping[bytes, Mapping[str, str]] | None = None, stream: str = "derived", inputs: tuple[str, ...] = ("in",)
) -> Context:
    """Make a context. ``levels`` gives the named levels of each key."""
    found = levels or {}
    names = tuple(dict.fromkeys(name for each in found.values() for name in each))
    return Context(stream, inputs, lambda key: found.get(key, {}), names)


def row(time: int, values: Values, key: bytes = b"k", seq: int = -1) -> Row:
    """Make a row with a JSON payload. ``time`` in ns."""
    return Row(time, key, msgspec.json.encode(values), values, (), seq, "in")


class Recorder:
    """The other ways out (``contract.Out``), remembered in order."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def reject(self, row: Row, reason: str, cause: Row | None = None) -> None:
        self.said.append(("reject", _seen(row), reason))

    def route(self, row: Row, stream: str) -> None:
        self.said.append(("route", _seen(row), stream))

    def alert(self, topic: bytes, payload: bytes, qos: int, time: int, *, retain: bool, until: int = 0) -> None:
        self.said.append(("alert", topic, payload, qos, time, retain))

    def drop(self, row: Row, reason: str) -> None:
        """Say nothing: reasons for people may differ from run to run."""

    def rejected(self) -> list[str]:
        """Return the reasons of the rows that were rejected."""
        return [each[2] for each in self.said if each[0] == "reject"]


class Chain:
    """One function as the runtime drives it, with what it saved."""

    def __init__(self, make: Callable[[], Function]) -> None:
        self._make = make
        self.function = make()
        self.out = Recorder()
        self.emitted: list[Row] = []
        self._saved: dict[bytes, bytes] = {}

    def feed(self, inputs: Sequence[Row | Gap]) -> None:
        """Read rows and gaps as one step. Rows between two ticks go in one call."""
        run: list[Row] = []
        for each in inputs:
            if isinstance(each, Gap):
                self._process(run)
                self.function.gap(each, self.out)
                continue
            if run and _second(run[-1].time) != _second(each.time):  # a tick may be due in between
                self._process(run)
            if not run:
                self.tick_before(each.time)
            # A function may change the rows that it was given.
            run.append(_copied(each))
        self._process(run)

    def tick_before(self, time: int) -> None:
        """Call ``tick`` for each whole second before ``time`` at which the function has something to do."""
        for _ in range(1_000_000):
            due = self.function.due()
            if due is None or _second(due) * SECOND >= time:
                return
            self._emit(self.function.tick(_second(due) * SECOND, self.out))
        raise AssertionError("the function is due again after each tick")

    def save(self, *, restart: bool) -> None:
        """End the step: write what changed, and continue with a new instance that knows only what was written."""
        state = self.function.state
        if state is None:
            if restart:
                self.function = self._make()
            return
        for key, value in state.take_changes().items():
            if value is None:
                self._saved.pop(key, None)
            else:
                self._saved[key] = msgspec.msgpack.encode(value)
        full = {key: msgspec.msgpack.encode(value) for key, value in state.items()}
        assert self._saved == full, "the changes are not all that changed: call State.touch after changes in place"
        if restart:
            self.restart()

    def restart(self) -> None:
        """Continue with a new instance, from what the last ``save`` wrote."""
        self.function = self._make()
        if self.function.state is not None:
            # The log gives keys in the order of their last change, or of a full copy: in any order.
            for key in sorted(self._saved):
                self.function.state.load(key, msgspec.msgpack.decode(self._saved[key]))

    def _process(self, rows: list[Row]) -> None:
        if rows:
            given = rows.copy()
            rows.clear()
            self._emit(self.function.process(given, self.out))

    def _emit(self, rows: Iterable[Row]) -> None:
        self.emitted += [_copied(row) for row in rows]

    def seen(self) -> list[tuple[Any, ...]]:
        """Return what came out, as far as anyone can see it."""
        return [_seen(row) for row in self.emitted]


def _copied(row: Row) -> Row:
    return msgspec.structs.replace(row, values=copy.deepcopy(row.values))


def _second(time: int) -> int:
    """Return the first whole second that is not before ``time``: rows up to it come before its tick."""
    return -(-time // SECOND)


def _seen(row: Row) -> tuple[Any, ...]:
    return (
        row.time,
        row.key,
        row.payload,
        _packed(row.values),
        tuple(map(tuple, row.headers)),
        row.seq,
        row.input,
        row.source,
    )


def _packed(values: Values) -> bytes:
    """Return values as bytes: so NaN equals itself, and 1 is not 1.0."""
    try:
        return msgspec.msgpack.encode(values)
    except OverflowError:
        return repr(values).encode()


def run(make: Callable[[], Function], inputs: Sequence[Row | Gap], *, until: int | None = None) -> Chain:
    """Feed an input in one piece, and let time pass up to ``until``."""
    chain = Chain(make)
    chain.feed(inputs)
    if until is not None:
        chain.tick_before(until)
    return chain


def same_after_restarts(
    make: Callable[[], Function], inputs: Sequence[Row | Gap], places: Collection[Cut], *, until: int | None = None
) -> Chain:
    """Check that steps and restarts at ``places`` change no output. Return the run without them."""
    whole = run(make, inputs, until=until)
    parts = Chain(make)
    at = 0
    for cut in places:
        parts.feed(inputs[at : cut.at])
        at = max(at, cut.at)
        parts.save(restart=cut.restart)
        if cut.crash:
            _read_and_die(parts, inputs[at : at + 3])
    parts.feed(inputs[at:])
    parts.save(restart=True)
    if until is not None:
        parts.tick_before(until)
    assert parts.seen() == whole.seen()
    assert parts.out.said == whole.out.said
    assert parts.function.due() == whole.function.due()
    assert parts.function.oldest() == whole.function.oldest()
    return whole


def _read_and_die(chain: Chain, inputs: Sequence[Row | Gap]) -> None:
    """Read inputs whose step is never saved: outputs of an unsaved step do not exist."""
    emitted, said = len(chain.emitted), len(chain.out.said)
    chain.feed(inputs)
    del chain.emitted[emitted:]
    del chain.out.said[said:]
    chain.restart()


def stateful(function: Function) -> State:
    """Return the state of a function that has one."""
    assert function.state is not None
    return function.state
