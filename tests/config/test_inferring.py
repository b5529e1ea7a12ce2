"""Drafts of schemas from samples: what is found is said, and a draft is a schema."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config.load import parse_schema
from weft.config.payload_schema.documents import PayloadSample


def draft(*payloads: Any, broken: int = 0) -> str:
    sample = PayloadSample()
    sample.take(payloads, broken)
    return sample.draft("json")


def fields(*payloads: Any) -> dict[str, str]:
    return {name: str(field.type) for name, field in parse_schema(draft(*payloads)).fields.items()}


def test_types_are_those_of_all_records() -> None:
    assert fields({"a": 1, "b": 1, "c": True, "d": "x"}, {"a": 2, "b": 2.5, "c": None, "e": [1, 2.5]}) == {
        "a": "int",
        "b": "float",
        "c": "bool",
        "d": "string",
        "e": "array<float>",
    }


def test_times_are_known_by_their_form_or_their_name_and_size() -> None:
    when = {"ts": 1_700_000_000_000, "n": 1_700_000_000_000, "read_at": 1_700_000_000, "iso": "2024-05-01T12:00:00Z"}
    assert fields(when) == {"ts": "timestamp(ms)", "n": "int", "read_at": "timestamp(s)", "iso": "timestamp"}
    assert fields(when, {"ts": 5, "iso": "soon"})["ts"] == "int"
    assert fields(when, {"iso": "soon"})["iso"] == "string"


def test_days_and_times_of_most_texts_are_drafted_with_what_is_known_of_them() -> None:
    days = [f"2026-11-{day:02}" for day in range(1, 29)]
    records: list[Any] = [
        {
            "ts": f"{day}T12:00:00+01:00",
            "basic": f"{day.replace('-', '')}T120000+0100",
            "day": day,
            "local": f"{day} 07:00",
        }
        for day in days
    ]
    records += [
        {"ts": "unknown", "basic": records[0]["basic"], "day": days[0], "local": "2026-11-01 07:00", "no": "2026"}
    ]
    assert fields(*records) == {
        "ts": "timestamp",
        "basic": "timestamp",
        "day": "date",
        "local": "timestamp",
        "no": "string",
    }
    lines = draft(*records).splitlines()
    assert "  ts: timestamp  # 1 of 29 texts are none" in lines
    assert next(line for line in lines if "local:" in line).startswith(
        "  local: timestamp  # without an offset, so in UTC"
    )
    assert fields(*[{"day": "2026-02-30"}] * 3, {"day": "2026-02-01"}) == {"day": "string"}


def test_a_draft_says_what_it_found() -> None:
    assert (
        draft({"m": {"rpm": 900}, "t": 1, "o": [{"x": 1}]}, {"t": "hot"}, {"t": 3}, broken=1)
        == """\
# A draft from 4 records; 1 of them are not json. Add units, descriptions and what is required.
format: json
fields:
  m_rpm: {type: int, from: m.rpm}  # 900 to 900; in 25 % of the records
  t: int  # 1 to 3; 1 of 3 are text; in 75 % of the records
  # o: arrays of objects or arrays: name single places, such as readings[0].value
"""
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25)
@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), min_size=1, max_size=5))
def test_every_draft_is_a_schema(payloads: list[dict[str, Any]]) -> None:
    text = draft(*(json.loads(json.dumps(each)) for each in payloads))
    if [line for line in text.splitlines()[3:] if not line.lstrip().startswith("#")]:
        parse_schema(text)
