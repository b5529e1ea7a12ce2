"""Every line of a node's log has its time and zone, is one line, and is not longer than it may be."""

from __future__ import annotations

import logging
import re
import sys

import pytest

from weft.service.serving import LINE_CHARACTERS_MAX, LineFormatter

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")


def line(message: str, *arguments: object, error: bool = False) -> str:
    try:
        raise ValueError("a client sent \x1b[31m this")
    except ValueError:
        info = sys.exc_info() if error else None
    return LineFormatter().format(logging.LogRecord("part", logging.INFO, "", 0, message, arguments, info))


def test_the_time_is_iso_8601_in_utc_to_the_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    record = logging.LogRecord("part", logging.WARNING, "", 0, "said", (), None)
    record.created, record.msecs = 1_763_625_086.0625, 62.5
    assert LineFormatter().format(record) == "2025-11-20T07:51:26.062Z WARNING part: said"


@pytest.mark.parametrize(
    "hostile", ["a\nb", "a\r\nb", "a\x1b[2Jb", "a\x00b", "a\x85b", "a\u2028b", "a\x9b31mb", "a\u202eb", "a\u2066b"]
)
def test_what_a_client_wrote_is_one_line_and_drives_no_terminal(hostile: str) -> None:
    written = line("client %s", hostile)
    assert TIME.match(written)
    assert len(written.splitlines()) == 1
    assert written.isprintable()
    assert "a\\" in written


def test_a_line_is_bounded_and_says_that_it_was_longer() -> None:
    written = line("client %s", "x" * 1_000_000)
    assert len(written) < LINE_CHARACTERS_MAX + 200
    assert written.endswith("... (1,000,007 characters)")


def test_a_traceback_keeps_its_lines_and_is_escaped_too() -> None:
    written = line("failed", error=True)
    assert "Traceback (most recent call last):\n" in written
    assert written.endswith("ValueError: a client sent \\x1b[31m this")
