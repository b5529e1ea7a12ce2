"""Records of a file for trying out a derived stream, one in a line: written by hand, or by ``weft edge tail --json``.

A line is an object with ``topic`` (or ``key``), ``payload`` or ``payload_base64``, ``time`` (seconds since 1970, or
text such as ``2026-11-20T07:00:00Z``) or ``time_ns``, and ``stream`` where the derived stream reads several. A payload
that is text is the text's UTF-8, any other value its JSON text in the line. A line may also be a gap.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from weft.edge_node.functions.contract import Gap, Row

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
