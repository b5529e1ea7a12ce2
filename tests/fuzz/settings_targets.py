"""Targets of what a hub sends an edge as settings: their text, before it is known who signed it."""

from __future__ import annotations

from tests.fuzz.target import Target
from weft.config.signing import SignatureUnreadable, Statement, read_signed, with_signature

TEXT = "streams: {alarms: {from: 'alarms/#'}}\n"


def _signed(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        found = read_signed(text)
    except SignatureUnreadable:
        return
    if found is not None:
        assert text.startswith(found.text)
        again = with_signature(found.text, found.statement, found.key, found.signature)
        assert read_signed(again) == found, "a statement is read as it is signed"
        assert found.message.endswith(b"\n")


def _seeds() -> list[bytes]:
    lists = ("press-*", *(f"oven-{n}" for n in range(200)))
    statements = [
        Statement("acme", "edge press-7", ("press-7",), 0, 1),
        Statement("acme", "group presses", lists, -1000, (1 << 63) - 1, ("group old", "edge press-8")),
    ]
    signed = [with_signature(TEXT, each, "0123456789abcdef", bytes(range(64))) for each in statements]
    wrong = [signed[0].replace("signature: 1", "signature: 2"), signed[0] + "x", "# weft-signature: \n" * 50]
    return [each.encode() for each in (TEXT, "", *signed, signed[0] + signed[1], *wrong)]


TARGETS = {"signed-settings": Target(_signed, _seeds, memory_per_byte=24)}
