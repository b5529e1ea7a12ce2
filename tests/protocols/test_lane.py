"""Names are safe wherever they end up, and a lane reads as one line."""

from __future__ import annotations

import pytest

from weft.protocols.lane import NAME_CHARACTERS_MAX, Lane, Origin, by_number, format_log_id, origin_text, valid_name


@pytest.mark.parametrize("name", ["a", "7", "line-4_press", "x" * NAME_CHARACTERS_MAX])
def test_names_that_are_allowed(name: str) -> None:
    assert valid_name(name)


@pytest.mark.parametrize(
    "name", ["", "-a", "_a", "A", "a b", "a/b", "..", "a.b", "ä", "a\n", "٣", "x" * (NAME_CHARACTERS_MAX + 1)]
)
def test_names_that_would_be_unsafe_in_a_path_url_or_query(name: str) -> None:
    assert not valid_name(name)


def test_a_lane_reads_as_one_line() -> None:
    assert str(Lane("default", "pi-4", 0xAB, "telemetry")) == "default/pi-4/00000000000000ab/telemetry"


def test_log_ids_have_sixteen_digits() -> None:
    assert format_log_id((1 << 64) - 1) == "f" * 16


# --- Texts of origins, as tables and people see them


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
