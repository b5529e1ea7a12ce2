"""`weft edge check` says at which line of a function the mistake is, and what is valid and yet not meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.config.errors import format_path
from weft.config.load import load
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.derived.definitions import function_files, function_findings, function_notes

HEAD = """\
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
    (tmp_path / "edge.yaml").write_text(HEAD + indented + "\n")
    loaded = load(str(tmp_path / "edge.yaml"), EdgeConfig, check)
    (finding,) = function_findings(loaded.config)
    assert format_path(finding.path) == f"streams.hot.functions[0].{path}"
    assert finding.message.startswith(message)
    assert loaded.refuse([finding]).problems[0].line == HEAD.count("\n") + line


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
    (tmp_path / "edge.yaml").write_text(f"{HEAD}      - python: score.py\n")
    found = [each.message for each in function_files(load(str(tmp_path / "edge.yaml"), EdgeConfig, check).config)]
    assert [each.partition(": ")[2] for each in found] == (
        [f"{message}. The functions of hot wait for it"] if message else []
    )


def test_a_stream_that_a_rule_names_is_told_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(
        f"{HEAD}      - route:\n          - to: aside\n            copy: true\n          - to: asid\n"
    )
    with pytest.raises(
        Exception, match=r"edge.yaml:13: streams.hot.functions\[0\].route.rules\[1\].to: .* Did you mean aside"
    ):
        load(str(tmp_path / "edge.yaml"), EdgeConfig, check)
