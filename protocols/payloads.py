"""Declared kinds of a stream's payloads, and checks of payloads against them.

Reading a payload never changes it: text is exactly the UTF-8 of its bytes. A payload that is not of its stream's kind
remains bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from itertools import accumulate

import msgspec


class PayloadKind(IntEnum):
    """Declared kind of a stream's payloads. The numbers are in HELLO, in chunks and in snapshots.

    A later release may declare other kinds. They are kept as received, and mean ``BYTES`` here.
    """

    BYTES = 0
    TEXT = 1
    """UTF-8."""
    JSON = 2
    """One JSON value (RFC 8259)."""

    @property
    def label(self) -> str:
        """Return the name in settings, in table properties and for people: ``bytes``, ``text`` or ``json``."""
        return self.name.lower()


PAYLOAD_BYTES_MAX = 1 << 20
"""Longest payload whose values are decoded. A decoded byte may take 80 bytes of memory; longer payloads are files, not
readings. Of them are only bytes, text and, for JSON, the syntax known."""
SLICE_BYTES = 64 << 10
"""Bytes of a payload that are looked at in one call, which holds the interpreter: some 2 ms."""
NESTING_MAX = 128
"""Deepest nesting that counts as JSON: readers have limits of their own (Polars has this one), and a payload must be
JSON for every reader, independently of the free stack."""
_SYNTAX = msgspec.json.Decoder(msgspec.Raw)
"""Checker that walks a value without building it: a payload of a megabyte of brackets costs no memory, and 2 ms."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


LABELS = tuple(kind.label for kind in PayloadKind)


def kind_labelled(label: str) -> PayloadKind | None:
    """Return the kind with a label in settings; None if there is none."""
    return next((kind for kind in PayloadKind if kind.label == label), None)


def label_of(number: int) -> str:
    """Return the label of a declared kind, which may be a later release's."""
    return next((kind.label for kind in PayloadKind if kind == number), f"kind {number}")


def strictest(kinds: Iterable[int]) -> PayloadKind:
    """Return the payload kind of a stream whose edges declare ``kinds``: the kind with the strictest rules for a
    payload.

    The order of the edges does not matter, so every reader of the log gets the same result.
    """
    known = frozenset(PayloadKind)
    return max((PayloadKind(kind) for kind in kinds if kind in known), default=PayloadKind.BYTES)


def is_text(payload: bytes) -> bool:
    """Return whether a payload is UTF-8, without surrogates and overlong forms (RFC 3629)."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_json(payload: bytes) -> bool:
    """Return whether a payload that is UTF-8 is one JSON value, at most ``NESTING_MAX`` deep.

    At least as strict as DuckDB, whose JSON operators fail a whole query for one value that they cannot read. A lone
    surrogate (``"\\ud800"``) has no UTF-8 and is refused.
    """
    try:
        _SYNTAX.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return False
    return nests_at_most(NESTING_MAX, payload)


def nests_at_most(levels: int, payload: bytes) -> bool:
    """Return whether the arrays and objects of a JSON text are nested at most this deep.

    For a text that is not JSON, at least the part before its first error counts.
    """
    # Most payloads are short. Counting brackets is cheap; finding their nesting is not.
    if len(payload) <= levels or payload.count(b"[") + payload.count(b"{") <= levels:
        return True
    at = depth = 0
    is_inside = False  # of a string
    while at < len(payload):
        part = payload[at : at + SLICE_BYTES]
        if (len(part) - len(part.rstrip(b"\\"))) % 2 and len(part) > 1:
            part = part[:-1]  # it escapes what follows
        at += len(part)
        pieces = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        brackets = b"".join(pieces[is_inside::2]).translate(None, _NO_BRACKETS)
        is_inside ^= len(pieces) % 2 == 0
        found = [*accumulate(map(_STEPS.__getitem__, brackets), initial=depth)]
        depth = found[-1]
        if max(found) > levels:
            return False
    return True


def keeps(kind: PayloadKind, payload: bytes) -> bool:
    """Return whether a payload is of its stream's kind."""
    return is_text(payload) and (kind is not PayloadKind.JSON or is_json(payload))
