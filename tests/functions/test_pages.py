"""The examples on the pages of functions do what the pages say.

A page has a configuration, then an input (``<!-- input: TOPIC -->``, JSON lines), what comes out of its streams
(``<!-- output: STREAM -->``), the reasons in their streams of errors (``<!-- errors: STREAM -->``), the topics and
payloads that are published (``<!-- alerts: STREAM -->``), and files beside the configuration (``<!-- file: NAME -->``).
``every 10s`` after the topic says how far the messages are apart, and that time passes after the last.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tests.functions.restart import Chain, Recorder
from tests.support.waiting import PATIENCE_S
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.config.units import parse_duration
from weft.functions.contract import AsyncFunction, Context, Function, Row
from weft.functions.registry import KINDS
from weft.protocols.topics import TopicPattern, compile_pattern

PAGES = Path(__file__).parents[2] / "docs/functions"
_CONFIG = re.compile(r"<!-- config: edge -->\s*\n```yaml\n(.*?)```", re.DOTALL)
_BLOCK = re.compile(
    r"<!-- (input|output|errors|alerts|file): (\S+)(?: every (\S+))? -->\s*\n```\w+\n(.*?)```", re.DOTALL
)
START = 1_700_000_000 * 10**9
WITH_EXAMPLES = [path for path in sorted(PAGES.glob("*.md")) if _BLOCK.search(path.read_text())]


def _levels(pattern: TopicPattern, key: bytes) -> dict[str, str]:
    return dict(pattern.match(key.decode()) or {})


def _through(function: Function, rows: list[Row], out: Recorder, *, passes: bool) -> list[Row]:
    chain = Chain(lambda: function)
    chain.out = out
    chain.feed(rows)
    if passes:
        chain.tick_before(START + 10**18)
    return chain.emitted


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.stem)
async def test_the_example_does_what_the_page_says(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    found = _CONFIG.search(text)
    assert found is not None
    config = parse(found[1], str(tmp_path / "edge.yaml"), EdgeConfig).config
    blocks = {(kind, name): body.splitlines() for kind, name, _, body in _BLOCK.findall(text)}
    for kind, name, _, body in _BLOCK.findall(text):
        if kind == "file":
            (tmp_path / name).write_text(body)
    (every,) = (every for kind, _, every, _ in _BLOCK.findall(text) if kind == "input")
    step_ns = round(parse_duration(every) * 1e9) if every else 1
    outputs: dict[str, list[object]] = defaultdict(list)
    errors: dict[str, list[str]] = {}
    alerts: dict[str, list[str]] = {}
    (topic,) = (name for kind, name in blocks if kind == "input")
    for name, stream in config.streams.items():
        if not stream.functions or not {("output", name), ("errors", name), ("alerts", name)} & set(blocks):
            continue
        pattern = compile_pattern(stream.from_[0])
        context = Context(name, (), partial(_levels, pattern), pattern.fields)
        rows = [
            Row(START + at * step_ns, topic.encode(), line.encode(), msgspec.json.decode(line))
            for at, line in enumerate(blocks["input", topic])
        ]
        out = Recorder()
        for step in stream.functions:
            kind, settings = step.chosen
            function = KINDS[kind](settings, context._replace(nulls=step.takes_nulls))
            if isinstance(function, AsyncFunction):
                await function.prepare()
                rows = await function.process_async(rows, out)
                while every and (due := function.due()) is not None:
                    rows += await function.tick_async(due, out)
                await function.close()
            else:
                rows = _through(function, rows, out, passes=bool(every))
        outputs[name] += [row.values for row in rows]
        for each in out.said:
            if each[0] == "route":
                outputs[each[2]].append(msgspec.msgpack.decode(each[1][3]))
        errors[name] = out.rejected()
        alerts[name] = [f"{each[1].decode()} {each[2].decode()}" for each in out.said if each[0] == "alert"]
    for (kind, name), lines in blocks.items():
        if kind == "output":
            assert [msgspec.json.encode(values) for values in outputs[name]] == [
                msgspec.json.encode(msgspec.json.decode(line)) for line in lines
            ]
        elif kind == "errors":
            assert errors[name] == lines
        elif kind == "alerts":
            assert alerts[name] == lines


def test_there_are_examples() -> None:
    assert {"where", "set", "select", "redact", "route"} <= {page.stem for page in WITH_EXAMPLES}
    assert {"enrich", "alert", "python"} <= {page.stem for page in WITH_EXAMPLES}
    assert {"window", "sql"} <= {page.stem for page in WITH_EXAMPLES}
    assert {"sample", "deadband", "swinging_door", "changes", "dedupe"} <= {page.stem for page in WITH_EXAMPLES}


# --- The page on writing a function, followed to the letter in a copy of the code


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/write-a-function.md"
_OWN_FUNCTION_BLOCK = re.compile(
    r"<!-- (file|append|command|answer):? ?(\S*) -->\n(?:<!-- not followed: [^\n]* -->\n)?```\w+\n(.*?)```", re.DOTALL
)
PROGRAMS = {"weft": [sys.executable, "-m", "weft"], "python": [sys.executable]}
COPIED = ("functions", "config", "weft", "tests/functions", "tests/support")


@pytest.mark.slow
def test_who_follows_the_page_has_a_function(tmp_path: Path) -> None:
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("bounds", "edge_node", "protocols", "replication", "storage"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "tests/__init__.py").touch()
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # who reads has none
    # With CI set, Hypothesis has no deadline for an example, which a busy machine would miss.
    environment = {**ours, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
    printed, followed = "", []
    for kind, name, body in _OWN_FUNCTION_BLOCK.findall(PAGE.read_text()):
        followed.append(kind)
        if kind == "file":
            (tmp_path / name).write_text(body)
        elif kind == "append":
            with (tmp_path / name).open("a") as file:
                file.write(f"\n{body}")
        elif kind == "command":
            program, *arguments = body.split()
            done = subprocess.run(
                [*PROGRAMS[program], *arguments],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            printed = done.stdout
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            assert printed == body
    assert followed == ["file", "append", "append", "file", "file", "command", "answer", "file", "command"]
    assert "1 passed" in printed


def test_the_operator_has_twenty_lines() -> None:
    code = next(body for kind, name, body in _OWN_FUNCTION_BLOCK.findall(PAGE.read_text()) if name.endswith("/rise.py"))
    own = [line for line in code.splitlines() if line and '"""' not in line and "import" not in line]
    assert len(own) <= 20
