"""What a user writes, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.functions.python.conftest import SECOND, Subject
from tests.functions.restart import row
from weft.functions.contract import NotReady
from weft.functions.series import text_of

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
