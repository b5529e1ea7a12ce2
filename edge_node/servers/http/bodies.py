"""Bodies of requests: unpacked within a bound, and split into messages whose bytes stay unchanged."""

from __future__ import annotations

import base64
import binascii
import functools
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import zstandard

from weft.edge_node.servers.http.request import LongestBody, Problem, Request, quoted
from weft.network.tracing import TRACEPARENT, TRACESTATE, TRACESTATE_CHARACTERS_MAX, parse
from weft.protocols.batch import HeaderPairs, HeaderValue
from weft.protocols.message_headers import (
    CONTENT_TYPE,
    CORRELATION_ID,
    EXPIRES,
    MESSAGE_ID,
    PRIORITY,
    REPLY_TO,
    SENT,
    SUBJECT,
    stored_name,
)

# Keys, times and headers of messages, from fields of a request's head or of the messages themselves.

OWN = b"weft-header-"
HEADERS_MAX = 64
"""Maximum number of headers of a message by HTTP, CloudEvents' attributes included."""
PLACES_MAX = 32
"""Maximum number of fields that key and time may need: each message is searched for them."""
REMEMBERED_MAX = 512
"""Longest key, with placeholders or without, that is remembered."""
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_TEXTS = {
    b"weft-correlation-id": CORRELATION_ID,
    b"weft-message-id": MESSAGE_ID,
    b"weft-reply-to": REPLY_TO,
    b"weft-subject": SUBJECT,
}
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"-?[0-9]{1,15}\.[0-9]{1,15}")
_STRING = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_ESCAPED = re.compile(r"\\(.)")
_BYTES = re.compile(r":([A-Za-z0-9+/=]*):")
_NO_NAME = re.compile(r'[\x00-\x1f"\\]')
_PLACE = re.compile(r"\{([^{}/]*)\}")
_NUMBER = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?")
_FRACTION = re.compile(r"(?<=:[0-9]{2})\.([0-9]{1,30})")
_NS_MAX = (1 << 63) - 1
NO_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of the decoder for bytes that are not JSON, or are nested too deeply."""


# --- headers


def typed(text: str) -> HeaderValue:
    """Return the value of a header: a bare item of RFC 9651, or plain text.

    ``42`` is an integer, ``4.5`` a float, ``?1`` true, ``:YWJj:`` bytes, ``"42"`` text; an empty value is nil.
    """
    text = text.strip()
    if not text:
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if text in ("?0", "?1"):
        return text == "?1"
    if match := _STRING.fullmatch(text):
        return _ESCAPED.sub(r"\1", match[1])
    if match := _BYTES.fullmatch(text):
        try:
            return base64.b64decode(match[1], validate=True)
        except binascii.Error:
            return text
    return text


def headers_of(request: Request, now_ns: int) -> list[tuple[str, HeaderValue]]:
    """Return the headers that a request sets for all of its messages.

    Raises:
        Problem: one cannot be parsed, or there are too many.
    """
    found: list[tuple[str, HeaderValue]] = []
    if b"traceparent" in request.headers:
        found += trace_context(request)
    for name, value in request.fields:
        if not name.startswith(b"weft-"):
            continue
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise Problem(400, f"the field {name.decode()} is not UTF-8; send bytes as `:BASE64:`") from None
        if name.startswith(OWN):
            found.append((stored_name(name[len(OWN) :].decode()), typed(text)))
        elif name in _TEXTS:
            item = typed(text)
            found.append((_TEXTS[name], item if isinstance(item, str | bytes) else text))
        elif name == b"weft-priority":
            found.append((PRIORITY, _whole_number(name, text)))
        elif name == b"weft-expiry":
            found.append((EXPIRES, min(now_ns + _whole_number(name, text) * 1_000_000_000, _NS_MAX)))
    if len(found) > HEADERS_MAX:
        raise Problem(400, f"a message may have {HEADERS_MAX} headers; send fewer")
    return found


def trace_context(request: Request) -> list[tuple[str, HeaderValue]]:
    """Return the headers of W3C Trace Context; none if they are not valid, which is no reason to refuse a message."""
    parent, state = (
        request.headers.get(name, b"").decode("ascii", "replace") for name in (b"traceparent", b"tracestate")
    )
    if parse(parent) is None:
        return []
    is_kept = 0 < len(state) <= TRACESTATE_CHARACTERS_MAX and state.isascii() and state.isprintable()
    return [(TRACEPARENT, parent.strip()), *([(TRACESTATE, state)] if is_kept else [])]


@functools.lru_cache(maxsize=256)
def media_type_of(content_type: str) -> str:
    """Return a media type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def with_content_type(headers: list[tuple[str, HeaderValue]], content_type: str) -> HeaderPairs:
    """Return headers with the type of the payload, if it has a meaningful one."""
    if content_type and media_type_of(content_type) != "application/x-www-form-urlencoded":  # curl's default
        headers = [*headers, (CONTENT_TYPE, content_type)]
    return tuple(headers)


