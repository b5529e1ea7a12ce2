"""What the benchmarks compare, and what they are made of."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import pair, report, sizing
from bench.brokers import merged
from bench.count import __main__ as count
from bench.functions import KEYS, cases, write_payloads
from bench.hub.cold_start import PROCESSES, Start, Written, measure
from bench.hub.followers import EDGES, SHARDS, STREAMS, TENANT, FleetLog, Followed, driver_bytes, name_of
from bench.link.bad_line import LIVE_RATE, ROOM
from bench.link.bad_line import measure as bad_line_measure
from bench.profiling import OTHER, Spent, flame_graph, seconds_by_part
from tests.support.outcomes import outcome
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.derived.definitions import definitions
from weft.protocols.chunk_index import StreamKey

# --- What the counted instructions are compared with, and when they are red. The paths themselves run in CI's count


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(count, "FIGURES", tmp_path / "figures.json")
    return tmp_path / "figures.json"


def test_a_path_is_red_from_a_tenth_more_on() -> None:
    found = {"slower": ("row", 1151.0), "the same": ("row", 1009.0), "faster": ("row", 500.0), "other": ("row", 7.0)}
    reported = dict(zip(found, count.lines(found, {"slower": 1000, "the same": 1000, "faster": 1000}), strict=True))
    assert {name for name, (_, is_red) in reported.items() if is_red} == {"slower"}
    assert reported["slower"][0].endswith("1,151 instructions a row, +15.1%")
    assert reported["other"][0].endswith("new")


def test_figures_are_taken_with_a_reason_and_leave_those_of_other_paths(figures: Path) -> None:
    count.take({"a": ("row", 10.4), "b": ("row", 20.0)}, "first")
    count.take({"b": ("row", 30.0)}, "rows are sorted now")
    assert count.known() == {"a": 10, "b": 30}
    assert [each["reason"] for each in json.loads(figures.read_text())["reasons"]] == ["first", "rows are sorted now"]


def test_figures_of_another_python_are_compared_with_nothing(figures: Path) -> None:
    count.take({"a": ("row", 10.0)}, "first")
    kept = json.loads(figures.read_text())
    figures.write_text(json.dumps(kept | {"machine": kept["machine"] | {"python": "3.9.1"}}))
    assert count.known() is None


def test_a_red_path_is_counted_again_and_stays_red_only_if_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted slowdown of 15 % is found by each count; a timer of the machine only by one."""
    counted = iter([{"slower": 1155.0, "disturbed": 1030.0}, {"slower": 1149.0}])
    asked = []

    def count_some(names: list[str]) -> dict[str, tuple[str, float]]:
        asked.append(names)
        return {name: ("row", figure) for name, figure in next(counted).items()}

    monkeypatch.setattr(count, "count", count_some)
    before = {"slower": 1000.0, "disturbed": 1000.0, "the same": 1000.0}
    first = {"slower": ("row", 1151.0), "disturbed": ("row", 1400.0), "the same": ("row", 1001.0)}
    found = count.count_again(first, before)
    assert asked == [["slower", "disturbed"], ["slower"]]
    assert found == {"slower": ("row", 1149.0), "disturbed": ("row", 1030.0), "the same": ("row", 1001.0)}


# --- The calculator of sizes: it says what was measured where it was measured, and the page shows what it says


PAGE = Path(__file__).parents[2] / "docs/sizing.md"
FLEET = sizing.Fleet(edges=100, rate=1000, payload_bytes=100, outage_s=86_400, streams=1, batch_s=1)


def sizes(fleet: sizing.Fleet) -> dict[str, str]:
    return {each.what: each.size for each in sizing.sizes(fleet, sizing.found()[0])}


def figure(text: str) -> float:
    return float(text.split(maxsplit=1)[0].replace(",", ""))


def test_at_a_measured_rate_it_says_the_worst_that_was_measured() -> None:
    cases = sizing.found()[0]["mqtt"]["cases"]
    measured = [each["weft"]["server_cpu"] for each in cases if each["name"].startswith("rate_1000_")]
    assert figure(sizes(FLEET)["edge: processor"]) == pytest.approx(max(measured), abs=0.005)


def test_twice_the_edges_need_twice_the_hub_and_the_same_edge() -> None:
    one, two = sizes(FLEET), sizes(replace(FLEET, edges=200))
    for what in ("hub: links and batches", "hub: tables"):
        assert figure(two[what]) == pytest.approx(2 * figure(one[what]), abs=0.02)
    assert {what: size for what, size in two.items() if what.startswith("edge")} == {
        what: size for what, size in one.items() if what.startswith("edge")
    }


def test_beyond_what_was_measured_the_cost_of_a_message_stays() -> None:
    most, beyond = (sizes(replace(FLEET, rate=rate))["edge: processor"] for rate in (10_000, 20_000))
    assert figure(beyond) == pytest.approx(2 * figure(most), abs=0.02)


