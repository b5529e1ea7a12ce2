"""The doctor of an edge: each line says what is so, and what to do; it leaves nothing behind and never waits long."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import pytest

from weft.config.links import Link
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.config.verdict import Standing, Verdict, act, good, is_well, unknown
from weft.demo.fabric import free_port
from weft.edge_node.check import check
from weft.edge_node.preflight.doctor import examine
from weft.edge_node.preflight.hub_answers import HubCalls
from weft.edge_node.preflight.open_files import open_files
from weft.storage.disk_speed import DiskSpeed, disk_speed, judged, measure

NOW = 1_800_000_000.0
CONFIG = "node: a\ndata_dir: {folder}\nstreams: {{telemetry: {{from: '#'}}}}\nhttp: null\nlisteners: {{}}\n"


def configuration(folder: Path, more: str = "") -> EdgeConfig:
    return parse(CONFIG.format(folder=folder) + more, "edge.yaml", EdgeConfig, check).config


def test_the_disk_is_measured_in_a_file_without_a_name(tmp_path: Path) -> None:
    speed = measure(str(tmp_path), time.monotonic)
    assert 0 < speed.usual_s <= speed.slowest_s
    assert list(tmp_path.iterdir()) == []


def test_a_measurement_ends_in_time_however_slow_the_disk_is(tmp_path: Path) -> None:
    ticks = iter(range(100))
    assert measure(str(tmp_path), lambda: float(next(ticks))).syncs == 1, "each look at this clock takes a second"


@pytest.mark.parametrize(
    ("speed", "state", "words"),
    [
        (DiskSpeed(20, 0.002, 0.011), Standing.GOOD, "a sync takes 2.0 ms, the slowest of 20 took 11.0 ms"),
        (DiskSpeed(8, 0.25, 0.4), Standing.ACT, "use a faster disk"),
        (DiskSpeed(20, 0.002, 1.5), Standing.ACT, "the slowest of 20 took 1.5 s. Look for other programs"),
    ],
)
def test_a_slow_disk_is_something_to_act_on(speed: DiskSpeed, state: Standing, words: str) -> None:
    verdict = judged(speed)
    assert verdict.state is state
    assert words in verdict.says


def test_a_disk_that_does_not_answer_does_not_keep_the_command(tmp_path: Path) -> None:
    healed = threading.Event()

    def stuck(_directory: str, _clock: Callable[[], float]) -> DiskSpeed:
        healed.wait()
        return DiskSpeed(1, 1, 1)

    verdict = disk_speed(str(tmp_path), time.monotonic, 0.01, stuck)
    healed.set()
    assert verdict.state is Standing.ACT
    assert "look at `dmesg`" in verdict.says


def test_a_folder_that_is_not_there_is_unknown_and_is_not_made(tmp_path: Path) -> None:
    lines = list(examine(configuration(tmp_path / "data"), {}, time.monotonic, time.time))
    states = {each.check: each.state for each in lines if each.check.startswith("disk ")}
    assert states == {"disk space": Standing.UNKNOWN, "disk speed": Standing.UNKNOWN}
    assert list(tmp_path.iterdir()) == []


def test_what_the_check_finds_is_in_the_lines_and_a_good_part_has_one(tmp_path: Path) -> None:
    lines = list(examine(configuration(tmp_path, "auth: {users_file: users}\n"), {}, time.monotonic, time.time))
    by_check = {each.check: each for each in lines}
    assert by_check["configuration"].state is Standing.ACT
    assert "weft user add" in by_check["configuration"].says
    assert by_check["ports"] == good("ports", "all are free")
    assert not is_well(lines)
    assert is_well([good("a", "b"), unknown("a", "b")])
    assert not is_well([good("a", "b"), act("a", "b")])


def test_open_files_are_counted_for_a_node_that_would_start_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(tmp_path, "limits: {connections: 1000, half_open: 100}\n")
    for hard, state in ((500, Standing.ACT), (5000, Standing.GOOD), (-1, Standing.GOOD)):
        monkeypatch.setattr("resource.getrlimit", lambda _kind, hard=hard: (256, hard))
        assert open_files(config, is_running=False).state is state
    assert open_files(config, is_running=True).state is Standing.UNKNOWN, "there is no node to ask"


class Answers(http.server.BaseHTTPRequestHandler):
    """A server whose answer its ``server`` has."""

    def do_GET(self) -> None:
        status, headers, body = self.server.answer  # type: ignore[attr-defined]
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@contextmanager
def answering(status: int, headers: dict[str, str], body: bytes = b"") -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.answer = status, headers, body  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def called(url: str, patience_s: float = 10.0) -> list[Verdict]:
    return HubCalls("cloud", Link(to=(url,)), time.monotonic, lambda: NOW, patience_s=patience_s).verdicts()


@pytest.mark.parametrize(
    ("status", "headers", "body", "states", "words"),
    [
        (200, {"Date": formatdate(NOW)}, b"ready", [Standing.GOOD, Standing.GOOD], "takes work"),
        (200, {"Date": formatdate(NOW + 3600)}, b"", [Standing.GOOD, Standing.ACT], "60.0 minutes behind"),
        (200, {"Date": formatdate(NOW - 30)}, b"", [Standing.GOOD, Standing.ACT], "30 seconds ahead of"),
        (200, {"Date": "yesterday"}, b"", [Standing.GOOD, Standing.UNKNOWN], "says no time"),
        (200, {}, b"", [Standing.GOOD, Standing.UNKNOWN], "says no time"),
        (503, {}, b"a store is silent\nx", [Standing.ACT, Standing.UNKNOWN], "no work: a store is silent."),
        (302, {"Location": "http://x/"}, b"", [Standing.ACT, Standing.UNKNOWN], "redirects (302)"),
        (404, {}, b"", [Standing.ACT, Standing.UNKNOWN], "answers 404: no hub is there"),
    ],
)  # fmt: skip
def test_the_answer_of_a_hub_and_its_clock_are_two_lines(
    status: int, headers: dict[str, str], body: bytes, states: list[Standing], words: str
) -> None:
    with answering(status, headers, body) as url:
        found = called(url)
    assert [each.state for each in found] == states
    assert words in "\n".join(each.says for each in found)


def test_a_hub_that_cannot_be_reached_is_something_to_act_on() -> None:
    (refused,) = called(f"http://127.0.0.1:{free_port()}")
    assert (refused.check, refused.state) == ("link cloud", Standing.ACT)
    assert "Check that the hub runs" in refused.says
    (unnamed,) = called("http://no.such.name.invalid:1")
    assert "the name no.such.name.invalid cannot be resolved" in unnamed.says
    with answering(200, {}) as url:
        (plain,) = called(url.replace("http", "https"))
    assert "does not speak TLS" in plain.says


def test_a_hub_that_is_silent_is_left_after_a_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (verdict,) = called(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.05)
    assert "no answer within 0.05 s" in verdict.says
