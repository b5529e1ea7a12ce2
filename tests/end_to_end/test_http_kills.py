"""SIGKILL an edge node while clients post: what was answered is there, and what they send again is there once."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import psutil
import pytest

from examples.demo.fabric import free_port
from tests.storage.segment_log.helpers import open_log
from tests.support.outcomes import outcome
from tests.support.processes import EdgeProcess
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.batch import records
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogSettings

pytestmark = pytest.mark.processes
CLIENTS = 8
BATCH = 3
KILLS = SLICE.amount(ci=3, night=30)
ANSWERS = 60
"""Answers between two kills."""
RSS_BYTES_MAX = 60 << 20
SETTINGS = LogSettings(segment_bytes=4 << 20, budget_bytes=64 << 20, tail_bytes=0)
CONFIG = """\
node: press-1
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}, http: {{bind: "127.0.0.1:{port}"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/#"}}}}
"""


class KilledEdge(EdgeProcess):
    """A node that is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        super().__init__(folder, CONFIG.format(port=self.port))
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def records(self) -> int:
        """How many are on disk, of a node that runs."""
        return int(self.node.json("status")["streams"].get("telemetry", {}).get("durable_end", 0))

    def stored(self) -> dict[int, bytes]:
        """Seq -> payload, of a node that is dead."""
        log = open_log(OSFileSystem(), SETTINGS, directory=str(self.folder / "data"))
        number, found = log.streams()["telemetry"], dict[int, bytes]()
        while batches := log.read(number, len(found), 1 << 22):
            found |= {record.seq: record.payload for data in batches for record in records(data)}
        log.close()
        return found


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[KilledEdge]:
    with KilledEdge(tmp_path) as edge:
        yield edge


def wait_for_records(edge: KilledEdge, count: int) -> None:
    wait_until(lambda: edge.records() >= count)


class Poster:
    """Posts arrays one after the other, each with a key of its own, and again until it is answered."""

    def __init__(self, edge: KilledEdge, name: str, answered: asyncio.Event) -> None:
        self.edge, self.name = edge, name
        self.answers: dict[int, int] = {}
        """Number of a request -> first seq."""
        self.again = 0
        self._answered = answered

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                await self._post(session, len(self.answers))

    async def _post(self, session: aiohttp.ClientSession, number: int) -> None:
        body = json.dumps([f"{self.name} {number} {each}" for each in range(BATCH)], separators=(",", ":"))
        headers = {"Idempotency-Key": f"{self.name}-{number}", "Content-Type": "application/json"}
        while True:
            try:
                path = f"{self.edge.url}/v1/streams/telemetry/plant/{self.name}"
                async with session.post(path, data=body, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    found = await answer.json()
                    assert found["count"] == BATCH
                    self.again += "Idempotency-Replayed" in answer.headers
                    self.answers[number] = found["first_seq"]
                    self._answered.set()
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)  # it is being started again


@pytest.mark.search
async def test_nothing_answered_is_lost_and_nothing_sent_again_is_doubled(edge: KilledEdge) -> None:
    answered = asyncio.Event()
    clients = [Poster(edge, f"c{number}", answered) for number in range(CLIENTS)]
    tasks = [asyncio.create_task(client.run()) for client in clients]
    for round_number in range(KILLS + 1):
        async with asyncio.timeout(PATIENCE_S):
            while sum(len(client.answers) for client in clients) < ANSWERS * (round_number + 1):
                answered.clear()
                done, _ = await asyncio.wait(
                    [*tasks, asyncio.create_task(answered.wait())], return_when=asyncio.FIRST_COMPLETED
                )
                for task in done & set(tasks):
                    task.result()
        edge.kill()
        if round_number < KILLS:
            await asyncio.to_thread(edge.start)
    for task in tasks:
        task.cancel()
    found = edge.stored()
    copies = Counter(found.values())
    with outcome():
        assert set(copies.values()) == {1}, [payload for payload, count in copies.items() if count > 1][:3]
    for client in clients:
        for number, first in client.answers.items():
            expected = [f'"{client.name} {number} {each}"'.encode() for each in range(BATCH)]
            assert [found[first + each] for each in range(BATCH)] == expected
    with outcome():
        assert len(found) % BATCH == 0, "a request is there in part"


@pytest.mark.slow
def test_a_request_whose_answer_died_with_the_node_is_answered_as_it_would_have_been(edge: KilledEdge) -> None:
    body, path = b'["a","b"]', "/v1/streams/telemetry/plant/a"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"
    with socket.create_connection(("127.0.0.1", edge.port)) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_for_records(edge, 2)
        edge.kill()  # on disk, and the client has not read an answer
    edge.start()
    asking = urllib.request.Request(
        edge.url + path, body, {"Content-Type": "application/json", "Idempotency-Key": "k"}, method="POST"
    )
    with urllib.request.urlopen(asking, timeout=PATIENCE_S) as answer:
        assert answer.headers["Idempotency-Replayed"] == "true"
        found = json.load(answer)
    assert (found["first_seq"], found["count"]) == (0, 2)
    edge.kill()
    assert list(edge.stored().values()) == [b'"a"', b'"b"']


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_that_tries_again_while_the_node_is_killed_stores_each_message_once(edge: KilledEdge) -> None:
    ends, kills = threading.Event(), 3

    def storm(name: str) -> list[tuple[str, int]]:
        found, number = [], 0
        while not ends.is_set():
            message = f"{name}-{number}"
            done = subprocess.run(
                [
                    "curl",
                    "-sS",
                    "-m",
                    "20",
                    "--retry",
                    "30",
                    "--retry-delay",
                    "1",
                    "--retry-all-errors",
                    "-H",
                    f"Idempotency-Key: {message}",
                    "-H",
                    "Content-Type: text/plain",
                    "-d",
                    message,
                    f"{edge.url}/v1/streams/telemetry/plant/{name}",
                ],
                capture_output=True,
                text=True,
                check=True,
            )
            found.append((message, json.loads(done.stdout[done.stdout.rindex("{") :])["first_seq"]))
            number += 1
        return found

    with ThreadPoolExecutor(4) as pool:
        storms = [pool.submit(storm, f"c{number}") for number in range(4)]
        for _ in range(kills):
            wait_for_records(edge, edge.records() + 10)
            edge.kill()
            edge.start()
        ends.set()
        answers = [each for storm in storms for each in storm.result()]
    edge.kill()
    found = edge.stored()
    with outcome():
        assert {seq: payload.decode() for seq, payload in found.items()} == {seq: message for message, seq in answers}
    assert len(answers) > 10 * kills


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_posts_and_reads_and_the_node_stays_small(edge: KilledEdge) -> None:
    edge.node.stop()
    edge.start(popen=subprocess.Popen)  # its memory is measured

    def curl(*arguments: str) -> str:
        done = subprocess.run(["curl", "-sS", "-m", "10", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode in (0, 28), done.stderr
        return done.stdout

    stream = f"{edge.url}/v1/streams/telemetry"
    assert json.loads(curl("-d", '{"v": 1}', f"{stream}/plant/a"))["first_seq"] == 0
    body = edge.folder / "body"
    body.write_bytes(b"x" * 1_000_000)  # curl asks with Expect: 100-continue
    assert json.loads(curl("--data-binary", f"@{body}", f"{stream}/plant/a"))["first_seq"] == 1
    body.write_bytes(b"x" * 9_000_000)
    assert "limits.message" in curl("--data-binary", f"@{body}", f"{stream}/plant/a")
    assert curl("-d", "m f=1i", f"{edge.url}/api/v2/write?bucket=plant", "-w", "%{http_code}") == "204"
    assert "id: 0\ndata: {" in curl("-N", "-m", "1", f"{stream}/events?from=earliest")
    assert psutil.Process(edge.pid).memory_info().rss < RSS_BYTES_MAX + (8 << 20)  # and two bodies
