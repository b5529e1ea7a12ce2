"""The lines of ``weft hub status`` and ``weft streams``."""

from __future__ import annotations

import pytest
from msgspec import convert
from msgspec.structs import replace

from weft.hub_api.answers import StreamOf
from weft.hub_api.status import KeysOfIssuer
from weft.text.fleet import show_issuer, show_streams

FACTS = convert(
    {
        "issuer": "https://login.test",
        "key_set": "https://login.test/keys",
        "keys": 2,
        "passed_over": 0,
        "read_seconds_ago": 7300.0,
        "kept_until": "2027-01-15T08:10:00.000000000Z",
        "failing_seconds": 7200.0,
        "trouble": "no answer within 10 s",
    },
    KeysOfIssuer,
)


STREAM = convert(
    {
        "tenant": "default",
        "stream": "telemetry",
        "records": 3,
        "records_per_second": None,
        "table_rows": None,
        "next_offset": {},
        "lanes": 1,
        "edges": 1,
        "complete_up_to": None,
        "fields": ["line"],
        "payload": "bytes",
        "skipped": 0,
        "table": None,
    },
    StreamOf,
)


def test_columns_of_many_streams_do_not_hide_the_streams(capsys: pytest.CaptureFixture[str]) -> None:
    few, many = [STREAM] * 8, [replace(STREAM, stream=f"s{n}") for n in range(9)]
    show_streams(few, 0.0)
    assert "topic levels: line" in capsys.readouterr().out
    show_streams(many, 0.0)
    assert capsys.readouterr().out.splitlines()[10:] == ["", "9 streams: --columns shows the columns of their tables"]
    show_streams(many, 0.0, with_columns=True)
    assert capsys.readouterr().out.count("topic levels: line") == 9


def test_keys_that_cannot_be_read_are_named_with_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    show_issuer(FACTS)
    assert capsys.readouterr().out == (
        "JWT: the key set https://login.test/keys could not be read for 2.0 hours, its 2 keys may be used until "
        "2027-01-15T08:10:00.000000000Z: no answer within 10 s\n"
    )
    show_issuer(replace(FACTS, keys=0))
    assert "its tokens are refused: no answer" in capsys.readouterr().out
    for quiet in (None, replace(FACTS, trouble=None)):
        show_issuer(quiet)
    assert capsys.readouterr().out == ""