def _whole_number(name: bytes, text: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", text.strip()):
        raise Problem(400, f"{name.decode()} is {quoted(text)}; send a whole number from 0")
    return int(text)


# --- times


def nanoseconds(value: Any, precision: str) -> int:
    """Return a time in nanoseconds since 1970.

    Args:
        value: text in the form of RFC 3339, or a number.
        precision: unit of numbers.

    Raises:
        Problem: it is not a time.
    """
    unit = 1_000_000_000 // PER_SECOND[precision]
    if isinstance(value, str):
        number = _NUMBER.fullmatch(value)
        found = _rfc3339(value) if number is None else int(Decimal(value) * unit)
    elif isinstance(value, int) and not isinstance(value, bool):
        found = value * unit
    elif isinstance(value, float) and abs(value) < 1e18:
        found = round(value * unit)
    else:
        raise _no_time(value)
    if not 0 <= found <= _NS_MAX:
        raise _no_time(value)
    return found


def _rfc3339(text: str) -> int:
    """Return nanoseconds since 1970. Python's dates have microseconds: the fraction is parsed separately."""
    fraction = _FRACTION.search(text)
    whole = text if fraction is None else text[: fraction.start()] + text[fraction.end() :]
    try:
        found = msgspec.convert(whole, datetime)
    except msgspec.ValidationError:
        raise _no_time(text) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp()) * 1_000_000_000 + (int(fraction[1][:9].ljust(9, "0")) if fraction else 0)


def _no_time(value: object) -> Problem:
    return Problem(
        400,
        f"{quoted(str(value))} is not a time; send it as 2026-01-31T12:00:00Z, or as a number since 1970 with "
        "the unit in Weft-Time-Precision (s, ms, us or ns)",
    )


# --- fields of messages


def placed(key: str, time_field: str, precision: str) -> Placed:
    """Return the extractor of keys and times; equal requests share it, unless the key is long.

    Raises:
        Problem: as ``Placed``.
    """
    is_short = len(key) + len(time_field) <= REMEMBERED_MAX
    return (_placed if is_short else Placed)(key, time_field, precision)


@functools.lru_cache(maxsize=1024)
def _placed(key: str, time_field: str, precision: str) -> Placed:
    return Placed(key, time_field, precision)


class Placed:
    """Extractor of keys and times for the messages of a request: the key may have placeholders for fields, such as
    ``plant/{line}/{machine}``."""

    def __init__(self, key: str, time_field: str, precision: str) -> None:
        """Parse the request's parameters.

        Raises:
            Problem: they are not valid.
        """
        if precision not in PER_SECOND:
            raise Problem(400, f"Weft-Time-Precision is {quoted(precision)}; send s, ms, us or ns")
        parts = _PLACE.split(key)
        self._texts, self._names = parts[::2], parts[1::2]
        self._time_field = time_field
        self._precision = precision
        self._key = key.encode()
        wanted = tuple(dict.fromkeys([*self._names, *([time_field] if time_field else [])]))
        if len(wanted) > PLACES_MAX:
            raise Problem(400, f"key and time need {len(wanted)} fields of a message; name up to {PLACES_MAX}")
        for name in wanted:
            if _NO_NAME.search(name):
                raise Problem(400, f"the field {quoted(name)} cannot be looked for; rename it in the messages")
        self._decode = _decoder(wanted) if wanted else None

    @property
    def is_plain(self) -> bool:
        """Return whether messages need not be parsed."""
        return self._decode is None

    def key_and_time(self, payload: bytes) -> tuple[bytes, int | None]:
        """Return key and time of a message; None for the time without ``time_field``.

        Raises:
            Problem: the message lacks a needed field.
        """
        if self._decode is None:
            return self._key, None
        try:
            fields = self._decode(payload)
        except NO_JSON as error:
            raise Problem(400, f"a message is not a JSON object with the fields for key and time: {error}") from None
        key = self._key
        if self._names:
            key = _filled(self._texts, [(name, fields.get(name)) for name in self._names]).encode()
        time = None
        if self._time_field:
            value = fields.get(self._time_field)
            if value is None:
                raise Problem(400, f"a message has no field {quoted(self._time_field)} for its time; send it")
            time = nanoseconds(value, self._precision)
        return key, time


