"""`weft edge test-function`: the real command on real samples."""

from __future__ import annotations

import base64
import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import cbor2
import pytest

from examples.demo.devices import TELEMETRY, lines
from tests.support.processes import weft
from weft.functions.sparkplug_payloads import Payload
from weft.output import Refused

CONFIG = """\
node: press-7
data_dir: data
streams:
  pis: {from: "sensors/{device}/telemetry", payload: json}
  others: {from: "others/{device}/telemetry", payload: json}
  alarms: {}
  warm:
    from_stream: pis
    functions:
      - where: data["temp"] > 22
  changed:
    from_stream: pis
    functions:
      - deadband: {field: data.humidity, delta: 1, max_silence: 10m}
  minutes:
    from: "raw/{line}"
    payload: json
    functions:
      - where: "t > 0"
      - window: {every: 1m, by: [line], emit: {n: count(), most: max(t)}}
  both:
    from_stream: [pis, others]
    functions:
      - set: {seen: "1"}
  split:
    from_stream: pis
    functions:
      - set: {t: 'data["temp"]'}
      - where: t > 0
      - route: [{to: alarms, where: t > 25}]
      - alert: {when: t > 22, topic: "alarms/{device}", payload: "hot"}
      - where: t > 10
  metrics:
    from: ["spBv1.0/+/NBIRTH/+", "spBv1.0/+/NDATA/+"]
    payload: sparkplug
  hot:
    from_stream: metrics
    payload: json
    functions: [where: temperature > 20]
  packed:
    from: "cbor/{line}"
    payload: cbor
    functions: [where: t > 20]
"""


@pytest.fixture
def edge_yaml(tmp_path: Path) -> Path:
    path = tmp_path / "edge.yaml"
    path.write_text(CONFIG)
    return path


def telemetry(count: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in islice(lines(TELEMETRY), count)]


def sample(path: Path, records: list[dict[str, Any]]) -> Path:
    found = path.with_name("sample.jsonl")
    found.write_text("".join(json.dumps(record) + "\n" for record in records))
    return found


def tried(edge_yaml: Path, stream: str, file: object, *options: str, given: str = "") -> list[dict[str, Any]]:
    done = weft("edge", "test-function", edge_yaml, stream, "--input", file, "--json", *options, answer=given)
    assert done.exception is None, done.exception
    return [json.loads(line) for line in done.stdout.splitlines()]


def text(edge_yaml: Path, stream: str, file: object, *options: str) -> list[str]:
    done = weft("edge", "test-function", edge_yaml, stream, "--input", file, *options)
    assert done.exception is None, done.exception
    return done.stdout.splitlines()


def of_pis(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"topic": f"sensors/{each['device_id']}/telemetry", "payload": each, "time": each["ts"]} for each in messages
    ]


def test_a_condition_on_a_day_of_real_messages(edge_yaml: Path) -> None:
    messages = telemetry(2_000)
    *records, summary = tried(edge_yaml, "warm", sample(edge_yaml, of_pis(messages)))
    assert [record["line"] for record in records] == list(range(1, 2_001))
    for message, record in zip(messages, records, strict=True):
        (outcome,) = record["outcomes"]
        if message["data"]["temp"] > 22:
            assert outcome["outcome"] == "out"
            assert json.loads(outcome["payload"]) == message
            assert abs(outcome["time_ns"] - message["ts"] * 1e9) < 1_000
        else:
            reason = 'where is false: data["temp"] > 22'
            assert outcome == {"outcome": "dropped", "function": "where", "reason": reason}
    warm = sum(message["data"]["temp"] > 22 for message in messages)
    assert summary == {"kind": "summary", "records": 2_000, "out": warm, "dropped": 2_000 - warm, "passed_over": 0}


