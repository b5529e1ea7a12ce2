"""The control socket: a running node gives up a backlog for its own user, and for no other."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from tests.cloud_hub.live import get, running_hub
from tests.support.waiting import PATIENCE_S, until
from weft.config.links import Link as LinkConfig
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.control.client import ControlFailed, DropRequest, ask_drop, socket_path
from weft.edge_node.control.server import REQUEST_BYTES_MAX, Control
from weft.edge_node.inspect.maintenance import RunningLog, UnknownStream
from weft.edge_node.links.links import Links
from weft.edge_node.node import poster
from weft.edge_node.streams import SESSION_JOURNAL_STREAM
from weft.edge_node.timing import clock_reader, wall_clock
from weft.protocols.lane import format_log_id
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.storage.object_store.directory import MemoryStore
from weft.storage.segment_log import LogFailed, LogFull, LogSettings, SegmentLog

LOG_ID = 0xABCD
SETTINGS = LogSettings(segment_bytes=1 << 17, budget_bytes=4 << 20, tail_bytes=0)
NOBODY = 65534

Answer = tuple[int, dict[str, Any]]


def open_log(directory: str, *, start_writer: bool = True) -> SegmentLog:
    return SegmentLog.open(
        directory,
        SETTINGS,
        wall_clock=wall_clock,
        clock_reading=clock_reader(),
        random_bits=lambda _: LOG_ID,
        post=poster(asyncio.get_running_loop()),
        start_writer=start_writer,
    )


async def put(log: SegmentLog, stream: str, count: int, payload: bytes = b"21.5") -> None:
    """Records in a batch of their own, durable when this returns."""
    log.append(log.stream(stream), wall_clock(), [b"plant/1"] * count, [payload] * count)
    durable: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    log.on_durable(durable.set_result)
    assert await durable is None


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SegmentLog]:
    log = open_log(str(tmp_path))
    yield log
    await asyncio.to_thread(log.close)


@pytest.fixture
async def control(tmp_path: Path, log: SegmentLog) -> AsyncIterator[Control]:
    control = Control(str(tmp_path), log)
    await control.start()
    yield control
    await control.close()


def request(stream: str = "telemetry", below: int = 1 << 40, log_id: int = LOG_ID) -> DropRequest:
    return DropRequest(format_log_id(log_id), stream, below)


async def ask(directory: Path, what: DropRequest) -> RangeSet:
    return await asyncio.to_thread(ask_drop, str(directory), what)


async def post(directory: Path, body: bytes, path: str = "/drop") -> tuple[int, str]:
    connector = aiohttp.UnixConnector(socket_path(str(directory)))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"http://node{path}", data=body) as answer,
    ):
        return answer.status, await answer.text()


def operator_gaps(log: SegmentLog, stream: str = "telemetry") -> list[tuple[int, int]]:
    assert all(gap.reason is GapReason.OPERATOR for gap in log.gaps(log.stream(stream)))
    return [(gap.first, gap.end) for gap in log.gaps(log.stream(stream))]


async def test_records_are_given_up_under_a_durable_notice(tmp_path: Path, log: SegmentLog, control: Control) -> None:
    for _ in range(10):
        await put(log, "telemetry", 10)
    await put(log, "alarms", 5)
    log.release(log.stream("telemetry"), RangeSet([(20, 30)]))
    assert list(await ask(tmp_path, request(below=45))) == [(0, 20), (30, 40)], "whole batches, and none that hubs have"
    assert operator_gaps(log) == [(0, 20), (30, 40)]
    assert list(await ask(tmp_path, request(below=45))) == [], "to repeat it is harmless"
    assert list(await ask(tmp_path, request())) == [(40, 100)]
    assert log.ranges(log.stream("alarms")).count() == 5
    assert log.next_seq(log.stream("telemetry")) == 100


async def test_the_socket_is_its_owner_s_alone_and_goes_with_the_node(tmp_path: Path, log: SegmentLog) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    for _ in range(2):
        control = Control(str(tmp_path), log)
        await control.start()
        found = path.stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, os.geteuid())
        with pytest.raises(ControlFailed, match="has no stream"):
            await ask(tmp_path, request())
        await control.close()
        assert not path.exists()


async def test_the_socket_never_had_another_mode(
    tmp_path: Path, log: SegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    monkeypatch.setattr(os, "chmod", lambda path, _: modes.append(stat.S_IMODE(os.stat(path).st_mode)))
    mask = os.umask(0)
    try:
        control = Control(str(tmp_path), log)
        await control.start()
    finally:
        os.umask(mask)
    assert modes == [0o600], "when the name was there and nobody could connect yet"
    await control.close()


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (request(log_id=LOG_ID + 1), "the node writes log 000000000000abcd, not 000000000000abce"),
        (request("vibration"), "has no stream vibration"),
        (request(SESSION_JOURNAL_STREAM), "has no stream"),
        (request(below=0), "expected log_id, stream and below: .*below"),
        (request(below=1 << 63), "expected log_id, stream and below"),
        (request("x" * REQUEST_BYTES_MAX), "answered 413"),
    ],
)
async def test_what_is_not_done_is_said_in_a_sentence(
    tmp_path: Path, log: SegmentLog, control: Control, what: DropRequest, sentence: str
) -> None:
    await put(log, "telemetry", 5)
    with pytest.raises(ControlFailed, match=sentence):
        await ask(tmp_path, what)
    assert operator_gaps(log) == []


async def test_only_what_is_known_is_taken(tmp_path: Path, log: SegmentLog, control: Control) -> None:
    await put(log, "telemetry", 5)
    good = msgspec.to_builtins(request())
    bads: list[Any] = [
        {**good, "all": True},
        {"stream": "telemetry"},
        {**good, "below": "5"},
        {**good, "below": 2.5},
        [],
    ]
    for bad in bads:
        assert (await post(tmp_path, msgspec.json.encode(bad)))[0] == 400
    assert (await post(tmp_path, b"\xff"))[0] == 400
    for path in ("/", "/status", "/drop/x"):
        assert (await post(tmp_path, msgspec.json.encode(good), path))[0] == 404
    assert operator_gaps(log) == []


@pytest.mark.usefixtures("control")
@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (LogFull("no room to note what is given up"), "no room to note"),
        (LogFailed("the log failed"), "it is uncertain whether records were dropped: the log failed"),
        (OSError(5, "Input/output error"), "Input/output error"),
    ],
)
async def test_a_disk_in_trouble_is_told(
    tmp_path: Path, log: SegmentLog, monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    def fail(*_: object) -> RangeSet:
        raise error

    await put(log, "telemetry", 5)
    with monkeypatch.context() as patched:
        patched.setattr(log, "drop_backlog", fail)
        with pytest.raises(ControlFailed, match=sentence):
            await ask(tmp_path, request())
    assert list(await ask(tmp_path, request())) == [(0, 5)]


async def test_nothing_is_answered_before_the_notices_are_durable_and_one_request_is_worked_on(tmp_path: Path) -> None:
    log = open_log(str(tmp_path), start_writer=False)
    log.append(log.stream("telemetry"), 5, [b"k"] * 5, [b"v"] * 5)
    log.committer.run_once()
    control = Control(str(tmp_path), log, reply_s_max=0.05)
    await control.start()
    with pytest.raises(ControlFailed, match="timed out waiting for the disk"):
        await ask(tmp_path, request())
    assert log.ranges(log.stream("telemetry")).count() == 5
    with pytest.raises(ControlFailed, match="still dropping records for an earlier request"):
        await ask(tmp_path, request())
    log.committer.run_once()
    assert operator_gaps(log) == [(0, 5)]
    await until(lambda: control._work is not None and control._work.done())
    log.append(log.stream("telemetry"), 5, [b"k"] * 5, [b"v"] * 5)
    log.committer.run_once()
    asked = asyncio.create_task(ask(tmp_path, request()))
    await until(lambda: bool(log._state.queue))
    log.committer.poison(OSError("the disk is gone"))
    with pytest.raises(ControlFailed, match="the disk is gone"):
        await asked
    await control.close()
    log.close()


async def test_a_node_that_ends_leaves_no_request_behind(tmp_path: Path) -> None:
    log = open_log(str(tmp_path), start_writer=False)
    log.append(log.stream("telemetry"), 5, [b"k"] * 5, [b"v"] * 5)
    log.committer.run_once()
    control = Control(str(tmp_path), log)
    await control.start()
    asked = asyncio.create_task(ask(tmp_path, request()))
    await until(lambda: bool(log._state.queue))
    await control.close()
    with pytest.raises(ControlFailed, match="the node is shutting down"):
        await asked
    log.close()


async def test_a_folder_whose_name_is_too_long_for_a_socket_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / ("x" * 100)
    log = open_log(str(folder))
    await put(log, "telemetry", 5)
    control = Control(str(folder), log)
    with caplog.at_level(logging.WARNING):
        await control.start()
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot listen at {folder}/control.sock (AF_UNIX path too long): `weft log drop` works only while this "
        "node is stopped"
    ]
    with pytest.raises(ControlFailed, match="Stop the node first"):
        await ask(folder, request())
    await control.close()
    await asyncio.to_thread(log.close)


async def test_a_file_that_is_no_socket_stays(tmp_path: Path, log: SegmentLog) -> None:
    path = tmp_path / "control.sock"
    path.write_text("mine")
    control = Control(str(tmp_path), log)
    await control.start()
    await control.close()
    assert path.read_text() == "mine"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


ASK = """\
import sys
import os
sys.path.insert(0, os.getcwd())
from weft.edge_node.control.client import ControlFailed, DropRequest, ask_drop
os.setuid(int(sys.argv[1]))
try:
    ask_drop(sys.argv[2], DropRequest("000000000000abcd", "telemetry", 5))
