"""What a user writes, and what comes of it."""

from __future__ import annotations

import asyncio
import csv
import gzip
import json as on_a_node_json
import random
import runpy
import shutil
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import psutil
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.edge_node.derived.node import SECOND as NODE_SECOND
from tests.edge_node.derived.node import START, Edge, Large, definition
from tests.edge_node.derived.test_part import connect, json, running
from tests.functions.conftest import SECOND, Subject
from tests.functions.restart import context, row
from tests.storage.fakes import FakeFileSystem
from tests.support.live_node import LiveNode
from tests.support.processes import Node, publish, weft
from tests.support.waiting import PATIENCE_S, wait_until
from tests.support.waiting import until as waiting_until
from weft.commands.common import check_code, located_edge
from weft.config.functions.step import Python as Settings
from weft.config.signing import make_key
from weft.edge_node.derived.definitions import Definition
from weft.edge_node.derived.part import FunctionsPart
from weft.functions import python as module
from weft.functions.contract import NotReady
from weft.functions.python import Python
from weft.functions.series import text_of
from weft.output import Refused

Make = Callable[..., Subject]


async def test_a_record_becomes_a_mapping_several_or_nothing(subject: Make) -> None:
    it = subject("""
def process(record, ctx):
    if record["n"] == 0:
        return None
    if record["n"] == 1:
        record["line"] = ctx.levels["line"]
        return record
    return [{"n": i, "key": ctx.key, "time": ctx.time} for i in range(record["n"])]
""")
    assert await it.feed({"n": 0}, {"n": 1}, {"n": 2}) == [
        {"n": 1, "line": "1"},
        {"n": 0, "key": "plant/1", "time": 3.0},
        {"n": 1, "key": "plant/1", "time": 3.0},
    ]
    assert it.out.rejected() == []


async def test_new_records_have_time_key_and_headers_of_their_record(subject: Make) -> None:
    it = subject("def process(record, ctx):\n    return [{'a': 1}, {'a': 2}]\n")
    given = row(7 * SECOND, {"n": 1})
    given.headers = (("unit", "C"),)
    made = await it.rows([given])
    assert [(each.time, each.key, each.headers, each.payload, each.values) for each in made] == [
        (7 * SECOND, b"k", (("unit", "C"),), None, {"a": 1}),
        (7 * SECOND, b"k", (("unit", "C"),), None, {"a": 2}),
    ]


async def test_new_records_keep_the_source_of_their_record(subject: Make) -> None:
    it = subject("def process(record, ctx):\n    return [{'a': 1}, {'a': 2}] if record['n'] else record\n")
    of_a_lane, of_a_window, unknown = (row(at * SECOND, {"n": at - 1}) for at in (1, 2, 3))
    of_a_lane.input, of_a_lane.seq = "telemetry", 7
    of_a_window.source = ("telemetry", 3, 9, 5)
    made = await it.rows([of_a_lane, of_a_window, unknown])
    assert [text_of(each.source) for each in made] == ["telemetry 7", *["telemetry 3-9/5"] * 2, *[""] * 2]
    assert all(each.seq < 0 for each in made), "they have no number of their own"


async def test_a_batch_keeps_its_order(subject: Make) -> None:
    it = subject(
        """
def process_batch(records, ctx):
    return [{"n": r["n"] * 2, "at": r.time} if r["n"] % 3 else None for r in records]
""",
        batch=True,
    )
    made = await it.feed(*({"n": n} for n in range(1000)))
    assert made == [{"n": 2 * n, "at": n + 1.0} for n in range(1000) if n % 3]


async def test_a_record_that_raises_goes_to_the_errors_with_the_line(subject: Make) -> None:
    it = subject("def process(record, ctx):\n    return {'q': 1 / record['n']}\n")
    assert await it.feed({"n": 1}, {"n": 0}, {}, {"n": 2}) == [{"q": 1.0}, {"q": 0.5}]
    assert it.out.rejected() == [
        "score.py, line 2: ZeroDivisionError: division by zero",
        "score.py, line 2: KeyError: 'n'",
    ]


