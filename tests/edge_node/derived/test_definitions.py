"""The memory of functions is found again by their settings, also by later releases."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from weft.config.errors import format_path
from weft.config.load import load, parse
from weft.config.models import EdgeConfig
from weft.edge_node import preflight
from weft.edge_node.check.rules import check
from weft.edge_node.check.streams import Flow
from weft.edge_node.derived.definitions import (
    Definition,
    definitions,
    function_files,
    function_findings,
    function_notes,
    functions_of,
)

HEAD = "node: a\ndata_dir: /data\nstreams:\n  telemetry: {from: 'plant/{line}/x', payload: json}\n"


def labels(functions: str) -> list[str]:
    text = f"{HEAD}  hot: {{from_stream: telemetry, functions: [{functions}]}}\n"
    config = parse(text, "edge.yaml", EdgeConfig, check).config
    return [label for label, _ in functions_of(config, Flow(config), "hot")]


def test_a_label_never_changes() -> None:
    """A release that says another one for the same settings loses the memory of every node that is upgraded."""
    assert labels("{dedupe: {by: id, within: 10m}}") == ["dedupe-30df6c6eb432"]


def test_a_default_that_is_written_down_and_other_functions_change_no_label() -> None:
    first, second = labels("{where: a}, {deadband: {field: t, delta: 0.2}}")
    assert labels("{deadband: {field: t, delta: 0.2}}") == [second]
    assert labels("{where: b}, {deadband: {field: t, delta: 0.2}}")[1] == second
    assert labels("{deadband: {field: t, delta: 0.3}}") != [second]
    assert labels("{where: a}, {where: a}") == [first, f"{first}-1"]


def scored(folder: str, python: str = "file: score.py, files: [model.onnx]") -> Definition:
    functions = f"{{python: {{{python}}}}}, {{enrich: {{file: machines.csv, on: line}}}}"
    text = f"{HEAD}  hot: {{from_stream: telemetry, functions: [{functions}]}}\n"
    config = parse(text, f"{folder}/edge.yaml", EdgeConfig).config
    (found,) = definitions(config)
    return found


def test_the_same_functions_have_the_same_origin_in_each_folder_and_on_each_machine() -> None:
    here, there = scored("/etc/weft"), scored("/home/eva/plant")
    assert here.digest == there.digest
    assert not here.works_like(there), "a running node takes over that its files are others"
    assert scored("/etc/weft").works_like(here)
    assert scored("/etc/weft", "file: other.py, files: [model.onnx]").digest != here.digest
    assert scored("/etc/weft", "file: score.py").digest != here.digest


def test_memory_survives_a_move_of_the_configuration() -> None:
    text = f"{HEAD}  hot: {{from_stream: telemetry, functions: [python: score.py]}}\n"
    found = set()
    for folder in ("/etc/weft", "/home/eva"):
        config = parse(text, f"{folder}/edge.yaml", EdgeConfig).config
        found |= {label for label, _ in functions_of(config, Flow(config), "hot")}
    assert len(found) == 1


# --- `weft edge check` makes every function, and says at which one a configuration is wrong


ROOT = Path(__file__).parents[3]


def errors(streams: str) -> list[str]:
    config = parse(HEAD + streams, "edge.yaml", EdgeConfig, check).config
    return [f"{format_path(path)}: {message}" for path, message in function_findings(config)]


def notes(text: str) -> list[str]:
    config = parse("node: a\ndata_dir: /data\nstreams:\n" + text, "edge.yaml", EdgeConfig, check).config
    return [f"{format_path(path)}: {message}" for path, message in function_notes(config)]


def test_functions_that_work_are_fine() -> None:
    assert errors("  hot: {from_stream: telemetry, functions: [{where: 'rms > 2 and line == \"a\"'}]}\n") == []
    assert errors("  raw: {from: r, payload: json, raw: discard, functions: [{where: rms}, {set: {x: 3}}]}\n") == []


@pytest.mark.parametrize(
    ("streams", "path"),
    [
        (
            "  hot: {from_stream: telemetry, functions: [{where: rms}, {where: 'rms >'}]}\n",
            "streams.hot.functions[1].where: ",
        ),
        ("  hot: {from_stream: telemetry, functions: [{set: {x: open(1)}}]}\n", "streams.hot.functions[0].set.x: "),
        (
            "  s: {from: s, payload: {format: struct, fields: [{name: a, type: i8}, {name: a, type: i8}]}}\n"
            "  hot: {from_stream: s, functions: [{where: a}]}\n",
            "streams.hot.functions: two fields are called a",
        ),
    ],
)
def test_a_mistake_is_told_at_its_function(streams: str, path: str) -> None:
    (found,) = errors(streams)
    assert found.startswith(path)
    assert len(found) > len(path) + 10


def test_files_that_functions_name_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "machines.csv").write_text("machine,line\n")
    functions = (
        "[{enrich: {file: machines.csv, on: machine}}, {redact: {hash: [a], key_file: key}}, "
        "{python: {file: score.py, files: [model.onnx]}}]"
    )
    text = f"{HEAD}  hot: {{from_stream: telemetry, functions: {functions}}}\n"
    config = parse(text, str(tmp_path / "edge.yaml"), EdgeConfig, check).config
    found = [f"{format_path(path)}: {message}" for path, message in function_files(config)]
    assert [each.partition(": ")[0] for each in found] == [
        "streams.hot.functions[1].redact.key_file",
        "streams.hot.functions[2].python.file",
        "streams.hot.functions[2].python.files",
    ]
    assert f"{tmp_path / 'key'}: there is no such file. The functions of hot wait for it" in found[0]


def test_raw_messages_are_discarded_only_before_functions_without_a_memory() -> None:
    (found,) = errors(
        "  r: {from: r, payload: json, raw: discard, functions: [{where: rms}, {dedupe: {by: id, within: 10m}}, "
        "{changes: [rms]}]}\n"
    )
    assert found.startswith(
        "streams.r.raw: `discard` needs functions without a memory, and dedupe and changes have one"
    )


def test_what_is_perhaps_not_meant_is_pointed_out() -> None:
    assert notes("  a: {from: a, payload: json}\n  b: {from_stream: a, functions: [{where: rms}]}\n") == []
    (found,) = notes("  a: {from: a}\n  b: {from_stream: a, functions: [{where: rms}]}\n")
    assert found == (
        "streams.b.functions: no setting has the format of a; as these functions name fields, they read JSON, and "
        "payloads that are not go to b-errors. Set streams.a.payload to the format"
    )
    (found,) = notes("  a: {from: a}\n  b: {from_stream: a, functions: [{where: 'default(rms, 0) > 1'}]}\n")
    assert found == (
        "streams.b.functions: payloads of a are bytes, so that functions know no field but `value`. Set "
        "streams.a.payload, such as `json`"
    )
    (found,) = notes("  a: {from: a, retain: {time: 10m}}\n  b: {from_stream: a}\n")
    assert found.startswith("streams.b.from_stream: records of a are deleted after 10m")
    (found,) = notes("  a: {from: a, when_full: drop_oldest}\n  b: {from_stream: a}\n")
    assert found.startswith("streams.b.from_stream: a drops its oldest records")


@pytest.mark.parametrize("name", ["edge-functions"])
def test_the_examples_make_functions(name: str) -> None:
    config = load(str(ROOT / f"config/examples/{name}.yaml"), EdgeConfig, check).config
    assert list(function_findings(config)) == []


# --- `weft edge check` says at which line of a function the mistake is, and what is valid and yet not meant


PLACES_HEAD = """\
node: a
data_dir: d
streams:
  vib: {from: "plant/{line}/vib", payload: json}
  other: {from_stream: vib, functions: [{route: [{to: aside}]}]}
  aside: {replicate: false}
  hot:
    from_stream: vib
    functions:
