"""Waiting for what was appended to be on the disk."""

from __future__ import annotations

import asyncio

import pytest

from tests.storage.fakes import FakeFileSystem, eio
from tests.storage.segment_log.helpers import commit_all, open_log, put
from weft.storage.segment_log import LogFailed


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


async def test_it_returns_when_everything_appended_so_far_is_durable(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    log.append(stream, 5, [b"k"], [b"a"])
    waiting = asyncio.ensure_future(log.durable())
    await asyncio.sleep(0)
    assert not waiting.done()
    commit_all(log)
    await waiting
    assert log.durable_end(stream) == 1
    await log.durable()  # nothing waits: at once


async def test_it_raises_what_keeps_the_log_from_writing(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    log.append(log.stream("one"), 5, [b"k"], [b"a"])
    waiting = asyncio.ensure_future(log.durable())
    await asyncio.sleep(0)
    disk.fail = lambda name, path: eio() if name == "sync" else None
    commit_all(log)
    for each in (waiting, log.durable()):
        with pytest.raises(LogFailed):
            await each


async def test_who_waits_no_longer_is_not_called(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    log.append(stream, 5, [b"k"], [b"a"])
    waiting = asyncio.ensure_future(log.durable())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert put(log, stream, b"b") == 1
    assert log.durable_end(stream) == 2
