"""The lines of ``weft hub status`` about the issuer of tokens."""

from __future__ import annotations

import pytest

from weft.text.fleet import show_issuer

FACTS = {
    "issuer": "https://login.test", "key_set": "https://login.test/keys", "keys": 2, "passed_over": 0,
    "read_seconds_ago": 7300.0, "kept_until": "2027-01-15T08:10:00.000000000Z", "failing_seconds": 7200.0,
    "trouble": "no answer within 10 s",
}  # fmt: skip


def test_keys_that_cannot_be_read_are_named_with_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    show_issuer(FACTS)
    assert capsys.readouterr().out == (
        "JWT: the key set https://login.test/keys could not be read for 2.0 hours, its 2 keys may be used until "
        "2027-01-15T08:10:00.000000000Z: no answer within 10 s\n"
    )
    show_issuer({**FACTS, "keys": 0})
    assert "its tokens open nothing: no answer" in capsys.readouterr().out
    for quiet in (None, {**FACTS, "trouble": None}):
        show_issuer(quiet)
    assert capsys.readouterr().out == ""
