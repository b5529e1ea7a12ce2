"""A file that changes is tried on the next records, and taken back when it fails where the former one did not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.functions.python.conftest import Subject
from weft.functions import python as module

Make = Callable[..., Subject]

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
