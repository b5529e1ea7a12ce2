"""What the file of a pipeline alone shows to be wrong."""

from __future__ import annotations

import pytest

from weft.config.errors import ConfigError
from weft.config.load import parse
from weft.config.pipelines import Pipeline, PipelineSink, SinkSettings, check_pipeline

HOURS = """\
name: hours
source: {store: hub, stream: telemetry}
steps: [{window: {every: 1h, by: [machine], emit: {n: count(*)}}}]
checkpoint: checkpoint
sink: {%s: %s}
"""
SINKS = {
    "delta": "{path: t, mode: upsert}",
    "jdbc": "{url: 'jdbc:postgresql://db/plant', table: hours}",
    "console": "{}",
    "tables": "{}",
    "stream": "{hub: 'http://127.0.0.1:8090', stream: hours}",
    "kafka": "{brokers: 'kafka-1:9092', topic: hours}",
}
TAKE_WINDOWS = {"delta", "jdbc", "console"}


def test_every_sink_is_tried() -> None:
    assert SINKS.keys() == {*PipelineSink.__struct_encode_fields__}, (
        "give the new sink a line in SINKS, and in TAKE_WINDOWS if it replaces rows"
    )


def test_a_sink_that_says_nothing_of_windows_takes_none() -> None:
    """It would have two rows of a window that is written again."""
    assert not SinkSettings.takes_windows


@pytest.mark.parametrize("kind", SINKS)
def test_windows_go_only_into_sinks_that_replace_rows(kind: str) -> None:
    text = HOURS % (kind, SINKS[kind])
    if kind in TAKE_WINDOWS:
        parse(text, "hours.yaml", Pipeline, check_pipeline)
        return
    with pytest.raises(ConfigError, match=r"does not support windows: .* Use delta or jdbc"):
        parse(text, "hours.yaml", Pipeline, check_pipeline)


def test_the_hubs_own_tables_have_all_records_as_they_are() -> None:
    text = """\
name: tables
source: {store: hub, stream: "*", keys: [a], since: 2024-05-01}
steps: [{sql: SELECT * FROM input}]
checkpoint: checkpoint
sink: {tables: {}}
"""
    with pytest.raises(ConfigError) as refused:
        parse(text, "tables.yaml", Pipeline, check_pipeline)
    found = str(refused.value)
    assert [name in found for name in ("source.keys", "source.since", "steps", "checkpoint", "source.stream")] == [
        True,
        True,
        True,
        True,
        False,
    ]


def test_only_tables_have_a_pattern_as_stream() -> None:
    with pytest.raises(ConfigError, match=r"source\.stream: expected one name, got"):
        parse('name: a\nsource: {store: hub, stream: "*"}\nsink: {console: {}}', "a.yaml", Pipeline, check_pipeline)


EVENTS = """\
name: shifts
source: {store: hub, stream: telemetry, schema: {fields: {ts: timestamp(ms), v: int}}}
steps: [{window: {every: %s, by: [machine], %s}}]
sink: {console: {}}
"""


@pytest.mark.parametrize(
    ("every", "settings", "said"),
    [
        ("8h", "time: ts, late: 6h, ahead: 1h, offset: 6h, zone: Europe/Berlin", None),
        ("1d", "zone: America/New_York", None),
        ("1h", "late: 6h", "late: needs `time`"),
        ("1h", "time: v", "time: expected a field with type timestamp, or timestamp.ms. for numbers; v is int"),
        ("1h", "time: at", 'time: expected a field of `source.schema`, got "at"'),
        ("1h", "zone: Europe/Berlin", "zone: has a meaning for windows of 2h and more"),
        ("5h", "zone: Europe/Berlin", "every: neither divides a day"),
        ("8h", "offset: 8h", "offset: is not shorter than every"),
        ("1d", "gap: 5m, zone: Europe/Berlin", None),
        ("8h", "gap: 8h", "gap: is not shorter than `every`"),
        ("8h", "gap: 1h, emit: {session_end: max(v)}", "session_end is a column that every session has"),
        ("8h", "zone: Europe/Atlantis", "expected a time zone of this machine"),
    ],
)
def test_windows_of_event_time_and_of_zones_need_settings_that_fit(every: str, settings: str, said: str | None) -> None:
    text = EVENTS % (every, settings if "emit" in settings else f"emit: {{n: count(*)}}, {settings}")
    if said is None:
        parse(text, "shifts.yaml", Pipeline, check_pipeline)
        return
    with pytest.raises(ConfigError, match=said):
        parse(text, "shifts.yaml", Pipeline, check_pipeline)
