"""Code that loops, allocates, ends, floods or forks costs its own records, and no others."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.functions.conftest import Subject
from tests.support.speed import uncollected
from tests.support.steps import TRIES
from tests.support.waiting import PATIENCE_S, until
from weft.functions.contract import NotReady
from weft.functions.python import remove_left_folders

Make = Callable[..., Subject]

BAD = """
import os, signal, subprocess, sys, threading, time
kept = []

def bad():
    {bad}

def process(record, ctx):
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    if record["n"] == 3:
        bad()
    return {{"n": record["n"], "count": ctx.state["count"]}}
"""

BADS = [
    ("while True: pass", "took longer than 0.2 s"),
    pytest.param("time.sleep(1000)", "took longer than 0.2 s", marks=pytest.mark.slow),
    pytest.param("threading.Event().wait()", "took longer than 0.2 s", marks=pytest.mark.slow),
    # Nothing but the end of the process stops these two: one catches everything, one never returns from C.
    ("while True:\n        try:\n            while True: pass\n        except: pass", "took longer than 0.2 s"),
    pytest.param(
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n    while True: pass",
        "took longer than 0.2 s",
        marks=pytest.mark.slow,
    ),
    pytest.param("os.kill(os.getpid(), signal.SIGSTOP)", "took longer than 0.2 s", marks=pytest.mark.slow),
    ("x = []\n    while True: x.append(bytes(8 << 20))", "needed more memory than 64 MiB"),
    pytest.param(
        "while True: kept.append('x' * 100_000 + str(len(kept)))",
        "needed more memory than 64 MiB",
        marks=pytest.mark.slow,
    ),
    pytest.param("bytearray(1 << 40)", "needed more memory than 64 MiB", marks=pytest.mark.slow),
    ("os._exit(3)", "ended its process with status 3"),
    pytest.param("sys.exit(3)", "SystemExit: 3", marks=pytest.mark.slow),
    pytest.param("raise KeyboardInterrupt", "KeyboardInterrupt", marks=pytest.mark.slow),
    pytest.param("os.abort()", "its process was ended by SIGABRT", marks=pytest.mark.slow),
    pytest.param("os.kill(os.getpid(), signal.SIGKILL)", "its process was ended by SIGKILL", marks=pytest.mark.slow),
    pytest.param("os.closerange(0, 256); sys.exit()", "ended its process with status 1", marks=pytest.mark.slow),
    pytest.param("def f(): f()\n    f()", "RecursionError: maximum recursion depth exceeded", marks=pytest.mark.slow),
    pytest.param(
        "for n in range(3, 9):\n        try: os.write(n, b'\\xff' * 100)\n        except OSError: pass",
        "sent an invalid reply",
        marks=pytest.mark.slow,
    ),
    pytest.param("import mmap\n    kept.append(mmap.mmap(-1, 2 << 30))", "OSError: [Errno 12]", marks=pytest.mark.slow),
    pytest.param("while True: print('x' * 1000)", "took longer than 0.2 s", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("bad", "reason"), BADS)
async def test_bad_code_costs_its_own_record(subject: Make, bad: str, reason: str) -> None:
    it = subject(BAD.format(bad=bad), timeout_s=0.2, memory_bytes=64 << 20)
    made = await it.feed(*({"n": n} for n in range(6)))
    assert made == [{"n": n, "count": i + 1} for i, n in enumerate(n for n in range(6) if n != 3)]
    (said,) = it.out.rejected()
    assert reason in said


@pytest.mark.parametrize(
    "bad", [pytest.param("while True: pass", marks=pytest.mark.slow), "os._exit(3)", "x = bytearray(1 << 40)"]
)
async def test_bad_code_in_a_batch_costs_its_own_record(subject: Make, bad: str) -> None:
    it = subject(
        f"""
import os
def process_batch(records, ctx):
    for record in records:
        if record["n"] == 13:
            {bad}
    return records