def fill(key: str, value_of: Callable[[str], Any]) -> str:
    """Return a key with its placeholders filled.

    Raises:
        Problem: a value is not allowed in a key.
    """
    parts = _PLACE.split(key)
    return _filled(parts[::2], [(name, value_of(name)) for name in parts[1::2]]) if len(parts) > 1 else key


def _filled(texts: list[str], values: list[tuple[str, Any]]) -> str:
    parts = [texts[0]]
    for (name, value), text in zip(values, texts[1:], strict=True):
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise Problem(400, f"the key needs the field {quoted(name)} as text or a number; send it")
        level = str(value)
        if not level or any(character in level for character in "/+#\0"):
            raise Problem(400, f"the field {quoted(name)} is {quoted(level)}, which cannot be a level of a key")
        parts += [level, text]
    return "".join(parts)


@functools.lru_cache(maxsize=256)
def _decoder(names: tuple[str, ...]) -> Callable[[bytes], dict[str, Any]]:
    """Return a decoder of the fields with some names, and no others."""
    fields = [(f"field_{number}", Any, None) for number in range(len(names))]
    rename = {f"field_{number}": name for number, name in enumerate(names)}
    kind = msgspec.defstruct("Fields", fields, rename=rename, gc=False)
    decode = msgspec.json.Decoder(kind).decode

    def decoded(payload: bytes) -> dict[str, Any]:
        found = decode(payload)
        return {name: getattr(found, f"field_{number}") for number, name in enumerate(names)}

    return decoded


def sent(headers: HeaderPairs, time: int | None) -> HeaderPairs:
    """Return headers with the time at which a message was created."""
    return headers if time is None else (*headers, (SENT, time))


_GZIP = 16 + zlib.MAX_WBITS
_WINDOW_BYTES_MAX = 8 << 20
"""Memory that a zstd frame may ask for; RFC 8878 recommends that all decoders have that much."""
PARTS_MAX = 16
"""Maximum number of gzip members or zstd frames in a body. A packer makes one; empty ones only cost work."""
PIECE_BYTES = 64 << 10
"""Bytes unpacked before others may have their turn."""
BLOCKS_IN_A_STEP = 4096
"""Blocks of a zstd frame that are skipped before others may have their turn."""
_SKIPPABLE = 0x184D2A50
_FRAME_HEADER_BYTES_MAX = 18
_REPEATED_BYTE = 1
_LINES = (
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/json-lines",
    "application/jsonlines",
    "application/x-jsonlines",
)
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE = msgspec.json.Decoder(msgspec.Raw)
COMMAS_FACTOR = 32
"""Commas for each message that a request may have: an array with more is not parsed, as it would create hundreds of
thousands of objects before it could be refused."""


def expanded(body: bytes, coding: str, longest: LongestBody) -> Generator[None, None, bytes]:
    """Return a body without its content coding, in steps.

    Args:
        coding: value of the field Content-Encoding.
        longest: bound on the unpacked body.

    Raises:
        Problem: the coding is not known, the body is damaged, of too many parts, or too long.
    """
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    found: list[bytes] = []
    try:
        if coding in ("gzip", "x-gzip"):
            pieces = _gunzip(body)
        elif coding == "zstd":
            pieces = _unzstd(body)
        else:
            raise Problem(
                415,
                f"the coding {quoted(coding)} is not known; send gzip, zstd or none",
                fields=(("Accept-Encoding", "gzip, zstd"),),
            )
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > longest.size:
                what = f"longer than {longest.size} bytes unpacked ({longest.setting})"
                raise Problem(413, f"the body is {what}; send less at a time")
            found.append(piece)
            yield
    except EOFError:
        raise Problem(400, f"the body ends within its {coding}; send it again") from None
    except (zlib.error, zstandard.ZstdError) as error:
        raise Problem(400, f"the body is not valid {coding}: {error}; send it again") from None
    return b"".join(found)


