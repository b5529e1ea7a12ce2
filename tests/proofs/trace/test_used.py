"""Lineage as people and programs write it, and what is said of what is none."""

from __future__ import annotations

import pytest

from weft.proofs.trace import TraceError, Used, parse_record, parse_used, used_by


def test_what_a_row_says() -> None:
    text = '[{"edge": "press-1", "log": "2a", "first": 3, "last": 9, "count": 2}]'
    used = Used("press-1", "000000000000002a", 3, 9, 2)
    assert parse_used(text) == parse_used(text[1:-1]) == [used]
    assert used.numbers == 7
    assert used_by({"machine": "m1", "_from": [{"edge": "press-1", "log": "2a", "first": 3, "last": 9, "count": 2}]})
    assert used_by({"_edge": "press-1", "_log": "2a", "_seq": 5}) == [Used("press-1", "000000000000002a", 5, 5, 1)]
    assert parse_record("press-1/2a/5-7") == Used("press-1", "000000000000002a", 5, 7, 3)
    assert used_by({"_from": []}) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected the value of a column _from"),
        ("7", "expected the value of a column _from"),
        ('[{"edge": "a"}]', "missing required field `log`"),
        ('{"edge": "A!", "log": "1", "first": 0, "last": 0, "count": 1}', "edge: expected lower-case letters"),
        ('{"edge": "a", "log": "xyz", "first": 0, "last": 0, "count": 1}', "hexadecimal digits; got 'xyz'"),
        ('{"edge": "a", "log": "' + "f" * 17 + '", "first": 0, "last": 0, "count": 1}', "hexadecimal digits"),
        ('{"edge": "a", "log": "1", "first": 5, "last": 4, "count": 1}', "first 5, last 4"),
        ('{"edge": "a", "log": "1", "first": -1, "last": 4, "count": 1}', "first -1"),
        ('{"edge": "a", "log": "1", "first": 0, "last": 4, "count": 0}', "count 0"),
    ],
)
def test_what_is_no_lineage(text: str, said: str) -> None:
    with pytest.raises(TraceError) as raised:
        parse_used(text)
    assert said in str(raised.value)


@pytest.mark.parametrize("text", ["press-1", "press-1/1", "press-1/1/x", "press-1/1/9-3", "Press/1/1", "press-1/-1/1"])
def test_what_is_no_record(text: str) -> None:
    with pytest.raises(TraceError):
        parse_record(text)


def test_a_row_without_lineage_says_its_columns() -> None:
    with pytest.raises(TraceError, match=r"no lineage: .* Its columns are machine, n"):
        used_by({"n": 1, "machine": "m1"})