def test_a_deadband_on_real_messages_keeps_its_bound(edge_yaml: Path) -> None:
    messages = telemetry(3_000)
    *records, summary = tried(edge_yaml, "changed", sample(edge_yaml, of_pis(messages)))
    last: dict[str, float] = {}
    for message, record in zip(messages, records, strict=True):
        if record["outcomes"][0]["outcome"] == "out":
            last[message["device_id"]] = message["data"]["humidity"]
        assert abs(message["data"]["humidity"] - last[message["device_id"]]) <= 1
    assert 3 <= summary["out"] < 600


def test_for_people(edge_yaml: Path) -> None:
    file = sample(edge_yaml, of_pis(telemetry(4)))
    found = text(edge_yaml, "split", file)
    assert found[0].startswith(f"{file}:1 2020-07-13T00:00:24.502333")
    assert "sensors/0e:9c:00:4c:1c:51/telemetry {" in found[0]
    assert found[1].startswith("    out 2020-07-13T00:00:24.502333")
    assert found[1].endswith('"t":18.899999618530273}')
    third = found.index(next(line for line in found if line.startswith(f"{file}:3 ")))
    assert found[third + 1].startswith("    routed by route to alarms ")
    assert found[-1] == "4 records: 3 out, 1 routed"


def test_functions_that_are_there_twice_are_told_apart_and_alerts_shown(edge_yaml: Path) -> None:
    records = [{"topic": "sensors/a/telemetry", "payload": {"data": {"temp": t}}} for t in (5, 23, -1)]
    found = tried(edge_yaml, "split", sample(edge_yaml, records))
    assert found[0]["outcomes"][0]["function"] == "where (functions[4])"
    alert, out = found[1]["outcomes"]
    assert (alert["outcome"], alert["to"], alert["payload"]) == ("alert", "alarms/a", "hot")
    assert out["outcome"] == "out"
    assert found[2]["outcomes"][0]["function"] == "where (functions[1])"


def test_windows_end_with_the_times_of_the_records_and_after_the_last_one(edge_yaml: Path) -> None:
    times = ["2026-11-20T07:00:10Z", "2026-11-20T07:00:50Z", "2026-11-20T07:01:10", 1_795_158_075.5]
    records = [{"topic": "raw/a", "payload": {"t": at + 1}, "time": time} for at, time in enumerate(times)]
    found = tried(edge_yaml, "minutes", sample(edge_yaml, [*records, {"topic": "raw/a", "payload": {"t": 0}}]))
    assert [each["kind"] for each in found] == ["record"] * 2 + ["time"] + ["record"] * 3 + ["time", "summary"]
    assert found[0]["outcomes"] == [{"outcome": "kept", "function": "window"}]
    first, last = (json.loads(found[at]["outcomes"][0]["payload"]) for at in (2, 6))
    assert (first["n"], first["most"], first["complete"]) == (2, 2, True)
    assert found[2]["time"] == "2026-11-20T07:01:00.000000000Z"
    assert (last["n"], last["most"]) == (2, 4)


def test_a_gap_makes_a_window_incomplete(edge_yaml: Path) -> None:
    record = {"topic": "raw/a", "payload": {"t": 1}, "time": "2026-11-20T07:00:10Z"}
    later = record | {"time": "2026-11-20T07:00:50Z"}
    gap = {"kind": "gap", "first": 1, "end": 9, "reason": "expired"}
    found = tried(edge_yaml, "minutes", sample(edge_yaml, [record, gap, later]))
    assert found[1] | {"stream": ""} == {"kind": "gap", "line": 2, "stream": "", "outcomes": [], **gap}
    assert json.loads(found[3]["outcomes"][0]["payload"])["complete"] is False
    assert "misses 8 records (expired)" in text(edge_yaml, "minutes", sample(edge_yaml, [record, gap, later]))[2]