def test_the_page_shows_what_it_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command, said = re.findall(r"```text\n\$ \./run bench (sizing .*)\n((?:.|\n)*?)```", PAGE.read_text())[0]
    monkeypatch.setattr("sys.argv", shlex.split(command))
    sizing.main()
    assert capsys.readouterr().out.split("\n\n")[0].strip() == said.strip()


# --- The benchmark of edge functions: its configurations are good, and its parts add up


STACKS = """\
thread (7): MainThread;run (weft/service/loop.py:1);read (weft/edge_node/derived/stream.py:5) 3
thread (7): MainThread;run (weft/service/loop.py:1);process (weft/functions/thinning.py:9);go (x.py:1) 1
thread (8): weft-log-writer;sync (weft/storage/filesystem.py:3) 1000
thread (8): weft-log-writer;encode (weft/protocols/batch.py:7) 2
thread (9): other;sleep (threading.py:1) 5
"""


def test_the_processor_time_of_threads_is_parted_by_their_samples(tmp_path: Path) -> None:
    (tmp_path / "stacks").write_text(STACKS)
    spent = {7: Spent(3.0, 1.0), 8: Spent(2.0, 0.5), 11: Spent(0.25, 0.0)}
    found = {"functions: read the log": 3.0, "batches": 2.0, "functions: kinds": 1.0, "log: commit and sync": 0.5}
    assert seconds_by_part(tmp_path / "stacks", spent) == found | {OTHER: 0.25}


def test_a_flame_graph_has_the_share_of_each_call_and_no_waits() -> None:
    stacks = [
        "thread (7): MainThread;main (weft/cli.py:3);run_until_stopped (weft/service/serving.py:1);read (libc.so.6) 3",
        "thread (7): MainThread;run_until_stopped (weft/service/serving.py:9);decode <all> (weft/protocols/x.py:2) 4",
        "thread (7): MainThread;run_until_stopped (weft/service/serving.py:9);decode <all> (weft/protocols/x.py:8) 1",
        "thread (7): MainThread;run_until_stopped (weft/service/serving.py:1);epoll_pwait (libc.so.6) 9",
        "thread (8): weft-log-writer;WriterThread._run (weft/storage/segment_log/commit.py:1);write (libc.so.6) 2",
    ]
    names = re.findall("<title>(.*?)</title>", flame_graph(stacks, "a node"))
    assert names == [
        "a node: 100.0%",
        "MainThread: 80.0%",
        "run_until_stopped (service/serving.py): 80.0%",
        "decode &lt;all&gt; (protocols/x.py): 50.0%",
        "read: 30.0%",
        "weft-log-writer: 20.0%",
        "WriterThread._run (storage/segment_log/commit.py): 20.0%",
        "write: 20.0%",
    ]


@pytest.mark.parametrize("name", [*cases("10s")])
def test_the_node_of_a_case_is_one_that_starts(tmp_path: Path, name: str) -> None:
    base = {"node": "bench", "data_dir": "data", "streams": {"load": {"from": "plant/{line}/{machine}/telemetry"}}}
    case = cases("10s")[name]
    config = parse(json.dumps(merged(base, case.edge().settings)), str(tmp_path / "edge.yaml"), EdgeConfig).config
    found = list(definitions(config))
    assert len(found) == bool(case.functions)
    assert all(each.make_chain() for each in found)


def test_payloads_are_json_of_ten_thousand_sensors(tmp_path: Path) -> None:
    written = {name: path.read_bytes().splitlines() for name, path in write_payloads(tmp_path).items()}
    sensors = {json.loads(line)["sensor"] for line in written["keyed"]}
    assert len(sensors) == KEYS
    assert all("temp" in json.loads(line) for line in written["compact"])
    assert all("temp" in json.loads(line)["data"] for line in written["raw"])


# --- A hub that starts on the log of a fleet: what it needs grows with the lanes, and fits the large fleet's targets


PART = 20
"""Part of the large fleet."""
SNAPSHOT_BYTES_MAX, CPU_S_MAX = 5_000_000, 5.0
"""Targets for a shard, and for a process, of the large fleet."""
SPARE = 3
"""Factor that a busy machine may add."""