"""


@pytest.mark.parametrize(
    ("functions", "line", "path", "message"),
    [
        ("- window:\n  every: 1m\n  emit:\n    n: count()\n    m: average(rms)", 5, "window.emit.m", "average is not"),
        ("- window:\n  every: 1m\n  emit:\n    n: count()\n    m: max(rms + foo(1))", 5, "window.emit.m", "rms + foo"),
        ("- window:\n  emit: {n: count()}", 1, "window", "a window needs every"),
        ("- alert:\n  when: rms > 1\n  until: rms <\n  topic: a", 3, "alert.until", "column 6: "),
        ("- alert:\n  when: rms > 1\n  topic: a\n  payload:\n    b: rms +", 5, "alert.payload.b", "column 6: "),
        ("- route:\n  - {where: rms > 9, to: aside}\n  - where: rms >\n    to: aside", 3, "route.rules[1].where", "co"),
        ("- set:\n  a: rms\n  motor.rpm: rms +", 3, "set.motor.rpm", "column 6: "),
        ("- select:\n  a: rms\n  b: rms +", 3, "select.b", "column 6: "),
        ("- sql:\n  every: 1m\n  select: SELEC", 3, "sql.select", "near"),
        ("- deadband:\n  field: rms", 1, "deadband", "set `delta` or `relative` for rms"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_a_mistake_is_told_at_its_line(functions: str, line: int, path: str, message: str, tmp_path: Path) -> None:
    indented = functions.replace("\n  ", "\n          ").replace("- ", "      - ", 1)
    (tmp_path / "edge.yaml").write_text(PLACES_HEAD + indented + "\n")
    loaded = load(str(tmp_path / "edge.yaml"), EdgeConfig, check)
    (finding,) = function_findings(loaded.config)
    assert format_path(finding.path) == f"streams.hot.functions[0].{path}"
    assert finding.message.startswith(message)
    assert loaded.refuse([finding]).problems[0].line == PLACES_HEAD.count("\n") + line


@pytest.mark.parametrize(
    ("streams", "line", "message"),
    [
        (
            "  shifts: {from_stream: vib, functions: [{redact: [name]}]}\nlinks: {c: {to: 'http://127.0.0.1:1'}}\n",
            5,
            "link c carries vib as it came, with what is redacted here. Set `streams.vib.replicate: false`",
        ),
        (
            "  t:\n    from: t\n    payload: number\n    functions: [{window: {every: 1m, emit: {m: max(value)}}}]\n",
            7,
            "results of window have several fields, and payloads of t are `number`, which has one: all of them would",
        ),
    ],
    ids=["redacted and carried", "results without a format"],
)
def test_what_is_valid_and_not_meant_is_pointed_out(streams: str, line: int, message: str, tmp_path: Path) -> None:
    text = f"node: a\ndata_dir: d\nstreams:\n  vib: {{from: vib, payload: json}}\n{streams}"
    (tmp_path / "edge.yaml").write_text(text)
    loaded = load(str(tmp_path / "edge.yaml"), EdgeConfig, check)
    (finding,) = function_notes(loaded.config)
    assert finding.message.startswith(message)
    assert loaded.refuse([finding]).problems[0].line == line


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "def proces(record, ctx):\n    return record\n",
            "it has no function process. Did you mean proces? Rename it, or set `function`",
        ),
        ("x = 1\n", "it has no function process. Define process"),
        ("async def process(record, ctx): ...\n", None),
        ("process = print\n", None),
        ("try:\n    from scores import process\nexcept ImportError: pass\n", None),
        ("from scores import *\n", None),
        ("globals()['process'] = print\n", None),
    ],
)
def test_a_file_without_the_function_is_told_of(code: str, message: str | None, tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text(code)
    (tmp_path / "edge.yaml").write_text(f"{PLACES_HEAD}      - python: score.py\n")
    found = [each.message for each in function_files(load(str(tmp_path / "edge.yaml"), EdgeConfig, check).config)]
    assert [each.partition(": ")[2] for each in found] == (
        [f"{message}. The functions of hot wait for it"] if message else []
    )


def test_a_stream_that_a_rule_names_is_told_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(
        f"{PLACES_HEAD}      - route:\n          - to: aside\n            copy: true\n          - to: asid\n"
    )
    with pytest.raises(
        Exception, match=r"edge.yaml:13: streams.hot.functions\[0\].route.rules\[1\].to: .* Did you mean aside"
    ):
        load(str(tmp_path / "edge.yaml"), EdgeConfig, check)


# --- A check before the start names the files of functions that cannot be used, and why


CONFIG = """\
node: a
data_dir: {folder}/data
http: null
disk: {{budget: 16MiB}}
streams:
  telemetry:
    from: "plant/#"
    functions:
      - {function}
