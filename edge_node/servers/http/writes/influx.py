"""InfluxDB's HTTP interface, as far as writing clients need it: Telegraf, the client libraries, and scripts.

A point becomes a record: measurement and tags form its key, fields its payload, a JSON object. The answer names lines
that are not points, and the others are stored, as InfluxDB does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import msgspec

from weft.edge_node.servers.http.counters import HttpCounters
from weft.edge_node.servers.http.exchange import Exchange
from weft.edge_node.servers.http.problem import Problem, quoted
from weft.edge_node.servers.http.request import Request
from weft.edge_node.servers.http.settings import HttpSettings
from weft.edge_node.servers.http.writes import bodies
from weft.edge_node.servers.http.writes.line_protocol import BadLine, Point, lines_of, parse_line
from weft.edge_node.servers.http.writes.posts import once_of
from weft.edge_node.servers.http.writes.records import CHECKED_SLICE_BYTES, MISFIT_COST, NewRecord, check_cost
from weft.edge_node.servers.http.writes.storing import Storing
from weft.protocols.columns import HeaderValue
from weft.protocols.message_headers import SENT, stored_name

_UNITS = {
    "": 1, "ns": 1, "n": 1, "us": 1_000, "u": 1_000, "µ": 1_000, "ms": 1_000_000, "s": 1_000_000_000,
    "m": 60_000_000_000, "h": 3_600_000_000_000,
}  # fmt: skip
SLICE = 16
"""Number of lines parsed before others may have their turn."""
_NS_MAX = (1 << 63) - 1
_PLACE = re.compile(r"\{([^{}/]+)\}")
_SPECIAL = re.compile(r"[%/+#\0]")
_LATER = "streams take some points only since others of this request were stored:"
MEASUREMENT = "measurement"
"""Placeholder for the measurement in a bucket's name."""
_PLAIN = (("X-Influxdb-Build", "OSS"),)


class Influx:
    """Handler of points. Belongs to the event loop's thread."""

    def __init__(self, storing: Storing, settings: HttpSettings, counters: HttpCounters) -> None:
        self._storing = storing
        self._settings = settings
        self._counters = counters

    def write(self, exchange: Exchange, *, is_v2: bool) -> Iterator[None]:
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
                record = _record(parse_line(line), bucket, unit)._replace(number=count + 1)
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

    def answer(self, exchange: Exchange, path: bytes, software: str) -> None:
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

    def _query(self, exchange: Exchange, request: Request) -> None:
        text = request.query.get("q", "")
        if not text and request.size:
            from urllib.parse import parse_qs

            text = parse_qs(request.payload().decode(errors="replace"), max_num_fields=8).get("q", [""])[0]
        if not text.strip().upper().startswith("CREATE DATABASE"):
            raise Problem(400, "nothing can be queried here; query the tables, or the node with `weft edge sql`")
        exchange.answer(200, b'{"results":[{"statement_id":0}]}')


def _answer(error: str, lines: int, exchange: Exchange, _seqs: list[tuple[int, int]], count: int) -> None:
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
