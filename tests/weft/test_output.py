"""What commands print for people stays in its columns, and loses nothing on a narrow terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
from collections.abc import Callable

import pytest

from weft.output import counted, print_facts, print_table
from weft.text.rows import print_rows

_STYLE = re.compile("\x1b\\[[0-9;]*m")


def on_a_terminal(columns: int, show: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a terminal so wide gets."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as file, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", file)
        show()
    text = b""
    with contextlib.suppress(OSError):  # EIO: everything was read
        while part := os.read(controller, 1 << 16):
            text += part
    os.close(controller)
    return [line.rstrip() for line in _STYLE.sub("", text.decode()).splitlines()]


def test_long_facts_are_wrapped_in_their_column(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"log": "word " * 20, "next start": "first\nsecond"}
    lines = on_a_terminal(40, lambda: print_facts(facts), monkeypatch)
    assert lines[0].startswith("log         word word")
    assert max(map(len, lines)) <= 40
    assert lines[-2:] == ["next start  first", "            second"]
    assert {line[:12] for line in lines[1:-2]} == {" " * 12}


def test_a_table_says_every_name_in_full_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("press-shop", 200_760, 6_022_300, 0, 0), ("a-stream-with-a-name-that-is-long", 1, 1, 0, 0)]
    columns = ("stream", "in the log", "next seq", "lost", "waiting for the disk")
    lines = on_a_terminal(60, lambda: print_table(columns, rows), monkeypatch)
    assert max(map(len, lines)) <= 60
    assert "…" not in "".join(lines)
    (press_shop,) = [line for line in lines if "press-shop" in line]
    assert press_shop.split() == ["press-shop", "200760", "6022300", "0", "0"]


def test_wide_characters_do_not_shift_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("a", "b"), [("漢字", 1), ("kanji", 2)], "table")
    assert capsys.readouterr().out.splitlines() == ["a      b", "-----  -", "漢字   1", "kanji  2"]


def test_counts() -> None:
    assert (counted(0, "stream"), counted(1, "stream"), counted(2, "stream")) == ("0 streams", "1 stream", "2 streams")