"""


def findings(folder: Path, function: str) -> list[str]:
    config = parse(CONFIG.format(folder=folder, function=function), str(folder / "edge.yaml"), EdgeConfig).config
    unfit = preflight.look(config, {}, datetime.now(UTC)).unfit
    return [f"{'.'.join(map(str, each.path))}: {each.message}" for each in unfit]


@pytest.mark.parametrize(
    ("function", "found"),
    [
        ("enrich: {file: good.csv, on: machine}", []),
        ("python: good.py", []),
        (
            "enrich: {file: none.csv, on: machine}",
            ["enrich.file: FOLDER/none.csv: there is no such file. The functions of telemetry wait for it"],
        ),
        (
            "enrich: {file: good.csv, on: site}",
            ["enrich.file: good.csv: has no column site. There are: machine. The functions of telemetry wait for it"],
        ),
        (
            "python: none.py",
            ["python.file: FOLDER/none.py: there is no such file. The functions of telemetry wait for it"],
        ),
        (
            "python: bad.py",
            [
                "python.file: FOLDER/bad.py, line 2: is not Python: '(' was never closed. The "
                "functions of telemetry wait for it"
            ],
        ),
        (
            "python: {file: good.py, files: [none.onnx]}",
            ["python.files: FOLDER/none.onnx: there is no such file. The functions of telemetry wait for it"],
        ),
    ],
)
def test_files_that_cannot_be_used_are_found(tmp_path: Path, function: str, found: list[str]) -> None:
    (tmp_path / "good.csv").write_text("machine\nm1\n")
    (tmp_path / "good.py").write_text(
        "raise SystemExit('a check runs no code')\n\n\ndef process(record, ctx):\n    return record\n"
    )
    (tmp_path / "bad.py").write_text("def process(record, ctx):\n    return (\n")
    assert findings(tmp_path, function) == [
        f"streams.telemetry.functions.0.{each}".replace("FOLDER", str(tmp_path)) for each in found
    ]
