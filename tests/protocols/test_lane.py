"""Names are safe wherever they end up, and a lane reads as one line."""

from __future__ import annotations

import pytest

from weft.protocols.lane import NAME_CHARACTERS_MAX, Lane, format_log_id, valid_name


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
