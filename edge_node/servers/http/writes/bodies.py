"""Bodies of requests: unpacked within a bound, and taken apart into messages whose bytes stay as they came."""

from __future__ import annotations

import zlib

import msgspec
import zstandard

from weft.edge_node.servers.http.problem import Problem, quoted
from weft.edge_node.servers.http.writes.fields import NO_JSON

_GZIP = 16 + zlib.MAX_WBITS
_WINDOW_BYTES_MAX = 8 << 20
"""Memory that a zstd frame may ask for; RFC 8878 recommends that all decoders have that much."""
_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-lines",
          "application/jsonlines", "application/x-jsonlines")  # fmt: skip
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE = msgspec.json.Decoder(msgspec.Raw)
COMMAS_FACTOR = 32
"""Commas for each message that a request may have: an array with more of them is not looked at, as it would make
hundreds of thousands of objects before it could be refused."""


def expanded(body: bytes, coding: str, bytes_max: int) -> bytes:
    """Return a body without its content coding.

    Args:
        coding: as the field Content-Encoding has it.
        bytes_max: longest body.

    Raises:
        Problem: the coding is not known, the body is damaged, or it is longer than that.
    """
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    try:
        if coding in ("gzip", "x-gzip"):
            found, is_whole = _gunzip(body, bytes_max + 1)
        elif coding == "zstd":
            found, is_whole = _unzstd(body, bytes_max + 1)
        else:
            raise Problem(415, f"the coding {quoted(coding)} is not known; send gzip, zstd or none",
                          fields=(("Accept-Encoding", "gzip, zstd"),))  # fmt: skip
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise Problem(400, f"the body is no {coding}: {error}; send it again") from None
    if len(found) > bytes_max:
        raise Problem(413, f"the body is longer than {bytes_max} bytes unpacked (limits.request); send less at a time")
    if not is_whole:
        raise Problem(400, f"the body ends within its {coding}; send it again")
    return found


def _gunzip(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """Return the beginning of what is packed, and whether it is all of it. A body may have several members."""
    parts, left = [], bytes_max
    while body and left > 0:
        unpacker = zlib.decompressobj(_GZIP)
        parts.append(unpacker.decompress(body, left))
        left -= len(parts[-1])
        if left > 0 and not unpacker.eof:
            return b"".join(parts), False
        body = unpacker.unused_data
    return b"".join(parts), True


def _unzstd(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """Return the beginning of what is packed, and whether it is all of it. A body may have several frames."""
    unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
    with unpacker.stream_reader(body, read_across_frames=True) as reader:
        found = reader.read(bytes_max)
    if len(found) >= bytes_max:
        return found, True
    # A reader takes what ends early for the end. It is known to be short now, so a look at all of it is cheap.
    while body:
        frame = unpacker.decompressobj()
        frame.decompress(body)
        if not frame.eof:
            return found, False
        body = frame.unused_data
    return found, True


def is_lines(media_type: str) -> bool:
    """Return whether a media type is one of JSON values in lines."""
    return media_type in _LINES


def elements(body: bytes, records_max: int) -> list[bytes]:
    """Return the elements of a JSON array, each as its own bytes.

    Raises:
        Problem: it is no JSON array, or has too many elements.
    """
    if body.count(b",") > records_max * COMMAS_FACTOR:
        raise _too_many(records_max)
    try:
        found = _ELEMENTS.decode(body)
    except NO_JSON as error:
        raise Problem(400, f"the body is no JSON array: {error}; correct it") from None
    if len(found) > records_max:
        raise _too_many(records_max)
    return [bytes(each) for each in found]


def lines(body: bytes, records_max: int) -> list[bytes]:
    """Return the JSON values of lines, each as its own bytes.

    Raises:
        Problem: a line is no JSON, or there are too many.
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
            raise Problem(400, f"line {number} is no JSON: {error}; nothing was stored, correct it") from None
        found.append(value)
        if len(found) > records_max:
            raise _too_many(records_max)
    return found


def _too_many(records_max: int) -> Problem:
    return Problem(413, f"the body has more than {records_max} messages; send fewer at a time")
