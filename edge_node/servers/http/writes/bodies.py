"""Bodies of requests: unpacked within a bound, and split into messages whose bytes stay unchanged."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator

import msgspec
import zstandard

from weft.edge_node.servers.http.problem import Problem, quoted
from weft.edge_node.servers.http.request import LongestBody
from weft.edge_node.servers.http.writes.fields import NO_JSON

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
_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-lines",
          "application/jsonlines", "application/x-jsonlines")  # fmt: skip
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
            raise Problem(415, f"the coding {quoted(coding)} is not known; send gzip, zstd or none",
                          fields=(("Accept-Encoding", "gzip, zstd"),))  # fmt: skip
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
        raise Problem(400, f"the body is no {coding}: {error}; send it again") from None
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
        raise Problem(400, f"the body is no JSON array: {error}; correct it") from None
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
            raise Problem(400, f"line {number} is no JSON: {error}; nothing was stored, correct it") from None
        found.append(value)
        if len(found) > records_max:
            raise _too_many(records_max)
    return found


def _too_many(records_max: int) -> Problem:
    return Problem(413, f"the body has more than {records_max} messages; send fewer at a time")
