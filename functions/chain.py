"""The functions of one derived stream in sequence: from records of the input to records of the output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from weft.functions.contract import (
    AsyncFunction,
    Format,
    Function,
    Gap,
    Out,
    PartialFormat,
    Path,
    PayloadError,
    Row,
    State,
    Values,
)

# Order of the rows that leave a chain before its end: rejected and routed ones.


class Ways(Protocol):
    """Lists of the rows that leave; ``ROW_PLACES`` has the index of the row in each item."""

    rejected: list[Any]
    unwritten: list[Any]


ROW_PLACES = (0, 1)
"""Place of the row in an item of ``rejected``, and of ``unwritten``."""
Lengths = tuple[int, int]


class Leaving:
    """Rows that leave while a chain works on a batch, to be put in the order in which they were read.

    A function works on a whole batch. So the rows that the decoder refused come first, then those of the first
    function, of the second, and so on; within a route, those of its first rule. The order in a stream must not depend
    on the end of a batch.
    """

    def __init__(self, given: Sequence[Row], out: Ways) -> None:
        """Start.

        Args:
            given: rows of the batch.
            out: outputs.
        """
        self._given = given
        self._ways = (out.rejected, out.unwritten)
        self._start = self._last = self._lengths()
        self._caused: list[tuple[Lengths, Lengths, Row]] = []

    def _lengths(self) -> Lengths:
        rejected, unwritten = self._ways
        return len(rejected), len(unwritten)

    def begin(self) -> None:
        """Continue with rows one by one: rows that left until now have their places."""
        self._last = self._lengths()

    def note(self, row: Row) -> None:
        """Note that all rows that left since the last call left because of one row, which may have released others."""
        now = self._lengths()
        if now != self._last:
            self._caused.append((self._last, now, row))
            self._last = now

    def order_unwritten(self) -> None:
        """Put the rows for other streams in order, before they are written. Call once."""
        self._order(1)

    def order_rejected(self) -> None:
        """Put the rejected rows in order, when all have been added. Call once."""
        self._order(0)

    def _order(self, which: int) -> None:
        way, start = self._ways[which], self._start[which]
        if len(way) - start > 1:
            way[start:] = self._in_order(which, way, start)

    def _in_order(self, which: int, way: list[Any], start: int) -> list[Any]:
        places = {(row.input, row.seq): place for place, row in enumerate(self._given)}
        causes = {at: row for last, now, row in self._caused for at in range(last[which], now[which])}
        place = -1
        found: list[tuple[int, int]] = []
        for at in range(start, len(way)):
            row: Row = causes.get(at) or getattr(way[at], "cause", None) or way[at][ROW_PLACES[which]]
            # A row that a function created stays behind the one before it.
            place = places.get((row.input, row.seq), place)
            found.append((place, at))
        return [way[at] for _, at in sorted(found)]


SECOND = 1_000_000_000
"""Length of a tick, ns."""
IDLE_TICKS_MAX = 100_000
"""Most calls of ``tick`` for one time that do nothing: 2,000 calls check a million groups of windows."""
Turn = Callable[[], Awaitable[None]]
FOR_EVER = 1 << 63
"""Time later than that of any row."""


class Rejected(NamedTuple):
    """A row that a function rejected."""

    row: Row
    reason: str
    cause: Row | None = None
    """Row whose arrival made a function reject this one; None where it is the same."""


class Alert(NamedTuple):
    """A message for local subscribers."""

    topic: bytes
    payload: bytes
    qos: int
    time: int
    retain: bool
    until: int = 0
    """Time after which the alert is not published, ns since 1970; 0 for never."""


class Alerts(Protocol):
    """Publisher to local subscribers."""

    def ready(self) -> None:
        """Make ready for alerts, before the commit that they belong to is appended."""

    def __call__(self, alert: Alert) -> None:
        """Publish within the commit that is being appended."""


class Writing(NamedTuple):
    """Encoders of rows for a stream and for the streams that rows are routed to."""

    format: Format
    converts: bool = False
    """True where the input's payloads are in another format: then payloads that no function changed are encoded again,
    too."""


class Outputs(Out):
    """Outputs of a chain that are not stored yet."""

    def __init__(self) -> None:
        """Start empty."""
        self.rows: list[Row] = []
        """For the derived stream itself, in order; each with its payload."""
        self.rejected: list[Rejected] = []
        self.routed: dict[str, list[Row]] = {}
        """Stream -> its rows; each with its payload."""
        self.unwritten: list[tuple[str, Row]] = []
        """Rows for other streams as functions emitted them; the chain writes their payloads."""
        self.alerts: list[Alert] = []

    def __bool__(self) -> bool:
        """Return whether there is anything to store."""
        return bool(self.rows or self.rejected or self.routed or self.alerts)

    def reject(self, row: Row, reason: str, cause: Row | None = None) -> None:
        """Keep a row for the stream of errors."""
        self.rejected.append(Rejected(row, reason, cause))

    def withhold(self, row: Row, reason: str, text: str, cause: Row | None = None) -> None:  # noqa: ARG002
        """Keep a row for the stream of errors, without any of its content.

        Args:
            reason: may have values of the row; it is for ``weft edge test-function``.
            text: has none of them.
        """
        row.is_private = True
        self.reject(row, text, cause)

    def route(self, row: Row, stream: str) -> None:
        """Keep a row for another stream."""
        self.unwritten.append((stream, row))

    def alert(self, topic: bytes, payload: bytes, qos: int, time: int, *, retain: bool, until: int = 0) -> None:
        """Keep a message for local subscribers."""
        self.alerts.append(Alert(topic, payload, qos, time, retain, until))

    def drop(self, row: Row, reason: str) -> None:
        """Do nothing: a node has no use for the reason."""


class ReplayOutputs(Outputs):
    """Outputs of a chain that repeats an earlier computation: rows for other streams and alerts are not repeated."""

    def route(self, row: Row, stream: str) -> None:
        """Skip the row: it is in that stream already."""

    def alert(self, topic: bytes, payload: bytes, qos: int, time: int, *, retain: bool, until: int = 0) -> None:
        """Skip the alert: its time is long past."""


class _Withholding(Out):
    """Outputs of a function that sees fields which it, or a later one, redacts.

    A row that it rejects goes to the stream of errors without its payload, and without a reason that may quote it: that
    stream has the same destinations as the redacted rows.
    """

    def __init__(self, outputs: Outputs, kind: str, *, is_safe: bool) -> None:
        """Wrap some outputs.

        Args:
            kind: name of the function.
            is_safe: whether its reasons contain no values.
        """
        self._outputs = outputs
        self._kind = kind
        self._is_safe = is_safe

    def reject(self, row: Row, reason: str, cause: Row | None = None) -> None:
        self._outputs.withhold(row, reason, reason if self._is_safe else _withheld(self._kind), cause)

    def route(self, row: Row, stream: str) -> None:
        row.is_private = True  # that stream's format may not hold it
        self._outputs.route(row, stream)

    def alert(self, topic: bytes, payload: bytes, qos: int, time: int, *, retain: bool, until: int = 0) -> None:
        self._outputs.alert(topic, payload, qos, time, retain=retain, until=until)

    def drop(self, row: Row, reason: str) -> None:
        self._outputs.drop(row, reason)


def _withheld(kind: str) -> str:
    return f"{kind} failed. The payload and the reason are left out, as redact comes later"


class Chain:
    """A chain and its memory. Its outputs depend on the inputs and their times, not on the division into calls.

    Call ``process`` with rows up to the next tick, then ``tick``, and so on (``slices``, ``ticks``).
    """

    def __init__(self, functions: Sequence[tuple[str, Function]], decoder: Format, encoder: Format | Writing) -> None:
        """Join functions.

        Args:
            functions: each with a label under which its state is kept: the same for the same function with the same
                settings.
            decoder: format of the input's payloads.
            encoder: format of the output's payloads, for rows whose values differ from the payload.
        """
        self._functions = [function for _, function in functions]
        self._labels = [label for label, _ in functions]
        self._writing = encoder if isinstance(encoder, Writing) else Writing(encoder)
        # A payload in another format is written as a whole, so all fields must be decoded.
        paths = None if self._writing.converts else paths_read(self._functions)
        self._decode: Callable[[bytes], Values] = decoder.decode
        if paths is not None and isinstance(decoder, PartialFormat):
            self._decode = decoder.decoder(paths)
        self._reads_values = paths is None or bool(paths)
        self.has_ticks = any(type(function).due is not Function.due for function in self._functions)
        """True where time alone can emit rows."""
        holders = (at for at, function in enumerate(functions[:-1]) if type(function[1]).due is not Function.due)
        self._holder = next(holders, len(functions))
        """Position of the first function that emits rows at times of its own to later functions: it gets rows one by
        one, so that rejections and alerts about its rows have a defined place among the others."""
        self._redacts = max((at for at, function in enumerate(self._functions) if function.redacts), default=-1)
        """Position of the last function that redacts; -1 where none does."""

    async def prepare(self) -> None:
        """Have all functions load changed files. Call it before each step.

        Raises:
            NotReady: the step has to wait.
        """
        for function in self._functions:
            if isinstance(function, AsyncFunction):
                await function.prepare()

    async def process(self, rows: list[Row], out: Outputs) -> None:
        """Pass rows of the input through all functions, in order. No row may be later than a tick that is due."""
        leaving = Leaving(rows, out)
        if self._reads_values:
            rows = self._decoded(rows, out)
        rows = await self._through(self._functions[: self._holder], 0, rows, out)
        if self._holder < len(self._functions):
            made: list[Row] = []
            leaving.begin()
            for row in rows:
                made += await self._through(self._functions[self._holder :], self._holder, [row], out)
                leaving.note(row)
            rows = made
        leaving.order_unwritten()
        self._write(rows, out)
        leaving.order_rejected()

    def prepare_at_once(self) -> None:
        """Do what ``prepare`` does, for functions that never wait.

        Raises:
            NotReady: as ``prepare``.
        """
        for function in self._functions:
            if isinstance(function, AsyncFunction):
                preparing = function.prepare()
                try:
                    preparing.send(None)
                except StopIteration:
                    continue
                raise RuntimeError(f"{type(function).__name__} waits for something while it is prepared")

    def process_at_once(self, rows: list[Row], out: Outputs) -> None:
        """Do what ``process`` does, for functions that never wait and hold no rows back."""
        leaving = Leaving(rows, out)
        if self._reads_values:
            rows = self._decoded(rows, out)
        for at, function in enumerate(self._functions):
            if rows:
                rows = self._redacted(at, function.process(rows, self._way(at, out)))
        leaving.order_unwritten()
        self._write(rows, out)
        leaving.order_rejected()

    def entry(self, out: Outputs) -> Out:
        """Return the outputs for rows that no function has seen yet."""
        return out if self._redacts < 0 else _Withholding(out, "a function", is_safe=False)

    async def tick(self, time: int, out: Outputs, turn: Turn | None = None) -> None:
        """Notify all functions that every row up to a time has arrived.

        Args:
            turn: awaited after each part that a function does, for other work.
        """
        for at, function in enumerate(self._functions):
            # Rows that an earlier function still holds are yet to reach this one: it must not see a later time.
            held = oldest_of(self._functions[:at])
            own = time if held is None else min(time, held - 1)
            idle = 0
            while (due := function.due()) is not None and due <= own:
                way = self._way(at, out)
                if isinstance(function, AsyncFunction):
                    rows = await function.tick_async(own, way)
                else:
                    rows = function.tick(own, way)
                # A part may emit no rows: groups that are only checked, or windows whose SELECT finds nothing.
                idle = 0 if rows or function.due() != due else idle + 1
                if idle > IDLE_TICKS_MAX:
                    raise RuntimeError(f"{type(function).__name__} is due at {due} and does nothing then")
                await self._from(at + 1, rows, out)
                if turn is not None:
                    await turn()

    def gap(self, gap: Gap, out: Outputs) -> None:
        """Notify all functions of missing numbers."""
        for at, function in enumerate(self._functions):
            function.gap(gap, self._way(at, out))
        self._write([], out)

    def due(self) -> int | None:
        """Return the second at which the next tick has something to do; None for never.

        A function whose rows are still held by one before it has to wait for that one.
        """
        found, held = FOR_EVER, FOR_EVER
        for function in self._functions:
            due = function.due()
            if due is not None and due < held:
                found = min(found, due)
            own = function.oldest()
            held = held if own is None else min(held, own)
        return -(-found // SECOND) * SECOND if found < FOR_EVER else None

    def oldest(self) -> int | None:
        """Return the time of the oldest row that may still come out; None when nothing is held."""
        return oldest_of(self._functions)

    def states(self) -> Iterator[tuple[str, State]]:
        """Yield the states of functions that remember anything, by their labels."""
        for label, function in zip(self._labels, self._functions, strict=True):
            if function.state is not None:
                yield label, function.state

    def version(self) -> str:
        """Return the version of all files that the functions work with; empty where there are none."""
        return "-".join(version for function in self._functions if (version := function.version()))

    def trouble(self) -> str:
        """Return one line about a problem for the operator; empty when there is none."""
        return "; ".join(trouble for function in self._functions if (trouble := function.trouble()))

    async def close(self) -> None:
        """End the processes and threads of the functions."""
        for function in self._functions:
            if isinstance(function, AsyncFunction):
                await function.close()

    # --- inside

    async def _from(self, first: int, rows: list[Row], out: Outputs) -> None:
        self._write(await self._through(self._functions[first:], first, rows, out), out)

    async def _through(self, functions: Sequence[Function], first: int, rows: list[Row], out: Outputs) -> list[Row]:
        for at, function in enumerate(functions, first):
            if not rows:
                break
            way = self._way(at, out)
            if isinstance(function, AsyncFunction):
                rows = await function.process_async(rows, way)
            else:
                rows = function.process(rows, way)
            self._redacted(at, rows)
        return rows

    def _way(self, at: int, out: Outputs) -> Out:
        """Return the outputs of the function at a position."""
        if at > self._redacts:
            return out
        return _Withholding(out, self._labels[at].partition("-")[0], is_safe=self._functions[at].redacts)

    def _redacted(self, at: int, rows: list[Row]) -> list[Row]:
        """Remove the original payloads from rows that leave the last function that redacts."""
        if at == self._redacts:
            for row in rows:
                row.original = None
        return rows

    def _decoded(self, rows: list[Row], out: Outputs) -> list[Row]:
        decode = self._decode
        decoded: list[Row] = []
        for row in rows:
            try:
                row.values = decode(row.payload)  # type: ignore[arg-type]  # rows of the log have their payload
            except PayloadError as error:
                if self._redacts < 0:
                    out.reject(row, str(error))
                else:
                    out.withhold(row, str(error), str(error).partition(":")[0])  # such as: it is not JSON
            else:
                decoded.append(row)
        return decoded

    def _write(self, rows: Iterable[Row], out: Outputs) -> None:
        out.rows += self._written(rows, out)
        for stream, row in out.unwritten:
            out.routed.setdefault(stream, []).extend(self._written([row], out))
        out.unwritten.clear()

    def _written(self, rows: Iterable[Row], out: Outputs) -> Iterator[Row]:
        encode, converts = self._writing.format.encode, self._writing.converts
        for row in rows:
            if row.payload is None or converts:
                try:
                    row.payload = encode(row.values)
                except PayloadError as error:
                    if row.is_private:
                        out.withhold(row, str(error), _withheld("route"))
                    else:
                        out.reject(row, str(error))
                    continue
            yield row


def oldest_of(functions: Iterable[Function]) -> int | None:
    """Return the time of the oldest row that some functions hold."""
    return min((held for function in functions if (held := function.oldest()) is not None), default=None)


def paths_read(functions: Iterable[Function]) -> frozenset[Path] | None:
    """Return the fields of the input's payloads that some functions, in sequence, need; None for all."""
    found: frozenset[Path] = frozenset()
    for function in functions:
        if not function.reads_values:
            continue
        paths = function.reads()
        if paths is None:
            return None
        found |= paths
        if function.makes_values:
            break
    return found
