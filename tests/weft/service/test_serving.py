"""A node of several processes, over processes that end at once."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tests.support.waiting import PATIENCE_S
from weft.cli import cli
from weft.edge_node.node import EdgeNode
from weft.service import serving
from weft.service.serving import (
    LINE_CHARACTERS_MAX,
    CannotStart,
    DidNotStart,
    LineFormatter,
    Signals,
    Supervisor,
    read_only_mount,
)
from weft.storage.segment_log import LogFailed


async def test_a_machine_that_cannot_start_a_process_for_a_moment_does_not_stop_the_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "RESTART_MIN_S", 0.05)
    starts, again, start = 0, asyncio.Event(), asyncio.create_subprocess_exec

    async def sometimes(*args: str, **options: object) -> asyncio.subprocess.Process:
        nonlocal starts
        starts += 1
        if starts == 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        if starts == 3:
            again.set()
        return await start(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", sometimes)
    signals = Signals()
    node = asyncio.create_task(Supervisor(lambda _number, _alive, _first: ["--version"], 1).run(signals))
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(PATIENCE_S):
            await again.wait()
    assert not node.done()
    signals.stop.set()
    await node
    assert "process 0 ended: exit status 0; starting it again" in caplog.text
    assert "process 0 cannot be started: Resource temporarily unavailable; starting it again" in caplog.text


async def test_a_process_that_is_killed_before_it_is_ready_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "RESTART_MIN_S", 0.05)
    starts, again, start = 0, asyncio.Event(), asyncio.create_subprocess_exec

    async def killed_at_first(*args: str, **options: object) -> asyncio.subprocess.Process:
        nonlocal starts
        starts += 1
        process = await start(*args, **options)  # type: ignore[arg-type]
        if starts == 1:
            process.kill()
        else:
            again.set()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", killed_at_first)
    signals = Signals()
    node = asyncio.create_task(Supervisor(lambda _number, _alive, _first: ["--version"], 1).run(signals))
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(PATIENCE_S):
            await again.wait()
    assert not node.done()
    signals.stop.set()
    await node
    assert "process 0 ended: killed by SIGKILL; starting it again" in caplog.text


async def test_a_process_that_never_was_ready_ends_the_node() -> None:
    with pytest.raises(DidNotStart) as ended:
        await Supervisor(lambda _number, _alive, _first: ["no-such-command"], 1).run(Signals())
    assert ended.value.status == 2


async def test_a_machine_that_starts_no_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(CannotStart, match=r"process 0 of the hub, /nonexistent/python, cannot be started: No such"):
        await Supervisor(lambda _number, _alive, _first: ["--version"], 1).run(Signals())


# --- Every line of a node's log has its time and zone, is one line, and is not longer than it may be


TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")


def line(message: str, *arguments: object, error: bool = False) -> str:
    try:
        raise ValueError("a client sent \x1b[31m this")
    except ValueError:
        info = sys.exc_info() if error else None
    return LineFormatter().format(logging.LogRecord("part", logging.INFO, "", 0, message, arguments, info))


def test_the_time_is_iso_8601_in_utc_to_the_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    record = logging.LogRecord("part", logging.WARNING, "", 0, "said", (), None)
    record.created, record.msecs = 1_763_625_086.0625, 62.5
    assert LineFormatter().format(record) == "2025-11-20T07:51:26.062Z WARNING part: said"


@pytest.mark.parametrize(
    "hostile", ["a\nb", "a\r\nb", "a\x1b[2Jb", "a\x00b", "a\x85b", "a\u2028b", "a\x9b31mb", "a\u202eb", "a\u2066b"]
)
def test_what_a_client_wrote_is_one_line_and_drives_no_terminal(hostile: str) -> None:
    written = line("client %s", hostile)
    assert TIME.match(written)
    assert len(written.splitlines()) == 1
    assert written.isprintable()
    assert "a\\" in written


def test_a_line_is_bounded_and_says_that_it_was_longer() -> None:
    written = line("client %s", "x" * 1_000_000)
    assert len(written) < LINE_CHARACTERS_MAX + 200
    assert written.endswith("... (1,000,007 characters)")


def test_a_traceback_keeps_its_lines_and_is_escaped_too() -> None:
    written = line("failed", error=True)
    assert "Traceback (most recent call last):\n" in written
    assert written.endswith("ValueError: a client sent \\x1b[31m this")


# --- A node whose disk became read-only names the disk in its last line


CONFIG = (
    "node: pi\ndata_dir: {}\nstreams: {{t: {{from: 't/#', replicate: false}}}}\nlisteners: {{mqtt: null}}\nhttp: null\n"
)


def become_read_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY, f_bavail=1 << 30, f_frsize=4096))


def test_only_a_disk_that_is_read_only_now_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_only_mount(str(tmp_path)) is None
    assert read_only_mount(str(tmp_path / "gone")) is None
    become_read_only(monkeypatch)
    mount = read_only_mount(str(tmp_path))
    assert mount is not None
    assert os.path.ismount(mount)
    assert str(tmp_path.resolve()).startswith(mount)


@pytest.mark.parametrize("is_read_only", [True, False])
def test_the_last_line_names_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read_only: bool) -> None:
    config = tmp_path / "edge.yaml"
    config.write_text(CONFIG.format(tmp_path / "data"))

    async def run(node: EdgeNode, _stop: object) -> None:
        if is_read_only:
            become_read_only(monkeypatch)
        raise LogFailed("the log failed") from OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(EdgeNode, "run", run)
    done = CliRunner().invoke(cli, ["edge", "run", str(config)])
    assert done.exit_code == 1
    last = done.output.strip().splitlines()[-1] if done.output.strip() else ""
    if is_read_only:
        mount = read_only_mount(str(tmp_path))
        assert f"the disk mounted at {mount} became read-only" in last
        assert "the log failed" in last
        assert "mount it read-write, and start the node again" in last
    else:
        assert "read-only" not in last