def test_payloads_alone_and_of_other_formats(edge_yaml: Path) -> None:
    lines = edge_yaml.with_name("payloads.txt")
    lines.write_bytes(b'{"t": 5}\r\n\n{"t": "x"}\n\xff\n')
    found = tried(edge_yaml, "minutes", lines, "--topic", "raw/a")
    assert [each["line"] for each in found[:3]] == [1, 3, 4]
    assert [each["outcomes"][0]["function"] for each in found[:3]] == ["window", "where", "payload"]
    assert "not JSON" in found[2]["outcomes"][0]["reason"]
    packed = [
        {"topic": "cbor/a", "payload_base64": base64.b64encode(cbor2.dumps({"t": t, "raw": b"\1"})).decode()}
        for t in (21, 5)
    ]
    found = tried(edge_yaml, "packed", sample(edge_yaml, packed))
    assert found[0]["fields"] == found[0]["outcomes"][0]["fields"] == {"t": 21, "raw": "AQ=="}
    assert '{"t":5,"raw":"AQ=="}' in text(edge_yaml, "packed", sample(edge_yaml, packed))[2]


def test_aliases_of_sparkplug_have_the_names_of_their_birth(edge_yaml: Path) -> None:
    def message(kind: str, **metric: Any) -> dict[str, Any]:
        payload = Payload(seq=1, metrics=[metric]).SerializeToString()
        return {"topic": f"spBv1.0/g/{kind}/n", "payload_base64": base64.b64encode(payload).decode()}

    data = message("NDATA", alias=1, double_value=23.5)
    birth = message("NBIRTH", name="temperature", alias=1, datatype=10, double_value=5)
    found = tried(edge_yaml, "hot", sample(edge_yaml, [data, birth, data]))
    error, dropped, out = (each["outcomes"][0] for each in found[:3])
    assert (error["outcome"], error["function"]) == ("error", "payload")
    assert "the birth that names it is not known" in error["reason"]
    assert (dropped["outcome"], dropped["function"]) == ("dropped", "where")
    assert json.loads(out["payload"]) == {"seq": 1, "temperature": 23.5}
    assert found[1]["fields"] == {"seq": 1, "temperature": 5.0}


def test_what_tail_prints_is_a_sample(edge_yaml: Path) -> None:
    """Also beside records of other streams, gap notices and damage."""
    lines = [
        {
            "kind": "record",
            "stream": "pis",
            "seq": 5,
            "time": "2026-11-20T07:00:00.123456789Z",
            "time_ns": 1795158000123456789,
            "key": "sensors/a/telemetry",
            "payload": '{"data": {"temp": 23}}',
            "headers": [["a", "b"]],
            "flags": ["resent"],
        },
        {"kind": "record", "stream": "alarms", "seq": 1, "time_ns": 5, "key": "x", "payload": "y"},
        {"kind": "gap", "stream": "pis", "time": "2026-11-20T07:00:01Z", "first": 6, "end": 8, "reason": "expired"},
        {"kind": "missing", "stream": "pis", "first": 8, "end": 9},
        {"kind": "damage", "file": "x", "offset": 1, "end": 2},
    ]
    given = "".join(json.dumps(line) + "\n" for line in lines)
    record, gap, missing, summary = tried(edge_yaml, "warm", "-", given=given)
    assert record["outcomes"][0]["time_ns"] == 1795158000123456789
    assert (gap["first"], gap["end"], missing["reason"]) == (6, 8, "retention")
    assert summary["passed_over"] == 2


def test_a_stream_of_several_streams_wants_to_know_which(edge_yaml: Path) -> None:
    record = {"topic": "others/a/telemetry", "payload": {}}
    found = tried(edge_yaml, "both", sample(edge_yaml, [record | {"stream": "others"}]))
    assert (found[0]["stream"], found[0]["outcomes"][0]["payload"]) == ("others", '{"seen":1}')
    refused(edge_yaml, "both", [record], "sample.jsonl:1: name its stream, with `stream`: pis, others")


def refused(edge_yaml: Path, stream: str, records: list[dict[str, Any]] | str, said: str, *options: str) -> None:
    file = edge_yaml.with_name("sample.jsonl")
    if isinstance(records, str):
        file.write_text(records)
    else:
        sample(edge_yaml, records)
    done = weft("edge", "test-function", edge_yaml, stream, "--input", file, *options)
    assert isinstance(done.exception, Refused), done.output
    assert said in str(done.exception)