""",
        batch=True,
        timeout_s=0.2,
    )
    made = await it.feed(*({"n": n} for n in range(40)))
    assert [each["n"] for each in made] == [n for n in range(40) if n != 13]
    assert len(it.out.rejected()) == 1


@pytest.mark.parametrize(
    "harmless",
    [
        "sys.stdin.read(); sys.stdin.close(); sys.stdout.close(); os.close(0); os.close(1)",
        "print('x' * 50_000); sys.stdout.flush()",
        "kept.append(subprocess.Popen(['sleep', '1000']))",
        "os.fork()",
        "kept.append(threading.Thread(target=time.sleep, args=(1000,))); kept[-1].start()",
        "os.write(1, b'\\x05\\0\\0\\0hello')",
        "signal.signal(signal.SIGALRM, signal.SIG_IGN)",
        "os.chdir('/'); os.environ.clear(); sys.path.clear()",
    ],
)
async def test_harmless_code_costs_nothing(subject: Make, harmless: str) -> None:
    it = subject(BAD.format(bad=harmless), timeout_s=2)
    assert len(await it.feed(*({"n": n} for n in range(6)))) == 6
    assert len(await it.feed({"n": 7})) == 1
    assert it.out.rejected() == []


@pytest.mark.slow
async def test_processes_that_the_code_started_end_with_it(subject: Make) -> None:
    it = subject(BAD.format(bad="kept.append(subprocess.Popen(['sleep', '1000']))"))
    await it.feed({"n": 3})
    runner = it.function._current
    assert runner is not None
    assert runner._child is not None
    (started,) = psutil.Process(runner._child.pid).children()
    await it.function.close()
    psutil.wait_procs([started], timeout=PATIENCE_S)
    assert not started.is_running() or started.status() == psutil.STATUS_ZOMBIE


async def test_a_process_killed_from_outside_costs_nothing(subject: Make) -> None:
    it = subject("import time\ndef process(record, ctx):\n    time.sleep(0.01)\n    return record\n", timeout_s=5)
    await it.feed({"n": 0})
    feeding = asyncio.create_task(it.feed(*({"n": n} for n in range(100))))
    for _ in range(3):
        await asyncio.sleep(0.2)
        runner = it.function._current
        assert runner is not None
        if runner._child is not None:
            os.kill(runner._child.pid, signal.SIGKILL)
    assert [each["n"] for each in await feeding] == list(range(100))
    assert it.out.rejected() == []


@pytest.mark.slow
async def test_many_slow_records_are_no_reason_to_end(subject: Make) -> None:
    it = subject("import time\ndef process(record, ctx):\n    time.sleep(0.02)\n    return record\n", timeout_s=0.2)
    assert len(await it.feed(*({"n": n} for n in range(60)))) == 60
    assert it.out.rejected() == []
    assert it.function._current is not None
    assert it.function._current.restarts == 0


async def test_a_slow_start_is_ended(subject: Make) -> None:
    it = subject("import time\ntime.sleep(1000)\n", start_timeout_s=0.3)
    with pytest.raises(NotReady, match=r"while it was loaded, took longer than 0\.3 s"):
        await it.feed({"n": 1})


async def test_a_large_model_is_told_to_raise_the_limit(subject: Make) -> None:
    it = subject("model = bytearray(100 << 20)\n", memory_bytes=64 << 20)
    with pytest.raises(NotReady, match="needs more memory than 64 MiB to load"):
        await it.feed({"n": 1})


async def test_large_records_and_results_go_in_parts(subject: Make) -> None:
    it = subject("def process(record, ctx):\n    return [record, record]\n", memory_bytes=256 << 20)
    made = await it.feed(*({"n": n, "text": "x" * 300_000} for n in range(30)))
    assert [each["n"] for each in made] == [n // 2 for n in range(60)]


async def test_a_record_that_is_too_large_goes_to_the_errors(subject: Make) -> None:
    it = subject("def process(record, ctx):\n    return {'n': record['n']}\n", memory_bytes=512 << 20)
    assert await it.feed({"n": 1}, {"n": 2, "text": "x" * (17 << 20)}, {"n": 3, "text": "x" * (15 << 20)}) == [
        {"n": 1},
        {"n": 3},
    ]
    assert it.out.rejected() == ["score.py is given records of at most 16 MiB"]


async def test_the_loop_is_free_while_code_loops(subject: Make) -> None:
    it = subject(BAD.format(bad="while True: pass"), timeout_s=0.3)
    await it.feed({"n": 0})
    quickest = float("inf")
    for _ in range(TRIES):
        feeding, longest = asyncio.create_task(it.feed({"n": 3})), 0.0
        with uncollected():
            while not feeding.done():
                began = time.thread_time()
                await asyncio.sleep(0.001)
                longest = max(longest, time.thread_time() - began)
        if (quickest := min(quickest, longest)) < 0.1:
            break
    assert quickest < 0.1
    assert len(it.out.rejected()) >= 1


async def test_the_process_sees_no_secret_and_no_file_of_the_node(
    subject: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_TOKEN", "secret")
    inherited = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    it = subject("""