async def test_the_record_that_fails_a_batch_is_found(subject: Make) -> None:
    it = subject(
        """
def process_batch(records, ctx):
    if any(r["n"] == 300 for r in records):
        raise ValueError("300 is too much")
    ctx.state["sum"] = ctx.state.get("sum", 0) + sum(r["n"] for r in records)
    return records
""",
        batch=True,
    )
    made = await it.feed(*({"n": n} for n in range(400)))
    assert [each["n"] for each in made] == [n for n in range(400) if n != 300]
    assert it.out.rejected() == ["score.py, line 4: ValueError: 300 is too much"]
    assert it.function.state is not None
    assert it.function.state.values == {b"sum": [sum(range(400)) - 300]}


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("7", "returned int: return a mapping, a list of mappings, or None"),
        ("[1]", "returned list: return a mapping, a list of mappings, or None"),
        ("{1: 2}", "returned a mapping whose keys are not all strings"),
        ("{'a': object()}", "a value of type object cannot be part of a record: use text, numbers, lists"),
        ("{'a': 'x' * 2_000_000}", "returned 2,000,009 bytes, and 1,048,576 are allowed for a record"),
    ],
)
async def test_what_is_no_record_is_refused(subject: Make, returned: str, reason: str) -> None:
    it = subject(f"def process(record, ctx):\n    return record if record['n'] else {returned}\n")
    assert await it.feed({"n": 0}, {"n": 1}) == [{"n": 1}]
    (said,) = it.out.rejected()
    assert reason in said


async def test_state_survives_the_process_and_the_node(subject: Make) -> None:
    it = subject("""
def process(record, ctx):
    seen = ctx.state.setdefault("seen", [])
    seen.append(record["n"])
    ctx.state["last"] = record["n"]
    if "gone" in ctx.state:
        del ctx.state["gone"]
    elif record["n"] == 1:
        ctx.state["gone"] = None
    return {"seen": list(seen), "gone": "gone" in ctx.state}
""")
    assert await it.feed({"n": 1}) == [{"seen": [1], "gone": True}]
    await it.restart()
    assert await it.feed({"n": 2}, {"n": 3}) == [{"seen": [1, 2], "gone": False}, {"seen": [1, 2, 3], "gone": False}]
    assert it.function.state is not None
    assert it.function.state.values == {b"seen": [[1, 2, 3]], b"last": [3]}


async def test_a_call_that_fails_leaves_the_state_as_it_was(subject: Make) -> None:
    it = subject("""
def process(record, ctx):
    ctx.state["n"] = record["n"]
    ctx.state.setdefault("all", []).append(record["n"])
    if record["n"] == 2:
        raise ValueError("no")
    return dict(ctx.state)
""")
    assert await it.feed({"n": 1}, {"n": 2}, {"n": 3}) == [{"n": 1, "all": [1]}, {"n": 3, "all": [1, 3]}]


async def test_state_is_bounded(subject: Make) -> None:
    it = subject(
        "def process(record, ctx):\n    ctx.state[str(record['n'])] = 'x' * 1000\n    return record\n", state_bytes=3500
    )
    assert [each["n"] for each in await it.feed(*({"n": n} for n in range(5)))] == [0, 1, 2]
    assert len(it.out.rejected()) == 2
    assert "3,500 are allowed" in it.out.rejected()[0]
    assert it.function.state is not None
    assert len(it.function.state.values) == 3


