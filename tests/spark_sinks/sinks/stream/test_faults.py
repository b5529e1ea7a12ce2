"""The stream sink through kills, TLS, tokens, redirects, and records that are in the table only."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream import recovery
from tests.spark_sinks.sinks.stream.conftest import StreamHub, rows, send
from tests.support.certificates import Authority, Pem
from tests.support.processes import Node
from tests.support.slices import SLICE
from tests.support.tokens import create_token, declare_in
from tests.support.waiting import PATIENCE_S, wait_until
from weft.hub_api.rights import Scope
from weft.protocols.shard.placement import shard_of

ROWS = 6000


def started(
    hub: StreamHub, stream: str, seed: int, *, rows: int = ROWS, shards: int = 2, spread: int = 1
) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "tests.spark_sinks.sinks.stream.sending",
        hub.url,
        hub.store,
        stream,
        str(rows),
        str(seed),
        str(shards),
        str(spread),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "sending\n"
    return process


@pytest.mark.processes
@pytest.mark.search
@pytest.mark.timeout(590)
def test_a_sink_and_a_hub_that_are_killed_leave_each_row_once(own_hub: StreamHub) -> None:
    chance = random.Random(SLICE.seed)
    for number in range(SLICE.amount(ci=8, night=25)):
        process = started(own_hub, "clean", number)
        time.sleep(chance.uniform(0.1, 1.5))  # any moment of the conversation
        if number % 3 == 1:
            own_hub.kill()
            own_hub.start()
            time.sleep(chance.uniform(0, 0.5))
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    last = started(own_hub, "clean", -1)
    last.communicate(timeout=PATIENCE_S)
    assert last.returncode == 0
    found = own_hub.offsets("clean")
    assert [each for each in found if each[0] == 0] == [(0, offset, 0) for offset in range(ROWS)]
    assert [each for each in found if each[0] == 1] == [(1, offset, n) for offset in range(ROWS) for n in range(2)]
    assert own_hub.problems("clean") == []


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_kills_between_changes_of_the_spread_leave_each_row_once(tmp_path: Path) -> None:
    """Of the sending process and of the hub, which has two processes. Now and then the former one runs on beside."""
    hub = StreamHub(tmp_path)
    text = hub.config_path.read_text()
    hub.config_path.write_text(text.replace("processes: 1", "processes: 2").replace("shards: 2", "shards: 16"))
    hub.start()
    chance, senders = random.Random(SLICE.seed), list[subprocess.Popen[str]]()

    def end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    try:
        for number, spread in enumerate((1, 4, 1, 8, 2, 4, 4, 1)):
            senders.append(started(hub, "spread", number, shards=8, rows=2000, spread=spread))
            time.sleep(chance.uniform(0.2, 2.0))  # any moment of the conversation
            if number % 3 == 1:
                hub.kill()
                hub.start()
            if number % 4 != 2:  # otherwise it is there beside the next one
                for process in senders:
                    end(process)
                senders.clear()
        last = started(hub, "spread", -1, shards=8, rows=2000, spread=4)
        last.communicate(timeout=PATIENCE_S)
        assert last.returncode == 0
        found = sorted(hub.offsets("spread", 16))
        assert found == [
            (shard, offset, n) for shard in range(8) for offset in range(2000) for n in range(1 + shard % 2)
        ]
        assert hub.problems("spread") == []
    finally:
        for process in senders:
            end(process)
        hub.stop()


@pytest.mark.slow
def test_a_lanes_last_record_is_found_in_the_table_as_in_the_log(hub: StreamHub) -> None:
    settings = hub.settings("tabled")
    send(settings, rows(4, range(30), each=2))
    wait_until(lambda: hub.counts()["tabled"] == (60, 60))
    lane = settings.lane(4)

    async def both(seq: int) -> list[object]:
        log, state = await recovery.lane_state(settings, "", lane)
        found = [await recovery._in_logs(log, state, lane, seq), recovery._in_table(log.store, lane, seq)]
        return [(headers or {}).get("weft.position") for headers in found]

    assert asyncio.run(both(59)) == ["4:29:1", "4:29:1"]
    assert asyncio.run(both(7)) == ["4:3:1", "4:3:1"]
    assert asyncio.run(both(60)) == [None, None]


@contextlib.contextmanager
def tls_proxy(pem: Pem, port: int) -> Iterator[str]:
    """TLS in front of a hub, as a load balancer has it. The URL."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem.certificate, pem.key)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
    server.close()
    if left := asyncio.all_tasks(loop):
        loop.run_until_complete(asyncio.wait(left, timeout=5))
    loop.close()


@pytest.mark.slow
def test_tls_is_checked_and_a_token_opens_the_lanes_of_its_query_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tokens = str(tmp_path / "tokens")
    token = create_token(tokens, "clean", Scope.EDGE, edge="spark-clean")
    reader = create_token(tokens, "reader", Scope.READER)
    hub = StreamHub(tmp_path)
    declare_in(hub.store, tokens)
    node = Node("hub", hub.config_path)
    try:
        with tls_proxy(authority.sign("127.0.0.1"), hub.port) as url:
            given: dict[str, object] = {"urls": (url,), "token": token, "ca": Path(authority.path).read_text()}
            settings = hub.settings("clean", **given)
            assert send(settings, rows(0, range(5)))[0]["sent"] == 5
            assert token not in repr(settings)
            spread = hub.settings("clean", **given, spread=4)
            assert send(spread, rows(3, range(5)))[3]["sent"] == 5
            for changes, sentence in (
                ({"ca": None}, "certificate is refused"),
                ({"token": None}, r"requires a token \(401\)"),
                ({"token": "x" * 40}, r"\(401\)"),
                ({"token": reader}, "with `--scope edge`"),
                ({"query": "other"}, "is not for edge spark-other"),
                ({"query": "clean-1", "spread": 4}, "is not for edge spark-_3[a-z]*_clean-1"),
                ({"tenant": "other"}, "is not for edge spark-clean of tenant other"),
            ):
                with pytest.raises(SinkError, match=sentence):
                    send(hub.settings("clean", **(given | changes)), rows(3, range(9)))
    finally:
        node.stop()


@pytest.mark.slow
@pytest.mark.processes
def test_a_redirect_leads_to_the_process_that_has_the_lane(tmp_path: Path) -> None:
    hub = StreamHub(tmp_path)
    hub.config_path.write_text(hub.config_path.read_text().replace("processes: 1", "processes: 2"))
    hub.start()
    try:
        names = [next(f"q{n}" for n in range(64) if shard_of("default", f"spark-q{n}", 2) == s) for s in range(2)]
        for name in names:
            settings = hub.settings("both", query=name)
            assert send(settings, rows(0, range(40)))[0]["sent"] == 40
            assert send(settings, rows(0, range(60)))[0]["sent"] == 20
        assert sorted(hub.offsets("both")) == sorted([(0, offset, 0) for offset in range(60)] * 2)
    finally:
        hub.stop()
