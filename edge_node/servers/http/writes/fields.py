"""Keys, times and headers of messages, from fields of a request's head or of the messages themselves."""

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from weft.edge_node.servers.http.problem import Problem, quoted
from weft.edge_node.servers.http.request import Request
from weft.network.tracing.context import TRACEPARENT, TRACESTATE, TRACESTATE_CHARACTERS_MAX, parse
from weft.protocols.batch import HeaderPairs
from weft.protocols.columns import HeaderValue
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

OWN = b"weft-header-"
HEADERS_MAX = 64
"""Maximum number of headers of a message by HTTP, CloudEvents' attributes included."""
PLACES_MAX = 32
"""Maximum number of fields that key and time may need: each message is searched for them."""
REMEMBERED_MAX = 512
"""Longest key, with placeholders or without, that is remembered."""
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_TEXTS = {b"weft-correlation-id": CORRELATION_ID, b"weft-message-id": MESSAGE_ID, b"weft-reply-to": REPLY_TO,
          b"weft-subject": SUBJECT}  # fmt: skip
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
        400, f"{quoted(str(value))} is no time; send it as 2026-01-31T12:00:00Z, or as a number since 1970 with its "
        "unit in Weft-Time-Precision (s, ms, us or ns)"
    )  # fmt: skip


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
            raise Problem(400, f"a message is no JSON object with the fields that key and time need: {error}") from None
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