@pytest.mark.slow
def test_a_cold_start_grows_with_the_lanes_and_fits_the_large_fleet() -> None:
    small, large = measure(EDGES // (4 * PART), chunks=10), measure(EDGES // PART, chunks=10)
    for written, starts in (small, large):
        assert sorted(shard for each in starts for shard in each.loaded) == list(range(SHARDS)), "each shard once"
        assert {lanes for each in starts for lanes in each.loaded.values()} == {written.lanes}
        assert len(starts) == PROCESSES
    assert bytes_of(*large) <= 4.5 * bytes_of(*small), "in proportion to the lanes"
    assert bytes_of(*large) * PART < SNAPSHOT_BYTES_MAX
    assert large[0].lanes == EDGES // PART // SHARDS * STREAMS
    grown = max(each.cpu_s for each in large[1]) - max(each.cpu_s for each in small[1])
    assert grown * PART * 4 / 3 < SPARE * CPU_S_MAX


def bytes_of(written: Written, _: list[Start]) -> int:
    return written.snapshot_bytes


# --- Who follows one stream of a large fleet reads, folds and keeps that one (proofs q2 and q6)


FOLLOWERS_EDGES, FOLLOWERS_STREAMS = 100, 20
"""Edges in the shard, and streams of each."""


async def followed(log: FleetLog, only: frozenset[StreamKey] | None) -> tuple[Followed, float]:
    """Follow three times, and return what was found and the least processor time of a chunk: what a busy machine adds
    is not there every time."""
    found = [await log.follow(only) for _ in range(3)]
    return found[0], min(each.read_s + each.fold_s for each in found)


def test_a_follower_of_one_stream_reads_and_keeps_one_stream() -> None:
    async def main() -> None:
        log = await FleetLog.make(FOLLOWERS_EDGES * SHARDS, FOLLOWERS_STREAMS, chunks=6)
        everything, all_s = await followed(log, None)
        one, one_s = await followed(log, frozenset({(TENANT, name_of(3))}))
        assert len(everything.state.lanes) == FOLLOWERS_EDGES * FOLLOWERS_STREAMS
        assert {lane.stream for lane in one.state.lanes} == {name_of(3)}
        assert len(one.state.lanes) == FOLLOWERS_EDGES
        assert [len(chunk.footer.lanes) for chunk in one.chunks] == [FOLLOWERS_EDGES] * 6
        mine = {lane: held for lane, held in everything.state.lanes.items() if lane.stream == name_of(3)}
        assert {lane: (held.ranges, held.mark) for lane, held in one.state.lanes.items()} == {
            lane: (held.ranges, held.mark) for lane, held in mine.items()
        }
        assert one.bytes < everything.bytes / 3, "the first look at a log is a guess"
        assert one_s < all_s / 4
        assert driver_bytes(log, one, name_of(3)) * SHARDS < 200 << 20

    asyncio.run(main())


# --- A real line of 64 KiB/s with 200 ms and 2 % loss: new messages pass the history, and nothing is lost or doubled


SECONDS, DEAD_S = 30, 60


def run(folder: Path, order: str, seconds: int, *options: str) -> dict[str, Any]:
    command = [*ROOM, "ip", "tuntap", "add", "probe", "mode", "tun"]
    if shutil.which("ip") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs iproute2, user and network namespaces, and /dev/net/tun")
    (found,) = bad_line_measure(folder, [order], "--seconds", str(seconds), *options)
    print(found)
    with outcome():
        assert not found["doubled"]
        assert found["live"] == seconds * LIVE_RATE
    return found


@pytest.mark.processes
@pytest.mark.search(turns=4)
@pytest.mark.timeout(590)
@pytest.mark.skipif(os.cpu_count() == 1, reason="all ends share one core")
def test_new_messages_pass_the_history(tmp_path: Path) -> None:
    found = run(tmp_path, "fresh_first", SECONDS)
    assert found["history_s"] > SECONDS * 0.8, "history was gone before the measure was over"
    assert found["live_ms"]["p99"] < found["history_s"] * 1000 / 4, "behind history they come with its end"


@pytest.mark.processes
@pytest.mark.search(turns=4)
@pytest.mark.timeout(590)
@pytest.mark.parametrize("dead", ["up", "down"])
def test_a_line_that_is_dead_in_one_direction_loses_and_doubles_nothing(tmp_path: Path, dead: str) -> None:
    run(tmp_path, "fresh_first", SECONDS, "--dead", dead, "--dead-seconds", str(DEAD_S))


# --- What a pair is compared with


def test_a_pair_is_compared_with_the_node_alone_of_its_turn_and_says_what_it_misses() -> None:
    def figures(rate: float, p50: float) -> dict[str, dict[str, float]]:
        others = {"ack_ms_p99": 9.0, "cpu_us": 5.0, "copied_bytes_per_message": 20.0}
        return {load: {"messages_per_s": rate, "ack_ms_p50": p50, **others} for load in pair.LOADS}

    turns = [
        {"alone": figures(100 * speed, 1.0), "loopback": figures(59 * speed, 1.5), "line": figures(60 * speed, 5.1)}
        for speed in (1, 5, 2)
    ]
    rows = pair.summary(turns, fsync=2.0)
    met = {(row["load"], row["kind"]): row.get("met") for row in rows}
    for load in ("1000x1", "10x100"):
        assert (met[load, "loopback"], met[load, "line"]) == (False, True), "by the rate"
    assert (met["1000/s", "loopback"], met["1000/s", "line"]) == (True, False), "by the time of an acknowledgement"
    shown = "\n".join(report.pair({"line_ms": 1, "fsync_ms": 2.0, "idle_share": 0.004, "rows": rows}))
    assert "| 10 x 100 | on loopback | 118 | 0.59 | 1.50 | 9.00 | 5.0 | 20 | **not met** |" in shown