async def test_lines_reach_the_log_and_are_bounded(subject: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    it = subject("def process(record, ctx):\n    ctx.log('saw', record['n'])\n    print('noise')\n    return record\n")
    assert len(await it.feed(*({"n": n} for n in range(100)))) == 100
    assert "derived: score.py: saw 0" in caplog.text
    assert "derived: score.py: 80 more lines were left out" in caplog.text


async def test_setup_runs_once_and_files_are_at_hand(subject: Make, tmp_path: object) -> None:
    it = subject(
        """
import helper

def setup(ctx):
    global factor
    factor = float(open("factor.txt").read())

def process(record, ctx):
    return {"n": helper.twice(record["n"]) * factor}
""",
        files=(str(tmp_path) + "/factor.txt", str(tmp_path) + "/helper.py"),
    )
    it.file.with_name("factor.txt").write_text("1.5")
    it.file.with_name("helper.py").write_text("def twice(n):\n    return 2 * n\n")
    assert await it.feed({"n": 2}) == [{"n": 6.0}]
    before = it.function.version()
    it.file.with_name("factor.txt").write_text("10")
    assert await it.feed({"n": 2}) == [{"n": 40.0}]
    assert it.function.version() != before


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def process(record ctx):\n", "SyntaxError"),
        ("import not_there\n", "score.py, line 1: ModuleNotFoundError: No module named 'not_there'"),
        ("x = 1\n", "score.py: LookupError: has no function process"),
        ("def setup(ctx):\n    raise OSError('no model')\ndef process(r, c):\n    pass\n", "line 2: OSError: no model"),
        ("import sys\nsys.exit(3)\n", "score.py, line 2: SystemExit: 3"),
        ("import os\nos._exit(3)\n", "score.py: while it was loaded, ended its process with status 3"),
    ],
)
async def test_rows_wait_for_code_that_cannot_be_loaded(subject: Make, code: str, reason: str) -> None:
    it = subject(code)
    with pytest.raises(NotReady, match="score") as caught:
        await it.feed({"n": 1})
    assert reason in str(caught.value)
    assert reason in it.function.trouble()
    it.write("def process(record, ctx):\n    return record\n")
    assert await it.feed({"n": 1}) == [{"n": 1}]
    assert it.function.trouble() == ""


async def test_rows_wait_for_a_file_that_is_missing(subject: Make) -> None:
    it = subject("")
    it.file.unlink()
    with pytest.raises(NotReady, match="No such file"):
        await it.feed({"n": 1})


# --- A file that changes is tried on the next records, and taken back when it fails where the former one did not


COUNTS = """
def process(record, ctx):
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    return {"by": "%s", "count": ctx.state["count"], "n": 1 / record["n"]}
"""


