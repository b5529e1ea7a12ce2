"""A derived stream without a node: records of a file go through its functions one by one.

The chain is that of a node. Observers between the functions record each function's decision about a row.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

from weft.config.models import EdgeConfig
from weft.edge_node.check.streams import Flow, inputs
from weft.edge_node.derived.definitions import functions_of, join
from weft.functions.chain import SECOND, Chain, Outputs
from weft.functions.contract import AsyncFunction, Function, Gap, Out, PayloadError, Row, Values
from weft.functions.python import Python
from weft.functions.registry import format_of

# Records of a file for trying out a derived stream, one in a line: written by hand, or by ``weft edge tail --json``.
#
# A line is an object with ``topic`` (or ``key``), ``payload`` or ``payload_base64``, ``time`` (seconds since 1970, or
# text such as ``2026-11-20T07:00:00Z``) or ``time_ns``, and ``stream`` where the derived stream reads several. A
# payload that is text is the text's UTF-8, any other value its JSON text in the line. A line may also be a gap.

LINE_BYTES_MAX = 4 << 20
"""Longest line: base64 of the longest payload that a node takes, and its topic."""
START_NS = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * 10**9
"""Time of a first record without one."""
INTERVAL_NS = 10**9
"""Interval from the record before to one without a time."""
_TIME_MAX = (1 << 63) - 1
_MEANT = '{"topic": "plant/l1/m1", "payload": {"temperature": 21.5}, "time": "2026-11-20T07:00:00Z"}'


class SampleEvent(NamedTuple):
    """A row or a gap of a file, and its line, counted from 1."""

    line: int
    event: Row | Gap


class BadSample(ValueError):
    """A line that is not a record. The text has its number, the problem and the remedy."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"{line}: {message}")


class _Line(msgspec.Struct):
    kind: str = "record"
    topic: str | None = None
    key: str | None = None
    payload: msgspec.Raw = msgspec.Raw()
    payload_base64: str | None = None
    time: int | float | str | None = None
    time_ns: int | None = None
    stream: str | None = None
    first: int | None = None
    end: int | None = None
    reason: str = "retention"


class SampleReader:
    """Reader of the lines of one file, for a derived stream with certain inputs."""

    def __init__(self, inputs: Sequence[str], topic: str | None = None) -> None:
        """Prepare to read.

        Args:
            inputs: streams that the derived stream reads.
            topic: topic of all lines, which are then only payloads.
        """
        self.passed_over = 0
        """Number of skipped lines: records of other streams, and other output of ``weft edge tail``."""
        self._inputs = inputs
        self._topic = topic
        self._decode = msgspec.json.Decoder(_Line).decode
        self._next = dict.fromkeys(inputs, 0)
        self._times = dict.fromkeys(inputs, 0)
        self._time: int | None = None

    def read(self, lines: Iterable[bytes]) -> Iterator[SampleEvent]:
        """Yield the samples of the lines, in their order. Empty lines are skipped.

        Raises:
            BadSample: a line is not of this form.
        """
        for number, line in enumerate(lines, 1):
            text = line.rstrip(b"\r\n")
            if len(text) > LINE_BYTES_MAX:
                raise BadSample(number, f"the line has more than {LINE_BYTES_MAX >> 20} MiB. Split the file into lines")
            if not text.strip():
                continue
            if self._topic is not None:
                yield SampleEvent(number, self._row(number, self._topic, text, _Line()))
            elif (event := self._event(number, text)) is not None:
                yield SampleEvent(number, event)
            else:
                self.passed_over += 1

    # --- inside

    def _event(self, number: int, text: bytes) -> Row | Gap | None:
        try:
            line = self._decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadSample(
                number,
                f"expected an object such as {_MEANT}: {error}. For lines that are payloads alone, name their topic "
                "with --topic",
            ) from None
        if line.kind not in ("record", "gap", "missing") or (line.stream is not None and not self._is_input(line)):
            return None
        if line.kind != "record":
            return self._gap(number, line)
        topic = line.topic if line.topic is not None else line.key
        if topic is None:
            raise BadSample(number, f"the record has no topic: {_MEANT}")
        return self._row(number, topic, self._payload(number, line), line)

    def _is_input(self, line: _Line) -> bool:
        return line.stream in self._inputs

    def _input(self, number: int, line: _Line) -> str:
        if line.stream is not None:
            return line.stream
        if len(self._inputs) > 1:
            raise BadSample(number, f"name its stream, with `stream`: {', '.join(self._inputs)}")
        return self._inputs[0]

    def _payload(self, number: int, line: _Line) -> bytes:
        raw = bytes(line.payload)
        if line.payload_base64 is not None:
            try:
                return b64decode(line.payload_base64, validate=True)
            except binascii.Error as error:
                raise BadSample(number, f"payload_base64 is not base64: {error}") from None
        if not raw:
            raise BadSample(number, "the record has no payload. Give it `payload` or `payload_base64`")
        if raw[:1] != b'"':
            return raw
        text: str = msgspec.json.decode(raw, type=str)
        return text.encode()

    def _row(self, number: int, topic: str, payload: bytes, line: _Line) -> Row:
        source = self._input(number, line)
        time = self._read_time(number, line)
        if time is None:
            time = START_NS if self._time is None else self._time + INTERVAL_NS
        if self._time is not None and time < self._time:
            raise BadSample(number, "its time is before that of the line above. Sort the lines by time, as a node does")
        self._time = self._times[source] = time
        seq = self._next[source]
        self._next[source] += 1
        return Row(time, topic.encode(), payload, {}, seq=seq, input=source)

    def _gap(self, number: int, line: _Line) -> Gap:
        source = self._input(number, line)
        first = self._next[source] if line.first is None else line.first
        if line.end is None or line.end <= first:
            raise BadSample(
                number, 'a gap needs the number after its last record: {"kind": "gap", "first": 5, "end": 9}'
            )
        self._next[source] = max(self._next[source], line.end)
        return Gap(source, first, line.end, line.reason, self._times[source])

    def _read_time(self, number: int, line: _Line) -> int | None:
        time = line.time_ns if line.time_ns is not None else line.time
        if time is None:
            return None
        if isinstance(time, str):
            try:
                moment = datetime.fromisoformat(time)
            except ValueError:
                raise BadSample(
                    number, f"expected a time such as 2026-11-20T07:00:00Z or seconds since 1970, got {time[:40]!r}"
                ) from None
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            found = int(moment.timestamp()) * 10**9 + moment.microsecond * 1000
        elif line.time_ns is not None:
            found = line.time_ns
        else:
            second, rest = divmod(time, 1)
            found = int(second) * 10**9 + round(rest * 10**9)
        if not 0 <= found <= _TIME_MAX:
            raise BadSample(number, f"the time {time} is not between 1970 and 2262")
        return found


