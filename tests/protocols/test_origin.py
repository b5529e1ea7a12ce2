"""Texts of origins, as tables and people see them."""

from __future__ import annotations

import pytest

from weft.protocols.lane import Origin, by_number, origin_text

HASH = bytes.fromhex("8a1f03c4aabbccdd")


@pytest.mark.parametrize(
    ("kind", "version", "hash_", "text"),
    [
        (1, "2", HASH, "calm@2#8a1f03c4"),
        (1, "", HASH, "calm#8a1f03c4"),
        (1, "2", b"", "calm@2"),
        (1, "", b"", "calm"),
        (1, "8a1f03c4-model.7", HASH, "calm@8a1f03c4-model.7"),
        (2, "2", HASH, "schema:calm@2#8a1f03c4"),
        (77, "2", b"", "77:calm@2"),
    ],
)
def test_a_text_says_what_is_known_and_nothing_twice(kind: int, version: str, hash_: bytes, text: str) -> None:
    known = by_number([Origin(3, kind, "calm", version, hash_)])
    assert [origin_text(number, known) for number in (0, 3, 4)] == [None, text, "#4"]
