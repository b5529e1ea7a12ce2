"""InfluxDB's HTTP interface, as far as writing clients need it: Telegraf, the client libraries, and scripts.

A point becomes a record: measurement and tags form its key, fields its payload, a JSON object. The answer names lines
that are not points, and the others are stored, as InfluxDB does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from weft.edge_node.servers.http import bodies
from weft.edge_node.servers.http.posts import once_of
from weft.edge_node.servers.http.request import HttpExchange, Problem, Request, quoted
from weft.edge_node.servers.http.settings import HttpCounters, HttpSettings
from weft.edge_node.servers.http.storing import CHECKED_SLICE_BYTES, MISFIT_COST, NewRecord, Storing, check_cost
from weft.protocols.batch import HeaderValue
from weft.protocols.message_headers import SENT, stored_name

# InfluxDB's line protocol: ``MEASUREMENT,TAG=VALUE FIELD=VALUE TIMESTAMP``, a point in each line. No I/O.
#
# https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/

LINE_BYTES_MAX = 64 << 10
NUMBER_BYTES_MAX = 400
"""Longest number. Longer ones are not parsed: the pattern of floats tries each position in a run of digits."""
PAIRS_MAX = 1024
"""Maximum number of tags, and of fields, of a point."""
_INTEGER = re.compile(rb"-?[0-9]{1,19}")
_UNSIGNED = re.compile(rb"[0-9]{1,20}")
_JSON_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_POINT = re.compile(rb"[.eE]")
_FLOAT = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TIME = re.compile(rb"-?[0-9]{1,19}")
_BOOLEANS = {
    b"t": b"true",
    b"T": b"true",
    b"true": b"true",
    b"True": b"true",
    b"TRUE": b"true",
    b"f": b"false",
    b"F": b"false",
    b"false": b"false",
    b"False": b"false",
    b"FALSE": b"false",
}
_ESCAPE = re.compile(rb"\\([,= ])")
_ESCAPE_IN_STRING = re.compile(rb'\\(["\\])')
# A comma, an equals sign or a space ends a name or value, unless a backslash precedes it. The patterns never backtrack
# (`*+`): that would keep a state for each byte of a line.
_TOKEN = re.compile(rb"((?:[^\\,= ]++|\\.|\\$)*+)([,= ]|$)", re.DOTALL)
_MEASUREMENT = re.compile(rb"((?:[^\\, ]++|\\.|\\$)*+)([, ]|$)", re.DOTALL)
_STRING = re.compile(rb'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
# Everything up to a line break outside of a string.
_LINE = re.compile(rb'(?:[^"\\\n]++|\\[^\n]|\\(?=\n|\Z)|"(?:[^"\\]++|\\.|\\\Z)*+(?:"|\Z))*+', re.DOTALL)
_NUMBER = re.compile(rb"[^, ]*")
_INT64 = range(-(1 << 63), 1 << 63)
_UINT64 = range(1 << 64)


class BadLine(ValueError):
    """A line that is not a point. The text is InfluxDB's where it has one."""


class Point(NamedTuple):
    """One line."""

    measurement: str
    tags: list[tuple[str, str]]
    """In the order of the line."""
    fields: bytes
    """JSON object of the fields. Integers have no decimal point, and floats have one or an exponent."""
    time: int | None
    """In the request's unit; None where the line has none."""


def lines_of(body: bytes) -> Iterator[bytes]:
    """Yield the lines that may be points, without comments and empty ones. A string may have line breaks in it."""
    if b'"' not in body:
        for line in body.split(b"\n"):
            if (found := line.strip(b" \r\t\0")) and not found.startswith(b"#"):
                yield found
        return
    begin, size = 0, len(body)
    while begin < size:
        end = _end_of_line(body, begin)
        if (found := body[begin:end].strip(b" \r\t\0")) and not found.startswith(b"#"):
            yield found
        begin = end + 1


def _end_of_line(body: bytes, begin: int) -> int:
    """Return the end of the line that begins at an offset: at a line break outside of a string, or at the first one
    after the maximum length of a line. Each byte is read once."""
    first = body.find(b"\n", begin)
    first = len(body) if first < 0 else first
    if body.find(b'"', begin, first) < 0 or body[begin:first].lstrip().startswith(b"#"):
        return first
    until = min(begin + LINE_BYTES_MAX + 1, len(body))
    match = _LINE.match(body, begin, until)
    assert match is not None
    end = match.end()
    if end < until or until == len(body):
        return end
    end = body.find(b"\n", end)
    return len(body) if end < 0 else end


