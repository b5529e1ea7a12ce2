"""`weft edge check` makes every function, and says at which one a configuration is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.config.errors import format_path
from weft.config.load import load, parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.derived.definitions import function_files, function_findings, function_notes

ROOT = Path(__file__).parents[3]
HEAD = "node: a\ndata_dir: /data\nstreams:\n  telemetry: {from: 'plant/{line}/x', payload: json}\n"


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