GOOD = {"topic": "sensors/a/telemetry", "payload": {"data": {"temp": 23}}, "time": "2026-11-20T07:00:00Z"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"temperature": 5', "sample.jsonl:2: expected an object such as"),
        ("21.5", "name their topic with --topic"),
        ('{"payload": {}}', "sample.jsonl:2: the record has no topic"),
        ('{"topic": "a"}', "has no payload. Give it `payload` or `payload_base64`"),
        ('{"topic": "a", "payload_base64": "?"}', "payload_base64 is not base64"),
        ('{"topic": "a", "payload": 1, "time": "noon"}', "expected a time such as 2026-11-20T07:00:00Z"),
        ('{"topic": "a", "payload": 1, "time": -5}', "is not between 1970 and 2262"),
        ('{"topic": "a", "payload": 1, "time": 1e300}', "is not between 1970 and 2262"),
        ('{"topic": "a", "payload": 1, "time": 5}', "Sort the lines by time"),
        ('{"kind": "gap", "first": 5, "end": 5}', "a gap needs the number after its last record"),
        ('{"topic": "a", "payload": "\\ud800"}', "sample.jsonl:2: "),
        ('{"topic": 5, "payload": 1}', "sample.jsonl:2: expected an object such as"),
        ("x" * (5 << 20), "more than 4 MiB"),
    ],
    ids=lambda text: text[:30],
)
def test_a_line_that_is_no_record_is_named(edge_yaml: Path, line: str, said: str) -> None:
    refused(edge_yaml, "warm", json.dumps(GOOD) + "\n" + line + "\n", said)


def test_lines_of_own_code_are_shown_where_it_wrote_them(edge_yaml: Path) -> None:
    code = (
        "def process(record, ctx):\n    ctx.log('saw', record['t'])\n    return None if record['t'] < 0 else record\n"
    )
    edge_yaml.with_name("own.py").write_text(code)
    edge_yaml.write_text(f"{CONFIG}  own: {{from_stream: pis, functions: [python: own.py]}}\n")
    sample = edge_yaml.with_name("payloads")
    sample.write_text('{"t": -1}\n{"t": 2}\n{}\n')
    text = weft("edge", "test-function", edge_yaml, "own", "--input", sample, "--topic", "sensors/a/telemetry").stdout
    assert [line.strip() for line in text.splitlines() if line.startswith("    ")] == [
        "log by python: saw -1",
        "dropped by python: own.py returned None",
        "log by python: saw 2",
        'out 2000-01-01T00:00:01.000000000Z sensors/a/telemetry {"t":2}',
        "error by python: own.py, line 2: KeyError: 't'",
    ]
    assert text.splitlines()[-1] == "3 records: 1 dropped, 1 out, 1 error"


def test_a_mistake_is_told_at_its_line(edge_yaml: Path) -> None:
    edge_yaml.write_text(f"{CONFIG}  own:\n    from_stream: pis\n    functions:\n      - where: t >\n")
    at = CONFIG.count("\n") + 4
    refused(edge_yaml, "own", [GOOD], f"edge.yaml:{at}: streams.own.functions[0].where: column 4: it ends too early")


def test_a_stream_that_is_not_derived_is_refused(edge_yaml: Path) -> None:
    refused(edge_yaml, "pis", [GOOD], "pis has no functions. Derived streams: warm, changed, minutes")
    refused(edge_yaml, "warn", [GOOD], "warn is not a stream. Did you mean warm?")
    done = weft("edge", "test-function", edge_yaml, "warm", "--input", edge_yaml.with_name("none.jsonl"))
    assert "none.jsonl: there is no such file" in str(done.exception)


def test_the_page_says_what_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/functions/try-it.md").read_text()
    config, given, said = re.findall(r"<!-- (?:config|sample|answer): \w+ -->\n```\w+\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("edge.yaml").write_text(config)
    Path("sample.jsonl").write_text(given)
    assert text(Path("edge.yaml"), "warm", "sample.jsonl") == said.splitlines()
