"""What commands print for people, on a terminal of 80 columns."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from msgspec import convert
from msgspec.structs import replace

from tests.weft.test_cli import on_a_terminal
from weft.hub_api.status import KeysOfIssuer
from weft.hub_api.streams import StreamOf
from weft.proofs.audit.report import AuditReport, LaneAudit
from weft.protocols.shard.lane_state import OpenGap
from weft.storage.chunk_log import named_open_gap
from weft.text.hub_status import show_issuer, show_streams
from weft.text.proofs import show_audit

# --- The proof is read on a terminal of 80 columns: not a digit of it may be missing


COLUMNS = ("in the log", "in the table", "waiting", "doubled", "missing", "gaps", "holes", "sent again")
LONG = "press-shop-in-the-northern-hall-line-4-cabinet-17-" * 2 + "controller-of-the-old-machine"


def lane(edge: str, first: int, gaps: dict[str, int] | None = None) -> LaneAudit:
    """A lane whose counts are all different."""
    number = itertools.count(first)
    return LaneAudit(
        edge=edge,
        log_id="0123456789abcdef",
        records=next(number),
        log_doubled=next(number),
        unindexed=0,
        table_records=next(number),
        table_doubled=0,
        waiting=next(number),
        missing=next(number),
        unknown=0,
        gaps=gaps or {},
        holes=next(number),
        hole_ranges=[],
        resent=next(number),
    )


def report(*lanes: LaneAudit, stream: str = "telemetry") -> AuditReport:
    problem = f"{lanes[0].edge}/{lanes[0].log_id}: 3 records are missing from the table"
    return AuditReport("default", stream, 7, list(lanes), [], [], [problem], False)


def test_an_open_gap_is_told_in_place_of_good(capsys: pytest.CaptureFixture[str]) -> None:
    good = msgspec.structs.replace(report(lane("press-7", 1)), problems=[], agrees=True)
    show_audit(good)
    assert "good: every record is in the log once" in capsys.readouterr().out
    gap = named_open_gap(OpenGap("press-7", 7, 200, None, 10**18))
    show_audit(msgspec.structs.replace(good, open_gaps=[gap]))
    text = capsys.readouterr().out
    assert "OPEN GAP: press-7/0000000000000007, from the beginning to 2001-09-09T01:46:40Z: the lane ended" in text
    assert "good" not in text
    assert "the hub may lack records" in text
    show_audit(msgspec.structs.replace(good, never_heard=["weld-*"]))
    text = capsys.readouterr().out
    assert "NEVER HEARD: weld-* is expected (`weft hub stream expect`): no edge whose name matches has linked" in text
    assert "good" not in text
    show_audit(msgspec.structs.replace(good, never_heard=["?"]))
    text = capsys.readouterr().out
    assert "NEVER HEARD: this release cannot read which edges are expected (`weft hub stream expect`)" in text
    assert "good" not in text


def shown(what: AuditReport, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return on_a_terminal(width, lambda: show_audit(what), monkeypatch)


def test_every_count_of_every_lane_stands_under_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(report(lane("press-7", 1_000_001), lane(LONG, 2_000_001)), 80, monkeypatch)
    assert max(map(len, lines)) <= 80
    header = next(line for line in lines if "in the log" in line)
    at = lines.index("edge press-7, log 0123456789abcdef")
    numbers = lines[at + 1]
    assert numbers.split() == ["1000001", "1000003", "1000004", "1000002", "1000005", "0", "1000006", "1000007"]
    ends = [header.index(column) + len(column) for column in COLUMNS]
    assert [numbers[:end].split()[-1] for end in ends] == numbers.split(), "a count ends where its column's name ends"
    assert LONG in "".join(line.strip() for line in lines), "the whole name, in as many lines as it needs"
    assert "all 2 lanes together" in lines


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("first", [0, 10**6, 10**12])
def test_nothing_is_cut_however_narrow_the_terminal_and_long_the_names(
    width: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = report(lane(LONG, first, {"budget": 12, "corruption": 3}), stream="s" * 128)
    lines = shown(what, width, monkeypatch)
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    assert "…" not in text
    for count in range(first, first + 7):
        assert str(count) in text.split()
    for column in COLUMNS:
        assert column in text
    joined = "".join(line.strip() for line in lines)
    assert LONG in joined
    assert "s" * 128 in joined
    assert "gaps: 12 budget, 3 corruption" in text
    assert "missing from the table" in " ".join(text.split())


def test_elsewhere_it_is_one_line_a_lane_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    show_audit(report(lane("press-7", 5, {"budget": 12}), lane(LONG, 50)))
    header, first, second, *_ = capsys.readouterr().out.splitlines()
    assert header.split("\t") == ["edge", "log id", *COLUMNS]
    assert first.split("\t") == ["press-7", "0123456789abcdef", "5", "7", "8", "6", "9", "12 budget", "10", "11"]
    assert second.split("\t")[0] == LONG


# --- The lines of ``weft hub status`` and ``weft streams``


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