FINAL_TICKS_MAX = 100_000
"""Most ticks after the last record. It ends functions that are due without end, such as a window at each second."""

_BINARY = frozenset({"cbor", "msgpack", "sparkplug", "struct"})
PAYLOAD = "payload"
"""Name of the step that reads and writes payloads, in place of a function."""
OutcomeKind = Literal["out", "dropped", "error", "routed", "alert", "kept", "log"]


class RowOutcome(NamedTuple):
    """Outcome of a row, or of a tick."""

    kind: OutcomeKind
    """``out``: it is in the derived stream; ``error``: in its stream of errors; ``kept``: a function remembers it;
    ``log``: a line that a user's code logged meanwhile."""
    function: str = ""
    """Function that decided, such as ``where``; ``payload`` where a payload was read or written."""
    reason: str = ""
    row: Row | None = None
    """Row as it left, with its payload where it has one."""
    to: str = ""
    """Stream that a row was routed to, or topic of an alert."""
    payload: bytes = b""
    """Payload of an alert."""


class OfflineEvent(NamedTuple):
    """A record or gap of the sample, or a moment at which something was due, and its outcomes."""

    cause: SampleEvent | int
    """For a moment, its time in ns since 1970."""
    outcomes: list[RowOutcome]


class Offline:
    """A derived stream of a configuration that was checked. Use it in one task, and ``close`` it."""

    def __init__(self, config: EdgeConfig, name: str) -> None:
        """Make the functions.

        Raises:
            ValueError: a function cannot work with its settings; the message has the reason.
        """
        self.inputs = inputs(name, config.streams[name])
        """Streams that it reads."""
        flow = Flow(config)
        formats = flow.payload(name), flow.input_payload(name)
        self._binary = [format_of(each) if each.format in _BINARY else None for each in formats]
        self._out = _Trace()
        self._chain = _observed_chain(config, flow, name, self._out)

    async def prepare(self) -> None:
        """Load files, start processes.

        Raises:
            NotReady: that is not possible; the message has the remedy.
        """
        await self._chain.prepare()

    async def run(self, samples: Iterable[SampleEvent]) -> AsyncIterator[OfflineEvent]:
        """Yield the events, in order: for the time that passes before each record, for the record, and at the end.

        Raises:
            BadSample: from the samples.
        """
        for sample in samples:
            if isinstance(sample.event, Row):
                async for event in self._pass_time((sample.event.time - 1) // SECOND * SECOND):
                    yield event
            yield OfflineEvent(sample, await self._take(sample.event))
        async for event in self._pass_time(None):
            yield event

    async def close(self) -> None:
        """End what functions run outside of this process."""
        await self._chain.close()

    def fields(self, row: Row, *, is_input: bool) -> Values | None:
        """Return the fields of a row's payload where people cannot read its format; None where they can, or where the
        payload alone does not determine the fields."""
        found = self._binary[is_input]
        try:
            return found.decode(row.payload or b"") if found is not None else None
        except PayloadError:
            return None

    # --- inside

    async def _take(self, event: Row | Gap) -> list[RowOutcome]:
        if isinstance(event, Gap):
            self._chain.gap(event, self._out)
        else:
            # A copy: functions change rows, and the sample is shown afterwards.
            await self._chain.process([msgspec.structs.replace(event)], self._out)
        return self._out.take()

    async def _pass_time(self, until: int | None) -> AsyncIterator[OfflineEvent]:
        for _ in range(FINAL_TICKS_MAX):
            due = self._chain.due()
            if due is None or (until is not None and due > until):
                return
            await self._chain.tick(due, self._out)
            if outcomes := self._out.take():
                yield OfflineEvent(due, outcomes)


def _observed_chain(config: EdgeConfig, flow: Flow, name: str, out: _Trace) -> Chain:
    kinds = [step.chosen[0] for step in config.streams[name].functions]
    functions = functions_of(config, flow, name)
    # The function before those of the configuration decodes payloads.
    names = [PAYLOAD] * (len(functions) - len(kinds)) + list(_distinct(kinds))
    for (_, function), label in zip(functions, names, strict=True):
        _observe(function, label, out)
    return join(flow, name, functions)


def _observe(function: Function, name: str, out: _Trace) -> None:
    """Record a function's calls. The function itself stays in the chain, which so behaves as in a node."""
    if isinstance(function, Python):
        vars(function)["log"] = out.log

    def noted(rows: list[Row], found: list[Row], before: int) -> list[Row]:
        if len(rows) == 1 and not found and out.count() == before:
            out.keep(rows[0], held=function.oldest() is not None or function.due() is not None)
        out.function = PAYLOAD
        return found

    if isinstance(function, AsyncFunction):
        process_async, tick_async = function.process_async, function.tick_async

        async def observed_process_async(rows: list[Row], to: Out) -> list[Row]:
            out.function, before = name, out.count()
            return noted(rows, await process_async(rows, to), before)

        async def observed_tick_async(time: int, to: Out) -> list[Row]:
            out.function, before = name, out.count()
            return noted([], await tick_async(time, to), before)

        vars(function).update(process_async=observed_process_async, tick_async=observed_tick_async)
        return
    process, tick = function.process, function.tick

    def observed_process(rows: list[Row], to: Out) -> list[Row]:
        out.function, before = name, out.count()
        return noted(rows, process(rows, to), before)

    def observed_tick(time: int, to: Out) -> list[Row]:
        out.function, before = name, out.count()
        return noted([], tick(time, to), before)

    vars(function).update(process=observed_process, tick=observed_tick)


def _distinct(kinds: list[str]) -> Iterator[str]:
    """Yield names of functions for people: a kind that occurs twice is shown with its position."""
    for at, kind in enumerate(kinds):
        yield kind if kinds.count(kind) == 1 else f"{kind} (functions[{at}])"


class _Trace(Outputs):
    """Outputs that record what happens, and which function did it."""

    def __init__(self) -> None:
        super().__init__()
        self.function = PAYLOAD
        self._outcomes: list[RowOutcome] = []

    def reject(self, row: Row, reason: str, cause: Row | None = None) -> None:  # noqa: ARG002
        self._note("error", row, reason)

    def withhold(self, row: Row, reason: str, text: str, cause: Row | None = None) -> None:  # noqa: ARG002
        self._note("error", row, reason)

    def drop(self, row: Row, reason: str) -> None:
        self._note("dropped", row, reason)

    def route(self, row: Row, stream: str) -> None:
        super().route(row, stream)
        self._note("routed", row, to=stream)

    def alert(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,  # noqa: ARG002
        time: int,  # noqa: ARG002
        *,
        retain: bool,  # noqa: ARG002
        until: int = 0,  # noqa: ARG002
    ) -> None:
        self._outcomes.append(RowOutcome("alert", self.function, to=topic.decode(errors="replace"), payload=payload))

    def keep(self, row: Row, *, held: bool) -> None:
        """Record that a row had no result, and the function gave no reason."""
        self._note("kept" if held else "dropped", row)

    def log(self, line: str) -> None:
        """Note a line of the user's code."""
        self._note("log", None, line)

    def _note(self, kind: OutcomeKind, row: Row | None, reason: str = "", *, to: str = "") -> None:
        self._outcomes.append(RowOutcome(kind, self.function, reason, row, to))

    def count(self) -> int:
        """Return the number of recorded outcomes."""
        return sum(each.kind != "log" for each in self._outcomes)

    def take(self) -> list[RowOutcome]:
        """Return the outcomes recorded since the last call, and the rows that left the chain."""
        found = [*self._outcomes, *(RowOutcome("out", row=row) for row in self.rows)]
        self._outcomes = []
        self.rows, self.routed = [], {}
        return found