def parse_line(line: bytes) -> Point:
    """Return the point of a line.

    Raises:
        BadLine: it is not a point.
    """
    if len(line) > LINE_BYTES_MAX:
        raise BadLine(f"a line of more than {LINE_BYTES_MAX} bytes")
    match = _MEASUREMENT.match(line)
    if match is None or not match[1]:
        raise BadLine("missing measurement")
    measurement, at = _text(match[1], "measurement"), match.end()
    tags: list[tuple[str, str]] = []
    if match[2] == b",":
        tags, at = _tags(line, at)
    elif not match[2]:
        raise BadLine("missing fields")
    while line[at : at + 1] == b" ":
        at += 1
    fields, at = _fields(line, at)
    rest = line[at:].strip()
    if not rest:
        return Point(measurement, tags, fields, None)
    if _TIME.fullmatch(rest) is None or int(rest) not in _INT64:
        raise BadLine("bad timestamp")
    return Point(measurement, tags, fields, int(rest))


def _tags(line: bytes, at: int) -> tuple[list[tuple[str, str]], int]:
    tags: list[tuple[str, str]] = []
    while True:
        name = _TOKEN.match(line, at)
        if name is None or not name[1] or name[2] != b"=":
            raise BadLine("missing tag key" if name is not None and name[2] == b"=" else "missing tag value")
        value = _TOKEN.match(line, name.end())
        if value is None or not value[1]:
            raise BadLine("missing tag value")
        if value[2] == b"=":
            raise BadLine("invalid tag format")
        tags.append((_text(name[1], "tag"), _text(value[1], "tag")))
        at = value.end()
        if not value[2]:
            raise BadLine("missing fields")
        if value[2] == b" ":
            break
        if len(tags) >= PAIRS_MAX:
            raise BadLine(f"more than {PAIRS_MAX} tags")
    if len({name for name, _ in tags}) != len(tags):
        raise BadLine("duplicate tags")
    return tags, at


def _fields(line: bytes, at: int) -> tuple[bytes, int]:
    found: dict[str, msgspec.Raw] = {}
    while True:
        name = _TOKEN.match(line, at)
        if name is None or name[2] != b"=":
            raise BadLine("missing fields" if not found else "invalid field format")
        if not name[1]:
            raise BadLine("missing field key")
        value, at = _value(line, name.end())
        found[_text(name[1], "field")] = msgspec.Raw(value)
        following = line[at : at + 1]
        if following == b",":
            at += 1
            if len(found) >= PAIRS_MAX:
                raise BadLine(f"more than {PAIRS_MAX} fields")
            continue
        if following not in (b"", b" "):
            raise BadLine("invalid field format")
        return msgspec.json.encode(found), at


def _value(line: bytes, at: int) -> tuple[bytes, int]:
    """Return a value in JSON, and its end."""
    if line[at : at + 1] == b'"':
        match = _STRING.match(line, at)
        if match is None:
            raise BadLine("unbalanced quotes")
        text = match[1]
        if b"\\" in text:
            text = _ESCAPE_IN_STRING.sub(rb"\1", text)
        try:
            return msgspec.json.encode(text.decode()), match.end()
        except UnicodeDecodeError:
            raise BadLine("a string that is not UTF-8") from None
    match = _NUMBER.match(line, at)
    assert match is not None
    value, end = match[0], match.end()
    if not value:
        raise BadLine("missing field value")
    if value in _BOOLEANS:
        return _BOOLEANS[value], end
    kind = value[-1:]
    if kind == b"i" and _INTEGER.fullmatch(value[:-1]) and int(value[:-1]) in _INT64:
        return b"%d" % int(value[:-1]), end
    if kind == b"u" and _UNSIGNED.fullmatch(value[:-1]) and int(value[:-1]) in _UINT64:
        return b"%d" % int(value[:-1]), end
    if len(value) <= NUMBER_BYTES_MAX and _FLOAT.fullmatch(value) and math.isfinite(float(value)):
        if _JSON_NUMBER.fullmatch(value) is None:
            return repr(float(value)).encode(), end
        return (value if _POINT.search(value) else value + b".0"), end  # `98` is a float, like `98.5`
    raise BadLine("invalid number" if value[:1] in b"+-.0123456789" else "invalid boolean")