def _gunzip(body: bytes) -> Iterator[bytes]:
    """Yield the unpacked members of a body (RFC 1952, 2.2).

    Raises:
        EOFError: the last one is incomplete.
    """
    view, at = memoryview(body), 0
    for _ in range(PARTS_MAX):
        unpacker = zlib.decompressobj(_GZIP)
        while not unpacker.eof:
            fed = view[at : at + PIECE_BYTES]
            piece = unpacker.decompress(fed, PIECE_BYTES)
            at += len(fed) - len(unpacker.unconsumed_tail) - len(unpacker.unused_data)
            if not fed and not piece and not unpacker.eof:
                raise EOFError
            yield piece
        if at == len(body):
            return
    raise _too_many_parts("gzip members")


def _unzstd(body: bytes) -> Iterator[bytes]:
    """Yield the unpacked frames of a body.

    Raises:
        EOFError: the last one is incomplete.
    """
    # The library copies all bytes behind a frame, and its readers treat truncated input as the end.
    at = 0
    for _ in range(PARTS_MAX):
        end = yield from _frame_end(body, at)
        unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
        with unpacker.stream_reader(memoryview(body)[at:end]) as reader:
            while piece := reader.read(PIECE_BYTES):
                yield piece
        at = end
        if at >= len(body):
            return
    raise _too_many_parts("zstd frames")


def _frame_end(body: bytes, at: int) -> Generator[bytes, None, int]:
    """Return the end of the zstd frame at an offset, in steps (RFC 8878, 3.1)."""
    if int.from_bytes(body[at : at + 4], "little") & ~0xF == _SKIPPABLE:
        end = at + 8 + int.from_bytes(body[at + 4 : at + 8], "little")
    else:
        head = body[at : at + _FRAME_HEADER_BYTES_MAX]
        has_checksum = zstandard.get_frame_parameters(head).has_checksum
        end, is_last, blocks = at + zstandard.frame_header_size(head), 0, 0
        while not is_last:
            block = int.from_bytes(body[end : end + 3], "little")
            if end + 3 > len(body):
                raise EOFError
            is_last, kind, size = block & 1, block >> 1 & 3, block >> 3
            end += 3 + (1 if kind == _REPEATED_BYTE else size)
            blocks += 1
            if blocks % BLOCKS_IN_A_STEP == 0:
                yield b""
        end += 4 if has_checksum else 0
    if end > len(body):
        raise EOFError
    return end


def _too_many_parts(parts: str) -> Problem:
    return Problem(413, f"the body has more than {PARTS_MAX} {parts}; pack it as one")


def is_lines(media_type: str) -> bool:
    """Return whether a media type is one of JSON values in lines."""
    return media_type in _LINES


def elements(body: bytes, records_max: int) -> list[bytes]:
    """Return the elements of a JSON array, each as its own bytes.

    Raises:
        Problem: it is not a JSON array, or has too many elements.
    """
    if body.count(b",") > records_max * COMMAS_FACTOR:
        raise _too_many(records_max)
    try:
        found = _ELEMENTS.decode(body)
    except NO_JSON as error:
        raise Problem(400, f"the body is not a JSON array: {error}; correct it") from None
    if len(found) > records_max:
        raise _too_many(records_max)
    return [bytes(each) for each in found]


def lines(body: bytes, records_max: int) -> list[bytes]:
    """Return the JSON values of lines, each as its own bytes.

    Raises:
        Problem: a line is not JSON, or there are too many.
    """
    found = []
    for number, line in enumerate(body.split(b"\n", 2 * records_max), 1):
        value = line.strip()
        if not value:
            continue
        try:
            _VALUE.decode(value)
        except NO_JSON as error:
            if number > 2 * records_max:
                raise _too_many(records_max) from None
            raise Problem(400, f"line {number} is not valid JSON: {error}; nothing was stored, correct it") from None
        found.append(value)
        if len(found) > records_max:
            raise _too_many(records_max)
    return found


def _too_many(records_max: int) -> Problem:
    return Problem(413, f"the body has more than {records_max} messages; send fewer at a time")