async def test_a_new_version_goes_on_with_the_state(subject: Make) -> None:
    it = subject(COUNTS % "one")
    assert await it.feed({"n": 1}) == [{"by": "one", "count": 1, "n": 1.0}]
    first = it.function.version()
    it.write(COUNTS % "two")
    assert await it.feed(*[{"n": 1}] * 150) == [{"by": "two", "count": i + 2, "n": 1.0} for i in range(150)]
    assert it.function.version() != first
    assert it.function.trouble() == ""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def process(record, ctx):\n    ctx.state['count'] = -5\n    return record['m']\n", "line 3: KeyError: 'm'"),
        pytest.param(
            "def process(record, ctx):\n    while True: pass\n", "took longer than 0.2 s", marks=pytest.mark.slow
        ),
        pytest.param(
            "import os\ndef process(record, ctx):\n    os._exit(1)\n",
            "ended its process with status 1",
            marks=pytest.mark.slow,
        ),
        ("def process(record, ctx:\n", "SyntaxError"),
        ("", "has no function process"),
    ],
)
async def test_a_version_that_fails_is_taken_back(
    subject: Make, code: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    it = subject(COUNTS % "one", timeout_s=0.2)
    await it.feed({"n": 1})
    first = it.function.version()
    it.write(code)
    assert await it.feed(*[{"n": 2}] * 50) == [{"by": "one", "count": i + 2, "n": 0.5} for i in range(50)]
    assert it.out.rejected() == []
    assert it.function.version() == first
    assert reason in it.function.trouble()
    assert f"version {first} continues" in it.function.trouble()
    assert it.function.trouble() in caplog.text
    # The former version runs on from its own copy, also in a new process.
    it.function._current._child.kill()  # type: ignore[union-attr]
    assert await it.feed({"n": 2}) == [{"by": "one", "count": 52, "n": 0.5}]


async def test_records_that_both_versions_fail_on_take_none_back(subject: Make) -> None:
    it = subject(COUNTS % "one")
    await it.feed({"n": 1})
    it.write(COUNTS % "two")
    made = await it.feed({"n": 0}, {"n": 1}, {"n": 0})
    assert made == [{"by": "two", "count": 2, "n": 1.0}]
    assert len(it.out.rejected()) == 2


async def test_a_version_on_trial_is_taken_back_with_what_it_did_to_the_state_so_far_in_place(subject: Make) -> None:
    it = subject(COUNTS % "one")
    await it.feed({"n": 1})
    it.write((COUNTS % "two").replace("1 / record", "1 if ctx.state['count'] < 40 else record['x'] / record"))
    made = await it.feed(*[{"n": 1}] * 60)
    assert [each["count"] for each in made] == list(range(2, 62))
    assert [each["by"] for each in made].count("two") == 20
    assert it.out.rejected() == []
    assert "KeyError: 'x'" in it.function.trouble()


async def test_the_former_content_brings_the_former_version_back(subject: Make) -> None:
    it = subject(COUNTS % "one")
    await it.feed({"n": 1})
    first = it.function.version()
    it.write("no")
    await it.feed({"n": 1})
    it.write(COUNTS % "one")
    await it.feed({"n": 1})
    assert (it.function.version(), it.function.trouble()) == (first, "")


async def test_copies_of_a_node_that_was_killed_are_removed_and_no_others(
    subject: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "weft-function-left"
    left.mkdir()
    (left / "lock").touch()
    (left / "score.py").touch()
    stranger = tmp_path / "weft-function-other"
    stranger.mkdir()
    it = subject(COUNTS % "one")
    await it.feed({"n": 1})
    in_use = set(tmp_path.glob("weft-function-*")) - {stranger}
    assert len(in_use) == 1
    assert left not in in_use
    await subject(COUNTS % "two").feed({"n": 1})
    assert in_use < set(tmp_path.glob("weft-function-*"))
    await it.function.close()
    assert not in_use & set(tmp_path.glob("weft-function-*"))
    assert stranger.exists()


def children() -> list[psutil.Process]:
    """Return the processes that this one has started and that run."""
    return [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]


async def test_records_do_not_wait_for_a_version_that_takes_long_to_load(
    subject: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "SOON_S", 0.0)
    others = set(children())
    it = subject(COUNTS % "one")
    await it.feed({"n": 1})
    gate = tmp_path / "gate"
    it.write(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n{COUNTS % 'two'}")
    for count in range(2, 5):
        assert await it.feed({"n": 1}) == [{"by": "one", "count": count, "n": 1.0}]
    gate.touch()
    assert it.function._loading is not None
    await asyncio.wait({it.function._loading})
    assert await it.feed({"n": 1}) == [{"by": "two", "count": 5, "n": 1.0}]
    # One that is taken back while it loads leaves no process behind.
    gate.unlink()
    it.write(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n{COUNTS % 'three'}")
    await it.feed({"n": 1})
    it.write(COUNTS % "four")
    monkeypatch.setattr(module, "SOON_S", 60.0)
    assert await it.feed({"n": 1}) == [{"by": "four", "count": 7, "n": 1.0}]
    assert len(set(children()) - others) == 2, "the version on trial, and the former one"


# --- Code runs as one of the edge's keys signed it, or not at all


CODE = "import other\ndef process(record, ctx):\n    return {'by': '%s', 'other': other.NAME}\n"


def sign(*files: Path, key: str = "ops") -> None:
    done = weft("config", "sign-code", *files, "--key", files[0].parent / f"{key}.key")
    assert done.exit_code == 0, done.exception


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, ...]:
    for name in ("ops", "next", "thief"):
        private, public, _ = make_key()
        (tmp_path / f"{name}.key").touch(0o600)
        (tmp_path / f"{name}.key").write_bytes(private)
        (tmp_path / f"{name}.pub").write_bytes(public)
    return tuple(str(tmp_path / f"{name}.pub") for name in ("ops", "next"))


async def test_code_waits_for_a_signature_and_goes_on_as_it_was_signed(
    subject: Make, keys: tuple[str, ...], tmp_path: Path
) -> None:
    code, other = tmp_path / "score.py", tmp_path / "other.py"
    other.write_text("NAME = 'fine'\n")
    it = subject(CODE % "one", signed_by=keys, files=(str(other),))
    with pytest.raises(NotReady, match=r"score\.py has no signature beside it"):
        await it.feed({"n": 1})
    sign(code)
    with pytest.raises(NotReady, match=r"other\.py has no signature beside it"):
        await it.feed({"n": 1})
    sign(other, key="next")
    assert await it.feed({"n": 1}) == [{"by": "one", "other": "fine"}]
    it.write(CODE % "two")
    assert await it.feed({"n": 1}) == [{"by": "one", "other": "fine"}], "changed code must not run"
    assert "score.py was changed after it was signed" in it.function.trouble()
    assert it.function.trouble().endswith("continues")
    sign(code, key="thief")
    assert await it.feed({"n": 1}) == [{"by": "one", "other": "fine"}]
    assert "none of the keys of functions_signed_by" in it.function.trouble()
    sign(code)
    assert await it.feed({"n": 1}) == [{"by": "two", "other": "fine"}]
    assert it.function.trouble() == ""
    other.write_text("NAME = 'other'\n")
    assert await it.feed({"n": 1}) == [{"by": "two", "other": "fine"}]
    # A good signature of another file, under its own name or in its place, is none of this one.
    shutil.copy(f"{code}.sig", f"{other}.sig")
    await it.feed({"n": 1})
    assert "is for a file of the name 'score.py'" in it.function.trouble()


def test_a_configuration_with_code_that_is_not_signed_is_refused(keys: tuple[str, ...], tmp_path: Path) -> None:
    code, config = tmp_path / "score.py", tmp_path / "edge.yaml"
    code.write_text("def process(record, ctx):\n    return record\n")
    config.write_text(
        "node: press-7\ndata_dir: data\nlisteners: {mqtt: null}\nhttp: null\nfunctions_signed_by: [ops.pub, next.pub]\n"
        "streams:\n  raw: {from: '#'}\n  scored: {from_stream: raw, functions: [{python: {file: score.py}}]}\n"
    )
    shown = weft("edge", "check", config)
    assert "streams.scored.functions[0].python.file" in shown.output
    assert "score.py has no signature beside it" in shown.output
    with pytest.raises(Refused, match=r"score\.py has no signature"):
        check_code(located_edge(str(config)))
    sign(code)
    check_code(located_edge(str(config)))
    assert "signature" not in weft("edge", "check", config).output
    (tmp_path / "ops.pub").unlink()
    with pytest.raises(Refused, match=r"ops\.pub: no such file"):
        check_code(located_edge(str(config)))


# --- A user's code on a real log: its stream waits for it and others do not; a power cut doubles and loses nothing


LARGE = definition("large", ["telemetry"], lambda: [("large", Large(0))])
STEPS_COUNTS = """
def process(record, ctx):
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    if record["value"] % 100 == 50:
        while True: pass
    return {"value": record["value"], "count": ctx.state["count"]}
"""


def scored(file: Path, code: str) -> Definition:
    file.write_text(code)
    settings = Settings(file=str(file), timeout_s=0.3)
    return definition("scored", ["telemetry"], lambda: [("python", Python(settings, context(stream="scored")))])


async def until(edge: Edge, done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():
            await edge.settle()
            await asyncio.sleep(0.005)


async def test_streams_beside_code_that_loops_do_not_wait(tmp_path: Path) -> None:
    edge = Edge(FakeFileSystem(), scored(tmp_path / "score.py", STEPS_COUNTS), LARGE)
    edge.publish("telemetry", *range(200), time=START)
    await until(edge, lambda: len(edge.read("large")) == 200)
    assert len(edge.read("scored")) < 198, "two records loop for 0.3 s each"
    await until(edge, lambda: edge.functions.counters()["scored"].lag == 0 and len(edge.read("scored")) == 198)
    values = [value for value in range(200) if value % 100 != 50]
    assert [record[3] for record in edge.read("scored")] == [
        {"value": value, "count": at + 1} for at, value in enumerate(values)
    ]
    assert [record[3] for record in edge.read("scored-errors")] == [{"value": 50}, {"value": 150}]
    await edge.close()


async def test_input_waits_in_the_log_for_code_that_is_mended(tmp_path: Path) -> None:
    edge = Edge(FakeFileSystem(), scored(tmp_path / "score.py", "import not_there\n"))
    edge.publish("telemetry", 1, 2, time=START)
    await until(edge, lambda: "not_there" in edge.functions.counters()["scored"].trouble)
    assert edge.released == {}
    assert edge.mark("scored") < START
    (tmp_path / "score.py").write_text("def process(record, ctx):\n    return record\n")
    await until(edge, lambda: [record[3]["value"] for record in edge.read("scored")] == [1, 2])
    assert edge.functions.counters()["scored"].trouble == ""
    await edge.close()


async def test_power_cuts_double_and_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    code = STEPS_COUNTS.replace("if record", "if False and record")
    disk, published, now = FakeFileSystem(), 0, START
    for _ in range(6):
        edge = Edge(disk, scored(tmp_path / "score.py", code), now=now)
        published = edge.log.durable_end(edge.log.stream("telemetry"))
        begun = len(edge.read("scored"))
        for _ in range(10):
            edge.publish("telemetry", *range(published, published + 20), time=edge.now + NODE_SECOND)
            published += 20
            edge.commit()
        await until(edge, lambda: len(edge.read("scored")) > begun + chance.randrange(150))
        now = edge.now
        disk.kill_process()
        await edge.lose_power()
        disk = disk.power_cut(chance)
    edge = Edge(disk, scored(tmp_path / "score.py", code), now=now)
    published = edge.log.durable_end(edge.log.stream("telemetry"))
    await until(edge, lambda: len(edge.read("scored")) >= published)
    assert [record[3] for record in edge.read("scored")] == [{"value": n, "count": n + 1} for n in range(published)]
    await edge.close()


# --- Code that raises, loops or takes all memory harms no other stream, delays no acknowledgement, and loses nothing


CONFIG = """
node: press-hall
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
http: null
disk: {budget: 64MiB, segment: 4MiB}
streams:
  telemetry: {from: "plant/{line}/telemetry", payload: json}
  calm: {from_stream: telemetry, functions: [where: n >= 0]}
  raises: {from_stream: telemetry, functions: [python: raises.py]}
  greedy: {from_stream: telemetry, functions: [python: greedy.py]}
  loops: {from_stream: telemetry, functions: [python: {file: loops.py, timeout: TIMEOUT}]}
"""
OTHERS_CODE = "def process(record, ctx):\n    if record['n'] == 3:\n        {bad}\n    return record\n"
BAD = {"raises": "raise ValueError('no')", "greedy": "found = bytearray(1 << 32)", "loops": "while True: pass"}
COUNT = 50


def rows(node: LiveNode, stream: str) -> tuple[int, int]:
    found = node.node.part(FunctionsPart).figures()[stream]
    return found.rows_out, found.rows_rejected


@pytest.mark.slow
async def test_others_go_on_and_nothing_is_lost(tmp_path: Path) -> None:
    for name, bad in BAD.items():
        (tmp_path / f"{name}.py").write_text(OTHERS_CODE.format(bad=bad))
    # The loop is not ended while this runs: what is acknowledged and made meanwhile did not wait for it.
    async with running(tmp_path, CONFIG.replace("TIMEOUT", "10m")) as node, connect(node, "device") as device:
        for n in range(COUNT):
            await device.publish("plant/a/telemetry", json(n=n), 1)
        await waiting_until(lambda: rows(node, "calm") == (COUNT, 0))
        for name in ("raises", "greedy"):
            await waiting_until(lambda name=name: rows(node, name) == (COUNT - 1, 1))  # type: ignore[misc]
        made, rejected = rows(node, "loops")
        assert made <= 3
        assert not rejected
        assert len(await node.stored("telemetry")) == COUNT
    # With a limit, the record that loops goes to the errors, and all others come out.
    async with running(tmp_path, CONFIG.replace("TIMEOUT", "100ms")) as node:
        await waiting_until(lambda: rows(node, "loops")[1] == 1)
        await waiting_until(lambda: node.node.part(FunctionsPart).figures()["loops"].lag == 0)
        assert [each["n"] for each in await node.payloads("loops")] == [n for n in range(COUNT) if n != 3]
        assert await node.payloads("loops-errors") == [{"n": 3}]


# --- The page on models: its training, its code and its figures, on the real series


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/score-with-a-model.md"
FOLDER = PAGE.with_suffix("")
SERIES = ROOT / "examples/demo/data/machine_temperature_system_failure.csv.gz"


def series() -> list[dict[str, Any]]:
    with gzip.open(SERIES, "rt") as file:
        return [{"timestamp": each["timestamp"], "value": float(each["value"])} for each in csv.DictReader(file)]


@pytest.fixture
def scoring(subject: Make, tmp_path: Path) -> Subject:
    runpy.run_path(str(FOLDER / "train.py"))["main"](str(SERIES), str(tmp_path / "machine_temperature.onnx"))
    return subject(
        (FOLDER / "score.py").read_text(), batch=True, files=(str(tmp_path / "machine_temperature.onnx"),), timeout_s=30
    )


def peaks(scored: list[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in scored:
        day = each["timestamp"][:10]
        found[day] = max(found.get(day, 0.0), each["score"] or 0.0)
    return {day: score for day, score in found.items() if score > 11}


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime has no wheels for some systems")
async def test_the_shutdown_and_the_failure_stand_out(scoring: Subject) -> None:
    scored = await scoring.feed(*series())
    assert len(scored) == 22_695
    assert peaks(scored) == {"2013-12-16": 24.2, "2014-02-03": 16.9, "2014-02-09": 18.4}
    assert [each["score"] for each in scored[:12]] == [None] * 11 + [scored[11]["score"]]
    assert scoring.out.rejected() == []


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime has no wheels for some systems")
async def test_the_runtime_of_models_has_no_telemetry(
    scoring: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its telemetry on, onnxruntime leaves the file of a session in the temporary folder."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    await scoring.feed(*series()[:20])
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime has no wheels for some systems")
async def test_scores_do_not_depend_on_batches_or_restarts(scoring: Subject) -> None:
    rows = series()[3800:4100]  # around the shutdown
    whole = await scoring.feed(*rows)
    await scoring.restart()
    assert scoring.function.state is not None
    scoring.function.state.delete(b"plant/1")
    parts = []
    for begin, end in ((0, 1), (1, 8), (8, 100), (100, 300)):
        parts += await scoring.feed(*rows[begin:end])
        await scoring.restart()
    assert parts == whole


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime has no wheels for some systems")
async def test_a_model_that_does_not_load_is_not_used(scoring: Subject) -> None:
    rows = series()
    await scoring.feed(*rows[:20])
    first = scoring.function.version()
    model = scoring.file.with_name("machine_temperature.onnx")
    shutil.copy(model, model.with_suffix(".bak"))
    model.write_bytes(b"no model")
    assert (await scoring.feed(rows[20]))[0]["score"] is not None
    assert scoring.function.version() == first
    assert "score.py, line" in scoring.function.trouble()
    model.with_suffix(".bak").rename(model)
    await scoring.feed(rows[21])
    assert scoring.function.trouble() == ""


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime has no wheels for some systems")
def test_the_page_shows_the_code_that_runs() -> None:
    assert f"```python\n{(FOLDER / 'score.py').read_text()}```" in PAGE.read_text()


# --- enrich, python and alert in one chain of a real node, which is killed now and then: each record once, each alert


ON_A_NODE_CONFIG = """\
node: press-7
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
http: {bind: "127.0.0.1:0"}
disk: {budget: 64MiB}
streams:
  telemetry: {from: "plant/{line}/{machine}/telemetry", payload: json}
  alerts: {from: "alerts/#"}
  scored:
    from_stream: telemetry
    payload: json
    functions:
      - enrich: {file: machines.csv, on: machine, fields: [site, limit], numbers: [limit]}
      - python: {file: score.py, timeout: 500ms}
      - alert:
          when: over
          topic: "alerts/{site}/{machine}"
          payload: {n: n, count: count}
"""
ON_A_NODE_CODE = """
def process(record, ctx):
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    if record["n"] == 70:
        while True: pass
    return {"n": record["n"], "site": record["site"], "count": ctx.state["count"], "over": record["n"] % 50 > 40}
"""
ROUNDS, EACH = 4, 60


def tail(folder: Path, stream: str) -> list[Any]:
    said = weft("edge", "tail", folder / "edge.yaml", stream, "--json", "--last", 10_000)
    assert said.exception is None, said.output
    found = [on_a_node_json.loads(line) for line in said.output.splitlines()]
    return [on_a_node_json.loads(each["payload"]) for each in found if "payload" in each]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "edge.yaml").write_text(ON_A_NODE_CONFIG)
    (tmp_path / "machines.csv").write_text("machine,site,limit\nm1,Graz,80\n")
    (tmp_path / "score.py").write_text(ON_A_NODE_CODE)
    return tmp_path


@pytest.mark.processes
@pytest.mark.slow
def test_a_chain_on_a_node_that_is_killed(folder: Path) -> None:
    heard: list[tuple[str, Any]] = []
    for number in range(ROUNDS):
        node = Node("edge", folder / "edge.yaml")
        listening = threading.Event()
        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.on_subscribe = lambda *_, listening=listening: listening.set()
        client.on_message = lambda _client, _data, message: heard.append(
            (message.topic, on_a_node_json.loads(message.payload))
        )
        client.connect("127.0.0.1", node.mqtt_port)
        client.subscribe("alerts/#", qos=1)
        client.loop_start()
        assert listening.wait(PATIENCE_S)
        rows = range(number * EACH, (number + 1) * EACH)
        publish(node.mqtt_port, "plant/a/m1/telemetry", [on_a_node_json.dumps({"n": n, "machine": "m1"}) for n in rows])
        if number < ROUNDS - 1:
            node.kill()
        else:
            wait_until(lambda: node.json("status")["functions"]["scored"]["lag_records"] == 0, 60)
            wait_until(lambda: len(tail(folder, "scored")) >= ROUNDS * EACH - 1, 60)
            assert node.stop() == 0
        client.loop_stop()
    kept = [n for n in range(ROUNDS * EACH) if n != 70]
    assert tail(folder, "scored") == [
        {"n": n, "site": "Graz", "count": at + 1, "over": n % 50 > 40} for at, n in enumerate(kept)
    ]
    assert tail(folder, "scored-errors") == [{"n": 70, "machine": "m1"}], "the payload as it came"
    begun = [{"n": n, "count": kept.index(n) + 1} for n in kept if n % 50 == 41]
    assert tail(folder, "alerts") == begun
    # What the killed node had published but not told to its subscriber yet is in the stream only.
    assert {topic for topic, _ in heard} <= {"alerts/Graz/m1"}
    assert [payload for _, payload in heard] == [each for each in begun if ("alerts/Graz/m1", each) in heard]
    assert begun[-1] in [payload for _, payload in heard]