def _text(raw: bytes, what: str) -> str:
    if b"\\" in raw:
        raw = _ESCAPE.sub(rb"\1", raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadLine(f"a {what} that is not UTF-8") from None


_UNITS = {
    "": 1,
    "ns": 1,
    "n": 1,
    "us": 1_000,
    "u": 1_000,
    "µ": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
SLICE = 16
"""Number of lines parsed before others may have their turn."""
_NS_MAX = (1 << 63) - 1
_PLACE = re.compile(r"\{([^{}/]+)\}")
_SPECIAL = re.compile(r"[%/+#\0]")
_LATER = "points were rejected after others of this request were stored:"
MEASUREMENT = "measurement"
"""Placeholder for the measurement in a bucket's name."""
_PLAIN = (("X-Influxdb-Build", "OSS"),)


class Influx:
    """Handler of points. Belongs to the event loop's thread."""

    def __init__(self, storing: Storing, settings: HttpSettings, counters: HttpCounters) -> None:
        self._storing = storing
        self._settings = settings
        self._counters = counters

    def write(self, exchange: HttpExchange, *, is_v2: bool) -> Iterator[None]:
        """Store the points of a request, in steps.

        Raises:
            Problem: nothing was stored.
        """
        request = exchange.request
        query = request.query
        bucket = query.get("bucket" if is_v2 else "db", "")
        if not bucket:
            raise Problem(400, f"the query names no {'bucket' if is_v2 else 'db'}; it is the beginning of topics here")
        unit = _UNITS.get(query.get("precision", ""))
        if unit is None:
            raise Problem(400, f"precision {quoted(query['precision'])} is not known; send ns, us, ms or s")
        coding = request.header(b"content-encoding")
        body = yield from bodies.expanded(request.payload(), coding, request.bytes_max)
        records: list[NewRecord] = []
        first_error, dropped = "", 0
        is_checked, bytes_left = self._storing.has_checks, CHECKED_SLICE_BYTES
        for count, line in enumerate(lines_of(body)):
            if count % SLICE == SLICE - 1 or bytes_left <= 0:
                bytes_left = CHECKED_SLICE_BYTES
                yield
            if count >= self._settings.records_max:
                raise Problem(413, f"more than {self._settings.records_max} points; send fewer at a time")
            try:
                record = _record(parse_line(line), bucket, unit)
                record = self._storing.checked(exchange, None, record)
                records.append(record.packed())
                bytes_left -= check_cost(len(line), record.misfits) if is_checked else 0
            except (BadLine, Problem) as error:
                dropped += 1
                bytes_left -= MISFIT_COST * len(line) if is_checked else 0
                first_error = first_error or f"unable to parse {quoted(line.decode(errors='replace'))}: {error}"
                if isinstance(error, Problem) and error.status == 403:
                    raise
        if dropped and not records:
            raise Problem(400, f"{first_error}; none of {dropped} points was stored")
        self._counters.http_messages += len(records)
        answer = partial(_answer, first_error or _LATER, dropped + len(records))
        yield from self._storing.store(exchange, None, records, once_of(request), answer) or ()

    def answer(self, exchange: HttpExchange, path: bytes, software: str) -> None:
        """Answer the requests that clients send before they write: pings, and the creation of a database.

        Raises:
            Problem: it cannot be answered.
        """
        request = exchange.request
        fields = (("X-Influxdb-Version", software), *_PLAIN)
        if path == b"/query":
            self._query(exchange, request)
        elif request.method not in ("GET", "HEAD"):
            raise Problem(405, "only GET is possible here; send that", fields=(("Allow", "GET, HEAD"),))
        elif path == b"/ping":
            exchange.answer(204, fields=fields)
        else:
            facts = {"name": "weft", "message": "ready for writes", "status": "pass", "version": software}
            exchange.answer(200, msgspec.json.encode(facts), fields=fields)

    def _query(self, exchange: HttpExchange, request: Request) -> None:
        text = request.query.get("q", "")
        if not text and request.size:
            from urllib.parse import parse_qs

            text = parse_qs(request.payload().decode(errors="replace"), max_num_fields=8).get("q", [""])[0]
        if not text.strip().upper().startswith("CREATE DATABASE"):
            raise Problem(400, "nothing can be queried here; query the tables, or the node with `weft edge query`")
        exchange.answer(200, b'{"results":[{"statement_id":0}]}')


def _answer(error: str, lines: int, exchange: HttpExchange, _seqs: list[tuple[int, int]], count: int) -> None:
    dropped = lines - count
    if dropped:
        exchange.fail(Problem(400, f"partial write: {error} dropped={dropped}"))
    else:
        exchange.answer(204)


def _record(point: Point, bucket: str, unit: int) -> NewRecord:
    headers: list[tuple[str, HeaderValue]] = [(stored_name(name), value) for name, value in point.tags]
    if point.time is not None:
        time = point.time * unit
        if not 0 <= time <= _NS_MAX:
            raise BadLine("time outside range")
        headers.append((SENT, time))
    return NewRecord(_key(point, bucket), point.fields, tuple(headers))


def _key(point: Point, bucket: str) -> bytes:
    """Return the topic of a point: ``BUCKET/MEASUREMENT/TAG VALUE/...`` in the order of the tags' names, or the
    bucket's name with its placeholders filled."""
    if "{" not in bucket:
        values = [value for _, value in sorted(point.tags)]
        return "/".join([bucket, *map(_level, (point.measurement, *values))]).encode()
    tags = dict(point.tags)
    tags.setdefault(MEASUREMENT, point.measurement)
    missing = ""

    def value_of(match: re.Match[str]) -> str:
        nonlocal missing
        found = tags.get(match[1])
        if found is None:
            missing = missing or match[1]
            return ""
        return _level(found)

    key = _PLACE.sub(value_of, bucket)
    if missing:
        raise BadLine(f"no tag {missing!r}, for which the bucket's name has a place")
    return key.encode()


def _level(text: str) -> str:
    """Return text as one level of a topic: special characters are escaped as in URLs."""
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", text) if _SPECIAL.search(text) else text