except ControlFailed as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
async def test_another_user_is_refused_by_the_mode_and_by_the_node(open_folder: Path) -> None:
    def ask_as_nobody() -> str:
        command = [sys.executable, "-c", ASK, str(NOBODY), str(open_folder)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout

    log = open_log(str(open_folder))
    await put(log, "telemetry", 5)
    control = Control(str(open_folder), log)
    await control.start()
    assert "may not connect to it: it belongs to user" in await asyncio.to_thread(ask_as_nobody)
    (open_folder / "control.sock").chmod(0o666)
    assert f"not from the user with the id {NOBODY}" in await asyncio.to_thread(ask_as_nobody)
    assert operator_gaps(log) == []
    await control.close()
    await asyncio.to_thread(log.close)


async def answer_of(directory: Path, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
    """What the command says of a node that answers like this."""
    runner = web.ServerRunner(web.Server(handler))  # type: ignore[arg-type]
    await runner.setup()
    await web.UnixSite(runner, socket_path(str(directory))).start()
    with pytest.raises(ControlFailed) as failed:
        await ask(directory, request())
    await runner.cleanup()
    return str(failed.value)


async def test_a_node_of_another_release_and_one_that_dies_are_told(tmp_path: Path) -> None:
    async def knows_nothing(_: web.Request) -> web.Response:
        raise web.HTTPNotFound

    async def says_otherwise(_: web.Request) -> web.Response:
        return web.json_response({"ranges": [[5, 3]]})

    async def dies(asked: web.Request) -> web.Response:
        assert asked.transport is not None
        asked.transport.abort()
        return web.Response()

    assert "of another release and answered 404" in await answer_of(tmp_path, knows_nothing)
    assert "of another release and answered 200" in await answer_of(tmp_path, says_otherwise)
    assert "either dropped, with a gap notice, or still there" in await answer_of(tmp_path, dies)


async def test_a_backlog_is_found_in_the_files_of_a_log_that_is_being_written(
    tmp_path: Path, log: SegmentLog, control: Control
) -> None:
    """As on a stopped node: whole batches, and the times of the first and the last of them."""
    stream = log.stream("telemetry")
    for at in range(60):
        log.append(stream, 1000 + at, [b"k"] * 10, [os.urandom(1000) for _ in range(10)])
        await put(log, "alarms", 1)
    assert len(list(tmp_path.glob("*.seg"))) > 3
    running = RunningLog(str(tmp_path))
    found = running.backlog("telemetry")
    assert (list(found.numbers), found.first_time, found.last_time) == ([(0, 600)], 1000, 1059)
    for below in (1, 9, 10, 11, 299, 300, 301, 10_000):
        found = running.backlog("telemetry", below)
        assert found.numbers.end == min(below, 600) // 10 * 10
        if found.numbers:
            assert (found.first_time, found.last_time) == (1000, 1000 + found.numbers.end // 10 - 1)
    with pytest.raises(UnknownStream, match="has no stream vibration; it has alarms, telemetry"):
        running.backlog("vibration")
    assert list(await asyncio.to_thread(running.drop_backlog, "telemetry", 300)) == [(0, 300)]
    found = running.backlog("telemetry")
    assert (list(found.numbers), found.first_time, found.last_time) == ([(300, 600)], 1030, 1059)


async def test_a_hub_that_is_sent_the_records_meanwhile_has_each_number_once(
    tmp_path: Path, log: SegmentLog, control: Control
) -> None:
    """Each number is a record at the hub or is named as lost, and never both; what the hub acknowledged stays there."""
    for _ in range(150):
        await put(log, "telemetry", 10, os.urandom(500))
    async with running_hub(MemoryStore(), shards=1) as hub:
        config = EdgeConfig(
            node="edge-1",
            data_dir=str(tmp_path),
            streams={"telemetry": Stream(from_=("plant/+",))},
            links={"cloud": LinkConfig(to=(hub.url,), window_bytes=20_000)},
        )
        links = Links(config, log, wall_clock=wall_clock)
        links.start()
        given_up, acked, acked_first, below = RangeSet(), 0, 0, 0
        for share in (3, 2, 1):
            await until(lambda: links.statuses[0].records_acked > acked)
            below = log.durable_end(log.stream("telemetry")) // share
            acked = links.statuses[0].records_acked
            acked_first = acked_first or acked  # later ones count what was given up, too
            given_up.update(await ask(tmp_path, request(below=below)))
            await put(log, "telemetry", 10)
        end = log.next_seq(log.stream("telemetry"))

        async def lane() -> dict[str, Any]:
            found: dict[str, Any] = (await get(hub, "/v1/streams/telemetry/completeness"))[1]["lanes"][0]
            return found

        async def is_complete() -> bool:
            return bool((await lane())["complete_below_seq"] == end)

        await until(is_complete)
        lost = RangeSet((gap["first"], gap["end"]) for gap in (await lane())["gaps"])
        records = (await get(hub, "/v1/streams/telemetry/records?limit=10000"))[1]["records"]
        arrived = [record["seq"] for record in records]
        assert len(arrived) == len(set(arrived)), "none twice"
        assert sorted([*arrived, *(seq for gap in lost for seq in range(*gap))]) == list(range(end))
        assert all(given_up.covers(*gap) for gap in lost), "only what was given up is missing"
        assert arrived[:acked_first] == list(range(acked_first))
        await links.close()