import os
def process(record, ctx):
    return {"environment": sorted(os.environ), "files": sorted(os.readlink(f"/proc/self/fd/{n}") for n in
            os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")), "nice": os.nice(0)}
""")
    (seen,) = await it.feed({})
    os.close(inherited)
    assert "WEFT_TOKEN" not in seen["environment"]
    assert str(tmp_path) not in seen["files"]
    assert [each for each in seen["files"] if each.startswith("socket:")] == []
    assert seen["nice"] >= min(os.nice(0) + 10, 19)


async def test_the_process_ends_with_the_node(tmp_path: Path) -> None:
    """Also in the middle of an endless loop, when it looks at no pipe."""
    (tmp_path / "score.py").write_text("def process(record, ctx):\n    while True: pass\n")
    node = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        NODE,
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert node.stdout is not None
    child = psutil.Process(int(await asyncio.wait_for(node.stdout.readline(), PATIENCE_S)))
    node.kill()
    await node.wait()
    psutil.wait_procs([child], timeout=PATIENCE_S)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


NODE = """
import asyncio, sys
from pathlib import Path
from tests.support.speed import uncollected
from tests.functions.conftest import Subject
from tests.support.steps import TRIES

async def main():
    it = Subject(Path(sys.argv[1]), timeout_s=1000)
    await it.function.prepare()
    feeding = asyncio.create_task(it.feed({"n": 1}))
    await asyncio.sleep(0.2)
    print(it.function._current._child.pid, flush=True)
    await feeding

asyncio.run(main())
"""


@pytest.mark.slow
async def test_what_code_has_started_ends_at_the_next_start_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel ends the process of the code with its node, but not what that has started."""
    (tmp_path / "score.py").write_text(
        "import subprocess, time\n"
        "def process(record, ctx):\n"
        "    started = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(f'{{started.pid}}\\n')\n"
        "    time.sleep(1000)\n"
    )
    folder = str(tmp_path)
    environment = os.environ | {"TMPDIR": folder}
    node = await asyncio.create_subprocess_exec(sys.executable, "-c", NODE, folder, env=environment)
    said = tmp_path / "pid"
    await until(lambda: said.exists() and said.read_text().endswith("\n"))
    started = psutil.Process(int(said.read_text()))
    node.kill()
    await node.wait()
    assert started.is_running()
    monkeypatch.setattr(tempfile, "tempdir", folder)

    def is_ended() -> bool:
        remove_left_folders()  # the process of the code holds the lock, too, until the kernel has ended it
        return not started.is_running() or started.status() == psutil.STATUS_ZOMBIE

    await until(is_ended)
    assert not [*tmp_path.glob("weft-function-*")]


TOO_DEEP = "TypeError: lists and mappings are more than 32 deep in each other"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("deep(33)", TOO_DEEP),
        ("deep(900)", TOO_DEEP),
        ("circle", TOO_DEEP),
        ("deep(33, Node)", TOO_DEEP),
        ("deep(5_000, Node)", TOO_DEEP),
        ("Node(deep(32, lambda value: frozenset([value])))", TOO_DEEP),
        ("Array(deep(33))", TOO_DEEP),
        ("Node(Array(deep(32)))", TOO_DEEP),
        ("Node({(1, 2): 3})", "TypeError: a mapping has keys that are not all strings"),
        ("Node(msgspec.Raw(b'\\xc1'))", "DecodeError: MessagePack data is malformed"),
        ("{(1, 2): 3}", "TypeError: a mapping has keys that are not all strings"),
        ("[{None: 3}]", "TypeError: a mapping has keys that are not all strings"),
        ("msgspec.msgpack.Ext(5, b'x')", "TypeError: a value of type Ext cannot be part of a record"),
        ("msgspec.Raw(b'\\xc1')", "TypeError: a value of type Raw cannot be part of a record"),
        ("deep(31)", None),
        ("deep(31, Node)", None),
        ("Node(Array(deep(30)))", None),
        ("Node({2, datetime.date(2026, 1, 1)} - {2})", {"inner": ["2026-01-01"]}),
        ("Node(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))", {"inner": "2026-01-01T00:00:00+00:00"}),
        ("[datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)]", ["2026-01-01T00:00:00+00:00"]),
        ("[1, {'a': (1.5, b'x', None)}]", [1, {"a": [1.5, b"x", None]}]),
    ],
)
async def test_only_values_that_the_node_can_hold_come_out_and_are_kept(
    subject: Make, value: str, kept: object
) -> None:
    """A state of any depth might not be read at the next start, and the node would not start at all."""
    it = subject(f"""
import dataclasses, datetime, msgspec
circle = []
circle.append(circle)
@dataclasses.dataclass(frozen=True)
class Node:
    inner: object
class Array:
    def __init__(self, value):
        self.tolist = lambda: value
def deep(count, around=lambda value: [value]):
    value = 1
    for _ in range(count): value = around(value)
    return value
def process(record, ctx):
    if record["n"] == 1:
        ctx.state["x"] = {value}
    if record["n"] == 2:
        record["x"] = {value}
    return record
""")
    made = await it.feed(*({"n": n} for n in range(4)))
    state = dict(it.function.state.items()) if it.function.state is not None else {}
    if isinstance(kept, str):
        assert [each["n"] for each in made] == [0, 3]
        assert all(kept in each for each in it.out.rejected())
        assert state == {}
    else:
        assert [each["n"] for each in made] == [0, 1, 2, 3]
        assert kept is None or (made[2]["x"], state) == (kept, {b"x": [kept]})
    assert it.function._current is not None
    assert it.function._current.restarts == 0


@pytest.mark.parametrize(("depth", "is_kept"), [(32, True), (33, False), (3_000, False)])
@pytest.mark.parametrize("around", ["{'x': value}", "[value]", "Node(value)"])
async def test_an_answer_has_the_same_bound_of_depth_with_every_python(
    subject: Make, around: str, depth: int, is_kept: bool
) -> None:
    """The mapping that is returned is the first level."""
    it = subject(f"""
import dataclasses, sys
sys.setrecursionlimit(100_000)
@dataclasses.dataclass
class Node:
    inner: object
def process(record, ctx):
    if record["n"] == 3:
        value = 1
        for _ in range({depth} - 1): value = {around}
        return {{"n": 3, "x": value}}
    return record
""")
    assert [each["n"] for each in await it.feed(*({"n": n} for n in range(6)))] == [
        n for n in range(6) if is_kept or n != 3
    ]
    assert [TOO_DEEP in each for each in it.out.rejected()] == [True] * (not is_kept)
    assert it.function._current is not None
    assert it.function._current.restarts == 0
